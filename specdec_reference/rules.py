"""The rules: every decision of the engine that a fault can replace, as functions of a request, a row or a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.emission import StopMatch, TokenCounts
from specdec_reference.prefix_cache import BLOCK_TOKENS
from specdec_reference.rejection_sampler import accept, bonus, residual
from specdec_reference.rejection_sampler import verify as windows
from specdec_reference.sampler import Sampling, distributions
from specdec_reference.tokenizer import Text

if TYPE_CHECKING:
    from collections import OrderedDict, deque
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.emission import EmittedToken, StreamState, WrittenText
    from specdec_reference.grammar import Grammar, Grammars
    from specdec_reference.model import Span
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.openai_response import Entry
    from specdec_reference.prefix_cache import Block
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sampler import PenaltyState
    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tool_calls import ToolCallReader, ToolReading


def randomness(seed: int | None, fresh: int, index: int) -> np.random.Generator:
    """Return the random generator of one choice.

    It is that of choice ``index`` under ``seed``, else under ``fresh``. Randomness belongs to a sequence,
    never to a batch.
    """
    stream_seed = fresh if seed is None else seed
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([stream_seed & (2**64 - 1), index])))


def draw(rows: Rows[RunningSequence], count: int) -> NDArray[np.float64]:
    """Return ``count`` random numbers for each of ``rows``.

    They are (n, count), in [0, 1), from the row's own generator.
    """
    return np.array([row.random.random(count) for row in rows])


def sampling(rows: Rows[RunningSequence]) -> Sampling:
    """Return the sampling parameters of each row's own request."""
    return Sampling.of(row.request for row in rows)


def states(rows: Rows[RunningSequence]) -> list[tuple[Grammar | None, PenaltyState | None]]:
    """Return the grammar and the penalties of each row.

    Each row is shaped by its own.
    """
    return [(row.grammar, row.penalties) for row in rows]


def settle(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Return the windows to emit, given the verified ones.

    They are those of ``rows`` in one step.
    """
    return windows


def drop(rows: Rows[RunningSequence], lengths: NDArray[np.intp]) -> None:
    """Look at the rows left after other clients have disconnected.

    ``lengths`` are the cache lengths of all slots.
    """


def place(rows: Rows[RunningSequence], span: Span, rotations: NDArray[np.complex64]) -> Span:  # noqa: ARG001 - a rule's signature
    """Return the span of ``rows`` in the verify step.

    It says where their windows stand and which positions they see. ``rotations`` turn positions.
    """
    return span


def share(uniforms: NDArray[np.float64], k: int, width: int) -> NDArray[np.float64]:
    """Return the random numbers for acceptance and for the draw.

    The first ``width`` columns are to accept by, (n, width), and the last one is to draw by. ``uniforms`` is
    (n, 2k + 1); its first k columns drew the draft.
    """
    return np.concatenate([uniforms[:, k : k + width], uniforms[:, 2 * k :]], axis=1)


def verify(
    rows: Rows[RunningSequence],  # noqa: ARG001 - a rule's signature
    p: NDArray[np.float32],
    proposal: DraftProposal,
    uniforms: NDArray[np.float64],
    rules: EngineRules,
) -> VerifyWindows:
    """Return the windows of ``rows`` by the rejection sampler."""
    return windows(p, proposal, uniforms, rules)


def deal(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Return the random numbers to verify the drafts by.

    They are (n, k + 1). ``uniforms`` were drawn by each row's own generator.
    """
    return uniforms


def keep(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:  # noqa: ARG001 - a rule's signature
    """Return the cache lengths after a step, at most ``most``.

    A step adds the token fed and the accepted drafts; rejected ones are cut off.
    """
    return lengths + 1 + accepted


def penalise(logits: NDArray[np.float32], state: PenaltyState, drafted: Rows[int]) -> NDArray[np.float32]:
    """Return the shaped logits of one row's window.

    They are (drafted + 1, vocabulary), as the row's request shapes them. The bonus position is last.
    """
    return state.shaped(logits, drafted)


def distribute(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the sampling distribution of all windows' shaped logits.

    It is (lines, vocabulary); ``sampling`` has an entry for each line.
    """
    return distributions(logits, sampling)


def read(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Return the request to answer.

    ``body`` is the JSON of it.
    """
    return request


def report(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the raw logits of a row's reported log-probabilities.

    They are (window, vocabulary), the target's own.
    """
    return logits


def admit(request: EngineRequest) -> None:
    """Look at a request before it is queued."""


def target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the target's distribution to verify drafts against.

    It is (lines, vocabulary), the one that the requests ask for.
    """
    return distribution


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
    occurrences = [(written.text.find(stop, max(0, written.before_token - len(stop) + 1)), stop) for stop in request.stop]
    matches = [StopMatch(stop=stop, at=at) for at, stop in occurrences if at != -1]
    return min(matches, key=lambda stop_match: stop_match.at + len(stop_match.stop), default=None)


def cut(request: EngineRequest, found: StopMatch) -> int:
    """Return the length of a text ended by a stop string.

    In characters.
    """
    return found.at + (len(found.stop) if request.include_stop else 0)


def behind(finish_reason: str | None, left: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return the number of tokens kept after an answer's end.

    The window has ``left`` tokens after the end.
    """
    return 0


def held_back(request: EngineRequest, emitted: int, steps: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return the number of tokens still needed before an end.

    Before it only a limit may end the answer, which has ``emitted`` tokens from ``steps`` steps.
    """
    return max(0, request.min_tokens - emitted)


def forbid(logits: NDArray[np.float32], ids: Rows[int], held: int) -> None:
    """Forbid end tokens at the first ``held`` positions of a window.

    ``logits`` is one row's window, changed in place. ``ids`` are the tokens that end an answer.
    """
    logits[:held, list(ids)] = -np.inf


def completion_tokens(emitted: int, discarded: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return an answer's completion tokens for the usage.

    The answer has ``emitted`` tokens; its end discarded ``discarded`` of its last window.
    """
    return emitted


def shrink(drafted: NDArray[np.intp], room: NDArray[np.intp], own: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the number of draft tokens to verify, by row.

    The target's context takes ``room`` more tokens, the one after the draft included. The drafter's takes
    ``own``. Below 0 the context is exceeded.
    """
    counts: NDArray[np.intp] = np.clip(np.minimum(room - 1, own), 0, drafted)
    return counts


def chain(parent: int, tokens: tuple[int, ...]) -> int:
    """Return the key of a block of the prefix cache.

    It covers the block's tokens and, by ``parent``, everything before them.
    """
    return hash((parent, tokens))


def reuse(matched: int, total: int) -> int:
    """Return the number of tokens to take from the prefix cache.

    ``matched`` of ``total`` tokens were found there. The last token is never taken.
    """
    return min(matched, (total - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def evict(blocks: OrderedDict[int, Block], most: int) -> None:
    """Drop the least recently used blocks until ``most`` are left.

    The last block has just been added or looked up.
    """
    while len(blocks) > most:
        blocks.popitem(last=False)


def cached(reused: int) -> int:
    """Return the number of cached tokens to report."""
    return reused


def warm(sequence: RunningSequence) -> None:
    """Look at a sequence with a partly cached prompt.

    Part of its prompt was taken from the prefix cache.
    """


def drafts(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:  # noqa: ARG001 - a rule's signature
    """Return the draft to verify, given the drafter's."""
    return draft


def draft_lengths(rows: Rows[RunningSequence]) -> list[int]:
    """Return each row's length in the draft model's cache.

    In tokens, once the last one is fed. It is the length of the sequence.
    """
    return [len(row.tokens) for row in rows]


def resume(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Put a preempted sequence at the head of the queue.

    Returns True. For False the sequence is given up.
    """
    waiting.appendleft(sequence)
    return True


def count(drafted: int, accepted: int) -> tuple[int, int]:
    """Return the draft tokens and accepted tokens to count.

    They are those of one row's step.
    """
    return drafted, accepted


def identify(token_ids: list[int]) -> list[int]:
    """Return the ids to report for emitted tokens."""
    return token_ids


def usage(sequences: Rows[RunningSequence]) -> TokenCounts:
    """Count the prompt once and the emitted tokens of all choices."""
    prompt, completion = len(sequences[0].request.prompt), sum(sequence.completion_tokens for sequence in sequences)
    return TokenCounts(prompt=prompt, completion=completion, total=prompt + completion)


def show(delta: Delta, pieces: Rows[bytes]) -> str:  # noqa: ARG001 - a rule's signature
    """Return the text added to a stream by one step.

    It is the text after the reasoning. ``pieces`` are the bytes of every token.
    """
    return delta.text


def read_calls(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:  # noqa: ARG001 - a rule's signature
    """Return the content and tool calls of one step's text.

    ``text`` is everything added by a step of ``tokens`` tokens, or a whole answer for 0 tokens.
    """
    return reader.take(text, ended=ended)


def finish(reason: str | None, calls: int, *, stream: bool) -> str | None:  # noqa: ARG001 - a rule's signature
    """Return the finish_reason of an answer with so many calls."""
    return "tool_calls" if calls and reason == "stop" else reason


def send(chunk: dict[str, JSON], delta: Delta, state: StreamState) -> list[dict[str, JSON]]:  # noqa: ARG001 - a rule's signature
    """Return the chunks to send for a step.

    It is the step's own chunk.
    """
    return [chunk]


def reply(body: dict[str, JSON]) -> dict[str, JSON]:
    """Return a whole answer or a stream's closing chunk, as sent."""
    return body


def constrain(request: EngineRequest, grammar: Grammar, grammars: Grammars) -> Grammar | None:  # noqa: ARG001 - a rule's signature
    """Return the grammar for the answer to ``request``.

    ``grammar`` is the request's own, at its beginning. None for no constraint.
    """
    return grammar


def mask(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask of permitted tokens in one row's window.

    It is (drafted + 1, vocabulary); the bonus position is last.
    """
    return masks


def uncompiled(reason: str) -> None:
    """Look at an invalid grammar before its request is refused.

    The grammar cannot be compiled; ``reason`` is the compiler's message.
    """


def list_entries(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Return the entries to report for one window's tokens.

    Accepted drafts come first, the recovered or bonus token last.
    """
    return entries


def report_prompt(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the raw logits of a prompt's reported log-probabilities.

    They are (prompt tokens - 1, vocabulary).
    """
    return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The decisions of a speculating engine; the defaults are right."""

    randomness: Callable[[int | None, int, int], np.random.Generator] = randomness
    draw: Callable[[Rows[RunningSequence], int], NDArray[np.float64]] = draw
    sampling: Callable[[Rows[RunningSequence]], Sampling] = sampling
    states: Callable[[Rows[RunningSequence]], list[tuple[Grammar | None, PenaltyState | None]]] = states
    place: Callable[[Rows[RunningSequence], Span, NDArray[np.complex64]], Span] = place
    share: Callable[[NDArray[np.float64], int, int], NDArray[np.float64]] = share
    verify: Callable[[Rows[RunningSequence], NDArray[np.float32], DraftProposal, NDArray[np.float64], EngineRules], VerifyWindows] = verify

    deal: Callable[[Rows[RunningSequence], NDArray[np.float64]], NDArray[np.float64]] = deal
    accept: Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]] = accept
    residual: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]] = residual
    bonus: Callable[[NDArray[np.intp]], NDArray[np.intp]] = bonus
    keep: Callable[[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], int], NDArray[np.intp]] = keep
    settle: Callable[[Rows[RunningSequence], DraftProposal, VerifyWindows], VerifyWindows] = settle
    drop: Callable[[Rows[RunningSequence], NDArray[np.intp]], None] = drop
    penalise: Callable[[NDArray[np.float32], PenaltyState, Rows[int]], NDArray[np.float32]] = penalise
    distribute: Callable[[NDArray[np.float32], Sampling, DraftProposal], NDArray[np.float32]] = distribute
    read: Callable[[EngineRequest, Mapping[str, JSON]], EngineRequest] = read
    report: Callable[[NDArray[np.float32], DraftProposal, int], NDArray[np.float32]] = report
    admit: Callable[[EngineRequest], None] = admit
    target: Callable[[NDArray[np.float32], NDArray[np.float32], DraftProposal], NDArray[np.float32]] = target
    end: Callable[[EngineRequest, EmittedToken], str | None] = end
    fits: Callable[[int, int, int], bool] = fits
    match: Callable[[EngineRequest, WrittenText, EmittedToken], StopMatch | None] = match
    cut: Callable[[EngineRequest, StopMatch], int] = cut
    behind: Callable[[str | None, int], int] = behind
    held_back: Callable[[EngineRequest, int, int], int] = held_back
    forbid: Callable[[NDArray[np.float32], Rows[int], int], None] = forbid
    completion_tokens: Callable[[int, int], int] = completion_tokens
    shrink: Callable[[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]], NDArray[np.intp]] = shrink
    chain: Callable[[int, tuple[int, ...]], int] = chain
    reuse: Callable[[int, int], int] = reuse
    evict: Callable[[OrderedDict[int, Block], int], None] = evict
    cached: Callable[[int], int] = cached
    warm: Callable[[RunningSequence], None] = warm
    drafts: Callable[[DraftProposal, Rows[RunningSequence]], DraftProposal] = drafts
    draft_lengths: Callable[[Rows[RunningSequence]], list[int]] = draft_lengths
    resume: Callable[[deque[RunningSequence], RunningSequence], bool] = resume
    count: Callable[[int, int], tuple[int, int]] = count
    text: Callable[[Rows[bytes], tuple[str, ...]], Text] = Text
    """The detokeniser of one sequence, given the bytes of every token and the stop strings."""
    identify: Callable[[list[int]], list[int]] = identify
    usage: Callable[[Rows[RunningSequence]], TokenCounts] = usage
    show: Callable[[Delta, Rows[bytes]], str] = show
    read_calls: Callable[..., ToolReading] = read_calls
    finish: Callable[..., str | None] = finish
    send: Callable[[dict[str, JSON], Delta, StreamState], list[dict[str, JSON]]] = send
    reply: Callable[[dict[str, JSON]], dict[str, JSON]] = reply
    constrain: Callable[[EngineRequest, Grammar, Grammars], Grammar | None] = constrain
    mask: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = mask
    uncompiled: Callable[[str], None] = uncompiled
    list_entries: Callable[[EngineRequest, list[Entry]], list[Entry]] = list_entries
    report_prompt: Callable[[NDArray[np.float32]], NDArray[np.float32]] = report_prompt
