"""Accepted lengths on their way into a baseline file: read from a run's transcripts, pooled with those that the file has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, LEAST_SHARED, Gate, PromptLength
from pytest_specdec.model.promise import AcceptedLength
from pytest_specdec.model.verdict import Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.verdict import Verdict


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

    by_cell: dict[tuple[str, str], CellLengths] = {}
    for verdict in filter(_on_acceptance, verdicts):
        with suppress(RunError):
            transcript = transcripts.read(directory, verdict.pair, verdict.workload)
            workload = plan.workload(verdict.workload)
            if transcript is not None:
                cell = CellLengths(digest=workload.traffic_digest, lengths=lengths(transcript, workload))
                by_cell[verdict.pair, verdict.workload] = cell
    return by_cell


def _on_acceptance(verdict: Verdict) -> bool:
    """Return True if a verdict is on one load's acceptance.

    Verdicts on speed, and those on a whole run, also report acceptance; they do not count.
    """
    return isinstance(verdict.promise, AcceptedLength)


def pool_lengths(results: Results, known: Iterable[Gate], environment: Environment) -> tuple[PooledLengths, ...]:
    """Return the run's lengths, pooled with those in ``known``.

    Only lengths of the same requests, traffic, model, draft and dtype are pooled.

    Not taken are cells with too few prompts and, unless a regression is accepted, those that failed or may be lower
    or higher than stored: pooled, they would loosen the gate. An accepted one begins anew.
    """
    stored_gates, pooled = tuple(known), []
    for verdict in filter(_on_acceptance, results.verdicts):
        cell = results.lengths.get((verdict.pair, verdict.workload))
        if cell is not None and len(cell.lengths) >= LEAST_SHARED and _may_join_file(verdict, results.accepted):
            pooled.append(_pool(verdict, cell, _find_stored_gate(stored_gates, verdict), environment, results.accepted))
    return tuple(pooled)


def _may_join_file(verdict: Verdict, accepted: str) -> bool:
    """Return True if a verdict's lengths go into the file."""
    return verdict.outcome in {Outcome.PASS, Outcome.NOT_DECIDED, Outcome.FAIL} and (bool(accepted) or not _may_loosen_gate(verdict))


def _may_loosen_gate(verdict: Verdict) -> bool:
    """Return True if pooling a verdict's lengths might loosen the gate."""
    return verdict.outcome is Outcome.FAIL or verdict.finding in {Finding.MAYBE_WORSE, Finding.MAYBE_MORE}


def _find_stored_gate(gates: Iterable[Gate], verdict: Verdict) -> Gate | None:
    """Return the stored gate of a verdict's variant and workload."""
    cell = (ACCEPTANCE_LENGTH, verdict.pair, verdict.workload)
    return next((gate for gate in gates if gate.lengths and (gate.figure, gate.pair, gate.workload) == cell), None)


def _pool(verdict: Verdict, cell: CellLengths, stored_gate: Gate | None, environment: Environment, accepted: str) -> PooledLengths:
    """Return the lengths of one cell, pooled with the stored ones."""
    begins = stored_gate is None or not stored_gate.comparable or stored_gate.digest != cell.digest or verdict.outcome is Outcome.FAIL
    stored_lengths = {} if stored_gate is None or begins else stored_gate.lengths
    gate = Gate(
        figure=ACCEPTANCE_LENGTH,
        pair=verdict.pair,
        workload=verdict.workload,
        key=environment.key(verdict.pair),
        digest=cell.digest,
        runs=1 if stored_gate is None or begins else stored_gate.runs + 1,
        lengths={
            prompt: _join_lengths(stored_lengths.get(prompt), cell.lengths.get(prompt)) for prompt in {**stored_lengths, **cell.lengths}
        },
        accepted_regression=accepted if _may_loosen_gate(verdict) else (stored_gate.accepted_regression if stored_gate else ""),
    )
    return PooledLengths(gate=replace(gate, reason=_describe_gate(gate)), move=_describe_move(stored_gate, gate, begins=begins))


def _join_lengths(stored: PromptLength | None, measured: PromptLength | None) -> PromptLength:
    """Return the mean over the steps of both runs.

    The steps of one request in two runs count as one longer run of it. A reworded request begins anew.
    """
    in_order = [length for length in (stored, measured) if length is not None]
    newest = in_order[-1]
    same_request = [length for length in in_order if length.request == newest.request]
    steps = sum(length.steps for length in same_request)
    tokens = sum(length.tokens_per_step * length.steps for length in same_request)
    return PromptLength(tokens_per_step=round(tokens / steps, 4), steps=steps, request=newest.request)


def _mean_tokens_per_step(gate: Gate) -> float:
    return sum(length.tokens_per_step for length in gate.lengths.values()) / len(gate.lengths)


def _describe_gate(gate: Gate) -> str:
    """Return a text on the origin of a gate."""
    runs = f"{gate.runs} run{'s' * (gate.runs > 1)}"
    return f"mean {_mean_tokens_per_step(gate):.3f} tokens per step of {len(gate.lengths)} requests over {runs}; a run may differ by 3 %"


def _describe_move(stored_gate: Gate | None, new_gate: Gate, *, begins: bool) -> str:
    """Return a text on how a mean moved, and why."""
    means = [f"{_mean_tokens_per_step(gate):.3f}" for gate in (stored_gate, new_gate) if gate is not None]
    origin = "begun anew" if begins and stored_gate is not None else f"{new_gate.runs} run{'s' * (new_gate.runs > 1)}"
    regression = f"; accepted: {new_gate.accepted_regression}" if new_gate.accepted_regression else ""
    changes = f"; {'; '.join(stored_gate.changes)}" if stored_gate is not None and not stored_gate.comparable else ""
    steps = sum(length.steps for length in new_gate.lengths.values())
    subject = f"{new_gate.figure} {new_gate.pair} {new_gate.workload}"
    return (
        f"{subject}: {' -> '.join(means)} tokens per step "
        f"({len(new_gate.lengths)} requests, {steps:,} steps, {origin}{changes}){regression}"
    )
