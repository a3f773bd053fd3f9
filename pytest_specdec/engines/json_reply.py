"""A reply: the JSON that a server sent, read within limits of size and depth.

Whoever answers may send anything: two hundred thousand brackets, a number of ten thousand digits, a list of a gigabyte in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON


class BeyondLimitsError(ValueError):
    """JSON that is larger or deeper than any that a server has to say."""


_MAX_VALUES, _VALUES_PER_BYTE = 2**20, 1 / 8
"""Of JSON, in all and on top per byte: an empty list is 3 bytes on the wire and 60 in memory, an entry of a distribution 60 on the wire."""


def load(text: str | bytes, *, parse_constant: Callable[[str], JSON] | None = None) -> JSON:
    """Return the JSON of a server's reply. Raises ValueError when it is none, BeyondLimitsError when it is no reply."""
    if _values(text) > _MAX_VALUES + len(text) * _VALUES_PER_BYTE:
        msg = "JSON of too many values"
        raise BeyondLimitsError(msg)
    try:
        return json.loads(text, parse_constant=parse_constant)  # type: ignore[no-any-return]  # JSON is untyped
    except RecursionError:
        msg = "JSON that is nested too deeply"
        raise BeyondLimitsError(msg) from None


def value(text: str | bytes | None) -> JSON:
    """Return the JSON of a server's reply; None in place of anything else."""
    try:
        return load(text or "null")
    except ValueError:
        return None


def document(text: str | bytes | None) -> Mapping[str, JSON]:
    """Return the JSON object of a server's reply; an empty one in place of anything else."""
    data = value(text)
    return data if isinstance(data, Mapping) else {}


def _values(text: str | bytes) -> int:
    """Return about how many values there are in JSON: as many as commas and openings."""
    return sum(map(text.count, ",[{")) if isinstance(text, str) else sum(map(text.count, (b",", b"[", b"{")))
