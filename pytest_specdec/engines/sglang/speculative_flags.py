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
_STEPWISE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
"""Algorithms that draft step by step, as the three flags of :func:`missing_speculative_flag` say."""
_NGRAM_WINDOW = 12
"""SGLang's own ``--speculative-num-draft-tokens`` for NGRAM."""


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return the draft settings in the flags; None without an algorithm."""
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
    stated in part, the server dies at boot. All may be left out together. With a top-k of 1, ``speculative-num-draft-tokens``
    alone may be left out too. Algorithms that do not read these flags lack none.
    """
    by_flag = {plain(name): value for name, value in args.items() if value is not None}
    if str(by_flag.get("speculative-algorithm")).upper() not in _STEPWISE:
        return ""
    num_steps, top_k, draft_tokens = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
    if by_flag.keys().isdisjoint({num_steps, top_k, draft_tokens}):
        return ""
    for flag in (num_steps, top_k):
        if flag not in by_flag:
            return flag
    return "" if draft_tokens in by_flag or whole_number(by_flag[top_k]) == 1 else draft_tokens


def _sglang_draft_kind(method: str, candidates: int) -> DraftKind:
    """Return the kind of drafting of a speculative algorithm.

    ``candidates`` is the number of tokens that the drafter keeps at each of its steps: with several the drafts are a tree.
    """
    if method == "STANDALONE":
        # For the kind MODEL the drafter is served alone too, to see its drafts: of a tree that shows one branch.
        return DraftKind.MODEL if candidates == 1 else DraftKind.UNKNOWN
    if method == "NGRAM":
        # Unlike the kind NGRAM, prompt lookup in the request's own tokens, it drafts from a trie over all requests.
        return DraftKind.UNKNOWN
    return DraftKind.HEAD


def _longest_draft(method: str, by_flag: Mapping[str, JSON]) -> int:
    """Return the most draft tokens one verify step can accept.

    ``by_flag`` are the server's arguments. The first flag that is stated counts. Without any, returns NGRAM's default, and 0 for
    any other method.
    """
    steps = whole_number(by_flag.get("speculative-num-steps"))
    if method in _STEPWISE and steps:
        return steps  # one token is accepted per draft step, also in a tree
    if draft_tokens := whole_number(by_flag.get("speculative-dspark-block-size")):
        return draft_tokens
    # The other two flags count all tokens that a verify step checks: the draft, and the last emitted token before it.
    checked_tokens = whole_number(by_flag.get("speculative-num-draft-tokens")) or whole_number(by_flag.get("speculative-dflash-block-size"))
    if not checked_tokens and method == "NGRAM":
        checked_tokens = _NGRAM_WINDOW
    return max(0, checked_tokens - 1)
