"""Fields of a reply, each of the type that the protocol says, or an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from pytest_specdec.model.score_flaws import LOWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import JSON

MAX_INT = 2**31
"""Ids and counts lie below: engines hold them in 32 bits."""


def read_objects(data: Mapping[str, JSON], name: str) -> list[Mapping[str, JSON]]:
    """Return the list of objects under ``name``, empty without one.

    Raises ValueError if it is no list, or has anything but JSON objects in it.
    """
    objects = []
    for item in read_list(data, name):
        if not isinstance(item, Mapping):
            raise_mismatch(name, item, "objects")
        objects.append(item)
    return objects


def read_ids(data: Mapping[str, JSON], name: str) -> tuple[int, ...]:
    """Return the list of token ids under ``name``, empty without one.

    Raises ValueError if it is no list, or has anything but whole numbers from 0 to below MAX_INT in it.
    """
    ids = [read_count(name, item) for item in read_list(data, name)]
    if None in ids:
        raise_mismatch(name, None, "whole numbers")
    return tuple(item for item in ids if item is not None)


def read_list(data: Mapping[str, JSON], name: str) -> Sequence[JSON]:
    """Return the list under ``name``, empty if missing or null.

    Raises ValueError for another type.
    """
    value = data.get(name)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise_mismatch(name, value, "a list")
    return value


def read_count(name: str, value: JSON) -> int | None:
    """Return ``value`` if it is a count, None if null.

    A count is a whole number from 0 to below MAX_INT. Raises ValueError for anything else; ``name`` is the field to name in the error.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_INT:
        raise_mismatch(name, value, f"whole numbers from 0 to {MAX_INT - 1}")
    return value


def read_string(data: Mapping[str, JSON], name: str) -> str | None:
    """Return the text under ``name``, None if missing or null.

    Raises ValueError for another type.
    """
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise_mismatch(name, value, "a text")
    return value


def finite_number(value: JSON) -> float | None:
    """Return a finite number as a float; None for anything else.

    Beyond 1e39 none counts as finite: no number of single precision lies there, and a JSON integer of any size may not fit into a float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    highest = -LOWEST  # 1e39
    return float(value) if abs(value) <= highest else None


def finite_numbers(values: Sequence[JSON]) -> tuple[float, ...] | None:
    """Return ``values`` as floats; None if one is no finite number."""
    numbers = tuple(number for value in values if (number := finite_number(value)) is not None)
    return numbers if len(numbers) == len(values) else None


def raise_mismatch(name: str, value: object, expected: str) -> NoReturn:
    """Raise ValueError for a field of the wrong type or value."""
    msg = f"`{name}` has {str(value)[:100]}, expected {expected}"
    raise ValueError(msg)
