"""Accepted lengths on their way into a baseline file: read from a run's transcripts, pooled with those that the file has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, LEAST_SHARED, SPEEDUP, Gate, PromptLength
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.verdict import Verdict

PROMPTS = "prompts"
"""The figure that every verdict on the acceptance of one load has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLengths:
    """The accepted lengths of one variant and workload in one run."""

    digest: str
    """Of the traffic."""
    lengths: Mapping[str, PromptLength]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a run has for a baseline file."""

    verdicts: tuple[Verdict, ...]
    lengths: Mapping[tuple[str, str], CellLengths] = field(default_factory=dict)
    """By variant and workload."""
    accepted: str = ""
    """Why a regression is accepted; empty where none is."""
    unclean: Mapping[str, str] = field(default_factory=dict)
    """By variant: why nothing of it may become a baseline. No accepted regression overrides that."""

    @property
    def clean(self) -> Results:
        """The results without the variants in ``unclean``."""
        return replace(self, verdicts=tuple(verdict for verdict in self.verdicts if verdict.pair not in self.unclean))


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledLengths:
    """Lengths as the file will have them, and how they moved."""

    gate: Gate
    move: str


def read(directory: RunDirectory, plan: Plan, verdicts: Iterable[Verdict]) -> Mapping[tuple[str, str], CellLengths]:
    """Return accepted lengths by variant and workload, from the transcripts.

    There is one entry per verdict on the acceptance of one load. Verdicts without a usable transcript have none.
    """
    from pytest_specdec.judge.stored_acceptance import lengths  # noqa: PLC0415 - a process that only waits loads no numpy

    found: dict[tuple[str, str], CellLengths] = {}
    for verdict in filter(_on_acceptance, verdicts):
        with suppress(RunError):
            transcript = transcripts.read(directory, verdict.pair, verdict.workload)
            workload = plan.workload(verdict.workload)
            if transcript is not None:
                cell = CellLengths(digest=workload.traffic_digest, lengths=lengths(transcript, workload))
                found[verdict.pair, verdict.workload] = cell
    return found


def _on_acceptance(verdict: Verdict) -> bool:
    """Return True if a verdict is on one load's acceptance.

    Verdicts on speed, and those on a whole run, also report acceptance; they do not count.
    """
    return verdict.family is Family.SPEED and {ACCEPTANCE_LENGTH, PROMPTS} <= verdict.figures.keys() and SPEEDUP not in verdict.figures


def pool_lengths(results: Results, known: Iterable[Gate], environment: Environment) -> tuple[PooledLengths, ...]:
    """Return the run's lengths, pooled with those in ``known``.

    Only lengths of the same requests, traffic, model, draft and dtype are pooled.

    Not taken are cells with too few prompts and, unless a regression is accepted, those that failed or may be lower
    or higher than stored: pooled, they would loosen the gate. An accepted one begins anew.
    """
    stored, found = tuple(known), []
    for verdict in filter(_on_acceptance, results.verdicts):
        cell = results.lengths.get((verdict.pair, verdict.workload))
        if cell is not None and len(cell.lengths) >= LEAST_SHARED and _is_taken(verdict, results.accepted):
            found.append(_pool(verdict, cell, _before(stored, verdict), environment, results.accepted))
    return tuple(found)


def _is_taken(verdict: Verdict, accepted: str) -> bool:
    return verdict.outcome in {Outcome.PASS, Outcome.NOT_DECIDED, Outcome.FAIL} and (bool(accepted) or not _loosens(verdict))


def _loosens(verdict: Verdict) -> bool:
    from pytest_specdec.judge.stored_acceptance import Finding  # noqa: PLC0415 - as in read

    unsure = any(finding in verdict.headline for finding in (Finding.MAYBE_WORSE, Finding.MAYBE_MORE))
    return verdict.outcome is Outcome.FAIL or unsure


def _before(known: Iterable[Gate], verdict: Verdict) -> Gate | None:
    about = (ACCEPTANCE_LENGTH, verdict.pair, verdict.workload)
    return next((gate for gate in known if gate.lengths and (gate.figure, gate.pair, gate.workload) == about), None)


def _pool(verdict: Verdict, cell: CellLengths, before: Gate | None, environment: Environment, accepted: str) -> PooledLengths:
    begins = before is None or not before.comparable or before.digest != cell.digest or verdict.outcome is Outcome.FAIL
    earlier = {} if before is None or begins else before.lengths
    gate = Gate(
        figure=ACCEPTANCE_LENGTH,
        pair=verdict.pair,
        workload=verdict.workload,
        key=environment.key(verdict.pair),
        digest=cell.digest,
        runs=1 if before is None or begins else before.runs + 1,
        lengths={each: _join_lengths(earlier.get(each), cell.lengths.get(each)) for each in {**earlier, **cell.lengths}},
        accepted_regression=accepted if _loosens(verdict) else (before.accepted_regression if before else ""),
    )
    return PooledLengths(gate=replace(gate, reason=_reason(gate)), move=_move(before, gate, begins=begins))


def _join_lengths(before: PromptLength | None, now: PromptLength | None) -> PromptLength:
    """Return the mean over the steps of both runs.

    The steps of one request in two runs count as one longer run of it. A reworded request begins anew.
    """
    both = [each for each in (before, now) if each is not None]
    last = both[-1]
    same = [each for each in both if each.request == last.request]
    steps = sum(each.steps for each in same)
    tokens = sum(each.tokens_per_step * each.steps for each in same)
    return PromptLength(tokens_per_step=round(tokens / steps, 4), steps=steps, request=last.request)


def _mean(gate: Gate) -> float:
    return sum(each.tokens_per_step for each in gate.lengths.values()) / len(gate.lengths)


def _reason(gate: Gate) -> str:
    runs = f"{gate.runs} run{'s' * (gate.runs > 1)}"
    return f"mean {_mean(gate):.3f} tokens per step of {len(gate.lengths)} requests over {runs}; a run may differ by 3 %"


def _move(before: Gate | None, now: Gate, *, begins: bool) -> str:
    means = [f"{_mean(gate):.3f}" for gate in (before, now) if gate is not None]
    anew = "begun anew" if begins and before is not None else f"{now.runs} run{'s' * (now.runs > 1)}"
    why = f"; accepted: {now.accepted_regression}" if now.accepted_regression else ""
    changes = f"; {'; '.join(before.changes)}" if before is not None and not before.comparable else ""
    steps = sum(each.steps for each in now.lengths.values())
    about = f"{now.figure} {now.pair} {now.workload}"
    return f"{about}: {' -> '.join(means)} tokens per step ({len(now.lengths)} requests, {steps:,} steps, {anew}{changes}){why}"
