"""The rules: decisions of the engine that have several right or wrong forms, as functions of a request, a row or a window.

Faults and lawful variations replace them; the ones here are right. Rows are the batch's sequences. A window is what one step verifies of a
row: n draft tokens give it n + 1 positions, one at each and one after the last. ``k`` is the most draft tokens of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.emission import StopMatch, TokenCounts
from specdec_reference.prefix_cache import BLOCK_TOKENS
from specdec_reference.rejection_sampler import accept, residual
from specdec_reference.rejection_sampler import verify as windows
from specdec_reference.sampler import Sampling, distributions
from specdec_reference.tokenizer import Text

if TYPE_CHECKING:
    from collections import OrderedDict, deque
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.emission import EmittedToken, WrittenText
    from specdec_reference.grammar import Grammar
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.prefix_cache import Block
    from specdec_reference.reasoning import ReasoningSplit
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sampler import PenaltyState
    from specdec_reference.sequence import RunningSequence
    from specdec_reference.tool_calls import ToolCallReader, ToolReading


def randomness(seed: int | None, fallback_seed: int, index: int) -> np.random.Generator:
    """Return the random generator of one choice.

    It is that of choice ``index`` under ``seed``, else under ``fallback_seed``. Randomness belongs to a sequence,
    never to a batch.
    """
    stream_seed = fallback_seed if seed is None else seed  # made positive below, as SeedSequence needs it
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([stream_seed & (2**64 - 1), index])))


def draw(rows: Rows[RunningSequence], count: int) -> NDArray[np.float64]:
    """Return ``count`` random numbers for each of ``rows``.

    They are (n, count), in [0, 1), from the row's own generator.
    """
    return np.array([row.random.random(count) for row in rows])


def sampling(rows: Rows[RunningSequence]) -> Sampling:
    """Return the sampling parameters of each row's own request."""
    return Sampling.of(row.request for row in rows)


def adapt(rows: Rows[RunningSequence], counts: Rows[int]) -> list[str]:
    """Return the name of the adapter of each line of a forward.

    A line is one fed token: row i has ``counts[i]`` lines, all under its own request's adapter. The name is empty for a
    request without one.
    """
    return [row.request.adapter for row, count in zip(rows, counts, strict=True) for _ in range(count)]


def states(rows: Rows[RunningSequence]) -> list[tuple[Grammar | None, PenaltyState | None]]:
    """Return the grammar and the penalties that shape each row's logits.

    They are the row's own; None where its request has none.
    """
    return [(row.grammar, row.penalties) for row in rows]


def numbers_to_verify(uniforms: NDArray[np.float64], k: int, width: int) -> NDArray[np.float64]:
    """Return the random numbers for acceptance and for the draw.

    The first ``width`` columns are to accept by, (n, width), and the last one is to draw by. ``width`` is the length of
    the longest draft. ``uniforms`` is (n, 2k + 1); its first k columns drew the draft.
    """
    return np.concatenate([uniforms[:, k : k + width], uniforms[:, 2 * k :]], axis=1)


def verify(
    rows: Rows[RunningSequence],  # noqa: ARG001 - a rule's signature
    p: NDArray[np.float32],
    draft: DraftProposal,
    uniforms: NDArray[np.float64],
    engine_rules: EngineRules,
) -> VerifyWindows:
    """Return the tokens that ``rows`` emit, by the rejection sampler.

    ``p`` has a line for each position of each window; ``uniforms`` are those of :func:`numbers_to_verify`.
    """
    return windows(p, draft, uniforms, engine_rules)


def keep(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:  # noqa: ARG001 - a rule's signature
    """Return each row's tokens in the cache after a step.

    A step adds the token fed and the accepted drafts; rejected ones are cut off. ``most`` is the longest length in
    tokens; no step passes it, since :func:`shrink` has cut the drafts to it.
    """
    return lengths + 1 + accepted


def penalise(logits: NDArray[np.float32], state: PenaltyState, drafted: Rows[int]) -> NDArray[np.float32]:
    """Return the logits of one row's window with its penalties, biases and bans.

    They are (len(drafted) + 1, vocabulary). The bonus position, after the last draft token, is last.
    """
    return state.shape_logits(logits, drafted)


def distribute(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the target's distributions for the verification of windows.

    They are (lines, vocabulary), one for each position of each window, as ``sampling`` has. ``logits`` already have penalties and masks.
    """
    return distributions(logits, sampling)


def end(request: EngineRequest, token: EmittedToken) -> str | None:
    """Return the finish reason after ``token``.

    It depends on ids and limits only. None if the answer goes on. An end token takes precedence over a limit.
    """
    if token.stop_id or (token.eos and not request.ignore_eos):
        return "stop"
    return "length" if token.count >= request.max_tokens or token.room <= 0 else None


def fits(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Return True if a prompt and its longest answer fit.

    ``context`` is the limit in tokens. A request that does not fit is refused.
    """
    return prompt_tokens + max_tokens <= context


def match(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:  # noqa: ARG001 - a rule's signature
    """Return the stop string completed by ``token``.

    It may begin anywhere. Of several, the first to be complete is returned, then the first listed. None
    without one.
    """
    # A stop string that the token completes ends in its text: it begins less than its own length before that.
    occurrences = [(written.text.find(stop, max(0, written.before_token - len(stop) + 1)), stop) for stop in request.stop]
    matches = [StopMatch(stop=stop, at=at) for at, stop in occurrences if at != -1]
    return min(matches, key=lambda stop_match: stop_match.at + len(stop_match.stop), default=None)


def cut(request: EngineRequest, stop_match: StopMatch) -> int:
    """Return the length of a text ended by a stop string, in characters."""
    return stop_match.at + (len(stop_match.stop) if request.include_stop else 0)


def held_back(request: EngineRequest, emitted: int, steps: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return the number of tokens still needed before an end.

    Until then only a limit may end the answer, which has ``emitted`` tokens from ``steps`` steps.
    """
    return max(0, request.min_tokens - emitted)


def forbid(logits: NDArray[np.float32], ids: Rows[int], held: int) -> None:
    """Forbid end tokens at the first ``held`` positions of a window.

    ``logits`` is one row's window, changed in place. ``ids`` are the tokens that end an answer; ``held`` is by :func:`held_back`.
    """
    logits[:held, list(ids)] = -np.inf


def force_end(split: ReasoningSplit, drafted: Rows[int]) -> list[int]:
    """Return the window positions with a forced end of the reasoning.

    Position i comes after the first i of ``drafted``. From the first position beyond the budget on, each must end the
    reasoning, up to the one at which a draft token ends it, else up to the last. Empty without a budget.
    """
    if split.budget is None:
        return []
    open_positions = drafted.index(split.end) if split.end in drafted else len(drafted)
    return list(range(max(0, split.budget - split.tokens), open_positions + 1))


def shrink(drafted: NDArray[np.intp], room: NDArray[np.intp], drafter_room: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the number of draft tokens to verify, by row.

    ``drafted`` are the numbers proposed, by row. The target's context takes ``room`` more tokens, the one after the draft
    included; the drafter's takes ``drafter_room``. Either is below 0 where the context is exceeded: then nothing is verified.
    """
    counts: NDArray[np.intp] = np.clip(np.minimum(room - 1, drafter_room), 0, drafted)
    return counts


def chain(parent: int, tokens: tuple[int, ...]) -> int:
    """Return the key of a block of the prefix cache.

    It covers the block's tokens and, by ``parent``, everything before them.
    """
    return hash((parent, tokens))


def root(adapter: str) -> int:
    """Return the key before the first block of a prompt.

    It depends on the adapter, since keys and values of the same tokens differ between adapters.
    """
    return hash(adapter) if adapter else 0


def identify(sequence: RunningSequence) -> list[int]:
    """Return a sequence's tokens as the prefix cache compares them.

    In place of an image's placeholders stand keys of its pixels, since the placeholder is the same for every image.
    """
    if not sequence.request.patches:
        return sequence.tokens
    tokens = sequence.tokens.copy()
    for patch in sequence.request.patches:
        tokens[patch.position] = patch.key
    return tokens


def reuse(matched: int, total: int) -> int:
    """Return the number of tokens to take from the prefix cache.

    ``matched`` of ``total`` tokens were found there. Only whole blocks are taken, and never the last token: the next
    token's logits come from its forward.
    """
    return min(matched, (total - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def evict(blocks: OrderedDict[int, Block], most: int) -> list[tuple[int, Block]]:
    """Remove the least recently used blocks and return them with their keys.

    At most ``most`` are left. ``blocks`` has the most recently used one last: it has just been added or looked up.
    """
    return [blocks.popitem(last=False) for _ in range(len(blocks) - most)]


def draft_lengths(rows: Rows[RunningSequence]) -> list[int]:
    """Return each row's length in the draft model's cache.

    It is counted in tokens, once the row's last one is fed: the length of the sequence.
    """
    return [len(row.tokens) for row in rows]


def resume(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Put a preempted sequence at the head of the queue.

    Returns True; a sequence for which a rule returns False is given up.
    """
    waiting.appendleft(sequence)
    return True


def usage(sequences: Rows[RunningSequence]) -> TokenCounts:
    """Count the prompt once and the emitted tokens of all choices."""
    prompt, completion = len(sequences[0].request.prompt), sum(sequence.completion_tokens for sequence in sequences)
    return TokenCounts(prompt=prompt, completion=completion, total=prompt + completion)


def read_calls(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:  # noqa: ARG001 - a rule's signature
    """Return the content and tool calls of one step's text.

    ``reader`` has read the answer so far. ``text`` is everything added by a step of ``tokens`` tokens, or a whole answer for 0 tokens.
    """
    return reader.take(text, ended=ended)


def finish(reason: str | None, calls: int, *, stream: bool) -> str | None:  # noqa: ARG001 - a rule's signature
    """Return the finish_reason of an answer with ``calls`` tool calls."""
    return "tool_calls" if calls and reason == "stop" else reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The decisions of a speculating engine; the defaults are right."""

    randomness: Callable[[int | None, int, int], np.random.Generator] = randomness
    draw: Callable[[Rows[RunningSequence], int], NDArray[np.float64]] = draw
    sampling: Callable[[Rows[RunningSequence]], Sampling] = sampling
    adapt: Callable[[Rows[RunningSequence], Rows[int]], list[str]] = adapt
    states: Callable[[Rows[RunningSequence]], list[tuple[Grammar | None, PenaltyState | None]]] = states
    numbers_to_verify: Callable[[NDArray[np.float64], int, int], NDArray[np.float64]] = numbers_to_verify
    verify: Callable[[Rows[RunningSequence], NDArray[np.float32], DraftProposal, NDArray[np.float64], EngineRules], VerifyWindows] = verify

    accept: Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]] = accept
    residual: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]] = residual
    keep: Callable[[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], int], NDArray[np.intp]] = keep
    penalise: Callable[[NDArray[np.float32], PenaltyState, Rows[int]], NDArray[np.float32]] = penalise
    distribute: Callable[[NDArray[np.float32], Sampling, DraftProposal], NDArray[np.float32]] = distribute
    end: Callable[[EngineRequest, EmittedToken], str | None] = end
    fits: Callable[[int, int, int], bool] = fits
    match: Callable[[EngineRequest, WrittenText, EmittedToken], StopMatch | None] = match
    cut: Callable[[EngineRequest, StopMatch], int] = cut
    held_back: Callable[[EngineRequest, int, int], int] = held_back
    forbid: Callable[[NDArray[np.float32], Rows[int], int], None] = forbid
    force_end: Callable[[ReasoningSplit, Rows[int]], list[int]] = force_end
    shrink: Callable[[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]], NDArray[np.intp]] = shrink
    chain: Callable[[int, tuple[int, ...]], int] = chain
    root: Callable[[str], int] = root
    identify: Callable[[RunningSequence], list[int]] = identify
    reuse: Callable[[int, int], int] = reuse
    evict: Callable[[OrderedDict[int, Block], int], list[tuple[int, Block]]] = evict
    draft_lengths: Callable[[Rows[RunningSequence]], list[int]] = draft_lengths
    resume: Callable[[deque[RunningSequence], RunningSequence], bool] = resume
    text: Callable[[Rows[bytes], tuple[str, ...]], Text] = Text
    """The detokeniser of one sequence, given the bytes of every token and the stop strings."""
    usage: Callable[[Rows[RunningSequence]], TokenCounts] = usage
    read_calls: Callable[..., ToolReading] = read_calls
    finish: Callable[..., str | None] = finish
