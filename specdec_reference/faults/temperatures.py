"""Planted faults of the temperature of requests and drafts, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.sampler import distributions
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import Sampling
    from specdec_reference.sequence import RunningSequence

_GREEDY_TOO = dict.fromkeys(set(Family) - {Family.SAMPLING, Family.GREEDY}, "Its requests at temperature 0 are answered with the same.")
_DRAWN_TOO = dict.fromkeys(
    (Family.SAMPLING, Family.PARAMETERS, Family.STRUCTURED), "Its requests above temperature 0 are not drawn either."
)


def _count_below_zero(count: Callable[[int, int], None], drafted: int, accepted: int) -> None:
    """Count a step without accepted tokens as one with -1."""
    count(drafted, accepted or -1)


@fault(
    instead_of="distribute",
    beside={"counters.count_step": Wrapper(moment=Moment.AROUND, function=_count_below_zero)},
    expected=in_(
        Place.REFERENCE,
        may=_GREEDY_TOO,
        greedy="the token in place of a rejected draft token is not the target's",
        invariants="the speculation counters do not add up",
    ),
    mirrors=("vllm-project/vllm#27077",),
)
def divided_by_zero(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Divides the logits of greedy requests by their temperature in the verify step, so that all are NaN, and counts -1 accepted."""
    p = distributions(logits, sampling)
    is_unmasked = ~np.isneginf(logits).any(axis=1)  # NaN emits id 0, and a grammar that forbids it would end the engine
    p[(sampling.temperature == 0) & is_unmasked] = np.nan
    return p


@fault(
    after="sampling",
    expected=in_(Place.REFERENCE, may=_DRAWN_TOO, seeds="different seeds give the same answer"),
    mirrors=("Pushkinist/rMLX#519",),
)
def always_greedy(requested: Sampling) -> Sampling:
    """Answers every request as at temperature 0."""
    return replace(requested, temperature=np.zeros_like(requested.temperature))


_left_temperatures: dict[int, float] = {}
"""By row of the batch, the temperature of the request that was last dropped there; a server has one engine."""


def _leave_temperatures(sequences: set[RunningSequence], engine: ReferenceEngine) -> None:
    """Note the temperature of every dropped row by its slot."""
    _left_temperatures.update({slot: row.request.temperature for slot, row in enumerate(engine.batch.rows) if row in sequences})


@fault(
    after="batch.reuse_prefix",
    beside={"batch.drop": Wrapper(moment=Moment.BEFORE, function=_leave_temperatures)},
    expected=in_(Place.REFERENCE, state="a prompt after a stream that its client left is answered wrongly"),
)
def aborted_temperature_stays(reused: int, sequence: RunningSequence, slot: int) -> int:
    """Samples a request at the temperature of the aborted one whose row it takes."""
    if slot in _left_temperatures:
        sequence.request = replace(sequence.request, temperature=_left_temperatures.pop(slot))
    return reused


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="temperature or truncation|greedy drafts"),
    mirrors=("z-lab/dflash#74", "huggingface/transformers#33534"),
)
def drafts_greedy_q_kept(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts the draft's most probable tokens and verifies them as if they had been drawn."""
    if proposal.q is None or any(row.grammar is not None for row in rows):
        return proposal
    return replace(proposal, tokens=proposal.q.argmax(axis=2))
