"""Planted faults of preemption, for suites to detect: what a request loses when it is put off for want of cache.

Each wraps the rule or method named by its decorator. ``resume`` queues a preempted sequence again, to be prefilled with all its tokens. The
method ``take`` appends a step's window of tokens to a sequence and returns what is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pytest_specdec.model.workload import Family
from specdec_reference.faults.acceptance import set_acceptance_numbers
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.sampler import PenaltyState
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import Entry
    from specdec_reference.sequence import Delta, RunningSequence

_VOCABULARY: Final = 4096
"""Of the checkpoints that are shipped."""
_drafts: WeakKeyDictionary[RunningSequence, tuple[int, ...]] = WeakKeyDictionary()
"""By sequence: its latest draft."""
WRONG = "answers go wrong when memory runs out"
LIVENESS = {Family.LIVENESS: "Failures that no request brings about are counted over the whole run."}


@fault(
    before="resume",
    expected=in_(Place.REFERENCE, Place.VLLM, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
    mirrors=("vllm-project/vllm#49620",),
)
def preempted_token_lost(sequence: RunningSequence) -> None:
    """Leaves the first token after a preemption out of the stream."""
    take = sequence.take

    def take_silently(window: Rows[int], entries: Rows[Entry] = ()) -> Delta:
        vars(sequence).pop("take")  # once only
        return replace(take(window, entries), tokens=(), text="")

    vars(sequence)["take"] = take_silently  # in place of the method


@fault(
    before="resume",
    expected=in_(Place.REFERENCE, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
    mirrors=("vllm-project/vllm#49620",),
)
def preempted_token_repeated(sequence: RunningSequence) -> None:
    """Emits the last token of a preempted sequence a second time."""
    if sequence.emitted and sequence.grammar is None:
        sequence.tokens.pop()


@fault(before="resume", expected=in_(Place.REFERENCE, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"))
def preempted_starts_over(sequence: RunningSequence) -> None:
    """Prefills the prompt of a preempted sequence alone, without the tokens that it had emitted."""
    if sequence.grammar is None:
        del sequence.tokens[len(sequence.request.prompt) :]


@fault(before="resume", expected=in_(Place.REFERENCE, pressure=WRONG), mirrors=("vllm-project/vllm#30916",))
def preempted_penalties_forgotten(sequence: RunningSequence) -> None:
    """Counts the tokens of a preempted sequence for its penalties from nothing again."""
    if sequence.penalties is not None:
        sequence.penalties = PenaltyState(sequence.request, _VOCABULARY)


@fault(
    after="draw",
    expected=in_(Place.REFERENCE, pressure=f"{WRONG}|documents go wrong when memory runs out"),
    mirrors=("vllm-project/vllm#30916", "vllm-project/vllm#46899"),
)
def preempted_accept_all(uniforms: NDArray[np.float64], rows: Rows[RunningSequence]) -> NDArray[np.float64]:
    """Accepts every draft token of a sequence that was preempted."""
    return set_acceptance_numbers(uniforms, [row.preempted > 0 for row in rows])


@fault(
    instead_of="resume",
    expected=in_(
        Place.REFERENCE, may=LIVENESS, pressure="the server answers 5xx|requests are lost when memory runs out|scattered failures"
    ),
    mirrors=("sgl-project/sglang#2711",),
)
def preempted_refused() -> bool:
    """Gives a preempted sequence up with a 500."""
    return False


def _note_drafts(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Note the draft tokens of every row; return the proposal unchanged."""
    for row, tokens, count in zip(rows, proposal.tokens.tolist(), proposal.counts.tolist(), strict=True):
        _drafts[row] = tuple(tokens[:count])
    return proposal


@fault(
    before="resume",
    beside={"drafter.propose": Wrapper(moment=Moment.AFTER, function=_note_drafts)},
    expected=in_(Place.REFERENCE, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
    mirrors=("vllm-project/vllm#31944",),
)
def left_out_drafts_emitted(sequence: RunningSequence) -> None:
    """Emits the draft tokens that a sequence had when it was left out of a step, unverified, when it comes back."""
    take, left_out = sequence.take, _drafts.get(sequence, ())

    def take_drafts_first(window: Rows[int], entries: Rows[Entry] = ()) -> Delta:
        vars(sequence).pop("take")  # once only
        sequence.drafted[-1] = sequence.accepted[-1] = len(left_out)  # recorded as accepted in this step
        return take([*left_out, *window], entries)

    if sequence.grammar is None and left_out:
        vars(sequence)["take"] = take_drafts_first  # in place of the method
