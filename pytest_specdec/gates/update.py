"""A run's speed and accepted lengths on their way into a baseline file, and what keeps them out.

A baseline file has gates: floors on the speedup, and accepted lengths (tokens per verify step) for later runs to be compared with. A
verdict's ``pair`` is the variant, its promise what was measured. An option accepts a regression, a change for the worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_specdec.gates import baseline_file
from pytest_specdec.gates.accepted_lengths import pool_lengths, unfit_lengths
from pytest_specdec.gates.floors import ACCEPT, measure_floors, unfit_verdicts
from pytest_specdec.model.promise import AcceptedLength, DraftedTraffic, Speedup
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_specdec.gates.accepted_lengths import CellLengths
    from pytest_specdec.model.baseline import Environment, Gate
    from pytest_specdec.model.verdict import Verdict

_ON_SPEED = (Speedup, AcceptedLength, DraftedTraffic)
"""Types of promise in verdicts on speed, acceptance or drafting."""
_GATED = (Speedup, AcceptedLength)
"""Types of promise that gates of a baseline file are made of."""


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
    def clean_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts without the variants in ``unclean``."""
        return tuple(verdict for verdict in self.verdicts if verdict.pair not in self.unclean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A baseline file that was written, and how its gates moved."""

    path: Path
    moves: tuple[str, ...]
    """One line per gate, from the old floor to the new one."""


def update(folder: Path, config: str, environment: Environment, results: Results) -> Update | None:
    """Write this run's speed and accepted lengths into the baseline file.

    The file is that of this config and machine. Returns None, and writes nothing, if no verdict of the run may become
    a gate.
    """
    stored_gates = baseline_file.gates(folder, config, environment)
    return _write(baseline_file.path(folder, config, environment), environment, results, stored_gates)


def write_candidate(folder: Path, environment: Environment, results: Results) -> Path | None:
    """Write a candidate baseline file, ``baseline-candidate.yaml``, into ``folder``.

    Its gates are computed from this run alone. Returns its path, or None if no verdict of the run may become a gate.
    """
    # A baseline file is only written under the name of its machine, so that it is renamed afterwards.
    written = _write(folder / f"{environment.machine}.yaml", environment, results, ())
    return None if written is None else written.path.replace(folder / "baseline-candidate.yaml")


def _write(path: Path, environment: Environment, results: Results, stored_gates: tuple[Gate, ...]) -> Update | None:
    """Write a run's gates, pooled with the stored gates, to ``path``.

    A gate gets this run's key for its variant: engine, model, draft, dtype and flags. Returns None, and writes nothing, if no verdict of
    the run may become a gate.
    """
    verdicts, accepted = results.clean_verdicts, results.accepted
    changes = (
        *measure_floors(verdicts, stored_gates, accepted),
        *pool_lengths(verdicts, results.lengths, stored_gates, accepted),
    )
    if not changes:
        return None
    gates = (change.gate for change in changes)
    baseline_file.write(path, environment, [replace(gate, key=environment.key(gate.pair)) for gate in gates])
    return Update(path=path, moves=tuple(change.move for change in changes))


def unclean_lines(results: Results) -> tuple[str, ...]:
    """Return a line per unclean variant with verdicts on speed or acceptance.

    Nothing of such a variant enters a baseline file, since its answers are wrong, or its tokens were not judged.
    """
    variants = dict.fromkeys(verdict.pair for verdict in results.verdicts if isinstance(verdict.promise, _ON_SPEED))
    return tuple(f"no baseline of {pair}: {results.unclean[pair]}" for pair in variants if pair in results.unclean)


def refusal_lines(results: Results) -> tuple[str, ...]:
    """Return a line per speed or acceptance verdict kept out.

    A verdict is kept out of the baseline file if it failed and no regression is accepted, or if its speedup or its accepted lengths are
    unfit for a gate. Unclean variants have no lines here, since :func:`unclean_lines` names them.
    """
    verdicts, accepted = results.clean_verdicts, results.accepted
    failed = [v for v in verdicts if v.outcome is Outcome.FAIL and not accepted and isinstance(v.promise, _GATED)]
    unfit = (*unfit_verdicts(verdicts, accepted), *unfit_lengths(verdicts, results.lengths, accepted))
    return (
        *(f"{v.pair} {v.workload} failed and is not taken; if it is meant: {ACCEPT}" for v in failed),
        *(f"{v.pair} {v.workload} is not taken: {why}" for v, why in unfit),
    )
