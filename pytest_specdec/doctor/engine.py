"""The engine: whether it is installed, which version it is, and whether it knows every flag of every arm."""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_specdec.doctor import flags
from pytest_specdec.doctor.check import fail, failed, ok, warn
from pytest_specdec.errors import EngineError
from pytest_specdec.files import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.engines.protocol import Engine
    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import Help, Ran, Tool
    from pytest_specdec.doctor.started import Arm

__all__ = ["Commands", "arguments", "commands", "flags_of", "image", "version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What a run would execute, by arm."""

    argv: tuple[tuple[Arm, tuple[str, ...]], ...]

    @property
    def first(self) -> tuple[str, ...]:
        """The baseline's."""
        return self.argv[0][1]


def commands(config: Config, engine: Engine, arms: Sequence[Arm]) -> Commands | Check:
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


def version(kind: str, asked: Tool, ran: Ran) -> Check:
    """Return what the engine says of itself."""
    lines = [line.strip() for line in ran.out.splitlines() if line.strip()]
    if ran.exit_code != 0 or not lines:
        how = "not in time" if ran.exit_code is None else f"with exit code {ran.exit_code}"
        command = " ".join(asked.version[:1])
        return fail(
            "engine", f"{kind} does not tell its version, it ended {how}", f"found:    {ran.last_words}", remedy=f"repair {command}"
        )
    return ok("engine", f"{kind} {lines[-1]}, {os.path.normpath(asked.version[0])}")


def image(name: str, ran: Ran) -> Check:
    """Return whether the engine's image is on this machine; ``ran`` is ``docker image inspect``."""
    if ran.exit_code == 0:
        return ok("engine", f"image {name}")
    return warn("engine", f"image {name} is not on this machine: the first boot pulls it", remedy=f"docker pull {name}")


def flags_of(config: Config, found: Commands, listed: Help, *, abbreviates: bool) -> tuple[Check, ...]:
    """Return whether the engine's parser knows every flag of every arm, and takes their values."""
    if not listed.flags:
        return (warn("flags", "not checked: the engine's help could not be read", f"found:    {listed.complaint}"),)
    document = yaml.load(config.text, str(config.path))
    parser = flags.Parser(flags=listed.flags, abbreviates=abbreviates)
    missing = dict.fromkeys(one for arm, argv in found.argv for one in flags.unknown(arm, argv, parser, document))
    wrong = [fail("flags", str(one), remedy="write it as the engine's help does, or take it out") for one in missing]
    if listed.complaint:
        wrong.append(fail("flags", listed.complaint, remedy="give the value that the engine's help asks for"))
    count = len({flag for _, argv in found.argv for flag in flags.given(argv)})
    return tuple(wrong) or (ok("flags", f"all {count} known to the engine, of {len(listed.flags)} that it lists"),)
