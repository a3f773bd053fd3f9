"""The faults of the reference engine: each replaces one decision of its rules. A module per topic; no other knows that they exist."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from specdec_reference.faults.catalogue import refuse_unknown
from specdec_reference.faulty_rules import registry
from specdec_reference.rules import EngineRules

__all__ = ["rules"]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def rules(fault: str, *, speculating: bool) -> EngineRules:
    """Return the right rules for no fault, else those with that fault.

    Raises EngineError for an unknown fault, and for one without speculation.
    """
    if not fault:
        return EngineRules()
    refuse_unknown(fault, speculating=speculating)
    return EngineRules(**registry.DECISIONS[fault])
