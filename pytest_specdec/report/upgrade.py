"""An upgrade: the comparison of a run with an earlier one, as every report shows it, and the closed list of its headlines."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.files import codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Answers",
    "CornerRow",
    "Pace",
    "Speculation",
    "Upgrade",
    "UpgradeHeadline",
    "UpgradeSection",
    "UpgradeWord",
    "choose_headline",
    "lines",
    "render",
]

SCHEMA = "pytest-specdec/comparison/1"
_WIDEST = 120
"""Columns of the table of corners."""


class UpgradeWord(StrEnum):
    """What the comparison with an earlier run came to."""

    FINE = "fine"
    WORSE = "worse"
    """Speculation has a new finding, the baseline's answers changed by more than is tolerated, or something became slower or is refused."""
    UNKNOWN = "unknown"
    """Too little is in both runs, or a file could not be read."""


class Answers(StrEnum):
    """What became of the baseline's answers."""

    SAME = "same"
    """Or changed as the config allows, or as somebody has accepted."""
    TOLERATED = "tolerated"
    """Changed by what is worth a warning, such as numerics."""
    CHANGED = "changed"
    UNKNOWN = "unknown"


class Speculation(StrEnum):
    """What became of speculation, within its own run."""

    FOLLOWS = "follows"
    """No finding that the old run had not."""
    BROKE = "broke"
    """A new finding."""
    UNLOOKED = "unlooked"
    """A finding that the old run did not look for."""
    OPEN = "open"
    """The new run decided too little."""


class Pace(StrEnum):
    """What became of speed."""

    HELD = "held"
    """Nothing is surely slower, or no speed was compared."""
    DOUBTFUL = "doubtful"
    """Something looks slower than the config allows, in times that are not the servers' alone."""
    SLOWER = "slower"


class UpgradeHeadline(StrEnum):
    """The headlines of an upgrade: a closed list, from which :func:`choose_headline` takes one."""

    SAFE = "safe to upgrade"
    CHANGED = "answers changed, speculation follows"
    CHANGED_OPEN = "answers changed, speculation not decided"
    CHANGED_WRONG = "answers changed, and a finding that the old run did not look for"
    BROKE = "speculation broke"
    BOTH = "both changed"
    WRONG = "a finding that the old run did not look for"
    OFFERS_LESS = "offers less"
    """Something that the old servers honoured is refused, ignored, or not survived."""
    SLOWER = "slower"
    NOISIER = "noisier"
    """The verify kernel is noisier than the config allows, which makes no token wrong."""
    CANNOT_SAY = "cannot say"
    """The baselines are the same, and the new run decided too little; or they are, or changed as is tolerated, and speeds look lower and
    were not measured alone."""
    WORSE = "worse, baselines not compared"
    NO_NEW_FINDING = "no new finding, baselines not compared"

    def word(self, answers: Answers) -> UpgradeWord:
        """Return the result of an upgrade with this headline.

        ``answers`` is the state of the baseline's answers. A safe upgrade is fine. So is one that changes them as is tolerated, if
        speculation has no new fault; the result is unknown if that is not decided. Any other change, finding or loss makes it worse.
        """
        if self is UpgradeHeadline.SAFE:
            return UpgradeWord.FINE
        if self in {UpgradeHeadline.CANNOT_SAY, UpgradeHeadline.NO_NEW_FINDING}:  # the latter: the baselines were not compared
            return UpgradeWord.UNKNOWN
        if answers is Answers.TOLERATED and self is UpgradeHeadline.CHANGED:
            return UpgradeWord.FINE
        if answers is Answers.TOLERATED and self is UpgradeHeadline.CHANGED_OPEN:
            return UpgradeWord.UNKNOWN
        return UpgradeWord.WORSE


_HEADLINES = {
    (Speculation.FOLLOWS, Answers.SAME): UpgradeHeadline.SAFE,
    (Speculation.FOLLOWS, Answers.TOLERATED): UpgradeHeadline.CHANGED,
    (Speculation.FOLLOWS, Answers.CHANGED): UpgradeHeadline.CHANGED,
    (Speculation.FOLLOWS, Answers.UNKNOWN): UpgradeHeadline.NO_NEW_FINDING,
    (Speculation.OPEN, Answers.SAME): UpgradeHeadline.CANNOT_SAY,
    (Speculation.OPEN, Answers.TOLERATED): UpgradeHeadline.CHANGED_OPEN,
    (Speculation.OPEN, Answers.CHANGED): UpgradeHeadline.CHANGED_OPEN,
    (Speculation.OPEN, Answers.UNKNOWN): UpgradeHeadline.NO_NEW_FINDING,
    (Speculation.BROKE, Answers.SAME): UpgradeHeadline.BROKE,
    (Speculation.BROKE, Answers.TOLERATED): UpgradeHeadline.BOTH,
    (Speculation.BROKE, Answers.CHANGED): UpgradeHeadline.BOTH,
    (Speculation.BROKE, Answers.UNKNOWN): UpgradeHeadline.WORSE,
    (Speculation.UNLOOKED, Answers.SAME): UpgradeHeadline.WRONG,
    (Speculation.UNLOOKED, Answers.TOLERATED): UpgradeHeadline.CHANGED_WRONG,
    (Speculation.UNLOOKED, Answers.CHANGED): UpgradeHeadline.CHANGED_WRONG,
    (Speculation.UNLOOKED, Answers.UNKNOWN): UpgradeHeadline.WRONG,
}
"""The headline by speculation and answers alone; :func:`choose_headline` says when losses and speed come first."""


def choose_headline(answers: Answers, speculation: Speculation, *, offers_less: bool, pace: Pace, is_noisier: bool) -> UpgradeHeadline:
    """Return the headline of an upgrade, for any combination of facts.

    ``answers``, ``speculation`` and ``pace`` are what became of the baseline's answers, of speculation and of speed. A fault of the new
    run, at tests that the old run passed (BROKE) or did not judge (UNLOOKED), comes first, and so do answers that changed by more than is
    tolerated. Then come losses: a feature no longer offered (``offers_less``), a slowdown, a missed gate on noise (``is_noisier``). Else an
    upgrade with a speed in doubt is not called safe or tolerated.
    """
    headline = _HEADLINES[speculation, answers]  # as if there were no loss and no doubt
    has_fault = speculation in {Speculation.BROKE, Speculation.UNLOOKED}
    if has_fault or answers is Answers.CHANGED:
        return headline
    if offers_less:
        return UpgradeHeadline.OFFERS_LESS
    if pace is Pace.SLOWER:
        return UpgradeHeadline.SLOWER
    if is_noisier:
        return UpgradeHeadline.NOISIER
    is_fine = headline in {UpgradeHeadline.SAFE, UpgradeHeadline.CHANGED}
    return UpgradeHeadline.CANNOT_SAY if is_fine and pace is Pace.DOUBTFUL else headline


@dataclass(frozen=True, slots=True, kw_only=True)
class CornerRow:
    """One row of the corners: an arm in the old run, in the new one, and between them."""

    arm: str
    old: str
    new: str
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeSection:
    """A part of the comparison, line by line."""

    title: str
    lines: tuple[str, ...]
    is_detail: bool = False
    """Whether the session's own terminal leaves it out, since it has listed the tests itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """The comparison with an earlier run: that of ``--specdec-against``, or of ``compare``."""

    word: UpgradeWord
    earlier: str
    """Its directory, as a person would type it."""
    headline: str
    case: UpgradeHeadline | None = None
    """The headline's cell of the table; None in runs of earlier releases."""
    corners: tuple[CornerRow, ...] = ()
    """The first row is the header; empty in runs of earlier releases."""
    changes: tuple[str, ...] = ()
    """What changed, by the names under which a config accepts it: ``chat-template``, ``slower-step``, ``refuses-min_p``."""
    sections: tuple[UpgradeSection, ...] = ()
    """In the order of the report."""

    @property
    def note(self) -> str:
        """The headline as a note of the run, for reports without a place of its own for it."""
        return f"UPGRADE from {self.earlier}: {self.headline}"


def lines(upgrade: Upgrade, *, details: bool = True) -> Iterator[str]:
    """Yield the comparison as lines of plain text.

    Without ``details`` the sections marked :attr:`UpgradeSection.is_detail` are left out.
    """
    yield upgrade.headline
    yield from _corner_lines(upgrade.corners)
    for section in upgrade.sections:
        if details or not section.is_detail:
            yield ""
            yield f"{section.title}:"
            yield from (f"  {line}" for line in section.lines)


def _corner_lines(corners: Sequence[CornerRow]) -> Iterator[str]:
    """Yield the corners, old and new figures by arm, as a table of text.

    An empty line and the header, the first of ``corners``, come first. If the table is wider than :data:`_WIDEST` columns, the cells of a
    row are listed below each other instead, each with its title. Nothing without corners.
    """
    cells = [(row.arm, row.old, row.new, row.change) for row in corners]
    if not cells:
        return
    yield ""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * len(widths) <= _WIDEST:
        yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
        return
    header, *rows = cells
    yield f"by arm; {header[1]}; {header[2]}"
    for row in rows:
        yield f"  {row[0]}"
        yield from (f"    {title:<12}  {cell}" for title, cell in zip(("old", "new", header[3]), row[1:], strict=True))


def render(upgrade: Upgrade) -> str:
    """Return the comparison as one JSON document."""
    document = {"schema": SCHEMA, **{field.name: codec.encode(getattr(upgrade, field.name)) for field in fields(upgrade)}}
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"
