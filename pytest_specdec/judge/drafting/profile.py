"""Draft profile: drafted and accepted tokens per step, by position, load, context and temperature.

A tally sums the steps of one group of requests; its name says which, such as ``4 in flight``. A position is a draft token's place in its
draft, from 1.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.judge.draft_steps import DraftStep, steps
from pytest_specdec.judge.drafting.traffic import CONTEXTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.workload import Request

ALL = "all traffic"


@dataclass(slots=True)
class DraftTally:
    """The drafted and accepted tokens of steps with a draft."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Steps in which the position, from 1, was accepted."""

    def add(self, step: DraftStep) -> None:
        """Add one step with a known draft length."""
        self.steps += 1
        self.drafted += step.drafted or 0
        self.accepted += step.accepted
        for position in range(1, step.accepted + 1):
            self.by_position[position] += 1

    def add_counted(self, counters: SpecCounters) -> None:
        """Add the steps and tokens of a server's counters."""
        self.steps += counters.drafts
        self.drafted += counters.draft_tokens
        self.accepted += counters.accepted_tokens
        for position, count in enumerate(counters.accepted_per_position, 1):
            self.by_position[position] += count

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of steps in which each position was accepted."""
        return tuple(self.by_position[position] / self.steps for position in sorted(self.by_position)) if self.steps else ()

    def __str__(self) -> str:
        positions = " ".join(f"{share:.0%}" for share in self.shares)
        rates = f"{self.drafted / self.steps:.2f} drafted and {self.accepted / self.steps:.2f} accepted per step with a draft"
        return f"{self.steps:,} steps, {rates}" + (f"; by position {positions}" if positions else "")


def profile(run: CapturedRun) -> Mapping[str, DraftTally]:
    """Return the tally of all requests and of each group, by name.

    Groups are by load, temperature and context. If no step of a workload is known to have a draft, the server's counters over the workload
    are used instead. Groups without a step are left out.
    """
    tallies: dict[str, DraftTally] = defaultdict(DraftTally)
    for part in run.parts:
        if not _add_steps(part, tallies):
            _add_counters(part, tallies)
    return {name: tally for name, tally in sorted(tallies.items(), key=_order_key) if tally.steps}


def _add_steps(part: Captured, tallies: dict[str, DraftTally]) -> bool:
    """Add all steps with a draft of known length to ``tallies``, by group.

    Returns False if there was none, so that counters have to be used.
    """
    requests = part.workload.by_id
    has_steps = False
    for answer in part.speculative.answers:
        if not answer.ok or len(answer.choices) != 1 or answer.request_id not in requests:
            continue
        groups = (ALL, _load(part), _temperature(requests[answer.request_id]))
        for step in steps(answer):
            if step.drafted:
                has_steps = True
                for group in (*groups, _context(step.context)):
                    tallies[group].add(step)
    return has_steps


def _add_counters(part: Captured, tallies: dict[str, DraftTally]) -> None:
    """Add a workload's counters to the groups of all its requests.

    Counters are sums over the workload: they are added to no group by context, and by temperature only if all requests have the same.
    Nothing is added without counters.
    """
    counters = part.speculative.counters
    if counters is None:
        return
    temperatures = {_temperature(request) for request in part.workload.requests}
    for group in (ALL, _load(part), *(temperatures if len(temperatures) == 1 else ())):
        tallies[group].add_counted(counters)


def _load(part: Captured) -> str:
    return f"{part.workload.concurrency} in flight"


def _context(tokens: int) -> str:
    limit = next((most for most in CONTEXTS if tokens <= most), 0)
    return f"context up to {limit}" if limit else f"context above {CONTEXTS[-1]}"


def _temperature(request: Request) -> str:
    """Return the name of a request's group by temperature; a value that is no number counts as 1."""
    value = request.body.get("temperature", 1.0)
    number = float(value) if isinstance(value, int | float) else 1.0
    return "temperature 0" if request.greedy else "temperature up to 1" if number <= 1 else "temperature above 1"


def _order_key(item: tuple[str, DraftTally]) -> tuple[bool, str, int]:
    """Return a sort key for a name and its tally: all requests first, then groups by name.

    Names that differ in a number are sorted by it: ``2 in flight`` before ``16 in flight``.
    """
    name = item[0]
    digits = next((word for word in name.split() if word.isdigit()), "0")
    return name != ALL, name.replace(digits, ""), int(digits)


def lines(tallies: Mapping[str, DraftTally]) -> tuple[str, ...]:
    """Return a line for each group."""
    return tuple(f"{name}: {tally}" for name, tally in tallies.items())


def figures(tallies: Mapping[str, DraftTally]) -> dict[str, float]:
    """Return the rates per step of each group, and the overall shares by position.

    Rates are drafted and accepted tokens; a share is the part of all steps in which the position was accepted.
    """
    rates: dict[str, float] = {}
    for name, tally in tallies.items():
        key = name.replace(" ", "_")
        rates[f"drafted_per_step_{key}"] = tally.drafted / tally.steps
        rates[f"accepted_per_step_{key}"] = tally.accepted / tally.steps
    shares: Sequence[float] = tallies[ALL].shares if ALL in tallies else ()
    return {**rates, **{f"accepted_at_position_{position}": share for position, share in enumerate(shares, 1)}}
