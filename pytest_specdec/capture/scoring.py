"""Scoring: the law of one server at the tokens that another arm emitted, teacher-forced from token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.capture.traffic import Traffic
from pytest_specdec.errors import RequestError
from pytest_specdec.model.score import Position, Score
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.arm import Arm
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.transcript import Transcript

__all__ = ["Asked", "PromptLogprobs", "Scored", "Scorer", "Scoring", "asked_for"]

_CONCURRENCY = 8
"""More did not score faster on a real server, less did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A token sequence whose law is wanted."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    atoms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The law at every token of a sequence, or why there is none."""

    positions: tuple[Position, ...] = ()
    error: str = ""
    failed: bool = False
    """Whether the server failed, rather than refused."""


class Scorer(Protocol):
    """A route to a server's law at given tokens."""

    def law(self, asked: Asked) -> Law:
        """Return the law at every token; safe to call from several threads."""


class PromptLogprobs:
    """The route through prompt log-probabilities: one completion per answer."""

    def __init__(self, arm: Arm, deadline_s: float) -> None:
        self._arm = arm
        self._deadline_s = deadline_s

    def law(self, asked: Asked) -> Law:
        """Send the tokens as a prompt and read the law off the reply."""
        dialect = self._arm.recipe.engine.dialect
        body = dialect.scoring_body(asked.prompt_token_ids, asked.token_ids, asked.atoms)
        exchange = self._arm.client.exchange(Route.COMPLETIONS, body, streamed=False, deadline_s=self._deadline_s)
        if exchange.received is None:
            return Law(error=f"{exchange.status or 'no answer'}: {exchange.error}", failed=exchange.ending is not None)
        try:
            return Law(positions=dialect.positions(exchange.received.json(), asked.token_ids, asked.atoms))
        except (RequestError, ValueError) as error:
            return Law(error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The scores of one transcript, and why some are not there."""

    scores: tuple[Score, ...]
    missing: str = ""


@dataclass(slots=True, kw_only=True)
class Scoring:
    """Scores transcripts under one boot; equal sequences are scored once, since the law there is the same."""

    arm: Arm
    under: str
    scorer: Scorer
    reporter: Reporter
    _known: dict[Asked, Law] = field(default_factory=dict)

    def score(self, transcript: Transcript, atoms: int) -> Scored:
        """Return one score per answer of status 200, in their order; one without positions where the law is not to be had."""
        answers = [answer for answer in transcript.answers if answer.ok]
        asked = [asked_for(answer, atoms) for answer in answers]
        self._ask([one for one in dict.fromkeys(asked) if one.token_ids and one not in self._known])
        laws = [self._known.get(one, Law()) if one.token_ids else Law() for one in asked]
        scores = tuple(
            Score(
                request_id=answer.request_id,
                pass_index=answer.pass_index,
                arm=transcript.arm,
                under=self.under,
                positions=law.positions,
            )
            for answer, law in zip(answers, laws, strict=True)
        )
        return Scored(scores=scores, missing=_gaps(answers, laws))

    def ahead(self, asked: Asked) -> None:
        """Ask for one sequence before its turn, from any thread; where the server fails, it is left to its turn."""
        if asked.token_ids and asked not in self._known:
            law = self.scorer.law(asked)
            if not law.failed:
                self._known[asked] = law

    def _ask(self, wanted: Sequence[Asked]) -> None:
        """Ask for all, and once more, one by one on a fresh server, for those on which the server failed."""
        while self.reporter.left_s > 0 and self.arm.ensure():
            pending = [one for one in wanted if one not in self._known]
            self._ask_side_by_side(pending, _CONCURRENCY)
            failed = [one for one in pending if one in self._known and self._known[one].failed]
            for one in failed:
                self.arm.drop()
                if self.arm.ensure():
                    self._ask_side_by_side([one], 1)
            if not failed:
                return

    def _ask_side_by_side(self, wanted: Sequence[Asked], concurrency: int) -> None:
        traffic = Traffic(wanted, self.scorer.law, concurrency, until=lambda law: law.failed)
        done = tokens = 0
        for asked, law in traffic:
            self._known[asked] = law
            done, tokens = done + 1, tokens + len(law.positions)
            self.reporter.update(done, tokens)
            if self.reporter.left_s <= 0:
                traffic.stop()


def asked_for(answer: Answer, atoms: int) -> Asked:
    """Return the sequence that an answer is."""
    return Asked(prompt_token_ids=answer.prompt_token_ids, token_ids=answer.choice.token_ids, atoms=atoms)


def _gaps(answers: Sequence[Answer], laws: Sequence[Law]) -> str:
    """Say how many answers have tokens but no law, and the first reason; empty when none."""
    counted = {True: "no token ids came with the answer", False: "not scored before the capture ended"}
    gaps = [law.error or counted[not answer.choice.token_ids] for answer, law in zip(answers, laws, strict=True) if _is_gap(answer, law)]
    return f"{len(gaps)} of {len(answers)} answers are not scored: {gaps[0]}" if gaps else ""


def _is_gap(answer: Answer, law: Law) -> bool:
    emitted = answer.usage.completion_tokens if answer.usage else len(answer.choice.token_ids)
    return not law.positions and emitted > 0
