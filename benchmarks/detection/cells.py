"""Cells: one fault under one kind of draft, simulated once and judged in every way."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bank import asking
from benchmarks.detection.alarms import Runs, first_alarms, names, quantile
from benchmarks.detection.bounds import bound, distance, distributions
from benchmarks.detection.grid import EXACT, NONE, SURROGATE, Grid, grid
from benchmarks.simulation import emit

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from benchmarks.bank import Asked, Bank
    from benchmarks.detection.faults import SimulatedFault
    from benchmarks.simulation import Rules
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["MODES", "Scale", "Table", "drawn", "measured", "mode_name"]

WAYS = (EXACT, SURROGATE, NONE)
BEYOND = 3.0
MOST_PASSES = 8192
"""Tokens of a run drawn at a time."""
MODES = tuple((knows, windows) for knows in WAYS for windows in (True, False))
"""What the judge knows of the draft, and whether it knows the windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated."""

    positions: int
    """Of the bank."""
    runs: int
    named: int
    """Of these runs, whose names are looked at."""
    tokens: int
    """The budget of a run, at the end of which it is named."""
    most: int
    """Tokens after which a run that is still silent is given up."""
    farthest: int
    """The same where everything is known and the bound lies so far that ``most`` is less than BEYOND times it."""
    alpha: float
    k: int = 3
    answer: int = 64
    """Tokens of an answer."""
    seed: int = 1
    listed: bool = False
    """Whether cells hold every run's tokens to its alarm."""

    @property
    def level(self) -> float:
        """The log wealth that alarms."""
        return -log(self.alpha)

    def random(self, *words: str) -> np.random.Generator:
        """Return a generator that hangs on the seed and ``words`` only, so that cells may be made in any order."""
        return np.random.default_rng([self.seed, *(zlib.crc32(word.encode()) for word in words)])


@dataclass(slots=True, kw_only=True)
class Table:
    """The grids of one way of asking, made when they are first needed."""

    banks: Mapping[str, Bank]
    """By kind, nothing asked of them."""
    asked: Asked
    k: int
    grids: dict[tuple[str, str, bool], Grid] = field(default_factory=dict)

    def bank(self, kind: str) -> Bank:
        """Return the bank as asked."""
        plain = self.asked.temperature == 1.0 and self.asked.top_p == 1.0
        return self.banks[kind] if plain else asking(self.banks[kind], self.asked)

    def grid(self, kind: str, knows: str, *, windows: bool) -> Grid:
        """Return what the panel is paid."""
        if knows == NONE:
            return self.grid(kind, SURROGATE, windows=windows).without_guesses
        if knows == EXACT and not windows:
            return self.grid(kind, EXACT, windows=True).without_windows
        key = (kind if knows == EXACT else "", knows, windows)
        if key not in self.grids:
            self.grids[key] = grid(self.bank(kind), knows, windows=windows, k=self.k)
        return self.grids[key]

    def fill(self) -> None:
        """Make every grid."""
        for kind in self.banks:
            for knows, windows in MODES:
                self.grid(kind, knows, windows=windows)


def mode_name(knows: str, *, windows: bool) -> str:
    """Return a mode in words."""
    return f"{knows}, windows {'known' if windows else 'hidden'}"


def measured(table: Table, one: SimulatedFault, kind: str, scale: Scale) -> dict[str, object]:
    """Return everything that is measured of ``one`` under drafts of ``kind``, ready to be stored."""
    bank = table.bank(kind)
    stretches = _Stretches(bank=bank, one=one, kind=kind, scale=scale)
    runs = stretches.at(0)
    cell: dict[str, object] = {"fault": one.id, "kind": kind, "directed": one.directed, "runs": scale.runs, "named_runs": scale.named}
    if one.closed:
        away = distance(bank, distributions(bank, one.rules, k=scale.k, tokens=scale.answer))
        cell |= {
            "variation": away.variation,
            "divergence": away.divergence,
            "divergence_hidden": away.divergence_hidden,
            "bound": bound(away.divergence, scale.alpha),
            "bound_hidden": bound(away.divergence_hidden, scale.alpha),
        }
    ways = {}
    for knows, windows in MODES:
        panel = table.grid(kind, knows, windows=windows)
        far = knows == EXACT and windows and scale.most < BEYOND * float(cell.get("bound", 0.0)) <= scale.farthest
        alarms = _alarms(stretches, panel, scale, most=scale.farthest if far else scale.most)
        way: dict[str, object] = {
            "median": quantile(alarms, 0.5),
            "late": quantile(alarms, 0.99),
            "alarmed": int(np.isfinite(alarms).sum()),
            **({"alarms": sorted(alarms.tolist())} if scale.listed else {}),
        }
        if knows == EXACT:
            some = replace(runs, trace=runs.trace.part(slice(0, scale.named * runs.answers)))
            named = _naming(some, panel, alarms[: scale.named], windows=windows)
            way |= {when: _told(one, kind, counted, windows=windows) for when, counted in named.items()}
        ways[mode_name(knows, windows=windows)] = way
    return cell | {"ways": ways}


def drawn(bank: Bank, rules: Rules, scale: Scale, random: np.random.Generator, *, tokens: int, runs: int) -> Runs:
    """Return so many runs of a server with ``rules``."""
    answers = tokens // scale.answer
    trace = emit(bank, rules, random, answers=runs * answers, tokens=scale.answer, k=scale.k)
    return Runs(bank=bank, trace=trace, answers=answers, k=scale.k)


@dataclass(slots=True, kw_only=True)
class _Stretches:
    """The tokens of all runs, a budget's worth at first and then as many again as so far, MOST_PASSES at most; drawn when first needed."""

    bank: Bank
    one: SimulatedFault
    kind: str
    scale: Scale
    made: dict[int, Runs] = field(default_factory=dict)

    def at(self, spent: int) -> Runs:
        """Return the stretch that begins after ``spent`` tokens."""
        if spent not in self.made:
            tokens = min(spent, MOST_PASSES) if spent else self.scale.tokens
            random = self.scale.random(self.one.id, self.kind, str(spent))
            self.made[spent] = drawn(self.bank, self.one.rules, self.scale, random, tokens=tokens, runs=self.scale.runs)
        return self.made[spent]


def _alarms(stretches: _Stretches, panel: Grid, scale: Scale, *, most: int) -> Floats:
    """Return tokens to an alarm of every run; those still silent at the end of the budget go on with further tokens."""
    alarms, wealth = first_alarms(stretches.at(0), panel, scale.level)
    spent = scale.tokens
    while spent < most and np.isinf(alarms).any():
        silent = np.flatnonzero(np.isinf(alarms))
        later = stretches.at(spent)
        rows = (silent[:, None] * later.answers + np.arange(later.answers)).ravel()
        reached, wealth[silent] = first_alarms(replace(later, trace=later.trace.part(rows)), panel, scale.level, wealth[silent])
        alarms[silent] = spent + reached
        spent += later.tokens
    return alarms


def _naming(runs: Runs, panel: Grid, alarms: Floats, *, windows: bool) -> dict[str, Counter[str]]:
    """Return what is named at the alarm and at the end of the budget, of the runs that alarmed within it."""
    within = np.where(alarms <= runs.tokens, alarms, inf)
    return {
        "at_alarm": names(runs, panel, within, windows=windows),
        "at_end": names(runs, panel, np.where(np.isfinite(within), float(runs.tokens), inf), windows=windows),
    }


def _told(one: SimulatedFault, kind: str, counted: Counter[str], *, windows: bool) -> dict[str, object]:
    return {
        "named": counted.total(),
        "family": sum(count for name, count in counted.items() if one.names_family(name, kind, windows=windows)) if one.family else None,
        "rule": sum(count for name, count in counted.items() if one.names_rule(name, kind)) if one.rule and windows else None,
        "names": dict(counted.most_common()),
    }
