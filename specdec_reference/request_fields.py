"""Fields: a body's values by name, each checked for its type and range; a wrong one is a refusal."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_specdec.model.workload import JSON


class Refusal(Exception):  # noqa: N818 - it is an answer, not an error of ours
    """A request that is answered with a 4xx."""

    def __init__(self, *, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status


class Fields:
    """A body with fields by name; null stands for the default, as in OpenAI's API."""

    def __init__(self, body: Mapping[str, JSON]) -> None:
        self._body = body

    def refuse_unknown(self, known: Collection[str], neutral: Mapping[str, tuple[JSON, ...]]) -> None:
        """Refuse unknown fields and unsupported values.

        Fields of ``known`` pass. Those of ``neutral`` pass with null or with one of their values, which
        change nothing. Raises Refusal.
        """
        for name, value in self._body.items():
            if name in neutral:
                if value is not None and not _is_among(value, neutral[name]):
                    raise Refusal(message=f"{name} is not supported by the reference engine: {_shorten_json(value)}", param=name)
            elif name not in known:
                similar = difflib.get_close_matches(name, [*known, *neutral], n=1)
                hint = f"; did you mean {similar[0]}?" if similar else ""
                raise Refusal(message=f"unknown field {name}{hint}", param=name)

    def value(self, name: str) -> JSON:
        """Return whatever the field holds; None without it."""
        return self._body.get(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return the field's boolean, or ``default`` for null; raise Refusal for anything else."""
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _value_refusal(name, value, "true or false")
        return value

    def integer(self, name: str, *, low: int, high: int | None = None) -> int | None:
        """Return the field's integer, None for null; raise Refusal outside ``low`` to ``high``."""
        value = self._body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise _value_refusal(name, value, f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}")
        return value

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return the field's number, ``default`` for null.

        Raises Refusal for anything but a number from ``low`` to ``high``.
        """
        value = self._body.get(name)
        return default if value is None else _check_number(name, value, low, high)

    def numbers(self, name: str, *, low: float, high: float) -> dict[str, float]:
        """Return the numbers of the field's object by key.

        Empty for null. Raises Refusal for a number outside ``low`` to ``high``, and for anything but an object of numbers.
        """
        return {key: _check_number(f"{name}.{key}", value, low, high, param=name) for key, value in (self.object(name) or {}).items()}

    def text(self, name: str) -> str | None:
        """Return the field's string, None for null; raise Refusal for anything else."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            raise _value_refusal(name, value, "a string")
        return value

    def object(self, name: str) -> Mapping[str, JSON] | None:
        """Return the field's JSON object, None for null; raise Refusal for anything else."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, dict):
            raise _value_refusal(name, value, "an object")
        return value

    def strings(self, name: str, *, most: int) -> tuple[str, ...]:
        """Return the field's strings, none of them empty.

        The field is a string or a list of at most ``most`` strings. Empty for null. Raises Refusal for anything else.
        """
        value = self._body.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or len(items) > most:
            raise _value_refusal(name, value, f"a string or a list of at most {most}")
        strings = tuple(item for item in items if isinstance(item, str) and item)
        if len(strings) != len(items):
            raise _value_refusal(name, value, "strings that are not empty")
        return strings


def _check_number(name: str, value: JSON, low: float, high: float, param: str | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _value_refusal(name, value, f"a number from {low:g} to {high:g}", param)
    return float(value)


def _is_among(value: JSON, allowed: tuple[JSON, ...]) -> bool:
    """Return True if ``value`` is allowed; 1 is not true."""
    return any(value == allowed_value and isinstance(value, bool) == isinstance(allowed_value, bool) for allowed_value in allowed)


def _value_refusal(name: str, value: JSON, expected: str, param: str | None = None) -> Refusal:
    return Refusal(message=f"{name} must be {expected}, not {_shorten_json(value)}", param=param or name)


def _shorten_json(value: JSON) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - a message, not a dump
