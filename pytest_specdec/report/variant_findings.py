"""The findings of a run by variant, to be compared with those of another run, and what a run left undecided.

A finding is one cause of failed tests of a variant. Its places are the variant, family, workload and test of each failure; the telling ones
show what is wrong, without those of speed beside wrong tokens. A waived failure is one that the config expects. A gate is a limit on a
figure, as of speed. A missed gate, or more acceptance than stored, is no fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.parameter_effects import ParameterEffect
from pytest_specdec.model.promise import AcceptedLength, Speedup
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Finding, Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report.run import PytestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import JudgementResult, Run

__all__ = [
    "ComparedFindings",
    "Place",
    "VariantFinding",
    "compare_findings",
    "count",
    "describe_undecided",
    "describe_unlooked",
    "list_judged",
    "number",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something is judged."""

    variant: str
    family: Family
    workload: str
    test: str
    """Its id without the path, which depends on where pytest was started; empty for all tests of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFinding:
    """A finding of one variant; the same one may be another variant's too."""

    variant: str
    name: str
    places: frozenset[Place] = field(default=frozenset(), compare=False)
    """Where it was seen."""
    is_missed_gate: bool = field(default=False, compare=False)
    """True if every failure misses a gate on speedup, accepted length or noise, and none is a dead server or a missing draft."""
    is_too_noisy: bool = field(default=False, compare=False)
    """True if a failure is that the verify kernel is noisier than its gate allows."""
    accepts_more: bool = field(default=False, compare=False)
    """True if every failure is that more is accepted than in the stored run: by a better drafter, or by lenient checks."""

    before: str = field(default="", compare=False)
    """What the old run came to at its places, where that decided nothing: ``suspicious``; empty where it did not look."""

    @property
    def is_fault(self) -> bool:
        """True if something is wrong by itself, and no figure of speed or acceptance."""
        return not self.is_missed_gate and not self.accepts_more

    @property
    def is_of_speed(self) -> bool:
        """True if speed alone saw it."""
        return {place.family for place in self.places} == {Family.SPEED}

    @property
    def telling_places(self) -> frozenset[Place]:
        """The places that tell what is wrong.

        Those of speed count only if no other family saw the finding: beside wrong tokens, speed means nothing.
        """
        return frozenset(place for place in self.places if self.is_of_speed or place.family is not Family.SPEED)

    def __str__(self) -> str:
        """Return the line that people read."""
        return f"{self.variant}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFindings:
    """The findings of two runs, by what became of them."""

    found: tuple[VariantFinding, ...]
    """Findings that only the new run has, at a test at least that the old run judged and passed."""
    spread: tuple[VariantFinding, ...]
    """Findings of both, at the tests alone that the old run judged and passed."""
    renamed: tuple[VariantFinding, ...]
    """Findings that only the new run has, at tests that the old run failed by another name. Whether the cause is the same is not known."""
    unjudged: tuple[VariantFinding, ...]
    """Findings of the new run, where the old one judged nothing, with what it came to there."""
    gone: tuple[VariantFinding, ...]
    """Findings that only the old run has, at tests that the new one judged; it failed none of them."""
    kept: tuple[VariantFinding, ...]
    """Findings of both, and missed speeds of both, which are named by their figures."""
    open: tuple[VariantFinding, ...]
    """Findings that only the old run has, at tests that the new one did not judge."""
    waived: tuple[VariantFinding, ...]
    """Findings that the new run has at waived tests only."""

    @property
    def new_faults(self) -> tuple[VariantFinding, ...]:
        """Findings at tests that the old run passed, without missed gates and more acceptance."""
        return tuple(finding for finding in (*self.found, *self.spread) if finding.is_fault)

    @property
    def faults_not_judged_before(self) -> tuple[VariantFinding, ...]:
        """Findings at tests that the old run did not judge, without missed gates and more acceptance."""
        return tuple(finding for finding in self.unjudged if finding.is_fault)

    @property
    def more_accepted(self) -> tuple[VariantFinding, ...]:
        """Findings of more acceptance than stored, where the old run had none."""
        return tuple(finding for finding in (*self.found, *self.spread, *self.unjudged) if finding.accepts_more)

    @property
    def missed_speeds(self) -> tuple[VariantFinding, ...]:
        """Missed gates on speedup or accepted length, at tests that the old run passed."""
        return tuple(finding for finding in (*self.found, *self.spread) if finding.is_missed_gate and not finding.is_too_noisy)

    @property
    def noisier(self) -> tuple[VariantFinding, ...]:
        """Missed gates on noise at tests that the old run passed."""
        return tuple(finding for finding in (*self.found, *self.spread) if finding.is_missed_gate and finding.is_too_noisy)

    @property
    def gates_not_judged_before(self) -> tuple[VariantFinding, ...]:
        """Missed gates of speed and noise that the old run did not judge."""
        return tuple(finding for finding in self.unjudged if finding.is_missed_gate)

    @property
    def summary(self) -> str:
        """The findings in short, as a clause for headlines without a new fault.

        It has the numbers of those gone, as before, not decided now or waived. If none is gone, new ones of speed or noise, which are no
        faults, are mentioned; more acceptance counts as one of speed.
        """
        states = {"as before": self.kept, "not decided now": self.open, "waived": self.waived}
        rest = ", ".join(f"{number(findings)} {state}" for state, findings in states.items() if findings)
        if self.gone:
            return f"BETTER: {count(self.gone, 'finding')} gone" + (f", {rest}" if rest else "")
        gates = (*self.missed_speeds, *self.noisier, *self.gates_not_judged_before, *self.more_accepted)
        if gates:
            kinds = " and ".join(sorted({"noise" if finding.is_too_noisy else "speed" for finding in gates}))
            return f"NO NEW FINDING but of {kinds}" + (f": {rest}" if rest else "")
        return f"NO NEW FINDING: {rest}" if rest else "NO FINDING in either run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OldRun:
    """The old run, as the findings of the new run are compared with it."""

    findings: tuple[VariantFinding, ...]
    """With the failures that it waived."""
    judged: frozenset[Place]

    def list_passed(self, finding: VariantFinding) -> frozenset[Place]:
        """Return the telling places of a finding of the new run, passed in the old one.

        If it is a fault, places at which the old run only missed a gate, or accepted more, count as passed: there it showed no fault.
        """
        failures = [earlier for earlier in self.findings if earlier.is_fault or not finding.is_fault]
        return (finding.telling_places & self.judged) - list_places(failures)

    def has_missed_gates_alone(self, finding: VariantFinding) -> bool:
        """Return True if the old run failed nothing but gates at a finding's places."""
        return not finding.places & list_places([earlier for earlier in self.findings if not earlier.is_missed_gate])


def compare_findings(old: Run, new: Run) -> ComparedFindings:
    """Return the findings of two runs, by what became of them.

    Findings of one variant with one name are the same finding. Failures that the old run waived count as its findings, but can be neither
    gone nor open. Those that the new run waives are waived, unless the new run has the finding at another test.
    """
    before = _OldRun(findings=list_findings(old, waived=True), judged=list_judged(old))
    new_findings, new_or_waived, judged_now = list_findings(new), list_findings(new, waived=True), list_judged(new)
    # Of both runs: spread to places that the old run passed, or kept.
    passed_before_by_finding = {finding: before.list_passed(finding) for finding in new_findings if finding in before.findings}
    # Of the new run only: unjudged, or else found where the old run passed, or else renamed, since the old run failed there too.
    only_new = [finding for finding in new_findings if finding not in before.findings]
    judged_before = [finding for finding in only_new if is_judged(finding, before.judged)]
    failed_before = [finding for finding in judged_before if not before.list_passed(finding)]
    # A missed gate is named by its figures: where the old run missed one too, the other name is no other cause, and it is kept.
    missed_again = [finding for finding in failed_before if finding.is_missed_gate and before.has_missed_gates_alone(finding)]
    # Of the old run only: open where the new run judged nothing, or else gone if the new run failed none of its places.
    only_old = [finding for finding in list_findings(old) if finding not in new_or_waived]
    judged_again = [finding for finding in only_old if is_judged(finding, judged_now)]
    failed_now = list_places(new_or_waived)
    return ComparedFindings(
        found=tuple(finding for finding in judged_before if finding not in failed_before),
        spread=tuple(replace(finding, places=places) for finding, places in passed_before_by_finding.items() if places),
        renamed=tuple(finding for finding in failed_before if finding not in missed_again),
        unjudged=tuple(replace(finding, before=_describe_before(finding, old)) for finding in only_new if finding not in judged_before),
        gone=tuple(finding for finding in judged_again if not finding.places & failed_now),
        kept=(*(finding for finding, places in passed_before_by_finding.items() if not places), *missed_again),
        open=tuple(finding for finding in only_old if finding not in judged_again),
        waived=tuple(finding for finding in dict.fromkeys(new_or_waived) if finding not in new_findings),
    )


def _describe_before(finding: VariantFinding, old: Run) -> str:
    """Return the outcomes of ``old`` at the finding's telling places, sorted; empty without one."""
    verdicts = (j.verdict for j in old.judgements if _place(j) in finding.telling_places)
    return ", ".join(sorted({verdict.outcome.value for verdict in verdicts if verdict is not None}))


def describe_unlooked(findings: Sequence[VariantFinding]) -> str:
    """Return the number of findings at tests that the old run did not judge, in words.

    They are counted by the outcome that such tests had in the old run, one without a decision, such as ``suspicious``. Findings of which
    the old run had no such tests have an empty outcome.
    """
    by_outcome: dict[str, list[VariantFinding]] = {}
    for finding in findings:
        by_outcome.setdefault(finding.before, []).append(finding)
    parts = []
    for outcome, with_outcome in by_outcome.items():
        where = f"where the old run was {outcome}" if outcome else "that the old run did not look for"
        parts.append(f"{count(with_outcome, 'finding')} {where}")
    return ", ".join(parts)


def count(findings: Sequence[VariantFinding], what: str) -> str:
    """Return the number of findings with the noun ``what``: ``2 new findings``."""
    return f"{number(findings)} {what}{'s' * (number(findings) != 1)}"


def number(findings: Sequence[VariantFinding]) -> int:
    """Return the number of findings; one that several variants have counts once."""
    return len({finding.name for finding in findings})


def list_findings(run: Run, *, waived: bool = False) -> tuple[VariantFinding, ...]:
    """Return the findings of a run, one per variant and cause.

    With ``waived``, failures that a waiver expects are added, one finding per failed test; without a verdict they have no name and are left
    out.
    """
    results = [j for j in run.judgements if j.result is PytestOutcome.WAIVED] if waived else []
    waived_findings = (_finding(j.pair, j.verdict.names or j.verdict.headline, (j,)) for j in results if j.verdict is not None)
    causes = (_finding(pair, cause.name, cause.failures) for pair, of_pair in run.causes.items() for cause in of_pair)
    return (*causes, *waived_findings)


def _finding(variant: str, name: str, failures: Sequence[JudgementResult]) -> VariantFinding:
    """Return the finding of one variant made of ``failures``, which have one cause.

    It is a missed gate, or more acceptance, if all failures are; any other failure makes it a fault. Among missed gates one on noise is
    enough to count it as one on noise.
    """
    return VariantFinding(
        variant=variant,
        name=name,
        places=frozenset(map(_place, failures)),
        is_missed_gate=all(map(_misses_gate, failures)),
        is_too_noisy=any(failure.misses_noise_gate for failure in failures),
        accepts_more=all(map(_accepts_more, failures)),
    )


def list_judged(run: Run) -> frozenset[Place]:
    """Return the judged places, workloads refused only in part included."""
    return frozenset(_place(j) for j in run.judgements if j.judged or _is_refused_in_part(j.verdict))


def list_places(findings: Sequence[VariantFinding]) -> frozenset[Place]:
    """Return where any of the findings was seen."""
    return frozenset(place for finding in findings for place in finding.places)


def is_judged(finding: VariantFinding, judged: frozenset[Place]) -> bool:
    """Return True if one of the finding's telling places is among those ``judged``."""
    return bool(finding.telling_places & judged)


def describe_undecided(new: Run, before: frozenset[Place]) -> str:
    """Return the reason for too few decisions in ``new``; empty if enough.

    It is the first of these: the run is incomplete; it judged nothing; tests failed without a fault of the engine (``new.undecided``); it
    has suspicious verdicts; it lost a variant, family or workload of ``before``, the places judged in the earlier run. A test may pass
    without a decision, as depth and config allow: nothing is lost by that.
    """
    if new.status is None or new.status.state is not State.COMPLETE or new.status.error:
        return "the new run is incomplete"
    if not new.judged:
        return "nothing of the new run could be judged"
    if new.undecided:
        return f"{len(new.undecided)} judgements of the new run were not made or not decided"
    if new.suspicious:
        return "the new run has suspicious verdicts"
    lost = ", ".join(_describe_lost(new, before))
    return f"the new run did not judge {lost}" if lost else ""


def _describe_lost(new: Run, before: frozenset[Place]) -> Iterator[str]:
    """Yield the variants and families not judged again: ``draft-k3 greedy (chat)``.

    ``before`` are the places judged in the earlier run. If the family is judged on other workloads, the lost workloads are named. One is
    not lost if a test of it was judged, or has any verdict but a refusal. Speed is left out.
    """
    judged_now = list_judged(new)
    families_now = {(place.variant, place.family) for place in judged_now}
    families_before = {(place.variant, place.family) for place in before if place.family is not Family.SPEED}
    with_verdict = (_place(j) for j in new.judgements if j.verdict is not None and j.verdict.outcome is not Outcome.REFUSED)
    lost = _workload_places(before) - _workload_places((*judged_now, *with_verdict))
    for variant, family in sorted(families_before):
        workloads = sorted(place.workload for place in lost if (place.variant, place.family) == (variant, family))
        if (variant, family) not in families_now:
            yield f"{variant} {family.value}"
        elif workloads:
            yield f"{variant} {family.value} ({', '.join(workloads)})"


def _is_refused_in_part(verdict: Verdict | None) -> bool:
    """Return True if the variant refused some parameters of a workload and honoured others.

    The honoured ones were judged, so that the workload counts as judged; the refused ones are reported as changed capabilities. A verdict
    on a workload that was refused as a whole has no parameters.
    """
    if verdict is None or verdict.outcome is not Outcome.REFUSED:
        return False
    return ParameterEffect.HONOURED.value in verdict.parameters.get(verdict.pair, {}).values()


def _misses_gate(judgement: JudgementResult) -> bool:
    """Return True if a test failed by its speedup, accepted length or noise.

    These alone are held against a gate. False for a speedup without a gate, for more acceptance than stored, for a check that all judges
    make, such as that the server lives, and without a verdict.
    """
    verdict = judgement.verdict
    if judgement.misses_noise_gate:
        return True
    if verdict is None or judgement.family is not Family.SPEED or verdict.outcome is not Outcome.FAIL or verdict.check is not None:
        return False
    is_length = isinstance(verdict.promise, AcceptedLength) and not _accepts_more(judgement)
    return is_length or (isinstance(verdict.promise, Speedup) and verdict.promise.gates > 0)


def _accepts_more(judgement: JudgementResult) -> bool:
    """Return True if a test failed since more is accepted than in its stored run."""
    return judgement.verdict is not None and judgement.verdict.outcome is Outcome.FAIL and judgement.verdict.finding is Finding.MORE


def _place(judgement: JudgementResult) -> Place:
    test = judgement.nodeid.partition("::")[2]
    return Place(variant=judgement.pair, family=judgement.family, workload=judgement.workload, test=test)


def _workload_places(places: Iterable[Place]) -> frozenset[Place]:
    """Return the workloads of ``places``: each with the test left out, once."""
    return frozenset(replace(place, test="") for place in places)
