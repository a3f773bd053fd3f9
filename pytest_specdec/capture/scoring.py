"""Scoring: a transcript's tokens under one server, answer by answer, whatever the route to its law."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.capture.routes import Asked, Law
from pytest_specdec.capture.traffic import Traffic
from pytest_specdec.model.score import Score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.capture.arm import Arm
    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.routes import Scorer
    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.transcript import Transcript

__all__ = ["Scored", "Scoring", "asked_for"]

_CONCURRENCY = 8
"""More did not score faster on a real server, less did."""


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
    scorer: Callable[[], Scorer]
    """Called once, when the first law is wanted."""
    reporter: Reporter
    _known: dict[Asked, Law] = field(default_factory=dict)
    _settled: Scorer | None = None

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
            law = self._law(asked)
            if not law.failed:
                self._known[asked] = law

    def _law(self, asked: Asked) -> Law:
        self._settled = self._settled or self.scorer()
        return self._settled.law(asked)

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
        at_once = self.arm.at_once(concurrency)
        traffic = Traffic(wanted, self._law, at_once, until=lambda law: law.failed, is_over=lambda: self.reporter.left_s <= 0)
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
