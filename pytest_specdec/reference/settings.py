"""Settings: the command line, read once. Wrong usage ends with exit code 2 and one clear text."""

from __future__ import annotations

import argparse
import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["Settings", "Speculation", "parse"]

_METHODS: Final = ("draft_model", "ngram")
_METRICS: Final = ("none", "summary", "detailed")
_DRAFT_SAMPLING: Final = ("greedy", "probabilistic")
_KEYS: Final = ("draft_sample_method", "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The speculative setting, in vLLM's words."""

    method: str
    tokens: int
    """``num_speculative_tokens``: k."""
    model: str = ""
    probabilistic: bool = False
    n_min: int = 0
    n_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a server is started with."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str = ""
    max_num_seqs: int = 32
    max_model_len: int = 1024
    padded_layers: int = 0
    speculation: Speculation | None = None
    max_logprobs: int = 20
    """-1 is the whole vocabulary."""
    prompt_logprobs: bool = True
    """Whether log-probabilities of a prompt's tokens are served."""
    token_prompts: bool = True
    """Whether a prompt may be a list of token ids."""
    seed: int = 0
    spec_decode_metrics: str = "none"
    fault: str = ""

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.served_model_name or self.model


def parse(arguments: Sequence[str]) -> Settings:
    """Return the settings of a command line. Raises EngineError for a wrong value, SystemExit(2) for a wrong option."""
    found = vars(_parser().parse_args(arguments))
    speculation = found.pop("speculative_config")
    settings = Settings(**found, speculation=None if speculation is None else _speculation(speculation))
    _refuse(settings)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_specdec.reference",
        description="A small decoder in numpy that really speculates, served in vLLM's dialect.",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("model", help="a packaged checkpoint (target, draft) or the path of a Hugging Face folder")
    option("--host", default="127.0.0.1")
    option("--port", type=int, default=8000)
    option("--served-model-name", default="", metavar="NAME", help="what clients call the model (default: MODEL)")
    option("--max-num-seqs", type=_positive, default=32, metavar="N", help="sequences in a batch (default 32)")
    option("--max-model-len", type=_positive, default=1024, metavar="TOKENS", help="prompt and answer together (default 1024)")
    option("--padded-layers", type=_positive, default=0, metavar="L", help="pad the target to L layers that change nothing but the cost")
    option("--speculative-config", metavar="JSON", help="method, model, num_speculative_tokens … as in vLLM")
    option(
        "--max-logprobs", type=int, default=20, metavar="N", help="most log-probabilities a request may ask for; -1 for all (default 20)"
    )
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
    option("--seed", type=int, default=0, help="of requests that bring none (default 0)")
    option("--per-request-spec-decode-metrics", dest="spec_decode_metrics", choices=_METRICS, default="none")
    option("--fault", default="", metavar="NAME", help="be wrong on purpose")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        msg = f"{text} is not positive"
        raise argparse.ArgumentTypeError(msg)
    return value


def _refuse(settings: Settings) -> None:
    if settings.speculation is None and settings.spec_decode_metrics != "none":
        raise EngineError(
            what="a baseline has no speculation to report on",
            where="--per-request-spec-decode-metrics",
            found=settings.spec_decode_metrics,
            expected="none, or --speculative-config beside it",
            remedy="leave the option to the speculating server",
        )


def _speculation(text: str) -> Speculation:
    config = _mapping(text)
    for key in config:
        if key not in _KEYS:
            raise _wrong(key, config[key], ", ".join(_KEYS), near=difflib.get_close_matches(key, _KEYS, n=1))
    method = _one_of(config, "method", _METHODS)
    tokens = _count(config, "num_speculative_tokens")
    if method == "ngram":
        n_max = _count(config, "prompt_lookup_max", default=4)
        n_min = _count(config, "prompt_lookup_min", default=min(2, n_max))
        if n_min > n_max:
            raise _wrong(key="prompt_lookup_min", found=n_min, expected=f"at most prompt_lookup_max, {n_max}")
        return Speculation(method=method, tokens=tokens, n_min=n_min, n_max=n_max)
    model = config.get("model")
    if not isinstance(model, str):
        raise _wrong(key="model", found=model, expected="the draft's checkpoint: a packaged name or a path")
    sampling = _one_of({"draft_sample_method": "greedy", **config}, "draft_sample_method", _DRAFT_SAMPLING)
    return Speculation(method=method, tokens=tokens, model=model, probabilistic=sampling == "probabilistic")


def _mapping(text: str) -> Mapping[str, JSON]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise EngineError(what="no JSON", where="--speculative-config", found=f"{text} ({error})", expected="a JSON object") from error
    if not isinstance(config, dict):
        raise EngineError(what="no JSON object", where="--speculative-config", found=text, expected="a JSON object")
    return {key.replace("-", "_"): value for key, value in config.items()}


def _one_of(config: Mapping[str, JSON], key: str, values: Sequence[str]) -> str:
    value = config.get(key)
    if isinstance(value, str) and value in values:
        return value
    raise _wrong(key, value, " or ".join(values), near=difflib.get_close_matches(str(value), values, n=1))


def _count(config: Mapping[str, JSON], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise _wrong(key, value, "a positive integer")


def _wrong(key: str, found: JSON, expected: str, near: Sequence[str] = ()) -> EngineError:
    return EngineError(
        what="the speculative setting is wrong",
        where=f"--speculative-config: {key}",
        found=json.dumps(found),
        expected=expected,
        remedy=f"did you mean {near[0]!r}?" if near else "see --help",
    )
