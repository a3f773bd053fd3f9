"""Seeds: one seed repeats its answer as reliably as without speculation; other seeds, no seed and other choices give other answers.

A draw is one choice of an answer. The variant's seeded draws are compared with each other, never with the baseline's: engines draw
differently once they speculate. Two independent draws are equal with the probability that the baseline gives to the first of them, its
score. If that is below the share of the false-alarm budget, ``alpha``, divided by the pairs, one equal pair is a fault. Without scores,
their number is compared with that of the baseline's boots, ``peers``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, refusal, speculating
from pytest_specdec.judge.tolerance import VERIFY_FACTOR, allowed_gap
from pytest_specdec.judge.verdicts import number_of, quote, say
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

_VERIFY_FLIPS = 2.5
"""Times as often as a decode step a verify step of a correct server may flip a draw.

Noise may change whether the draft token is accepted, and which token replaces it. Measured on correct servers are 0.9 to 2.2 times if both
kernels are equally noisy (18 and 36 pairs). Flips are in proportion to the noise, so that a noisier verify kernel may have more, up to
VERIFY_FACTOR times as many.
"""
_MOSTLY = 0.75
"""Fraction of equal pairs of requests sent alone from which on the baseline counts as honouring seeds.

By noise alone, so many of the baseline's pairs and none of 24 of the judged arm's are equal in fewer than 1 of 5,000 runs, whatever the
noise.
"""
_DOUBT = 1e-3
"""p-value of too few repeats up to which nothing is passed, although the level of an alarm is not reached."""
_HARDLY = 0.5
"""Fraction of equal pairs of concurrent requests below which the baseline hardly repeats itself there."""


_Kind = tuple[str, "JSON", int]
"""A prompt, a seed and the index of a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One choice of an answer."""

    request_id: str
    prompt_key: str
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

    @property
    def kind(self) -> _Kind:
        """What two draws of one server have in common if they must be equal."""
        return self.prompt_key, self.seed, self.index

    def is_equal(self, other: Draw) -> bool:
        """Return True if both choices are equal, by ids if possible."""
        if self.choice.token_ids and other.choice.token_ids:
            return self.choice.token_ids == other.choice.token_ids
        return self.choice.written == other.choice.written


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Pairs of draws of one arm with equal prompt, seed and choice index, the first of which was sent alone."""

    alone: tuple[tuple[Draw, Draw], ...]
    """The second was sent alone too."""
    concurrent: tuple[tuple[Draw, Draw], ...]
    """The second was in flight with other requests."""

    @property
    def pairs(self) -> tuple[tuple[Draw, Draw], ...]:
        """All pairs, those with a second draw sent alone first."""
        return (*self.alone, *self.concurrent)

    def __str__(self) -> str:
        return f"{_describe_equal(self.alone)} alone, {_describe_equal(self.concurrent)} under concurrency"


def judge(captured: Captured) -> Verdict:
    """Return the verdict on repeated seeds and on independent draws.

    Server failures, refusals and wrong endings come first. Seeds and independence are both judged beside the baseline.

    Seeds: FAIL if fewer answers under one seed are repeated than on the baseline's boots. Barnard's exact test, one-sided, is applied to
    repeats sent alone and to those among concurrent requests, each at the captured share of alpha (:func:`_p_value`); the smaller p-value
    counts. It allows for noise, which differs with the batch and may flip draws more often in a verify step than in a decode step, by
    :func:`_flip_factor`. INCONCLUSIVE if no answer given alone is repeated although the baseline mostly repeats its own, and the pairs are
    too few for that level.

    Independence: FAIL if two draws of different seeds, no seed or different choices are equal, and the probability of that is below the
    share of alpha divided by the number of pairs (union bound). A kind of equal pairs that the baseline has too is no fault.
    """
    return server_failure(captured) or refusal(captured) or check_endings(captured) or _judge_draws(captured)


def _judge_draws(captured: Captured) -> Verdict:
    """Return the first verdict on repeats under a seed, then independence.

    INVALID comes before, if the judged arm or the baseline has no answer. Missing drafts are looked for after both, so that they hide no
    fault.
    """
    draws = _draws(captured, captured.speculative)
    peers = tuple(_draws(captured, arm) for arm in captured.baseline_boots)
    if not draws or not peers[0]:
        return say(captured, Outcome.INVALID, f"no answer from {captured.arm if not draws else 'the baseline'}")
    return (
        _check_repeats(captured, _repeats(draws), _unite_repeats(peers))
        or _check_independence(captured, draws, peers)
        or speculating(captured, needs_rejections=False)
        or _pass_seeds(captured, draws, peers)
    )


def _draws(captured: Captured, arm: Transcript) -> tuple[Draw, ...]:
    """Return every choice of an arm, with its seed, its turn and its score.

    A turn is a group of requests in flight together. Answers without status 200 are left out. Only the first choice of an answer is scored;
    the others have the log-probability 0, an upper bound.
    """
    requests = captured.workload.by_id
    turns = {request.id: (number, len(turn) == 1) for number, turn in enumerate(captured.workload.turns) for request in turn}
    scores = {score.key: score for score in captured.scores.get(arm.arm, ())}
    return tuple(
        Draw(
            request_id=answer.request_id,
            prompt_key=request.prompt_key,
            seed=request.seed,
            index=choice.index,
            turn=number,
            alone=alone,
            choice=choice,
            logprob=_logprob(scores.get(answer.key)) if choice.index == 0 else 0.0,
        )
        for answer in arm.answers
        if answer.ok
        for request, (number, alone) in ((requests[answer.request_id], turns[answer.request_id]),)
        for choice in answer.choices
    )


def _logprob(score: Score | None) -> float:
    """Return an upper bound of an answer's log-probability.

    It is 0 without a score. A token without its own log-probability is at most as likely as the least likely one listed.
    """
    positions = score.positions if score is not None else ()
    return sum(min(p.top_logprobs, default=0.0) if math.isnan(p.logprob) else p.logprob for p in positions)


def _repeats(draws: Sequence[Draw]) -> Repeats:
    """Return one repeat alone and one under concurrency per kind.

    A kind is a prompt, a seed and a choice index. A repeat pairs a later draw with the first of its kind sent alone; kinds never sent alone
    have none. Two concurrent draws are not compared: a batch that keeps its size repeats its own noise, but a speculating server's changes
    its size as answers end. Further repeats are left out, because one near-tie flips them all.
    """
    firsts: dict[_Kind, Draw] = {}
    alone: dict[_Kind, tuple[Draw, Draw]] = {}
    for draw in (draw for draw in draws if draw.seed is not None and draw.alone):
        first = firsts.setdefault(draw.kind, draw)
        if draw is not first:
            alone[draw.kind] = first, draw
    concurrent = {draw.kind: (firsts[draw.kind], draw) for draw in draws if not draw.alone and draw.kind in firsts}
    return Repeats(alone=tuple(alone.values()), concurrent=tuple(concurrent.values()))


def _unite_repeats(arms: Sequence[Sequence[Draw]]) -> Repeats:
    """Return the repeats of several arms, paired within each arm."""
    repeats = [_repeats(draws) for draws in arms]
    return Repeats(
        alone=tuple(pair for arm in repeats for pair in arm.alone), concurrent=tuple(pair for arm in repeats for pair in arm.concurrent)
    )


def _unequal(pairs: Sequence[tuple[Draw, Draw]]) -> list[tuple[Draw, Draw]]:
    return [(first, again) for first, again in pairs if not first.is_equal(again)]


def _describe_equal(pairs: Sequence[tuple[Draw, Draw]]) -> str:
    return f"{len(pairs) - len(_unequal(pairs))} of {len(pairs)}"


def _rate(pairs: Sequence[tuple[Draw, Draw]]) -> float:
    """Return the fraction of equal pairs; 1 without pairs."""
    return 1.0 - len(_unequal(pairs)) / len(pairs) if pairs else 1.0


def _flip_factor(captured: Captured) -> float:
    """Return how many times as often as the baseline's the judged arm's draws may be flipped, changed by noise under one seed."""
    # Flips are in proportion to the noise, here of the verify kernel over that of decoding. The baseline's gaps do not matter for it.
    noise_ratio = allowed_gap(captured, ()).verify_factor
    return _VERIFY_FLIPS * min(noise_ratio, VERIFY_FACTOR)


def _p_value(captured: Captured, pairs: Sequence[tuple[Draw, Draw]], baseline_pairs: Sequence[tuple[Draw, Draw]]) -> float:
    """Return the p-value of the judged arm's unequal pairs beside the baseline's."""
    return _unequal_p_value(captured, len(_unequal(pairs)), len(pairs), baseline_pairs)


def _unequal_p_value(captured: Captured, unequal: int, pairs: int, baseline_pairs: Sequence[tuple[Draw, Draw]]) -> float:
    """Return the p-value of ``unequal`` among ``pairs`` of the judged arm.

    By the null hypothesis each is unequal with at most f, :func:`_flip_factor`, times the baseline's probability. There is one pair of each
    kind, a prompt, a seed and a choice index: they are independent trials of unequal chances. The mean chances keep to the factor as well
    (``1 - (1 - p)^f`` is concave), and binomial tails are no lighter than those of such trials (Hoeffding 1956, theorem 4).
    """
    # Boots of a deterministic server flip the same draws: a kind counts once, as flipped if it is on any boot, in favour of the arm.
    flipped, kinds = ({first.kind for first, _ in some} for some in (_unequal(baseline_pairs), baseline_pairs))
    return proportions.greater_than_times(unequal, pairs, len(flipped), len(kinds), _flip_factor(captured))


def _check_repeats(captured: Captured, judged: Repeats, baseline: Repeats) -> Verdict | None:
    """Return FAIL if too few answers under one seed are repeated.

    None if about as many are equal as on the baseline. INCONCLUSIVE if the p-value is above alpha but 1e-3 at most, or if no pair sent
    alone is equal although most of the baseline's are. The fault is an ignored seed if most pairs sent alone differ, else a dependence on
    the concurrent requests.
    """
    # Either test may reject: the budget pays for both, each at alpha.
    p_value = min(_p_value(captured, judged.alone, baseline.alone), _p_value(captured, judged.concurrent, baseline.concurrent))
    repeats_nothing = bool(judged.alone and baseline.alone) and not _rate(judged.alone) and _rate(baseline.alone) >= _MOSTLY
    if p_value > max(captured.alpha, _DOUBT) and not repeats_nothing:
        return None
    unequal = _unequal(judged.pairs)
    name = NOT_HONOURED if 2 * len(_unequal(judged.alone)) > len(judged.alone) else NEIGHBOURS
    counted = (
        f"{len(unequal)} of {len(judged.pairs)} answers differ from an earlier one under the same seed; {_describe_rates(judged, baseline)}"
    )
    first, again = unequal[0]
    lines = (
        f"first        {quote(first.choice.written, 90)}",
        f"again        {quote(again.choice.written, 90)}",
        f"p            {p_value:.2g}",
    )
    evidence = [f"{a.request_id} and {b.request_id}" for a, b in unequal]
    figures = {**_seed_figures(judged, baseline), "p_value": p_value}
    if p_value > captured.alpha:
        headline = f"not enough evidence: {counted}"
        return say(captured, Outcome.INCONCLUSIVE, headline, short=lines, evidence=evidence, settle="run at deep depth", figures=figures)
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {counted}",
        short=lines,
        evidence=evidence,
        cell=f"{len(unequal)} of {len(judged.pairs)} not repeated",
        names=name,
        example=Example(symptom=Symptom.UNREPEATED, request_id=again.request_id),
        figures=figures,
    )


def _describe_rates(judged: Repeats, baseline: Repeats) -> str:
    return f"repeated: {judged}; the baseline {baseline}"


def _seed_figures(judged: Repeats, baseline: Repeats) -> dict[str, float]:
    """Return the numbers and rates of pairs under one seed."""
    return {
        "seeded_pairs": float(len(judged.pairs)),
        "seeded_pairs_differing": float(len(_unequal(judged.pairs))),
        "rate_repeated_in_company": _rate(judged.concurrent),
        "baseline_rate_repeated_in_company": _rate(baseline.concurrent),
    }


def _independent_pairs(draws: Sequence[Draw]) -> Iterator[tuple[Draw, Draw]]:
    """Yield the pairs of independent draws for one prompt.

    Two draws are independent unless they have the same seed and the same choice index.
    """
    for first, other in combinations(draws, 2):
        same = first.seed is not None and first.seed == other.seed and first.index == other.index
        if first.prompt_key == other.prompt_key and not same:
            yield first, other


def _name_fault(first: Draw, other: Draw) -> str:
    """Return the name of the fault shown by an equal pair of draws.

    COPIES for choices of one request, else STREAM for concurrent requests, else UNSEEDED for requests without a seed, else SAME.
    """
    if first.request_id == other.request_id:
        return COPIES
    if first.turn == other.turn:
        return STREAM
    return UNSEEDED if first.seed is None and other.seed is None else SAME


def _check_independence(captured: Captured, draws: Sequence[Draw], peers: Sequence[Sequence[Draw]]) -> Verdict | None:
    """Return FAIL if independent draws are equal, else None.

    Only pairs count that are too improbable to be equal by chance. A fault that the baseline's pairs show too is left out. Without scores
    no such probability is known: there must then be more repeated draws than the baseline's, by Fisher's exact test. If pairs show several
    faults, the first of SAME, UNSEEDED, COPIES and STREAM gives the name.
    """
    baseline_faults = {_name_fault(*pair) for peer in peers for pair in _equal_pairs(captured, peer)}
    pairs = [pair for pair in _equal_pairs(captured, draws) if _name_fault(*pair) not in baseline_faults]
    if not pairs or (not _is_scored(draws) and not _has_more_copies(captured, draws, peers)):
        return None
    fault_names = [_name_fault(*pair) for pair in pairs]
    name = next(fault_name for fault_name in (SAME, UNSEEDED, COPIES, STREAM) if fault_name in fault_names)
    first, other = next(pair for pair in pairs if _name_fault(*pair) == name)
    chance_logprob = _pair_logprob(first, other)
    by_chance = f"; by chance with probability {math.exp(chance_logprob):.1g}" if chance_logprob < 0 else ""
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(pairs)} of {sum(1 for _ in _independent_pairs(draws))} pairs of draws are equal, none of the baseline's; "
        f"first: {first.request_id} and {other.request_id}",
        short=(f"both         {quote(first.choice.written, 90)}{by_chance}",),
        evidence=[f"{_name_fault(a, b)}: {a.request_id}, choice {a.index}, and {b.request_id}, choice {b.index}" for a, b in pairs],
        cell=number_of(len(pairs), "equal draw"),
        names=name,
        figures={"equal_pairs": float(len(pairs))},
    )


def _is_scored(draws: Sequence[Draw]) -> bool:
    """Return True if any draw has a log-probability under the baseline."""
    return any(draw.logprob < 0 for draw in draws)


def _equal_pairs(captured: Captured, draws: Sequence[Draw]) -> list[tuple[Draw, Draw]]:
    """Return the equal pairs of independent draws that chance does not explain.

    Their probability is at most the share of alpha divided by the number of independent pairs. Without scores all equal pairs are returned.
    """
    pairs = list(_independent_pairs(draws))
    max_logprob = _max_logprob(captured, len(pairs)) if _is_scored(draws) else math.inf
    return [(first, other) for first, other in pairs if _pair_logprob(first, other) <= max_logprob and first.is_equal(other)]


def _max_logprob(captured: Captured, pairs: int) -> float:
    """Return the highest log-probability at which one equal pair of ``pairs`` is a fault (union bound)."""
    return math.log(captured.alpha / max(1, pairs))


def _pair_logprob(first: Draw, other: Draw) -> float:
    """Return an upper bound of the log-probability that two independent draws are equal.

    Equal draws are one choice, so that the lower of both upper bounds holds. It is 0 if neither draw has a score.
    """
    return min(first.logprob, other.logprob)


def _has_more_copies(captured: Captured, draws: Sequence[Draw], peers: Sequence[Sequence[Draw]]) -> bool:
    """Return True if more draws copy another than on the baseline.

    A copy equals a draw that its seed or choice index makes it independent of. Fisher's exact test, at alpha, serves if nothing is scored.
    """
    copies, peer_copies = _count_copies(draws), sum(map(_count_copies, peers))
    return proportions.greater_than_other(copies, len(draws), peer_copies, sum(map(len, peers))) <= captured.alpha


def _count_copies(draws: Sequence[Draw]) -> int:
    """Return the number of draws equal to an earlier one that they are independent of."""
    return len({(other.request_id, other.index) for first, other in _independent_pairs(draws) if first.is_equal(other)})


def _pass_seeds(captured: Captured, draws: Sequence[Draw], peers: Sequence[Sequence[Draw]]) -> Verdict:
    """Return PASS, or INCONCLUSIVE if no fault could have shown.

    That is so without a pair under one seed or without independent pairs, or if, by scores, all of these may be equal by chance.
    """
    seeded, baseline = _repeats(draws), _unite_repeats(peers)
    independent = list(_independent_pairs(draws))
    max_logprob = _max_logprob(captured, len(independent))
    # Independent pairs too improbable to be equal by chance. Pairs without scores have 0, so that none of them is telling.
    telling = sum(_pair_logprob(first, other) <= max_logprob for first, other in independent)
    refusals = sum(map(is_refusal, captured.speculative.answers))
    figures = {**_seed_figures(seeded, baseline), "independent_pairs": float(len(independent)), "telling_pairs": float(telling)}
    scored = _is_scored(draws)
    if not seeded.pairs or not independent or (scored and not telling):
        headline = f"not enough evidence: {len(seeded.pairs)} pairs under one seed, {telling} pairs of draws that cannot be equal by chance"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="longer answers to prompts that leave more open", figures=figures)
    # Draws sent alone differ if the seed is ignored, those sent among others also if these decide the answer: would the test show either?
    shows_ignored_seed = _would_show(captured, seeded.alone, baseline.alone)
    shows_neighbours = _would_show(captured, seeded.concurrent, baseline.concurrent)
    return say(
        captured,
        Outcome.PASS,
        f"{_describe_equal(seeded.pairs)} answers repeated under their seed, {_describe_equal(baseline.pairs)} of the baseline's"
        + (_describe_untestable(baseline) or _describe_too_few(captured, seeded, baseline))
        + f"; {len(independent)} pairs of independent draws checked"
        + (f"; {refusals} requests refused with a 4xx" if refusals else ""),
        evidence=[_describe_rates(seeded, baseline), f"{telling} pairs of draws cannot be equal by chance"],
        rules_out=(f"{telling} pairs of draws with other seeds, none, or of other choices: an equal one" if scored else "draws given again")
        + " would have been caught"
        + ("; so would a seed that every answer ignores" if shows_ignored_seed else "")
        + ("; so would neighbours that decide every answer" if shows_neighbours else ""),
        cell=f"{_describe_equal(seeded.pairs)} repeated",
        figures=figures,
    )


def _describe_untestable(baseline: Repeats) -> str:
    """Return a caveat if the baseline hardly repeats itself; else empty."""
    if not _rate(baseline.alone):
        return "; the baseline repeats no answer alone, so that a seed that is ignored cannot be told"
    if _rate(baseline.concurrent) < _HARDLY:
        return f"; under concurrency the baseline repeats only {_describe_equal(baseline.concurrent)}, so that little can be told there"
    return ""


def _describe_too_few(captured: Captured, judged: Repeats, baseline: Repeats) -> str:
    """Return a caveat if repeats differ and even all of them would be no alarm; else empty."""
    for where, pairs, peers in (("alone", judged.alone, baseline.alone), ("under concurrency", judged.concurrent, baseline.concurrent)):
        if _unequal(pairs) and not _would_show(captured, pairs, peers):
            return f"; {len(pairs)} repeats {where} are too few to tell"
    return ""


def _would_show(captured: Captured, pairs: Sequence[tuple[Draw, Draw]], baseline_pairs: Sequence[tuple[Draw, Draw]]) -> bool:
    """Return True if the test would reject pairs that all differ."""
    return _unequal_p_value(captured, len(pairs), len(pairs), baseline_pairs) <= captured.alpha
