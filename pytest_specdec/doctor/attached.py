"""The attached servers: whether each is there, takes the key, and serves the model, and which engine's it is; asked by GETs."""

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

    The server has to answer, take the key and serve the model; the addresses of its counters have to answer. Counters
    are not looked at if the server fails.
    """
    for arm in arms:
        if arm.attached is not None:
            try:
                check = _check_server(arm.name, arm.attached)
                yield _name_engine(check, config, engine, arm.attached) if check.level is not Level.FAIL else check
                if arm.attached.counted and check.level is not Level.FAIL:
                    yield from _check_counters(arm.name, config, engine, arm.attached)
            except BootError as error:
                yield error_check(_NAME, error)


def _name_engine(check: Check, config: Config, engine: Engine, setup: ServerSetup) -> Check:
    """Return the check with the server's engine added to its line.

    The engine is looked for only if the config leaves it open. Nothing is added if no engine recognises the server.
    """
    recognised = recognise(engine, config, setup) if isinstance(engine, AnyEngine) else None
    return check if recognised is None else replace(check, line=f"{check.line}: a server of {recognised.kind}")


def _check_counters(name: str, config: Config, engine: Engine, setup: ServerSetup) -> Iterator[Check]:
    """Yield a check of each address of counters, which has to answer.

    An address without a known path gives a warning. Counters that a reading resets are not read. Whether they count is
    seen only in a run.
    """
    counting_engine = recognise(engine, config, setup) if isinstance(engine, AnyEngine) else engine
    dialect = (counting_engine or engine).dialect(config, setup)
    check_sources(setup, dialect)
    for source, counting_setup, path in places(setup, dialect):
        reply = None if path is None or dialect.counters_drain else look(counting_setup, path, seconds=_LIMIT_S)
        if path is None:
            yield warn(_NAME, f"{name}: no path of counters is known for {source}", remedy="write the path too: http://HOST:PORT/metrics")
        elif reply is None:
            yield ok(_NAME, f"{name}: counters at {source}, not read before a run: a reading resets them")
        elif reply.status != _OK:
            what, remedy = f"{name}: no counters at {source}", "correct `metrics_url`, or switch the counters on"
            where, answer = _place_of_counters(config, name), str(reply.status or reply.text)
            yield error_check(_NAME, SetupError(what, where=where, found=answer, expected="a page of counters", remedy=remedy))
        else:
            yield ok(_NAME, f"{name}: counters are read at {source}")


def _place_of_counters(config: Config, arm: str) -> str:
    """Return the file, line and place of an arm's ``metrics_url``; the engine's where the arm states none."""
    document, key = config.document(), "metrics_url"
    # The first word is the section of "baseline" and "draft model NAME".
    paths: tuple[KeyPath, ...] = (("variants", arm, key), (arm.partition(" ")[0], key))
    path = next((path for path in paths if path in document.lines), ("engine", key))
    return f"{config.path}:{document.line(path)}  {dotted_path(path)}"


def _check_server(name: str, setup: ServerSetup) -> Check:
    """Return the check of one attached server.

    It fails if nothing answers at the address, if the key is refused, or for any other error. A server that lists no
    models (404) gives a warning only, since a run can find out by a request. Raises BootError if the server lists
    models, but not the config's.
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
