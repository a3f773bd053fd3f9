"""The built-in reference engine: ``python -m pytest_specdec.reference``."""

from __future__ import annotations

import difflib
import os
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines import locate, vllm
from pytest_specdec.engines.cli_args import filled, flags, merged
from pytest_specdec.engines.protocol import HOST, Command, Dialect, Footprint, RoughRates
from pytest_specdec.engines.vllm import METRICS, VllmDialect, same_vocabulary, vocabulary_of
from pytest_specdec.errors import EngineError
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import ServerSetup
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

__all__ = ["Reference"]

_NEEDS = ("uvicorn", "starlette", "safetensors", "tokenizers", "jinja2", "llguidance")
_PROCESS_GIB = 0.25
"""Of a server without its weights: twice what one was seen to take with short contexts."""
_SPECULATION = ("speculative-config", "speculative_config")


class Reference:
    """The adapter of the engine that this package ships; it speaks vLLM's dialect."""

    kind = "reference"
    pace = RoughRates(boot_s=2.0, tokens_per_s=80.0, scored_tokens_per_s=350.0)
    dialect: Dialect = VllmDialect()
    scored_with = "leave out no-prompt-logprobs, or no-token-prompts"

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Read ``--speculative-config``, whose keys are vLLM's."""
        return vllm.draft(args)

    def check(self, config: Config) -> None:
        """Look for the packages that the engine needs, and for every checkpoint that the config names."""
        _python(config)
        missing = [name for name in _NEEDS if find_spec(name) is None]
        if missing and not (config.engine.executable or config.engine.venv):
            what = "the reference engine is not installed"
            raise EngineError(what, found=f"no {', '.join(missing)}", remedy="pip install 'pytest-specdec[reference]'")
        _checkpoint(config, config.engine.model, "engine.model")
        for variant in config.variants:
            draft = self.draft(filled(config, variant, os.environ))
            if draft and draft.model:
                where = f"variants.{variant.name}.args.speculative-config.model"
                same_vocabulary(_checkpoint(config, draft.model, where), _checkpoint(config, config.engine.model, "engine.model"), where)

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the module's command line; a draft checkpoint beside the config is handed over by its path."""
        args: dict[str, JSON] = {"host": HOST, **_with_paths(config, setup.args), "port": setup.port}
        if setup.speculative:
            args.setdefault(METRICS, "detailed")
        model = str(_checkpoint(config, setup.model, "engine.model"))
        argv = (_python(config), "-m", "pytest_specdec.reference", model, *flags(args))
        return Command(argv=argv, env=setup.env, secrets=setup.secrets)

    def vocabulary(self, config: Config) -> int:
        """Read ``vocab_size`` of the checkpoint's config.json."""
        return vocabulary_of(_checkpoint(config, config.engine.model, "engine.model"))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:  # noqa: ARG002 - it runs on the CPU wherever it is
        """Return the interpreter's share and the weights, once as a file and once as arrays."""
        weights = locate.checkpoint_gib(_checkpoint(config, config.engine.model, "engine.model"))
        return Footprint(memory_gib=_PROCESS_GIB + 2 * (weights or 0.0))

    def route(self, config: Config) -> ScoringRoute:
        """Return continuations where the baseline is started with ``--no-prompt-logprobs`` and still takes token ids."""
        args = merged(config.engine.args, config.baseline.args)
        settings = ("prompt-logprobs", "token-prompts")
        scores, takes_ids = (args.get(name) is not False and args.get(f"no-{name}") is not True for name in settings)
        return ScoringRoute.CONTINUATIONS if takes_ids and not scores else ScoringRoute.PROMPT_LOGPROBS


def _python(config: Config) -> str:
    if config.engine.image:
        what = "the reference engine runs in no container"
        raise EngineError(what, where="engine.image", found=config.engine.image, remedy="remove `image`")
    return locate.program(config, "python", default=sys.executable, remedy="check executable or venv under `engine:`")


def _checkpoint(config: Config, model: str, where: str) -> Path:
    """Return the folder of a checkpoint beside the config, or of one that this package ships. Raises EngineError without one."""
    shipped = Path(str(resources.files("pytest_specdec"))) / "reference" / "checkpoints"
    beside = Path(config.resolve(model))
    for path in (beside, shipped / model):
        if (path / "config.json").is_file():
            return path.absolute()
    names = sorted(path.parent.name for path in shipped.glob("*/config.json"))
    near = difflib.get_close_matches(model, names, n=1)
    what = f"no checkpoint {model}" + (f"; did you mean {near[0]}?" if near else "")
    raise EngineError(what, where=where, found=str(beside), expected=f"a folder with config.json, or one of {', '.join(names)}")


def _with_paths(config: Config, args: Mapping[str, JSON]) -> dict[str, JSON]:
    setting = vllm.speculative_setting(args)
    rest = {name: value for name, value in args.items() if name not in _SPECULATION}
    if not setting:
        return rest
    model = setting.get("model")
    path = str(_checkpoint(config, model, "speculative-config.model")) if isinstance(model, str) else None
    return {**rest, "speculative-config": {**setting, **({"model": path} if path else {})}}
