"""Cells of the sensitivity matrix: a fault under one seed, family by family; the judgements behind each are kept in a file of their own."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from benchmarks.sensitivity.suite_run import ROOT, Judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from specdec_reference.faults.planted import Expected, PlantedFault

__all__ = ["Cell", "Finding", "Found", "Measured", "Store", "captured_by", "cell", "judged_by"]

_CAPTURED_BY = (
    "suites",
    "pytest_specdec/capture",
    "pytest_specdec/engines",
    "pytest_specdec/model",
    "pytest_specdec/prompts",
    "specdec_reference",
)
"""Folders whose code decides which answers are captured."""
_JUDGED_BY = ("pytest_specdec/judge", "pytest_specdec/gates", "pytest_specdec/stats")
"""Folders whose code decides the verdicts on them."""
_FAULTS = {"faults"}
_NO_JUDGEMENT = {"error", "invalid", "failed"}
_UNDECIDED = {"inconclusive", "suspicious"}


class Found(StrEnum):
    """What a fault came to."""

    CAUGHT = "caught"
    """By the family that should, with words that its row gives."""
    WRONG_NAME = "wrong name"
    """By that family, with other words."""
    ELSEWHERE = "caught elsewhere"
    """By no family that should, but by another."""
    UNDECIDED = "undecided"
    """By no family that should: one of them turns the run red, but calls no server wrong."""
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
    whole: bool = True
    """Whether every family was asked, not only those that should find the fault."""

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """Families that turned red although the row does not say so."""
        return tuple(one for one in self.findings if one.found is Found.ALARM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the suites said of a fault under one seed, whatever its row expects."""

    fault: str
    seed: int
    depth: str
    judged: tuple[Judged, ...]
    seconds: float
    """Of its run, divided by the faults that shared it."""
    date: str
    run: str = ""
    """The run's name, which its directory has while it is kept."""
    families: tuple[str, ...] = ()
    """That were asked; empty for all."""
    judges: str = ""
    """Digest of the judges."""


def cell(measured: Measured, expected: Expected) -> Cell:
    """Return the cell of a fault from the judgements of its variant."""
    judged = measured.judged
    wanted = tuple(_wanted(family, words, [one for one in judged if one.family == family]) for family, words in expected.red.items())
    names = dict.fromkeys(one.family for one in judged if one.red and one.family not in expected.red)
    others = tuple(
        _finding(family, Found.CONSEQUENCE if family in expected.may else Found.ALARM, [one for one in judged if one.family == family])
        for family in names
    )
    return Cell(
        fault=measured.fault,
        seed=measured.seed,
        depth=measured.depth,
        found=_worst(wanted, others),
        findings=(*wanted, *others),
        seconds=round(measured.seconds, 1),
        date=measured.date,
        whole=not measured.families,
    )


def _wanted(family: str, words: str, judged: Sequence[Judged]) -> Finding:
    red = [one for one in judged if one.red]
    if not red:
        blind = not judged or all(one.outcome in _NO_JUDGEMENT for one in judged)
        undecided = any(one.outcome in _UNDECIDED for one in judged)
        return Finding(family=family, found=Found.NOT_JUDGED if blind else Found.UNDECIDED if undecided else Found.MISSED)
    text = " ".join(f"{one.name} {one.headline}" for one in red)
    return _finding(family, Found.CAUGHT if any(word in text for word in words.split("|")) else Found.WRONG_NAME, judged)


def _finding(family: str, found: Found, judged: Iterable[Judged]) -> Finding:
    first = next(one for one in judged if one.red)
    return Finding(family=family, found=found, name=first.name or first.headline, tokens=first.tokens)


def _worst(wanted: Sequence[Finding], others: Sequence[Finding]) -> Found:
    """Return what the fault came to: caught needs every family that should find it, a missed one weighs more than a wrong name."""
    found = {one.found for one in wanted}
    if not found & {Found.CAUGHT, Found.WRONG_NAME}:
        if others or found == {Found.NOT_JUDGED}:
            return Found.ELSEWHERE if others else Found.NOT_JUDGED
        return Found.UNDECIDED if Found.UNDECIDED in found else Found.MISSED
    return next(worst for worst in (Found.MISSED, Found.NOT_JUDGED, Found.UNDECIDED, Found.WRONG_NAME, Found.CAUGHT) if worst in found)


def captured_by(fault: PlantedFault) -> str:
    """Return a digest of how the fault is planted, and of the suites and the engine around it: what is captured of another is stale."""
    wrappers = "".join(f"{wrapper.moment}{name}{_body(wrapper.function)}" for name, wrapper in fault.wrappers.items())
    kind = f"{sorted(fault.drafting.items())}{fault.reasons}{'timed' if fault.timed else ''}{sorted(fault.engine.items()) or ''}"
    kind += f"{fault.minutes or ''}"
    return hashlib.sha256(f"{fault.id}{kind}{wrappers}{_sources(_CAPTURED_BY)}".encode()).hexdigest()[:16]


def _body(wrapper: Callable[..., object]) -> str:
    """Return the code of a wrapper without its decorator, which holds what verdicts should say of it."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(wrapper))).body
    assert isinstance(function, ast.FunctionDef | ast.ClassDef)
    function.decorator_list.clear()
    return ast.unparse(function)


def judged_by() -> str:
    """Return a digest of the judges: a kept run is judged again by others."""
    return _sources(_JUDGED_BY)[:16]


@cache
def _sources(folders: tuple[str, ...]) -> str:
    files = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if path.parent.name not in _FAULTS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Measured cells as JSON files of a folder."""

    folder: Path

    def read(self, fault: PlantedFault, seed: int, depth: str, *, own: bool = False) -> Measured | None:
        """Return what was measured; None where nothing was of this fault, these suites and this seed.

        With ``own`` a cell will do in which only the families were asked that should find the fault.
        """
        paths = (self._path(fault, seed, depth), *((self._path(fault, seed, depth, own=True),) if own else ()))
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            return None
        held = json.loads(path.read_text())
        return Measured(**{**held, "judged": tuple(Judged(**one) for one in held["judged"]), "families": tuple(held["families"])})

    def write(self, fault: PlantedFault, one: Measured) -> None:
        """Keep it, as judged by the judges of now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(replace(one, judges=judged_by())), indent=1)
        self._path(fault, one.seed, one.depth, own=bool(one.families)).write_text(text + "\n")

    def _path(self, fault: PlantedFault, seed: int, depth: str, *, own: bool = False) -> Path:
        return self.folder / f"{fault.id}-{depth}-{seed}{'-own' if own else ''}-{captured_by(fault)}.json"
