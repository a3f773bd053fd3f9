"""The tokens of one arm at temperature 0, each with its gap below the baseline's best, and what is allowed of them.

The judged arm is the server with speculation, or the control, the baseline booted again. Gaps are in nats, by the baseline's scores of the
arm's own tokens. A first difference is the first token at which an answer leaves the baseline's own answer to the request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.greedy_gap import DifferenceKind, classify_difference, distinct_gaps, scored_answers
from pytest_specdec.judge.penalised_scores import penalised_scores
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.stats.near_ties import GreedyTokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import FirstDifference, ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.judge.verify_noise import GatedNoise
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Position
    from pytest_specdec.stats.excess import EventCount

__all__ = ["GreedyTally", "ScoredToken", "greedy_tokens", "tally_tokens"]

_TIE = 1e-5
"""Nats up to which two tokens tie: scores are stored with seven significant digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """One token of a scored answer."""

    scored: ScoredAnswer
    index: int

    @property
    def gap(self) -> float:
        """Nats below the baseline's best token."""
        return self.scored.gaps[self.index]

    @property
    def order(self) -> tuple[int, str, int]:
        """A sort key: earlier tokens first, then by request and pass."""
        return (self.index, *self.scored.answer.key)

    def __str__(self) -> str:
        return f"{self.scored.answer.request_id}, pass {self.scored.answer.pass_index}, token {self.index + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyTally:
    """Gaps of one arm's tokens below the baseline's best ones, and what is allowed."""

    answers: tuple[ScoredAnswer, ...]
    peers: tuple[ScoredAnswer, ...]
    """The baseline's own scored answers, of all its boots."""
    allowed: Tolerance
    differences: tuple[FirstDifference, ...]
    """First differences from the baseline's own answers, classified."""

    gaps: tuple[float, ...]
    """Gaps of the judged arm's tokens in nats; a repeated token with the same prefix and gap counts once."""
    repeats: tuple[EventCount, ...] = ()
    """Counts from the rounds in which the same was requested again."""
    gate: GatedNoise | None = None
    """The verify kernel's noise, if the config has a gate on it."""

    @property
    def unexplained_lengths(self) -> list[FirstDifference]:
        """Differences of answers that end where the baseline's goes on, or go on where it ends, without an explanation."""
        return [first for first in self.differences if first.kind is DifferenceKind.LENGTH]

    @property
    def events(self) -> int:
        """The number of distinct tokens with a gap above tolerance and of unexplained lengths."""
        return sum(gap > self.allowed.gap for gap in self.gaps) + len(self.unexplained_lengths)

    @property
    def wrong(self) -> list[ScoredToken]:
        """Tokens with a gap above tolerance."""
        tokens = (ScoredToken(scored=answer, index=index) for answer in self.answers for index in range(len(answer.gaps)))
        return [token for token in tokens if token.gap > self.allowed.gap]


def tally_tokens(captured: Captured) -> GreedyTally:
    """Return the judged arm's gaps, with the tolerance and first differences.

    Scores are taken with each request's penalties and biases added. The tolerance comes from the gaps of the baseline's own boots
    (``peers``). Raises ValueError if scores are of other tokens, or if penalties count a prompt whose token ids are missing.
    """
    answers = scored_answers(captured.speculative, penalised_scores(captured, captured.speculative))
    peers = tuple(answer for peer in captured.baseline_boots for answer in scored_answers(peer, penalised_scores(captured, peer)))
    allowed = tolerance(captured, peers)
    differences, gaps = tuple(_first_differences(captured, answers, allowed)), distinct_gaps(captured.workload, answers)
    return GreedyTally(answers=answers, peers=peers, allowed=allowed, differences=differences, gaps=gaps)


def _first_differences(captured: Captured, answers: Sequence[ScoredAnswer], allowed: Tolerance) -> Iterator[FirstDifference]:
    """Yield the first difference of each answer from the baseline's own.

    Nothing is yielded for an answer with the same tokens, or without an answer of the baseline to the same request.
    """
    baseline = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    # They show how probable an end was where an answer ends before the baseline's.
    distributions = {score.key: score.positions for score in penalised_scores(captured, captured.baseline)}
    for scored in answers:
        key = scored.answer.key
        first = classify_difference(scored, baseline[key], allowed.gap, distributions.get(key, ())) if key in baseline else None
        if first is not None:
            yield first


def greedy_tokens(captured: Captured, answers: Sequence[ScoredAnswer], gap: float = math.inf) -> GreedyTokens:
    """Return the near-tied tokens and the emitted one at distinct prefixes.

    A row is one token of ``answers`` whose most probable tokens are listed; rows are sorted by prompt. A repeated prefix is left out, since
    it brings the same noise again. Candidates are the listed tokens at most ``gap`` nats below the best; an infinite gap stands for others
    and fills up short rows. ``chosen`` is the emitted token's index in its row, or -1 if it is no candidate.
    """
    rows = [(prompt, position) for prompt, position in _distinct_positions(captured, answers) if position.top_ids]
    rows.sort(key=itemgetter(0))
    widest = max((len(position.top_ids) for _, position in rows), default=1)
    gaps = np.full((len(rows), widest), np.inf)
    chosen = np.full(len(rows), -1, dtype=np.int64)
    for row, (_, position) in enumerate(rows):
        below = position.top_logprobs[0] - np.array(position.top_logprobs)
        # Differences that the digits of the scores cannot show are ties, with gap 0.
        gaps[row, : len(below)] = np.where(below > gap, np.inf, np.where(below > _TIE, below, 0.0))
        if position.token_id in position.top_ids and not below[position.top_ids.index(position.token_id)] > gap:
            chosen[row] = position.top_ids.index(position.token_id)
    return GreedyTokens(gaps=gaps, chosen=chosen, prompts=np.array([prompt for prompt, _ in rows], dtype=np.int64))


def _distinct_positions(captured: Captured, answers: Sequence[ScoredAnswer]) -> Iterator[tuple[int, Position]]:
    """Yield one position for each distinct request and prefix, with its prompt's number.

    Requests that differ in seed or token limit alone are one; an unknown request stands for itself. Prompts are numbered from 0.
    """
    requests, prompt_numbers = captured.workload.by_id, dict[str, int]()
    yielded: set[tuple[str, tuple[int, ...]]] = set()
    for scored in answers:
        request, name = requests.get(scored.answer.request_id), scored.answer.request_id
        question, prompt = (name, name) if request is None else (request.asks_without_limit, request.prompt_key)
        prompt_number = prompt_numbers.setdefault(prompt, len(prompt_numbers))
        ids = scored.answer.choice.token_ids
        for index, position in enumerate(scored.positions):
            if (question, ids[:index]) not in yielded:
                yielded.add((question, ids[:index]))
                yield prompt_number, position
