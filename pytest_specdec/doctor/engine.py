"""The engine: whether it is installed, which version it is, and whether its own help lists every flag of every arm."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.config.validate import dotted, nearest
from pytest_specdec.doctor.check import fail, failed, ok, warn
from pytest_specdec.errors import EngineError
from pytest_specdec.files import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arm_commands import ArmCommand
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import EngineProgram, Help, ProgramResult
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.files.yaml import YamlDocument

__all__ = ["Commands", "Parser", "UnknownFlag", "arguments", "commands", "flags_of", "given", "image", "known", "unknown", "version"]

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
class UnknownFlag:
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


def unknown(arm: ArmCommand, argv: Sequence[str], parser: Parser, document: YamlDocument) -> tuple[UnknownFlag, ...]:
    """Return the flags of ``argv``, the command of ``arm``, that ``parser`` would refuse."""
    return tuple(
        UnknownFlag(flag=flag, where=_where(arm, flag, document), nearest=nearest(flag, parser.flags))
        for flag in dict.fromkeys(given(argv))
        if not parser.knows(flag)
    )


def _where(arm: ArmCommand, flag: str, document: YamlDocument) -> str:
    name = plain(flag)
    path = arm.places.get(name) or arm.places.get(name.removeprefix(_INVERSE))
    if path is None:
        dots = (place for spelt, place in arm.places.items() if spelt.partition(".")[0] == name)
        path = next(dots, None)
    return f"{document.source}:{document.line(path)}  {dotted(path)}" if path else f"{arm.name}, added by the adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What a run would execute, by arm."""

    argv: tuple[tuple[ArmCommand, tuple[str, ...]], ...]

    @property
    def first(self) -> tuple[str, ...]:
        """The baseline's."""
        return self.argv[0][1]


def commands(config: Config, engine: Engine, arms: Sequence[ArmCommand]) -> Commands | Check:
    """Return the command of every arm, or the check that says why there is none."""
    try:
        engine.check(config)
        return Commands(argv=tuple((arm, arm.command(config, engine).argv) for arm in arms))
    except EngineError as error:
        return failed("engine", error)


def arguments(found: Commands) -> tuple[str, ...]:
    """Return the model and the flags of all arms in one row: a parser reads them all and keeps the last of each."""
    before = tuple(takewhile(_is_no_flag, found.first))
    return (*before[-1:], *(word for _, argv in found.argv for word in argv[len(tuple(takewhile(_is_no_flag, argv))) :]))


def _is_no_flag(word: str) -> bool:
    return not word.startswith("--")


def version(kind: str, asked: EngineProgram, ran: ProgramResult) -> Check:
    """Return what the engine says of itself."""
    lines = [line.strip() for line in ran.out.splitlines() if line.strip()]
    if ran.exit_code != 0 or not lines:
        how = "not in time" if ran.exit_code is None else f"with exit code {ran.exit_code}"
        command = " ".join(asked.version[:1])
        return fail(
            "engine", f"{kind} does not tell its version, it ended {how}", f"found:    {ran.last_words}", remedy=f"repair {command}"
        )
    return ok("engine", f"{kind} {lines[-1]}, {os.path.normpath(asked.version[0])}")


def image(name: str, ran: ProgramResult) -> Check:
    """Return whether the engine's image is on this machine; ``ran`` is ``docker image inspect``."""
    if ran.exit_code == 0:
        return ok("engine", f"image {name}")
    return warn("engine", f"image {name} is not on this machine: the first boot pulls it", remedy=f"docker pull {name}")


def flags_of(config: Config, found: Commands, listed: Help, *, abbreviates: bool) -> tuple[Check, ...]:
    """Return whether the engine's parser knows every flag of every arm, and takes their values."""
    if not listed.flags:
        return (warn("flags", "not checked: the engine's help could not be read", f"found:    {listed.complaint}"),)
    document = yaml.load(config.text, str(config.path))
    parser = Parser(flags=listed.flags, abbreviates=abbreviates)
    missing = dict.fromkeys(one for arm, argv in found.argv for one in unknown(arm, argv, parser, document))
    wrong = [fail("flags", str(one), remedy="write it as the engine's help does, or take it out") for one in missing]
    if listed.complaint:
        wrong.append(fail("flags", listed.complaint, remedy="give the value that the engine's help asks for"))
    count = len({flag for _, argv in found.argv for flag in given(argv)})
    return tuple(wrong) or (ok("flags", f"all {count} known to the engine, of {len(listed.flags)} that it lists"),)
