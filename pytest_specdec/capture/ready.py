"""Readiness: a server is ready when it has really answered one token, not when a port is open."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture import endpoint, stream
from pytest_specdec.capture.launch import listeners
from pytest_specdec.capture.requests import Client
from pytest_specdec.errors import BootError
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.engines.protocol import Dialect, Setup
    from pytest_specdec.capture.launch.process import Server
    from pytest_specdec.model.workload import JSON

__all__ = ["Ready", "check_port", "wait"]

_ONE_TOKEN = Request(id="ready", route=Route.COMPLETIONS, body={"prompt": "Hello", "max_tokens": 1, "temperature": 0.0})
_PAUSE_S = 0.05
_LEAST_S = 1.0
"""Seconds that every question gets, so that one asked in the last moment may still be answered."""
_LONGEST = 200
"""Characters of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a ready server says about itself."""

    model: str
    """The name that it serves its model under."""
    version: str
    client: Client


def wait(server: Server, setup: Setup, dialect: Dialect, *, draft_tokens: int, boot_s: float, tick: Callable[[], None]) -> Ready:
    """Wait until ``server`` answers a one-token completion; ``tick`` is called meanwhile.

    Raises BootError with the command, the exit code and the last log lines when it ends before that or takes longer than ``boot_s``.
    """
    until_s, last = time.monotonic() + boot_s, "nothing listens yet"
    while time.monotonic() < until_s:
        if server.exit_code is not None:
            raise _not_ready(server, f"died at boot: {server.ended}", "read the log; the same command by hand shows the same")
        if dialect.health_path is None or endpoint.get(setup.port, dialect.health_path, seconds=_left_s(until_s)) is not None:
            check_port(server, setup.port)
            found = _ask(setup, dialect, draft_tokens, until_s)
            check_port(server, setup.port)  # it may have come to listen since
            if isinstance(found, Ready) and not server.ended:
                return found
            last = found if isinstance(found, str) else "it answered and ended"
        tick()
        time.sleep(_PAUSE_S)
    remedy = "raise `limits.boot_s` in the config if the log shows progress"
    raise _not_ready(server, f"was not ready after {boot_s:g} s ({last})", remedy)


def check_port(server: Server, port: int) -> None:
    """Raise BootError when another process than those of ``server`` answers on its port: nothing that it says is the server's."""
    if who := listeners.stranger(server, port):
        what = f"port {port} is answered by another process than the server"
        remedy = "end that process, or remove `port` from args: then a free port is chosen; a launcher has to pass on PYTEST_SPECDEC_SERVER"
        raise BootError(what, where=str(server.log), found=who, expected=f"only processes of: {server.command}", remedy=remedy)


def _left_s(until_s: float) -> float:
    """Return the seconds that a GET may take."""
    return max(_LEAST_S, min(endpoint.SECONDS, until_s - time.monotonic()))


def _ask(setup: Setup, dialect: Dialect, draft_tokens: int, until_s: float) -> Ready | str:
    model = _served_model(setup, _left_s(until_s))
    client = Client(port=setup.port, model=model, dialect=dialect, draft_tokens=draft_tokens, api_key=setup.api_key, secrets=setup.secrets)
    sent = client.send(_ONE_TOKEN, streamed=False, deadline_s=max(_LEAST_S, until_s - time.monotonic()))
    if sent.answer.ok:
        return Ready(model=model, version=_version(setup.port, dialect, _left_s(until_s)), client=client)
    client.close()
    return f"a one-token completion got {sent.answer.status or 'no answer'}: {sent.answer.error}"


def _served_model(setup: Setup, seconds: float) -> str:
    """Return the first name in ``/v1/models``, or the configured one."""
    models = _object(endpoint.get(setup.port, "/v1/models", api_key=setup.api_key, seconds=seconds)).get("data")
    first = models[0] if isinstance(models, Sequence) and models else None
    name = first.get("id") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) and name else setup.model


def _version(port: int, dialect: Dialect, seconds: float) -> str:
    version = _object(endpoint.get(port, dialect.version_path, seconds=seconds)).get("version")
    return version[:_LONGEST] if isinstance(version, str) else ""


def _object(text: str | None) -> Mapping[str, JSON]:
    """Return the object that an endpoint answered with; an empty one in place of anything else."""
    try:
        return stream.parsed(text or "{}")
    except ValueError:
        return {}


def _not_ready(server: Server, what: str, remedy: str) -> BootError:
    tail = "\n".join(server.log_tail())
    return BootError(
        f"the server {server.command.secrets.mask(what)}",
        where=str(server.log),
        found=f"command: {server.command}\nexit code: {server.exit_code}\nlast lines of its log:\n{tail}",
        expected="an answer to a one-token completion",
        remedy=remedy,
    )
