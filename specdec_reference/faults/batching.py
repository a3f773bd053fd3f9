"""Planted faults of requests that touch each other in a batch, for suites to detect.

Each wraps the rule or method named by its decorator. A row is a request in flight; ``last`` is the token after its accepted drafts. Row i
has ``counts[i]`` + 1 lines of logits from ``starts[i]`` on, the last for the bonus token.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.acceptance import set_acceptance_numbers
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.sampler import PenaltyState, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

    GrammarsAndPenalties = list[tuple[Grammar | None, PenaltyState | None]]

_GRAPH: Final = 3
"""The batch size whose captured graph is wrong."""
_BETWEEN: Final = range(12, 16)
"""Batch sizes that a server with graphs for 8 and 16 pads."""
_LARGE: Final = 8
_PADDED: Final = 4
"""Batches are padded to a multiple of this."""
_NEVER: Final = np.inf
"""Larger than any ratio of probabilities: no draft token is accepted."""
UNDER_CONCURRENCY = "answers go wrong only under concurrency|answers go wrong beside|answers are swapped between requests"
_EVERY_BATCH = dict.fromkeys(
    (Family.GREEDY, Family.PARAMETERS, Family.SAMPLING, Family.LOGPROBS, Family.STRUCTURED, Family.LIVENESS, Family.SEEDS),
    "Their requests are in flight together too.",
)


def _have_no_grammar(rows: Rows[RunningSequence]) -> bool:
    """Return True if no row has a grammar.

    Tokens are mixed up only then: a grammar would refuse another row's token and take the server down.
    """
    return all(row.grammar is None for row in rows)


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="answers go wrong beside requests that sample|" + UNDER_CONCURRENCY)
    | in_(
        Place.VLLM,
        may=_EVERY_BATCH,
        # Before a token is seen to be wrong, its grammar refuses it.
        concurrency="the server answers 5xx with several requests in flight|" + UNDER_CONCURRENCY,
    ),
)
def rows_swapped(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Gives each row of a batch of greedy and sampled requests the last token of the row before."""
    mixed = len({row.request.temperature > 0 for row in rows}) > 1 and _have_no_grammar(rows)
    return replace(windows, last=np.roll(windows.last, 1)) if mixed else windows


@fault(
    after="verify", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY), mirrors=("NVIDIA/TensorRT-LLM#5791",)
)
def padding_leaks(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Gives the last row of a batch that had to be padded the token of the padding."""
    if len(rows) == 1 or len(rows) % _PADDED == 0 or not _have_no_grammar(rows):  # a single row is not padded
        return windows
    last = windows.last.copy()
    last[-1] = 0  # the padding's id
    return replace(windows, last=last)


@fault(after="verify", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY))
def wrong_at_three(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Mixes up the last tokens of a batch of exactly three."""
    return replace(windows, last=np.roll(windows.last, 1)) if len(rows) == _GRAPH and _have_no_grammar(rows) else windows


@fault(after="verify", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY))
def wrong_from_twelve_to_fifteen(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Mixes up the last tokens of batches of twelve to fifteen."""
    return replace(windows, last=np.roll(windows.last, 1)) if len(rows) in _BETWEEN and _have_no_grammar(rows) else windows


@fault(after="verify", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY))
def most_accepted(windows: VerifyWindows, rows: Rows[RunningSequence], draft: DraftProposal) -> VerifyWindows:
    """Accepts as many draft tokens of every row as of the luckiest row of the batch."""
    accepted = np.minimum(int(windows.accepted.max(initial=0)), draft.counts)
    return VerifyWindows(accepted=accepted, last=windows.last) if len(rows) > 1 and _have_no_grammar(rows) else windows


@fault(after="verify", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY))
def fewest_accepted(windows: VerifyWindows, rows: Rows[RunningSequence], draft: DraftProposal) -> VerifyWindows:
    """Cuts every window to the shortest of the batch and keeps the token drawn after the longer one."""
    accepted = np.minimum(windows.accepted, int(windows.accepted.min(initial=draft.width)))
    return VerifyWindows(accepted=accepted, last=windows.last) if len(rows) > 1 and _have_no_grammar(rows) else windows


@fault(
    instead_of="sampling",
    expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests that sample")
    | in_(Place.VLLM, may=_EVERY_BATCH, concurrency="beside requests that sample|" + UNDER_CONCURRENCY),
)
def first_temperature(rows: Rows[RunningSequence]) -> Sampling:
    """Samples every row of a batch under the temperature of the first."""
    return Sampling.of(rows[0].request for _ in rows)


@fault(after="sampling", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests that sample"))
def greedy_sampled(requested: Sampling) -> Sampling:
    """Draws the tokens of greedy requests too once a sampled one is in flight."""
    return replace(requested, temperature=np.full_like(requested.temperature, requested.temperature.max()))


@fault(after="states", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests with penalties"))
def penalties_for_all(shaping: GrammarsAndPenalties, rows: Rows[RunningSequence]) -> GrammarsAndPenalties:
    """Applies one request's penalties to the whole batch."""
    penalised = next((row for row in rows if row.penalties is not None), None)
    if penalised is None or penalised.penalties is None:
        return shaping
    vocabulary = penalised.penalties.vocabulary
    return [(row.grammar, row.penalties or _replay_penalties(row, penalised.request, vocabulary)) for row in rows]


def _replay_penalties(row: RunningSequence, request: EngineRequest, vocabulary: int) -> PenaltyState:
    """Return the penalties of another ``request`` after a row's tokens."""
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

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Let every token pass."""
        return tokens


@fault(after="states", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests with a grammar|" + UNDER_CONCURRENCY))
def grammar_of_neighbour(shaping: GrammarsAndPenalties, rows: Rows[RunningSequence]) -> GrammarsAndPenalties:
    """Masks requests without a grammar by the grammar of a neighbour."""
    grammar = next((row.grammar for row in rows if row.grammar is not None), None)
    if grammar is None:
        return shaping
    return [(row.grammar or _MaskOnly(grammar), row.penalties) for row in rows]  # each row's own tokens advance no neighbour's grammar


@fault(
    after="distribute", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY), mirrors=("vllm-project/vllm#14645",)
)
def neighbours_target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Verifies every second row's draft against the distribution of the row before."""
    if _has_mask(logits):
        return distribution
    source_lines = np.arange(len(distribution))
    for row in range(1, len(draft.counts), 2):
        shared = min(int(draft.counts[row - 1]), int(draft.counts[row])) + 1  # lines that both rows have
        start = int(draft.starts[row])
        source_lines[start : start + shared] = np.arange(shared) + int(draft.starts[row - 1])
    return distribution[source_lines]


def _has_mask(logits: NDArray[np.float32]) -> bool:
    """Return True if a token is forbidden at some line of ``logits``.

    A grammar or the request forbids it. Lines are not exchanged then: that of another row could emit it.
    """
    return bool(np.isneginf(logits).any())


@fault(after="distribute", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=UNDER_CONCURRENCY))
def bonus_of_neighbour(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Draws the bonus token from the distribution of the row before that gets one."""
    if _has_mask(logits):
        return distribution
    bonus_lines = draft.starts + draft.counts
    source_lines = np.arange(len(distribution))
    source_lines[bonus_lines] = np.roll(bonus_lines, 1)
    return distribution[source_lines]


@fault(before="batch.drop", expected=in_(Place.REFERENCE, concurrency="when a neighbour's client leaves"))
def wrong_after_abort(sequences: set[RunningSequence], engine: ReferenceEngine) -> None:
    """Loses an entry of every running request's cache when a neighbour's client leaves."""
    if not sequences.isdisjoint(engine.batch.rows):
        engine.batch.lengths[: len(engine.batch.rows)] -= 1


@fault(
    before="batch.drop",
    expected=in_(Place.REFERENCE, may={Family.STATE: "Clients leave there too."}, concurrency="one of which its client leaves"),
    alone=True,
)
def die_on_abort(sequences: set[RunningSequence], engine: ReferenceEngine) -> None:
    """Kills the server when a client leaves in the middle of an answer."""
    if not sequences.isdisjoint(engine.batch.rows):
        os.kill(os.getpid(), signal.SIGKILL)


@fault(after="draw", expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="drafts are hardly ever accepted under concurrency"))
def dead_drafts_under_load(uniforms: NDArray[np.float64], rows: Rows[RunningSequence]) -> NDArray[np.float64]:
    """Accepts no draft token while eight requests or more are in flight."""
    return set_acceptance_numbers(uniforms, [len(rows) >= _LARGE for _ in rows], _NEVER)
