"""Rules that let the requests of a batch touch each other."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.rules import sampling, states
from specdec_reference.sampler import PenaltyState, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

    Shaping = list[tuple[Grammar | None, PenaltyState | None]]

_GRAPH: Final = 3
"""The batch size whose captured graph is wrong."""
_LARGE: Final = 8
_PADDED: Final = 4
"""Batches are padded to a multiple of this."""
_NEVER: Final = np.inf
"""Larger than any ratio of probabilities: no draft token is accepted."""


def _free(rows: Rows[RunningSequence]) -> bool:
    """Whether no row has a grammar, which would refuse a token that is not its own and take the server down."""
    return all(row.grammar is None for row in rows)


@instead_of("settle")
def rows_swapped(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Give each row of a batch of greedy and sampled ones the last token of the row before."""
    mixed = len({row.request.temperature > 0 for row in rows}) > 1 and _free(rows)
    return replace(windows, last=np.roll(windows.last, 1)) if mixed else windows


@instead_of("settle")
def padding_leaks(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Give the last row of a batch that had to be padded the padding's token."""
    if len(rows) == 1 or len(rows) % _PADDED == 0 or not _free(rows):
        return windows
    last = windows.last.copy()
    last[-1] = 0
    return replace(windows, last=last)


@instead_of("settle")
def wrong_at_three(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Rotate the last tokens of a batch of three."""
    return replace(windows, last=np.roll(windows.last, 1)) if len(rows) == _GRAPH and _free(rows) else windows


@instead_of("settle")
def most_accepted(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:
    """Accept as many draft tokens of every row as of the luckiest one."""
    accepted = np.minimum(int(windows.accepted.max(initial=0)), draft.counts)
    return VerifyWindows(accepted=accepted, last=windows.last) if len(rows) > 1 and _free(rows) else windows


@instead_of("settle")
def fewest_accepted(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:
    """Cut every row's window to that of the unluckiest one, and keep the token drawn behind the longer one."""
    accepted = np.minimum(windows.accepted, int(windows.accepted.min(initial=draft.width)))
    return VerifyWindows(accepted=accepted, last=windows.last) if len(rows) > 1 and _free(rows) else windows


@instead_of("sampling")
def first_temperature(rows: Rows[RunningSequence]) -> Sampling:
    """Sample every row under the parameters of the first."""
    return Sampling.of(rows[0].request for _ in rows)


@instead_of("sampling")
def greedy_sampled(rows: Rows[RunningSequence]) -> Sampling:
    """Draw greedy rows too, at the highest temperature of the batch, once one row is sampled."""
    own = sampling(rows)
    return replace(own, temperature=np.full_like(own.temperature, own.temperature.max()))


@instead_of("states")
def penalties_for_all(rows: Rows[RunningSequence]) -> Shaping:
    """Apply the first penalties of the batch to every row, by the row's own tokens."""
    first = next((row for row in rows if row.penalties is not None), None)
    if first is None or first.penalties is None:
        return states(rows)
    vocabulary = first.penalties.vocabulary
    return [(row.grammar, row.penalties or _penalised(row, first.request, vocabulary)) for row in rows]


def _penalised(row: RunningSequence, request: EngineRequest, vocabulary: int) -> PenaltyState:
    state = PenaltyState(request, vocabulary)
    for token in row.emitted:
        state.advance(token)
    return state


class _MaskOnly:
    """A neighbour's grammar, which another row's tokens do not move."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def mask(self) -> NDArray[np.bool_]:
        """Return the neighbour's mask."""
        return self._grammar.mask()

    def advance(self, token: int) -> None:
        """Stay."""

    def retreat(self, count: int) -> None:
        """Stay."""

    def allowed(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Let every token pass."""
        return tokens


@instead_of("states")
def grammar_of_neighbour(rows: Rows[RunningSequence]) -> Shaping:
    """Mask every row without a grammar by the first grammar of the batch."""
    grammar = next((row.grammar for row in rows if row.grammar is not None), None)
    if grammar is None:
        return states(rows)
    return [(row.grammar or _MaskOnly(grammar), row.penalties) for row in rows]


@instead_of("target")
def neighbours_target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Verify every second row's draft against the row before."""
    if _masked(logits):
        return distribution
    lines = np.arange(len(distribution))
    for row in range(1, len(draft.counts), 2):
        width = min(int(draft.counts[row - 1]), int(draft.counts[row])) + 1
        start = int(draft.starts[row])
        lines[start : start + width] = np.arange(width) + int(draft.starts[row - 1])
    return distribution[lines]


def _masked(logits: NDArray[np.float32]) -> bool:
    """Whether a grammar masks a line, as in :func:`_free`."""
    return bool(np.isneginf(logits).any())


@instead_of("target")
def bonus_of_neighbour(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Give each row the bonus distribution of the row before."""
    if _masked(logits):
        return distribution
    ends = draft.starts + draft.counts
    lines = np.arange(len(distribution))
    lines[ends] = np.roll(ends, 1)
    return distribution[lines]


@instead_of("drop")
def wrong_after_abort(rows: Rows[RunningSequence], lengths: NDArray[np.intp]) -> None:
    """Lose one entry of every remaining row's cache when a client leaves."""
    lengths[: len(rows)] -= 1


@instead_of("drop")
def die_on_abort(rows: Rows[RunningSequence], lengths: NDArray[np.intp]) -> None:  # noqa: ARG001 - a rule's signature
    """Kill the process when a client leaves."""
    os.kill(os.getpid(), signal.SIGKILL)


@instead_of("deal")
def dead_drafts_under_load(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept no draft token while enough requests are in flight."""
    if len(rows) < _LARGE:
        return uniforms
    dealt = uniforms.copy()
    dealt[:, :-1] = _NEVER
    return dealt
