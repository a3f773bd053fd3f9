"""Batches: which faults share a run, and which few stand for all of them in the quick lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST", "alike", "batches", "every", "own", "quick"]

MOST = 6
"""Faults of one run at most: an interrupted run loses no more than these."""
_FIRST = ("accept-all", "report-draft-logprobs", "penalties-ignored", "stop-short", "die-on-json", "choices-alike", "prefix-without-parent")
"""Of the families that they show red, these do so at smoke depth."""


_STANDARD_ONLY = {Family.PRESSURE, Family.LONG, Family.OFFLOAD, Family.ENDURANCE}
"""Families without requests at smoke depth, or with too few to show where a fault begins."""


_MANY = {"die-after-requests"}
"""Faults that show after more requests than one family has."""
_DEAR = {Family.SAMPLING, Family.PRESSURE, Family.BETWEEN, Family.RESPONSES}
"""Families that take half of the time of a whole run; the others' answers are enough for the judges of whole runs."""


def every() -> tuple[str, ...]:
    """Return the faults that can be planted in the reference engine."""
    return planted_in(Place.REFERENCE)


def batches(faults: Iterable[str], most: int = MOST) -> tuple[tuple[str, ...], ...]:
    """Return the faults in batches, those of other settings apart, and those alone that kill or hang the server or live in load."""
    several = tuple(faults)
    kinds: dict[str, list[str]] = {}
    for fault in several:
        if not FAULTS[fault].alone:
            kinds.setdefault(_settings(fault), []).append(fault)
    shared = (tuple(together[at : at + most]) for together in kinds.values() for at in range(0, len(together), most))
    return (*shared, *((fault,) for fault in several if FAULTS[fault].alone))


def _settings(fault: str) -> str:
    """Return a text of the settings that both arms need to show it."""
    return f"{FAULTS[fault].reasons}{FAULTS[fault].minutes}{sorted(map(str, FAULTS[fault].engine.items()))}"


def own(faults: Iterable[str], *, whole_runs: bool = True) -> tuple[str, ...]:
    """Return the families that should find these faults.

    Where one of them judges whole runs, all others but the dear ones as well; without ``whole_runs`` it judges the traffic of the batch.
    """
    several = tuple(faults)
    red = dict.fromkeys(family for fault in several for family in _red(fault))
    if whole_runs and any(map(_needs_many, several)):
        red |= dict.fromkeys(family for family in Family if family not in _DEAR)
    return tuple(red)


def _needs_many(fault: str) -> bool:
    """Whether the traffic of most families is needed to see it."""
    return fault in _MANY or any(FAMILIES[family].whole_run for family in _red(fault))


def _red(fault: str) -> tuple[str, ...]:
    return tuple(sorted(FAULTS[fault].expected[Place.REFERENCE].red))


def alike(faults: Iterable[str]) -> tuple[str, ...]:
    """Return the faults in an order in which those of the same families are neighbours, those that need nearly all behind the others."""
    return tuple(sorted(faults, key=lambda fault: (_needs_many(fault), _red(fault))))


def quick() -> tuple[str, ...]:
    """Return few faults that together turn every family red that smoke depth asks of ordinary servers.

    Where no given one does, it is the most specific. Faults that need other servers, or minutes, are left out: each would be a run more.
    """
    red = {
        fault: set(FAULTS[fault].expected[Place.REFERENCE].red)
        for fault in every()
        if not FAULTS[fault].engine and not FAULTS[fault].minutes
    }
    chosen = [fault for fault in _FIRST if fault in red]
    open_ = dict.fromkeys(family for fault in red for family in red[fault] if family not in _STANDARD_ONLY)
    for family in open_:
        if not any(family in red[fault] for fault in chosen):
            chosen.append(min((fault for fault in red if family in red[fault]), key=lambda fault: len(red[fault])))
    return tuple(chosen)
