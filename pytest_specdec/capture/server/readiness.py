"""Readiness: a server is ready when it has really answered a token, from its own port.

A dialect is how an engine's servers are asked and their replies read. Times named ``until_s`` are of ``time.monotonic``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from pytest_specdec.capture import sse
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.transport import HTTPX, ExchangeLimits, Transport
from pytest_specdec.engines import json_reply
from pytest_specdec.errors import BootError, FirstRequestError, SetupError
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.server.process import ServerProcess
    from pytest_specdec.capture.server.stack import ServerStack
    from pytest_specdec.engines.protocol import Dialect, ServerSetup
    from pytest_specdec.model.workload import JSON

_OK = 200
_REFUSED_COMMAND = {2, 126, 127}
"""Exit codes of a command line that argparse, click or getopt refuses, and of a program that a shell cannot run or does not find."""
SECONDS = 10.0
"""Seconds for an answer, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of a GET."""

    status: int | None
    """None if no answer came."""
    text: str
    """The body, or how the connection ended."""
    late: bool = False
    """Whether no answer came in time, though the connection was not refused or lost."""

    @property
    def is_failure(self) -> bool:
        """True if the server failed: no answer, or 5xx."""
        return self.status is None or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def get(setup: ServerSetup, path: str | None, *, seconds: float = SECONDS) -> str | None:
    """Return the body of a 200 reply to a GET, or None.

    Returns None too if ``path`` is None. It takes ``seconds`` at most. Raises BootError as :func:`look` does.
    """
    if path is None:
        return None
    reply = look(setup, path, seconds=seconds)
    return reply.text if reply.status == _OK else None


def look(setup: ServerSetup, path: str, *, seconds: float = SECONDS) -> Reply:
    """Return the server's reply to a GET of ``path``.

    It takes ``seconds`` at most. A connection that fails gives a Reply without a status. Raises BootError for JSON
    larger or deeper than any that a model's server sends.
    """
    headers = HTTPX.Headers({"Authorization": f"Bearer {setup.api_key}"} if setup.api_key else {})
    for name, value in setup.headers.items():
        headers[name] = value  # in place of the same name in another case
    client = HTTPX.Client(transport=Transport(setup.url), trust_env=False, follow_redirects=False, timeout=seconds, headers=headers)
    try:
        with client, ExchangeLimits(seconds=seconds):
            response = client.get(f"{setup.url}{path}")
    except (HTTPX.HTTPError, OSError, ValueError) as error:
        return Reply(status=None, text=f"connection failed: {error}", late=isinstance(error, HTTPX.TimeoutException))
    text = response.content.decode(errors="replace")
    _check_limits(setup, path, text)
    return Reply(status=response.status_code, text=text)


def _check_limits(setup: ServerSetup, path: str, text: str) -> None:
    """Raise BootError for JSON too large or deep for a reply.

    Text that does not begin as JSON, or is not valid JSON, passes: its reader reports that.
    """
    if text.lstrip()[:1] in {"{", "["}:
        try:
            json_reply.load(text)
        except json_reply.BeyondLimitsError as error:
            what, excess = (
                f"{setup.url} answers {path} with something that no server of a model sends",
                f"{error}, {len(text):,} characters",
            )
            raise BootError(what, where=setup.url, found=excess, expected="a small JSON object", remedy="correct `url`") from None
        except ValueError:
            return  # its reader reports anything else


ONE_TOKEN = Request(id="ready", route=Route.COMPLETIONS, body={"prompt": "Hello", "max_tokens": 1, "temperature": 0.0})
"""A request that every ready server has answered."""
_PAUSE_S = 0.05
_MIN_S = 1.0
"""Seconds that every request gets, so that one sent in the last moment may still be answered."""
_MAX_VERSION = 200
"""Characters of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyServer:
    """A ready server, by its own report."""

    model: str
    """The name that it serves its model under."""
    version: str
    client: Client


def wait(
    server: ServerProcess | ServerStack,
    setup: ServerSetup,
    dialect: Dialect,
    *,
    draft_tokens: int,
    boot_s: float,
    heartbeat: Callable[[], None],
    asks_token: bool = True,
    is_healthy: bool = False,
) -> ReadyServer:
    """Return the server once it has answered a one-token completion.

    Without ``asks_token``, for a server that has died of such a completion, none is sent: a 200 of its health endpoint, if it has one, is
    enough. With ``is_healthy`` that endpoint is not asked, since the caller has seen the server ready. ``draft_tokens`` is the most that
    one verify step drafts, 0 without speculation. ``heartbeat`` is called between two attempts.

    Raises BootError with the command, the exit code and the last log lines if the server ends before that or takes longer than ``boot_s``;
    FirstRequestError, a kind of it, if the server died of the completion.
    """
    until_s, last_reason, answer = time.monotonic() + boot_s, "nothing listens yet", None
    health_path = None if is_healthy else dialect.health_path
    while time.monotonic() < until_s:
        if server.exit_code is not None:
            remedy = "read the log; the same command by hand shows the same"
            # Where health is known first, the completion goes to a healthy server. No answer to it, or a 5xx: the server died of it.
            is_health_first = is_healthy or health_path is not None
            is_of_request = is_health_first and isinstance(answer, Reply) and answer.is_failure
            raise not_ready_error(server, f"died at boot: {server.ended}", remedy, FirstRequestError if is_of_request else BootError)
        health = None if health_path is None else look(setup, health_path, seconds=_left_s(until_s))
        if health is not None and health.status != _OK:
            last_reason = _describe_health(health_path, health) or last_reason
        else:
            check_port(server, setup.port)  # no foreign process is to answer in the server's place
            answer = ask(setup, dialect, draft_tokens, until_s) if asks_token else _connect(setup, dialect, draft_tokens, until_s)
            check_port(server, setup.port)  # one may have begun to listen meanwhile
            if isinstance(answer, ReadyServer) and not server.ended:
                check_build(server, dialect)
                return answer
            last_reason = answer.text if isinstance(answer, Reply) else "it answered and ended"
        heartbeat()
        time.sleep(_PAUSE_S)
    remedy = "raise `limits.boot_s` in the config if the log shows progress"
    raise not_ready_error(server, f"was not ready after {boot_s:g} s ({last_reason})", remedy)


def _describe_health(path: str | None, reply: Reply) -> str:
    """Return why a server is not healthy, in words.

    Returns an empty string if its connection was refused or lost, which says no more than that it does not listen yet.
    """
    if reply.status is not None:
        return f"GET {path} is answered with {reply.status}"
    return f"it takes connections, and does not answer GET {path}" if reply.late else ""


def check_port(server: ServerProcess | ServerStack, port: int) -> None:
    """Raise BootError if a foreign process listens on the server's port.

    Replies from there might not be the server's.
    """
    if process := ports.foreign_listener(server, port):
        what = f"port {port} is answered by another process than the server"
        remedy = "end that process, or remove `port` from args: then a free port is chosen; a launcher has to pass on PYTEST_SPECDEC_SERVER"
        raise BootError(what, where=str(server.log), found=process, expected=f"only processes of: {server.command}", remedy=remedy)


def check_build(server: ServerProcess | ServerStack, dialect: Dialect) -> None:
    """Raise SetupError if the log shows another server than requested.

    ``server`` is ready by then, so that its log has the lines of its start.
    """
    if complaint := dialect.wrong_build(server.log.read_text(encoding="utf-8", errors="replace")):
        what, remedy = "the server is not the one that was asked for", "read its log from the beginning"
        raise SetupError(what, where=str(server.log), found=complaint, expected=f"what was started: {server.command}", remedy=remedy)


def _left_s(until_s: float) -> float:
    """Return the seconds allowed for a GET before ``until_s``: 1 to 10."""
    return max(_MIN_S, min(SECONDS, until_s - time.monotonic()))


def ask(setup: ServerSetup, dialect: Dialect, draft_tokens: int, until_s: float) -> ReadyServer | Reply:
    """Ask for one token and return the ready server.

    Returns a Reply with the reason if it is not ready. The client that sent the request is part of the ready server, for those to come;
    ``draft_tokens``, the most that one verify step drafts, is for this client.
    """
    model = _served_model(setup, _left_s(until_s))
    client = Client(setup, dialect, model=model, draft_tokens=draft_tokens)
    outcome = client.send(ONE_TOKEN, streamed=False, deadline_s=max(_MIN_S, until_s - time.monotonic()))
    if outcome.answer.ok:
        return ReadyServer(model=model, version=_read_version(setup, dialect, _left_s(until_s)), client=client)
    client.close()
    status = outcome.answer.status
    return Reply(status=status, text=f"a one-token completion got {status or 'no answer'}: {outcome.answer.error}")


def _connect(setup: ServerSetup, dialect: Dialect, draft_tokens: int, until_s: float) -> ReadyServer:
    """Return the server as ready, without sending a one-token completion.

    This is for a server that has died of such a request before.
    """
    model = _served_model(setup, _left_s(until_s))
    client = Client(setup, dialect, model=model, draft_tokens=draft_tokens)
    return ReadyServer(model=model, version=_read_version(setup, dialect, _left_s(until_s)), client=client)


def _served_model(setup: ServerSetup, seconds: float) -> str:
    """Return the model name to use in requests.

    It is the configured name if ``/v1/models`` lists that, or if requests state their own ``model`` by the config.
    Otherwise it is the first name listed, or the configured one if none is.

    An attached server that does not list the configured name was refused before. Servers started here may list any
    name.
    """
    if "model" in setup.body:
        return setup.asked_model
    names = listed_models(get(setup, "/v1/models", seconds=seconds))
    return setup.asked_model if setup.asked_model in names else next(iter(names), setup.asked_model)


def _read_version(setup: ServerSetup, dialect: Dialect, seconds: float) -> str:
    return dialect.version(get(setup, dialect.version_path, seconds=seconds) or "")[:_MAX_VERSION]


def listed_models(text: str | None) -> dict[str, Mapping[str, JSON]]:
    """Return the model cards in a ``/v1/models`` reply, by model name.

    Returns an empty mapping for any other reply.
    """
    models = parse_object(text).get("data")
    cards = [card for card in models if isinstance(card, Mapping)] if isinstance(models, Sequence) else []
    return {str(card["id"]): card for card in cards if card.get("id")}


def parse_object(text: str | None) -> Mapping[str, JSON]:
    """Return the JSON object in an endpoint's reply.

    Returns an empty mapping in place of anything else.
    """
    try:
        return sse.parse_object(text or "{}")
    except ValueError:
        return {}


def not_ready_error(
    server: ServerProcess | ServerStack,
    what: str,
    remedy: str,
    kind: type[BootError] = BootError,
    *,
    expected: str = "an answer to a one-token completion",
) -> BootError:
    """Return the error for a server not ready in time.

    It has the command, the exit code, the first exception in the log and the log's last lines. ``what`` says how the server failed.
    ``kind`` is the error's class; SetupError takes its place if the exit code is that of a refused command line or of a program that
    cannot be run. ``expected`` is the sign that was waited for.
    """
    first = f"first exception in its log: {cause}\n" if (cause := server.cause()) else ""
    tail = "\n".join(server.log_tail())
    kind = SetupError if server.exit_code in _REFUSED_COMMAND else kind
    return kind(
        f"the server {server.command.secrets.mask(what)}",
        where=str(server.log),
        found=f"command: {server.command}\nexit code: {server.exit_code}\n{first}last lines of its log:\n{tail}",
        expected=expected,
        remedy=remedy,
    )
