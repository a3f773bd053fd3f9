"""Reporting: the log-probabilities that an arm reported of its own tokens, beside those that the baseline gives them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isnan
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.score import Position
from pytest_specdec.stats.asked import asked
from pytest_specdec.stats.calibration import squares
from pytest_specdec.stats.laws import requested
from pytest_specdec.stats.places import placed, unplaced
from pytest_specdec.stats.positions import raw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import Request

__all__ = ["Reported", "Token", "reported"]

MIDDLING = (0.02, 0.98)
"""Probabilities between which a single token's difference is looked at: far tails are noisy, certain tokens still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token's log-probability as reported and as scored."""

    where: str
    reported: float
    scored: float
    accepted: bool | None
    """Whether it was an accepted draft token; None where windows are unknown."""

    @property
    def delta(self) -> float:
        """Reported minus scored, nats."""
        return self.reported - self.scored

    @property
    def middling(self) -> bool:
        """Whether its probability is neither near 0 nor near 1."""
        return MIDDLING[0] < exp(self.scored) < MIDDLING[1]

    def __str__(self) -> str:
        place = {True: ", an accepted draft", False: ", no draft", None: ""}[self.accepted]
        return f"{self.where}: reported {self.reported:.4f}, scored {self.scored:.4f}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What one arm reported."""

    arm: str
    tokens: tuple[Token, ...]
    squares: tuple[float, ...]
    """An estimate of the logit noise's square from every token with a choice in it."""
    unmatched: tuple[str, ...]
    """Answers whose log-probabilities are missing or are not one number per token."""


def reported(captured: Captured, arm: str) -> Reported:
    """Return what ``arm`` reported, against the law before processing, or after where the baseline's log-probabilities are of that.

    What the variant's look like decides nothing: that they are of another law than the baseline's may be the fault.
    """
    transcript = _transcript(captured, arm)
    scores = {score.key: score.positions for score in captured.scores.get(arm, ())}
    answers = [] if transcript is None else [answer for answer in transcript.answers if answer.ok and answer.choice.token_ids]
    known = captured.capabilities.get(BASELINE)
    requests = {request.id: request for request in captured.workload.requests}
    tokens: list[Token] = []
    pairs: list[tuple[float, Position]] = []
    for answer in answers:
        positions, told = scores.get(answer.key, ()), answer.choice.logprobs
        if told is None or len(positions) != len(told):
            continue
        law = positions if known is None or known.raw_logprobs else _processed(positions, requests[answer.request_id], captured)
        tokens += _tokens(captured, answer, law)
        pairs += [(value - position.logprob, position) for value, position in zip(told, law, strict=True) if not isnan(position.logprob)]
    unmatched = tuple(fault for answer in answers if (fault := _unmatched(answer)))
    return Reported(arm=arm, tokens=tuple(tokens), squares=tuple(squares(pairs)), unmatched=unmatched)


def _transcript(captured: Captured, arm: str) -> Transcript | None:
    if arm == captured.arm:
        return captured.speculative
    return captured.baseline if arm == BASELINE else captured.control


def _unmatched(answer: Answer) -> str:
    told, tokens = answer.choice.logprobs, len(answer.choice.token_ids)
    if told is None:
        return f"{answer.request_id}: no log-probabilities"
    if len(told) != tokens:
        return f"{answer.request_id}: {len(told)} log-probabilities of {tokens} tokens"
    wrong = next((value for value in told if isnan(value) or value > 0.0), None)
    return "" if wrong is None else f"{answer.request_id}: {wrong!r} is no log-probability"


def _tokens(captured: Captured, answer: Answer, law: Sequence[Position]) -> Iterator[Token]:
    windows, count = answer.choice.windows, len(answer.choice.token_ids)
    places = unplaced(count) if windows is None else placed(windows, count, lambda _: captured.pair.variant.draft.tokens)
    for index, (value, position) in enumerate(zip(answer.choice.logprobs or (), law, strict=True)):
        if not isnan(position.logprob):
            # The token that ends a window is the recovered or the bonus token; the last of an answer may be a draft that a limit cut off.
            accepted = None if not places.known[index] else not (places.ended[index] or places.drafted[index] == 0)
            where = f"{answer.request_id}, token {index + 1}"
            yield Token(where=where, reported=value, scored=position.logprob, accepted=accepted)


def _processed(positions: Sequence[Position], request: Request, captured: Captured) -> list[Position]:
    """Return the law that the request asks for in the raw one's place."""
    given = raw(positions, captured.workload.atoms)
    law = requested(given, asked(request.body).processing(len(positions)))
    with np.errstate(divide="ignore"):
        atoms, chosen = np.log(law.p[:, :-1]), np.where(law.chosen > 0, np.log(law.chosen), np.nan)
    return [
        Position(
            token_id=position.token_id,
            logprob=float(chosen[index]),
            atom_ids=tuple(given.ids[index].tolist()),
            atom_logprobs=tuple(atoms[index].tolist()),
        )
        for index, position in enumerate(positions)
    ]
