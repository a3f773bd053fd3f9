"""Targets: limits of the figures, each met or missed with its figure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.detection.cells import mode_name
from benchmarks.detection.faults import GREEDY
from benchmarks.detection.grid import EXACT, SURROGATE
from benchmarks.detection.promises import kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["INVISIBLE", "Target", "invisible", "judged"]

KNOWN, HIDDEN = mode_name(EXACT, windows=True), mode_name(EXACT, windows=False)
GUESSED = mode_name(SURROGATE, windows=True)
INVISIBLE = 3e-4
"""Nats a token below which no test of tokens sees a fault in time."""
OVERALL, EACH, SMALL, QUICK = 1.6, 2.5, 50.0, 60.0
RIGHT = 0.95
LARGE, WITHIN = 0.05, 16_384

Cell = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target."""

    words: str
    figure: str
    met: bool
    missed: tuple[str, ...] = ()
    """Which faults miss it, with their figures."""
    scarce: bool = True
    """Whether a few runs of few tokens may miss it by chance or for want of tokens."""

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'}  {self.words}: {self.figure}" + "".join(f"\n          {one}" for one in self.missed)


def label(cell: Cell) -> str:
    """Return what a cell is called."""
    return f"{cell['fault']} ({cell['kind']})"


def way(cell: Cell, name: str = KNOWN) -> Mapping[str, object]:
    """Return what was measured in one of the ways of judging."""
    return cell["ways"][name]


def invisible(cell: Cell) -> bool:
    """Whether its divergence is below what shows in time."""
    return cell.get("divergence", inf) < INVISIBLE


def judged(cells: Sequence[Cell], promises: Sequence[Cell]) -> list[Target]:
    """Return all targets that ``cells`` and ``promises`` speak of."""
    closed = [cell for cell in cells if cell["kind"] and "bound" in cell and cell["directed"] and not invisible(cell)]
    return [*_speed(closed), *_naming(cells), _guessing(cells), _promises(promises)]


def _all(words: str, limit: str, found: Iterable[tuple[Cell, float, bool]], digits: int = 2) -> Target:
    rows = list(found)
    missed = tuple(f"{label(cell)}: {figure:.{digits}f}" for cell, figure, good in rows if not good)
    worst = f"{len(rows) - len(missed)} of {len(rows)} {limit}"
    return Target(words=words, figure=worst, met=not missed and bool(rows), missed=missed)


def _speed(closed: Sequence[Cell]) -> Iterable[Target]:
    ratios = [(cell, way(cell)["median"] / cell["bound"]) for cell in closed]
    middle = median(ratio for _, ratio in ratios)
    yield Target(
        words=f"median tokens over bound, median of {len(ratios)} closed-form faults",
        figure=f"{middle:.2f} (at most {OVERALL})",
        met=middle <= OVERALL,
        scarce=False,
    )
    yield _all(
        f"the same where the bound is {SMALL:g} tokens or more",
        f"at most {EACH}",
        ((cell, ratio, ratio <= EACH) for cell, ratio in ratios if cell["bound"] >= SMALL),
    )
    fast = [cell for cell in closed if cell["bound"] < SMALL]
    yield _all(
        "median tokens of the others", f"at most {QUICK:g}", ((c, way(c)["median"], way(c)["median"] <= QUICK) for c in fast), digits=0
    )


def _naming(cells: Sequence[Cell]) -> Iterable[Target]:
    for mode, words in ((KNOWN, "windows known"), (HIDDEN, "windows hidden")):
        ends = [(cell, way(cell, mode)["at_end"]) for cell in cells]
        shares = [(cell, end["family"] / end["named"]) for cell, end in ends if end["named"] and end["family"] is not None]
        yield _all(f"right family at the end of the budget, {words}", f"at least {RIGHT}", ((c, s, s >= RIGHT) for c, s in shares))
        yield _overall(f"right family over all runs, {words}", [end for _, end in ends])
    ends = [(cell, way(cell)["at_end"]) for cell in cells if cell["kind"] == GREEDY]
    shares = [(cell, end["rule"] / end["named"]) for cell, end in ends if end["named"] and end["rule"] is not None]
    yield _all("right rule, windows and drafts known", f"at least {RIGHT}", ((c, s, s >= RIGHT) for c, s in shares))


def _overall(words: str, ends: Sequence[Mapping[str, object]]) -> Target:
    named_ends = [end for end in ends if end["named"] and end["family"] is not None]
    right, named = sum(end["family"] for end in named_ends), sum(end["named"] for end in named_ends)
    share = right / max(named, 1)
    return Target(words=words, figure=f"{right:,} of {named:,}, {share:.3f} (at least {RIGHT})", met=share >= RIGHT)


def _guessing(cells: Sequence[Cell]) -> Target:
    large = [cell for cell in cells if cell.get("variation", 0.0) >= LARGE and cell["directed"]]
    return _all(
        f"without q, windows known: median of every fault of total variation {LARGE} or more",
        f"within {WITHIN:,} tokens",
        ((cell, float(way(cell, GUESSED)["median"]), float(way(cell, GUESSED)["median"]) <= WITHIN) for cell in large),
        digits=0,
    )


def _promises(promises: Sequence[Cell]) -> Target:
    missed = tuple(
        f"{row['fault']} ({row['kind']}, {row['tokens']:,} tokens): promised {row['promised']:.3f}, "
        f"observed {row['observed']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        for row in promises
        if not kept(row)
    )
    figure = f"{len(promises) - len(missed)} of {len(promises)} within the interval of the observed power or below it"
    return Target(words="promised power", figure=figure, met=not missed and bool(promises), missed=missed, scarce=False)
