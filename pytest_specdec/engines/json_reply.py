"""A reply: the JSON that a server sent, read within limits of size and depth.

A server may send anything: two hundred thousand brackets, a number of ten thousand digits, a list of a
gigabyte in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON


class BeyondLimitsError(ValueError):
    """JSON larger or deeper than any that a server needs to send."""


_MAX_VALUES, _VALUES_PER_BYTE = 2**20, 1 / 8
"""The most JSON values of one reply: a fixed number, plus a number per byte of the reply.

An empty list is 3 bytes on the wire and 60 in memory; an entry of a distribution is 60 bytes on the wire.
"""


def load(text: str | bytes, *, parse_constant: Callable[[str], JSON] | None = None) -> JSON:
    """Return the JSON of a server's reply.

    ``parse_constant`` reads NaN and infinities, as in :func:`json.loads`. Raises ValueError for text that is not JSON, and
    BeyondLimitsError for JSON too large or too deep for a reply. Its values are estimated before it is parsed, since they take
    many times the memory of the text.
    """
    # A long reply may have many values, but not as dense as empty lists, which take 20 times their text in memory.
    if _estimate_values(text) > _MAX_VALUES + len(text) * _VALUES_PER_BYTE:
        msg = "JSON of too many values"
        raise BeyondLimitsError(msg)
    try:
        return json.loads(text, parse_constant=parse_constant)  # type: ignore[no-any-return]  # JSON is untyped
    except RecursionError:
        msg = "JSON that is nested too deeply"
        raise BeyondLimitsError(msg) from None


def value(text: str | bytes | None) -> JSON:
    """Return a reply's JSON; None for anything else."""
    try:
        return load(text or "null")
    except ValueError:
        return None


def document(text: str | bytes | None) -> Mapping[str, JSON]:
    """Return a reply's JSON object; empty for anything else."""
    data = value(text)
    return data if isinstance(data, Mapping) else {}


def _estimate_values(text: str | bytes) -> int:
    """Return roughly the number of values in JSON: that of commas and opening brackets."""
    return sum(map(text.count, ",[{")) if isinstance(text, str) else sum(map(text.count, (b",", b"[", b"{")))
