"""The releases of vLLM: which drafting methods and speculative flags each takes, and how those before 0.8 are started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines import locate
from pytest_specdec.engines.cli_args import merged
from pytest_specdec.engines.vllm.speculative_setting import NEW, OLD, flags_of, speculative_setting
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

__all__ = ["NAMED_TOKENS_FLAG", "check", "is_old", "names_tokens", "started_old"]

_ADDED = {
    "draft_model": ((0, 10), (0, 12)),
    "suffix": ((0, 10), (0, 12)),
    "ngram_gpu": ((0, 14), (0, 18)),
    "custom_class": ((0, 18), (0, 22)),
    "dflash": ((0, 22), (0, 26)),
    "dspark": ((0, 22), (0, 26)),
}
"""The last release seen to refuse a method, and the first that surely takes it; those of 0.10 are not listed."""
_REMOVED = {"medusa": (0, 33), "mlp_speculator": (0, 33)}
"""The first release without a method."""
_NEW_FLAGS = (0, 8)
"""``--speculative-config`` came with 0.8."""
_OLD_FLAGS_END = (0, 8, 3)
"""The first release without the flags before it."""
_TOKEN_IDS = (0, 10, 2)
"""The first release whose replies hold token ids on request."""
NAMED_TOKENS_FLAG = "return-tokens-as-token-ids"
_LOGPROBS = "disable-logprobs-during-spec-decoding"
_TAKES_A_WORD = frozenset({_LOGPROBS, "enable-chunked-prefill", "multi-step-stream-outputs"})
"""Flags before 0.8 that take true and false as a value."""


def is_old(release: str) -> bool:
    """Whether a release, such as ``0.6.3.post1``, is one before 0.8; an unknown one counts as new."""
    return () < locate.numbers(release) < _NEW_FLAGS


def names_tokens(release: str) -> bool:
    """Whether token ids come as the names of tokens only; an unknown release counts as new."""
    return () < locate.numbers(release) < _TOKEN_IDS


def check(config: Config, release: str) -> None:
    """Raise EngineError when a variant asks for what ``release`` does not take; of an unknown one nothing is said."""
    version = locate.numbers(release)
    for variant in config.variants if version else ():
        args, where = merged(config.engine.args, variant.args), f"variants.{variant.name}.args"
        _check_flags(args, version, release, where)
        _check_method(str(speculative_setting(args).get("method") or ""), version, release, where)


def _check_flags(args: Mapping[str, JSON], version: tuple[int, ...], release: str, where: str) -> None:
    new, old = flags_of(args, NEW), flags_of(args, OLD)
    if new and version < _NEW_FLAGS:
        what, expected = f"vLLM {release} does not take {new[0]}", "the speculative flags of releases before 0.8"
        remedy = "write speculative-model, num-speculative-tokens and their like, or install 0.8 or newer"
        raise EngineError(what, where=f"{where}.{new[0]}", found=new[0], expected=expected, remedy=remedy)
    if old and version >= _OLD_FLAGS_END:
        what, expected = f"vLLM {release} does not take {old[0]}", "speculative-config, a mapping"
        mapping = ", ".join(f"{key}: {value}" for key, value in speculative_setting(args).items())
        remedy = f"write speculative-config: {{{mapping}}}"
        raise EngineError(what, where=f"{where}.{old[0]}", found=old[0], expected=expected, remedy=remedy)


def _check_method(method: str, version: tuple[int, ...], release: str, where: str) -> None:
    removed, (refusing, taking) = _REMOVED.get(method), _ADDED.get(method, ((), ()))
    if removed and version >= removed:
        known = f"a release before {_dotted(removed)}"
    elif version[:2] <= refusing and not is_old(release):
        known = f"{_dotted(taking)} or newer"
    else:
        return
    what, remedy = f"vLLM {release} has no drafting method {method}", "install such a release, or take the variant out"
    raise EngineError(what, where=where, found=method, expected=f"{known}, or another method", remedy=remedy)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def started_old(args: Mapping[str, JSON], *, speculative: bool) -> dict[str, JSON]:
    """Return ``args`` as a server before 0.8 takes them: true and false in words, and log-probabilities that are not placeholders."""
    said = {name: str(value).lower() if _is_word(name, value) else value for name, value in args.items()}
    if speculative and not any(plain(name) == _LOGPROBS for name in said):
        said[_LOGPROBS] = "false"
    return said


def _is_word(name: str, value: JSON) -> bool:
    return isinstance(value, bool) and plain(name) in _TAKES_A_WORD
