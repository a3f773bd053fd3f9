"""The catalogue of planted faults: those of every module of this package, by id, and the engine's rules with one of them."""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError
from specdec_reference import faults
from specdec_reference.faults.planted import PLANTED, Place
from specdec_reference.rules import EngineRules
from specdec_reference.wrappers import wrap_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specdec_reference.faults.planted import PlantedFault
    from specdec_reference.wrappers import Wrapper

for _module in pkgutil.iter_modules(faults.__path__):
    if _module.name != "catalogue":
        import_module(f"{faults.__name__}.{_module.name}")
FAULTS: dict[str, PlantedFault] = {planted.id: planted for planted in sorted(PLANTED.values(), key=lambda planted: planted.topic)}
"""Every fault of a server by id, topic by topic. Faults of the simulation alone follow in ``benchmarks/detection/faults.py``."""


def planted_in(place: Place) -> tuple[str, ...]:
    """Return the ids of the faults that can be planted in ``place``."""
    return tuple(fault.id for fault in FAULTS.values() if place in fault.expected)


def rules(fault: str, *, speculating: bool) -> EngineRules:
    """Return the right rules for no fault, else those with that fault. Raises what :func:`refuse_unknown` raises."""
    if fault:
        refuse_unknown(fault, speculating=speculating)
    return wrap_rules(wrappers(fault), EngineRules())


def wrappers(fault: str) -> Mapping[str, Wrapper]:
    """Return the wrappers of a fault; empty for no fault."""
    return FAULTS[fault].wrappers if fault else {}


def refuse_unknown(fault: str, *, speculating: bool) -> None:
    """Raise EngineError for a fault unknown to the reference engine, and for any fault of a server without speculation."""
    fault_ids = planted_in(Place.REFERENCE)
    if fault not in fault_ids:
        raise EngineError(
            what="no such fault", where="--fault", found=fault, expected=", ".join(fault_ids), remedy=_suggest_fault(fault, fault_ids)
        )
    if not speculating:
        raise EngineError(
            what="a fault of speculation on a server that does not speculate",
            where="--fault",
            found=f"{fault} without --speculative-config",
            expected="--speculative-config beside it",
            remedy="plant the fault in the variant: the baseline is the judge",
        )


def _suggest_fault(fault: str, fault_ids: Iterable[str]) -> str:
    similar = difflib.get_close_matches(fault, fault_ids, n=1)
    return f"did you mean {similar[0]!r}?" if similar else "name one of these"
