"""Accepted lengths in a baseline file: those of a run, pooled with those that the file has.

An accepted length is one request's mean number of tokens per verify step. A gate on them is the stored lengths of one variant (``pair`` in
a verdict) and workload: a later run may not differ from them by more than 3 %. An option accepts a regression, a change for the worse, and
states the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.gates.floors import ACCEPT, GateChange
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, LEAST_SHARED, Gate, PromptLength
from pytest_specdec.model.promise import AcceptedLength
from pytest_specdec.model.verdict import Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_specdec.model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLengths:
    """The accepted lengths of one variant and workload in one run."""

    digest: str
    """Of the traffic."""
    lengths: Mapping[str, PromptLength]
    """Mean tokens per verify step, by request id."""


def pool_lengths(
    verdicts: Iterable[Verdict], lengths: Mapping[tuple[str, str], CellLengths], stored_gates: tuple[Gate, ...], accepted: str
) -> tuple[GateChange, ...]:
    """Return the new gate of each variant and workload with accepted lengths.

    ``lengths`` has this run's, by variant and workload. They are pooled with those of the ``stored_gates`` or replace them
    (:func:`_pool_gate`). ``accepted`` is the reason that a regression is accepted for; it is empty if none is accepted.
    Lengths of fewer than ``LEAST_SHARED`` requests give no gate: a later run could not be compared with it.
    """
    changes = []
    for verdict in verdicts:
        measured = lengths.get((verdict.pair, verdict.workload))
        if not isinstance(verdict.promise, AcceptedLength) or measured is None:
            continue
        if len(measured.lengths) >= LEAST_SHARED and _may_join_file(verdict, accepted):
            changes.append(_pool_gate(verdict, measured, _find_stored_gate(stored_gates, verdict), accepted))
    return tuple(changes)


def unfit_lengths(
    verdicts: Iterable[Verdict], lengths: Mapping[tuple[str, str], CellLengths], accepted: str
) -> Iterator[tuple[Verdict, str]]:
    """Yield verdicts with accepted lengths unfit for a gate, with reasons.

    They are of too few requests, or may lie lower or higher than the stored ones. ``lengths`` and ``accepted`` are those of
    :func:`pool_lengths`.
    """
    for verdict in verdicts:
        measured = lengths.get((verdict.pair, verdict.workload))
        if not isinstance(verdict.promise, AcceptedLength) or measured is None:
            continue
        if verdict.outcome is Outcome.FAIL and not accepted:
            continue  # the caller reports failures itself
        if len(measured.lengths) < LEAST_SHARED:
            lack = f"verify steps are known of {len(measured.lengths)} requests"
            yield verdict, f"{lack}, and a gate needs {LEAST_SHARED}: --specdec-depth standard sends more"
        elif verdict.finding in {Finding.MAYBE_WORSE, Finding.MAYBE_MORE} and not accepted:
            yield verdict, f"{verdict.finding.value}; if it is meant: {ACCEPT}"


def _may_join_file(verdict: Verdict, accepted: str) -> bool:
    """Return True if a verdict's accepted lengths may enter the baseline file.

    The outcome has to be pass, fail or not decided. A verdict that may loosen the gate lets them in only if a
    regression is accepted: ``accepted`` is the reason for that, empty without one.
    """
    return verdict.outcome in {Outcome.PASS, Outcome.NOT_DECIDED, Outcome.FAIL} and (bool(accepted) or not _may_loosen_gate(verdict))


def _may_loosen_gate(verdict: Verdict) -> bool:
    """Return True if pooling a verdict's lengths might loosen the gate.

    This is so after a failure, and if the lengths may lie lower (MAYBE_WORSE) or higher (MAYBE_MORE) than the stored lengths, whose mean
    they would move.
    """
    return verdict.outcome is Outcome.FAIL or verdict.finding in {Finding.MAYBE_WORSE, Finding.MAYBE_MORE}


def _find_stored_gate(gates: Iterable[Gate], verdict: Verdict) -> Gate | None:
    """Return the stored gate on accepted lengths for a verdict.

    It is of the verdict's variant and workload. Returns None if there is none.
    """
    cell = (ACCEPTANCE_LENGTH, verdict.pair, verdict.workload)
    return next((gate for gate in gates if gate.lengths and (gate.figure, gate.pair, gate.workload) == cell), None)


def _pool_gate(verdict: Verdict, measured: CellLengths, stored_gate: Gate | None, accepted: str) -> GateChange:
    """Return one workload's gate, its lengths pooled with the stored ones.

    The stored lengths are dropped if they are of another model, draft or dtype (not ``comparable``), or of other traffic.
    So they are after a failure: it comes here only as an accepted regression, which sets a new level.
    """
    empty_gate = Gate(figure=ACCEPTANCE_LENGTH)  # without lengths and runs
    stored = stored_gate or empty_gate
    is_continued = stored.comparable and stored.digest == measured.digest and verdict.outcome is not Outcome.FAIL
    pooled_with = stored if is_continued else empty_gate
    by_request = {**pooled_with.lengths, **measured.lengths}
    # A gate that was loosened states why, and goes on to do so after later runs.
    regression = accepted if _may_loosen_gate(verdict) else stored.accepted_regression
    pooled = Gate(
        figure=ACCEPTANCE_LENGTH,
        pair=verdict.pair,
        workload=verdict.workload,
        digest=measured.digest,
        runs=pooled_with.runs + 1,
        lengths={request: _join_lengths(pooled_with.lengths.get(request), measured.lengths.get(request)) for request in by_request},
        accepted_regression=regression,
    )
    move = _describe_new_mean(stored_gate, pooled, is_continued=is_continued)
    return GateChange(gate=replace(pooled, reason=_describe_gate(pooled)), move=move)


def _join_lengths(stored: PromptLength | None, measured: PromptLength | None) -> PromptLength:
    """Return one request's mean tokens per step, stored and measured.

    The mean is weighted by verify steps. Only the measured length counts if the request was reworded since, which the digest in its field
    ``request`` shows. One of the two lengths is None if the file, or this run, does not have the request.
    """
    lengths = [length for length in (stored, measured) if length is not None]
    newest = lengths[-1]
    same_request = [length for length in lengths if length.request == newest.request]
    steps = sum(length.steps for length in same_request)
    tokens = sum(length.tokens_per_step * length.steps for length in same_request)
    return PromptLength(tokens_per_step=round(tokens / steps, 4), steps=steps, request=newest.request)


def _mean_tokens_per_step(gate: Gate) -> float:
    return sum(length.tokens_per_step for length in gate.lengths.values()) / len(gate.lengths)


def _describe_gate(gate: Gate) -> str:
    """Return a sentence on the runs that a gate was computed from."""
    runs = f"{gate.runs} run{'s' * (gate.runs > 1)}"
    return f"mean {_mean_tokens_per_step(gate):.3f} tokens per step of {len(gate.lengths)} requests over {runs}; a run may differ by 3 %"


def _describe_new_mean(stored_gate: Gate | None, new_gate: Gate, *, is_continued: bool) -> str:
    """Return a line on the change of a gate's mean accepted length.

    ``is_continued`` is True if the stored lengths are in the new gate's. The line has the reason of an accepted
    regression and, if the stored gate is of another model, draft or dtype, all that changed since.
    """
    means = [f"{_mean_tokens_per_step(gate):.3f}" for gate in (stored_gate, new_gate) if gate is not None]
    is_replaced = stored_gate is not None and not is_continued
    origin = "begun anew" if is_replaced else f"{new_gate.runs} run{'s' * (new_gate.runs > 1)}"
    regression = f"; accepted: {new_gate.accepted_regression}" if new_gate.accepted_regression else ""
    changes = f"; {'; '.join(stored_gate.changes)}" if stored_gate is not None and not stored_gate.comparable else ""
    steps = sum(length.steps for length in new_gate.lengths.values())
    subject = f"{new_gate.figure} {new_gate.pair} {new_gate.workload}"
    return (
        f"{subject}: {' -> '.join(means)} tokens per step "
        f"({len(new_gate.lengths)} requests, {steps:,} steps, {origin}{changes}){regression}"
    )
