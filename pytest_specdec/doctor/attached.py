"""The attached servers: whether each is there, takes the key, and serves the model, and which engine's it is; asked by GETs.

They run already, at an address in the config; a setup says how one is reached. An arm is one server of a run. Counters are the engine's
metrics of tokens and drafts. A config with the engine ``AnyEngine`` leaves open which engine the server is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.attached import check_model, is_untrusted, recognise, refusal_error
from pytest_specdec.capture.server.counters import check_sources, places
from pytest_specdec.capture.server.readiness import listed_models, look
from pytest_specdec.config.validate import dotted_path
from pytest_specdec.doctor.check import Level, error_check, fail, ok, warn
from pytest_specdec.engines.optional import AnyEngine
from pytest_specdec.errors import BootError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.engines.protocol import Engine, ServerSetup
    from pytest_specdec.files.yaml import KeyPath

_OK, _NOT_FOUND = 200, 404
_NAME = "attached"
_LIMIT_S = 5.0


def checks(config: Config, engine: Engine, arms: Sequence[Arm]) -> Iterator[Check]:
    """Yield the checks of every attached server and of its counters.

    The server has to answer, take the key and serve the model; its engine is added to that check. The addresses of its
    counters have to answer; they are not looked at if the server fails. A BootError on the way is a failed check.
    """
    for arm in arms:
        if arm.attached is not None:
            try:
                check = _check_server(arm.name, arm.attached)
                yield _name_engine(check, config, engine, arm.attached) if check.level is not Level.FAIL else check
                if arm.attached.counted and check.level is not Level.FAIL:
                    yield from _check_counters(arm, config, engine, arm.attached)
            except BootError as error:
                yield error_check(_NAME, error)


def _name_engine(check: Check, config: Config, engine: Engine, setup: ServerSetup) -> Check:
    """Return the check with the server's engine added to its line.

    The engine is looked for only if the config leaves it open. Nothing is added if no engine recognises the server.
    """
    recognised = recognise(engine, config, setup) if isinstance(engine, AnyEngine) else None
    return check if recognised is None else replace(check, line=f"{check.line}: a server of {recognised.kind}")


def _check_counters(arm: Arm, config: Config, engine: Engine, setup: ServerSetup) -> Iterator[Check]:
    """Yield a check of each address of counters, which has to answer.

    ``setup`` is that of the arm's attached server. An address without a known path gives a warning. Counters that a
    reading resets are not read. Whether counters grow is seen only in a run.
    """
    # A config that leaves the engine open gets that of the server, as far as one recognises it.
    recognised = recognise(engine, config, setup) if isinstance(engine, AnyEngine) else None
    dialect = (recognised or engine).dialect(config, setup)
    check_sources(setup, dialect)  # raises SetupError for several addresses of counters that a reading resets
    for source, setup_of_source, path in places(setup, dialect):
        if path is None:
            line, remedy = f"{arm.name}: no path of counters is known for {source}", "write the path too: http://HOST:PORT/metrics"
            yield warn(_NAME, line, remedy=remedy)
        elif dialect.counters_drain:
            yield ok(_NAME, f"{arm.name}: counters at {source}, not read before a run: a reading resets them")
        elif (reply := look(setup_of_source, path, seconds=_LIMIT_S)).status != _OK:
            what, remedy = f"{arm.name}: no counters at {source}", "correct `metrics_url`, or switch the counters on"
            where, answer = _locate_metrics_url(config, arm.section), str(reply.status or reply.text)
            yield error_check(_NAME, SetupError(what, where=where, found=answer, expected="a page of counters", remedy=remedy))
        else:
            yield ok(_NAME, f"{arm.name}: counters are read at {source}")


def _locate_metrics_url(config: Config, section: KeyPath) -> str:
    """Return the file, line and place of an arm's ``metrics_url``.

    It is the engine's if the arm's own ``section`` of the config states none.
    """
    document, key = config.document(), "metrics_url"
    path = (*section, key) if (*section, key) in document.lines else ("engine", key)
    return f"{config.path}:{document.line(path)}  {dotted_path(path)}"


def _check_server(name: str, setup: ServerSetup) -> Check:
    """Return the check of one attached server.

    It fails for an untrusted certificate, without an answer, and for any status but 200, such as that of a refused key.
    A server that lists no models (404) gives a warning only, since a run can find out by a request. Raises SetupError, a
    BootError, if the server lists models, but not the config's.
    """
    reply = look(setup, "/v1/models", seconds=_LIMIT_S)
    if is_untrusted(reply):
        return error_check(_NAME, refusal_error(setup, reply))
    if reply.status is None:
        return fail(
            _NAME, f"{name}: nothing answers at {setup.url}", f"found:    {reply.text}", remedy="start the server, or correct `url`"
        )
    if reply.status == _NOT_FOUND:
        return warn(_NAME, f"{name}: {setup.url} lists no models", remedy="a run asks for a token")
    if reply.status != _OK:
        return error_check(_NAME, refusal_error(setup, reply))
    check_model(setup, list(listed_models(reply.text)))
    return ok(_NAME, f"{name}: {setup.url} serves {setup.asked_model}")
