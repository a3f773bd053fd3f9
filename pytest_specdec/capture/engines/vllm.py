"""vLLM: ``vllm serve``."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture.engines import place, speculation
from pytest_specdec.capture.engines.arguments import filled, flags
from pytest_specdec.capture.engines.command import HOST, Command
from pytest_specdec.capture.engines.protocol import Dialect, Footprint, Pace
from pytest_specdec.capture.engines.vllm_dialect import VllmDialect
from pytest_specdec.capture.launch import docker
from pytest_specdec.errors import EngineError
from pytest_specdec.model.score import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.capture.engines.protocol import Setup
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

__all__ = ["Vllm", "same_vocabulary", "vocabulary_of"]

METRICS = "per-request-spec-decode-metrics"
_METRICS_SINCE = (0, 30)
_SHARE = 0.92
"""vLLM's own ``gpu-memory-utilization``."""
_KV_GIB = "4"
"""vLLM's own ``VLLM_CPU_KVCACHE_SPACE``."""
_PROCESSES_GIB = 3.0
"""Of API server, engine core and worker without weights and KV space, roughly."""
_COPIES = 1.5
"""Weights in memory over weights on disk, roughly: a drafter and buffers included."""
_REMEDY = "pip install 'pytest-specdec[vllm]', or set engine.executable, engine.venv or engine.image"


class Vllm:
    """The adapter of vLLM's OpenAI server (facts: its ``arg_utils.py`` and ``cli_args.py``)."""

    kind = "vllm"
    pace = Pace(boot_s=60.0, tokens_per_s=100.0, scored_tokens_per_s=1500.0)
    dialect: Dialect = VllmDialect()
    scored_with = "set max-logprobs to 20 or more (-1 for any number)"

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Read ``--speculative-config``."""
        return speculation.draft(args)

    def check(self, config: Config) -> None:
        """Look for ``vllm`` (or ``docker`` for an image), and for a model that is a path of this machine; others may come from the hub."""
        if config.engine.image:
            place.there(shutil.which("docker"), f"engine.image: {config.engine.image}", "`docker` on PATH", "install docker")
        else:
            self._program(config)
            place.model_there(config)
            self._same_vocabularies(config)

    def command(self, config: Config, setup: Setup) -> Command:
        """Return ``vllm serve MODEL …`` or its container."""
        model = config.resolve(setup.model)
        args = self._args(config, setup)
        argv = [model, *flags(args)]
        env = {"VLLM_NO_USAGE_STATS": "1", **setup.env, **({"VLLM_API_KEY": setup.api_key} if setup.api_key else {})}
        if config.engine.image:
            folders = [name for name in (model, str(speculation.setting(args).get("model", ""))) if Path(name).is_absolute()]
            return docker.command(
                config.engine.image, argv, env=env, folders=folders, accelerator=True, stop_s=config.limits.stop_s, secrets=setup.secrets
            )
        return Command(argv=(self._program(config), "serve", *argv), env=env, secrets=setup.secrets)

    def vocabulary(self, config: Config) -> int:
        """Read ``vocab_size`` of a local checkpoint's config.json."""
        return vocabulary_of(Path(config.resolve(config.engine.model)))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the largest ``gpu-memory-utilization`` of the arms; without an accelerator weights, KV space and three processes."""
        layers = [config.baseline.args, *(variant.args for variant in config.variants)]
        if accelerated:
            return Footprint(device_share=max(_share({**config.engine.args, **args}) for args in layers))
        weights = place.checkpoint_gib(Path(config.resolve(config.engine.model)))
        kv_gib = config.engine.env.get("VLLM_CPU_KVCACHE_SPACE", _KV_GIB)
        known = weights is not None and str(kv_gib).isdecimal()
        return Footprint(memory_gib=_PROCESSES_GIB + float(kv_gib) + _COPIES * (weights or 0.0) if known else None)

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - every version serves them
        """Return prompt log-probabilities."""
        return ScoringRoute.PROMPT_LOGPROBS

    def _same_vocabularies(self, config: Config) -> None:
        """Hold draft models against the target where both lie on this machine and the setting does not map one vocabulary to the other."""
        for variant in config.variants:
            args = filled(config, variant, os.environ)
            draft = self.draft(args)
            if draft and draft.model and not any("vocab" in name for name in speculation.setting(args)):
                where = f"variants.{variant.name}.args.speculative-config.model"
                same_vocabulary(Path(config.resolve(draft.model)), Path(config.resolve(config.engine.model)), where)

    def _args(self, config: Config, setup: Setup) -> dict[str, JSON]:
        args: dict[str, JSON] = {"host": HOST, **_with_paths(config, setup.args), "port": setup.port}
        if setup.speculative and self._version(config) >= _METRICS_SINCE:
            args.setdefault(METRICS, "detailed")
        return args

    def _program(self, config: Config) -> str:
        return place.program(config, "vllm", default=shutil.which("vllm"), remedy=_REMEDY)

    def _version(self, config: Config) -> tuple[int, ...]:
        """Return the version, or the newest when it cannot be known: an unknown flag is refused in clear words."""
        image = config.engine.image
        found = place.numbers(image.rpartition(":")[2]) if image else place.version(self._program(config), "vllm")
        return found or _METRICS_SINCE


def _with_paths(config: Config, args: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``args`` with a drafter that lies beside the config as a path that holds wherever the server is started."""
    setting = speculation.setting(args)
    model = setting.get("model")
    if not isinstance(model, str) or config.resolve(model) == model:
        return dict(args)
    rest = {name: value for name, value in args.items() if name.lstrip("-").replace("_", "-") not in speculation.FLAGS}
    return {**rest, "speculative-config": {**setting, "model": config.resolve(model)}}


def _share(args: Mapping[str, JSON]) -> float:
    """Return the part of the accelerator's memory that a server with ``args`` takes; more than a half where they do not say."""
    named = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    share = named.get("gpu-memory-utilization")
    return float(share) if isinstance(share, (int, float)) and 0 < share <= 1 else _SHARE


def same_vocabulary(draft: Path, target: Path, where: str) -> None:
    """Raise EngineError when both checkpoints are folders here and the draft model's tokens are not the target's."""
    theirs, ours = vocabulary_of(draft), vocabulary_of(target)
    if theirs and ours and theirs != ours:
        raise EngineError(
            what="the draft model has another vocabulary than the target",
            where=where,
            found=f"vocab_size {theirs:,} in {draft}",
            expected=f"vocab_size {ours:,}, as in {target}",
            remedy="name a draft model of the target's family, trained with its tokenizer",
        )


def vocabulary_of(checkpoint: Path) -> int:
    """Return ``vocab_size`` of a checkpoint folder, that of its text model where it has several; 0 where unknown."""
    try:
        described = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        return int(described.get("vocab_size") or described.get("text_config", {}).get("vocab_size") or 0)
    except (OSError, ValueError):
        return 0
