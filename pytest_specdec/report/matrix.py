"""The report of a matrix: its cells by family, findings over cells with the axis values that they go with, and the class of the whole.

A cell is one variant, a server with speculation, under one value of each axis, such as dtype. Cells with the same baseline, one without
speculation, form a group, which has a run of its own. A family is a group of tests, such as greedy. A finding is one fault with its
failures. A cell is red by a finding, and clean where the finding's family was judged with nothing wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import table
from pytest_specdec.report.causes import Cause, SharedCause, join_causes
from pytest_specdec.report.matrix_axes import AxisPattern, describe, find_pattern
from pytest_specdec.report.next_steps import list_next_steps
from pytest_specdec.report.run import PytestOutcome, RunClass
from pytest_specdec.report.table import CellText, Tone

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytest_specdec.model.matrix import Cell
    from pytest_specdec.model.matrix_run import GroupRun, MatrixRun
    from pytest_specdec.report.next_steps import NextStep
    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.upgrade import Upgrade

__all__ = ["CellResult", "GroupResult", "MatrixFinding", "MatrixReport", "build", "make", "summarise"]

_NOT_CLEAN = frozenset({PytestOutcome.FAILED, PytestOutcome.ERROR, PytestOutcome.WAIVED})
_OPEN = frozenset({Outcome.SUSPICIOUS, Outcome.NOT_DECIDED})
_NO_RUN = "its group has no run.json: the session has not come to its end"
_NO_JUDGEMENT = "the group's run.json holds no judgement of this cell"
_NO_CELL = "none of the given runs captured this cell"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one cell came to."""

    name: str
    judged: bool
    """Whether any judgement says anything about the engine: none does of a cell that was not captured."""
    statuses: Mapping[str, CellText]
    """By family, as the terminal says it."""
    clean: frozenset[str]
    """The families that were judged, with nothing wrong."""
    causes: tuple[Cause, ...]
    """Of its failures, without their evidence."""

    @property
    def tone(self) -> Tone:
        """The worst tone of its statuses."""
        tones = {status.tone for status in self.statuses.values()}
        return next((tone for tone in (Tone.BAD, Tone.UNSURE) if tone in tones), Tone.GOOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What the run of one group came to: a run without its verdicts, small enough to hold a thousand of them."""

    directory: str
    """Its name below ``groups``."""
    group: str
    run_class: RunClass
    """Infrastructure where the group has no results."""
    red: bool
    """Whether its run fails, by a test, by what could not be judged or by an error of the capture."""
    reason: str = ""
    """Why it has no results, or is not clean though it has no finding; empty else."""
    cells: tuple[CellResult, ...] = ()
    """In the order of the run."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """By cell without results, the reason."""
    families: tuple[str, ...] = ()
    """Names of the families judged."""
    next_steps: tuple[NextStep, ...] = ()
    """What to do after this run."""
    upgrade: Upgrade | None = None
    """How it compares with an earlier run, by its headline alone; None where it is compared with no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFinding:
    """One finding in all the cells that have it."""

    cause: SharedCause
    """By cell."""
    pattern: AxisPattern
    directory: str
    """Of the group with its leading failure, below ``groups``."""

    @property
    def place(self) -> str:
        """The axis values that it goes with, as a clause."""
        return describe(self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixReport:
    """Everything that the reports of a matrix show."""

    directory: str
    """As a person would type it; empty where links are enough."""
    config: str
    depth: str
    cells: tuple[Cell, ...]
    """Those that the run is to have: all of the matrix, or the part that a shard captures."""
    matrix_size: int
    """Cells of the whole matrix."""
    groups: tuple[GroupResult, ...]
    """In the order of the matrix."""
    missing: Mapping[str, str]
    """By cell without results, the reason."""
    findings: tuple[MatrixFinding, ...]
    """That in most cells first."""
    families: tuple[str, ...]
    """Names of the families judged, in the order of the report."""
    joint_pattern: AxisPattern | None = None
    """The cells with any finding, where several findings have fewer cells each and one value or two separate all of them from the clean."""
    resume: str = ""
    """The command that captures what is missing; empty where nothing is."""

    @property
    def run_class(self) -> RunClass:
        """The class of the whole, from the classes of its groups.

        The one that :class:`RunClass` lists first counts. Missing cells count as infrastructure, and so does a report without groups.
        """
        classes = {group.run_class for group in self.groups} | ({RunClass.INFRASTRUCTURE} if self.missing else set())
        return next((one for one in RunClass if one in classes), RunClass.INFRASTRUCTURE)

    @property
    def red(self) -> bool:
        """True if the run of a group fails, or a cell is missing."""
        return bool(self.missing) or not self.groups or any(group.red for group in self.groups)

    @property
    def results(self) -> tuple[CellResult, ...]:
        """The cells with results, group by group."""
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def judged(self) -> int:
        """The number of cells of which anything was judged."""
        return sum(result.judged for result in self.results)

    def exit_code(self, *, by_class: bool) -> int:
        """Return the exit code of the whole.

        It is that of the class if ``by_class``, and otherwise 1 for a red run and 0 for any other.
        """
        return self.run_class.exit_code if by_class else int(self.red)


def make(
    stored: MatrixRun, runs: Mapping[str, Run | None], *, directory: str = "", refusals: Mapping[str, str] = MappingProxyType({})
) -> MatrixReport:
    """Return the report of a session's run of a matrix.

    ``stored`` says which groups and cells the run is to have, and ``runs`` has the run of each group by name: None for one without results.
    ``refusals`` has the reason for that, such as a full disk. The report has a command to resume unless every capture is complete.
    """
    one_line_refusals = {name: "; ".join(" ".join(line.split()) for line in refusal.splitlines()) for name, refusal in refusals.items()}
    results = (summarise(name, part, runs.get(name), one_line_refusals.get(name, _NO_RUN)) for name, part in stored.groups.items())
    report = build(stored, results, directory=directory)
    # The command is the same for all groups: it resumes the whole matrix.
    resume = next((run.commands.resume for run in runs.values() if run is not None), "")
    return replace(report, resume="" if all(map(_is_complete, runs.values())) else resume)


def _is_complete(run: Run | None) -> bool:
    return run is not None and run.status is not None and run.status.state is State.COMPLETE


def summarise(directory: str, part: GroupRun, run: Run | None, reason: str = _NO_RUN) -> GroupResult:
    """Return what the run of a group came to.

    ``directory`` is its name and ``part`` says which cells it is to have. ``run`` is None for a group without results: all of its cells are
    then missing, and ``reason`` says why. To be small, the result leaves out the evidence of its failures, and of its comparison with an
    earlier run the tables and sections.
    """
    if run is None:
        return GroupResult(
            directory=directory,
            group=part.group,
            run_class=RunClass.INFRASTRUCTURE,
            red=True,
            reason=reason,
            missing=dict.fromkeys(part.cells, reason),
        )
    pairs, causes, families = frozenset(run.pairs), run.causes, table.families(run)
    needs_reason = not causes and run.run_class is not RunClass.CLEAN  # findings are the reason themselves
    has_error = run.status is not None and bool(run.status.error)  # it ended the capture, by which the session fails too
    return GroupResult(
        directory=directory,
        group=part.group,
        run_class=run.run_class,
        red=run.red or has_error,
        reason=_why_not_clean(run) if needs_reason else "",
        cells=tuple(_cell_result(run, families, name, causes.get(name, ())) for name in part.cells if name in pairs),
        missing={name: _NO_JUDGEMENT for name in part.cells if name not in pairs},
        families=tuple(family.value for family in families),
        next_steps=tuple(list_next_steps(run)),
        upgrade=run.upgrade and replace(run.upgrade, corners=(), sections=()),
    )


def _why_not_clean(run: Run) -> str:
    """Return the first reason for a run that is neither clean nor has findings.

    It is what ended the capture, or a judgement without a decision or verdict. If there is none and the run is compared with an earlier
    one, it is empty: the report has lines of its own for that. Else it points to the run's report.
    """
    if run.status is None or run.status.error:
        return run.status.error.partition("\n")[0] if run.status else "the capture came to no end"
    headlines = [judgement.verdict.headline for judgement in run.undecided if judgement.verdict is not None]
    return next(iter((*headlines, *table.reasons(run))), "" if run.upgrade is not None else "see its report")


def _cell_result(run: Run, families: Iterable[Family], name: str, causes: Iterable[Cause]) -> CellResult:
    """Return what one cell came to in the run of its group.

    ``families`` are those of the run, and ``causes`` those of the failures of the cell called ``name``, which is a pair in that run. The
    clean families of a cell with wrong tokens are without speed, which means nothing there.
    """
    by_family = {family.value: run.of(name, family) for family in families}
    not_counted = {Family.SPEED.value} if name in run.not_counted else set()
    return CellResult(
        name=name,
        judged=any(judgement.judged for judgements in by_family.values() for judgement in judgements),
        statuses={family.value: table.short_cell(run, name, family) for family in families if by_family[family.value]},
        clean=frozenset(family for family, judgements in by_family.items() if _is_clean(judgements)) - not_counted,
        causes=tuple(map(_without_evidence, causes)),
    )


def _is_clean(judgements: Iterable[JudgementResult]) -> bool:
    """Return True if a family was judged, with nothing wrong or open."""
    results = tuple(judgements)
    is_open = any(j.verdict is not None and j.verdict.outcome in _OPEN for j in results)
    return any(j.judged for j in results) and not is_open and not any(j.result in _NOT_CLEAN for j in results)


def _without_evidence(cause: Cause) -> Cause:
    """Return a cause with the headlines of its failures alone."""
    return Cause(leader=_headline_only(cause.leader), followers=tuple(map(_headline_only, cause.followers)))


def _headline_only(judgement: JudgementResult) -> JudgementResult:
    verdict = judgement.verdict
    return replace(judgement, verdict=verdict and replace(verdict, evidence=(), figures={}, parameters={}, example=None))


def build(stored: MatrixRun, groups: Iterable[GroupResult], *, directory: str, expected: Collection[str] = ()) -> MatrixReport:
    """Return the report of a run of a matrix.

    ``groups`` are the results of its groups, taken one after another to save memory, and ``directory`` is the run's as a person would type
    it. The report is on the cells named by ``expected``, by default on those in a group of ``stored``. Other cells of the groups are left
    out. An expected cell is missing if its group has no results of it, or if no group has it.
    """
    group_order = {group.name: index for index, group in enumerate(stored.matrix.groups)}
    in_a_group = frozenset(stored.captured)
    reported = frozenset(expected) or in_a_group
    selected = (_select_cells(group, reported) for group in groups if reported.intersection(_list_cells(group)))
    results = tuple(sorted(selected, key=lambda result: group_order[result.group]))
    cells = tuple(cell for cell in stored.matrix.cells if cell.name in reported)
    missing = {cell: why for result in results for cell, why in result.missing.items()}
    missing |= {cell.name: _NO_CELL for cell in cells if cell.name not in in_a_group}
    judged_families = {family for result in results for family in result.families}
    findings = _join_findings(results, cells)
    return MatrixReport(
        directory=directory,
        config=stored.config,
        depth=stored.depth.value,
        cells=cells,
        matrix_size=len(stored.matrix.cells),
        groups=results,
        missing={cell.name: missing[cell.name] for cell in cells if cell.name in missing},
        findings=findings,
        families=(*(name for name in FAMILIES if name in judged_families), *sorted(judged_families - FAMILIES.keys())),
        joint_pattern=_find_joint_pattern(findings, results, cells),  # the axis values behind all findings together
    )


def _list_cells(group: GroupResult) -> frozenset[str]:
    """Return the names of a group's cells, with results or without."""
    return frozenset((*(cell.name for cell in group.cells), *group.missing))


def _select_cells(group: GroupResult, wanted: frozenset[str]) -> GroupResult:
    """Return the result of a group with its ``wanted`` cells alone.

    Its class stays that of its run. If that is a finding, and only cells that are left out have one, they are the reason.
    """
    cells = tuple(cell for cell in group.cells if cell.name in wanted)
    others_with_finding = [cell.name for cell in group.cells if cell.name not in wanted and cell.causes]
    reason = group.reason
    if others_with_finding and group.run_class is RunClass.FINDING and not any(cell.causes for cell in cells):
        reason = f"in cells outside the selection: {', '.join(others_with_finding)}"
    return replace(group, cells=cells, missing={name: why for name, why in group.missing.items() if name in wanted}, reason=reason)


def _find_joint_pattern(findings: Sequence[MatrixFinding], groups: Iterable[GroupResult], cells: Sequence[Cell]) -> AxisPattern | None:
    """Return the pattern of all cells with a finding, whichever it is.

    One fault may have other names in other cells, so that no finding by itself shows the axis values that it goes with. None if no axis
    values separate these cells from the clean ones, or if one of the findings has all of them. A cell is clean here if it has no finding,
    and the families of all findings' leading failures were judged there with nothing wrong.
    """
    red = frozenset(cell for finding in findings for cell in finding.pattern.red)
    if any(frozenset(finding.pattern.red) == red for finding in findings):
        return None
    leading_families = {finding.cause.leader.family.value for finding in findings}
    clean = frozenset(result.name for group in groups for result in group.cells if leading_families <= result.clean and not result.causes)
    pattern = find_pattern(red, clean, cells)
    return pattern if pattern.separations else None


def _join_findings(groups: Iterable[GroupResult], cells: tuple[Cell, ...]) -> tuple[MatrixFinding, ...]:
    """Return the findings of all groups, that in most cells first.

    Equal ones are joined over cells: a cell is a pair of the same name in its group's run, as :func:`join_causes` takes them.
    """
    results = [(group.directory, result) for group in groups for result in group.cells]
    directories = {result.name: directory for directory, result in results}
    findings = []
    for cause in join_causes({result.name: result.causes for _, result in results}):
        family = cause.leader.family.value
        clean = frozenset(result.name for _, result in results if family in result.clean)
        red = frozenset(cause.by_pair)
        pattern = find_pattern(red, clean - red, cells)
        findings.append(MatrixFinding(cause=cause, pattern=pattern, directory=directories[cause.leader.pair]))
    return tuple(sorted(findings, key=lambda finding: -len(finding.pattern.red)))
