"""The catalogue of planted faults: the rows of every module of this package that has some, by id."""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError
from specdec_reference import faults
from specdec_reference.faults.planted import Place, PlantedFault

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FAULTS", "planted_in", "refuse_unknown"]

_MODULES = [
    import_module(f"{faults.__name__}.{module.name}") for module in pkgutil.iter_modules(faults.__path__) if module.name != "catalogue"
]
FAULTS: dict[str, PlantedFault] = {row.id: row for module in _MODULES for row in getattr(module, "ROWS", ())}
"""Every fault of a server, by id. Faults of the simulation alone follow in ``benchmarks/detection/faults.py``."""


def planted_in(place: Place) -> tuple[str, ...]:
    """Return the ids of the faults that can be planted in ``place``."""
    return tuple(fault.id for fault in FAULTS.values() if place in fault.expected)


def refuse_unknown(fault: str, *, speculating: bool) -> None:
    """Raise EngineError for a fault that the reference engine does not have, and for one without speculation."""
    known = planted_in(Place.REFERENCE)
    if fault not in known:
        raise EngineError(what="no such fault", where="--fault", found=fault, expected=", ".join(known), remedy=_remedy(fault, known))
    if not speculating:
        raise EngineError(
            what="a fault of speculation on a server that does not speculate",
            where="--fault",
            found=f"{fault} without --speculative-config",
            expected="--speculative-config beside it",
            remedy="plant the fault in the variant: the baseline is the judge",
        )


def _remedy(fault: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(fault, known, n=1)
    return f"did you mean {near[0]!r}?" if near else "name one of these"
