"""The families of other packages, found by entry point, and the judge of any family by name.

A family is one kind of check; its judge makes a verdict of captured answers. Its row declares it, with the part of the correctness budget
that it uses: the probability of a false alarm that is allowed in one run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, TypeAlias, cast

from pytest_specdec.errors import ConfigError
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.captured_run import CapturedRun
from pytest_specdec.model.families import RESERVED, Budget, FamilyRow
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import OUTSIDE_FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "Judge", "installed_families", "judge_of"]

Judge: TypeAlias = Callable[[Captured | CapturedRun], Verdict]
"""It takes a CapturedRun if its family's row has ``whole_run``, else a Captured."""

GROUP = "pytest_specdec.families"
"""Entry points that name a :class:`FamilyRow`, or a sequence of them."""


def installed_families() -> tuple[FamilyRow, ...]:
    """Return the family rows of other packages, sorted by name.

    No judge is imported. Raises ConfigError, which names the packages, if a row cannot be loaded or contradicts itself, if its judge is
    missing, if two rows share a name, or if their shares of the correctness budget together exceed the reserved one.
    """
    entries = metadata.entry_points(group=GROUP)
    declared = sorted(((row, _entry_place(entry)) for entry in entries for row in _load_rows(entry)), key=lambda item: item[0].name)
    for row, place in declared:
        for problem, expected in _problems(row):
            msg = f"the family {row.name!r} cannot be judged"
            raise ConfigError(msg, where=place, found=problem, expected=expected)
    _check_names(declared)
    _check_shares(declared)
    return tuple(row for row, _ in declared)


def judge_of(row: FamilyRow) -> Judge:
    """Return the judge of a family, importing its module.

    Raises LookupError if the family has none, ConfigError if its module cannot be imported or has no function ``judge``.
    """
    if not row.judge:
        msg = f"the family {row.name} has no judge: its tests decide by their own asserts"
        raise LookupError(msg)
    try:
        judge = getattr(import_module(row.judge), "judge", None)
    except Exception as error:
        msg = f"the judge of the family {row.name!r} cannot be imported"
        raise ConfigError(msg, where=row.judge, found=f"{type(error).__name__}: {error}", expected="a module") from error
    if not callable(judge):
        msg = f"the judge of the family {row.name!r} is missing"
        raise ConfigError(msg, where=row.judge, found="no function judge", expected="def judge(captured: Captured) -> Verdict")
    return cast("Judge", judge)


def _load_rows(entry: EntryPoint) -> tuple[FamilyRow, ...]:
    """Return the row or rows behind an entry point.

    Raises ConfigError if it cannot be imported, or names anything else than rows.
    """
    try:
        value = entry.load()
    except Exception as error:
        msg = "the families of another package cannot be read"
        raise ConfigError(msg, where=_entry_place(entry), found=f"{type(error).__name__}: {error}", expected="a FamilyRow") from error
    rows = value if isinstance(value, tuple | list) else (value,)
    for row in rows:
        if not isinstance(row, FamilyRow):
            msg = "the families of another package cannot be read"
            raise ConfigError(msg, where=_entry_place(entry), found=repr(row), expected="a FamilyRow, or a tuple of them")
    return tuple(rows)


def _entry_place(entry: EntryPoint) -> str:
    """Return the package of an entry point and its line there, in words."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown package"
    return f"{package}, entry point {GROUP} {entry.name} = {entry.value}"


def _problems(row: FamilyRow) -> Iterator[tuple[str, str]]:
    """Yield each wrong value in a row, and what is expected instead.

    ``part`` is the row's part of its budget of false alarms. ``workloads`` and ``smoke`` are the numbers of workloads that its suite sends,
    at standard and at smoke depth.
    """
    if not re.fullmatch(OUTSIDE_FAMILY, row.name):
        yield f"the name {row.name!r}", "a dotted name such as acme.tone; names without a dot are pytest-specdec's own"
    # Only of the correctness budget a part is reserved for other packages.
    if row.budget is Budget.SPEED:
        yield f"budget={row.budget}", "correctness, or none for a judge that raises no alarm by chance"
    if (row.budget is Budget.CORRECTNESS) != (row.part > 0):
        yield f"part={row.part:g} of the budget {row.budget}", "a part above 0 of correctness, or 0 of none"
    if row.workloads < 1 or row.smoke < 1:
        yield f"workloads={row.workloads}, smoke={row.smoke}", "1 or more"
    if row.judge and not _exists(row.judge):
        yield f"judge={row.judge!r}, which is no module", "the full name of a module with the function judge"


def _exists(module: str) -> bool:
    """Return True if a module exists, importing only its parent packages."""
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _check_names(declared: Sequence[tuple[FamilyRow, str]]) -> None:
    """Raise ConfigError if two rows have one name; each row comes with the package that declares it."""
    counts = Counter(row.name for row, _ in declared)
    for name, count in counts.items():
        if count > 1:
            places = "; ".join(place for row, place in declared if row.name == name)
            msg = f"{count} rows declare the family {name!r}"
            raise ConfigError(msg, where=places, expected="one row per name", remedy="uninstall all but one of the packages")


def _check_shares(declared: Sequence[tuple[FamilyRow, str]]) -> None:
    """Raise ConfigError if all rows together exceed the reserved budget.

    Each row comes with the package that declares it. A rounding error of the sum is no excess.
    """
    total = sum(row.part for row, _ in declared)
    if total > RESERVED * (1 + 1e-9):
        places = "; ".join(f"{row.name} {row.part:g} ({place})" for row, place in declared if row.part)
        msg = "the families of other packages take more than the part of the correctness budget that is reserved for them"
        remedy = "uninstall one of the packages, or lower its part"
        raise ConfigError(msg, where=places, found=f"{total:g} in total", expected=f"at most {RESERVED:g}", remedy=remedy)
