"""Flags held against what an engine's own help lists; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.config.problems import dotted, nearest
from pytest_specdec.config.rules import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.doctor.started import Arm
    from pytest_specdec.files.yaml import Document

__all__ = ["Parser", "Unknown", "given", "known", "unknown"]

_ENTRY = re.compile(r" {1,8}(-.*)")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_INVERSE = "no-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """What an engine's parser takes."""

    flags: frozenset[str]
    abbreviates: bool
    """Whether it takes the beginning of a flag for the flag, where only one begins so."""

    def knows(self, flag: str) -> bool:
        """Whether it would take ``flag``."""
        return flag in self.flags or (self.abbreviates and len([name for name in self.flags if name.startswith(flag)]) == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A flag that the engine's parser would refuse."""

    flag: str
    where: str
    """``file:line  path`` of the argument that it comes from."""
    nearest: str
    """``did you mean '--max-num-seqs'?``, or nothing."""

    def __str__(self) -> str:
        return f"{self.where}: found {self.flag}, which the engine does not know" + (f"; {self.nearest}" if self.nearest else "")


def known(help_text: str) -> frozenset[str]:
    """Return the flags that a help text lists, long and short; flags that its prose mentions are none."""
    entries = (match[1] for line in help_text.splitlines() if (match := _ENTRY.match(line)))
    # The words of the help begin after two spaces.
    return frozenset(flag for entry in entries for flag in _FLAG.findall(re.split(r" {2,}", entry, maxsplit=1)[0]))


def given(argv: Iterable[str]) -> Iterator[str]:
    """Give the flags of a command line, spelt as help spells them: dashes, and without what follows a dot."""
    for word in argv:
        if word.startswith("--"):
            name = word.removeprefix("--").partition("=")[0].partition(".")[0]
            yield f"--{name.replace('_', '-')}"


def unknown(arm: Arm, argv: Sequence[str], parser: Parser, document: Document) -> tuple[Unknown, ...]:
    """Return the flags of ``argv``, the command of ``arm``, that ``parser`` would refuse."""
    return tuple(
        Unknown(flag=flag, where=_where(arm, flag, document), nearest=nearest(flag, parser.flags))
        for flag in dict.fromkeys(given(argv))
        if not parser.knows(flag)
    )


def _where(arm: Arm, flag: str, document: Document) -> str:
    name = plain(flag)
    path = arm.places.get(name) or arm.places.get(name.removeprefix(_INVERSE))
    if path is None:
        dots = (place for spelt, place in arm.places.items() if spelt.partition(".")[0] == name)
        path = next(dots, None)
    return f"{document.source}:{document.line(path)}  {dotted(path)}" if path else f"{arm.name}, added by the adapter"
