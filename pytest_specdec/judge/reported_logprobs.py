"""Reported log-probabilities: those that one arm's answers list, token by token beside the baseline's scores.

An arm is one server of a run: the baseline does not speculate, the control is the baseline booted again, the variant speculates. A score is
the log-probability that the baseline gives to a token of an answer. A verify step emits a window of tokens: the accepted draft tokens, then
a recovered token after a rejection or a bonus token without one. A slot is a token's place in its window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from math import exp, isnan
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.baseline_logprobs import MIDDLING
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import Position
from pytest_specdec.stats.logprob_noise import squares
from pytest_specdec.stats.raw_distribution import raw_distribution
from pytest_specdec.stats.request_params import sampling_params
from pytest_specdec.stats.token_distribution import requested
from pytest_specdec.stats.verify_slots import slots_from_windows, unknown_slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Request
    from pytest_specdec.stats.verify_slots import VerifySlots

__all__ = ["Place", "ReportedLogprobs", "ReportedToken", "reported_logprobs"]


class Place(StrEnum):
    """A token's place in its verify step, in words."""

    ACCEPTED = "accepted draft token"
    RECOVERED = "recovered token"
    BONUS = "bonus token"
    NO_DRAFT = "token without a draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedToken:
    """One token's log-probability, as its arm reported and as the baseline scored it."""

    request_id: str
    index: int
    """From 0, in its answer."""
    reported: float
    position: Position
    """Its score and those of the most probable tokens there."""
    place: Place | None
    """None if its window is unknown or may have been cut."""

    @property
    def scored(self) -> float:
        """The scored log-probability, in nats."""
        return self.position.logprob

    @property
    def delta(self) -> float:
        """The reported minus the scored log-probability, in nats."""
        return self.reported - self.scored

    @property
    def middling(self) -> bool:
        """Whether its probability is neither near 0 nor near 1."""
        return MIDDLING[0] < exp(self.scored) < MIDDLING[1]

    def __str__(self) -> str:
        place = "" if self.place is None else f", {'an' if self.place is Place.ACCEPTED else 'a'} {self.place}"
        return f"{self.request_id}, token {self.index + 1}: reported {self.reported:.4f}, scored {self.scored:.4f}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLogprobs:
    """Log-probabilities that one arm reported, of all its tokens or of a part of them."""

    arm: str
    tokens: tuple[ReportedToken, ...]
    squares: tuple[float, ...]
    """Estimates of the squared logit noise, one from every token that is not all but certain."""
    unmatched: tuple[str, ...] = ()
    """A line for each answer that lacks log-probabilities, has more or fewer than tokens, or has a value that cannot be one."""
    place: Place | None = None
    """The place of all tokens, if they were selected by it."""
    words: str = ""
    """Which part of the tokens they are, in words to follow their number: `` after token 256``; empty for all tokens."""

    @classmethod
    def of(cls, arm: str, tokens: Iterable[ReportedToken], *, unmatched: tuple[str, ...] = ()) -> ReportedLogprobs:
        """Return the log-probabilities of ``tokens``."""
        reported = tuple(tokens)
        noise = tuple(squares((token.delta, token.position) for token in reported))
        return cls(arm=arm, tokens=reported, squares=noise, unmatched=unmatched)

    def after(self, index: int) -> ReportedLogprobs:
        """Return those after the first ``index`` tokens of each answer."""
        late = self.of(self.arm, (token for token in self.tokens if token.index >= index))
        return replace(late, words=f" after token {index:,}")

    def at(self, place: Place) -> ReportedLogprobs:
        """Return those at one place in the verify step."""
        selected = self.of(self.arm, (token for token in self.tokens if token.place is place))
        return replace(selected, place=place, words=f" at {place}s")

    @property
    def distances(self) -> tuple[float, ...]:
        """Distances between reported and scored values at tokens of middling probability, in nats."""
        return tuple(abs(token.delta) for token in self.tokens if token.middling)


def reported_logprobs(captured: Captured, arm: str) -> ReportedLogprobs:
    """Return the reported log-probabilities of ``arm``, each beside its score.

    A score is the baseline's log-probability of the same token, in nats. It is of the raw distribution if the baseline reports raw
    log-probabilities, else of that after the request's sampling parameters. The baseline decides this for the variant too, since a variant
    that reports another distribution is at fault. Tokens without a score are left out, and so are answers with another number of reports
    than of scores. Answers whose reports do not match their tokens are described as ``unmatched``.
    """
    transcript = _transcript(captured, arm)
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    answers = [] if transcript is None else [answer for answer in transcript.answers if answer.ok and answer.choice.token_ids]
    features = captured.capabilities.get(BASELINE)
    requests = captured.workload.by_id
    tokens: list[ReportedToken] = []
    for answer in answers:
        positions, logprobs = scores.get(answer.key, ()), answer.choice.logprobs
        if logprobs is None or len(positions) != len(logprobs):
            continue
        distribution = (
            positions if features is None or features.raw_logprobs else _process_positions(positions, requests[answer.request_id], captured)
        )
        tokens += _reported_tokens(captured, answer, distribution)
    unmatched = tuple(mismatch for answer in answers if (mismatch := _describe_mismatch(answer)))
    return ReportedLogprobs.of(arm, tokens, unmatched=unmatched)


def _transcript(captured: Captured, arm: str) -> Transcript | None:
    if arm == captured.arm:
        return captured.speculative
    return captured.baseline if arm == BASELINE else captured.control


def _describe_mismatch(answer: Answer) -> str:
    """Return a description of log-probabilities not matching the tokens.

    They are missing, too few or too many, or one is NaN or above 0. Empty if they match.
    """
    logprobs, tokens = answer.choice.logprobs, len(answer.choice.token_ids)
    if logprobs is None:
        return f"{answer.request_id}: no log-probabilities"
    if len(logprobs) != tokens:
        return f"{answer.request_id}: {len(logprobs)} log-probabilities of {tokens} tokens"
    wrong = next((value for value in logprobs if isnan(value) or value > 0.0), None)
    return "" if wrong is None else f"{answer.request_id}: {wrong!r} is no log-probability"


def _reported_tokens(captured: Captured, answer: Answer, distribution: Sequence[Position]) -> Iterator[ReportedToken]:
    """Yield the scored tokens of an answer with their reported log-probabilities.

    ``distribution`` has one position per token, with its score; nan is no score. Callers ensure that the answer has as many
    log-probabilities.
    """
    assert answer.choice.logprobs is not None
    slots = _verify_slots(captured, answer)  # the token's places in their verify steps
    for index, (value, position) in enumerate(zip(answer.choice.logprobs, distribution, strict=True)):
        if not isnan(position.logprob):
            yield ReportedToken(request_id=answer.request_id, index=index, reported=value, position=position, place=_place(slots, index))


def _verify_slots(captured: Captured, answer: Answer) -> VerifySlots:
    """Return the slots of an answer's tokens, unknown ones without its windows.

    A window had as many draft tokens as the server reports, else as many as the variant drafts.
    """
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    if windows is None:
        return unknown_slots(count)
    # ``windows`` begins with the prefill's, ``drafted`` with the window after it. That one starts where the prefill's ends, and so on.
    starts_after_prefill = accumulate(windows)
    draft_length_by_start = dict(zip(starts_after_prefill, answer.choice.drafted or (), strict=False))
    return slots_from_windows(windows, count, lambda start: draft_length_by_start.get(start, captured.pair.variant.draft.tokens))


def _place(slots: VerifySlots, index: int) -> Place | None:
    """Return the place of token ``index`` in its verify step; None if unknown."""
    ends_window, ends_answer = slots.ended[index], slots.last[index]
    # A limit may have cut the answer's last window after a draft token: then it does not end with a recovered or bonus token, as others do.
    if not slots.known[index] or (ends_window and ends_answer):
        return None
    # Nothing was drafted in its window, as in the prefill's.
    if slots.drafted[index] == 0:
        return Place.NO_DRAFT
    if not ends_window:
        return Place.ACCEPTED
    return Place.BONUS if slots.bonus_slot[index] else Place.RECOVERED


def _process_positions(positions: Sequence[Position], request: Request, captured: Captured) -> list[Position]:
    """Return positions with log-probabilities after the request's sampling parameters.

    They serve for a baseline that reports such values instead of raw ones: temperature, top-k, top-p and min-p are applied. At temperature
    0 the values stay raw. Penalties and biases are not applied, and no request of this family has any. A token to which the parameters
    leave no probability gets NaN, as one without a score does, and is skipped by the caller.
    """
    raw = raw_distribution(positions, captured.workload.top_tokens)
    distribution = requested(raw, sampling_params(request.body).processing(len(positions)))
    # The last column is the remainder, all tokens that are not listed. Tokens that the parameters exclude get the log of 0.
    with np.errstate(divide="ignore"):
        top_tokens, chosen = np.log(distribution.p[:, :-1]), np.where(distribution.chosen > 0, np.log(distribution.chosen), np.nan)
    return [
        Position(
            token_id=position.token_id,
            logprob=float(chosen[index]),
            top_ids=tuple(raw.ids[index].tolist()),
            top_logprobs=tuple(top_tokens[index].tolist()),
        )
        for index, position in enumerate(positions)
    ]
