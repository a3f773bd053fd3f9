"""A probe: an engine's program asked for its version and its help, in bounded time, in the environment that its servers get."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.doctor import engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EngineProgram", "Help", "ProgramResult", "listing", "run", "tool"]

LIMIT_S = 120.0
"""An engine imports its framework to print its help; from a cold disk that takes half a minute."""
_HELP = ("--help=all", "--help")
"""Newer releases of vLLM list groups under --help; older ones, and the reference engine, know no --help=all."""
_VERSION = "import pytest_specdec; print(pytest_specdec.__version__)"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """How an engine's program is asked."""

    version: tuple[str, ...]
    help: tuple[str, ...]
    """Without the flag that asks for help."""
    abbreviates: bool
    """Whether its parser takes unambiguous beginnings of flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended."""

    exit_code: int | None
    """None when it was not done in time, or could not be started."""
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line that tells of an error, or else the last line."""
        lines = [line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        return next((line for line in reversed(lines) if "rror:" in line), lines[-1] if lines else "it said nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """What an engine's parser says of a command line."""

    flags: frozenset[str]
    """Those that it lists; empty when it could not be asked."""
    complaint: str = ""
    """Its words about a value, or why it could not be asked."""


def tool(kind: str, argv: Sequence[str]) -> EngineProgram | None:
    """Return how the engine whose servers are started with ``argv`` is asked; None where that is not known."""
    if kind == "vllm":
        return EngineProgram(version=(argv[0], "--version"), help=tuple(argv[:2]), abbreviates=True)
    if kind == "reference":
        return EngineProgram(version=(argv[0], "-c", _VERSION), help=tuple(argv[:3]), abbreviates=False)
    return None


def run(argv: Sequence[str], env: Mapping[str, str], limit_s: float = LIMIT_S) -> ProgramResult:
    """Run ``argv`` with ``env`` added to our own environment; end it, and all that it started, after ``limit_s`` seconds."""
    environ = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **env}
    try:
        process = subprocess.Popen(  # noqa: S603 - the config's own program
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return ProgramResult(exit_code=None, out="", err=str(error))
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return ProgramResult(exit_code=None, out="", err=f"not done after {limit_s:g} s")
    return ProgramResult(exit_code=process.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))


def listing(base: Sequence[str], arguments: Sequence[str], env: Mapping[str, str], limit_s: float = LIMIT_S) -> Help:
    """Return the flags that ``base`` lists, and its complaint about a value in ``arguments``.

    A parser reads what stands before its help flag, so that one call shows both; only a complaint takes another.
    """
    bare = ProgramResult(exit_code=None, out="", err="")
    for spelling in _HELP:
        whole = run((*base, *arguments, spelling), env, limit_s)
        if whole.exit_code == 0 and (found := engine.known(whole.out)):
            return Help(flags=found)
        bare = run((*base, spelling), env, limit_s)
        if bare.exit_code == 0 and (found := engine.known(bare.out)):
            return Help(flags=found, complaint=whole.last_words)
    return Help(flags=frozenset(), complaint=bare.last_words)
