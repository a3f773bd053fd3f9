"""Cells of the sensitivity matrix: a fault under one seed, family by family; each is kept in a file of its own."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from benchmarks.sensitivity.suite_run import ROOT
from pytest_specdec.reference.faulty_rules import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from benchmarks.sensitivity.suite_run import Judged
    from pytest_specdec.reference.faults.planted import Expected, PlantedFault

__all__ = ["Cell", "Finding", "Found", "Store", "cell", "digest"]

_JUDGED_BY = ("capture", "judge", "model", "prompts", "reference", "stats")
"""Packages that decide what a cell comes to, next to the suites."""
_FAULTS = {"faults", "faulty_rules"}
_NO_JUDGEMENT = {"error", "invalid", "failed"}


class Found(StrEnum):
    """What a fault came to."""

    CAUGHT = "caught"
    """By the family that should, with words that its row gives."""
    WRONG_NAME = "wrong name"
    """By that family, with other words."""
    ELSEWHERE = "caught elsewhere"
    """By no family that should, but by another."""
    MISSED = "missed"
    NOT_JUDGED = "not judged"
    """The suites came to no verdict: the server had no restart left, or the family has no suite."""
    CONSEQUENCE = "consequence"
    """Of a family that the row lets be red."""
    ALARM = "false alarm"
    """Of a family that the row says nothing of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one family said of the fault."""

    family: str
    found: Found
    name: str = ""
    tokens: int = 0
    """Of the judgement that found it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A fault under one seed."""

    fault: str
    seed: int
    depth: str
    found: Found
    """The worst of the families that should find it; CAUGHT_ELSEWHERE only where none of them is red."""
    findings: tuple[Finding, ...]
    seconds: float
    """Of its run, divided by the faults that shared it."""
    date: str

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """Families that turned red although the row does not say so."""
        return tuple(one for one in self.findings if one.found is Found.ALARM)


def cell(fault: PlantedFault, expected: Expected, judged: Sequence[Judged], *, seed: int, depth: str, seconds: float, date: str) -> Cell:
    """Return the cell of ``fault`` from the judgements of its variant."""
    wanted = tuple(_wanted(family, words, [one for one in judged if one.family == family]) for family, words in expected.red.items())
    names = dict.fromkeys(one.family for one in judged if one.red and one.family not in expected.red)
    others = tuple(
        _finding(family, Found.CONSEQUENCE if family in expected.may else Found.ALARM, [one for one in judged if one.family == family])
        for family in names
    )
    return Cell(
        fault=fault.id,
        seed=seed,
        depth=depth,
        found=_worst(wanted, others),
        findings=(*wanted, *others),
        seconds=round(seconds, 1),
        date=date,
    )


def _wanted(family: str, words: str, judged: Sequence[Judged]) -> Finding:
    red = [one for one in judged if one.red]
    if not red:
        blind = not judged or all(one.outcome in _NO_JUDGEMENT for one in judged)
        return Finding(family=family, found=Found.NOT_JUDGED if blind else Found.MISSED)
    text = " ".join(f"{one.name} {one.headline}" for one in red)
    return _finding(family, Found.CAUGHT if any(word in text for word in words.split("|")) else Found.WRONG_NAME, judged)


def _finding(family: str, found: Found, judged: Iterable[Judged]) -> Finding:
    first = next(one for one in judged if one.red)
    return Finding(family=family, found=found, name=first.name or first.headline, tokens=first.tokens)


def _worst(wanted: Sequence[Finding], others: Sequence[Finding]) -> Found:
    """Return what the fault came to: caught needs every family that should find it, a missed one weighs more than a wrong name."""
    found = {one.found for one in wanted}
    if not found & {Found.CAUGHT, Found.WRONG_NAME}:
        return Found.ELSEWHERE if others else Found.NOT_JUDGED if found == {Found.NOT_JUDGED} else Found.MISSED
    return next(worst for worst in (Found.MISSED, Found.NOT_JUDGED, Found.WRONG_NAME, Found.CAUGHT) if worst in found)


def digest(fault: PlantedFault) -> str:
    """Return a digest of the fault's row and rule, and of the suites, judges and the engine around it: a cell of another is stale."""
    rules = "".join(inspect.getsource(rule) for rule in registry.DECISIONS[fault.id].values())
    return hashlib.sha256(f"{fault!r}{rules}{_surroundings()}".encode()).hexdigest()[:16]


@cache
def _surroundings() -> str:
    folders = (ROOT / "suites", *(ROOT / "pytest_specdec" / name for name in _JUDGED_BY))
    files = (path for folder in folders for path in sorted(folder.rglob("*.py")) if path.parent.name not in _FAULTS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Cells as JSON files of a folder."""

    folder: Path

    def read(self, fault: PlantedFault, seed: int, depth: str) -> Cell | None:
        """Return the cell; None where there is none of this fault, these suites and this seed."""
        path = self._path(fault, seed, depth)
        if not path.exists():
            return None
        held = json.loads(path.read_text())
        findings = tuple(Finding(**{**one, "found": Found(one["found"])}) for one in held.pop("findings"))
        return Cell(**{**held, "found": Found(held["found"]), "findings": findings})

    def write(self, fault: PlantedFault, one: Cell) -> None:
        """Keep the cell."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(fault, one.seed, one.depth).write_text(json.dumps(asdict(one), indent=1) + "\n")

    def _path(self, fault: PlantedFault, seed: int, depth: str) -> Path:
        return self.folder / f"{fault.id}-{depth}-{seed}-{digest(fault)}.json"
