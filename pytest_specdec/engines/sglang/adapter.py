"""The adapter of SGLang's server: ``python -m sglang.launch_server``, on this machine or in a container.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines import checkpoint, docker, locate
from pytest_specdec.engines.arguments import PrecisionFlags, arm_args, device_footprint, fill, flags, merge
from pytest_specdec.engines.lora_paths import adapter_paths, named_adapters, resolve_paths
from pytest_specdec.engines.plain_dialect import owner
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.engines.sglang import events
from pytest_specdec.engines.sglang.dialect import SglangDialect
from pytest_specdec.engines.sglang.rules import RULES
from pytest_specdec.engines.sglang.speculative_flags import DRAFT_MODELS, draft, missing_speculative_flag
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.adapters import Adapters

_MODULE = ("-m", "sglang.launch_server")
_LORA = "lora-paths"
"""The argument with the adapters of a server (``LoRAPathAction`` and ``check_lora_server_args``)."""
_SIMULATION_PREFIX = "SGLANG_SIMULATE_"
"""The beginning of variables that accept drafts by a stated rate, whatever the target's distribution."""
_READY_SINCE = (0, 5, 20)
"""The first release with ``/ready``."""
_SHARE = "mem-fraction-static"
_PARALLEL = (("tp-size", "tensor-parallel-size", "tp"), ("pp-size", "pipeline-parallel-size", "pp"))
_REPLICAS = ("dp-size", "data-parallel-size", "dp")
"""Names of the number of replicas. They have accelerators of their own, unless only attention is replicated, on those of a tensor group."""
_DEFAULT_SHARE = 0.9
"""SGLang's own choice, roughly; it depends on the device and on the chunk size."""
_PRECISION = PrecisionFlags(
    quantising=("quantization", "torchao-config", "modelopt-quant", "quantization-param-path"),
    overrides="json-model-override-args",
    cache="kv-cache-dtype",
)
_PRESSED_TOKENS = 1152
"""Of a small key-value cache: a multiple of all page sizes."""
_CONSERVATIVENESS = 0.1
"""By default SGLang admits no request that it may have to retract; the lower this value, the sooner the cache runs out."""
_VERSION = "from importlib.metadata import version; print(version('sglang'))"
_REMEDY = "install sglang in a venv of its own and set engine.venv; or set engine.executable, a python that has it, or engine.image"


_BUG_FORM = """\
### Describe the bug

{description}

### Reproduction

{reproduction}

### Environment

{environment}

(paste the output of `python3 -m sglang.check_env` here)
"""
"""Its .github/ISSUE_TEMPLATE/1-bug-report.yml."""


class Sglang:
    """One engine of the registry (flags: ``srt/arg_groups/fields`` of 0.5.23)."""

    kind = "sglang"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=90.0, tokens_per_s=100.0, scored_tokens_per_s=1500.0)
    rules = RULES
    scored_with = "take a release from 0.5.17 on, which report token ids"
    events_with = events.EVENTS_WITH

    def recognises(self, get: Get) -> bool:
        """Return True if the server is SGLang's.

        ``get`` returns the text at a path of the server; None without one. Either the models' owner is SGLang (``ModelCard``
        of 0.5.23), or ``/model_info`` has ``is_generation``, as no other engine's does.
        """
        return owner(get) == self.kind or '"is_generation"' in (get("/model_info") or "")

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:
        """Return the dialect of the server, chosen by its release.

        The release decides if the server has ``/ready``. It is read without running the program, and an unknown one counts as old. The
        dialect gets the draft tokens per verify step too, 0 without speculation, since SGLang's counters lack them.
        """
        speculative = draft(setup.args)
        release = locate.numbers(self._release(config))
        return SglangDialect(draft_tokens=speculative.tokens if speculative else 0, has_ready_path=release >= _READY_SINCE)

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``--speculative-algorithm`` and its numbers."""
        return draft(args)

    def bug_form(self) -> str:
        """Return the sections of its bug form, to be filled in."""
        return _BUG_FORM

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return ``model`` and the drafter's; either may come from the hub."""
        return (model, *(str(value) for name, value in args.items() if plain(name) in DRAFT_MODELS))

    def check(self, config: Config) -> None:
        """Raise EngineError if a server of this config cannot start.

        It refuses variables that simulate acceptance and speculative flags stated in part. Without an image it looks for the
        interpreter and for a model given as a path of this machine. It then compares the vocabularies of target and draft
        models. Docker comes last, so that errors in the config show without it.
        """
        _refuse_simulation(config)
        for variant in config.variants:
            _check_flags_complete(variant.name, merge(config.engine.args, variant.args))
        if not config.engine.image:
            self._find_python(config)
            checkpoint.require_model(config)
        self._check_vocabularies(config)
        if config.engine.image:
            docker.check(config)

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:  # noqa: ARG002 - no path is resolved
        """Return the adapters of ``lora-paths``, as requests choose them.

        A request has an adapter's name, not its path, in its field ``lora_path``. SGLang's own route ``/generate``, by which
        tokens are scored, has this field too.
        """
        return named_adapters(args.get(_LORA), "lora_path")

    def small_cache(self, config: Config) -> Mapping[str, JSON] | None:  # noqa: ARG002 - requests that do not fit are refused by length
        """Return arguments for a small cache and an optimistic scheduler.

        The cache is a pool of about a thousand tokens. The scheduler admits more requests than fit if their answers are long, and
        has to retract some: they are preempted.
        """
        return {"max-total-tokens": _PRESSED_TOKENS, "schedule-conservativeness": _CONSERVATIVENESS}

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``python -m sglang.launch_server --model-path MODEL …`` or its container.

        A container gets the folders of models and adapters that are paths of this machine.
        """
        model = config.resolve(setup.model)
        args = _server_args(config, setup)
        argv = [*_MODULE, "--model-path", model, *flags(args)]
        if config.engine.image:
            folders = [name for name in (*self.models(model, args), *adapter_paths(args.get(_LORA))) if Path(name).is_absolute()]
            return docker.command(config, ["python3", *argv], env=setup.env, secrets=setup.secrets, folders=folders)
        # Variables of our own environment that simulate acceptance are not passed on.
        return Command(argv=(self._find_python(config), *argv), env=setup.env, scrubbed=(_SIMULATION_PREFIX,), secrets=setup.secrets)

    def events(self, config: Config) -> Mapping[str, Sequence[EventStep]]:
        """Return the events that every arm of the config serves."""
        return events.events(config)

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print the package's version and the server's flags."""
        return EngineProgram(version=(argv[0], "-c", _VERSION), help=tuple(argv[:3]), abbreviates=True)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of a local checkpoint's config.json; 0 without one."""
        return checkpoint.vocabulary(Path(config.resolve(config.engine.model)))

    def takes_images(self, config: Config) -> bool | None:
        """Return True if the checkpoint takes images and no argument forbids them.

        Returns False if an arm's arguments forbid images, and None if the checkpoint has no config.json on this
        machine.
        """
        if any(args.get("enable-multimodal") is False or args.get("language-only") for args in arm_args(config)):
            return False
        return checkpoint.takes_images(checkpoint.folder(config, config.engine.model))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the arms' largest ``mem-fraction-static`` and number of devices.

        Replicas take devices of their own, unless every arm has ``enable-dp-attention``. ``takes_first`` is False if an arm chooses
        other devices than the first. Without an accelerator nothing is known: SGLang's memory on a CPU is not estimated.
        """
        if not accelerated:
            return Footprint()
        replicas_share_devices = all(args.get("enable-dp-attention") is True for args in arm_args(config))
        footprint = device_footprint(config, _SHARE, _DEFAULT_SHARE, _PARALLEL if replicas_share_devices else (*_PARALLEL, _REPLICAS))
        return replace(footprint, takes_first=not any("base-gpu-id" in args or "gpu-id-step" in args for args in arm_args(config)))

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - every release serves them
        """Return prompt log-probabilities, which every release serves."""
        return ScoringRoute.PROMPT_LOGPROBS

    def single_precision(self, config: Config) -> bool:
        """Return True if every arm is set to float32, nothing quantised."""
        quantised = checkpoint.is_quantised(checkpoint.folder(config, config.engine.model))
        return not quantised and all(map(_PRECISION.is_single_precision, arm_args(config)))

    def _check_vocabularies(self, config: Config) -> None:
        """Raise EngineError if a draft model's vocabulary differs in size.

        It is compared with the target's. Variants are skipped if one of the two checkpoints is not on this machine, or
        if they draft with a head, which may have a vocabulary of its own.
        """
        target = checkpoint.folder(config, config.engine.model)
        for variant in config.variants:
            speculative = draft(fill(config, variant, os.environ))
            if speculative and speculative.kind is DraftKind.MODEL and speculative.model:
                where = f"variants.{variant.name}.args.{DRAFT_MODELS[0]}"
                checkpoint.require_same_vocabulary(checkpoint.folder(config, speculative.model), target, where)

    def _find_python(self, config: Config) -> str:
        return locate.program(config, "python", default=None, remedy=_REMEDY)

    def _release(self, config: Config) -> str:
        """Return the release, such as ``0.5.23``; empty if unknown.

        An image's release is its tag, by :func:`locate.image_release`.
        """
        if config.engine.image:
            return locate.image_release(config.engine.image)
        try:
            return locate.release(self._find_python(config), "sglang")
        except EngineError:
            return ""


def _server_args(config: Config, setup: ServerSetup) -> dict[str, JSON]:
    """Return the server's arguments, ready to become flags.

    Arguments that are false are left out, since SGLang has no ``--no-`` flags. Metrics, which have the speculation counters, are
    on in every arm. Draft models and LoRA adapters are named by their paths, and the API key is among the arguments.
    """
    args: dict[str, JSON] = {"host": HOST, "enable-metrics": True}
    for name, value in setup.args.items():
        is_model = plain(name) in DRAFT_MODELS and isinstance(value, str)
        args[plain(name)] = config.resolve(str(value)) if is_model else value
    if _LORA in args:
        args[_LORA] = resolve_paths(args[_LORA], config.resolve)
    key_args: dict[str, JSON] = {"api-key": setup.api_key} if setup.api_key else {}  # no variable of SGLang's holds it
    return {name: value for name, value in {**args, **key_args, "port": setup.port}.items() if value is not False}


def _refuse_simulation(config: Config) -> None:
    """Raise EngineError for environment variables that simulate acceptance.

    With these variables SGLang accepts drafts at a stated rate, whatever the target's distribution. A config with
    ``lossy: true`` may set them, since equivalence is not gated then.
    """
    env_by_place = {
        "engine": config.engine.env,
        "baseline": config.baseline.env,
        **{f"variants.{variant.name}": variant.env for variant in config.variants},
    }
    variables = [f"{where}.env.{name}" for where, env in env_by_place.items() for name in env if name.startswith(_SIMULATION_PREFIX)]
    if variables and not config.lossy:
        what = "a variable of SGLang accepts drafts whatever the target says"
        remedy = "take it out, or say `lossy: true`, and equivalence is reported without gating"
        raise EngineError(what, where=variables[0], found=variables[0].rpartition(".")[2], expected="none that begins so", remedy=remedy)


def _check_flags_complete(variant: str, args: Mapping[str, JSON]) -> None:
    """Raise EngineError if the speculative flags are stated in part.

    SGLang would die at boot. ``args`` are those of the variant, the engine's included.
    """
    if missing := missing_speculative_flag(args):
        raise EngineError(
            what="the speculative flags are stated in part, with which SGLang does not boot",
            where=f"variants.{variant}.args",
            found=f"no {missing}",
            expected="speculative-num-steps, speculative-eagle-topk and speculative-num-draft-tokens together",
            remedy=f"state {missing} too: a chain of k drafts is num-steps k, eagle-topk 1, num-draft-tokens k + 1",
        )
