"""The rules: every decision of the engine that a fault can replace, as functions that a request, a row or a window is given to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.reference.rejection_sampler import accept, bonus, residual
from pytest_specdec.reference.sampler import Sampling

if TYPE_CHECKING:
    from collections import OrderedDict, deque
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from pytest_specdec.reference.grammar import Grammar, Grammars
    from pytest_specdec.reference.openai_request import EngineRequest
    from pytest_specdec.reference.openai_response import Entry
    from pytest_specdec.reference.prefix_cache import Block
    from pytest_specdec.reference.rejection_sampler import DraftProposal, VerifyWindows
    from pytest_specdec.reference.sampler import PenaltyState
    from pytest_specdec.reference.sequence import RunningSequence

__all__ = [
    "EngineRules",
    "admit",
    "cached",
    "chain",
    "constrain",
    "deal",
    "drafts",
    "draw",
    "drop",
    "end",
    "evict",
    "keep",
    "list_entries",
    "mask",
    "penalise",
    "randomness",
    "report",
    "report_prompt",
    "resume",
    "reuse",
    "sampling",
    "settle",
    "states",
    "target",
    "uncompiled",
    "warm",
]


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


def deal(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Return the numbers that the drafts of ``rows`` are verified by, (n, k + 1), given those that each row's own generator drew."""
    return uniforms


def keep(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:  # noqa: ARG001 - a rule's signature
    """Return the cache lengths after a step, at most ``most``: the token fed plus the accepted drafts; rejected ones are cut off."""
    return lengths + 1 + accepted


def penalise(logits: NDArray[np.float32], added: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logits of one row's window, (drafted + 1, vocabulary), penalised by its request; the bonus position is last."""
    return logits + added


def report(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the raw logits (window, vocabulary) that a row's reported log-probabilities are of: the target's own."""
    return logits


def admit(request: EngineRequest) -> None:
    """Look at a request before it is queued."""


def target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Return the target's distribution (lines, vocabulary) that drafts are held against: the one that the requests ask for."""
    return distribution


def end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """Return why an answer ends behind ``emitted`` tokens, the last an end of sequence where ``eos`` says so; None if it goes on."""
    if eos and not request.ignore_eos:
        return "stop"
    return "length" if emitted >= request.max_tokens else None


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


def resume(waiting: deque[RunningSequence], sequence: RunningSequence) -> bool:
    """Put a preempted sequence before those that wait, and return True; it is given up for False."""
    waiting.appendleft(sequence)
    return True


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
    deal: Callable[[Rows[RunningSequence], NDArray[np.float64]], NDArray[np.float64]] = deal
    accept: Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]] = accept
    residual: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]] = residual
    bonus: Callable[[NDArray[np.intp]], NDArray[np.intp]] = bonus
    keep: Callable[[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], int], NDArray[np.intp]] = keep
    penalise: Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]] = penalise
    settle: Callable[[Rows[RunningSequence], DraftProposal, VerifyWindows], VerifyWindows] = settle
    drop: Callable[[Rows[RunningSequence], NDArray[np.intp]], None] = drop
    report: Callable[[NDArray[np.float32], DraftProposal, int], NDArray[np.float32]] = report
    admit: Callable[[EngineRequest], None] = admit
    target: Callable[[NDArray[np.float32], NDArray[np.float32], DraftProposal], NDArray[np.float32]] = target
    end: Callable[[EngineRequest, int, bool], str | None] = end
    chain: Callable[[int, tuple[int, ...]], int] = chain
    reuse: Callable[[int, int], int] = reuse
    evict: Callable[[OrderedDict[int, Block], int], None] = evict
    cached: Callable[[int], int] = cached
    warm: Callable[[RunningSequence], None] = warm
    drafts: Callable[[DraftProposal, Rows[RunningSequence]], DraftProposal] = drafts
    resume: Callable[[deque[RunningSequence], RunningSequence], bool] = resume
    constrain: Callable[[EngineRequest, Grammar, Grammars], Grammar | None] = constrain
    mask: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = mask
    uncompiled: Callable[[str], None] = uncompiled
    list_entries: Callable[[EngineRequest, list[Entry]], list[Entry]] = list_entries
    report_prompt: Callable[[NDArray[np.float32]], NDArray[np.float32]] = report_prompt
