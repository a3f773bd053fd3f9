"""SGLang's speculative flags, read as a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.arguments import whole_number
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

DRAFT_MODELS = ("speculative-draft-model-path", "speculative-draft-model")
"""The two names of the flag that names a draft model or a head."""
_CHAINS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
"""Algorithms whose drafts the three flags of :func:`missing_speculative_flag` describe."""
_NGRAM_WINDOW = 12
"""SGLang's own ``--speculative-num-draft-tokens`` for NGRAM."""


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return the draft settings in the flags; None without an algorithm.

    A draft model counts as unknown if it proposes several candidates per draft step (``speculative-eagle-topk``): its drafts are
    then a tree, of which the model served alone would show one branch only. NGRAM is unknown too, since it drafts from a
    trie over all requests, unlike prompt lookup.
    """
    by_flag = {plain(name): value for name, value in args.items()}
    method = str(by_flag.get("speculative-algorithm") or "").upper()
    if not method:
        return None
    candidates = whole_number(by_flag.get("speculative-eagle-topk")) or 1
    is_sampled = by_flag.get("speculative-use-rejection-sampling") is True or by_flag.get("speculative-use-block-verification") is True
    kind = _sglang_draft_kind(method, candidates)
    return Draft(
        kind=kind,
        tokens=_longest_draft(method, by_flag),
        sampling=DraftSampling.PROBABILISTIC if is_sampled else DraftSampling.GREEDY,
        model=next((str(by_flag[name]) for name in DRAFT_MODELS if by_flag.get(name)), None) if kind is DraftKind.MODEL else None,
    )


def missing_speculative_flag(args: Mapping[str, JSON]) -> str:
    """Return the missing one of three speculative flags; empty if none.

    They are ``speculative-num-steps``, ``speculative-eagle-topk`` and ``speculative-num-draft-tokens``. If they are
    stated in part, the server dies at boot. All may be left out together, and the last one with a top-k of 1. Algorithms
    that do not read these flags lack none.
    """
    by_flag = {plain(name): value for name, value in args.items() if value is not None}
    if str(by_flag.get("speculative-algorithm")).upper() not in _CHAINS:
        return ""
    steps, candidates, window = (f"speculative-{name}" for name in ("num-steps", "eagle-topk", "num-draft-tokens"))
    if steps not in by_flag:
        return steps if candidates in by_flag or window in by_flag else ""
    if candidates not in by_flag:
        return candidates
    return window if window not in by_flag and whole_number(by_flag[candidates]) != 1 else ""


def _sglang_draft_kind(method: str, candidates: int) -> DraftKind:
    """Return the kind of drafting of a speculative algorithm.

    ``candidates`` is the number of tokens that the drafter keeps at each of its steps: with several the drafts are a tree.
    """
    if method == "STANDALONE":
        return DraftKind.MODEL if candidates == 1 else DraftKind.UNKNOWN
    return DraftKind.UNKNOWN if method == "NGRAM" else DraftKind.HEAD


def _longest_draft(method: str, by_flag: Mapping[str, JSON]) -> int:
    """Return the most draft tokens one verify step can accept.

    ``by_flag`` are the server's arguments. Algorithms that draft step by step accept at most a token per draft step. Otherwise
    ``speculative-dspark-block-size`` counts draft tokens, or else ``speculative-num-draft-tokens`` or
    ``speculative-dflash-block-size`` the tokens of a verify window: one more, the last one emitted before. Without any of
    them, returns NGRAM's default, and 0 for any other method.
    """
    steps = whole_number(by_flag.get("speculative-num-steps"))
    if method in _CHAINS and steps:
        return steps
    if block := whole_number(by_flag.get("speculative-dspark-block-size")):
        return block
    window = whole_number(by_flag.get("speculative-num-draft-tokens")) or whole_number(by_flag.get("speculative-dflash-block-size"))
    return max(0, (window or (_NGRAM_WINDOW if method == "NGRAM" else 0)) - 1)
