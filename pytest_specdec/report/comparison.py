"""What changed between two stored runs: the baseline's answers, findings, judgements, speed, capabilities, environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_change import RESOLUTION, BaselineRelation
from pytest_specdec.model.promise import AcceptedLength, Speedup
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Family
from pytest_specdec.report.environment import Change, conditions, list_changes
from pytest_specdec.report.escape import printable
from pytest_specdec.report.run import PytestOutcome, UpgradeWord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import JudgementResult, Run

_WIDEST = 120
_SHOWN = 3
"""Differing answers, and prompts with other ids, that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFinding:
    """A finding of one variant; the same one may be another variant's too."""

    variant: str
    name: str
    families: frozenset[Family] = field(default=frozenset(), compare=False)
    """The families that saw it."""

    def __str__(self) -> str:
        """Return the line that people read."""
        return f"{self.variant}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two runs."""

    baseline: BaselineChange | None
    """How the two baselines relate; None where their answers were not compared."""
    not_compared: str
    """Why they were not; empty where they were."""
    undecided: str
    """Why the new run decided too little; empty where it decided all that the old one did."""
    found: tuple[VariantFinding, ...]
    """Findings that only the new run has, of families that the old one judged too."""
    unjudged: tuple[VariantFinding, ...]
    """Findings of the new run, of a variant or a family that the old one did not judge."""
    gone: tuple[VariantFinding, ...]
    """Findings that only the old run has, of families that the new one judged too."""
    kept: tuple[VariantFinding, ...]
    """Findings of both."""
    judgements: tuple[Change, ...]
    """Tests with another outcome, and tests that only one of the runs has."""
    measures: tuple[Change, ...]
    """Speedups and accepted lengths of both runs, also where they are the same."""
    unlike: str
    """Why speeds cannot be compared, such as two machines; empty where they can."""
    capabilities: tuple[Change, ...]
    environment: tuple[Change, ...]

    @property
    def headline(self) -> str:
        """The answer in one line.

        It tells a change of the baseline, which is the upgrade's, from one of the variants, which is speculation's.
        """
        relation = self.baseline.relation if self.baseline else BaselineRelation.UNKNOWN
        if relation is BaselineRelation.UNKNOWN:
            why = self.baseline.why if self.baseline else self.not_compared
            more = f"; {self.undecided}" if self.undecided else ""
            return f"{self._findings_alone}{more}; whether the baseline's answers changed is unknown: {why}"
        return self._same_baseline() if relation is BaselineRelation.SAME else self._changed_baseline()

    def _same_baseline(self) -> str:
        """Return the headline for baselines with the same answers."""
        same = f"the baselines' answers are the same, their distributions typically within {_within(self.baseline)}"
        if self.found:
            return f"SPECULATION BROKE IN THE NEW RUN: {_count(self.found, 'new finding')}; {same}"
        if self.unjudged:
            return f"WRONG IN THE NEW RUN: {self._unlooked}; {same}"
        if self.undecided:
            return f"CANNOT SAY: {self.undecided}; {same}"
        return f"SAFE TO UPGRADE, as far as both runs were judged: {same}; {self._findings_alone.lower()}"

    def _changed_baseline(self) -> str:
        """Return the headline for baselines with other answers."""
        kinds = "; ".join(kind.value for kind in self.baseline.kinds) if self.baseline else ""
        if self.found:
            return f"BOTH CHANGED: the baseline's answers ({kinds}), and speculation has {_count(self.found, 'new finding')}"
        if self.unjudged:
            return f"ANSWERS CHANGED ({kinds}); WRONG IN THE NEW RUN: {self._unlooked}"
        if self.undecided:
            return f"ANSWERS CHANGED ({kinds}); whether speculation follows is not decided: {self.undecided}"
        return f"ANSWERS CHANGED, speculation follows: {kinds}; {self._findings_alone.lower()}"

    @property
    def _unlooked(self) -> str:
        return f"{_count(self.unjudged, 'finding')} that the old run did not look for"

    @property
    def _findings_alone(self) -> str:
        """What became of the findings, whatever the baselines do."""
        if self.found:
            return f"WORSE: {_count(self.found, 'new finding')}"
        if self.unjudged:
            return f"WRONG IN THE NEW RUN: {self._unlooked}"
        if self.gone:
            return f"BETTER: {_count(self.gone, 'finding')} gone" + (f", {_number(self.kept)} as before" if self.kept else "")
        return f"NO NEW FINDING: {_number(self.kept)} as before" if self.kept else "NO FINDING in either run"

    @property
    def is_worse(self) -> bool:
        """True if the new run has a new finding, or its baseline's answers changed by more than numerics."""
        return bool(self.found or self.unjudged) or (self.baseline is not None and self.baseline.is_worse)

    @property
    def word(self) -> UpgradeWord:
        """What it came to, in one word."""
        if self.is_worse:
            return UpgradeWord.WORSE
        is_open = self.baseline is None or self.baseline.relation is BaselineRelation.UNKNOWN or bool(self.undecided)
        return UpgradeWord.UNKNOWN if is_open else UpgradeWord.FINE


def compare(old: Run, new: Run, baseline: BaselineChange | None = None, *, not_compared: str = "") -> Comparison:
    """Return what changed from ``old`` to ``new``.

    ``baseline`` is how their baselines relate. Where it is None, ``not_compared`` says why.
    """
    before, after = _findings(old, waived=True), _findings(new)
    judged_before, judged_now = _judged_families(old), _judged_families(new)
    return Comparison(
        baseline=baseline,
        not_compared=not_compared,
        undecided=_describe_undecided(new, judged_before - judged_now),
        found=tuple(finding for finding in after if finding not in before and _is_judged(finding, judged_before)),
        unjudged=tuple(finding for finding in after if finding not in before and not _is_judged(finding, judged_before)),
        gone=tuple(finding for finding in _findings(old) if finding not in _findings(new, waived=True) and _is_judged(finding, judged_now)),
        kept=tuple(finding for finding in after if finding in before),
        judgements=tuple(list_changes(_outcomes(old), _outcomes(new))),
        measures=tuple(_figure_changes(old, new)),
        unlike=_unlike(old.environment, new.environment),
        capabilities=tuple(list_changes(_support(old), _support(new))),
        environment=tuple(list_changes(conditions(old.environment), conditions(new.environment))),
    )


def lines(comparison: Comparison, *, judgements: bool = True) -> Iterator[str]:
    """Yield the comparison as people read it, the most important first.

    ``judgements`` tells whether those with another outcome are listed.
    """
    yield comparison.headline
    for title, findings in (
        ("new", comparison.found),
        ("not judged before", comparison.unjudged),
        ("gone", comparison.gone),
        ("as before", comparison.kept),
    ):
        yield from (printable(f"  {title}: {finding}") for finding in findings)
    sections: tuple[tuple[str, Sequence[object]], ...] = (
        ("baseline", tuple(_baseline_lines(comparison.baseline)) if comparison.baseline else ()),
        ("judgements", comparison.judgements if judgements else ()),
        (f"speed and acceptance{f' ({comparison.unlike})' if comparison.unlike else ''}", comparison.measures),
        ("capabilities", comparison.capabilities),
        ("environment", comparison.environment),
    )
    for title, changes in sections:
        if changes:
            yield ""
            yield f"{title}:"
            yield from (f"  {change}" for change in changes)


def _shorten(text: str) -> str:
    """Return a text on one line of at most :data:`_WIDEST` characters."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _within(change: BaselineChange | None) -> str:
    """Return the size up to which distributions are the same: ``0.0012 nats per logit``."""
    return f"{max(change.shift.high if change and change.shift else 0.0, RESOLUTION):.2g} nats per logit"


def _baseline_lines(change: BaselineChange) -> Iterator[str]:
    """Yield what was compared of the baselines, and what differs first."""
    if not change.prompts:
        yield "prompts: none was scored in both runs"
    elif change.other_prompts:
        yield f"prompts: {len(change.other_prompts)} of {change.prompts} have other token ids"
        yield from (printable(f"  {_shorten(prompt)}") for prompt in change.other_prompts[:_SHOWN])
    elif change.dated_prompts:
        yield f"prompts: {change.dated_prompts} of {change.prompts} differ in a few token ids, as where the template writes the date"
    else:
        yield f"prompts: all {change.prompts} have the same token ids"
    if change.shift:
        shift = change.shift
        limits = f"{shift.nats:.2g} nats per logit apart [{shift.low:.2g}, {shift.high:.2g}]"
        explained = f"; the noise of both runs explains {change.allowed:.2g}" if change.allowed else ""
        yield f"distributions: {limits} over {shift.positions:,} positions of {shift.prompts} prompts{explained}"
    if change.answers:
        yield (
            f"answers at temperature 0: {change.alike} of {change.answers} alike, {len(change.differences)} with another token, "
            f"{change.beyond} of them beyond noise; {len(change.other_ends)} end elsewhere"
        )
    for difference in change.differences[:_SHOWN]:
        tokens = f"id {difference.old_id} -> id {difference.new_id}"
        yield printable(f"  {difference.request_id}, token {difference.index + 1}: {tokens}, {difference.gap:.2f} nats apart")
    if change.other_ends:
        yield printable(f"  end elsewhere: {', '.join(change.other_ends[:_SHOWN])}")


def _count(findings: Sequence[VariantFinding], what: str) -> str:
    """Return ``2 new findings``."""
    return f"{_number(findings)} {what}{'s' * (_number(findings) != 1)}"


def _number(findings: Sequence[VariantFinding]) -> int:
    """Return the number of findings; one that several variants have counts once."""
    return len({finding.name for finding in findings})


def _findings(run: Run, *, waived: bool = False) -> tuple[VariantFinding, ...]:
    """Return the findings of a run, with those that a waiver expects if ``waived``."""
    results = [j for j in run.judgements if j.result is PytestOutcome.WAIVED] if waived else []
    known = (
        VariantFinding(variant=j.pair, name=j.verdict.names or j.verdict.headline, families=frozenset({j.family}))
        for j in results
        if j.verdict is not None
    )
    causes = (
        VariantFinding(variant=pair, name=cause.name, families=frozenset(failure.family for failure in (cause.leader, *cause.followers)))
        for pair, of_pair in run.causes.items()
        for cause in of_pair
    )
    return (*causes, *known)


def _judged_families(run: Run) -> frozenset[tuple[str, Family]]:
    """Return the variants and families of which a judgement knows something."""
    return frozenset((j.pair, j.family) for j in run.judgements if j.judged)


def _is_judged(finding: VariantFinding, judged: frozenset[tuple[str, Family]]) -> bool:
    return any((finding.variant, family) in judged for family in finding.families)


def _describe_undecided(new: Run, lost: frozenset[tuple[str, Family]]) -> str:
    """Return why a run decided too little; empty if nothing is open.

    ``lost`` are the variants and families that an earlier run judged, and this one did not.
    """
    if new.status is None or new.status.state is not State.COMPLETE or new.status.error:
        return "the new run is incomplete"
    if not new.judged:
        return "nothing of the new run could be judged"
    if new.undecided:
        return f"{len(new.undecided)} judgements of the new run were not made or not decided"
    if new.suspicious:
        return "the new run has suspicious verdicts"
    correctness = sorted(f"{variant} {family.value}" for variant, family in lost if family is not Family.SPEED)
    return f"the new run did not judge {', '.join(correctness)}" if correctness else ""


def _outcomes(run: Run) -> dict[str, str]:
    return {f"{judgement.nodeid} ({judgement.workload})": _outcome(judgement) for judgement in run.judgements}


def _outcome(judgement: JudgementResult) -> str:
    return judgement.verdict.outcome.value if judgement.verdict else f"no verdict, {judgement.result.value}"


def _figure_changes(old: Run, new: Run) -> Iterator[Change]:
    """Yield the speedups and accepted lengths of both runs, changed or not, where both counted."""
    before, after = _figures(old), _figures(new)
    yield from (Change(what=what, old=before[what], new=after[what]) for what in before if what in after)


def _figures(run: Run) -> dict[str, str]:
    verdicts = (judgement.verdict for judgement in run.judgements if judgement.verdict and judgement.pair not in run.not_counted)
    return {f"{verdict.pair}, {verdict.workload}": figure for verdict in verdicts if (figure := _figure(verdict))}


def _figure(verdict: Verdict) -> str:
    promise = verdict.promise
    if isinstance(promise, AcceptedLength):
        return f"{promise.tokens_per_step:.2f} tokens per step"
    if not isinstance(promise, Speedup):
        return ""
    limits = promise.limits
    return f"{promise.ratio:.2f}x" + (f" [{limits.low:.2f}, {limits.high:.2f}]" if limits else "")


def _unlike(old: Environment | None, new: Environment | None) -> str:
    if old is None or new is None:
        return "of an unknown machine"
    return "" if old.machine == new.machine else "of two machines, not comparable"


def _support(run: Run) -> dict[str, str]:
    return {
        f"{arm} {feature}": support.value
        for arm, capabilities in sorted(run.capabilities.items())
        for feature, support in sorted(capabilities.support.items())
    }
