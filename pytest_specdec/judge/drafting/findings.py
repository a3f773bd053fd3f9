"""Findings on drafts: possible faults of a variant's drafts by position, context, part of an answer and load, each with its own test.

A finding is striking if the fault is large, chance aside. Its ``tail`` computes the p-value, and ``least_p`` is the smallest one possible
with the test's totals. A context is the tokens of prompt and answer before a step. Steps of one prompt depend on each other, so that tests
count prompts or answers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pytest_specdec.judge.draft_steps import StepSum
from pytest_specdec.judge.drafting.traffic import IN_FLIGHT
from pytest_specdec.stats.acceptance_change import MARGIN, compare
from pytest_specdec.stats.proportions import greater_than_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_specdec.judge.draft_steps import DraftStep
    from pytest_specdec.judge.drafting.traffic import DraftedAnswer
    from pytest_specdec.model.captured import Captured

_NEARLY_ALL, _FEW = 0.9, 0.25
_CHANCES = 8
"""Steps in which the position before is accepted, needed of a prompt to count."""
_SOME = 0.5
"""Least share of such prompts in which a working position is accepted: an acceptance of 8.3 % in each of eight steps is enough for it."""
_HARDLY = 0.05
"""Largest share of such prompts at which a position is called never accepted."""
_LENGTHS = (64, 96, *(factor * 2**power for power in range(6, 14) for factor in (2, 3)))
"""Lengths of contexts to compare at, in tokens, up to 24,576."""
_LEAST_STEPS = 4
"""Steps on either side of a length, needed of an answer to count."""
_LEAST_PROMPTS = 8
"""Prompts that must have been sent under both loads of a comparison."""
_LONG_TOKENS = 192
"""Tokens of verify steps needed of an answer to compare its quarters."""
_QUARTER = 0.25
"""Of an answer's tokens; and the largest part of the first quarter's acceptance that counts as lost in the last."""
_TO_LOSE = 12
"""Accepted tokens needed in a prompt's first quarter: of fewer, three quarters may be lost by chance."""
_LOST_LAWFULLY = 0.1
"""Largest share of prompts that may lose so much by their text alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFinding:
    """One possible fault of drafting with its figures and its test."""

    name: str
    """The fault in words."""
    subject: str
    """The kind of request, draft position, context or load in question."""
    summary: str
    """Figures for the headline."""
    counts: str
    """Figures for the evidence."""
    cell: str
    """The few words that stand for it in a table."""
    first: str
    """A request with the fault; empty for none."""
    bad: int
    """Answers or prompts with the fault."""
    is_striking: bool
    """Whether the fault is large enough to be named, chance aside."""
    test: str
    """The test's name and units, in words."""
    least_p: float
    """The smallest p-value possible with the margins, the totals that the test takes as given; 0 for a test without any."""
    tail: Callable[[], float]
    """The p-value, computed on demand: Fisher's test may sum over thousands of tables."""
    surest_p: float = 1.0
    """For a kind of request, the p-value if all its answers and no others had the fault; 1 if too many others have it for any alarm."""
    is_symptom: bool = False
    """Whether it follows from other faults, which are then named first."""

    @property
    def p_value(self) -> float:
        """The chance of a fault of this size or larger in a correct server."""
        return self.tail()

    @property
    def headline(self) -> str:
        """The fault with its figures."""
        return f"{self.name}: {self.summary}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.counts}; p = {self.p_value:.2g}"


def is_contrast(bad: int, units: int, other_bad: int, other_units: int) -> bool:
    """Return True if nearly all of a group are bad and few others."""
    return bad >= _NEARLY_ALL * units and other_bad <= _FEW * other_units


def _group_by(key: Callable[[DraftedAnswer], str], answers: Iterable[DraftedAnswer]) -> Mapping[str, Sequence[DraftedAnswer]]:
    """Return the answers by their ``key``, in their order."""
    groups: defaultdict[str, list[DraftedAnswer]] = defaultdict(list)
    for answer in answers:
        groups[key(answer)].append(answer)
    return groups


def compare_by_steps(answers: Sequence[DraftedAnswer]) -> tuple[DraftFinding, ...]:
    """Return one finding on every draft position after the first.

    Such a position is at fault if it is never accepted although the position before it often is: tokens after the first are then drafted,
    or verified, in a wrong state. A low rate is no fault, since rates depend on the drafter and fall with the position. Only plain answers
    count, without a grammar or a penalty that the drafter does not see. Empty if no draft is known to have two tokens.
    """
    plain = [answer for answer in answers if answer.is_plain]
    prompts = _group_by(lambda answer: answer.prompt, plain).values()
    longest = max((step.drafted or 0 for answer in plain for step in answer.steps), default=0)
    return tuple(_test_position(position, _count_accepted(prompts, position)) for position in range(2, longest + 1))


def _count_accepted(prompts: Iterable[Sequence[DraftedAnswer]], position: int) -> Mapping[str, int]:
    """Return the accepted tokens at one draft position, by prompt.

    ``prompts`` has the answers of each prompt, and ``position`` counts from 1. A prompt has the name of its first answer. It is left out
    unless eight of its steps drafted the position and accepted the one before it.
    """
    accepted: dict[str, int] = {}
    for answers in prompts:
        steps = [step for answer in answers for step in answer.steps if (step.drafted or 0) >= position and step.accepted >= position - 1]
        if len(steps) >= _CHANCES:
            accepted[answers[0].name] = sum(step.accepted >= position for step in steps)
    return accepted


def compare_by_counters(parts: Sequence[Captured]) -> tuple[DraftFinding, ...]:
    """Return the findings of :func:`compare_by_steps` by the counters of workloads.

    A draft position is at fault if it is never accepted although the one before it is. For servers that do not report the draft tokens of
    each step, a workload takes the place of a prompt.
    """
    counters = {part.workload.name: part.speculative.counters for part in parts}
    # Counters do not give the drafted tokens at each position, so that drafts must have their full length, less half a token on average.
    by_name = {
        name: count.accepted_per_position
        for name, count in counters.items()
        if count is not None and count.draft_tokens >= (len(count.accepted_per_position) - 0.5) * count.drafts
    }
    longest = max(map(len, by_name.values()), default=0)
    findings: list[DraftFinding] = []
    for index in range(1, longest):  # from the second position on
        # Workloads that accepted the position before often enough, with their accepted tokens at this one.
        accepted = {name: counts[index] for name, counts in by_name.items() if len(counts) > index and counts[index - 1] >= _CHANCES}
        findings.append(_test_position(index + 1, accepted))
    return tuple(findings)


def _test_position(position: int, accepted: Mapping[str, int]) -> DraftFinding:
    """Return the finding on one draft position, counted from 1.

    ``accepted`` has the number of its accepted tokens in each prompt. Callers leave out prompts that accepted the position before fewer
    than eight times: in the others, a correct server accepts this one at least once with probability one half or more. The exact binomial
    test gives the chance of as many prompts without one, at one half.
    """
    prompts, accepting = len(accepted), sum(count > 0 for count in accepted.values())
    before = "first" if position == 2 else f"first {position - 1}"  # noqa: PLR2004 - the second position
    return DraftFinding(
        name=f"draft tokens after the {before} are never accepted",
        subject=f"position {position} of the draft",
        summary=f"position {position} in {accepting} of {prompts} prompts that accepted the one before it {_CHANCES} times or more",
        counts=f"accepted in {accepting} of {prompts} prompts",
        cell=f"position {position} never accepted",
        first=next((request for request, count in accepted.items() if not count), ""),
        bad=prompts - accepting,
        is_striking=accepting <= _HARDLY * prompts,
        test="binomial test over prompts",
        least_p=(1.0 - _SOME) ** prompts,
        tail=partial(greater_than_rate, prompts - accepting, prompts, 1.0 - _SOME),
    )


def compare_contexts(answers: Sequence[DraftedAnswer]) -> list[DraftFinding]:
    """Return findings on the drafts beyond each context length.

    Two faults are tested at each length of _LENGTHS: beyond it nothing is drafted, or no draft token is accepted. The verify steps of one
    answer before and after the length are compared with each other. Only plain answers count, as in :func:`compare_by_steps`.
    """
    plain = [answer for answer in answers if answer.is_plain]
    endings = {"drafting ends beyond": _lack_drafts, "no draft is accepted beyond": _lack_accepted_drafts}
    compared = (_compare_length(f"{ending} {tokens}", tokens, lack, plain) for ending, lack in endings.items() for tokens in _LENGTHS)
    return [finding for finding in compared if finding is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """An answer with its steps on both sides of a context length."""

    name: str
    bad_before: bool
    """Whether the steps up to the length have the fault."""
    bad_after: bool


def _compare_length(
    fault: str, tokens: int, is_bad: Callable[[Sequence[DraftStep]], bool], answers: Sequence[DraftedAnswer]
) -> DraftFinding | None:
    """Return the comparison of answers before and after one context length.

    ``fault`` is in words, ``drafting ends beyond 64`` tokens; ``is_bad`` is True of verify steps with it. McNemar's exact test, one-sided,
    is over the answers with the fault on one side only: in a correct server they are as likely to get better as to get worse. Returns None
    if no answer has four steps on both sides.
    """
    sides: list[_Sides] = []
    for answer in answers:
        before = [step for step in answer.steps if step.context <= tokens]
        after = [step for step in answer.steps if step.context > tokens]
        if min(len(before), len(after)) >= _LEAST_STEPS:
            sides.append(_Sides(name=answer.name, bad_before=is_bad(before), bad_after=is_bad(after)))
    if not sides:
        return None
    bad_before, bad = sum(one.bad_before for one in sides), sum(one.bad_after for one in sides)
    worsened = sum(one.bad_after and not one.bad_before for one in sides)
    changes = sum(one.bad_after is not one.bad_before for one in sides)
    bad_answers = f"{bad} of {len(sides)} answers that grow past them"
    return DraftFinding(
        name=f"{fault} tokens of context",
        subject=f"{fault} tokens of context",
        summary=f"in {bad_answers}, in {bad_before} up to there",
        counts=f"{bad_answers}, {bad_before} of them up to there",
        cell=fault,
        first=next((one.name for one in sides if one.bad_after), ""),
        bad=bad,
        is_striking=is_contrast(bad, len(sides), bad_before, len(sides)),
        test="McNemar's exact test over answers",
        least_p=0.5**changes,
        tail=partial(greater_than_rate, worsened, changes, 0.5),
    )


def _lack_drafts(steps: Sequence[DraftStep]) -> bool:
    """Return True if every step is known to have had no draft."""
    return all(step.drafted == 0 for step in steps)


def _lack_accepted_drafts(steps: Sequence[DraftStep]) -> bool:
    """Return True if something is drafted and nothing accepted.

    Drafts of unknown length count as drafts.
    """
    return any(step.drafted != 0 for step in steps) and not any(step.accepted for step in steps)


def compare_quarters(answers: Sequence[DraftedAnswer]) -> list[DraftFinding]:
    """Return the finding on drafts that get worse in the course of an answer.

    The first and the last quarter of long answers are compared, in accepted draft tokens per verify step. A prompt has lost its acceptance
    if a quarter or less of it is left. The exact binomial test gives the chance of so many such prompts, if the text alone makes one in ten
    lose as much. Prompts are its units, since the steps of one answer depend on each other. Only plain answers count, as in
    :func:`compare_by_steps`, and prompts with twelve accepted tokens or more in the first quarter. Empty without such a prompt.
    """
    long = [answer for answer in answers if answer.is_plain and sum(step.accepted + 1 for step in answer.steps) >= _LONG_TOKENS]
    prompts = {group[0].name: _sum_quarters(group) for group in _group_by(lambda answer: answer.prompt, long).values()}
    # Each step emits one token beside the accepted ones: these are tokens less steps.
    quarters = {name: sums for name, sums in prompts.items() if sums.first.tokens - sums.first.steps >= _TO_LOSE and sums.last.steps}
    if not quarters:
        return []
    lost = [name for name, sums in quarters.items() if _accepted_per_step(sums.last) <= _QUARTER * _accepted_per_step(sums.first)]
    zero = StepSum(tokens=0, steps=0)
    first = _accepted_per_step(sum((sums.first for sums in quarters.values()), zero))
    last = _accepted_per_step(sum((sums.last for sums in quarters.values()), zero))
    counts = f"in {len(lost)} of {len(quarters)} prompts the last quarter of an answer has {_QUARTER:.0%} of the first's acceptance or less"
    return [
        DraftFinding(
            name="drafts get worse in the course of an answer",
            subject="the last quarter of answers",
            summary=f"{last:.2f} accepted per step in the last quarter, {first:.2f} in the first; {counts}",
            counts=counts,
            cell="worse late in answers",
            first=next(iter(lost), ""),
            bad=len(lost),
            is_striking=2 * len(lost) >= len(quarters),
            test="binomial test over prompts",
            least_p=_LOST_LAWFULLY ** len(quarters),
            tail=partial(greater_than_rate, len(lost), len(quarters), _LOST_LAWFULLY),
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quarters:
    """The sums over the first and over the last quarters of answers."""

    first: StepSum
    last: StepSum


def _accepted_per_step(total: StepSum) -> float:
    """Return the accepted draft tokens per step: the length less the one token that each step adds."""
    return total.length - 1.0


def _sum_quarters(answers: Iterable[DraftedAnswer]) -> _Quarters:
    """Return the sums over the first and over the last quarters of answers.

    The tokens that an answer's whole verify steps emitted are cut into quarters; a step belongs to the quarter in which it begins. Callers
    ensure that every answer has such steps.
    """
    quarters = [StepSum(tokens=0, steps=0)] * 4
    for answer in answers:
        begin, tokens = answer.steps[0].context, sum(step.accepted + 1 for step in answer.steps)
        for step in answer.steps:
            number = int((step.context - begin) / tokens / _QUARTER)
            quarters[number] += StepSum(tokens=step.accepted + 1, steps=1)
    return _Quarters(first=quarters[0], last=quarters[-1])


def compare_loads(answers: Sequence[DraftedAnswer]) -> list[DraftFinding]:
    """Return findings on accepted lengths under load, compared with those alone.

    An accepted length is tokens per verify step. Answers to equal requests are compared: the text, and with it the drafter's task, is
    nearly the same. There is a comparison for each limit of IN_FLIGHT, of the answers with more requests in flight against those with one.
    The last comparison is the reverse, for a drafter that is worse alone. Only plain answers with known steps count, and comparisons with
    too few prompts are left out.
    """
    plain = [answer for answer in answers if answer.total is not None and answer.is_plain]
    alone = _group_by(lambda answer: answer.request, [answer for answer in plain if answer.in_flight == 1])
    findings: list[DraftFinding | None] = []
    busy: list[DraftedAnswer] = []
    for most in reversed(IN_FLIGHT):
        busy_by_higher_limit, busy = busy, [answer for answer in plain if answer.in_flight > most and answer.request in alone]
        if busy != busy_by_higher_limit:  # else it would be the same comparison again
            load = f"more than {most} request{'s' * (most > 1)}"
            findings.append(_compare_load(load, _group_by(lambda answer: answer.request, busy), "alone", alone))
    # By the lowest limit, one request, all answers beside any other are busy.
    findings.append(_compare_load("no other request", alone, "under concurrency", _group_by(lambda answer: answer.request, busy)))
    return [finding for finding in findings if finding is not None]


def _compare_load(
    load: str, answers: Mapping[str, Sequence[DraftedAnswer]], other_load: str, others: Mapping[str, Sequence[DraftedAnswer]]
) -> DraftFinding | None:
    """Return the comparison of accepted lengths under two loads.

    ``answers`` were sent under ``load`` and ``others`` under ``other_load``, both by request digest. The test is Student's paired t,
    one-sided, of a loss larger than MARGIN, 3 %. Its units are prompts, since steps of one prompt depend on each other. Returns None if
    fewer than eight prompts were sent under both loads.
    """
    prompts: defaultdict[str, list[str]] = defaultdict(list)
    for request in sorted(answers.keys() & others.keys()):
        prompts[answers[request][0].prompt].append(request)
    if len(prompts) < _LEAST_PROMPTS:
        return None
    lengths = [_mean_length(answers, requests) for requests in prompts.values()]
    other_lengths = [_mean_length(others, requests) for requests in prompts.values()]
    worst = min(range(len(lengths)), key=lambda index: lengths[index] - other_lengths[index])
    change = compare(other_lengths, lengths)  # the other load takes the place of the stored run
    figures = f"{change.now:.2f} tokens per step, {change.stored:.2f} {other_load}"
    return DraftFinding(
        name=f"the drafter falls behind with {load} in flight",
        subject=f"{load} in flight",
        summary=f"{figures} ({change.relative:+.0%} over {change.prompts} prompts)",
        counts=f"{figures}, {change.relative:+.1%} over {change.prompts} prompts",
        cell=f"{change.relative:+.0%} with {load}",
        # The first answer to the first request of the prompt with the largest loss.
        first=answers[list(prompts.values())[worst][0]][0].name,
        bad=sum(length < other for length, other in zip(lengths, other_lengths, strict=True)),
        is_striking=change.relative < -MARGIN,
        test=f"Student's paired t over prompts, beyond {MARGIN:.0%}",
        least_p=0.0,  # differences of lengths may have any p-value
        tail=lambda: change.p_lower,
        is_symptom=True,  # a lower length may follow from other faults
    )


def _mean_length(answers: Mapping[str, Sequence[DraftedAnswer]], requests: Sequence[str]) -> float:
    """Return the mean tokens per step over all answers to some requests, each answer counting once."""
    totals = [answer.total for request in requests for answer in answers[request]]
    return sum(total.length for total in totals if total is not None) / len(totals)
