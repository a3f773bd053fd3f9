"""A claim of an adapter: the members that make it, and the two reasons why a server is not held to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias, TypeVar

import pytest

Note: TypeAlias = Callable[[str], None]
"""Takes the evidence of a claim that is kept, one line."""
_Test = TypeVar("_Test", bound=Callable[..., None])


class NotClaimedError(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """The adapter says None, or nothing beyond the OpenAI protocol."""


class UncheckedError(pytest.skip.Exception):  # type: ignore[misc, name-defined]
    """The claim stands, and could not be checked on this server."""


def not_claimed(reason: str) -> NoReturn:
    """Skip the test of a claim that the adapter does not make."""
    raise NotClaimedError(reason)


def unchecked(reason: str) -> NoReturn:
    """Skip the test of a claim that nothing shows on this server."""
    raise UncheckedError(reason)


def outcome(error: BaseException | None) -> str:
    """Return the outcome of a claim, by the error that ended its test."""
    if error is None:
        return "kept"
    if isinstance(error, pytest.skip.Exception):
        return "not claimed" if isinstance(error, NotClaimedError) else "could not be checked"
    return "broken"


def claims(*members: str) -> Callable[[_Test], _Test]:
    """Return a decorator that names the members of ``Dialect`` and ``Engine`` behind a claim."""

    def name_members(test: _Test) -> _Test:
        vars(test)["members"] = members
        return test

    return name_members
