"""Atoms: how many of the most probable tokens a scored position has to list for the judges to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE, CONTROL, DraftSampling
from pytest_specdec.stats.asked import penalties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["of_arm", "of_draft"]

_FEW = 5
"""As good as twenty where the draft's law is one-hot, and several times cheaper (facts/betting-on-vllm.md section 6)."""
_ONE = 1
"""Of a drafter that drafts its best token nothing else is used."""


def of_arm(arm: str, workload: Workload, pairs: Sequence[Pair]) -> int:
    """Return what the judges of ``arm`` need: of the baseline and the control, what any pair's judge needs."""
    judged = pairs if arm in {BASELINE, CONTROL} else [pair for pair in pairs if pair.name == arm]
    return max(_of_pair(pair, workload) for pair in judged)


def of_draft(workload: Workload, pairs: Sequence[Pair]) -> int:
    """Return what is needed of the law of a draft model that ``pairs`` share."""
    greedy = all(pair.variant.draft.sampling is DraftSampling.GREEDY for pair in pairs)
    return min(_ONE, workload.atoms) if greedy else workload.atoms


def _of_pair(pair: Pair, workload: Workload) -> int:
    one_hot = pair.variant.draft.sampling is DraftSampling.GREEDY
    return min(_FEW, workload.atoms) if one_hot and all(map(_is_plain, workload.requests)) else workload.atoms


def _is_plain(request: Request) -> bool:
    """Whether few atoms give the requested law as exactly as many: greedy, or drawn at temperature 1 from all tokens as they are."""
    body = request.body
    temperature = body.get("temperature", 1.0)
    truncated = body.get("top_k") not in {None, 0, -1} or body.get("top_p") not in {None, 1} or body.get("min_p") not in {None, 0}
    return penalties(body).neutral and (temperature == 0 or (temperature in {None, 1} and not truncated))
