"""Drafter quality: rejected draft tokens of a variant, compared with the tokens that its drafter proposes when it is served alone.

At temperature 0 a draft token is rejected only if the target's best token is another one. If the drafter alone proposes the very token that
was emitted in the draft's place, the server must have drafted something else: from a stale cache, at wrong positions, with damaged weights.
Such a rejection is called avoidable. A verify window is the tokens that one verify step emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.sampling.draft_distribution import PromptLookup, drafting
from pytest_specdec.judge.tolerance import logit_noise
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions
from pytest_specdec.stats.request_params import penalties
from pytest_specdec.stats.verify_slots import slots_from_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.judge.sampling.draft_distribution import DraftSource
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Position
    from pytest_specdec.model.verdict import Verdict

__all__ = ["TOLERATED", "WORSE_DRAFTS", "RejectedDrafts", "check_drafter_quality", "rejected_drafts"]

UNKNOWN, UNSURE = -1, -2
"""In place of a token: nothing is known of the drafter there, or it hardly prefers one token."""
WORSE_DRAFTS = "drafts are worse than the drafter's own"
TOLERATED = 0.05
"""Largest part of rejections at which a correct server may have drafted another token than the one that the drafter alone is sure of."""
_SURE, _SURE_PER_NOISE = 0.5, 8.0
"""Nats by which the drafter's best token has to lead, at least and per nat of logit noise: rejections at near-ties count as unavoidable,
since another batch flips them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedDrafts:
    """The rejected draft tokens at which the proposal of the drafter alone is known."""

    count: int
    avoidable: int
    """Of these, the tokens at which the drafter alone is sure of the token that was emitted instead."""
    first: str
    """Request and position of the first of the ``avoidable`` ones; empty for none."""

    def __str__(self) -> str:
        return f"{self.avoidable} of {self.count} rejected draft tokens are in place of one that the drafter alone gets right"


def check_drafter_quality(captured: Captured, drafts: RejectedDrafts | None, alpha: float) -> Verdict | None:
    """Return FAIL if the drafter alone would have avoided too many rejections.

    "Alone" means the draft model served by itself, or prompt lookup computed here from the tokens. The fraction of such rejections is
    tested against TOLERATED, 5 %, by the exact binomial test at level ``alpha``. Returns None if it is not significantly larger, or if
    ``drafts`` is None, since nothing could be compared.
    """
    if drafts is None:
        return None
    p_value = proportions.greater_than_rate(drafts.avoidable, drafts.count, TOLERATED)
    if p_value > alpha:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{WORSE_DRAFTS}: {drafts}; first: {drafts.first}",
        short=(
            "likely       the draft's cache or positions are wrong after a step, or its weights were loaded wrongly",
            f"by chance    p = {p_value:.2g} where {TOLERATED:.0%} are lawful, alarm at {alpha:.2g}",
        ),
        evidence=(str(drafts),),
        cell=f"{drafts.avoidable} good drafts lost",
        names=WORSE_DRAFTS,
        figures={"rejected_drafts": float(drafts.count), "rejected_right_drafts": float(drafts.avoidable), "p_value": p_value},
    )


def rejected_drafts(captured: Captured) -> RejectedDrafts | None:
    """Return the counts of rejected draft tokens and of avoidable ones.

    A rejection was avoidable if the drafter, run alone, proposes the token that was emitted in the draft token's place. Only greedy
    requests without a grammar, penalties or biases count. These change the target's distribution unseen by the drafter, so that it is not
    to blame for rejections. Returns None if nothing comparable was rejected, or if draft lengths or the drafter's own tokens are unknown.
    """
    source = drafting(captured)
    if source.unknown or not _knows_draft_lengths(captured):
        return None
    plain = {r.id for r in captured.workload.requests if r.greedy and not r.grammar and penalties(r.body).neutral}
    answers = [answer for answer in captured.speculative.answers if answer.ok and len(answer.choices) == 1 and answer.request_id in plain]
    # A drafter's near-ties flip from batch to batch: its best token counts as sure only if its lead exceeds that noise.
    min_lead = max(_SURE, _SURE_PER_NOISE * (logit_noise(captured).noise or 0.0))
    rejections = [rejection for answer in answers for rejection in _rejections(captured, source, answer, min_lead)]
    avoidable = [place for place, is_avoidable in rejections if is_avoidable]
    if not rejections:
        return None
    return RejectedDrafts(count=len(rejections), avoidable=len(avoidable), first=avoidable[0] if avoidable else "")


def _knows_draft_lengths(captured: Captured) -> bool:
    """Return True if each verify step's number of draft tokens is known."""
    counters, draft = captured.speculative.counters, captured.pair.variant.draft
    if draft.kind is DraftKind.NGRAM:
        return True  # prompt lookup is computed again from the tokens
    # It is an option of the server to report the number for each step: one answer with a report shows that the option is on.
    if any(answer.ok and answer.choice.drafted for answer in captured.speculative.answers):
        return True
    # Without reports each draft is taken to have the full length, if the draft tokens of all drafts add up to that.
    return counters is not None and counters.drafts > 0 and counters.draft_tokens >= draft.tokens * counters.drafts


def _rejections(captured: Captured, source: DraftSource, answer: Answer, min_lead: float) -> Iterator[tuple[str, bool]]:
    """Yield each rejected draft token's place, with True if it was avoidable.

    The place is request and token, in words. A rejection was avoidable if the drafter's own best token leads the next one by ``min_lead``
    nats and is the token that was emitted instead; a proposal of prompt lookup needs no lead. Tokens are left out if nothing is known of
    the drafter there. Nothing is yielded for an answer without known windows.
    """
    choice = answer.choice
    if choice.windows is None or len(choice.windows) < 2:  # noqa: PLR2004 - the prefill's and one more
        return
    # A limit on the answer may have cut the last window: its tokens are given no slots, and so show no rejection.
    whole_windows = choice.windows[:-1]
    # The reported draft tokens of each verify step, by the tokens emitted before it: it begins where the windows before it end.
    starts_of_steps = np.cumsum(whole_windows).tolist()
    reported_lengths = dict(zip(starts_of_steps, choice.drafted or (), strict=False))
    slots = slots_from_windows(
        whole_windows, len(choice.token_ids), lambda start: reported_lengths.get(start, source.draft_length(answer, start))
    )
    # Slots and proposals have one entry for each emitted token. Lookup needs the slots, since its whole draft is fixed as a window begins.
    proposals = source.propose_tokens(answer, slots.slot) if isinstance(source, PromptLookup) else _best_tokens(captured, answer, min_lead)
    # A window that ends at a draft slot ends because the draft token there was rejected.
    for index in np.flatnonzero(slots.draft_slot & slots.ended).tolist():
        if proposals[index] != UNKNOWN:
            yield f"request {answer.request_id}, token {index + 1}", proposals[index] == choice.token_ids[index]


def _best_tokens(captured: Captured, answer: Answer, min_lead: float) -> list[int]:
    """Return the draft model's best token at each emitted token.

    The draft model, served alone, has scored the tokens of the answer: it has listed its most probable tokens at each. An entry is UNSURE
    if the best one does not lead by ``min_lead`` nats. All entries are UNKNOWN if the draft model did not score these very tokens.
    """
    scores = {score.key: score.positions for score in captured.draft_scores.get(captured.arm, ())}
    positions, ids = scores.get(answer.key, ()), answer.choice.token_ids
    if tuple(position.token_id for position in positions) != ids:
        return [UNKNOWN] * len(ids)
    return [_best_token(position, min_lead) for position in positions]


def _best_token(position: Position, min_lead: float) -> int:
    """Return the most probable token at one position.

    It is UNSURE if it leads the next one by ``min_lead`` nats or less, and UNKNOWN if no token is listed. A single listed token counts as
    leading.
    """
    if not position.top_ids:
        return UNKNOWN
    leads = len(position.top_ids) == 1 or position.top_logprobs[0] - position.top_logprobs[1] > min_lead
    return position.top_ids[0] if leads else UNSURE
