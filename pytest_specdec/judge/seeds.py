"""Seeds: one seed repeats its answer as reliably as without speculation; other seeds, no seed and other choices give other answers.

The variant's seeded answers are compared with each other, never with the baseline's: engines draw differently once they speculate. Two
draws that must be independent are equal with the probability that the baseline gives to the first of them. If that is below the share of
the false-alarm budget, divided by the pairs, one equal pair is a fault. Without scores, their number is compared with the baseline's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, refusal, speculating
from pytest_specdec.judge.tolerance import VERIFY_FACTOR, allowed_gap
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Choice, Score, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import JSON

__all__ = ["judge"]

NOT_HONOURED = "the seed is not honoured"
NEIGHBOURS = "a seeded answer depends on its neighbours"
SAME = "different seeds give the same answer"
UNSEEDED = "requests without a seed give the same answer again"
STREAM = "requests share one random stream"
COPIES = "n choices are copies"

_PLACES = 2.5
"""Times as often as a decode step a verify step of a correct server may flip a draw.

Noise may change whether the draft token is accepted, and which token replaces it. Measured on correct servers are 0.9 to 2.2 times if both
kernels are equally noisy (18 and 36 pairs). Flips are in proportion to the noise, so that a noisier verify kernel may have more, up to
VERIFY_FACTOR times as many.
"""
_MOSTLY = 0.75
"""Fraction of equal pairs of requests sent alone from which on the baseline counts as honouring seeds.

By noise alone, so many of the baseline's pairs and none of four of the judged arm's are equal in fewer than 1 of 100 runs, whatever the
noise.
"""
_HARDLY = 0.5
"""Fraction of equal pairs of concurrent requests below which the baseline hardly repeats itself there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One choice of an answer."""

    request_id: str
    asks: str
    """Equal for equal prompts."""
    seed: JSON
    index: int
    """Of the choice."""
    turn: int
    """Number of the group of concurrent requests that its request belongs to."""
    alone: bool
    """Whether that group is this one request."""
    choice: Choice
    logprob: float
    """Upper bound of the whole choice's log-probability under the baseline; 0 if it was not scored."""

    def repeats(self, other: Draw) -> bool:
        """Return True if both choices are equal, by ids if possible."""
        ids = self.choice.token_ids and other.choice.token_ids
        mine, theirs = self.choice, other.choice
        return mine.token_ids == theirs.token_ids if ids else mine.written == theirs.written


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Pairs of choices for one prompt, seed and index, of one arm or of several."""

    alone: tuple[tuple[Draw, Draw], ...]
    """Both requests were sent alone."""
    company: tuple[tuple[Draw, Draw], ...]
    """At least one of the two was in flight with other requests."""

    @property
    def pairs(self) -> tuple[tuple[Draw, Draw], ...]:
        """All of them."""
        return (*self.alone, *self.company)

    def __str__(self) -> str:
        return f"{_equal_of(self.alone)} alone, {_equal_of(self.company)} in company"


def judge(captured: Captured) -> Verdict:
    """Judge whether seeds are honoured and other draws independent.

    Both are judged by what the baseline does. Seeds: FAIL if fewer pairs under one seed are equal than on the baseline's boots. Barnard's
    exact test, one-sided, is applied to all pairs and to those of concurrent requests, each at the captured share of alpha. No engine need
    repeat itself among concurrent requests, since sums differ with the batch, and a verify step may flip draws more often than a decode
    step by the factor of :func:`_flip_factor`. INCONCLUSIVE if no request sent alone is repeated although the baseline mostly repeats them,
    and the pairs are too few for that level.

    Independence: FAIL if two draws are equal whose chance of it is below the share of alpha divided by all pairs (union bound). A kind of
    equal pairs that the baseline has too is no fault.
    """
    return server_failure(captured) or refusal(captured) or check_endings(captured) or _judge_draws(captured)


def _judge_draws(captured: Captured) -> Verdict:
    """Judge repeats under a seed first, then independence.

    INVALID if the judged arm or the baseline has no answer. Whether anything was drafted is checked after both, so that it hides no fault.
    """
    mine = _draws(captured, captured.speculative)
    others = tuple(_draws(captured, arm) for arm in captured.baseline_boots)
    if not mine or not others[0]:
        return say(captured, Outcome.INVALID, f"no answer from {captured.arm if not mine else 'the baseline'}")
    return (
        _check_repeats(captured, _repeats(mine), _unite_repeats(others))
        or _check_independence(captured, mine, others)
        or speculating(captured, rejecting=False)
        or _pass_seeds(captured, mine, others)
    )


def _draws(captured: Captured, arm: Transcript) -> tuple[Draw, ...]:
    """Return every choice of an arm, with its seed and score.

    Answers without status 200 are left out. Only the first choice of an answer is scored; the others have the log-probability 0, an upper
    bound.
    """
    requests = {r.id: (r, number, len(turn) == 1) for number, turn in enumerate(captured.workload.turns) for r in turn}
    scores = {score.key: score for score in captured.scores.get(arm.arm, ())}
    return tuple(
        Draw(
            request_id=answer.request_id,
            asks=request.prompt_key,
            seed=request.seed,
            index=choice.index,
            turn=number,
            alone=alone,
            choice=choice,
            logprob=_logprob(scores.get(answer.key)) if choice.index == 0 else 0.0,
        )
        for answer in arm.answers
        if answer.ok
        for request, number, alone in (requests[answer.request_id],)
        for choice in answer.choices
    )


def _logprob(score: Score | None) -> float:
    """Return an upper bound of an answer's log-probability.

    It is 0 without a score. A token without its own log-probability is at most as likely as the least likely one listed.
    """
    positions = score.positions if score is not None else ()
    return sum(min(p.top_logprobs, default=0.0) if math.isnan(p.logprob) else p.logprob for p in positions)


def _repeats(draws: Sequence[Draw]) -> Repeats:
    """Pair each seeded draw with the first of its kind.

    A kind has one prompt, seed and index. The suite sends requests alone first, so that concurrent answers are compared with one given
    alone, if there is one.
    """
    groups: dict[tuple[str, JSON, int], list[Draw]] = defaultdict(list)
    for draw in draws:
        if draw.seed is not None:
            groups[draw.asks, draw.seed, draw.index].append(draw)
    pairs = [(group[0], draw) for group in groups.values() for draw in group[1:]]
    alone = tuple(pair for pair in pairs if pair[0].alone and pair[1].alone)
    return Repeats(alone=alone, company=tuple(pair for pair in pairs if pair not in alone))


def _unite_repeats(arms: Sequence[Sequence[Draw]]) -> Repeats:
    """Return the repeats of several arms, paired within each arm."""
    repeats = [_repeats(draws) for draws in arms]
    return Repeats(
        alone=tuple(pair for each in repeats for pair in each.alone), company=tuple(pair for each in repeats for pair in each.company)
    )


def _unequal(pairs: Sequence[tuple[Draw, Draw]]) -> list[tuple[Draw, Draw]]:
    return [(first, again) for first, again in pairs if not first.repeats(again)]


def _equal_of(pairs: Sequence[tuple[Draw, Draw]]) -> str:
    return f"{len(pairs) - len(_unequal(pairs))} of {len(pairs)}"


def _rate(pairs: Sequence[tuple[Draw, Draw]]) -> float:
    """Return the fraction of equal pairs; 1 without pairs."""
    return 1.0 - len(_unequal(pairs)) / len(pairs) if pairs else 1.0


def _flip_factor(captured: Captured) -> float:
    """Return the factor by which the judged arm may flip more draws.

    It is relative to the baseline: :data:`_PLACES` times the measured noise of the verify kernel over that of decoding, at most
    VERIFY_FACTOR.
    """
    return _PLACES * min(allowed_gap(captured, ()).verify_factor, VERIFY_FACTOR)


def _p_value(captured: Captured, mine: Sequence[tuple[Draw, Draw]], theirs: Sequence[tuple[Draw, Draw]]) -> float:
    return _unequal_p_value(captured, len(_unequal(mine)), len(mine), theirs)


def _unequal_p_value(captured: Captured, unequal: int, pairs: int, theirs: Sequence[tuple[Draw, Draw]]) -> float:
    """Return the p-value of so many unequal pairs beside the baseline's pairs."""
    return proportions.greater_than_times(unequal, pairs, len(_unequal(theirs)), len(theirs), _flip_factor(captured))


def _check_repeats(captured: Captured, mine: Repeats, theirs: Repeats) -> Verdict | None:
    """Return FAIL if too few pairs under one seed are equal.

    None if about as many are as on the baseline. INCONCLUSIVE if no pair sent alone is equal although most of the baseline's are, but the
    test does not reject. The fault is an ignored seed if most pairs sent alone differ, else a dependence on the concurrent requests.
    """
    p_value = min(_p_value(captured, mine.pairs, theirs.pairs), _p_value(captured, mine.company, theirs.company))
    is_silent = bool(mine.alone and theirs.alone) and not _rate(mine.alone) and _rate(theirs.alone) >= _MOSTLY
    if p_value > captured.alpha and not is_silent:
        return None
    unequal = _unequal(mine.pairs)
    name = NOT_HONOURED if 2 * len(_unequal(mine.alone)) > len(mine.alone) else NEIGHBOURS
    counted = f"{len(unequal)} of {len(mine.pairs)} answers differ from an earlier one under the same seed; {_rates(mine, theirs)}"
    first, again = unequal[0]
    shown = (
        f"first        {quote(first.choice.written, 90)}",
        f"again        {quote(again.choice.written, 90)}",
        f"p            {p_value:.2g}",
    )
    evidence = [f"{a.request_id} and {b.request_id}" for a, b in unequal]
    figures = {**_seed_figures(mine, theirs), "p_value": p_value}
    if p_value > captured.alpha:
        headline = f"not enough evidence: {counted}"
        return say(captured, Outcome.INCONCLUSIVE, headline, short=shown, evidence=evidence, settle="run at deep depth", figures=figures)
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {counted}",
        short=shown,
        evidence=evidence,
        cell=f"{len(unequal)} of {len(mine.pairs)} not repeated",
        names=name,
        example=Example(symptom=Symptom.UNREPEATED, request_id=again.request_id),
        figures=figures,
    )


def _rates(mine: Repeats, theirs: Repeats) -> str:
    return f"repeated: {mine}; the baseline {theirs}"


def _seed_figures(mine: Repeats, theirs: Repeats) -> dict[str, float]:
    return {
        "seeded_pairs": float(len(mine.pairs)),
        "seeded_pairs_differing": float(len(_unequal(mine.pairs))),
        "rate_repeated_in_company": _rate(mine.company),
        "baseline_rate_repeated_in_company": _rate(theirs.company),
    }


def _independent_pairs(draws: Sequence[Draw]) -> Iterator[tuple[Draw, Draw]]:
    """Yield the pairs of draws for one prompt that must be independent.

    They have different seeds or none, or are two choices of one answer.
    """
    for first, other in combinations(draws, 2):
        same = first.seed is not None and first.seed == other.seed and first.index == other.index
        if first.asks == other.asks and not same:
            yield first, other


def _pair_fault(first: Draw, other: Draw) -> str:
    """Return the fault that this pair shows if it is equal."""
    if first.request_id == other.request_id:
        return COPIES
    if first.turn == other.turn:
        return STREAM
    return UNSEEDED if first.seed is None and other.seed is None else SAME


def _check_independence(captured: Captured, mine: Sequence[Draw], others: Sequence[Sequence[Draw]]) -> Verdict | None:
    """Return FAIL if independent draws are equal, else None.

    A kind of fault that the baseline shows too is left out. Without scores nothing tells how likely an equal pair is: there must then be
    more repeated draws than the baseline's.
    """
    theirs = {_pair_fault(*pair) for other in others for pair in _equal_pairs(captured, other)}
    pairs = [pair for pair in _equal_pairs(captured, mine) if _pair_fault(*pair) not in theirs]
    if not pairs or (not _is_scored(mine) and not _has_more_copies(captured, mine, others)):
        return None
    kinds = [_pair_fault(*pair) for pair in pairs]
    name = next(kind for kind in (SAME, UNSEEDED, COPIES, STREAM) if kind in kinds)
    first, other = next(pair for pair in pairs if _pair_fault(*pair) == name)
    chance = f"; by chance with probability {math.exp(first.logprob):.1g}" if first.logprob < 0 else ""
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(pairs)} of {sum(1 for _ in _independent_pairs(mine))} pairs of draws are equal, none of the baseline's; "
        f"first: {first.request_id} and {other.request_id}",
        short=(f"both         {quote(first.choice.written, 90)}{chance}",),
        evidence=[f"{_pair_fault(a, b)}: {a.request_id}, choice {a.index}, and {b.request_id}, choice {b.index}" for a, b in pairs],
        cell=f"{len(pairs)} equal draws",
        names=name,
        figures={"equal_pairs": float(len(pairs))},
    )


def _is_scored(draws: Sequence[Draw]) -> bool:
    return any(draw.logprob < 0 for draw in draws)


def _equal_pairs(captured: Captured, draws: Sequence[Draw]) -> list[tuple[Draw, Draw]]:
    """Return the independent pairs that are unlikely to be equal, but are.

    Unlikely is a probability below the share of alpha divided by the pairs. Without scores all equal pairs are returned.
    """
    pairs = list(_independent_pairs(draws))
    most = math.log(captured.alpha / max(1, len(pairs))) if _is_scored(draws) else math.inf
    return [(first, other) for first, other in pairs if min(first.logprob, other.logprob) <= most and first.repeats(other)]


def _has_more_copies(captured: Captured, mine: Sequence[Draw], others: Sequence[Sequence[Draw]]) -> bool:
    """Return True if more draws are repeated than on the baseline.

    Fisher's exact test, at the captured share of alpha; it serves if nothing is scored.
    """
    copies, draws = _count_copies(mine), len(mine)
    theirs = sum(map(_count_copies, others))
    return proportions.greater_than_other(copies, draws, theirs, sum(map(len, others))) <= captured.alpha


def _count_copies(draws: Sequence[Draw]) -> int:
    return len({other.request_id + str(other.index) for first, other in _independent_pairs(draws) if first.repeats(other)})


def _pass_seeds(captured: Captured, mine: Sequence[Draw], others: Sequence[Sequence[Draw]]) -> Verdict:
    """Return PASS, or INCONCLUSIVE if no fault could have shown.

    That is so without a pair under one seed, without independent pairs, or if each scored pair is likely enough to be equal by chance.
    """
    seeded, theirs = _repeats(mine), _unite_repeats(others)
    independent = list(_independent_pairs(mine))
    most = math.log(captured.alpha / max(1, len(independent)))
    telling = sum(min(first.logprob, other.logprob) <= most for first, other in independent)
    refusals = sum(map(is_refusal, captured.speculative.answers))
    figures = {**_seed_figures(seeded, theirs), "independent_pairs": float(len(independent)), "telling_pairs": float(telling)}
    scored = _is_scored(mine)
    if not seeded.pairs or not independent or (scored and not telling):
        headline = f"not enough evidence: {len(seeded.pairs)} pairs under one seed, {telling} pairs of draws that cannot be equal by chance"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="longer answers to prompts that leave more open", figures=figures)
    return say(
        captured,
        Outcome.PASS,
        f"{_equal_of(seeded.pairs)} answers repeated under their seed, {_equal_of(theirs.pairs)} of the baseline's"
        + _describe_untestable(theirs)
        + f"; {len(independent)} pairs of independent draws checked"
        + (f"; {refusals} requests refused with a 4xx" if refusals else ""),
        evidence=[_rates(seeded, theirs), f"{telling} pairs of draws cannot be equal by chance"],
        rules_out=(f"{telling} pairs of draws with other seeds, none, or of other choices: an equal one" if scored else "draws given again")
        + " would have been caught"
        + ("; so would a seed that is ignored" if _would_show(captured, seeded.pairs, theirs.pairs) else "")
        + ("; so would an answer that depends on its neighbours" if _would_show(captured, seeded.company, theirs.company) else ""),
        cell=f"{_equal_of(seeded.pairs)} repeated",
        figures=figures,
    )


def _describe_untestable(theirs: Repeats) -> str:
    """Return a caveat if the baseline hardly repeats itself; else empty."""
    if not _rate(theirs.alone):
        return "; the baseline repeats no answer alone, so that a seed that is ignored cannot be told"
    if _rate(theirs.company) < _HARDLY:
        return f"; in company the baseline repeats only {_equal_of(theirs.company)}, so that little can be told there"
    return ""


def _would_show(captured: Captured, mine: Sequence[tuple[Draw, Draw]], theirs: Sequence[tuple[Draw, Draw]]) -> bool:
    """Return True if the test would reject pairs that all differ."""
    return _unequal_p_value(captured, len(mine), len(mine), theirs) <= captured.alpha
