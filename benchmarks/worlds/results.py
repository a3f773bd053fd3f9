"""Outcomes of simulated judgements by world, fault and cell: a letter a run, in one file that runs can be added to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.detection.store import digest, environment
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.proportions import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["AGAIN", "HEALTHY", "LETTERS", "Cells", "Outcomes", "page"]

FOLDER: Final = Path("benchmarks/results")
HEALTHY: Final = "healthy"
LETTERS: Final[Mapping[Outcome, str]] = {
    Outcome.PASS: "p",
    Outcome.FAIL: "F",
    Outcome.INVALID: "I",
    Outcome.INCONCLUSIVE: "C",
    Outcome.SUSPICIOUS: "S",
    Outcome.NOT_SPECULATING: "N",
    Outcome.REFUSED: "R",
    Outcome.NOT_DECIDED: "D",
}
AGAIN: Final = "a"
"""A pass after what was open had been asked again."""
CONTROL: Final = "X"
"""A failing control: a set-up error, whatever the variant's verdict would be."""
ERROR: Final = "E"
"""A judge that raises."""
_RED: Final = frozenset("FICSNXE")
_NOT_YET: Final = "."
_JUDGED: Final = ("pytest_specdec/stats", "pytest_specdec/judge", "benchmarks/worlds")
_SHOWN: Final = 12
_SURE: Final = 0.99
"""Of the upper limit, one-sided."""


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """The outcomes of one cell."""

    letters: str = ""
    """One per run from 0; a full stop for one that is not there yet."""
    examples: dict[str, str] = field(default_factory=dict)
    """Headlines by run, of the first that did not pass."""

    def has(self, run: int) -> bool:
        """Whether ``run`` is there."""
        return run < len(self.letters) and self.letters[run] != _NOT_YET

    def add(self, run: int, letter: str, headline: str) -> None:
        """Take in one run."""
        letters = self.letters.ljust(run + 1, _NOT_YET)
        self.letters = letters[:run] + letter + letters[run + 1 :]
        if letter != LETTERS[Outcome.PASS] and len(self.examples) < _SHOWN:
            self.examples[str(run)] = f"{letter} {headline[:200]}"

    @property
    def counts(self) -> Counter[str]:
        """Runs by letter."""
        return Counter(self.letters.replace(_NOT_YET, ""))


class Cells:
    """The outcomes of all cells; those measured by other judges or simulations are dropped, unless the file is only read."""

    def __init__(self, path: Path = FOLDER / "worlds.json", *, read_only: bool = False) -> None:
        self.path, self.digest = path, digest(Path(), _JUDGED)
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not read_only and content.get("judged") != self.digest:
            content = {}
        stored = content.get("cells", {})
        self.cells = {key: Outcomes(**value) for key, value in stored.items()}

    def of(self, world: str, fault: str, cell: str) -> Outcomes:
        """Return the outcomes of one cell, empty ones where there are none."""
        return self.cells.setdefault(f"{world} | {fault} | {cell}", Outcomes())

    def write(self) -> None:
        """Write everything, whole or not at all, and the page beside it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cells = {key: {"letters": one.letters, "examples": one.examples} for key, one in sorted(self.cells.items()) if one.letters}
        document = {"environment": environment(), "judged": self.digest, "cells": cells}
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        beside.replace(self.path)
        self.path.with_suffix(".md").write_text(page(self.cells), encoding="utf-8")

    def rows(self, worlds: Iterable[str], fault: str, cells: Iterable[str]) -> list[str]:
        """Return a line per cell and one per world for whole runs."""
        return [line for world in worlds for line in _world(world, {cell: self.of(world, fault, cell) for cell in cells})]


_HEAD: Final = (
    "| world | judgement | runs | pass | pass, asked again | fail | invalid | inconclusive | suspicious | control fails | other |"
)
_RULE: Final = "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"


def page(cells: Mapping[str, Outcomes]) -> str:
    """Return every cell as Markdown, a table per fault, and the whole runs."""
    keys = [tuple(key.split(" | ")) for key in cells]
    lines = ["# Worlds\n", "`python -m benchmarks.worlds --write`: correct servers whose numbers are not exact, and faulty ones.\n"]
    for fault in sorted({fault for _, fault, _ in keys}, key=lambda one: (one != HEALTHY, one)):
        lines += [f"## {fault}\n", _HEAD, _RULE]
        for world in dict.fromkeys(world for world, other, _ in keys if other == fault):
            chosen = {cell: cells[f"{world} | {fault} | {cell}"] for one, other, cell in keys if (one, other) == (world, fault)}
            lines += _world(world, chosen)
        lines += [*(_all(cells) if fault == HEALTHY else ()), ""]
    return "\n".join(lines)


def _world(world: str, cells: Mapping[str, Outcomes]) -> list[str]:
    lines = [_line(world, cell, one.counts) for cell, one in cells.items() if one.counts]
    red, whole = _whole(cells.values())
    return [*lines, _total(f"**{world}** | **any of {len(cells)}**", red, whole)] if len(cells) > 1 and whole else lines


def _all(cells: Mapping[str, Outcomes]) -> list[str]:
    """Return the line that counts the whole runs of correct servers."""
    by_world: dict[str, list[Outcomes]] = {}
    for key, one in cells.items():
        world, other, _ = key.split(" | ")
        if other == HEALTHY:
            by_world.setdefault(world, []).append(one)
    counts = [_whole(several) for several in by_world.values()]
    red, whole = (sum(each) for each in zip(*counts, strict=True))
    return [_total(f"**{len(by_world)} worlds** | **whole runs**", red, whole)] if len(by_world) > 1 and whole else []


def _whole(cells: Collection[Outcomes]) -> tuple[int, int]:
    """Return how many of the runs that every cell has are red, and how many there are."""
    runs = min((len(one.letters) for one in cells), default=0)
    whole = [run for run in range(runs) if all(one.has(run) for one in cells)]
    return sum(any(one.letters[run] in _RED for one in cells) for run in whole), len(whole)


def _total(names: str, red: int, whole: int) -> str:
    most = limits(red, whole, 2.0 * _SURE - 1.0).high
    return f"| {names} | {whole} | {whole - red} | {red} red, at most {most:.3%} | | | | | | |"


def _line(world: str, cell: str, counts: Counter[str]) -> str:
    shown = [counts[letter] for letter in f"p{AGAIN}FICSX"]
    other = counts.total() - sum(shown)
    return f"| {world} | {cell} | {counts.total()} | {' | '.join(map(str, shown))} | {other} |"
