"""The faults whose detection is measured: what the server does, what names it rightly, and its distribution in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.bank import Asked
from benchmarks.simulation import FAULTS, Rules, blurred
from pytest_specdec.judge.fault_naming import AT_A_STEP
from pytest_specdec.stats.bettors import RATIO_OF_RAW
from pytest_specdec.stats.fault_models import (
    BONUS,
    CATALOGUE,
    Fault,
    ReusedNumber,
    best_only,
    greedy,
    leaky,
    lenient,
    ratio,
    residual_best,
    the_target,
    tilted,
    typical,
    unnormalised,
)

if TYPE_CHECKING:
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["ALL", "GREEDY", "MODEL", "Planted", "family_of"]

MODEL, GREEDY = "model", "greedy"
"""Kinds of drafts: drawn from the draft model's distribution q; its favourite, a one-hot distribution."""
PLAIN = Asked()
COOLED = Asked(temperature=0.7)
NUCLEUS = Asked(temperature=0.7, top_p=0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault, planted in a simulated server."""

    name: str
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
        """Whether ``named`` tells what this server does; its size need not be right."""
        return named.startswith((*self.rule, *self.same) if kind == GREEDY else self.rule)

    def names_family(self, named: str, kind: str, *, windows: bool = True) -> bool:
        """Whether ``named`` is of the right family, or right by its rule; without ``windows`` what a verify step does is one family."""
        if not windows and self.family in AT_A_STEP:
            return family_of(named) is Fault.STEP
        return family_of(named) is self.family or (bool(self.rule) and self.names_rule(named, kind))


def family_of(named: str) -> Fault:
    """Return the family of what the judge named."""
    known = {one.name: one.fault for one in (*CATALOGUE, *BONUS)} | {RATIO_OF_RAW: Fault.RULE}
    if named.startswith(Fault.STEP.value):
        return Fault.STEP
    if named.endswith(" at the bonus"):
        return Fault.BONUS
    return known[named] if named in known else Fault(named)


def _not_normalised(p: Floats, q: Floats) -> Floats:
    """Return the replacement distribution that, after the right acceptance, makes the distribution of ``unnormalised``."""
    accepted = q * ratio(p, q)
    missing = 1.0 - accepted.sum(axis=1, keepdims=True)
    distribution: Floats = (unnormalised(p, q) - accepted).clip(0.0)
    distribution[missing[:, 0] <= 0] = p[missing[:, 0] <= 0]
    total: Floats = distribution.sum(axis=1, keepdims=True)
    return distribution / total


def _wrong_temperature(factor: float) -> Planted:
    return Planted(name=f"temperature {factor:g} times the asked", rules=Rules(target=tilted(1.0 / factor)), family=Fault.TEMPERATURE)


def _reusing(reuse: ReusedNumber, *kinds: str) -> Planted:
    # Acceptances that hang together go on where one draft was good: the distribution is that of a lenient ratio, the order of ids plays no
    # part.
    family = Fault.LENIENT if reuse is ReusedNumber.WINDOW else Fault.ORDER
    return Planted(name=reuse.value, rules=Rules(reuses=reuse), family=family, kinds=kinds, closed=False)


ALL = (
    Planted(name="accept-all", rules=FAULTS["accept-all"], family=Fault.LENIENT, rule=("accept-all",), same=("inverted ratio",)),
    *(
        Planted(
            name=f"acceptance leak of {share:.0%}",
            rules=Rules(accept=leaky(share)),
            family=Fault.LENIENT,
            rule=("acceptance leak",),
        )
        for share in (0.2, 0.05, 0.01)
    ),
    *(
        Planted(
            name=f"lenient acceptance {factor:g} p/q",
            rules=Rules(accept=lenient(1.0 / factor)),
            family=Fault.LENIENT,
            rule=("lenient acceptance",),
        )
        for factor in (1.5, 1.25, 1.05)
    ),
    Planted(name="inverted ratio", rules=FAULTS["inverted ratio"], family=Fault.RULE, rule=("inverted ratio",), same=("accept-all",)),
    Planted(
        name="typical acceptance",
        rules=Rules(accept=typical, replacement=greedy(1.0)),
        family=Fault.RULE,
        rule=("typical acceptance",),
    ),
    Planted(
        name="greedy acceptance",
        rules=Rules(accept=best_only, replacement=the_target),
        family=Fault.RULE,
        rule=("greedy acceptance",),
    ),
    Planted(name="resample from p", rules=Rules(replacement=the_target), family=Fault.RESIDUAL, rule=("resample from p",)),
    Planted(name="residual argmax", rules=Rules(replacement=residual_best), family=Fault.RESIDUAL, rule=("residual argmax",)),
    Planted(name="recover by argmax", rules=Rules(replacement=greedy(1.0)), family=Fault.RESIDUAL, rule=("recover by argmax",)),
    Planted(
        name="residual not normalised",
        rules=Rules(replacement=_not_normalised),
        family=Fault.RESIDUAL,
        rule=("residual not normalised",),
    ),
    Planted(name="bonus from q", rules=FAULTS["bonus from q"], family=Fault.BONUS, rule=("bonus from q",)),
    Planted(name="greedy bonus", rules=Rules(bonus=greedy(1.0)), family=Fault.BONUS, rule=("greedy bonus",)),
    Planted(
        name="stale bonus (the id after the drawn one)",
        rules=Rules(bonus_ids_off_by=1),
        family=Fault.BONUS,
        rule=("bonus out of place",),
    ),
    Planted(name="greedy under temperature", rules=Rules(target=greedy(1.0)), family=Fault.TEMPERATURE),
    _wrong_temperature(0.8),
    _wrong_temperature(0.93),
    _wrong_temperature(1.07),
    Planted(name="temperature 0.7 ignored", rules=Rules(forgets="everywhere"), family=Fault.TEMPERATURE, asked=COOLED),
    Planted(name="temperature 0.7 ignored at the bonus", rules=Rules(forgets="bonus"), family=Fault.BONUS, asked=COOLED),
    Planted(
        name="ratio on logits without the temperature 0.7",
        rules=Rules(forgets="ratio"),
        family=Fault.RULE,
        rule=(RATIO_OF_RAW,),
        asked=COOLED,
        kinds=(MODEL,),
    ),
    Planted(name="top-p 0.9 ignored", rules=Rules(forgets="everywhere"), family=Fault.TEMPERATURE, asked=NUCLEUS),
    Planted(name="top-p 0.9 ignored at the bonus", rules=Rules(forgets="bonus"), family=Fault.BONUS, asked=NUCLEUS),
    *(
        Planted(name=f"quantised verifier, logit noise {noise:g}", rules=Rules(target=blurred(noise)), family=None, directed=False)
        for noise in (0.15, 0.3)
    ),
    Planted(
        name="stale cache in the step behind a rejection, logit noise 1.5",
        rules=Rules(passing=blurred(1.5)),
        family=Fault.STATE,
        closed=False,
    ),
    Planted(
        name="a dropped token behind the first rejection, logit noise 2.5",
        rules=Rules(stale=blurred(2.5)),
        family=Fault.STATE,
        closed=False,
    ),
    Planted(
        name="duplicated token at the bonus",
        rules=Rules(stutters=True),
        family=Fault.BONUS,
        rule=("bonus out of place",),
        closed=False,
    ),
    _reusing(ReusedNumber.RECOVERY, MODEL, GREEDY),
    _reusing(ReusedNumber.DRAFT, MODEL),
    _reusing(ReusedNumber.WINDOW, MODEL, GREEDY),
    _reusing(ReusedNumber.GUMBEL, MODEL),
    Planted(
        name="flattened once a draft was rejected",
        rules=FAULTS["flattened once a draft was rejected"],
        family=Fault.STATE,
        closed=False,
    ),
)
