"""The probe families: a row each, with its judge, its part of a false-alarm budget, and its promise.

A family is one kind of requests with the judge of their answers. A false alarm is a correct server that turns a run red.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pytest_specdec.model.verdict import SharedCheck
from pytest_specdec.model.workload import Depth

__all__ = ["CORRECTNESS_ALPHA", "COUNTED", "FAMILIES", "RESERVED", "SHORT_BY", "SPEED_ALPHA", "Budget", "FamilyRow", "with_outside"]

CORRECTNESS_ALPHA = 1e-3
"""False correctness alarms per run that the gate may raise."""
SPEED_ALPHA = 5e-3
"""The same for speed and acceptance."""
RESERVED = 0.1
"""Part of the correctness budget that is kept for families of other packages, all together."""
SHORT_BY = 3.0
"""Suspicion begins at the odds of the alarm divided by this.

A suspicious verdict is red too, and under a correct server evidence reaches ``1/x`` with probability x at most (Ville 1939): each alarm
that is bet on is paid for this many times.
"""


class Budget(StrEnum):
    """The false-alarm budget that a family draws on."""

    CORRECTNESS = "correctness"
    SPEED = "speed"
    NONE = "none"
    """Its judge is deterministic: it raises no alarm by chance."""

    @property
    def alpha(self) -> float:
        """False alarms per run."""
        return {Budget.CORRECTNESS: CORRECTNESS_ALPHA, Budget.SPEED: SPEED_ALPHA, Budget.NONE: 0.0}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One family: everything that is not in its judge and its suite."""

    name: str
    """As a mark says it: ``greedy``; of another package with a dot, ``acme.tone``."""
    judge: str = ""
    """Module with the function ``judge(captured) -> Verdict``, imported on first use; empty where tests decide by their own asserts."""
    promise: str = ""
    """Title of its row in the report's table; empty for the name."""
    budget: Budget = Budget.NONE
    part: float = 0.0
    """Part of the budget, in 0..1."""
    workloads: int = 1
    """Workloads that its suite sends at standard and deep depth: the part is split evenly over them; 1 where it sends none."""
    smoke: int = 1
    """The same at smoke depth."""
    whole_run: bool = False
    """Whether its judge takes all answers of a variant, as ``specdec_captured_run`` gives them; else those to a workload."""
    tests: tuple[str, ...] = ("alarm",)
    """The tests of one judgement that can raise an alarm by chance, in words; each has the share of :meth:`alpha`."""
    suspects: bool = False
    """Whether evidence within ``SHORT_BY`` of an alarm is red as well."""
    lossy: bool = False
    """Whether it asks for the baseline's distribution, so that ``lossy: true`` in a config has it report instead of gate."""
    follows: tuple[str, ...] = ()
    """Families that send simpler requests. If one of them fails in a run, this family's failures have the same cause."""
    explains: tuple[SharedCheck, ...] = ()
    """Checks of every judge that this family explains: an overrun token limit, which lengths finds, is a wrong end in all families."""

    def workloads_at(self, depth: Depth) -> int:
        """Return the number of the suite's workloads at ``depth``.

        Standard and deep depth have the same number.
        """
        return self.smoke if depth is Depth.SMOKE else self.workloads

    def alpha(self, variants: int, depth: Depth = Depth.STANDARD, workloads: int = 0, *, baselines: int = 1) -> float:
        """Return the false-alarm probability for each test of one workload.

        The family's part of the budget is split evenly over its workloads, and each workload's share over the tests on the ``variants`` and
        on the controls, one for each of the ``baselines``: a matrix has several. ``workloads`` is the number of the run's workloads before
        any test was deselected, so that a selection never raises a share.
        """
        divisor = max(self.workloads_at(depth), workloads)  # a user's suites may add workloads, but never exceed the budget
        return self.budget.alpha * self.part / divisor / self.chances(variants, baselines)

    def chances(self, variants: int, baselines: int = 1) -> float:
        """Return the number of equal chances for a false alarm on one workload.

        A chance is one test on one arm. Its alarm has at most the probability that :meth:`alpha` gives it. By the union bound, the
        probabilities of all chances add up.
        """
        # A control that fails makes the verdict of a correctness family invalid, which is red too.
        controls = baselines if self.budget is Budget.CORRECTNESS else 0
        # Suspicion begins at odds lower by SHORT_BY, which a correct server reaches with SHORT_BY times the probability of an alarm.
        chances_per_variant = SHORT_BY if self.suspects else 1.0
        return len(self.tests) * (variants * chances_per_variant + controls)


_TOKENS = ("near-ties", "wrong tokens")
"""Of every judgement that holds tokens at temperature 0 to the baseline's choice."""
_DOCUMENTS = ("invalid documents", "endless documents", "worse tokens")
_ROWS = (
    FamilyRow(
        name="greedy",
        judge="pytest_specdec.judge.greedy",
        promise="T=0: the baseline's tokens",
        budget=Budget.CORRECTNESS,
        part=0.054,
        workloads=2,
        lossy=True,
        tests=_TOKENS,
    ),
    FamilyRow(
        name="sampling",
        judge="pytest_specdec.judge.sampling",
        promise="T>0: the baseline's distribution",
        follows=(
            "greedy",
            "seeds",
        ),
        budget=Budget.CORRECTNESS,
        part=0.567,
        workloads=4,
        smoke=2,
        lossy=True,
        tests=("evidence",),
        suspects=True,
    ),
    FamilyRow(
        name="parameters",
        judge="pytest_specdec.judge.parameters",
        promise="sampling parameters honoured",
        follows=("greedy", "sampling"),
        budget=Budget.CORRECTNESS,
        part=0.045,
        workloads=4,
        smoke=4,
        tests=_TOKENS,  # penalties and budgets take both; workloads of other parameters take one, split over their rules
    ),
    FamilyRow(
        name="logprobs",
        judge="pytest_specdec.judge.logprobs",
        promise="reported log-probabilities",
        follows=(
            "greedy",
            "sampling",
        ),
        budget=Budget.CORRECTNESS,
        part=0.054,
        workloads=3,
        smoke=3,
        lossy=True,
        tests=("noise", "jumps"),
    ),
    FamilyRow(
        name="structured",
        judge="pytest_specdec.judge.structured",
        promise="structured answers valid",
        follows=(
            "greedy",
            "sampling",
            "parameters",
        ),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.063,
        workloads=5,
        smoke=4,
        tests=_DOCUMENTS,
    ),
    FamilyRow(name="liveness", judge="pytest_specdec.judge.liveness", promise="survives unusual requests", explains=(SharedCheck.SERVER,)),
    FamilyRow(
        name="seeds",
        judge="pytest_specdec.judge.seeds",
        promise="seeds and diversity",
        follows=("greedy",),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=("repeats alone", "repeats under concurrency", "equal draws"),
    ),
    FamilyRow(
        name="lengths",
        judge="pytest_specdec.judge.lengths",
        promise="answers end where they should",
        explains=(SharedCheck.ENDING,),
        workloads=2,
        smoke=2,
    ),
    FamilyRow(
        name="invariants",
        judge="pytest_specdec.judge.invariants",
        promise="every answer keeps the rules",
        explains=(
            SharedCheck.ENDING,
            SharedCheck.DRAFTING,
        ),
        whole_run=True,
    ),
    FamilyRow(
        name="tools",
        judge="pytest_specdec.judge.tools",
        promise="tool calls, whole and streamed",
        follows=(
            "greedy",
            "structured",
        ),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.009,
        tests=("wrong calls", "streams unlike whole answers"),
    ),
    FamilyRow(
        name="responses",
        judge="pytest_specdec.judge.responses",
        promise="the Responses API like the chat",
        follows=(
            "greedy",
            "structured",
            "tools",
            "invariants",
        ),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.009,
        tests=("counts unlike the chat's",),
    ),
    FamilyRow(
        name="state",
        judge="pytest_specdec.judge.state",
        promise="no memory of earlier requests",
        follows=("greedy",),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "acceptance of a prompt asked again", "acceptance after a long prompt"),
    ),
    FamilyRow(
        name="between",
        judge="pytest_specdec.judge.between",
        promise="as before after sleep and reload",
        follows=("greedy", "state"),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "acceptance after an event"),
    ),
    FamilyRow(
        name="concurrency",
        judge="pytest_specdec.judge.concurrency",
        promise="the same in a batch as alone",
        follows=(
            "greedy",
            "structured",
        ),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=("words of other requests", "wrong tokens"),
    ),
    FamilyRow(
        name="context",
        judge="pytest_specdec.judge.context",
        promise="right up to the context limit",
        follows=("greedy",),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.009,
        workloads=2,
        smoke=2,
        tests=("wrong tokens",),
    ),
    FamilyRow(
        name="long",
        judge="pytest_specdec.judge.long",
        promise="right after long contexts",
        follows=("greedy", "state", "context"),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=("wrong tokens", "acceptance by depth", "acceptance after long requests"),
    ),
    FamilyRow(
        name="pressure",
        judge="pytest_specdec.judge.pressure",
        promise="right when memory runs out",
        follows=(
            "greedy",
            "structured",
            "concurrency",
        ),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, *_DOCUMENTS),
    ),
    FamilyRow(
        name="adapters",
        judge="pytest_specdec.judge.adapters",
        promise="each LoRA adapter's own tokens",
        follows=("greedy", "sampling", "state", "concurrency"),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "evidence", "acceptance with an adapter"),
    ),
    FamilyRow(
        name="images",
        judge="pytest_specdec.judge.images",
        promise="pictures beside texts",
        follows=(
            "greedy",
            "state",
            "concurrency",
        ),
        explains=(SharedCheck.ENDING,),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "drafts after an image"),
    ),
    FamilyRow(
        name="offload",
        judge="pytest_specdec.judge.offload",
        promise="right when the cache comes back",
        follows=(
            "greedy",
            "state",
        ),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "acceptance of a prompt asked again"),
    ),
    FamilyRow(
        name="endurance",
        judge="pytest_specdec.judge.endurance",
        promise="as at first after many minutes",
        follows=("greedy", "sampling", "state", "concurrency"),
        budget=Budget.CORRECTNESS,
        part=0.009,
        lossy=True,
        tests=(*_TOKENS, "acceptance of the same answers", "acceptance over time", "memory over time"),
    ),
    FamilyRow(
        name="speed",
        judge="pytest_specdec.judge.speed",
        promise="speed",
        explains=(SharedCheck.DRAFTING,),
        budget=Budget.SPEED,
        part=1.0,
        workloads=7,
        smoke=4,
        whole_run=True,
    ),
)

FAMILIES: Mapping[str, FamilyRow] = {row.name: row for row in _ROWS}
"""This package's own, in the order of the report, written before any run: their correctness parts and the reserve add up to one."""


COUNTED = frozenset({"greedy", "parameters", "structured", "state", "between", "concurrency", "pressure", "adapters", "offload"})
"""Those that count wrong tokens against the baseline's own: where a count is open, the same requests again settle it."""


def with_outside(outside: Iterable[FamilyRow]) -> Mapping[str, FamilyRow]:
    """Return the families of all packages by name, in report order.

    ``outside`` has the families of other packages. They stand after this package's correctness families and before speed, its last row.
    """
    rows = (*_ROWS[:-1], *outside, _ROWS[-1])
    return {row.name: row for row in rows}
