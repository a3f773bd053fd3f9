"""The command line of the reference engine: settings, start and clean end of its server."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_specdec.errors import EngineError, SpecdecError
from specdec_reference.faults.catalogue import FAULTS, planted_in, refuse_unknown
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON
    from specdec_reference.engine import ReferenceEngine

_METHODS: Final = ("draft_model", "eagle3", "ngram")
_METRICS: Final = ("none", "summary", "detailed")
_DRAFT_SAMPLING: Final = ("greedy", "probabilistic")
_KEYS: Final = (
    "draft_sample_method",
    "max_model_len",
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The speculative setting, in vLLM's words."""

    method: str
    tokens: int
    """``num_speculative_tokens``: k."""
    model: str = ""
    """The draft's checkpoint; empty for prompt lookup."""
    probabilistic: bool = False
    """Whether draft tokens are drawn; else they are the draft's most probable ones."""
    n_min: int = 0
    """Tokens of the shortest n-gram that prompt lookup looks for; 0 for other methods."""
    n_max: int = 0
    """Tokens of the longest such n-gram."""
    max_model_len: int = 0
    """The draft model's context, in tokens; 0 for that of its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings that a server starts with."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str = ""
    max_num_seqs: int = 32
    max_model_len: int = 1024
    padded_layers: int = 0
    """Layers of the target with the identity layers that pad it; 0 for no padding."""
    speculation: Speculation | None = None
    max_logprobs: int = 20
    """-1 is the whole vocabulary."""
    prompt_logprobs: bool = True
    """Whether log-probabilities of a prompt's tokens are served."""
    token_prompts: bool = True
    """Whether a prompt may be a list of token ids."""
    images: bool = False
    """Whether a chat's messages may hold images."""
    reasoning_end: str = ""
    """The token after which a chat answer's text begins; empty for no reasoning."""
    prefix_caching: bool = True
    blocks: int = 0
    """Blocks of the key-value cache that running sequences share; 0 for as many as they can fill."""
    offloaded_blocks: int = 0
    """Blocks of the prefix cache that are kept in a second tier when they leave it."""
    tells_cached: bool = False
    """Whether an answer's usage reports the cached tokens of its prompt."""
    enable_lora: bool = False
    lora_modules: tuple[str, ...] = ()
    """Adapters, each as ``NAME=PATH`` or ``NAME=random:SEED``."""
    seed: int = 0
    hf_overrides: Mapping[str, JSON] = field(default_factory=dict)
    """What is laid over the target's config.json."""
    spec_decode_metrics: str = "none"
    fault: str = ""
    variation: str = ""
    """A lawful way of being different; see ``specdec_reference/lawful.py``."""
    numerics: str = ""
    """How logits are off, as ``normal:0.03,grid:bf16``; see ``specdec_reference/numerics.py``."""
    logprob_decimals: int | None = None
    """To which log-probabilities are rounded; None for not at all."""
    usage: bool = True
    """Whether answers report their token counts."""
    token_ids: bool = True
    """Whether token ids are given where a request asks for them."""
    chunk_steps: int = 1
    """Steps whose tokens share a chunk of a stream; 0 for a chunk per token."""

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.served_model_name or self.model


def parse(arguments: Sequence[str]) -> ServerSettings:
    """Return the settings of a command line.

    Raises EngineError for a wrong value, SystemExit(2) for a wrong option.
    """
    options = vars(_build_parser().parse_args(arguments))
    speculation = options.pop("speculative_config")
    options["lora_modules"] = tuple(options["lora_modules"])
    settings = ServerSettings(**options, speculation=None if speculation is None else _parse_speculation(speculation))
    _refuse_without_speculation(settings)
    _refuse_unread_modules(settings)
    return settings


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_reference",
        description="A small decoder in numpy that really speculates, served in vLLM's dialect.",
        epilog="faults:\n" + "\n".join(f"  {fault:<32}{FAULTS[fault].does}" for fault in planted_in(Place.REFERENCE)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("model", help="a packaged checkpoint (target, draft) or the path of a Hugging Face folder")
    option("--host", default="127.0.0.1")
    option("--port", type=int, default=8000)
    option("--served-model-name", default="", metavar="NAME", help="what clients call the model (default: MODEL)")
    option("--max-num-seqs", type=_parse_positive, default=32, metavar="N", help="sequences in a batch (default 32)")
    option("--max-model-len", type=_parse_positive, default=1024, metavar="TOKENS", help="prompt and answer together (default 1024)")
    option(
        "--hf-overrides",
        type=json.loads,
        default={},
        metavar="JSON",
        help="lay this over the target's config.json: more max_position_embeddings than it was made for",
    )
    option("--padded-layers", type=_parse_positive, default=0, metavar="L", help="pad the target to L layers, which add nothing but cost")
    option("--speculative-config", metavar="JSON", help="method, model, num_speculative_tokens … as in vLLM")
    option("--max-logprobs", type=int, default=20, metavar="N", help="log-probabilities of a request at most; -1 for all (default 20)")
    option(
        "--prompt-logprobs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="serve log-probabilities of a prompt's tokens, as some engines do not (default: yes)",
    )
    option(
        "--token-prompts",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="take prompts that are lists of token ids, as some engines do not (default: yes)",
    )
    option(
        "--images",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="take images (PNG) in chats: a patch of 12 pixels square takes the place of a token (default: no)",
    )
    option("--reasoning-end", default="", metavar="TOKEN", help="give what a chat answer says up to this token as its reasoning")
    _add_cache_options(option)
    _add_lora_options(option)
    option("--seed", type=int, default=0, help="of requests that bring none (default 0)")
    option("--per-request-spec-decode-metrics", dest="spec_decode_metrics", choices=_METRICS, default="none")
    option("--fault", default="", metavar="FAULT", help="be wrong on purpose: plant one of the faults below; needs --speculative-config")
    _add_lawful_options(option)
    return parser


def _add_cache_options(option: Callable[..., object]) -> None:
    """Add the options of the cache of keys and values."""
    option(
        "--enable-prefix-caching",
        dest="prefix_caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep full blocks of prompts and answers for later requests that begin alike (default: yes)",
    )
    option(
        "--num-gpu-blocks-override",
        dest="blocks",
        type=_parse_positive,
        default=0,
        metavar="N",
        help="blocks of 16 tokens that running sequences share; the last one to arrive leaves when they run out (default: enough)",
    )
    option(
        "--offload-blocks",
        dest="offloaded_blocks",
        type=_parse_positive,
        default=0,
        metavar="N",
        help="blocks that a second tier keeps when they leave the prefix cache, and gives back (default: none)",
    )
    option(
        "--enable-prompt-tokens-details",
        dest="tells_cached",
        action="store_true",
        help="tell the cached tokens of a prompt in the usage",
    )


def _add_lora_options(option: Callable[..., object]) -> None:
    """Add the options of adapters."""
    option("--enable-lora", action="store_true", help="answer requests whose model is one of --lora-modules under that adapter")
    option(
        "--lora-modules",
        nargs="+",
        default=(),
        metavar="NAME=PATH",
        help="LoRA adapters: folders that PEFT saved, or random:SEED for one of this engine's own that needs no file",
    )


def _add_lawful_options(option: Callable[..., object]) -> None:
    """Add the options of lawful differences."""
    option("--variation", default="", metavar="NAME", help="be different without being wrong; needs --speculative-config")
    option(
        "--numerics",
        default="",
        metavar="SPEC",
        help="compute logits as inexact kernels do: normal:0.03, heavy:0.03, jumps:1e-4, verify:3, boot:0.1, grid:bf16, by commas",
    )
    option("--logprob-decimals", type=int, default=None, metavar="N", help="round log-probabilities to N decimals (default: not at all)")
    option("--usage", action=argparse.BooleanOptionalAction, default=True, help="give the usage with an answer (default: yes)")
    option("--token-ids", action=argparse.BooleanOptionalAction, default=True, help="give token ids where asked for (default: yes)")
    option("--chunk-steps", type=int, default=1, metavar="N", help="steps that share a chunk of a stream; 0: a chunk per token (default 1)")


def _parse_positive(text: str) -> int:
    """Return a positive integer, as an argparse type."""
    value = int(text)
    if value < 1:
        msg = f"{text} is not positive"
        raise argparse.ArgumentTypeError(msg)
    return value


def _refuse_without_speculation(settings: ServerSettings) -> None:
    """Raise EngineError for speculative options on a server without speculation.

    It also raises for an unknown fault.
    """
    if settings.speculation is None and settings.spec_decode_metrics != "none":
        raise EngineError(
            what="a baseline has no speculation to report on",
            where="--per-request-spec-decode-metrics",
            found=settings.spec_decode_metrics,
            expected="none, or --speculative-config beside it",
            remedy="leave the option to the speculating server",
        )
    if settings.fault:
        refuse_unknown(settings.fault, speculating=settings.speculation is not None)


def _refuse_unread_modules(settings: ServerSettings) -> None:
    """Raise EngineError for ``--lora-modules`` without ``--enable-lora``."""
    if settings.lora_modules and not settings.enable_lora:
        raise EngineError(
            what="adapters without LoRA", where="--lora-modules", found=" ".join(settings.lora_modules), expected="--enable-lora beside it"
        )


def _parse_speculation(text: str) -> Speculation:
    """Return the setting in the JSON text of ``--speculative-config``.

    Raises EngineError for a wrong key or value.
    """
    config = _parse_object(text)
    for key in config:
        if key not in _KEYS:
            raise _setting_error(key, config[key], ", ".join(_KEYS), near=difflib.get_close_matches(key, _KEYS, n=1))
    method = _read_choice(config, "method", _METHODS)
    tokens = _read_count(config, "num_speculative_tokens")
    if method == "ngram":
        n_max = _read_count(config, "prompt_lookup_max", default=4)
        n_min = _read_count(config, "prompt_lookup_min", default=min(2, n_max))
        if n_min > n_max:
            raise _setting_error(key="prompt_lookup_min", found=n_min, expected=f"at most prompt_lookup_max, {n_max}")
        return Speculation(method=method, tokens=tokens, n_min=n_min, n_max=n_max)
    model = config.get("model")
    if not isinstance(model, str):
        raise _setting_error(key="model", found=model, expected="the draft's checkpoint: a packaged name or a path")
    draft_sampling = _read_choice({"draft_sample_method": "greedy", **config}, "draft_sample_method", _DRAFT_SAMPLING)
    context = _read_count(config, "max_model_len") if "max_model_len" in config else 0
    return Speculation(method=method, tokens=tokens, model=model, probabilistic=draft_sampling == "probabilistic", max_model_len=context)


def _parse_object(text: str) -> Mapping[str, JSON]:
    """Return a JSON object, dashes in its keys as underscores; raise EngineError for other text."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise EngineError(what="no JSON", where="--speculative-config", found=f"{text} ({error})", expected="a JSON object") from error
    if not isinstance(config, dict):
        raise EngineError(what="no JSON object", where="--speculative-config", found=text, expected="a JSON object")
    return {key.replace("-", "_"): value for key, value in config.items()}


def _read_choice(config: Mapping[str, JSON], key: str, values: Sequence[str]) -> str:
    """Return the key's value; raise EngineError if it is not one of ``values``."""
    value = config.get(key)
    if isinstance(value, str) and value in values:
        return value
    raise _setting_error(key, value, " or ".join(values), near=difflib.get_close_matches(str(value), values, n=1))


def _read_count(config: Mapping[str, JSON], key: str, default: int | None = None) -> int:
    """Return the key's value, or ``default`` without the key.

    Raises EngineError for anything but a positive integer.
    """
    value = config.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise _setting_error(key, value, "a positive integer")


def _setting_error(key: str, found: JSON, expected: str, near: Sequence[str] = ()) -> EngineError:
    """Return the error for the value ``found`` of one speculative key.

    ``near`` are permitted names that resemble it, to be suggested.
    """
    return EngineError(
        what="the speculative setting is wrong",
        where=f"--speculative-config: {key}",
        found=json.dumps(found),
        expected=expected,
        remedy=f"did you mean {near[0]!r}?" if near else "see --help",
    )


_BROKEN: Final = 1
_WRONG_USAGE: Final = 2
_LIBRARIES: Final = ("httptools", "jinja2", "llguidance", "safetensors", "starlette", "tokenizers", "uvicorn")
_SWITCH_S: Final = 0.0005
_GRACE_S: Final = 1


def main(arguments: Sequence[str]) -> int:
    """Run the server and return its exit code.

    It serves until a signal comes, which gives 0, or the engine breaks, which gives 1. Wrong usage gives 2.
    """
    began_s = time.monotonic()
    try:
        settings = parse(arguments)
        _refuse_missing_libraries()
        from specdec_reference.build import build_engine  # noqa: PLC0415 - wrong usage is reported before numpy is loaded

        engine = build_engine(settings)
    except SpecdecError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return _WRONG_USAGE
    # With the default of 5 ms a chunk could wait for a whole step of the engine's thread.
    sys.setswitchinterval(_SWITCH_S)
    return _serve(engine, began_s)


def _refuse_missing_libraries() -> None:
    """Raise EngineError where optional libraries are not installed."""
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineError(
            what="the reference engine is not installed",
            where=sys.executable,
            found=f"no {', '.join(missing)}",
            expected=", ".join(_LIBRARIES),
            remedy='pip install "pytest-specdec[reference]"',
        )


def _serve(engine: ReferenceEngine, began_s: float) -> int:
    """Serve until a signal or a failure; return the exit code."""
    import uvicorn  # noqa: PLC0415 - wrong usage is reported before a server is loaded

    from specdec_reference.server import application  # noqa: PLC0415 - as above

    class UvicornServer(uvicorn.Server):
        """Reports when it is ready, ends when the engine breaks, and ends requests in flight first."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if engine.failure is not None:
                return
            took_s = time.monotonic() - began_s
            name, host, port = engine.settings.name, engine.settings.host, engine.settings.port
            print(f"ready: {name} on http://{host}:{port} after {took_s:.2f} s", flush=True)  # noqa: T201 - a command talks to its user

        async def on_tick(self, counter: int) -> bool:
            return engine.failure is not None or await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            engine.stop()
            await super().shutdown(sockets)

    # uvicorn raises the signal again when it is done; the default would end the process by it instead of with 0.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: None)
    config = uvicorn.Config(
        application(engine),
        host=engine.settings.host,
        port=engine.settings.port,
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    UvicornServer(config).run()
    if engine.failure is None:
        return 0
    traceback.print_exception(engine.failure)
    return _BROKEN
