"""The simulated faults whose detection is measured: the rules of each, the names that are right for it, and its way of asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.bank import Asked
from benchmarks.simulation import Rules, blurred
from pytest_specdec.judge.sampling.fault_naming import AT_A_STEP, SOMETIMES, SOMEWHERE
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.bettors import RATIO_OF_RAW
from pytest_specdec.stats.fault_models import (
    BONUS,
    CATALOGUE,
    Fault,
    best_only,
    greedy,
    inverted_ratio,
    leaky,
    lenient_ratio,
    ratio,
    residual_best,
    temperature_tilt,
    the_target,
    typical,
    unnormalised_residual,
)
from pytest_specdec.stats.reused_numbers import ReusedNumber
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["ALL", "GREEDY", "MODEL", "RULES", "SimulatedFault", "family_of"]

MODEL, GREEDY = "model", "greedy"
"""Kinds of drafts: drawn from the draft model's distribution q; its favourite, a one-hot distribution."""
PARTLY = (SOMETIMES, SOMEWHERE)
"""Ends of names that speak of some answers or draft tokens only."""
PLAIN = Asked()
COOLED = Asked(temperature=0.7)
NUCLEUS = Asked(temperature=0.7, top_p=0.9)
LENIENCE = 1.5
"""Of ``lenient`` without a size, as in the servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """A fault planted in a simulated server."""

    id: str
    """As in ``specdec_reference/faults/`` where a server can have it too; a size stands behind."""
    rules: Rules
    family: Fault | None
    """None where no family says what it does."""
    rule: tuple[str, ...] = ()
    """Beginnings of the names that tell its rule; empty where the family is all there is to tell."""
    same: tuple[str, ...] = ()
    """Further names that are right under one-hot drafts, because there the very same tokens come out."""
    asked: Asked = PLAIN
    kinds: tuple[str, ...] = (MODEL, GREEDY)
    closed: bool = True
    """Whether its distribution is a function of p, q and the slot."""
    directed: bool = True
    """Whether it moves mass in a direction that a bettor can know; without, reported log-probabilities show it, not tokens."""

    def names_rule(self, named: str, kind: str) -> bool:
        """Whether ``named`` tells what this server does to all its answers; its size need not be right."""
        if named.endswith(PARTLY):
            return False
        return named.startswith((*self.rule, *self.same) if kind == GREEDY else self.rule)

    def names_family(self, named: str, kind: str, *, windows: bool = True) -> bool:
        """Whether ``named`` is of the right family, or right by its rule; without ``windows`` what a verify step does is one family."""
        if not windows and self.family in AT_A_STEP:
            return family_of(named) is Fault.STEP
        return family_of(named) is self.family or (bool(self.rule) and self.names_rule(named, kind))


def family_of(named: str) -> Fault:
    """Return the family of what the judge named."""
    known = {one.name: one.fault for one in (*CATALOGUE, *BONUS)} | {RATIO_OF_RAW: Fault.RULE}
    for extent in PARTLY:
        named = named.removesuffix(extent)
    if named.startswith(Fault.STEP.value):
        return Fault.STEP
    if named.endswith(" at the bonus"):
        return Fault.BONUS
    return known[named] if named in known else Fault(named)


def _not_normalised(p: Floats, q: Floats) -> Floats:
    """Return the replacement distribution that, after the right acceptance, makes the distribution of ``unnormalised``."""
    accepted = q * ratio(p, q)
    missing = 1.0 - accepted.sum(axis=1, keepdims=True)
    distribution: Floats = (unnormalised_residual(p, q) - accepted).clip(0.0)
    distribution[missing[:, 0] <= 0] = p[missing[:, 0] <= 0]
    total: Floats = distribution.sum(axis=1, keepdims=True)
    return distribution / total


def _named(fault: str) -> tuple[str, ...]:
    """Return the names that the list of faults expects of the sampling judge."""
    return tuple(FAULTS[fault].expected[Place.SIMULATION].red[Family.SAMPLING].split("|"))


def _wrong_temperature(factor: float) -> SimulatedFault:
    return SimulatedFault(id=f"temperature-times-{factor:g}", rules=Rules(target=temperature_tilt(1.0 / factor)), family=Fault.TEMPERATURE)


def _reusing(id_: str, reuse: ReusedNumber, *kinds: str) -> SimulatedFault:
    return SimulatedFault(id=id_, rules=Rules(reuses=reuse), family=Fault.ORDER, kinds=kinds, closed=False)


ALL = (
    SimulatedFault(
        id="accept-all", rules=Rules(accept=leaky(1.0)), family=Fault.LENIENT, rule=_named("accept-all"), same=("inverted ratio",)
    ),
    *(
        SimulatedFault(
            id=f"acceptance-leak-{share * 100:g}",
            rules=Rules(accept=leaky(share)),
            family=Fault.LENIENT,
            rule=("acceptance leak",),
        )
        for share in (0.2, 0.05, 0.01)
    ),
    *(
        SimulatedFault(
            id=f"lenient{'' if factor == LENIENCE else f'-{factor:g}'}",
            rules=Rules(accept=lenient_ratio(1.0 / factor)),
            family=Fault.LENIENT,
            rule=_named("lenient"),
        )
        for factor in (LENIENCE, 1.25, 1.05)
    ),
    SimulatedFault(
        id="inverted-ratio", rules=Rules(accept=inverted_ratio), family=Fault.RULE, rule=("inverted ratio",), same=("accept-all",)
    ),
    SimulatedFault(
        id="typical-acceptance",
        rules=Rules(accept=typical, replacement=greedy(1.0)),
        family=Fault.RULE,
        rule=("typical acceptance",),
    ),
    SimulatedFault(
        id="greedy-acceptance",
        rules=Rules(accept=best_only, replacement=the_target),
        family=Fault.RULE,
        rule=("greedy acceptance",),
    ),
    SimulatedFault(id="resample-from-p", rules=Rules(replacement=the_target), family=Fault.RESIDUAL, rule=_named("resample-from-p")),
    SimulatedFault(id="residual-argmax", rules=Rules(replacement=residual_best), family=Fault.RESIDUAL, rule=("residual argmax",)),
    SimulatedFault(id="recover-argmax", rules=Rules(replacement=greedy(1.0)), family=Fault.RESIDUAL, rule=_named("recover-argmax")),
    SimulatedFault(
        id="residual-not-normalised",
        rules=Rules(replacement=_not_normalised),
        family=Fault.RESIDUAL,
        rule=("residual not normalised",),
    ),
    SimulatedFault(id="bonus-from-q", rules=Rules(bonus=lambda _, q: q), family=Fault.BONUS, rule=("bonus from q",)),
    SimulatedFault(id="greedy-bonus", rules=Rules(bonus=greedy(1.0)), family=Fault.BONUS, rule=("greedy bonus",)),
    SimulatedFault(
        id="bonus-id-off-by-one",
        rules=Rules(bonus_ids_off_by=1),
        family=Fault.BONUS,
        rule=("bonus out of place",),
    ),
    SimulatedFault(id="greedy-under-temperature", rules=Rules(target=greedy(1.0)), family=Fault.TEMPERATURE),
    _wrong_temperature(0.8),
    _wrong_temperature(0.93),
    _wrong_temperature(1.07),
    SimulatedFault(id="temperature-ignored", rules=Rules(forgets="everywhere"), family=Fault.TEMPERATURE, asked=COOLED),
    SimulatedFault(id="temperature-ignored-at-bonus", rules=Rules(forgets="bonus"), family=Fault.BONUS, asked=COOLED),
    SimulatedFault(
        id="temperature-ignored-in-ratio",
        rules=Rules(forgets="ratio"),
        family=Fault.RULE,
        rule=(RATIO_OF_RAW,),
        asked=COOLED,
        kinds=(MODEL,),
    ),
    SimulatedFault(id="top-p-ignored", rules=Rules(forgets="everywhere"), family=Fault.TEMPERATURE, asked=NUCLEUS),
    SimulatedFault(id="top-p-ignored-at-bonus", rules=Rules(forgets="bonus"), family=Fault.BONUS, asked=NUCLEUS),
    *(
        SimulatedFault(id=f"quantised-verifier-{noise:g}", rules=Rules(target=blurred(noise)), family=None, directed=False)
        for noise in (0.15, 0.3)
    ),
    SimulatedFault(
        id="cache-stale-for-a-step",
        rules=Rules(passing=blurred(1.5)),
        family=Fault.STATE,
        closed=False,
    ),
    SimulatedFault(
        id="token-dropped-after-rejection",
        rules=Rules(stale=blurred(2.5)),
        family=Fault.STATE,
        closed=False,
    ),
    SimulatedFault(
        id="bonus-duplicated",
        rules=Rules(stutters=True),
        family=Fault.BONUS,
        rule=("bonus out of place",),
        closed=False,
    ),
    _reusing("number-reused-in-recovery", ReusedNumber.RECOVERY, MODEL, GREEDY),
    _reusing("number-reused-in-acceptance", ReusedNumber.DRAFT, MODEL),
    _reusing("number-reused-in-window", ReusedNumber.WINDOW, MODEL, GREEDY),
    _reusing("gumbel-noise-reused", ReusedNumber.GUMBEL, MODEL),
    SimulatedFault(
        id="flattened-after-rejection",
        rules=Rules(stale=temperature_tilt(0.8)),
        family=Fault.STATE,
        closed=False,
    ),
)
RULES = {one.id: one.rules for one in ALL}
"""By fault id."""
