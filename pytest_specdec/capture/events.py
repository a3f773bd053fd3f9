"""Events between requests, such as a sleep or an update of weights: their steps, each a POST to the server or a command of the config."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from pytest_specdec.config import stack
from pytest_specdec.config.variables import expand
from pytest_specdec.engines.optional import ServerEvents
from pytest_specdec.model.event import EventOutcome
from pytest_specdec.model.server_failure import FailureKind
from pytest_specdec.model.transcript import is_rejection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.event import Event, EventStep

__all__ = ["EventSender", "events_of"]

_MAX_OUTPUT = 500
"""Characters of a command's last output that are stored."""
_KILL_S = 2.0
"""Seconds to wait for the end of a killed command."""


def events_of(config: Config, engine: Engine) -> Mapping[str, Sequence[EventStep]]:
    """Return the steps of each event of the config's servers, by name.

    The engine's own come first, those that the config states last; one of the same name replaces the engine's, and one without steps takes
    it out. A stack, a server of several processes, has none of the engine's: a router would pass each of their requests to another process.
    """
    engine_events = engine.events(config) if isinstance(engine, ServerEvents) and not config.stack else {}
    return {name: steps for name, steps in {**engine_events, **config.between}.items() if steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSender:
    """Does events to one arm's server; no request is in flight meanwhile."""

    server: ArmServer
    name: str
    """The arm's name."""
    limit_s: float
    """Seconds that one step may take."""

    def send(self, event: Event) -> EventOutcome:
        """Do ``event`` on the running server, and return its outcome.

        It begins once no other thread uses the server, and ends with the first step that is refused or fails.
        """
        self.server.event_gate.begin_events()
        began_s, outcome = time.monotonic(), EventOutcome(name=event.name)
        for step in event.steps:
            step_outcome = self._post(step) if step.path else self._run(step, event)
            outcome = replace(step_outcome, name=event.name, steps=(*outcome.steps, *step_outcome.steps))
            if not outcome.is_done:
                break
        return replace(outcome, seconds=round(time.monotonic() - began_s, 3))

    def _post(self, step: EventStep) -> EventOutcome:
        """Return the outcome of a step that is a POST.

        It is done, refused by a 4xx, or has failed; a failure of a server that has ended is a death. ``{arm}`` in the body stands for part
        of a file name that no other arm or session uses: the arm's name and this process's id. The caller fills in the outcome's name.
        """
        body = expand(stack.fill(step.body, {"arm": self._file_stem}, {}), os.environ)
        assert isinstance(body, dict)
        exchange = self.server.client.exchange(step.path, body, deadline_s=self._seconds)
        status, ending = exchange.status, exchange.ending
        if ending is not None and self.server.wait_for_end():
            ending = FailureKind.DIED
        failed = ending is not None or is_rejection(status)
        return EventOutcome(
            name="",
            steps=(f"{step}: {'no answer' if status is None else status}",),
            status=status,
            error=(exchange.error or f"status {status}") if failed else "",
            ending=ending,
        )

    def _run(self, step: EventStep, event: Event) -> EventOutcome:
        """Return the outcome of a command, which runs on this machine.

        It finds the server's address, its model, the arm and the event in its environment. It has failed if it cannot be started, does not
        end in time or has another exit code than 0. The caller fills in the outcome's name.
        """
        words = [str(expand(word, os.environ)) for word in step.command]
        mask = self.server.recipe.setup.secrets.mask
        with TemporaryFile() as output:  # a pipe would be held open by a daemon that the command leaves
            try:
                process = subprocess.Popen(  # noqa: S603 - the config's own command
                    words,
                    env={**os.environ, **self._variables(event)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return EventOutcome(name="", steps=(f"{step}: not started",), error=mask(str(error)), ending=FailureKind.ERROR)
            seconds = self._seconds
            if not _has_ended(process, seconds):
                text = f"the command did not end within {seconds:g} s"
                return EventOutcome(name="", steps=(f"{step}: no end",), error=text, ending=FailureKind.HUNG)
            output.seek(0)
            text = mask(output.read().decode(errors="replace").strip())[-_MAX_OUTPUT:]
        steps = (f"{step}: exit code {process.returncode}",)
        if not process.returncode:
            return EventOutcome(name="", steps=steps)
        return EventOutcome(name="", steps=steps, error=f"exit code {process.returncode}: {text}", ending=FailureKind.ERROR)

    def _variables(self, event: Event) -> dict[str, str]:
        """Return the environment variables by which a command finds the server."""
        setup = self.server.recipe.setup
        return {
            "SPECDEC_URL": setup.url,
            "SPECDEC_MODEL": self.server.model or setup.asked_model,
            "SPECDEC_ARM": self.name,
            "SPECDEC_EVENT": event.name,
        }

    @property
    def _file_stem(self) -> str:
        """Part of a file name: the arm's name and this process's id."""
        return f"{re.sub(r'[^A-Za-z0-9.-]', '-', self.name)}-{os.getpid()}"

    @property
    def _seconds(self) -> float:
        """Seconds for the next step: limit or time left, at least 1."""
        return max(1.0, min(self.limit_s, self.server.left_s()))


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return True if a command ends within ``seconds``.

    It is killed if it does not, and if the wait is interrupted.
    """
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return False
    except BaseException:
        _kill(process)
        raise
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_KILL_S)
