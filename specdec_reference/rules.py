"""The rules: every decision of the engine that a fault can replace, as functions that a request, a row or a window is given to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_reference.emission import StopMatch, TokenCounts
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
    """Return the generator of choice ``index`` under ``seed``, else under ``fresh``: randomness belongs to a sequence, never to a batch."""
    own = fresh if seed is None else seed
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([own & (2**64 - 1), index])))


def draw(rows: Rows[RunningSequence], count: int) -> NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each of ``rows``, (n, count), from the row's own generator."""
    return np.array([row.random.random(count) for row in rows])


def sampling(rows: Rows[RunningSequence]) -> Sampling:
    """Return the sampling parameters of ``rows``: those of each one's own request."""
    return Sampling.of(row.request for row in rows)


def states(rows: Rows[RunningSequence]) -> list[tuple[Grammar | None, PenaltyState | None]]:
    """Return the grammar and the penalties that each of ``rows`` is shaped by: its own."""
    return [(row.grammar, row.penalties) for row in rows]


def settle(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Return the windows that ``rows`` emit in a step, given the verified ones."""
    return windows


def drop(rows: Rows[RunningSequence], lengths: NDArray[np.intp]) -> None:
    """Look at the rows that are left when others' clients have gone, and at the cache lengths of all slots."""


def place(rows: Rows[RunningSequence], span: Span, rotations: NDArray[np.complex64]) -> Span:  # noqa: ARG001 - a rule's signature
    """Return where the windows of ``rows`` stand and what they see in the verify step; ``rotations`` turn positions."""
    return span


def share(uniforms: NDArray[np.float64], k: int, width: int) -> NDArray[np.float64]:
    """Return the numbers to accept by, (n, width), and the one to draw by, of (n, 2k + 1) numbers whose first k drew the draft."""
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
    """Return the numbers that the drafts of ``rows`` are verified by, (n, k + 1), given those that each row's own generator drew."""
    return uniforms


def keep(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:  # noqa: ARG001 - a rule's signature
    """Return the cache lengths after a step, at most ``most``: the token fed plus the accepted drafts; rejected ones are cut off."""
    return lengths + 1 + accepted


def penalise(logits: NDArray[np.float32], state: PenaltyState, drafted: Rows[int]) -> NDArray[np.float32]:
    """Return the logits of one row's window, (drafted + 1, vocabulary), as its request shapes them; the bonus position is last."""
    return state.shaped(logits, drafted)


def distribute(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the distribution (lines, vocabulary) that ``sampling``, an entry a line, makes of the shaped logits of all windows."""
    return distributions(logits, sampling)


def read(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Return the request that is answered, of which ``body`` is the JSON."""
    return request


def report(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the raw logits (window, vocabulary) that a row's reported log-probabilities are of: the target's own."""
    return logits


def admit(request: EngineRequest) -> None:
    """Look at a request before it is queued."""


def target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the target's distribution (lines, vocabulary) that drafts are held against: the one that the requests ask for."""
    return distribution


def end(request: EngineRequest, token: EmittedToken) -> str | None:
    """Return why an answer ends behind ``token``, as far as ids and limits tell; None if it goes on. An end goes before a limit."""
    if token.stop_id or (token.eos and not request.ignore_eos):
        return "stop"
    return "length" if token.count >= request.max_tokens or token.room <= 0 else None


def fits(prompt_tokens: int, max_tokens: int, context: int) -> bool:
    """Whether a prompt and its longest answer fit ``context`` tokens; else the request is refused."""
    return prompt_tokens + max_tokens <= context


def match(request: EngineRequest, written: WrittenText, token: EmittedToken) -> StopMatch | None:  # noqa: ARG001 - a rule's signature
    """Return the stop string that ``token`` completes, wherever it began; of several the first to be complete, then the first listed."""
    found = [(written.text.find(stop, max(0, written.before_token - len(stop) + 1)), stop) for stop in request.stop]
    matches = [StopMatch(stop=stop, at=at) for at, stop in found if at != -1]
    return min(matches, key=lambda each: each.at + len(each.stop), default=None)


def cut(request: EngineRequest, found: StopMatch) -> int:
    """Return the characters of a text that stay where a stop string ends it."""
    return found.at + (len(found.stop) if request.include_stop else 0)


def behind(finish_reason: str | None, left: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return how many of the ``left`` tokens that a window has behind the end of an answer the answer still takes."""
    return 0


def held_back(request: EngineRequest, emitted: int, steps: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return how many more tokens an answer needs before anything but a limit may end it; it has ``emitted``, from ``steps`` steps."""
    return max(0, request.min_tokens - emitted)


def forbid(logits: NDArray[np.float32], ids: Rows[int], held: int) -> None:
    """Take away, in one row's window, the tokens that end an answer at the first ``held`` positions."""
    logits[:held, list(ids)] = -np.inf


def completion_tokens(emitted: int, discarded: int) -> int:  # noqa: ARG001 - a rule's signature
    """Return what the usage counts of an answer of ``emitted`` tokens whose end discarded ``discarded`` of its last window."""
    return emitted


def shrink(drafted: NDArray[np.intp], room: NDArray[np.intp], own: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return how many draft tokens are verified, by row.

    The context takes ``room`` more tokens, the one behind the draft included, and that of the draft ``own``; below 0 it is exceeded.
    """
    counts: NDArray[np.intp] = np.clip(np.minimum(room - 1, own), 0, drafted)
    return counts


def chain(parent: int, tokens: tuple[int, ...]) -> int:
    """Return the key of a block of the prefix cache: what it holds and, by ``parent``, everything before it."""
    return hash((parent, tokens))


def reuse(matched: int, total: int) -> int:
    """Return how many of ``total`` tokens are taken from the prefix cache, in which ``matched`` were found: the last one never."""
    return min(matched, (total - 1) // 16 * 16)


def evict(blocks: OrderedDict[int, Block], most: int) -> None:
    """Let the least recently used blocks go until ``most`` are left; the last one has just come or been asked for."""
    while len(blocks) > most:
        blocks.popitem(last=False)


def cached(reused: int) -> int:
    """Return the cached tokens that an answer reports."""
    return reused


def warm(sequence: RunningSequence) -> None:
    """Look at a sequence part of whose prompt was taken from the prefix cache."""


def drafts(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:  # noqa: ARG001 - a rule's signature
    """Return the draft that is verified, given the drafter's."""
    return draft


def draft_lengths(rows: Rows[RunningSequence]) -> list[int]:
    """Return how many tokens a draft model's cache holds of each of ``rows`` once it is fed the last one: those of the sequence."""
    return [len(row.tokens) for row in rows]


def resume(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Put a preempted sequence before those that wait, and return True; it is given up for False."""
    waiting.appendleft(sequence)
    return True


def count(drafted: int, accepted: int) -> tuple[int, int]:
    """Return how many draft tokens of one row's step are counted, and how many as accepted."""
    return drafted, accepted


def identify(token_ids: list[int]) -> list[int]:
    """Return the ids that are reported for emitted tokens."""
    return token_ids


def usage(sequences: Rows[RunningSequence]) -> TokenCounts:
    """Count the prompt once and the emitted tokens of all choices."""
    prompt, completion = len(sequences[0].request.prompt), sum(sequence.completion_tokens for sequence in sequences)
    return TokenCounts(prompt=prompt, completion=completion, total=prompt + completion)


def show(delta: Delta, pieces: Rows[bytes]) -> str:  # noqa: ARG001 - a rule's signature
    """Return the text that a step adds to a stream, behind the reasoning; ``pieces`` are the bytes of every token."""
    return delta.text


def read_calls(reader: ToolCallReader, text: str, *, ended: bool, tokens: int) -> ToolReading:  # noqa: ARG001 - a rule's signature
    """Return what ``text``, all that a step of ``tokens`` tokens adds, holds of tool calls; 0 tokens for a whole answer."""
    return reader.take(text, ended=ended)


def finish(reason: str | None, calls: int, *, stream: bool) -> str | None:  # noqa: ARG001 - a rule's signature
    """Return the finish_reason of an answer with so many calls."""
    return "tool_calls" if calls and reason == "stop" else reason


def send(chunk: dict[str, JSON], delta: Delta, state: StreamState) -> list[dict[str, JSON]]:  # noqa: ARG001 - a rule's signature
    """Return the chunks that are sent for a step: its own."""
    return [chunk]


def reply(body: dict[str, JSON]) -> dict[str, JSON]:
    """Return a whole answer, or the closing chunk of a stream, as it is sent."""
    return body


def constrain(request: EngineRequest, grammar: Grammar, grammars: Grammars) -> Grammar | None:  # noqa: ARG001 - a rule's signature
    """Return what binds the answer to ``request``: its own ``grammar``, at its beginning; None for nothing."""
    return grammar


def mask(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which tokens may come at each position of one row's window, (drafted + 1, vocabulary); the bonus position is last."""
    return masks


def uncompiled(reason: str) -> None:
    """Look at a grammar that cannot be compiled, before its request is refused."""


def list_entries(request: EngineRequest, entries: list[Entry]) -> list[Entry]:  # noqa: ARG001 - a rule's signature
    """Return what is reported of one window's tokens: accepted drafts, and last the recovered or bonus token."""
    return entries


def report_prompt(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the raw logits (prompt tokens - 1, vocabulary) that reported log-probabilities of a prompt are of."""
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
