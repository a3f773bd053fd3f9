"""Differences between what was frozen and what is computed now, as lines that a person reads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["differences"]

_EQUAL = 1e-12
"""Relative difference of figures that is none."""
_CUT = 160


def differences(frozen: Mapping[str, JSON], now: Mapping[str, JSON]) -> Iterator[str]:
    """Yield a line for every item that is missing, new or another one."""
    for name in sorted(frozen.keys() | now.keys()):
        if name not in now:
            yield f"{name}: gone"
        elif name not in frozen:
            yield f"{name}: new"
        else:
            yield from _compare(frozen[name], now[name], name)


def _compare(frozen: JSON, now: JSON, where: str) -> Iterator[str]:
    if isinstance(frozen, dict) and isinstance(now, dict):
        for key in sorted(frozen.keys() | now.keys()):
            if key in frozen and key in now:
                yield from _compare(frozen[key], now[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}: {'new' if key in now else 'gone'}"
    elif isinstance(frozen, list) and isinstance(now, list) and len(frozen) == len(now):
        for index, (before, after) in enumerate(zip(frozen, now, strict=True)):
            yield from _compare(before, after, f"{where}[{index}]")
    elif not _same(frozen, now):
        yield f"{where}: {str(frozen)[:_CUT]!r} -> {str(now)[:_CUT]!r}"


def _same(frozen: JSON, now: JSON) -> bool:
    if isinstance(frozen, float) and isinstance(now, int | float):
        return math.isclose(frozen, now, rel_tol=_EQUAL, abs_tol=_EQUAL) or (math.isnan(frozen) and math.isnan(now))
    return frozen == now
