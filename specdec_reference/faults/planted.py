"""A planted fault: a wrapper with what it does, where it can be planted, and which verdicts must turn red by which words."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_specdec.model.workload import Family
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.model.workload import JSON

_Decision = TypeVar("_Decision", bound="Callable[..., Any]")


class Place(StrEnum):
    """A place where a fault can be planted."""

    REFERENCE = "reference engine"
    """By ``--fault``; implemented in this package."""
    VLLM = "vLLM"
    """By ``SPECDEC_VLLM_PATCHES``; implemented in ``tests/engines/vllm_cpu/plugin``."""
    STACK = "stack"
    """In a router in front of reference servers, or in one of these."""
    SIMULATION = "simulation"
    """Of the sampling judge alone; implemented in ``benchmarks/detection/faults.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The verdicts that the suites must come to on a server with the fault."""

    red: Mapping[Family, str] = field(default_factory=dict)
    """By family that must fail: words that its verdict must contain; alternatives are separated by ``|``."""
    may: Mapping[Family, str] = field(default_factory=dict)
    """By family that may fail as a consequence: the reason."""

    def surprises(self, verdicts: Mapping[str, str]) -> list[str]:
        """Return a line for each family whose verdict is not as expected.

        ``verdicts`` has the words of the red verdicts by family; every other family is green.
        """
        missing = [
            f"{family} should be red and say {words!r}; it is {verdicts.get(family, 'green')!r}"
            for family, words in self.red.items()
            if not any(word in verdicts.get(family, "") for word in words.split("|"))
        ]
        return missing + [f"{family} is red: {text}" for family, text in verdicts.items() if family not in {*self.red, *self.may}]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """A named, deliberate bug."""

    id: str
    """In kebab-case, the same wherever it can be planted."""
    does: str
    """One sentence."""
    expected: Mapping[Place, Expected]
    """By place where it can be planted."""
    alone: bool = False
    """Whether it kills or hangs the server, or lives in load: then no other fault shares its run."""
    drafting: Mapping[str, int | str] = field(default_factory=dict)
    """Further keys of the speculative setting that it needs to show."""
    engine: Mapping[str, JSON] = field(default_factory=dict)
    """Arguments of both arms that it needs to show, on top of the usual ones."""
    reasons: bool = False
    """Whether it shows only where answers begin with reasoning."""
    timed: bool = False
    """Whether it shows only in the time that answers take: then it is ``alone``, too."""
    minutes: float = 0.0
    """Minutes of the same traffic that it needs to show, at deep depth; 0 for none."""
    mirrors: tuple[str, ...] = ()
    """Public reports of such a fault, as ``owner/repository#number``."""
    of_rank: str = ""
    """A fault of the reference engine that ranks of a stack have; empty for any other fault."""
    every_rank: bool = False
    """Whether all ranks have it, instead of one."""
    topic: str = ""
    """The module that plants it."""
    wrappers: Mapping[str, Wrapper] = field(default_factory=dict, repr=False, compare=False)
    """By decision of ``EngineRules`` or by ``object.method``; empty where the reference engine does not have it."""


PLANTED: dict[str, PlantedFault] = {}
"""By id, in the order in which modules are imported; the catalogue has them by topic."""


def plant(planted: PlantedFault) -> None:
    """Register a fault under its id; raises ValueError for an id in use."""
    if planted.id in PLANTED:
        msg = f"two faults are called {planted.id}"
        raise ValueError(msg)
    PLANTED[planted.id] = planted


def fault(
    *,
    instead_of: str = "",
    before: str = "",
    after: str | tuple[str, ...] = "",
    around: str = "",
    expected: Mapping[Place, Expected],
    beside: Mapping[str, Wrapper] | None = None,
    alone: bool = False,
    drafting: Mapping[str, int | str] | None = None,
    engine: Mapping[str, JSON] | None = None,
    reasons: bool = False,
    timed: bool = False,
    minutes: float = 0.0,
    mirrors: tuple[str, ...] = (),
) -> Callable[[_Decision], _Decision]:
    """Return a decorator that plants a function under its own name in kebab-case.

    The function is the bug; its docstring says what the fault does. ``instead_of``, ``before``, ``after`` or ``around`` names
    its target, a decision of ``EngineRules``, or a method as ``object.method``, and so says when it runs (see
    ``specdec_reference/wrappers.py``). ``beside`` has further wrappers by target; other arguments are :class:`PlantedFault`'s.
    """
    moments = {Moment.INSTEAD: instead_of, Moment.BEFORE: before, Moment.AFTER: after, Moment.AROUND: around}

    def plant_it(decision: _Decision) -> _Decision:
        plant(
            PlantedFault(
                id=decision.__name__.replace("_", "-"),
                does=inspect.getdoc(decision) or "",
                expected=expected,
                alone=alone,
                drafting=drafting or {},
                engine=engine or {},
                reasons=reasons,
                timed=timed,
                minutes=minutes,
                mirrors=mirrors,
                topic=decision.__module__.rpartition(".")[2],
                wrappers={
                    name: Wrapper(moment=moment, function=decision)
                    for moment, targets in moments.items()
                    for name in ((targets,) if isinstance(targets, str) else targets)
                    if name  # empty where the argument was left out
                }
                | dict(beside or {}),
            )
        )
        return decision

    return plant_it


def in_(*places: Place, may: Mapping[Family, str] | None = None, **red: str) -> dict[Place, Expected]:
    """Return one expectation for several places, by place.

    ``red`` has the families whose verdict must be red, and words of it; ``may`` those that may be red, and why. Where a
    family that judges answers must be red, the Responses API may be too.
    """
    must = {Family(name): words for name, words in red.items()}
    also = {Family.RESPONSES: _AS_CHAT} if must.keys() & _OF_ANSWERS else {}
    may_be_red = also | dict(may or {})
    return dict.fromkeys(places, Expected(red=must, may={name: why for name, why in may_be_red.items() if name not in must}))


_OF_ANSWERS = frozenset(set(Family) - {Family.SAMPLING, Family.PARAMETERS, Family.LOGPROBS, Family.SEEDS, Family.SPEED})
"""Families that are red where greedy answers are wrong, or come out of their tokens wrongly."""
_AS_CHAT = "It answers by the chat route, and holds streams to whole answers there."
ENDS = (Family.GREEDY, Family.PARAMETERS, Family.SAMPLING, Family.LOGPROBS, Family.STRUCTURED, Family.LIVENESS)
"""Families that see how every answer ends."""
TOKENS_WRONG = {
    **dict.fromkeys(
        (Family.STRUCTURED, Family.LIVENESS, Family.TOOLS, Family.PRESSURE),
        "A token outside its grammar takes the server down; one inside it may be such that the baseline would not choose it.",
    ),
    **dict.fromkeys(
        (
            Family.PARAMETERS,
            Family.LOGPROBS,
            Family.SEEDS,
            Family.LENGTHS,
            Family.INVARIANTS,
            Family.STATE,
            Family.CONCURRENCY,
            Family.CONTEXT,
        ),
        "Its answers hold wrong tokens too, and may end elsewhere.",
    ),
}
"""What may be red beside the families that judge tokens, where a rule of verification emits wrong ones."""
TEXT_WRONG = dict.fromkeys(
    set(Family) - {Family.SAMPLING}, "It holds the text of its answers against their tokens, whatever else it judges."
)
"""What may be red where text, ids or finish reasons are delivered wrongly: every family that looks at whole answers."""
