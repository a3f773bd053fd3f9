"""Drafting by kind of request: a variant drafts for every kind, as long drafts for each, and some are accepted at each position.

Each kind, such as chat requests, is compared with all other requests. It is at fault if nearly all of its answers and few others have a
flaw, beyond chance by Fisher's exact test. Positions, ranks, contexts, quarters of answers and loads have findings of their own. A finding
is striking if the fault is large; ``least_p`` is the smallest p-value that its test can give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.length import acceptance_length
from pytest_specdec.judge.drafting import findings, profile
from pytest_specdec.judge.drafting.findings import DraftFinding, is_contrast
from pytest_specdec.judge.drafting.ranks import compare_ranks, describe_uncompared
from pytest_specdec.judge.drafting.traffic import drafted_answers
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.promise import DraftedTraffic
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.proportions import greater_than_other

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.judge.drafting.profile import DraftTally
    from pytest_specdec.judge.drafting.traffic import DraftedAnswer
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.pair import DraftKind
    from pytest_specdec.model.verdict import Verdict

_LEAST_TOKENS = 12
"""Tokens needed of an answer to count: fewer may hold nothing worth a draft."""
_CHANCES = 4
"""Steps with a first draft token accepted and a second one drafted, needed of an answer to show whether the second is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flaw:
    """One possible flaw of the drafts for a kind of request."""

    name: str
    """The flaw in words, to be followed by ``for`` and the kind of request."""
    attribute: str
    """The flaw as said of answers: ``without a draft``."""
    is_bad: Callable[[DraftedAnswer], bool | None]
    """True if an answer has the flaw; None if its record does not show it."""
    by_task: bool = False
    """Whether it depends on the task: only tasks with answers both of the kind and of others are then compared."""


def judge_drafting(run: CapturedRun) -> Verdict:
    """Return the verdict on drafting for every kind of request.

    The control passes, since it drafts nothing. Refused requests and missing drafts have verdicts of their own.
    """
    captured = run.whole  # the answers to all workloads of the run
    if captured.is_control:
        return say(captured, Outcome.PASS, "the baseline drafts nothing")
    # Drafts that are all accepted are no fault here, so that no rejection is needed.
    return refusal(captured) or speculating(captured, needs_rejections=False) or _weigh_findings(run)


def _weigh_findings(run: CapturedRun) -> Verdict:
    """Return FAIL for findings both striking and significant, else PASS.

    NOT_DECIDED instead of PASS without enough answers. Kinds of request, draft positions and ranks are tested for every drafter. Contexts,
    answers and loads are tested only for one that drafts at every step, since prompt lookup drafts by the text. The finding with the
    smallest p-value names the fault; symptoms, which may follow from other findings, come after all others.
    """
    drafter = run.whole.pair.variant.draft.kind
    counted = [answer for answer in drafted_answers(run) if answer.tokens >= _LEAST_TOKENS]
    comparisons = _compare_kinds(drafter, counted)
    others = list(findings.compare_by_steps(counted) or findings.compare_by_counters(run.parts))
    others += compare_ranks(run.parts)
    if drafter.every_step:
        others += [*findings.compare_contexts(counted), *findings.compare_quarters(counted), *findings.compare_loads(counted)]
    level = _alarm_level([*comparisons, *others], run.whole.alpha)
    striking = [finding for finding in (*comparisons, *others) if finding.is_striking and finding.p_value <= level]
    striking.sort(key=lambda finding: (finding.is_symptom, finding.p_value))
    return _fail(run, striking, level) if striking else _pass(run, comparisons, others, counted)


def _alarm_level(results: Sequence[DraftFinding], alpha: float) -> float:
    """Return the p-value at which a single finding raises an alarm.

    All findings together then raise a false alarm with probability ``alpha`` at most. A finding whose ``least_p`` is above the level cannot
    raise one, and takes no share of alpha (Tarone 1990, Biometrics 46, 515): the level is ``alpha / k`` for the smallest k for which at
    most k findings can have a p-value of ``alpha / k`` or less.
    """
    least_ps = [finding.least_p for finding in results]
    counts = range(1, len(least_ps) + 1)
    return alpha / next((count for count in counts if sum(p <= alpha / count for p in least_ps) <= count), 1)


def _compare_kinds(drafter: DraftKind, answers: Sequence[DraftedAnswer]) -> list[DraftFinding]:
    """Return the comparison of every kind with all other requests, flaw by flaw.

    If the text decides what is drafted, as for prompt lookup, only the answers to the test's own workload are compared: it varies the kind
    of request and nothing else.
    """
    eligible = answers if drafter.every_step else [answer for answer in answers if answer.in_test_workload]
    return [finding for flaw in _flaws(drafter, answers) for finding in _compare_by_flaw(flaw, eligible)]


def _flaws(drafter: DraftKind, answers: Sequence[DraftedAnswer]) -> list[_Flaw]:
    """Return the flaws to test for a drafter.

    Shorter drafts are a flaw only if it drafts at every step: otherwise the text decides on their length. An answer's drafts are shorter if
    their median is below the longest draft in ``answers``; a grammar may lawfully shorten them. Each flaw's ``is_bad`` returns None for an
    answer that does not show it.
    """
    longest = max((drafted for answer in answers for drafted in answer.per_step), default=0)

    def is_shorter(answer: DraftedAnswer) -> bool | None:
        return None if answer.grammar or not answer.per_step else median(answer.per_step) < longest

    # A drafter that looks the text up has many steps without a draft, so that it is off only for answers without any draft.
    is_off = _is_mostly_off if drafter.every_step else _has_no_draft
    only_first, no_second = "only the first draft token is accepted", "with no second draft token accepted"
    # How much is accepted depends on the task: with ``by_task`` only answers to the same tasks are compared.
    flaws = [
        _Flaw(name="drafting is off", attribute="without a draft", is_bad=is_off),
        _Flaw(name="no draft is accepted", attribute="without an accepted draft", is_bad=_lacks_accepted_drafts, by_task=True),
        _Flaw(name=only_first, attribute=no_second, is_bad=_ends_at_first, by_task=True),
    ]
    fewer = _Flaw(name="fewer tokens are drafted", attribute="with shorter drafts", is_bad=is_shorter)
    return [*flaws, fewer] if drafter.every_step else flaws


def _has_no_draft(answer: DraftedAnswer) -> bool | None:
    """Return True if not a single token was drafted for an answer; None if unknown."""
    return None if answer.drafted is None else not answer.drafted


def _is_mostly_off(answer: DraftedAnswer) -> bool | None:
    """Return True if most steps of an answer went without a draft.

    Some drafts are allowed: a variant that does not draft under load drafts again at the end of a workload, when fewer requests are in
    flight. Returns None if nothing is known of its drafts.
    """
    counts = [step.drafted for step in answer.steps if step.drafted is not None]
    # A grammar may lawfully cut drafts short, so that its steps without a draft show nothing.
    if answer.grammar or not counts:
        return _has_no_draft(answer)
    return 2 * counts.count(0) > len(counts)


def _lacks_accepted_drafts(answer: DraftedAnswer) -> bool | None:
    """Return True if no draft token of an answer was accepted.

    Returns None if that is unknown, if nothing was drafted, or if a correct target may have rejected every draft token.
    """
    if answer.accepted is None or answer.drafted is False:
        return None
    # A field that the drafter does not see, such as a logit bias, may fail every draft. In the test's own workload such fields are mild.
    if not answer.foreseeable and not answer.in_test_workload:
        return None
    return not answer.accepted


def _ends_at_first(answer: DraftedAnswer) -> bool | None:
    """Return True if no step accepted a second draft token.

    Only steps count that drafted two tokens or more and accepted the first. Returns None for fewer than four such steps, or if fields of
    the request bend the target's distribution away from the drafter's.
    """
    accepted_counts = [step.accepted for step in answer.steps if step.accepted and (step.drafted or 0) > 1]
    return max(accepted_counts) == 1 if answer.is_plain and len(accepted_counts) >= _CHANCES else None


def _compare_by_flaw(flaw: _Flaw, answers: Sequence[DraftedAnswer]) -> list[DraftFinding]:
    """Return the comparison of every kind by one flaw.

    Each kind is compared with all other requests. Kinds that exactly the same answers have give the same test, so that only one of them
    is compared: of prompts of more than 256 and of more than 512 tokens the latter, which says more.
    """
    records = [(answer, is_bad) for answer in answers if (is_bad := flaw.is_bad(answer)) is not None]
    kinds_by_answers: dict[tuple[str, ...], str] = {}
    for kind in sorted({kind for answer, _ in records for kind in answer.kinds}, key=_larger_limit_first):
        names = tuple(answer.name for answer, _ in records if kind in answer.kinds)
        kinds_by_answers.setdefault(names, kind)  # the first kind with these answers stays
    findings = (_compare_kind(flaw, kind, records) for kind in kinds_by_answers.values())
    return [finding for finding in findings if finding is not None]


def _larger_limit_first(kind: str) -> tuple[str, int]:
    """Return a sort key for kinds with a larger limit first.

    The limit is the number in a kind's name, as in ``prompts of more than 512 tokens``.
    """
    number = next((int(word) for word in kind.split() if word.isdigit()), 0)
    return kind.replace(str(number), "#"), -number


def _compare_kind(flaw: _Flaw, kind: str, records: Sequence[tuple[DraftedAnswer, bool]]) -> DraftFinding | None:
    """Return the comparison of one kind with all other requests.

    ``records`` has each answer with True if it has the flaw. For a flaw that depends on the task, only tasks with answers of the kind and
    of others count. Returns None if either side has no answers.
    """
    of_kind = [record for record in records if kind in record[0].kinds]
    of_others = [record for record in records if kind not in record[0].kinds]
    if flaw.by_task:
        tasks, other_tasks = ({name for answer, _ in side for name in answer.tasks} for side in (of_kind, of_others))
        shared_tasks = tasks & other_tasks
        of_kind, of_others = ([record for record in side if record[0].tasks & shared_tasks] for side in (of_kind, of_others))
    answers, other_answers = len(of_kind), len(of_others)
    if not answers or not other_answers:
        return None
    bad, other_bad = (sum(is_bad for _, is_bad in side) for side in (of_kind, of_others))
    most_bad = min(bad + other_bad, answers)  # of the kind, if the flaw were on as few others as these totals allow
    counts = f"{bad} of {answers} answers {flaw.attribute}, {other_bad} of {other_answers} others"
    # The p-value if all answers of the kind and no others were bad; 1 if too many others are bad for the kind to stand out.
    would_contrast = is_contrast(answers, answers, other_bad, other_answers)
    surest_p = greater_than_other(answers, answers, 0, other_answers) if would_contrast else 1.0
    return DraftFinding(
        name=f"{flaw.name} for {kind}",
        subject=kind,
        summary=counts,
        counts=counts,
        cell=flaw.name,
        first=next((answer.name for answer, is_bad in of_kind if is_bad), ""),
        bad=bad,
        is_striking=is_contrast(bad, answers, other_bad, other_answers),
        test="Fisher's exact test over answers",
        least_p=greater_than_other(most_bad, answers, bad + other_bad - most_bad, other_answers),
        tail=partial(greater_than_other, bad, answers, other_bad, other_answers),
        surest_p=surest_p,
    )


def _fail(run: CapturedRun, striking: Sequence[DraftFinding], level: float) -> Verdict:
    """Return FAIL with the name of the first finding, and all as evidence."""
    first, tallies = striking[0], profile.profile(run)
    return say(
        run.whole,
        Outcome.FAIL,
        first.headline,
        short=(
            *([f"first        {first.first}"] if first.first else []),
            f"p-value      {first.p_value:.2g} (alarm at {level:.2g}), {first.test}",
        ),
        evidence=(*map(str, striking), *profile.lines(tallies), *describe_uncompared(run.parts)),
        cell=first.cell,
        names=first.name,
        promise=_promise(tallies),
        figures={**_drafting_figures(run), "p_value": first.p_value, "bad_answers": float(first.bad), **profile.figures(tallies)},
    )


def _pass(
    run: CapturedRun, comparisons: Sequence[DraftFinding], others: Sequence[DraftFinding], counted: Sequence[DraftedAnswer]
) -> Verdict:
    """Return PASS with the compared kinds of request, or NOT_DECIDED.

    A kind counts as compared if its test can show a fault: if ``surest_p``, the p-value in case all answers of the kind and no others are
    bad, raises an alarm. NOT_DECIDED if no kind counts. ``comparisons`` are the findings on kinds, ``others`` all further ones, and
    ``counted`` the answers.
    """
    tallies = profile.profile(run)
    # The alarm's level in that case; other findings stay as they are.
    in_that_case = [replace(finding, least_p=finding.surest_p) for finding in comparisons]
    level = _alarm_level([*in_that_case, *others], run.whole.alpha)
    kinds = {finding.subject for finding in comparisons if finding.surest_p <= level}
    unsure = sorted({finding.subject for finding in comparisons} - kinds)
    figures = {**_drafting_figures(run), **profile.figures(tallies)}
    if not kinds:
        headline = f"no kind of traffic has enough answers of which it is known what was drafted ({len(counted)} answers)"
        settle = "a deeper depth, or more suites in one run"
        return say(run.whole, Outcome.NOT_DECIDED, headline, settle=settle, promise=_promise(tallies), figures=figures)
    return say(
        run.whole,
        Outcome.PASS,
        f"drafts are made and accepted in {len(kinds)} kinds of traffic alike, over {len(counted)} answers of {len(run.parts)} workloads",
        evidence=(
            *profile.lines(tallies),
            *map(str, (*comparisons, *others)),
            *describe_uncompared(run.parts),
            *((f"too few answers: {', '.join(unsure)}",) if unsure else ()),
        ),
        rules_out=f"{len(counted)} answers; drafting that is off for one of {len(kinds)} kinds would have been caught",
        cell=f"{len(kinds)} kinds compared",
        promise=_promise(tallies, kinds=len(kinds)),
        figures={**figures, "kinds": float(len(kinds)), "answers": float(len(counted))},
    )


def _promise(tallies: Mapping[str, DraftTally], *, kinds: int = 0) -> DraftedTraffic:
    whole = tallies.get(profile.ALL)
    return DraftedTraffic(kinds=kinds, steps=whole.steps if whole else 0, accepted_by_position=whole.shares if whole else ())


def _drafting_figures(run: CapturedRun) -> dict[str, float]:
    """Return the accepted length, if known, and no compared kinds: a pass sets their number."""
    length = acceptance_length(run.whole.speculative, run.whole.workload)
    return {"kinds": 0.0} if length is None else {"kinds": 0.0, "acceptance_length": length.tokens}
