"""The judges: pure functions from what was captured to verdicts, one module per family.

Modules load on first use (PEP 562), so that collecting tests imports no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Family

__all__ = ["greedy", "liveness", "logprobs", "of", "parameters", "sampling", "speed", "structured"]

_JUDGES = frozenset(__all__) - {"of"}


def of(family: Family) -> Callable[[Captured], Verdict]:
    """Return the judge of ``family``, importing its module. Raises LookupError for a family that has none."""
    if family.value not in _JUDGES:
        msg = f"no judge for the family {family.value!r}; there are judges for: {', '.join(sorted(_JUDGES))}"
        raise LookupError(msg)
    judge = import_module(f"{__name__}.{family.value}").judge
    return cast("Callable[[Captured], Verdict]", judge)


def __getattr__(name: str) -> ModuleType:
    if name in _JUDGES:
        return import_module(f"{__name__}.{name}")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
