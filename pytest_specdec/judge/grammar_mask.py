"""The grammar's mask: every token of a bound answer is allowed, and at temperature 0 it is the best allowed one.

The masks are computed apart from the server (``capture/grammar_masks.py``); where the baseline's own answers disagree with them, they count
for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.documents import Flaw
from pytest_specdec.judge.grammar_faults import STUCK
from pytest_specdec.judge.greedy_gap import RESOLUTION
from pytest_specdec.judge.tolerance import allowed
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.grammar_mask import AnswerMask
    from pytest_specdec.model.transcript import Position
    from pytest_specdec.model.verdict import Verdict

__all__ = ["WORSE", "MaskedAnswers", "broken", "masked"]

WORSE = "tokens that the grammar allows and the baseline would not choose"
_CONTRADICTED = 0.8
"""Nats below the best allowed token from which the baseline's own choice contradicts the masks: eight times the largest normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAnswer:
    """One answer under its grammar's masks."""

    mask: AnswerMask
    gaps: tuple[float | None, ...] = ()
    """By token from the mask's start on, at temperature 0: nats below the best allowed token; None where the scores do not tell."""

    @property
    def gap(self) -> float:
        """The largest gap, 0 without any."""
        return max((gap for gap in self.gaps if gap is not None), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedAnswers:
    """The answers of one arm beside those of the baseline's boots, all under their masks."""

    missing: str = ""
    """Why there are no masks; empty where there are."""
    releases: str = ""
    exact: bool = False
    """Whether one wrong answer is proof: the server's masks are computed by the same release."""
    mine: tuple[MaskedAnswer, ...] = ()
    peers: tuple[tuple[MaskedAnswer, ...], ...] = ()
    """Those of the baseline and of the control."""
    usable: frozenset[tuple[str, int]] = frozenset()
    """The answers whose masks agree with the baseline's boots."""
    allowed: Tolerance
    alpha: float
    unread: tuple[str, ...] = ()
    """Why some of the judged arm's answers have no masks, a reason each."""

    @property
    def judged(self) -> tuple[MaskedAnswer, ...]:
        """The judged arm's answers whose masks can be relied on."""
        return tuple(one for one in self.mine if one.mask.key in self.usable)

    @property
    def tokens(self) -> int:
        """Tokens of these that a mask was computed for."""
        return sum(len(one.mask.allowed) for one in self.judged)

    @property
    def choices(self) -> int:
        """Those at temperature 0 that the scores place among the allowed ones."""
        return sum(gap is not None for one in self.judged for gap in one.gaps) if self.allowed.trustworthy else 0

    @property
    def worse(self) -> int:
        """Tokens further below the best allowed one than noise takes them."""
        return sum(gap is not None and gap > self.allowed.gap for one in self.judged for gap in one.gaps)

    @property
    def counts_gaps(self) -> bool:
        """Whether such tokens are more than the baseline's boots show."""
        return self.allowed.trustworthy and self.allowed.is_wrong(self.worse, self.choices, self.alpha)

    def is_wrong(self, one: MaskedAnswer) -> bool:
        """Whether a token is forbidden, or further below the best allowed one than noise takes it, where that is no chance."""
        return one.mask.forbidden is not None or (one.gap > self.allowed.gap and self.counts_gaps)

    @property
    def figures(self) -> dict[str, float]:
        """Counts for the verdict; empty where nothing was followed."""
        return {"masked_tokens": float(self.tokens), "masked_choices": float(self.choices)} if self.tokens else {}

    @property
    def rules_out(self) -> str:
        """The end of a sentence of a pass."""
        if self.missing:
            return f"; tokens are not held against the grammar's mask: {self.missing}"
        return f"; the grammar's mask allows all {self.tokens:,} tokens" if self.tokens else ""

    @property
    def evidence(self) -> tuple[str, ...]:
        """A line on what was followed, one on what was left out."""
        if self.missing or not self.mine:
            return ()
        unplaced = sum(gap is None for one in self.judged for gap in one.gaps)
        placed = f"; at temperature 0, {self.choices:,} are placed among the allowed ones, {unplaced:,} lie outside the scored ones"
        at_0 = placed if self.choices or unplaced else ""
        out = len(self.mine) - len(self.judged)
        left_out = f"{out} answers left out: the baseline's own disagree with the masks" if out else ""
        said = (f"masks of {self.releases}: {self.tokens:,} tokens of {len(self.judged)} answers{at_0}", left_out, *self.unread)
        return tuple(line for line in said if line)


def masked(captured: Captured) -> MaskedAnswers | None:
    """Return the answers under their masks; None where the servers' grammars are not llguidance's."""
    mine = captured.grammar_masks.get(captured.arm)
    if mine is None:
        return None
    peers = tuple(_followed(captured, boot.arm) for boot in captured.baseline_boots)
    agreeing = _agreeing(captured, peers)
    shown = [gap for peer in peers for one in peer if one.mask.key in agreeing for gap in one.gaps if gap is not None]
    return MaskedAnswers(
        missing=mine.missing,
        releases=f"llguidance {mine.release}, {mine.server_release or 'an unknown release'} on the server",
        exact=mine.exact,
        mine=_followed(captured, captured.arm),
        peers=peers,
        usable=agreeing,
        allowed=allowed(captured, shown),
        alpha=captured.alpha,
        unread=tuple(sorted({f"an answer without masks: {one.unread}" for one in mine.answers if one.unread})),
    )


def broken(captured: Captured, found: MaskedAnswers | None, stuck: Collection[str] = ()) -> Verdict | None:
    """Return a failure where tokens are outside the mask, or allowed and not the best.

    One answer is proof where the server's release computed the masks. Elsewhere Fisher's exact test decides, one-sided, against each of the
    baseline's boots: another release may read a rule of a grammar in another way. ``stuck`` are the requests with endless white space.
    """
    if found is None:
        return None
    wrong = [one for one in found.judged if found.is_wrong(one)]
    if not wrong or not (found.exact or _more_than_peers(captured, found)):
        return None
    forbidden = [one for one in wrong if one.mask.forbidden is not None]
    first = (forbidden or wrong)[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{len(wrong)} of {len(found.judged)} answers break the grammar's mask: {len(forbidden)} at a forbidden token, "
        f"{len(wrong) - len(forbidden)} at a token less likely than the best allowed one",
        short=_first(captured, found, first),
        evidence=(*(_line(found, one) for one in wrong[:20]), *found.evidence),
        cell=f"{len(wrong)} break the mask",
        names=_name(forbidden, stuck) if forbidden else WORSE,
        figures={"mask_breaking_answers": float(len(wrong)), **found.figures},
    )


def _name(forbidden: Sequence[MaskedAnswer], stuck: Collection[str]) -> str:
    return STUCK if 2 * sum(one.mask.request_id in stuck for one in forbidden) > len(forbidden) else Flaw.FORM.value


def _more_than_peers(captured: Captured, found: MaskedAnswers) -> bool:
    mine, total = sum(map(found.is_wrong, found.mine)), len(found.mine)
    theirs = [(sum(map(found.is_wrong, peer)), len(peer)) for peer in found.peers]
    return max(proportions.greater_than_other(mine, total, *peer) for peer in theirs) < captured.alpha


def _first(captured: Captured, found: MaskedAnswers, one: MaskedAnswer) -> tuple[str, ...]:
    index = _place(one)
    ids = next(answer.choice.token_ids for answer in captured.speculative.answers if answer.key == one.mask.key)
    where = f"where        token {index} of {one.mask.request_id}: id {ids[index]}"
    count = one.mask.allowed[index - one.mask.start]
    if one.mask.forbidden is not None:
        return (where, f"mask         forbids it; {count:,} other tokens are allowed ({found.releases})")
    return (where, f"mask         allows {count:,} tokens; it lies {one.gap:.3g} nats below the best, {found.allowed.gap:.3g} allowed")


def _line(found: MaskedAnswers, one: MaskedAnswer) -> str:
    what = (
        "forbidden" if one.mask.forbidden is not None else f"{one.gap:.3g} nats below the best allowed, {found.allowed.gap:.3g} tolerated"
    )
    return f"{one.mask.request_id}: token {_place(one)}: {what}"


def _place(one: MaskedAnswer) -> int:
    if one.mask.forbidden is not None:
        return one.mask.forbidden
    return one.mask.start + one.gaps.index(one.gap)


def _agreeing(captured: Captured, peers: Sequence[Sequence[MaskedAnswer]]) -> frozenset[tuple[str, int]]:
    """Return the answers whose grammar allows every token of the baseline's boots, and whose own choices they make too."""
    disputed = {one.mask.grammar for peer in peers for one in peer if one.mask.forbidden is not None}
    contradicted = max(_CONTRADICTED, allowed(captured, ()).gap)
    noisy = {one.mask.key for peer in peers for one in peer if one.gap > contradicted}
    everywhere = [{one.mask.key for one in peer if one.mask.grammar not in disputed} for peer in peers]
    return frozenset(set.intersection(*everywhere) - noisy)


def _followed(captured: Captured, arm: str) -> tuple[MaskedAnswer, ...]:
    known = captured.grammar_masks.get(arm)
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    greedy = {one.id for one in captured.workload.requests if one.greedy and penalties(one.body).neutral}
    read = [mask for mask in known.answers if not mask.unread] if known is not None else []
    return tuple(MaskedAnswer(mask=mask, gaps=_gaps(mask, scores) if mask.request_id in greedy else ()) for mask in read)


def _gaps(mask: AnswerMask, scores: Mapping[tuple[str, int], tuple[Position, ...]]) -> tuple[float | None, ...]:
    positions = scores.get(mask.key, ())[mask.start :]
    gaps = [0.0 if count == 1 else _gap(position, best) for position, best, count in zip(positions, mask.best, mask.allowed, strict=False)]
    return tuple(gaps if mask.forbidden is None else gaps[:-1])


def _gap(position: Position, best: int) -> float | None:
    """Return the gap to the best allowed token, at least that of an unlisted one; None where every allowed token is unlisted."""
    if best < 0:
        return None
    own = min(position.top_logprobs) if math.isnan(position.logprob) else position.logprob
    gap = position.top_logprobs[best] - own
    return gap if gap > RESOLUTION else 0.0
