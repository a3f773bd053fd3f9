"""A program run in bounded time: an engine asked for its version and help, docker, nvidia-smi, a collection by pytest."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT_S = 120.0
"""An engine imports its framework to print its help; from a cold disk that takes half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended."""

    exit_code: int | None
    """None when it was not done in time, or could not be started."""
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of both streams, without empty ones."""
        return [line for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]

    @property
    def last_words(self) -> str:
        """The line of output most likely to explain a failure.

        It is the last line that reports an error, else the first line that begins with ``error``, as llama.cpp prints
        it above its usage, else the last line.
        """
        lines = [line.strip() for line in self.lines]
        reporting = [line for line in reversed(lines) if "rror:" in line] or [line for line in lines if line.lower().startswith("error")]
        return (reporting or lines[::-1] or ["no output"])[0]

    def version(self, prefix: str) -> str:
        """Return the version in the program's output, after ``prefix``.

        Without a prefix it is the last line of standard output. Empty if there is none, or if the program failed.
        """
        lines = [line.strip() for line in (self.lines if prefix else self.out.splitlines()) if line.strip()]
        versions = [line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]
        return versions[-1] if self.exit_code == 0 and versions else ""


def run(argv: Sequence[str], env: Mapping[str, str], limit_s: float = LIMIT_S) -> ProgramResult:
    """Run a program and return how it ended.

    ``env`` is added to this process's environment. After ``limit_s`` seconds the program and all processes that it
    started are killed. The exit code is None then, and also if the program cannot be started.
    """
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
