"""The built-in reference engine: ``python -m specdec_reference``.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
A verify step checks a window: the last emitted token and its draft.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config import shipped
from pytest_specdec.config.rules import DraftingRule, plain
from pytest_specdec.engines import checkpoint, locate, vllm
from pytest_specdec.engines.arguments import arm_args, fill, flags, merge, process_args
from pytest_specdec.engines.llama_cpp.events import slot_steps
from pytest_specdec.engines.lora_paths import named_adapters, resolve_paths
from pytest_specdec.engines.plain_dialect import owner
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.engines.vllm import events as vllm_events
from pytest_specdec.engines.vllm.dialect import METRICS_FLAG, VllmDialect
from pytest_specdec.engines.vllm.rules import TOKENS
from pytest_specdec.engines.vllm.speculative_setting import with_resolved_model
from pytest_specdec.errors import EngineError
from pytest_specdec.files import yaml
from pytest_specdec.model.event import EventName
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.prompts.adapters import Adapters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

_NEEDS = ("uvicorn", "starlette", "safetensors", "tokenizers", "jinja2", "llguidance")
_PROCESS_GIB = 0.25
"""GiB of a server without its weights: twice what one took with short contexts."""
_PRESSED_TOKENS, _BLOCK_TOKENS = 256, 16
"""Tokens of the longest sequence of a server with a small cache, and of one of the engine's cache blocks."""
_LORA = "lora-modules"
"""The argument with the adapters of a server."""
_VERSION = "import pytest_specdec; print(pytest_specdec.__version__)"
_NAMES = re.compile(r"\b(kind|model): (reference|target|draft)\b")
"""The names in the shipped config that a template replaces."""


class Reference:
    """The adapter of the engine that this package ships; it speaks vLLM's dialect."""

    kind = "reference"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=0.5, tokens_per_s=230.0, scored_tokens_per_s=4000.0, scaling=1.0, timed_tokens_per_s=115.0)
    """Measured in processor seconds at smoke depth; timed tokens by the clock at standard depth, with 24 idle layers.

    Concurrent streams are rows of one matrix product, which costs about as much with one row as with many.
    """
    rules = replace(
        vllm.RULES,
        drafting=DraftingRule(methods=frozenset({"draft_model", "eagle3", "ngram"}), tokens=TOKENS, complete=True),
        lossy=(),
        silent=(),
    )
    scored_with = "leave out no-prompt-logprobs, or no-token-prompts"
    events_with = "every server has them"

    def recognises(self, get: Get) -> bool:
        """Return True if the model is this package's own."""
        return owner(get) == "pytest-specdec"

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:  # noqa: ARG002 - one for every release
        """Return vLLM's dialect."""
        return VllmDialect()

    def template(self, model: str | None, speculator: str | None) -> str:
        """Return the shipped config, with model and drafter replaced if given.

        It names the models ``target`` and ``draft``, which ``model`` and ``speculator``, the name of a draft model, replace. The
        kind ``reference`` becomes that of the class, which may be a derived one.
        """
        # The comment above the first empty line is about the shipped config itself.
        text = (shipped.CONFIGS / "reference.yaml").read_text(encoding="utf-8").partition("\n\n")[2]
        replacements = {"reference": self.kind, "target": model, "draft": speculator}

        def replace_name(match: re.Match[str]) -> str:
            key, name = match.groups()  # such as `model` and `target`
            return f"{key}: {yaml.scalar(replacements[name] or name)}"

        return _NAMES.sub(replace_name, text)

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``--speculative-config``, with vLLM's keys."""
        return vllm.draft(args)

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:  # noqa: ARG002 - check looks for every checkpoint
        """Return nothing: no checkpoint comes from the hub."""
        return ()

    def check(self, config: Config) -> None:
        """Raise EngineError if the engine cannot run this config.

        It refuses a container image, looks for the interpreter, its packages and every checkpoint, and compares the size of
        each draft model's vocabulary with the target's. Packages are looked for in this process's interpreter, and so only if
        the config names no other.
        """
        _find_python(config)  # raises without one, and for an image
        missing = [name for name in _NEEDS if find_spec(name) is None]
        if missing and not (config.engine.executable or config.engine.venv):
            what = "the reference engine is not installed"
            raise EngineError(what, found=f"no {', '.join(missing)}", remedy="pip install 'pytest-specdec[reference]'")
        target = _find_checkpoint(config, config.engine.model, "engine.model")
        for variant in config.variants:
            draft = self.draft(fill(config, variant, os.environ))
            if draft and draft.model:
                where = f"variants.{variant.name}.args.speculative-config.model"
                checkpoint.require_same_vocabulary(_find_checkpoint(config, draft.model, where), target, where)

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the command ``python -m specdec_reference`` with a server's arguments.

        Models and LoRA adapters are named by their paths. A server reports the cached tokens of every prompt, and a speculating
        one the verify steps of every answer, unless the config states otherwise.
        """

        def resolve(model: str) -> str:
            return str(_find_checkpoint(config, model, "speculative-config.model"))

        stated = with_resolved_model(setup.args, resolve)
        adapters = {name: resolve_paths(value, config.resolve) for name, value in stated.items() if plain(name) == _LORA}
        # The config may replace all but the port, at which the server is then looked for.
        args: dict[str, JSON] = {"host": HOST, "enable-prompt-tokens-details": True, **stated, **adapters, "port": setup.port}
        if setup.speculative:
            args.setdefault(METRICS_FLAG, "detailed")
        model = str(_find_checkpoint(config, setup.model, "engine.model"))
        argv = (_find_python(config), "-m", "specdec_reference", model, *flags(args))
        return Command(argv=argv, env=setup.env, secrets=setup.secrets)

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:  # noqa: ARG002 - requests name no paths
        """Return the adapters of ``lora-modules``, chosen by ``model`` as with vLLM."""
        return named_adapters(args.get(_LORA), "model") if args.get("enable-lora") else Adapters()

    def small_cache(self, config: Config) -> Mapping[str, JSON] | None:
        """Return arguments for a key-value cache of one short sequence.

        A sequence has at most the config's ``max-model-len`` or 256 tokens, whichever is less. The cache has room for
        one sequence and a verify window, so that concurrent requests run out of it.
        """
        longest = config.engine.args.get("max-model-len")
        longest = min(longest, _PRESSED_TOKENS) if isinstance(longest, int) and longest > 0 else _PRESSED_TOKENS
        # Blocks for the sequence, rounded up, and two for a window.
        return {"max-model-len": longest, "num-gpu-blocks-override": -(-longest // _BLOCK_TOKENS) + 2}

    def events(self, config: Config) -> Mapping[str, Sequence[EventStep]]:  # noqa: ARG002 - every server has them
        """Return the events of every server, by name, with the requests that make each.

        An event, such as a sleep, is done to a server between two requests. Saving and restoring a slot, a part of the cache, is
        llama.cpp's event; the others are vLLM's.
        """
        return {
            EventName.PAUSE: vllm_events.PAUSE,
            EventName.RESET: vllm_events.RESET,
            EventName.SLOT: slot_steps(1),  # all sequences share one slot here
            EventName.RELOAD: vllm_events.RELOAD,
            EventName.SLEEP_1: vllm_events.SLEEP_1,
            EventName.SLEEP_2: vllm_events.SLEEP_2,
        }

    def takes_images(self, config: Config) -> bool | None:
        """Return True if every arm has the argument ``images``."""
        return all(args.get("images") for args in arm_args(config))

    def why_not_offloaded(self, config: Config) -> str:
        """Return the reason an arm lacks a second cache tier; empty if none does.

        ``offload-blocks`` gives it one. In a stack, a server of several processes, any of them may have it.
        """
        has_tiers = all(any(args.get("offload-blocks") for args in processes) for processes in process_args(config))
        return "" if has_tiers else "needs offloaded blocks of the cache: state offload-blocks in the args"

    def why_no_thinking_budget(self, config: Config) -> str:
        """Return the reason no budget can limit an arm's reasoning; empty if one can.

        A budget (``thinking_token_budget`` of a request) counts the tokens of an answer's reasoning. A server knows reasoning from
        the rest only if its arguments state the token at its end, ``reasoning-end``.
        """
        reasons = all(args.get("reasoning-end") for args in arm_args(config))
        return "" if reasons else "needs a server that reasons: state reasoning-end in the args"

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print this package's version and the server's flags."""
        return EngineProgram(version=(argv[0], "-c", _VERSION), help=tuple(argv[:3]), abbreviates=False)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of the checkpoint's config.json; 0 if it gives none.

        Raises EngineError without the checkpoint.
        """
        return checkpoint.vocabulary(_find_checkpoint(config, config.engine.model, "engine.model"))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:  # noqa: ARG002 - it runs on the CPU wherever it is
        """Return the interpreter's memory and twice the weights.

        The weights count once as a file and once as arrays. Raises EngineError without the checkpoint.
        """
        weights = checkpoint.gib(_find_checkpoint(config, config.engine.model, "engine.model"))
        return Footprint(memory_gib=_PROCESS_GIB + 2 * (weights or 0.0))

    def route(self, config: Config) -> ScoringRoute:
        """Return the way to score tokens, by the baseline's arguments.

        It is continuations, one-token completions of token ids, for a baseline started with ``--no-prompt-logprobs`` that still
        takes ids. Any other gets prompt log-probabilities. One that takes no ids either cannot be scored at all: that is found when
        the running server is probed.
        """
        args = merge(config.engine.args, config.baseline.args)

        def is_on(name: str) -> bool:
            # On by default, and turned off by false or by its `no-` flag.
            return args.get(name) is not False and args.get(f"no-{name}") is not True

        if is_on("token-prompts") and not is_on("prompt-logprobs"):
            return ScoringRoute.CONTINUATIONS
        return ScoringRoute.PROMPT_LOGPROBS

    def single_precision(self, config: Config) -> bool:
        """Return True if no arm's arguments set ``numerics``.

        The engine computes in float32, unless ``numerics`` adds noise to its logits or rounds them.
        """
        return not any(args.get("numerics") for args in arm_args(config))


def _find_python(config: Config) -> str:
    """Return the path of the engine's interpreter.

    Raises EngineError without one, and for a config with an image.
    """
    if config.engine.image:
        what = "the reference engine runs in no container"
        raise EngineError(what, where="engine.image", found=config.engine.image, remedy="remove `image`")
    return locate.program(config, "python", default=sys.executable, remedy="check executable or venv under `engine:`")


def _find_checkpoint(config: Config, model: str, where: str) -> Path:
    """Return the folder of a checkpoint.

    A path relative to the config comes first, then a checkpoint shipped in ``specdec_reference``. ``where`` is the place of
    ``model`` in the config. Raises EngineError without a checkpoint.
    """
    shipped_folder = Path(str(resources.files("specdec_reference"))) / "checkpoints"
    local_folder = Path(config.resolve(model))
    for path in (local_folder, shipped_folder / model):
        if (path / "config.json").is_file():
            return path.absolute()
    names = sorted(path.parent.name for path in shipped_folder.glob("*/config.json"))
    similar_names = difflib.get_close_matches(model, names, n=1)
    what = f"no checkpoint {model}" + (f"; did you mean {similar_names[0]}?" if similar_names else "")
    expected = f"a folder with config.json, or one of {', '.join(names)}"
    raise EngineError(what, where=where, found=str(local_folder), expected=expected, remedy="correct the name")
