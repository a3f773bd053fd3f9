"""What changed between two stored runs: the baseline's answers, findings, judgements, speed, capabilities, environment.

The baseline is the model without speculation, a variant has it. Speculation "follows" if the new run's variants, against its own baseline,
have no fault that the old run had not. A finding is a fault or a missed gate, a limit of the config on a figure. The baseline's answers
change by kinds, such as numerics. The config tolerates kinds, and accepts changes of any sort by name until a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_specdec.judge import compared_speed
from pytest_specdec.judge.baseline_change import ChangeKind
from pytest_specdec.judge.compared_speed import ComparedSpeed, UpgradeFigure
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.promise import AcceptedLength, Speedup
from pytest_specdec.model.upgrade_gates import Tolerance, UpgradeGates
from pytest_specdec.model.workload import Family
from pytest_specdec.report import baseline_lines
from pytest_specdec.report.capability_change import compare_capabilities, describe_healed
from pytest_specdec.report.corners import list_corners
from pytest_specdec.report.environment import Change, describe_order, list_changes, list_environment_changes
from pytest_specdec.report.escape import printable
from pytest_specdec.report.upgrade import (
    Answers,
    CornerRow,
    Pace,
    Speculation,
    Upgrade,
    UpgradeHeadline,
    UpgradeWord,
    choose_headline,
)
from pytest_specdec.report.upgrade_review import Review, list_names, list_unknown, name, name_slow, review
from pytest_specdec.report.upgrade_sections import list_sections
from pytest_specdec.report.variant_findings import (
    ComparedFindings,
    compare_findings,
    count,
    describe_undecided,
    describe_unlooked,
    list_judged,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.judge.compared_speed import Slowdown
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.capability_change import CapabilityChange
    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.variant_findings import VariantFinding


_LOSSES = frozenset({UpgradeHeadline.OFFERS_LESS, UpgradeHeadline.SLOWER, UpgradeHeadline.NOISIER})
"""The headlines that leave unsaid whether speculation follows."""
_ALL_BUT_SPEED = frozenset({UpgradeHeadline.SAFE, UpgradeHeadline.CHANGED})
"""The headlines that answer every question but that of speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two runs, and the headline that they come to."""

    baseline: BaselineChange | None
    """How the two baselines relate; None where their answers were not compared."""
    not_compared: str
    """Why they were not; empty where they were."""
    undecided: str
    """Why the new run decided too little; empty where it decided all that the old one did."""
    findings: ComparedFindings
    judgements: tuple[Change, ...]
    """Tests with another outcome, and tests that only one of the runs has."""
    measures: tuple[Change, ...]
    """Speedups and accepted lengths of both runs, also where they are the same."""
    unlike: str
    """Why speeds cannot be compared, such as two machines; empty where they can."""
    speed: ComparedSpeed | None
    """None where no timed answers were compared."""
    untimed: tuple[str, ...]
    """Variants whose speed the old run measured, and of which nothing gates a ratio."""
    capabilities: tuple[CapabilityChange, ...]
    healed: tuple[str, ...]
    """A line for each waived failure of the old run that the new one passes."""
    environment: tuple[Change, ...]
    order: str
    """Why the old run looks like the later one; empty where it does not."""
    models: str
    """Both models, if the runs name two: ``a -> b``; else empty."""
    corners: tuple[CornerRow, ...]
    gates: UpgradeGates
    review: Review

    @property
    def names(self) -> tuple[str, ...]:
        """The changes of the upgrade, by the names under which a config accepts them."""
        return list_names(self.baseline, self.speed, self.capabilities)

    @property
    def answers(self) -> Answers:
        """The state of the baseline's answers, by the least tolerated change.

        CHANGED if a change is not tolerated, else UNKNOWN if such a change cannot be ruled out, else TOLERATED if one is worth a warning.
        """
        tolerances = {self._tolerance(kind) for kind in self.baseline.kinds} if self.baseline else set()
        if Tolerance.FAIL in tolerances:
            return Answers.CHANGED
        if self.baseline is None or self._unknown_answers:
            return Answers.UNKNOWN
        return Answers.TOLERATED if Tolerance.WARN in tolerances else Answers.SAME

    @property
    def _unknown_answers(self) -> str:
        """The reason for not knowing what became of the baseline's answers; empty where all is known.

        After a broad shift, as of quantised weights, it is the kinds of change that this may explain or hide, unless they are tolerated.
        """
        if self.baseline is None:
            return self.not_compared
        if self.baseline.why:
            return self.baseline.why
        possible = [kind for kind in self.baseline.possible_kinds if self._tolerance(kind) is Tolerance.FAIL]
        if not possible:
            return ""
        kinds, names = "; ".join(kind.value for kind in possible), ", ".join(map(name, possible))
        return f"{kinds}, which the broad shift may explain or hide; if the upgrade means it, accept {names} too"

    def _tolerance(self, kind: ChangeKind) -> Tolerance:
        """Return the config's tolerance for one kind of change.

        A change that the config accepts by name is allowed. For any other the config states one tolerance, by default a warning for changed
        numerics and a failure for the rest.
        """
        if self.review.accepts(name(kind)):
            return Tolerance.ALLOW
        return self.gates.baseline_change or (Tolerance.WARN if kind is ChangeKind.NUMERICS else Tolerance.FAIL)

    @property
    def speculation(self) -> Speculation:
        """The state of speculation, by its faults; missed gates are none.

        BROKE with a new fault; else UNLOOKED with a fault at tests that the old run did not judge; else OPEN if that is in doubt.
        """
        if self.findings.new_faults:
            return Speculation.BROKE
        if self.findings.faults_not_judged_before:
            return Speculation.UNLOOKED
        return Speculation.OPEN if self._speculation_doubt else Speculation.FOLLOWS

    @property
    def _speculation_doubt(self) -> str:
        """The reason for not knowing whether speculation has a new fault; empty where that is known.

        Reasons are: the new run decided too little; it has findings where the old run failed by another name, which may be the old fault;
        it accepts more draft tokens than stored, by a better drafter or because it accepts wrong ones.
        """
        findings = self.findings.renamed
        renamed = f"{count(findings, 'finding')} where the old run failed by another name" if findings else ""
        not_decided_now = [finding for finding in self.findings.open if not finding.is_missed_gate]
        left_open = f"{count(not_decided_now, 'finding')} of the old run, not decided now" if not_decided_now else ""
        too_little = self.undecided or left_open  # the former is the reason for the latter
        return "; ".join(filter(None, (too_little, renamed, *map(str, self.findings.more_accepted))))

    @property
    def _slowdowns(self) -> tuple[str, ...]:
        """What became slower, in words: parts, such as the drafter, then missed gates.

        A speed gate that only the new run misses is left out if its variant has a slower part already, or if the speed is surely no lower.
        """
        parts = [slow.part.value + (f" of {slow.arm}" if slow.arm != BASELINE else "") for slow in self.slower]
        arms = {slow.arm for slow in self.slower}
        findings = [str(finding) for finding in self.findings.missed_speeds if finding.variant not in arms and not self._is_held(finding)]
        return tuple(dict.fromkeys((*parts, *findings)))

    def _is_held(self, finding: VariantFinding) -> bool:
        """Return True if the speed of a missed gate is surely no lower than before."""
        return self.speed is not None and all(self.speed.is_held(place.variant, place.workload) for place in finding.places)

    @property
    def _pace(self) -> Pace:
        """The state of speed: slower if any part is, else doubtful or held."""
        if self._slowdowns:
            return Pace.SLOWER
        return Pace.DOUBTFUL if self.speed is not None and self.speed.doubtful else Pace.HELD

    @property
    def _speed_doubt(self) -> str:
        """The first figure that looks slower, with its doubt; empty unless speed is in doubt."""
        if self._pace is not Pace.DOUBTFUL or self.speed is None:
            return ""
        figure = self.speed.doubtful[0]
        return printable(f"{compared_speed.describe(figure)}, but {figure.unfit}")

    @property
    def losses(self) -> tuple[CapabilityChange, ...]:
        """Features that the new servers offer no longer, accepted losses left out."""
        return tuple(change for change in self.capabilities if change.is_loss and not self.review.accepts(change.name))

    @property
    def slower(self) -> tuple[Slowdown, ...]:
        """The parts that became slower, accepted slowdowns left out."""
        return tuple(slow for slow in (self.speed.slower if self.speed else ()) if not self.review.accepts(name_slow(slow.part)))

    @property
    def case(self) -> UpgradeHeadline:
        """The kind of headline, by the states of answers, speculation and speed."""
        return choose_headline(
            self.answers, self.speculation, offers_less=bool(self.losses), pace=self._pace, is_noisier=bool(self._noisier)
        )

    @property
    def word(self) -> UpgradeWord:
        """The result of the upgrade in one word."""
        return self.case.word(self.answers)

    @property
    def is_worse(self) -> bool:
        """True if the upgrade is worse than the config tolerates."""
        return self.word is UpgradeWord.WORSE

    @property
    def headline(self) -> str:
        """The answer in one line: what changed in the baseline itself, and what went wrong with speculation."""
        return "; ".join(part for part in (self._lead, *self._others) if part)

    @property
    def _lead(self) -> str:
        """The first part of the headline, chosen by :attr:`case`."""
        new_findings = count(self.findings.new_faults, "new finding")  # faults at tests that the old run passed
        not_judged_before = describe_unlooked(self.findings.faults_not_judged_before)  # faults at tests that it did not judge
        summary, summary_clause = self.findings.summary, self.findings.summary.lower()  # in capitals only where it leads
        doubts = "; ".join(filter(None, (self._speculation_doubt, self._speed_doubt)))
        changed = f"ANSWERS CHANGED ({self._kinds})"
        return {
            UpgradeHeadline.SAFE: f"SAFE TO UPGRADE, as far as both runs were judged: {self._baselines}; {summary_clause}",
            UpgradeHeadline.CHANGED: f"ANSWERS CHANGED, speculation follows: {self._kinds}; {summary_clause}",
            UpgradeHeadline.CHANGED_OPEN: f"{changed}; whether speculation follows is not decided: {self._speculation_doubt}",
            UpgradeHeadline.CHANGED_WRONG: f"{changed}; WRONG IN THE NEW RUN: {not_judged_before}",
            UpgradeHeadline.BROKE: f"SPECULATION BROKE IN THE NEW RUN: {new_findings}; {self._baselines}",
            UpgradeHeadline.BOTH: f"BOTH CHANGED: the baseline's answers ({self._kinds}), and speculation has {new_findings}",
            UpgradeHeadline.WRONG: f"WRONG IN THE NEW RUN: {not_judged_before}; {self._baselines}",
            UpgradeHeadline.OFFERS_LESS: f"THE NEW RUN OFFERS LESS: {self._offers_less}; {self._baselines}",
            UpgradeHeadline.SLOWER: f"SLOWER: {', '.join(self._slowdowns)}; {self._baselines}",
            UpgradeHeadline.NOISIER: f"NOISIER: {self._noisier}; {self._baselines}",
            UpgradeHeadline.CANNOT_SAY: f"CANNOT SAY: {doubts}; {self._baselines}",
            UpgradeHeadline.WORSE: f"WORSE: {new_findings}; {self._baselines}",  # BROKE, with baselines that were not compared
            UpgradeHeadline.NO_NEW_FINDING: "; ".join(filter(None, (summary, self._speculation_doubt, self._baselines))),
        }[self.case]

    @property
    def _others(self) -> tuple[str, ...]:
        """The further parts of the headline, as clauses; empty texts among them.

        A speed in doubt is left out if the headline is CANNOT SAY, of which it is a part. A headline on a loss, such as SLOWER, does not
        say whether speculation follows: a doubt of that is added. Two models explain other answers, and are named beside them. Variants
        without a compared speed are named only if all else is answered and speeds are gated.
        """
        speed = self.speed or ComparedSpeed()
        late = printable(", ".join(f"{figure.arm} ({figure.workload}) {figure.ratio:.3g}x" for figure in speed.late))
        doubtful_speed = self._speed_doubt if self.case is not UpgradeHeadline.CANNOT_SAY else ""
        leaves_doubt_unsaid = self.case in _LOSSES and bool(self._speculation_doubt)
        names_untimed = self.case in _ALL_BUT_SPEED and not speed.not_gated
        return (
            *self._further_losses,
            *self._missed_speeds,
            f"looks slower: {doubtful_speed}" if doubtful_speed else "",
            f"first token later, and not gated: {late}" if late else "",
            f"not decided: {self._speculation_doubt}" if leaves_doubt_unsaid else "",
            f"the runs name two models: {self.models}" if self.models and self.answers is not Answers.SAME else "",
            self._unsettled_speed,
            f"speed of {', '.join(self.untimed)} is not compared" if self.untimed and names_untimed else "",
        )

    @property
    def _further_losses(self) -> tuple[str, ...]:
        """The slowdowns, lost features and noise that are not the headline's case, as clauses; empty texts among them."""
        slow = ", ".join(self._slowdowns)
        clauses = {
            UpgradeHeadline.SLOWER: f"slower: {slow}" if slow else "",
            UpgradeHeadline.OFFERS_LESS: f"offers less: {self._offers_less}" if self.losses else "",
            UpgradeHeadline.NOISIER: f"noisier: {self._noisier}" if self._noisier else "",
        }
        return tuple(clause for case, clause in clauses.items() if case is not self.case)

    @property
    def _unsettled_speed(self) -> str:
        """A clause on an undecided or ungated speed; empty if a part is surely slower."""
        if self._slowdowns or self.speed is None:
            return ""
        if self.speed.undecided:
            return "whether it is slower is not decided"
        if self._speed_doubt:
            return ""  # another clause says what looks slower
        return printable(f"speeds are not gated: {self.speed.not_gated}") if self.speed.not_gated else ""

    @property
    def _missed_speeds(self) -> tuple[str, ...]:
        """Missed gates of the new run, without slowdowns of the upgrade.

        They are clauses on speeds no lower than before, and on gates that the old run did not judge; empty texts among them.
        """
        held = ", ".join(str(finding) for finding in self.findings.missed_speeds if self._is_held(finding))
        not_judged = ", ".join(map(str, self.findings.gates_not_judged_before))
        return (
            f"missed, and no slower than in the old run: {held}" if held else "",
            f"missed, and not judged in the old run: {not_judged}" if not_judged else "",
        )

    @property
    def _kinds(self) -> str:
        return "; ".join(kind.value for kind in self.baseline.kinds) if self.baseline else ""

    @property
    def _baselines(self) -> str:
        """The relation of the baselines' answers, as a clause for headlines that do not call them changed.

        They are unknown, changed, or the same within the largest plausible shift of their distributions. No change fails the upgrade here:
        each is tolerated with a warning, or accepted. One with a warning calls all of them tolerated.
        """
        why = self._unknown_answers
        if self.baseline is None or (why and not self.baseline.kinds):
            return f"whether the baseline's answers changed is unknown: {why}"
        if self.baseline.kinds:
            is_warned = Tolerance.WARN in map(self._tolerance, self.baseline.kinds)
            changed = f"the baseline's answers changed ({self._kinds}), {'which is tolerated' if is_warned else 'as accepted'}"
            return f"{changed}; whether they changed otherwise is unknown: {why}" if why else changed
        dated_prompts = baseline_lines.describe_dated(self.baseline)
        same = f"the baselines' answers are the same, their distributions typically within {baseline_lines.shift_bound(self.baseline)}"
        return f"{same}; {dated_prompts}" if dated_prompts else same

    @property
    def _noisier(self) -> str:
        return ", ".join(map(str, self.findings.noisier))

    @property
    def _offers_less(self) -> str:
        return ", ".join(dict.fromkeys(str(change) for change in self.losses))


def compare(
    old: Run,
    new: Run,
    baseline: BaselineChange | None = None,
    *,
    not_compared: str = "",
    speed: ComparedSpeed | None = None,
    gates: UpgradeGates = UpgradeGates(),  # noqa: B008 - frozen
    day: date = date.min,
    old_flags: Mapping[str, str] = MappingProxyType({}),
    new_flags: Mapping[str, str] = MappingProxyType({}),
) -> Comparison:
    """Return the differences between the stored runs ``old`` and ``new``.

    ``baseline`` and ``speed`` are the comparisons of their baselines' answers and of their speeds, made before from transcripts and scores.
    If ``baseline`` is None, ``not_compared`` is the reason. Speeds of variants with wrong tokens in either run are left out. ``gates`` are
    the config's tolerances; an accepted change is valid if it has not expired on ``day``. The flags are those of each run's servers, by
    name; both are empty if one of the configs is missing.
    """
    capabilities = compare_capabilities(old, new)
    counted = None if speed is None else speed.without((*old.not_counted, *new.not_counted))
    names = list_names(baseline, counted, capabilities)
    return Comparison(
        baseline=baseline,
        not_compared=not_compared,
        undecided=describe_undecided(new, list_judged(old)),  # why the new run decided too little
        findings=compare_findings(old, new),
        judgements=tuple(list_changes(_outcomes(old), _outcomes(new))),
        measures=tuple(_figure_changes(old, new)),
        unlike=_describe_other_machine(old.environment, new.environment),  # against comparing speeds
        speed=counted,
        untimed=tuple(_list_untimed(old, new, counted)),
        capabilities=capabilities,
        healed=tuple(describe_healed(old, new)),  # waived failures that now pass
        environment=tuple(list_environment_changes(old, new, old_flags, new_flags)),
        order=describe_order(old, new),  # why the old run looks like the later one
        models="" if old.plan.model == new.plan.model else f"{old.plan.model} -> {new.plan.model}",
        corners=list_corners(old, new, baseline, counted),
        gates=gates,
        review=review(gates.accepted, names, day, list_unknown(baseline, counted)),  # the last are not called unused
    )


def _list_untimed(old: Run, new: Run, speed: ComparedSpeed | None) -> Iterator[str]:
    """Yield the variants judged on speed before, but without a gated ratio now.

    The ratio is that of decode speed, new over old. Variants with wrong tokens in either run are left out: their speed does not count.
    """
    gated_arms = (
        {figure.arm for figure in speed.ratios if figure.at_least is not None and figure.figure is UpgradeFigure.DECODE} if speed else set()
    )
    measured_before = {j.pair for j in old.judgements if j.judged and j.family is Family.SPEED}
    yield from sorted(measured_before - gated_arms - {*old.not_counted, *new.not_counted})


def upgrade(comparison: Comparison, earlier: str) -> Upgrade:
    """Return the comparison as reports show it; ``earlier`` is the old run's path."""
    return Upgrade(
        word=comparison.word,
        earlier=earlier,
        headline=comparison.headline,
        case=comparison.case,
        corners=comparison.corners,
        changes=comparison.names,
        sections=tuple(section for section in list_sections(comparison) if section.lines),
    )


def _outcomes(run: Run) -> dict[str, str]:
    return {f"{judgement.nodeid} ({judgement.workload})": _outcome(judgement) for judgement in run.judgements}


def _outcome(judgement: JudgementResult) -> str:
    return judgement.verdict.outcome.value if judgement.verdict else f"no verdict, {judgement.result.value}"


def _figure_changes(old: Run, new: Run) -> Iterator[Change]:
    """Yield the speedups and accepted lengths of both runs, changed or not.

    Left out are those that only one run has, or that do not count in a run, since their variant has wrong tokens there.
    """
    before, after = _figures(old), _figures(new)
    yield from (Change(what=what, old=before[what], new=after[what]) for what in before if what in after)


def _figures(run: Run) -> dict[str, str]:
    verdicts = (judgement.verdict for judgement in run.judgements if judgement.verdict and judgement.pair not in run.not_counted)
    return {f"{verdict.pair}, {verdict.workload}": figure for verdict in verdicts if (figure := _figure(verdict))}


def _figure(verdict: Verdict) -> str:
    """Return a verdict's accepted length or speedup in words; empty without either."""
    promise = verdict.promise
    if isinstance(promise, AcceptedLength):
        return f"{promise.tokens_per_step:.2f} tokens per step"
    if not isinstance(promise, Speedup):
        return ""
    limits = promise.limits
    return f"{promise.ratio:.2f}x" + (f" [{limits.low:.2f}, {limits.high:.2f}]" if limits else "")


def _describe_other_machine(old: Environment | None, new: Environment | None) -> str:
    """Return the reason against comparing speeds; empty if both are of one machine."""
    if old is None or new is None:
        return "of an unknown machine"
    return "" if old.machine == new.machine else "of two machines, not comparable"
