"""The speculative setting of ``llama-server``: read as a draft, and checked for what it needs to draft at all.

A drafter is one of the methods in ``--spec-type``, such as ``draft-simple`` (a draft model) or ``ngram-mod``; several may be on at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.llama_cpp.gguf import header
from pytest_specdec.engines.llama_cpp.rules import DRAFT_MODEL, LONG, METHOD, MODEL_DRAFTERS, REMOVED, RULES
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.model.workload import JSON

_N_MAX = 3
"""``--spec-draft-n-max`` of 0.5.0."""
_NGRAM_SETTINGS = {
    "ngram-simple": (("spec-ngram-simple-size-n", 12), ("spec-ngram-simple-size-m", 48)),
    "ngram-map-k": (("spec-ngram-map-k-size-n", 12), ("spec-ngram-map-k-size-m", 48)),
    "ngram-map-k4v": (("spec-ngram-map-k4v-size-n", 12), ("spec-ngram-map-k4v-size-m", 48)),
    "ngram-mod": (("spec-ngram-mod-n-match", 24), ("spec-ngram-mod-n-max", 64)),
    "ngram-cache": (("", 4), ("", 8)),
}
"""Of each n-gram drafter the settings of the tokens that it looks up and of its longest draft, with their defaults (``common/common.h`` of
0.5.0; of the cache ``LLAMA_NGRAM_MAX`` in ``common/ngram-cache.h``, the longest of its n-grams, of which one occurrence is enough)."""
_DEFAULT = "ngram-mod"
"""What ``--spec-default`` turns on."""
_MOST_FURTHER, _FIRST = 128, 5
"""Tokens by which vocabularies may differ in size, and the first id whose text is compared (``common/speculative.cpp``)."""


def by_long_names(args: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return ``args`` under the long names of llama-server's flags.

    A list becomes one text with commas, the form that llama-server's parser takes.
    """
    values = {plain(name): ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value for name, value in args.items()}
    return {LONG.get(name, name): value for name, value in values.items()}


def drafters(args: Mapping[str, JSON]) -> tuple[str, ...]:
    """Return the drafters in ``args``, in their order.

    Without any, ``spec-default`` turns on llama.cpp's default one. Returns an empty tuple if ``args`` do not speculate.
    """
    by_name = by_long_names(args)
    names = [name for name in str(by_name.get(METHOD) or "").split(",") if name not in {"", "none"}]
    if not names and by_name.get("spec-default") is True:
        return (_DEFAULT,)
    return tuple(names)


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return the draft settings in ``args``; None without any.

    Of several drafters any may draft at a step. ``tokens`` is then their longest draft. ``ngram_min`` is the fewest tokens in a row
    that have to occur again before anything is drafted; it is 0 if a drafter with a model is among them, which always drafts.
    """
    names, by_name = drafters(args), by_long_names(args)
    if not names:
        return None
    kind = _llama_cpp_draft_kind(names)
    model = by_name.get(DRAFT_MODEL)
    all_look_up = all(name in _NGRAM_SETTINGS for name in names)
    return Draft(
        kind=kind,
        tokens=max(_draft_limit(name, by_name) for name in names),
        sampling=DraftSampling.PROBABILISTIC if by_name.get("spec-draft-sampling") == "probabilistic" else DraftSampling.GREEDY,
        model=str(model) if kind is DraftKind.MODEL and model else None,
        ngram_min=min(_lookup_length(name, by_name) for name in names) if all_look_up else 0,
    )


def _llama_cpp_draft_kind(names: tuple[str, ...]) -> DraftKind:
    """Return the kind of drafting of all drafters together.

    It is MODEL for ``draft-simple`` alone, HEAD if all of them are heads, and UNKNOWN for n-grams and for mixtures. The kind NGRAM
    is for drafts that follow from an answer's own tokens. Those of llama.cpp do not: its n-gram drafters take the latest match, or
    match whole n-grams only, or search a pool of all requests.
    """
    if names == ("draft-simple",):
        return DraftKind.MODEL
    return DraftKind.HEAD if all(name.startswith("draft-") for name in names) and "draft-simple" not in names else DraftKind.UNKNOWN


def _draft_limit(name: str, by_name: Mapping[str, JSON]) -> int:
    """Return a drafter's most draft tokens per step.

    ``by_name`` are the arguments under their long names. Every drafter but those of n-grams has ``spec-draft-n-max``.
    """
    # Of an n-gram drafter, entry 0 is the length of its lookup, and entry 1 that of its draft.
    setting, default = _NGRAM_SETTINGS[name][1] if name in _NGRAM_SETTINGS else ("spec-draft-n-max", _N_MAX)
    return _whole_setting(by_name, setting, default)


def _lookup_length(name: str, by_name: Mapping[str, JSON]) -> int:
    """Return the tokens in a row that an n-gram drafter looks up."""
    setting, default = _NGRAM_SETTINGS[name][0]
    return _whole_setting(by_name, setting, default)


def _whole_setting(by_name: Mapping[str, JSON], setting: str, default: int) -> int:
    """Return the whole number in a setting, also from text; ``default`` without one."""
    value = by_name.get(setting, default)
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else default


def check_drafters(args: Mapping[str, JSON], where: str) -> None:
    """Raise EngineError for removed flags and for settings without effect.

    With a removed flag a server exits. Without a drafter, or without the model that its drafter needs, it boots and never
    drafts. ``where`` is the place of ``args`` in the config.
    """
    for name in map(plain, args):
        if name in REMOVED:
            what = f"llama.cpp has no --{name} any more"
            raise EngineError(what, where=f"{where}.{name}", found=name, expected=REMOVED[name], remedy="rename it")
    by_name, names = by_long_names(args), drafters(args)
    model = by_name.get(DRAFT_MODEL) or by_name.get("spec-draft-hf")
    model_drafters = [name for name in names if name in MODEL_DRAFTERS]
    if not names and any(RULES.speculates(name) for name in by_name):
        what, settings = f"nothing drafts without {METHOD}: the server would boot and speculate in nothing", ", ".join(sorted(by_name))
        raise EngineError(what, where=where, found=settings, expected=f"{METHOD}: draft-simple, or another drafter", remedy=f"add {METHOD}")
    if model_drafters and not model:
        what = f"{model_drafters[0]} needs a draft model: the server would boot and never draft"
        expected = f"{DRAFT_MODEL}: a GGUF file of the target's vocabulary"
        raise EngineError(what, where=where, found=f"no {DRAFT_MODEL}", expected=expected, remedy=f"add {DRAFT_MODEL}")


def check_draft_model(name: str, draft_model: Path, target: Path, where: str) -> None:
    """Raise EngineError if the drafter ``name`` cannot draft with this model.

    A drafter with heads needs a file of one architecture: with another it would silently draft nothing. Any other drafter
    needs the target's vocabulary, or llama.cpp refuses the pair at boot: the same texts from token 5 on, and nearly the same
    size. Vocabularies are not compared if a file lists no tokens. ``where`` is the draft model's place in the config.
    """
    draft_header, needed_architecture = header(draft_model), MODEL_DRAFTERS[name]
    if needed_architecture and draft_header.architecture != needed_architecture:
        what, architecture = f"{name} cannot draft with this model", f"architecture {draft_header.architecture} in {draft_model}"
        raise EngineError(
            what,
            where=where,
            found=architecture,
            expected=needed_architecture,
            remedy="convert the head with the target's folder beside it",
        )
    if needed_architecture:
        return
    draft_tokens, target_tokens = draft_header.tokens, header(target).tokens
    if not draft_tokens or not target_tokens:
        return
    compared = range(_FIRST, min(len(target_tokens), len(draft_tokens)))
    first_difference = next((token for token in compared if target_tokens[token] != draft_tokens[token]), None)
    if first_difference is None and abs(len(target_tokens) - len(draft_tokens)) <= _MOST_FURTHER:
        return
    raise EngineError(
        what="the draft model has another vocabulary than the target",
        where=where,
        found=f"{_describe_vocabulary(draft_tokens, first_difference)} in {draft_model}",
        expected=f"{_describe_vocabulary(target_tokens, first_difference)}, as in {target}",
        remedy="name a draft model of the target's family, trained with its tokenizer",
    )


def _describe_vocabulary(tokens: Sequence[bytes], token: int | None) -> str:
    """Return a vocabulary's size in words, and the text of ``token``, if given."""
    return f"{len(tokens):,} tokens" + (f", token {token} {tokens[token].decode(errors='replace')!r}" if token else "")
