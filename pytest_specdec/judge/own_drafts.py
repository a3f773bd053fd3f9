"""Own drafts: rejected draft tokens of a variant, held against what its drafter proposes there when it is asked alone.

At temperature 0 a draft token is rejected only where the target wants another one. Where the drafter alone proposes the very token that was
emitted in the draft's place, the server must have drafted something else: from a stale cache, at wrong positions, with damaged weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.draft_distribution import PromptLookup, drafting
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.request_params import penalties
from pytest_specdec.stats.verify_slots import slots_from_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.judge.draft_distribution import DraftSource
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

__all__ = ["NAME", "OwnDrafts", "own_drafts", "worse"]

NAME = "drafts are worse than the drafter's own"
_ENOUGH, _MOST = 20, 0.25
"""Rejections of a token that the drafter alone proposes, and their part of all rejections: near-ties of the drafter are far fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDrafts:
    """The rejected draft tokens of which it is known what the drafter alone proposes there."""

    rejected: int
    right: int
    """Of them those where the drafter alone proposes the token that was emitted instead."""
    first: str
    """Where the first of these stands."""

    def __str__(self) -> str:
        return f"{self.right} of {self.rejected} rejected draft tokens are in place of one that the drafter alone gets right"


def worse(captured: Captured) -> Verdict | None:
    """Return a failure where drafts were rejected that the drafter alone would have got right; None where not, or where it is unknown."""
    drafts = own_drafts(captured)
    if drafts is None or drafts.right < _ENOUGH or drafts.right < _MOST * drafts.rejected:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{NAME}: {drafts}; first: {drafts.first}",
        short=("likely       the draft's cache or positions are wrong after a step, or its weights were loaded wrongly",),
        evidence=(str(drafts),),
        cell=f"{drafts.right} good drafts lost",
        names=NAME,
        figures={"rejected_drafts": float(drafts.rejected), "rejected_right_drafts": float(drafts.right)},
    )


def own_drafts(captured: Captured) -> OwnDrafts | None:
    """Return the rejected drafts of greedy requests; None where windows, or the drafter's own tokens, are not known."""
    known = drafting(captured)
    if known.unknown or not _told(captured):
        return None
    plain = {r.id for r in captured.workload.requests if r.body.get("temperature") == 0 and not r.grammar and penalties(r.body).neutral}
    answers = [answer for answer in captured.speculative.answers if answer.ok and len(answer.choices) == 1 and answer.request_id in plain]
    found = [each for answer in answers for each in _rejections(captured, known, answer)]
    right = [name for name, is_right in found if is_right]
    return OwnDrafts(rejected=len(found), right=len(right), first=right[0] if right else "") if found else None


def _told(captured: Captured) -> bool:
    """Whether it is known how many tokens each step drafted: by the answers, or since all drafts have the full length."""
    counters, draft = captured.speculative.counters, captured.pair.variant.draft
    if draft.kind is DraftKind.NGRAM or any(answer.ok and answer.choice.drafted for answer in captured.speculative.answers):
        return True
    return counters is not None and counters.drafts > 0 and counters.draft_tokens >= draft.tokens * counters.drafts


def _rejections(captured: Captured, known: DraftSource, answer: Answer) -> Iterator[tuple[str, bool]]:
    """Return each rejected draft token of an answer by name, and whether the drafter alone proposes what was emitted in its place.

    The last window is left out: a limit may have cut it.
    """
    choice = answer.choice
    if choice.windows is None or len(choice.windows) < 2:  # noqa: PLR2004 - the prefill's and one more
        return
    per_step = choice.drafted
    by_start = {} if per_step is None else dict(zip(np.cumsum(choice.windows[:-1]).tolist(), per_step, strict=False))
    slots = slots_from_windows(choice.windows[:-1], len(choice.token_ids), lambda start: by_start.get(start, known.drafted(answer, start)))
    own = known.tokens(answer, slots.slot) if isinstance(known, PromptLookup) else _best(captured, answer)
    for at in np.flatnonzero(slots.draft_slot & slots.ended).tolist():
        if own[at] >= 0:
            yield f"request {answer.request_id}, token {at + 1}", own[at] == choice.token_ids[at]


def _best(captured: Captured, answer: Answer) -> list[int]:
    """Return the best token of the draft model served alone at each token of an answer; -1 where it is not known."""
    scores = {score.key: score.positions for score in captured.draft_scores.get(captured.arm, ())}
    positions, ids = scores.get(answer.key, ()), answer.choice.token_ids
    if tuple(position.token_id for position in positions) != ids:
        return [-1] * len(ids)
    return [position.top_ids[0] if position.top_ids else -1 for position in positions]
