"""The attached servers: whether each is there, takes the key, and serves the model; asked by one GET."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.capture.server.attached import is_untrusted, refused
from pytest_specdec.capture.server.readiness import listed, look
from pytest_specdec.doctor.check import fail, failed, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.engines.protocol import ServerSetup

__all__ = ["checks"]

_OK, _NOT_FOUND = 200, 404
_NAME = "attached"
_LIMIT_S = 5.0


def checks(arms: Sequence[Arm]) -> Iterator[Check]:
    """Give a check of every arm whose server runs already."""
    for arm in arms:
        if arm.attached is not None:
            yield _check(arm.name, arm.attached)


def _check(name: str, setup: ServerSetup) -> Check:
    reply = look(setup, "/v1/models", seconds=_LIMIT_S)
    if is_untrusted(reply):
        return failed(_NAME, refused(setup, reply))
    if reply.status is None:
        return fail(
            _NAME, f"{name}: nothing answers at {setup.url}", f"found:    {reply.text}", remedy="start the server, or correct `url`"
        )
    if reply.status != _OK:
        error = failed(_NAME, refused(setup, reply))
        return error if reply.status != _NOT_FOUND else warn(_NAME, f"{name}: {setup.url} lists no models", remedy="a run asks for a token")
    names = list(listed(reply.text))
    model = str(setup.body.get("model", setup.model))
    if names and model not in names:
        line, found = f"{name}: {setup.url} does not list {model}", f"found:    {', '.join(names)}"
        if len(names) > 1:
            return fail(_NAME, line, found, remedy="name one of them as engine.model")
        return warn(_NAME, line, found, remedy=f"engine.model: {names[0]}, unless that is the same model under another name")
    return ok(_NAME, f"{name}: {setup.url} serves {model}")
