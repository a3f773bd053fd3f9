"""Baseline files: the gates that they hold for a machine, and how a run's speed gets into them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import baselines as stored
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, LAST_RUNS, LEAST_SHARED, SPEEDUP, Gate
from pytest_specdec.model.promise import AcceptedLength, DraftedTraffic, Speedup
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import accepted_lengths
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.stats.boot_spread import RUN_BOOTS, boot_spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.promise import AcceptedLength, DraftedTraffic, Speedup
from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.plugin.accepted_lengths import Results
    from pytest_specdec.report.run import JudgementResult

WIDEST, WIDEST_OVER_PASSES = 3.0, 1.5
"""Upper over lower 95 % limit of a run that a floor may be made of: with what boots may add, and over its passes alone."""
PROOF = 0.0075
"""Error of the limit that proves a floor, as in judge/speed_gates.py, which needs numpy."""
HEALTHY = 1.645
"""Standard deviations of a run under the typical one that 95 of 100 runs are above."""
NEAREST = 0.1
"""Nats under the typical run that every floor stands: no fewer, since passes vary too. What a floor proves is no more than that."""
FARTHEST = 0.55
"""Of the typical ratio: no floor is lower, however much runs vary. From half of it on a floor in a file could as well be none."""
NOTABLE = 0.02
"""Change of the typical ratio from which on it is given as the cause of a floor's move, and not what runs vary by."""
_BROKEN = frozenset({PytestOutcome.FAILED, PytestOutcome.WAIVED})
_ON_SPEED = (Speedup, AcceptedLength, DraftedTraffic)
TAKEN = frozenset({Outcome.PASS, Outcome.NOT_DECIDED})
ACCEPT = '--specdec-update-baselines --specdec-accept-regression "why"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A baseline file that was written, and how its floors moved."""

    path: Path
    moves: tuple[str, ...]
    """One line per gate, from the old floor to the new one."""


def path(folder: Path, config: str, environment: Environment) -> Path:
    """Return the baseline file of this config and machine."""
    return folder / config / f"{environment.machine}.yaml"


def gates(folder: Path, config: str, environment: Environment) -> tuple[Gate, ...]:
    """Return the gates of this machine's baseline file.

    Each has the changes since it was measured. () without a file. Speeds of another model, draft or dtype are left
    out; :func:`notes` reports them. Lengths are kept, and their judge reports the changes.
    """
    return _usable_gates(stored.read(path(folder, config, environment)), environment)


def notes(folder: Path, config: str, environment: Environment | None) -> tuple[str, ...]:
    """Return a sentence for each floor no longer valid.

    One sentence if this config has baseline files, but none of this machine. () without an environment.
    """
    if environment is None:
        return ()
    if path(folder, config, environment).is_file():
        return tuple(_describe_void_floors(folder, config, environment))
    machines = sorted({str(gate.machine) for gate in stored.other_machines(folder / config, environment.machine)})
    if not machines:
        return ()
    return (f"no baseline of this machine ({environment.machine}): those of {config} are of {', '.join(machines)} and not comparable",)


def _describe_void_floors(folder: Path, config: str, environment: Environment) -> Iterator[str]:
    """Yield a sentence for each floor no longer valid."""
    for gate in stored.read(path(folder, config, environment)):
        changes = gate.changed(environment.key(gate.pair))
        if gate.figure == SPEEDUP and not replace(gate, changes=changes).comparable:
            yield f"floor not used: {gate} was measured with another {'; '.join(changes)}"


def check(folder: Path, config: str) -> None:
    """Read every baseline file of ``config``.

    Raises ConfigError or RunError, with file and line, for one that cannot be used, and for a gate that could never fail.
    """
    for gate in stored.other_machines(folder / config, ""):
        for key, found, expected in _find_vacuous_limits(gate):
            remedy = "correct the file, or measure again with --specdec-update-baselines"
            what = "the baseline file has a gate that cannot fail"
            raise RunError(what, where=f"{gate.source}  {key}", found=found, expected=expected, remedy=remedy)


def _find_vacuous_limits(gate: Gate) -> Iterator[tuple[str, str, str]]:
    """Yield key, found value and expected value of a vacuous gate.

    Vacuous is a gate that no run like those that made it could miss, however bad it got.
    """
    if gate.lengths and len(gate.lengths) < LEAST_SHARED:
        yield "lengths", f"{len(gate.lengths)} requests", f"{LEAST_SHARED} or more: fewer are never compared"
    if gate.figure == ACCEPTANCE_LENGTH and gate.at_least is not None and gate.at_least <= 1.0:
        yield "at_least", f"{gate.at_least:g}", "more than 1: a step brings one token whether or not a draft is accepted"
    if gate.figure == SPEEDUP and gate.at_least is not None and gate.log_ratios:
        typical = math.exp(statistics.median(gate.log_ratios))
        if gate.at_least < typical / 2.0:
            yield "at_least", f"{gate.at_least:g} under a median of {typical:.2f}x", f"{typical / 2.0:.3g} or more"


def keep(folder: Path, config: str, environment: Environment, kept: Path) -> None:
    """Copy this machine's baseline file into ``kept``.

    A replay is judged by the file as it was at the run, whatever it holds later. Without a file, an old copy is
    removed.
    """
    source, copy = path(folder, config, environment), path(kept, config, environment)
    if source.is_file():
        atomic_write(copy, source.read_text(encoding="utf-8"))
    else:
        copy.unlink(missing_ok=True)


def measured_gates(verdicts: Iterable[Verdict], known: tuple[Gate, ...], accepted: str = "") -> tuple[Gate, ...]:
    """Return a gate for each speed verdict fit for a baseline.

    The verdict's log-ratio joins those in ``known``, and the floor follows the last ten, up or down.

    A failed verdict is taken only if a regression is ``accepted``, for the reason given, and begins anew. Verdicts
    that :func:`_why_unfit` has a reason against are left out.
    """
    taken = TAKEN | ({Outcome.FAIL} if accepted else set())
    timed = (pair for pair in _select_speed(verdicts) if pair[0].outcome in taken)
    return tuple(_join_gate(verdict, speedup, known, accepted) for verdict, speedup in timed if not _why_unfit(speedup))


def _select_speed(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, Speedup]]:
    """Yield the verdicts with a speedup, and the speedup."""
    return ((verdict, verdict.promise) for verdict in verdicts if isinstance(verdict.promise, Speedup))


def _why_unfit(speedup: Speedup) -> str:
    """Return the reason a speedup is unfit for a floor.

    Empty if it is fit.
    """
    if speedup.unfit:
        return speedup.unfit
    for limits, widest, over in (
        (speedup.over_passes, WIDEST_OVER_PASSES, " over the passes alone"),
        (speedup.limits, WIDEST, ""),
    ):
        if limits is not None and limits.high > widest * limits.low:
            return f"{speedup.ratio:.2f}x [{limits.low:.2f}, {limits.high:.2f}]{over} is too wide for a floor"
    return ""


def _join_gate(verdict: Verdict, speedup: Speedup, known: tuple[Gate, ...], accepted: str) -> Gate:
    """Return the gate with the verdict's run added."""
    stored_gate = _find_gate(known, Gate(figure=SPEEDUP, pair=verdict.pair, workload=verdict.workload))
    continued_gate = stored_gate if stored_gate and verdict.outcome is not Outcome.FAIL else None
    tokens = speedup.tokens_per_step
    gate = Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        log_ratios=_append_run(continued_gate.log_ratios if continued_gate else (), math.log(speedup.ratio)),
        log_tokens_per_step=_append_run(
            continued_gate.log_tokens_per_step if continued_gate else (), None if tokens is None else math.log(tokens)
        ),
        boot_log_ratios=_append_run(stored_gate.boot_log_ratios if stored_gate else (), speedup.boot_log_ratio),
    )
    gate = replace(gate, at_least=_floor_of_gate(gate))
    is_lower = stored_gate is not None and stored_gate.at_least is not None and (gate.at_least or 0.0) < stored_gate.at_least
    earlier_reason = stored_gate.accepted_regression if stored_gate else ""
    return replace(
        gate, reason=_describe_floor(gate, stored_gate), accepted_regression=accepted if accepted and is_lower else earlier_reason
    )


def _append_run(values: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    """Return the last ``LAST_RUNS`` values, with ``value`` as the newest.

    None adds no value. A machine changes, so older runs say little of it.
    """
    return (*values, *([] if value is None else [round(value, 6)]))[-LAST_RUNS:]


def _floor_of_gate(gate: Gate) -> float:
    """Return the floor proved by the gate's runs."""
    typical = math.exp(statistics.median(gate.log_ratios))
    return round(max(typical * math.exp(-_margin_below_typical(gate)), typical * FARTHEST), 3)


def _margin_below_typical(gate: Gate) -> float:
    """Return the floor's distance below the typical run, in nats.

    95 of 100 runs like those measured prove the floor, as far as is known.

    Such a run lies up to 1.645 s sqrt(1 + pi / (2 n)) under the median of n runs, s^2 = 1.5 sigma^2 over its three
    boots. It proves what lies another half-width of its own lower limit below. sigma is what both boots of the
    baseline and the runs themselves show. The half-width is over all values of it that they leave open: a first run
    may be a lucky one, and so leaves a low floor.
    """
    runs, spread = len(gate.log_ratios), boot_spread(gate.boot_log_ratios, runs=gate.log_ratios)
    unlucky = HEALTHY * math.sqrt(RUN_BOOTS * (1.0 + math.pi / (2.0 * runs))) * spread.sd
    return max(NEAREST, unlucky + spread.half_width(PROOF, RUN_BOOTS))


def _describe_floor(gate: Gate, stored_gate: Gate | None) -> str:
    """Return the floor's origin, and the reason if it moved."""
    runs, typical = len(gate.log_ratios), math.exp(statistics.median(gate.log_ratios))
    count = f"{runs} run{'s' * (runs > 1)}{': add more' * (runs == 1)}"
    spread = boot_spread(gate.boot_log_ratios, runs=gate.log_ratios).sd
    margin = 1.0 - (gate.at_least or 0.0) / typical
    move = _describe_move(stored_gate, gate) if stored_gate is not None and stored_gate.at_least is not None else ""
    return f"median {typical:.2f}x over {count}, less {margin:.1%}, which healthy runs prove where boots vary by {spread:.1%}{move}"


def _describe_move(stored_gate: Gate, new_gate: Gate) -> str:
    """Return the direction and cause of a floor's move.

    Empty if it did not move.
    """
    if stored_gate.at_least == new_gate.at_least or not stored_gate.log_ratios:
        return ""
    direction = "down" if (new_gate.at_least or 0.0) < (stored_gate.at_least or 0.0) else "up"
    stored_median, new_median = (statistics.median(gate.log_ratios) for gate in (stored_gate, new_gate))
    if abs(new_median - stored_median) >= NOTABLE and (new_median > stored_median) == (direction == "up"):
        cause = f"the typical run went from {math.exp(stored_median):.2f}x to {math.exp(new_median):.2f}x"
    else:
        cause = f"{len(new_gate.log_ratios)} runs show {'more' if direction == 'down' else 'less'} spread than was reckoned with"
    return f"; {direction} from {stored_gate.at_least:g}, as {cause}"


def _find_gate(gates: Iterable[Gate], wanted: Gate) -> Gate | None:
    """Return the gate of the same figure, pair and workload."""
    cell = (wanted.figure, wanted.pair, wanted.workload)
    return next((gate for gate in gates if (gate.figure, gate.pair, gate.workload) == cell), None)


def update(folder: Path, config: str, environment: Environment, results: Results) -> Update | None:
    """Write this run's speed and accepted lengths into the baseline file.

    None when nothing may be taken.
    """
    target, results = path(folder, config, environment), results.clean
    stored_gates = _usable_gates(stored.read(target), environment)
    speed = _with_keys(measured_gates(results.verdicts, stored_gates, results.accepted), environment)
    pooled = accepted_lengths.pool_lengths(results, stored_gates, environment)
    if not speed and not pooled:
        return None
    stored.write(target, environment, (*speed, *(lengths.gate for lengths in pooled)))
    moves = (_describe_update(_find_gate(stored_gates, gate), gate) for gate in speed)
    return Update(path=target, moves=(*moves, *(lengths.move for lengths in pooled)))


def _with_keys(gates: Iterable[Gate], environment: Environment) -> tuple[Gate, ...]:
    return tuple(replace(gate, key=environment.key(gate.pair)) for gate in gates)


def _usable_gates(gates: Iterable[Gate], environment: Environment) -> tuple[Gate, ...]:
    """Return ``gates`` with the changes since they were measured.

    Floors on speed are left out if they are void: measured with another model, draft or dtype.
    """
    compared = (replace(gate, changes=gate.changed(environment.key(gate.pair))) for gate in gates)
    return tuple(gate for gate in compared if gate.comparable or gate.lengths)


def _describe_update(stored_gate: Gate | None, new_gate: Gate) -> str:
    """Return a line on a gate's old and new floor."""
    floors = [f"{gate.at_least:g}" for gate in (stored_gate, new_gate) if gate is not None and gate.at_least is not None]
    subject = f"{new_gate.figure} {new_gate.pair} {new_gate.workload}"
    accepted = f"; accepted: {new_gate.accepted_regression}" if new_gate.accepted_regression and floors[0] != floors[-1] else ""
    return f"{subject}: at_least {' -> '.join(floors)} ({new_gate.reason}){accepted}"


def unclean(judgements: Iterable[JudgementResult]) -> dict[str, str]:
    """Return the reasons against a baseline, by variant.

    A variant has one if it has a correctness failure, or if neither greedy nor sampling was judged. A lossy mode is
    clean in spite of failures that its config has only reported.
    """
    by_pair: dict[str, list[JudgementResult]] = {}
    for judgement in judgements:
        by_pair.setdefault(judgement.pair, []).append(judgement)
    reasons = {pair: _reason_against_baseline([j for j in results if j.family is not Family.SPEED]) for pair, results in by_pair.items()}
    return {pair: why for pair, why in reasons.items() if why}


def _reason_against_baseline(results: Sequence[JudgementResult]) -> str:
    """Return the reason against a baseline of one variant.

    Empty if it is clean.
    """
    broken = [j for j in results if j.result in _BROKEN and (j.verdict is None or j.verdict.red or j.verdict.outcome is Outcome.SUSPICIOUS)]
    if broken:
        return f"it is not clean: {', '.join(dict.fromkeys(j.family.value for j in broken))} failed"
    if not any(j.judged and j.family in {Family.GREEDY, Family.SAMPLING} for j in results):
        return "whether its tokens are right was not judged: run suites/greedy or suites/sampling with it"
    return ""


def not_clean(results: Results) -> tuple[str, ...]:
    """Return a line per unclean variant with speed or acceptance.

    Nothing of it is taken, for want of right answers.
    """
    timed = dict.fromkeys(verdict.pair for verdict in results.verdicts if isinstance(verdict.promise, _ON_SPEED))
    return tuple(f"no baseline of {pair}: {results.unclean[pair]}" for pair in timed if pair in results.unclean)


def refusal_lines(verdicts: Iterable[Verdict], accepted: str = "") -> tuple[str, ...]:
    """Return a line per rejected verdict on speed or acceptance.

    A failed verdict is rejected unless a regression is ``accepted``.
    """
    failed = [v for v in verdicts if v.outcome is Outcome.FAIL and not accepted and isinstance(v.promise, _ON_SPEED)]
    unfit = [(v, why) for v, speedup in _select_speed(verdicts) if v.outcome in TAKEN and (why := _why_unfit(speedup))]
    return (
        *(f"{v.pair} {v.workload} failed and is not taken; if it is meant: {ACCEPT}" for v in failed),
        *(f"{v.pair} {v.workload} is not taken: {why}" for v, why in unfit),
    )


def candidate(folder: Path, environment: Environment, results: Results) -> Path | None:
    """Write a candidate baseline file, ``baseline-candidate.yaml``, into ``folder``.

    It is what the baseline file would be. None when nothing may be taken.
    """
    results = results.clean
    speed_gates = _with_keys(measured_gates(results.verdicts, ()), environment)
    pooled = accepted_lengths.pool_lengths(results, (), environment)
    if not speed_gates and not pooled:
        return None
    target = folder / f"{environment.machine}.yaml"
    stored.write(target, environment, (*speed_gates, *(lengths.gate for lengths in pooled)))
    return target.replace(folder / "baseline-candidate.yaml")
