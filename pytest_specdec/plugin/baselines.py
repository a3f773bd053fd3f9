"""Baseline files: the gates that they hold for a machine, and how a run's speed gets into them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import baselines as stored
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, BOOT_SD, LEAST_SHARED, SPEEDUP, STATED_BOOTS, Gate
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import accepted_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.plugin.accepted_lengths import Results

__all__ = ["Update", "candidate", "check", "gates", "keep", "measured", "notes", "path", "refused", "update"]

BOOT_LOG_RATIO = "boot_log_ratio"
"""The figure of a speed verdict that tells how far the baseline's two boots lie apart."""
TOKENS_PER_STEP = "tokens_per_step"
WHOLE = "answers_in_one_burst"
"""The figure of a speed verdict that compares whole requests."""
DISTURBED = "disturbed"
"""The figure that marks a speed verdict as unfit: the client fell behind, others used the server, or it asked to slow down."""
WIDEST = 1.5
"""Upper over lower 95 % limit of a run that a floor may be made of.

Its limits are then a fifth away from it, about as far as the floor of a first run.
"""
SPREADS = 4.0
"""A floor stands so many standard deviations of a run, and one standard error of the typical run, under the typical one.

That is some 17 % after a first run, later on what the machine shows. The standard error is why a lucky run, or several, do not leave a
floor for good that later runs cannot prove, since it never comes down by itself (``benchmarks.speed_gate`` has the figures).
"""
FAR = 10.0
"""Standard deviations under the typical run at which a floor is out of reach; half of the typical ratio is, too."""
TAKEN = frozenset({Outcome.PASS, Outcome.NOT_DECIDED})
ACCEPT = '--specdec-update-baselines --specdec-accept-regression "why"'
_MAD_TO_SD = 1.4826
"""Of normal values."""


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
    """Return the gates of this machine's baseline file, with what has changed since; () without one.

    Speeds of another model, draft or dtype are left out, which :func:`notes` says; lengths are kept, and their judge says it.
    """
    return _current(stored.read(path(folder, config, environment)), environment)


def notes(folder: Path, config: str, environment: Environment | None) -> tuple[str, ...]:
    """Return a sentence per floor that holds no longer, and one when this config has baseline files, none of them of this machine."""
    if environment is None:
        return ()
    if path(folder, config, environment).is_file():
        return tuple(_void(folder, config, environment))
    machines = sorted({str(gate.machine) for gate in stored.other_machines(folder / config, environment.machine)})
    if not machines:
        return ()
    return (f"no baseline of this machine ({environment.machine}): those of {config} are of {', '.join(machines)} and not comparable",)


def _void(folder: Path, config: str, environment: Environment) -> Iterator[str]:
    for gate in stored.read(path(folder, config, environment)):
        changes = gate.changed(environment.key(gate.pair))
        if gate.figure == SPEEDUP and not replace(gate, changes=changes).comparable:
            yield f"floor not used: {gate} was measured with another {'; '.join(changes)}"


def check(folder: Path, config: str) -> None:
    """Read every baseline file of ``config``.

    Raises ConfigError or RunError, with file and line, for one that cannot be used, and for a gate that could never fail.
    """
    for gate in stored.other_machines(folder / config, ""):
        for key, found, expected in _vacuous(gate):
            remedy = "correct the file, or measure again with --specdec-update-baselines"
            what = "the baseline file has a gate that cannot fail"
            raise RunError(what, where=f"{gate.source}  {key}", found=found, expected=expected, remedy=remedy)


def _vacuous(gate: Gate) -> Iterator[tuple[str, str, str]]:
    """Yield key, found value and expected value of a gate that no run like those behind it could miss, however bad it got."""
    if gate.lengths and len(gate.lengths) < LEAST_SHARED:
        yield "lengths", f"{len(gate.lengths)} requests", f"{LEAST_SHARED} or more: fewer are never compared"
    if gate.figure == ACCEPTANCE_LENGTH and gate.at_least is not None and gate.at_least <= 1.0:
        yield "at_least", f"{gate.at_least:g}", "more than 1: a step brings one token whether or not a draft is accepted"
    if gate.figure == SPEEDUP and gate.at_least is not None and gate.log_ratios:
        typical, far = statistics.median(gate.log_ratios), FAR * _spread(gate)
        least = max(math.exp(typical - far), math.exp(typical) / 2.0)
        if gate.at_least < least:
            yield "at_least", f"{gate.at_least:g} under a median of {math.exp(typical):.2f}x", f"{least:.3g} or more"


def keep(folder: Path, config: str, environment: Environment, kept: Path) -> None:
    """Copy this machine's baseline file into ``kept``: a replay is judged by what the run was, whatever the file says by then."""
    source, copy = path(folder, config, environment), path(kept, config, environment)
    if source.is_file():
        atomic_write(copy, source.read_text(encoding="utf-8"))
    else:
        copy.unlink(missing_ok=True)


def measured(verdicts: Iterable[Verdict], known: tuple[Gate, ...], accepted: str = "") -> tuple[Gate, ...]:
    """Return a gate per speed verdict that may be taken: its log-ratios join those known, and the floor follows all of them, upwards.

    A floor comes down only where a regression is ``accepted``, for the reason given; a failed verdict is taken only then, and begins anew.
    What :func:`_unfit` names is left out.
    """
    taken = TAKEN | ({Outcome.FAIL} if accepted else set())
    timed = (v for v in _on_speed(verdicts) if v.outcome in taken)
    return tuple(_joined(verdict, known, accepted) for verdict in timed if not _unfit(verdict))


def _on_speed(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    return (v for v in verdicts if v.family is Family.SPEED and SPEEDUP in v.figures)


def _unfit(verdict: Verdict) -> str:
    """Return why no floor is made of a speed; empty where one is."""
    figures = verdict.figures
    if DISTURBED in figures:
        return verdict.reason
    if WHOLE in figures:
        return "answers came in one burst, so that whole requests were timed, which is another quantity than decoding"
    low, high = (figures.get(f"speedup_{end}", figures[SPEEDUP]) for end in ("low", "high"))
    return f"{figures[SPEEDUP]:.2f}x [{low:.2f}, {high:.2f}] is too wide for a floor" if high > WIDEST * low else ""


def _joined(verdict: Verdict, known: tuple[Gate, ...], accepted: str) -> Gate:
    before = _same(known, Gate(figure=SPEEDUP, pair=verdict.pair, workload=verdict.workload))
    kept = before if before and verdict.outcome is not Outcome.FAIL else None
    ratios = (*(kept.log_ratios if kept else ()), round(math.log(verdict.figures[SPEEDUP]), 6))
    apart, tokens = verdict.figures.get(BOOT_LOG_RATIO), verdict.figures.get(TOKENS_PER_STEP)
    gate = Gate(
        figure=SPEEDUP,
        pair=verdict.pair,
        workload=verdict.workload,
        log_ratios=ratios,
        log_tokens_per_step=(
            *(kept.log_tokens_per_step if kept else ()),
            *([] if tokens is None else [round(math.log(tokens), 6)]),
        ),
        boot_log_ratios=(*(before.boot_log_ratios if before else ()), *([] if apart is None else [round(apart, 6)])),
    )
    gate = replace(gate, at_least=_floor(gate), reason=_reason(gate))
    if before is None or before.at_least is None or (gate.at_least or 0.0) >= before.at_least:
        return replace(gate, accepted_regression=before.accepted_regression if before else "")
    return replace(gate, accepted_regression=accepted) if accepted else _unloosened(gate, before)


def _unloosened(gate: Gate, before: Gate) -> Gate:
    """Return ``gate`` with the floor that stood before, which is higher."""
    return replace(gate, at_least=before.at_least, reason=before.reason, accepted_regression=before.accepted_regression)


def _floor(gate: Gate) -> float:
    return round(math.exp(statistics.median(gate.log_ratios) - _deviations(gate) * _spread(gate)), 3)


def _deviations(gate: Gate) -> float:
    """Return how far the floor lies under the typical run, whose standard error is one deviation over the root of the number of runs."""
    return SPREADS + 1.0 / math.sqrt(len(gate.log_ratios))


def _reason(gate: Gate) -> str:
    runs, typical = len(gate.log_ratios), math.exp(statistics.median(gate.log_ratios))
    less = f"{_deviations(gate):.2g} x {_spread(gate):.1%}"
    return f"median {typical:.2f}x over {runs} run{'s' * (runs > 1)}, less {less}, by which a run varies"


def _spread(gate: Gate) -> float:
    """Return the standard deviation of a run's log-ratio around the typical one.

    A run's three boots make 1.5 times the variance of one: what is stated and what the baseline's boots of each run were measured to vary
    by, with the degrees of freedom of both, as in stats/speedup.py. So a first run on an unsteady machine knows that it may be a lucky one.
    The runs count for one less than there are, by their median absolute deviation, times 1.4826 to be a standard one: a single lucky or
    unlucky run moves neither it nor the median. The formula is written out, since stats/speedup.py needs numpy, which listing the suites
    does not load.
    """
    centre = statistics.median(gate.log_ratios)
    seen = _MAD_TO_SD * statistics.median(abs(ratio - centre) for ratio in gate.log_ratios)
    squares = STATED_BOOTS * BOOT_SD**2 + math.fsum(apart**2 / 2.0 for apart in gate.boot_log_ratios)
    boots, more = STATED_BOOTS + len(gate.boot_log_ratios), len(gate.log_ratios) - 1
    return math.sqrt((1.5 * squares + more * seen**2) / (boots + more))


def _same(gates: Iterable[Gate], wanted: Gate) -> Gate | None:
    about = (wanted.figure, wanted.pair, wanted.workload)
    return next((gate for gate in gates if (gate.figure, gate.pair, gate.workload) == about), None)


def update(folder: Path, config: str, environment: Environment, results: Results) -> Update | None:
    """Write this run's speed and accepted lengths into the baseline file; None when nothing may be taken."""
    target = path(folder, config, environment)
    known = _current(stored.read(target), environment)
    speed = _keyed(measured(results.verdicts, known, results.accepted), environment)
    pooled = accepted_lengths.pooled(results, known, environment)
    if not speed and not pooled:
        return None
    stored.write(target, environment, (*speed, *(one.gate for one in pooled)))
    moves = (_move(_same(known, gate), gate) for gate in speed)
    return Update(path=target, moves=(*moves, *(one.move for one in pooled)))


def _keyed(gates: Iterable[Gate], environment: Environment) -> tuple[Gate, ...]:
    return tuple(replace(gate, key=environment.key(gate.pair)) for gate in gates)


def _current(gates: Iterable[Gate], environment: Environment) -> tuple[Gate, ...]:
    """Return ``gates`` with what has changed since, without the floors on speed that another model, draft or dtype has made void."""
    marked = (replace(gate, changes=gate.changed(environment.key(gate.pair))) for gate in gates)
    return tuple(gate for gate in marked if gate.comparable or gate.lengths)


def _move(before: Gate | None, now: Gate) -> str:
    floors = [f"{gate.at_least:g}" for gate in (before, now) if gate is not None and gate.at_least is not None]
    floor, why = _floor(now), _reason(now)
    about = f"{now.figure} {now.pair} {now.workload}"
    if now.at_least is not None and floor < now.at_least:
        return f"{about}: at_least stays {now.at_least:g}; {why} would be {floor:g}; to lower it: {ACCEPT}"
    accepted = f"; accepted: {now.accepted_regression}" if now.accepted_regression and floors[0] != floors[-1] else ""
    return f"{about}: at_least {' -> '.join(floors)} ({why}){accepted}"


def refused(verdicts: Iterable[Verdict], accepted: str = "") -> tuple[str, ...]:
    """Return a line per verdict on speed or acceptance that is not taken: a failed one only where no regression is ``accepted``."""
    mine = [v for v in verdicts if v.family is Family.SPEED]
    failed = [v for v in mine if v.outcome is Outcome.FAIL and not accepted and {SPEEDUP, ACCEPTANCE_LENGTH} & set(v.figures)]
    unfit = [(v, why) for v in _on_speed(mine) if v.outcome in TAKEN and (why := _unfit(v))]
    return (
        *(f"{v.pair} {v.workload} failed and is not taken; if it is meant: {ACCEPT}" for v in failed),
        *(f"{v.pair} {v.workload} is not taken: {why}" for v, why in unfit),
    )


def candidate(folder: Path, environment: Environment, results: Results) -> Path | None:
    """Write what the baseline file would be as ``baseline-candidate.yaml`` into ``folder``; None when nothing was measured."""
    new = _keyed(measured(results.verdicts, ()), environment)
    pooled = accepted_lengths.pooled(results, (), environment)
    if not new and not pooled:
        return None
    written = folder / f"{environment.machine}.yaml"
    stored.write(written, environment, (*new, *(one.gate for one in pooled)))
    return written.replace(folder / "baseline-candidate.yaml")
