"""Attached servers: sent requests, waited for when they are gone, and never started, stopped or signalled.

Such a server is somebody else's; the config names its address. An arm is a name that answers are stored under: the baseline, or a variant,
which speculates. A visit is the time in which one boot of the capture uses the server. A dialect is how an engine's servers are asked and
their replies read. A model's card is its entry in ``/v1/models``.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import counters
from pytest_specdec.capture.server.readiness import SECONDS, ReadyServer, Reply, ask, get, listed_models, look
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.server.traffic import replacement_evidence
from pytest_specdec.capture.sse import web_page
from pytest_specdec.config.validate import nearest
from pytest_specdec.engines.optional import AnyEngine, Recognising
from pytest_specdec.errors import BootError, SetupError, SpecdecError
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.server.recipe import ServerRecipe
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Dialect, Engine, ServerSetup
    from pytest_specdec.engines.server_counts import Traffic
    from pytest_specdec.model.workload import JSON

_MODELS = "/v1/models"
_OK = 200
_SHOWN_NAMES, _NAME_LENGTH, _MOST_NAMES = 8, 80, 1000
"""Model names that an error shows, characters of each, and names among which the one nearest to the config's is looked for."""
_GONE = {None, 502, 503, 504}
"""Statuses of a server that is gone: none, and those of a gateway in front of it."""
_DENIED = {401, 403}
_FINAL = {400, 404, 405, 422, *_DENIED}
"""Statuses that waiting does not change."""
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
"""OpenSSL's word for it."""
_WEB_PAGE = "a web page"
_MOST_SHOWN = 500
"""Characters of a refusal that an error shows."""
_LOOK_S = 2.0
_PAUSE_S = 0.2


class AttachedServer:
    """Somebody else's server, as far as its address shows it."""

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._ended = ""
        """As in ``ended``."""

    @property
    def exit_code(self) -> int | None:
        """1 once the server was found gone; None before."""
        return 1 if self._ended else None

    @property
    def ended(self) -> str:
        """How it was found gone, in words, or that it was left by :meth:`stop`; empty before."""
        return self._ended

    @property
    def members(self) -> Mapping[int, int]:
        """Always empty, as are its dead processes."""
        return {}

    @property
    def dead_processes(self) -> tuple[str, ...]:
        """Always empty: its processes are not ours to see."""
        return ()

    def note_processes(self) -> None:
        """Do nothing: its processes cannot be seen from here."""

    def note_dead_processes(self) -> None:
        """Do nothing: its processes cannot be seen from here."""

    def wait(self, seconds: float) -> bool:
        """Return True if the server is found gone within ``seconds``.

        It is gone if its address refuses or loses connections, or if only a gateway in front of it answers, with 502, 503
        or 504. A late answer shows nothing, since the server may be busy. Once found gone it counts as gone for this
        object, even if it comes back.
        """
        until_s = time.monotonic() + seconds
        while not self._ended:
            reply = look(self._setup, _MODELS, seconds=_LOOK_S)
            if reply.status in _GONE and not reply.late:
                self._ended = f"nothing answers at {self._setup.url}" if reply.status is None else f"its gateway answers {reply.status}"
            elif time.monotonic() >= until_s:
                break
            else:
                time.sleep(_PAUSE_S)
        return bool(self._ended)

    def log_tail(self) -> tuple[str, ...]:
        """Return nothing: its log is not ours to read."""
        return ()

    def output_text(self) -> str:
        """Return nothing: its log is not ours to read."""
        return ""

    def cause(self) -> str:
        """Return nothing: its log is not ours to read."""
        return ""

    def stop(self, stop_s: float) -> None:  # noqa: ARG002 - nothing is stopped
        """Leave it running, and send it nothing more."""
        self._ended = self._ended or "left"

    def kill(self) -> None:
        """Do nothing: the server belongs to somebody else."""


class AttachedArm(ArmServer):
    """One visit of an attached server, which is waited for after a death."""

    def __init__(
        self,
        recipe: ServerRecipe,
        make_dialect: Callable[[ServerSetup], Dialect],
        heartbeat: Callable[[], None],
        left_s: Callable[[], float],
    ) -> None:
        """Take the arguments of :class:`ArmServer`, and a function choosing the dialect.

        ``make_dialect`` is called once, when the server has first answered; it returns the dialect of the server's engine.
        """
        super().__init__(recipe, heartbeat, left_s)
        self.warnings: list[str] = []
        """Warnings collected between workloads."""
        self._make_dialect: Callable[[ServerSetup], Dialect] | None = make_dialect
        """None once the dialect is chosen."""
        self._traffic: Traffic | None = None
        """The last reading of :meth:`traffic`; None before, and where there was none."""
        self._card: Mapping[str, JSON] | None = None
        """Its model's entry in its list at the beginning of the visit; None if it lists no models."""

    @property
    def may_replay(self) -> bool:
        """True if failed requests may be sent to it again.

        The server belongs to somebody else and may die of them, so that the config has to allow it.
        """
        return self.recipe.may_kill

    def traffic(self) -> Traffic | None:
        """Return the server's token counters, all its clients included.

        They show requests of other clients, which would disturb a measurement. A server found replaced since the last call, by its start
        time or by counters that went back, adds a line to ``warnings``. Returns None if the server does not report them, if a reading would
        reset them for its other clients, or if the capture's time is used up.
        """
        reading = None if self.recipe.dialect.counters_drain else self._read_counters()
        earlier_traffic, self._traffic = self._traffic, None if reading is None else reading.traffic
        if evidence := replacement_evidence(earlier_traffic, self._traffic):
            self.warnings.append(f"{self.recipe.setup.url}: the server was started anew by somebody else: {evidence}")
        return self._traffic

    def peer_traffic(self) -> Traffic | None:
        """Return the token counters of the baseline's server, all clients included.

        If a load balancer passes this variant's requests to that server, its counters grow by their answers. Returns None if the arm
        is no variant, if the baseline has the same address, or if there is no reading, for the reasons of :meth:`traffic`.
        """
        dialect, peer, left_s = self.recipe.dialect, self.recipe.peer, self.left_s()
        if peer is None or dialect.counters_drain or left_s <= 0:
            return None
        reading = counters.read(peer, dialect, seconds=min(SECONDS, left_s))
        return None if reading is None else reading.traffic

    def check_identity(self) -> None:
        """Raise BootError if the server serves another model than before.

        The lasting fields of the model's card are compared with those at the beginning of this visit. A card that is gone counts as another
        model. Nothing is checked without a card at that beginning, or once the capture's time is used up. A server that does not answer
        raises nothing here, since its failed requests show that.
        """
        left_s = self.left_s()
        reply = look(self.recipe.setup, _MODELS, seconds=min(SECONDS, left_s)) if self._card is not None and left_s > 0 else None
        if reply is None or reply.status != _OK:
            return  # gone, which shows in its answers
        cards = listed_models(reply.text)
        card = _lasting_fields(cards.get(self.model))
        if card != self._card:
            what = "the attached server serves another model than before"
            remedy = "serve one model for the whole run: --specdec-resume RUN asks again"
            model = str(card) if card is not None else f"models: {_describe_names(list(cards))}"
            expected = str(self._card)
            raise BootError(what, where=self.recipe.setup.url, found=model, expected=expected, remedy=remedy)

    def _start(self) -> None:
        """Wait for the server in place of a start, and begin the visit."""
        self._server = AttachedServer(self.recipe.setup)
        self._traffic = None
        ready = self._reach(time.monotonic() + min(self.recipe.boot_s, self.left_s()))
        self._client, self.version, self.model = ready.client, ready.version, ready.model

    def _reach(self, until_s: float) -> ReadyServer:
        """Return the ready server once it answers a one-token completion.

        It is asked again and again until ``until_s``, a time of ``time.monotonic``; then the error of :func:`_no_answer_error` is raised.
        Errors that waiting does not mend are raised at once: SetupError for a refusal, such as of an unknown model or a wrong key.
        """
        setup, was_reached_before = self.recipe.setup, self._make_dialect is None  # None once a server has answered
        while True:
            reply = look(setup, _MODELS, seconds=max(1.0, min(SECONDS, until_s - time.monotonic())))
            is_there = reply.status not in {*_GONE, *_DENIED}  # gone: no status, or a gateway's 502 to 504; denied: 401 or 403
            if is_there:
                cards = listed_models(reply.text) if reply.status == _OK else {}
                check_model(setup, list(cards))
                server_or_reply = ask(setup, self._choose_dialect(), self.recipe.draft_tokens, until_s)
                if isinstance(server_or_reply, ReadyServer):
                    self._card = _lasting_fields(cards.get(server_or_reply.model))
                    return server_or_reply
                reply = server_or_reply  # it tells why no token came
                if _WEB_PAGE in reply.text and not was_reached_before:
                    raise _no_answer_error(setup, reply)  # a web site does not become a model's server; one seen before may come back
            if reply.status in _FINAL or is_untrusted(reply):  # a final status is one that waiting does not change, as a denial
                raise refusal_error(setup, reply)
            self._heartbeat()
            if time.monotonic() >= until_s:
                raise _no_answer_error(setup, reply)
            time.sleep(_PAUSE_S)

    def _choose_dialect(self) -> Dialect:
        """Return the dialect of the server, chosen at the first call.

        The first call comes when the server has answered, so that its engine can be recognised. The recipe gets the dialect. Raises
        SetupError if that dialect cannot read the config's sources of counters together.
        """
        if self._make_dialect is not None:
            self.recipe = replace(self.recipe, dialect=self._make_dialect(self.recipe.setup))
            counters.check_sources(self.recipe.setup, self.recipe.dialect)
            self._make_dialect = None
        return self.recipe.dialect


def _no_answer_error(setup: ServerSetup, reply: Reply) -> BootError:
    """Return the error for an attached server without a timely answer.

    ``reply`` is the last one. A web page gets a text of its own, since the address is probably wrong. The error is a SetupError if the
    resolver does not know the host, which no retry changes, else a BootError.
    """
    what, remedy = f"no server answers at {setup.url}", "start it, or correct `url`"
    reply_text = setup.secrets.mask(_describe_reply(reply))
    if _WEB_PAGE in reply_text:
        what = f"{setup.url} answers with a web page, not as a model's server"
        remedy = "correct `url`, which names a web site, a login page or a proxy whose server is gone; or start that server"
    kind = SetupError if reply.status is None and _is_unknown_host(setup.url) else BootError
    return kind(what, where=setup.url, found=reply_text, expected="an answer to a one-token completion", remedy=remedy)


def _is_unknown_host(url: str) -> bool:
    """Return True if the resolver reports an address's host as unknown.

    True too for a host that can be no name. A resolver that does not answer proves nothing: False is returned.
    """
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except socket.gaierror as error:
        return error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}
    except UnicodeError:  # An empty or too long label: no resolver is called.
        return True
    return False


def _describe_reply(reply: Reply) -> str:
    """Return a reply as text for an error.

    A web page is shown as its status and title only.
    """
    page = web_page(reply.text)
    return f"{reply.status}: {page}" if page else reply.text


def is_untrusted(reply: Reply) -> bool:
    """Return True if TLS failed for want of a trusted certificate.

    No known authority has signed the server's certificate. No request was sent.
    """
    return reply.status is None and _UNTRUSTED in reply.text


def refusal_error(setup: ServerSetup, reply: Reply) -> SetupError:
    """Return the error for a server refusing to answer.

    The remedy depends on the refusal: an untrusted certificate, a missing key, or a wrong model or address.
    """
    if is_untrusted(reply):
        what, remedy = f"the certificate of {setup.url} is not trusted", "set SSL_CERT_FILE to the file of the authority that signed it"
        return SetupError(what, where=setup.url, found=reply.text, expected="a certificate of a known authority", remedy=remedy)
    reply_text = setup.secrets.excerpt(f"{reply.status}: {web_page(reply.text) or reply.text}", _MOST_SHOWN)
    if reply.status in _DENIED:
        what = f"{setup.url} refuses the key" if setup.api_key or setup.headers else f"{setup.url} asks for a key"
        remedy = "set `api_key: ${MY_KEY}` under `engine:`, or `headers` as the server's gateway wants them"
        return SetupError(what, where=setup.url, found=reply_text, expected="an answer to a one-token completion", remedy=remedy)
    remedy = "correct `url` and `engine.model`; the server must serve /v1/completions"
    return SetupError(f"{setup.url} does not complete a prompt", where=setup.url, found=reply_text, expected="one token", remedy=remedy)


def check_model(setup: ServerSetup, names: Sequence[str]) -> None:
    """Raise SetupError if a server does not list the config's model.

    Another model would be judged under that name. ``names`` are those in ``/v1/models``. A server passes too if it lists none, if the
    config's ``body`` lays a model name over each request, or if the config names none (``any_model``) and the server lists exactly one.
    """
    wanted = setup.asked_model
    if not names or wanted in names or "model" in setup.body or (setup.any_model and len(names) == 1):
        return
    near = nearest(wanted, names[:_MOST_NAMES])
    what = f"{setup.url} does not serve {wanted}" + (f"; {near}" if near else "")
    remedy = "correct `engine.model`; or say `served_as: NAME`, under `engine` or this arm, where the same model has another name there"
    raise SetupError(what, where=setup.url, found=_describe_names(names), expected=wanted, remedy=remedy)


def _describe_names(names: Sequence[str]) -> str:
    """Return the first few of ``names``, shortened, and how many follow."""
    first_names = ", ".join(name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…" for name in names[:_SHOWN_NAMES])
    others = len(names) - _SHOWN_NAMES
    return f"{first_names} and {others:,} more" if others > 0 else first_names


def _lasting_fields(card: Mapping[str, JSON] | None) -> Mapping[str, JSON] | None:
    """Return the fields of a model's card fixed for its lifetime.

    A card is the model's entry in ``/v1/models``. Its other fields are left out, since some servers put the time of
    the listing there. Returns None without a card.
    """
    return None if card is None else {name: card[name] for name in ("id", "root", "max_model_len") if name in card}


_TOKEN = Request(id="token ids", route=Route.COMPLETIONS, body={"prompt": "Hello", "max_tokens": 1, "temperature": 0.0})


def dialect_of(engine: Engine, config: Config, setup: ServerSetup) -> Dialect:
    """Return the dialect of ``engine``, or of the engine recognised there.

    A config may leave the engine open: ``engine`` then has candidates. The first of them to recognise the server by its endpoints is taken,
    else the one whose dialect the server supports best, by test requests. If the server supports none of them, the plain dialect of
    ``engine`` is returned.
    """
    if not isinstance(engine, AnyEngine):
        return engine.dialect(config, setup)
    recognised = recognise(engine, config, setup)
    if recognised is not None:
        return recognised.dialect(config, setup)
    dialects = [candidate.dialect(config, setup) for candidate in engine.candidates()]
    fits = [_measure_fit(setup, dialect) for dialect in dialects]
    best_fit = max(fits, default=0)
    return dialects[fits.index(best_fit)] if best_fit else engine.dialect(config, setup)


def recognise(engine: AnyEngine, config: Config, setup: ServerSetup) -> Engine | None:
    """Return the first candidate engine to recognise a server.

    Each candidate looks at pages of the server, which are read once. Returns None if none recognises it. Reading the counters of some
    engines resets them (``counters_drain``), which would spoil them for the server's other clients: such pages are read only if no engine
    recognises the server without them.
    """
    candidates, read_any_page = engine.candidates(), cache(partial(get, setup))
    dialects = [candidate.dialect(config, setup) for candidate in candidates]
    draining_paths = {dialect.counters_path for dialect in dialects if dialect.counters_drain}

    def read_harmless_page(path: str) -> str | None:
        return None if path in draining_paths else read_any_page(path)

    for read_page in (read_harmless_page, read_any_page):
        for candidate in candidates:
            if isinstance(candidate, Recognising) and candidate.recognises(read_page):
                return candidate
    return None


def _measure_fit(setup: ServerSetup, dialect: Dialect) -> int:
    """Return a score of how much a server supports a dialect.

    It is 0 unless a completion brings token ids, 1 if it does, and 2 if the server also returns its next-token distributions at these ids,
    as :meth:`Dialect.scoring` asks for. An error ends the test with the score so far.
    """
    names, fit, wanted = listed_models(get(setup, _MODELS)), 0, setup.asked_model
    client = Client(setup, dialect, model=wanted if wanted in names else next(iter(names), wanted))
    try:
        answer = client.send(_TOKEN, streamed=False, deadline_s=SECONDS).answer
        fit = int(bool(answer.choice.token_ids))
        api_request = dialect.scoring(answer.prompt_token_ids, answer.choice.token_ids, 1) if fit else None
        response = None if api_request is None else client.exchange(api_request.path, api_request.body, deadline_s=SECONDS).received
        if response is not None:
            fit += bool(dialect.positions(response.json(), answer.choice.token_ids, 1))
    except (SpecdecError, ValueError, RecursionError):
        return fit
    finally:
        client.close()
    return fit
