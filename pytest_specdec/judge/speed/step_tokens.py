"""Tokens per verify step as three sources count them: the server's counters, its records of each answer, and the client's chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import DraftKind
from pytest_specdec.stats.answer_timing import tokens_after_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.transcript import Answer, Transcript

__all__ = ["NOISE", "StepTokens", "describe_drafts", "lines", "step_tokens"]

NOISE = 0.02
"""Relative difference up to which two sources agree; ``StepTokens.cut`` is added for the ends of answers."""
_FEWER = 0.05
"""Share of k by which the mean draft may fall short: the last step of an answer drafts no further than its limit."""

_CONTRADICTED = "counters and records of one server contradict each other: one of them counts something else than these answers"
_COLLECTED = "the stream puts several steps into one chunk (its interval, a parser of reasoning, a proxy), so its chunks are no steps"
_PARTED = "the client saw fewer tokens per chunk than the server counts per step: steps come in parts, or tokens are miscounted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Emitted tokens per verify step, steps without a draft included; each is None if its source does not show it."""

    counters: float | None
    """By the counters of the server."""
    records: float | None
    """By the steps that the server reports with each answer."""
    client: float | None
    """By the chunks of the streams, as the client saw them."""
    cut: float
    """Share of the tokens that counters may count and no answer shows, since a limit cut its last window."""

    @property
    def by_server(self) -> float | None:
        """Tokens per step by the records, which belong to single answers, or else by the counters."""
        return self.counters if self.records is None else self.records

    @property
    def known(self) -> float | None:
        """Tokens per step by the server, or else by the client."""
        return self.client if self.by_server is None else self.by_server

    @property
    def collected(self) -> bool:
        """True if the stream puts several steps into one chunk, and so hides them."""
        return _exceeds(self.client, self.by_server, NOISE + self.cut)

    @property
    def disagreements(self) -> tuple[str, ...]:
        """A line for each contradiction between two sources.

        Counters and records are both the server's: a difference either way means the same. Between client and server its direction tells
        the cause: more tokens per chunk are several steps in one chunk (``collected``), fewer are parts of steps (``parted``).
        """
        tolerance = NOISE + self.cut  # ``cut``: tokens that counters count beyond the ends of answers
        contradicted = _exceeds(self.counters, self.records, tolerance) or _exceeds(self.records, self.counters, tolerance)
        parted = _exceeds(self.by_server, self.client, tolerance)
        lines = {_CONTRADICTED: contradicted, _COLLECTED: self.collected, _PARTED: parted}
        return tuple(line for line, holds in lines.items() if holds)


def _exceeds(one: float | None, other: float | None, tolerance: float) -> bool:
    """Return True if both are known and one is larger by more than the share ``tolerance``."""
    return one is not None and other is not None and one > other * (1.0 + tolerance)


def step_tokens(transcript: Transcript) -> StepTokens:
    """Return the tokens per step by each source, over answers with one choice.

    The tokens ``emitted`` are those after the prefill of each answer, by the server's usage. Records give the steps that they took. The
    client counts each chunk as a step. Counters give no number of steps; :func:`_by_counters` derives it. ``cut`` is the share of tokens
    that counters may count beyond the ends of answers.
    """
    answers = [answer for answer in transcript.answers if answer.ok and len(answer.choices) == 1 and answer.reported_tokens > 0]
    emitted = sum(answer.reported_tokens - _prefill_tokens(answer) for answer in answers)
    chunk_counts = [(tokens_after_first(a), a.timing.chunks_behind_first) for a in answers if a.timing is not None and a.timing.gaps_us]
    return StepTokens(
        counters=_by_counters(transcript.counters, emitted, len(answers)),
        records=_by_records(answers),
        client=_ratio(sum(tokens for tokens, _ in chunk_counts), sum(chunks for _, chunks in chunk_counts)),
        cut=_cut_share(transcript.counters, emitted, len(answers)),
    )


def _prefill_tokens(answer: Answer) -> int:
    return answer.choice.windows[0] if answer.choice.windows else 1


def _by_counters(counters: SpecCounters | None, emitted: int, answers: int) -> float | None:
    """Return the tokens per step by the counters; None without drafts.

    ``emitted`` is the tokens after the prefill of all ``answers``. Counters do not give the steps without a draft.
    """
    if counters is None or not counters.drafts:
        return None
    drafts, accepted = counters.drafts, counters.accepted_tokens
    # Steps with a draft emit one token more than they accept. A limit may cut the last step of each answer: about what a step accepts.
    least_emitted = drafts + accepted - answers * max(1.0, accepted / drafts)
    if emitted < least_emitted:  # usage and counters contradict each other: the counters alone are used
        return (drafts + accepted) / drafts
    # Every step emits one token more than it accepts. Cut answers make that too few steps: at least those with a draft were taken.
    return _ratio(emitted, max(drafts, emitted - accepted))


def _by_records(answers: Sequence[Answer]) -> float | None:
    """Return the tokens per step by the verify windows of the answers.

    A window is the tokens of one verify step; the first is the prefill's, which is no step. Steps that begin after an answer's last token
    are left out, since they emitted none of its tokens.
    """
    recorded = [(tokens, answer.choice.windows) for answer in answers if answer.choice.windows and (tokens := len(answer.choice.token_ids))]
    steps = sum(_count_steps(windows, tokens) for tokens, windows in recorded)
    return _ratio(sum(tokens - windows[0] for tokens, windows in recorded), steps)


def _count_steps(windows: Sequence[int], tokens: int) -> int:
    """Return the number of verify steps taken to emit so many tokens."""
    return sum(before < tokens for before in list(accumulate(windows))[:-1])


def _cut_share(counters: SpecCounters | None, emitted: int, answers: int) -> float:
    """Return the share of tokens that counters may count beyond the answers.

    At worst a token limit cuts off all that the last step of each answer accepted. Over all ``answers`` that is the mean accepted tokens of
    a step with a draft, once for each answer. It is a share of the ``emitted`` tokens, and 0 without counters.
    """
    if counters is None or not counters.drafts or not emitted:
        return 0.0
    return answers * counters.accepted_tokens / counters.drafts / emitted


def _ratio(tokens: int, steps: int) -> float | None:
    return tokens / steps if tokens > 0 and steps > 0 else None


def lines(transcript: Transcript, draft: Draft) -> tuple[str, ...]:
    """Return the three sources side by side, with their contradictions.

    The draft tokens per step are added, beside the variant's k.
    """
    counts = step_tokens(transcript)
    sources = (("the server's counters", counts.counters), ("its records", counts.records), ("the client's chunks", counts.client))
    by_source = ", ".join(f"{tokens:.2f} by {source}" for source, tokens in sources if tokens is not None)
    beside = [f"tokens per step: {by_source}"] if by_source else []
    return (*beside, *counts.disagreements, *describe_drafts(transcript.counters, draft))


def describe_drafts(counters: SpecCounters | None, draft: Draft) -> tuple[str, ...]:
    """Return the draft tokens per step with a draft, beside the variant's k.

    A second line says if they are clearly fewer, unless the drafter is prompt lookup. Empty if the server does not count drafts.
    """
    if counters is None or counters.drafts <= 0:
        return ()
    mean = counters.draft_tokens / counters.drafts
    beside = f"drafted per step with a draft: {mean:.2f}{f' of {draft.tokens}' if draft.tokens else ''}"
    lacks = draft.kind is not DraftKind.NGRAM and mean < draft.tokens * (1.0 - _FEWER)
    few = [f"fewer tokens are drafted than the variant's {draft.tokens}: answers or contexts that end, load, or another setting"]
    return (beside, *(few if lacks else []))
