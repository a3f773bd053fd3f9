"""Invariants: rules between the parts of an answer that any correct server keeps, held on every answer of a run.

Rules of ends are those of :mod:`pytest_specdec.judge.ending`, here with what the baseline's answers of the whole run show. A rule that the
baseline or the control breaks says nothing about the variant, and is left out. A rule that chance may break counts answers against theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.judge import answer_rules, counter_rules
from pytest_specdec.judge.ending import ended
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE, DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.answer_rules import AnswerRule, ComparedAnswer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_BY_CHANCE = 1e-6
"""P-value below which a difference in numbers is a rule broken; outside every budget, and small beside all of them."""
_SHOWN = 50
_Broken: TypeAlias = dict[str, str]
"""By the name of an answer, what it breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """One rule and the answers that break it."""

    rule: AnswerRule
    broken: _Broken
    peers: _Broken
    """Of the baseline and the control."""
    answers: int
    peer_answers: int

    @property
    def is_finding(self) -> bool:
        """Whether the variant breaks it and the baseline does not, or far more often where chance may break it."""
        if not self.rule.by_chance:
            return bool(self.broken) and not self.peers
        p_value = proportions.greater_than_other(len(self.broken), self.answers, len(self.peers), self.peer_answers)
        return p_value <= _BY_CHANCE


def judge(run: CapturedRun) -> Verdict:
    """Return whether every answer of the variant keeps the rules that the baseline's answers keep."""
    results = [_result(run.whole, rule) for rule in answer_rules.RULES]
    return (
        refusal(run.whole)
        or _broken(run, results)
        or _miscounted(run)
        or ended(run.whole)
        or speculating(run.whole, rejecting=False)
        or _passed(run, results)
    )


def _result(whole: Captured, rule: AnswerRule) -> RuleResult:
    control = whole.baseline_boots[1:]
    mine = list(_compared(whole, whole.speculative, whole.baseline_boots))
    theirs = [each for arm in control for each in _compared(whole, arm, (whole.baseline,))]
    theirs += _compared(whole, whole.baseline, control)
    return RuleResult(rule=rule, broken=_by_name(rule, mine), peers=_by_name(rule, theirs), answers=len(mine), peer_answers=len(theirs))


def _by_name(rule: AnswerRule, compared: Sequence[ComparedAnswer]) -> _Broken:
    """Return what each answer breaks, one to a request: its passes are no independent trials."""
    found = ((each, rule.breaks(each)) for each in compared)
    return {f"{each.arm} {each.answer.request_id}": what for each, what in found if what}


def _compared(whole: Captured, transcript: Transcript, others: Sequence[Transcript]) -> Iterator[ComparedAnswer]:
    draft, requests = whole.pair.variant.draft, whole.workload.by_id
    by_key: dict[tuple[str, int], list[Answer]] = {}
    for other in others:
        for answer in filter(_is_ok, other.answers):
            by_key.setdefault(answer.key, []).append(answer)
    for answer in filter(_is_ok, transcript.answers):
        if answer.request_id in requests:
            yield answer_rules.ComparedAnswer(
                arm=transcript.arm,
                request=requests[answer.request_id],
                answer=answer,
                others=tuple(by_key.get(answer.key, ())),
                vocabulary=whole.vocabulary,
                draft_tokens=0 if draft.kind is DraftKind.UNKNOWN else draft.tokens,
            )


def _is_ok(answer: Answer) -> bool:
    return answer.ok


def _broken(run: CapturedRun, results: Sequence[RuleResult]) -> Verdict | None:
    """Return a failure by the first rule that is broken: the rules before others explain these."""
    found = [result for result in results if result.is_finding]
    if not found:
        return None
    first, count = found[0], len(found[0].broken)
    lines = [f"{name.partition(' ')[2]}: {what}" for name, what in first.broken.items()]
    more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    others = ", ".join(f"{each.rule.name} in {len(each.broken)}" for each in found[1:])
    return say(
        run.whole,
        Outcome.FAIL,
        f"{first.rule.name}: {count} of {first.answers} answers, {len(first.peers)} of {first.peer_answers} of the baseline's"
        + (f"; also {others}" if others else ""),
        short=(f"first        {lines[0]}",),
        evidence=(*lines[:_SHOWN], *more),
        cell=f"{count} answers",
        names=first.rule.name,
        figures={"answers": float(first.answers), "broken_answers": float(count)},
    )


def _miscounted(run: CapturedRun) -> Verdict | None:
    """Return a failure by the server's speculation counters over a workload."""
    if run.whole.is_control:
        return None
    found = [(part, *broken) for part in run.parts if (broken := counter_rules.broken(part)) is not None]
    if not found:
        return None
    part, name, what = found[0]
    lines = [f"{each.workload.name}: {text}" for each, _, text in found]
    return say(
        run.whole,
        Outcome.FAIL,
        f"{name}: over {len(found)} of {len(run.parts)} workloads, first {part.workload.name}: {what}",
        short=(f"first        {lines[0]}",),
        evidence=lines,
        cell=f"{len(found)} workloads",
        names=name,
        figures={"workloads": float(len(run.parts)), "broken_workloads": float(len(found))},
    )


def _passed(run: CapturedRun, results: Sequence[RuleResult]) -> Verdict:
    answers = sum(answer.ok for answer in run.whole.speculative.answers)
    if not answers:
        return say(run.whole, Outcome.INVALID, "the run has no answers to judge")
    left_out = [result for result in results if result.peers and not result.rule.by_chance]
    kept = len(results) - len(left_out)
    lines = [f"left out, since the {BASELINE} breaks it: {result.rule.name}, {_first(result.peers)}" for result in left_out]
    lines += [f"not answered by both arms: {name}" for name in run.missing]
    return say(
        run.whole,
        Outcome.PASS,
        f"{answers:,} answers of {len(run.parts)} workloads keep {kept} of {len(results)} rules, and those of how an answer ends",
        evidence=lines,
        rules_out=f"{answers:,} answers; a rule broken in more than {proportions.ruled_out(answers):.2%} would have been caught (99%)",
        cell=f"{answers:,} answers",
        figures={"answers": float(answers), "workloads": float(len(run.parts)), "rules_left_out": float(len(left_out))},
    )


def _first(broken: _Broken) -> str:
    name, what = next(iter(broken.items()))
    return f"{name}: {what}"
