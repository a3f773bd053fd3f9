"""The judges: pure functions from what was captured to verdicts, one module per family.

Modules load on first use (PEP 562), so that collecting tests imports no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pytest_specdec.model.families import FAMILIES

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [name for name, row in FAMILIES.items() if row.judge]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(FAMILIES[name].judge)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
