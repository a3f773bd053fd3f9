"""Drafting by kind of traffic: a variant drafts for every kind of request, as long drafts, and some of them are accepted at each position.

Each kind is held against all other traffic of the same variant. A finding needs nearly all answers of the kind and few of the others, and
Fisher's exact test over answers below this judgement's share, divided over the comparisons that could reach it. Beside the kinds stand
positions of the draft that are never accepted, lengths of the context beyond which the drafts of an answer end, and requests of which less
is accepted in company than alone, each by its own test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.judge import draft_positions, draft_profile, growing_context, in_company
from pytest_specdec.judge.acceptance import acceptance_length
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.traffic import DraftedAnswer, answers
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.promise import DraftedTraffic
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from pytest_specdec.judge.draft_positions import DeadPosition
    from pytest_specdec.judge.growing_context import EndedDrafts
    from pytest_specdec.judge.in_company import FallingBehind
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.verdict import Verdict

    Finding: TypeAlias = "Comparison | DeadPosition | EndedDrafts | FallingBehind"

__all__ = ["judged"]

_LEAST_TOKENS = 12
"""Of an answer that is counted: fewer may hold nothing worth a draft."""
_NEARLY_ALL, _FEW = 0.9, 0.25
_EVERY_STEP = frozenset({DraftKind.MODEL, DraftKind.HEAD})
"""Drafters that draft at every step, whatever the text."""


class Flaw(StrEnum):
    """What is wrong with the drafts of a kind of traffic; the kind follows."""

    OFF = "drafting is off for"
    DEAD = "no draft is accepted for"
    FEWER = "fewer tokens are drafted for"
    FIRST = "only the first draft token is accepted for"


_OTHERS = {
    Flaw.OFF: "without a draft",
    Flaw.DEAD: "without an accepted draft",
    Flaw.FEWER: "with shorter drafts",
    Flaw.FIRST: "with no second draft token accepted",
}
_CHANCES = 4
"""Steps with a first draft token accepted and a second one drafted, that an answer needs to show whether the second is accepted."""
_Bad: TypeAlias = Callable[[DraftedAnswer], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One question asked of one kind: the answers of the kind and the others, and how many of each are bad."""

    flaw: Flaw
    kind: str
    bad: int
    answers: int
    other_bad: int
    other_answers: int
    first: str

    @property
    def p_value(self) -> float:
        """Fisher's, one-sided: of so many bad answers among those of the kind."""
        return proportions.greater_than_other(self.bad, self.answers, self.other_bad, self.other_answers)

    @property
    def least_p(self) -> float:
        """The smallest p-value that so many bad answers could have had."""
        total = self.bad + self.other_bad
        inside = min(total, self.answers)
        return proportions.greater_than_other(inside, self.answers, total - inside, self.other_answers)

    @property
    def is_striking(self) -> bool:
        """Whether nearly all of the kind are bad and few others."""
        return self.bad >= _NEARLY_ALL * self.answers and self.other_bad <= _FEW * self.other_answers

    @property
    def name(self) -> str:
        """The fault in words."""
        return f"{self.flaw} {self.kind}"

    @property
    def headline(self) -> str:
        """The fault with its figures."""
        return f"{self.name}: {self.bad} of {self.answers} answers {_OTHERS[self.flaw]}, {self.other_bad} of {self.other_answers} others"

    @property
    def cell(self) -> str:
        """Few words for a table."""
        return self.flaw.removesuffix(" for")

    @property
    def test(self) -> str:
        """The name of the test."""
        return "Fisher's exact test over answers"

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.bad} of {self.answers} answers {_OTHERS[self.flaw]}, "
            f"{self.other_bad} of {self.other_answers} others; p = {self.p_value:.2g}"
        )


def judged(run: CapturedRun) -> Verdict:
    """Return whether every kind of traffic is drafted for."""
    if run.whole.is_control:
        return say(run.whole, Outcome.PASS, "the baseline drafts nothing")
    return refusal(run.whole) or speculating(run.whole, rejecting=False) or _compared(run)


def _compared(run: CapturedRun) -> Verdict:
    counted = [answer for answer in answers(run) if answer.tokens >= _LEAST_TOKENS]
    comparisons = [each for flaw, bad in _questions(run, counted) for each in _of_flaw(flaw, bad, _eligible(run, counted))]
    findings = [*comparisons, *_beside_kinds(run, counted)]
    level = _level(findings, run.whole.alpha)
    found = sorted((each for each in findings if each.is_striking and each.p_value <= level), key=_by_what_it_says)
    return _failed(run, found, level) if found else _passed(run, comparisons, findings, counted)


def _by_what_it_says(finding: Finding) -> tuple[bool, float]:
    """Return a sort key: that less is accepted in company says least, and follows from much else."""
    return isinstance(finding, in_company.FallingBehind), finding.p_value


def _beside_kinds(run: CapturedRun, counted: Sequence[DraftedAnswer]) -> list[Finding]:
    """Return what is asked of all traffic: of each position by windows, else by counters.

    Of growing contexts and of company only where the text has no say.
    """
    positions = draft_positions.by_answers(counted) or draft_positions.by_counters(run.parts)
    if run.whole.pair.variant.draft.kind not in _EVERY_STEP:
        return [*positions]
    return [*positions, *growing_context.comparisons(counted), *in_company.comparisons(counted)]


def _level(comparisons: Sequence[Finding], alpha: float) -> float:
    """Return the level of each comparison under which all of them together raise an alarm with a probability of at most ``alpha``.

    Tarone (1990), Biometrics 46, 515: Bonferroni over those comparisons whose margins allow a p-value as small as the level.
    """
    least = [each.least_p for each in comparisons]
    counts = range(1, len(least) + 1)
    return alpha / next((count for count in counts if sum(p <= alpha / count for p in least) <= count), 1)


def _questions(run: CapturedRun, counted: Sequence[DraftedAnswer]) -> list[tuple[Flaw, _Bad]]:
    """Return what makes an answer bad; None where its record does not tell."""
    longest = max((most for answer in counted for most in answer.per_step), default=0)

    def is_shorter(answer: DraftedAnswer) -> bool | None:
        return None if answer.grammar or not answer.per_step else median(answer.per_step) < longest

    def is_dead(answer: DraftedAnswer) -> bool | None:
        is_known = answer.accepted is not None and answer.drafted is not False and (answer.own or answer.foreseeable)
        return not answer.accepted if is_known else None

    asked: list[tuple[Flaw, _Bad]] = [(Flaw.DEAD, is_dead), (Flaw.FIRST, _ends_at_first)]
    if run.whole.pair.variant.draft.kind in _EVERY_STEP:
        return [(Flaw.OFF, _is_mostly_off), *asked, (Flaw.FEWER, is_shorter)]
    return [(Flaw.OFF, _is_off), *asked]


def _is_off(answer: DraftedAnswer) -> bool | None:
    return None if answer.drafted is None else not answer.drafted


def _is_mostly_off(answer: DraftedAnswer) -> bool | None:
    """Whether most steps went without a draft: the last answers of a workload have fewer beside them than it says."""
    counts = [step.drafted for step in answer.steps if step.drafted is not None]
    return _is_off(answer) if answer.grammar or not counts else 2 * counts.count(0) > len(counts)


def _ends_at_first(answer: DraftedAnswer) -> bool | None:
    """Whether no second draft token was accepted in steps that accepted the first; None for too few of them."""
    chances = [step.accepted for step in answer.steps if step.accepted and (step.drafted or 0) > 1]
    is_known = answer.foreseeable and not answer.grammar and len(chances) >= _CHANCES
    return max(chances) == 1 if is_known else None


def _eligible(run: CapturedRun, counted: Sequence[DraftedAnswer]) -> Sequence[DraftedAnswer]:
    """Return the answers that may be compared: where the text decides what is drafted, those to the workload that varies nothing else."""
    depends_on_text = run.whole.pair.variant.draft.kind not in _EVERY_STEP
    return [answer for answer in counted if answer.own] if depends_on_text else counted


def _of_flaw(flaw: Flaw, bad: _Bad, counted: Sequence[DraftedAnswer]) -> list[Comparison]:
    known = [(answer, is_bad) for answer in counted if (is_bad := bad(answer)) is not None]
    members: dict[tuple[str, ...], str] = {}
    for kind in sorted({kind for answer, _ in known for kind in answer.kinds}, key=_by_number):
        members.setdefault(tuple(answer.name for answer, _ in known if kind in answer.kinds), kind)
    return [each for kind in members.values() if (each := _comparison(flaw, kind, known)) is not None]


def _by_number(kind: str) -> tuple[str, int]:
    """Return a sort key that puts larger limits first: where two limits select the same answers, the verdict names the tighter one."""
    number = next((int(word) for word in kind.split() if word.isdigit()), 0)
    return kind.replace(str(number), "#"), -number


def _comparison(flaw: Flaw, kind: str, known: Sequence[tuple[DraftedAnswer, bool]]) -> Comparison | None:
    """Return one kind against the others; whether drafts are accepted depends on the prompt, so there prompts of both sides count alone."""
    sides = [[pair for pair in known if (kind in pair[0].kinds) is inside] for inside in (True, False)]
    if flaw in {Flaw.DEAD, Flaw.FIRST}:
        prompts = [{name for answer, _ in side for name in answer.prompts} for side in sides]
        sides = [[pair for pair in side if pair[0].prompts & prompts[0] & prompts[1]] for side in sides]
    inside, outside = sides
    if not inside or not outside:
        return None
    return Comparison(
        flaw=flaw,
        kind=kind,
        bad=sum(is_bad for _, is_bad in inside),
        answers=len(inside),
        other_bad=sum(is_bad for _, is_bad in outside),
        other_answers=len(outside),
        first=next((answer.name for answer, is_bad in inside if is_bad), ""),
    )


def _failed(run: CapturedRun, found: Sequence[Finding], level: float) -> Verdict:
    first, tallies = found[0], draft_profile.profile(run)
    return say(
        run.whole,
        Outcome.FAIL,
        first.headline,
        short=(f"first        {first.first}", f"p-value      {first.p_value:.2g} (alarm at {level:.2g}), {first.test}"),
        evidence=(*map(str, found), *draft_profile.lines(tallies)),
        cell=first.cell,
        names=first.name,
        promise=DraftedTraffic(),
        figures={**_figures(run), "p_value": first.p_value, "bad_answers": float(first.bad), **draft_profile.figures(tallies)},
    )


def _passed(run: CapturedRun, comparisons: Sequence[Comparison], findings: Sequence[Finding], counted: Sequence[DraftedAnswer]) -> Verdict:
    tallies = draft_profile.profile(run)
    level = run.whole.alpha / max(1, len(comparisons))
    binding = {each.kind for each in comparisons if _could_alarm(each, level)}
    others = sorted({each.kind for each in comparisons} - binding)
    figures = {**_figures(run), **draft_profile.figures(tallies)}
    if not binding:
        headline = f"no kind of traffic has enough answers of which it is known what was drafted ({len(counted)} answers)"
        settle = "a deeper depth, or more suites in one run"
        return say(run.whole, Outcome.NOT_DECIDED, headline, settle=settle, promise=DraftedTraffic(), figures=figures)
    return say(
        run.whole,
        Outcome.PASS,
        f"drafts are made and accepted in {len(binding)} kinds of traffic alike, over {len(counted)} answers of {len(run.parts)} workloads",
        evidence=(*draft_profile.lines(tallies), *map(str, findings), *((f"too few answers: {', '.join(others)}",) if others else ())),
        rules_out=f"{len(counted)} answers; drafting that is off for one of {len(binding)} kinds would have been caught",
        cell=f"{len(binding)} kinds compared",
        promise=DraftedTraffic(kinds=len(binding)),
        figures={**figures, "kinds": float(len(binding)), "answers": float(len(counted))},
    )


def _could_alarm(each: Comparison, level: float) -> bool:
    """Whether the others are good, and the answers enough for an alarm if all of the kind were bad and none of the others."""
    return (
        each.other_bad <= _FEW * each.other_answers
        and proportions.greater_than_other(each.answers, each.answers, 0, each.other_answers) <= level
    )


def _figures(run: CapturedRun) -> dict[str, float]:
    length = acceptance_length(run.whole.speculative)
    return {"kinds": 0.0} if length is None else {"kinds": 0.0, "acceptance_length": length.tokens}
