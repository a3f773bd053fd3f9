"""Rules with a fault of preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from specdec_reference import rules
from specdec_reference.faulty_rules.acceptance import accepting
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.sampler import PenaltyState

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.openai_response import Entry
    from specdec_reference.sequence import Delta, RunningSequence

_VOCABULARY: Final = 4096
"""Of the checkpoints that are shipped."""


@instead_of("resume")
def preempted_token_lost(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Keep the next token to oneself."""
    take = sequence.take

    def silently(window: Rows[int], entries: Rows[Entry] = ()) -> Delta:
        vars(sequence).pop("take")
        return replace(take(window, entries), tokens=(), text="")

    vars(sequence)["take"] = silently
    return rules.resume(waiting, sequence)


@instead_of("resume")
def preempted_token_repeated(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Forget the last token, which a client has already, so that it comes again."""
    if sequence.emitted and sequence.grammar is None:
        sequence.tokens.pop()
    return rules.resume(waiting, sequence)


@instead_of("resume")
def preempted_starts_over(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Keep the prompt alone."""
    if sequence.grammar is None:
        del sequence.tokens[len(sequence.request.prompt) :]
    return rules.resume(waiting, sequence)


@instead_of("resume")
def preempted_penalties_forgotten(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Begin to count anew."""
    if sequence.penalties is not None:
        sequence.penalties = PenaltyState(sequence.request, _VOCABULARY)
    return rules.resume(waiting, sequence)


@instead_of("deal")
def preempted_accept_all(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every draft token of sequences that were preempted."""
    return accepting(uniforms, [row.preempted > 0 for row in rows])


@instead_of("resume")
def preempted_refused(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:  # noqa: ARG001 - a rule's signature
    """Give the sequence up."""
    return False
