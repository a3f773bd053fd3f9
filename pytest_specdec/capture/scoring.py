"""Scoring: a transcript's tokens under one server, by either route to their conditional distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.capture.thread_pool import Traffic
from pytest_specdec.errors import RequestError
from pytest_specdec.model.transcript import Position, Score, ScoringRoute
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import Arm
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import JSON

__all__ = ["Asked", "Continuations", "Law", "PromptLogprobs", "Scored", "Scorer", "Scoring", "asked_for", "scorer"]


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
        return _read(self._arm, body, self._deadline_s, lambda reply: dialect.positions(reply, asked.token_ids, asked.atoms))


class Continuations:
    """The route through one-token continuations of every prefix: one completion per token, each with the token ids so far as its prompt.

    Of a token outside the atoms the log-probability stays unknown. The prefixes of one answer are sent in order, so that each finds all
    of itself but the last token in the server's prefix cache; answers are scored side by side.
    """

    def __init__(self, arm: Arm, deadline_s: float, is_over: Callable[[], bool]) -> None:
        """Ask nothing further once ``is_over``."""
        self._arm = arm
        self._deadline_s = deadline_s
        self._is_over = is_over

    def law(self, asked: Asked) -> Law:
        """Continue every prefix and read the law off the replies; a prefix that gets none ends it."""
        positions: list[Position] = []
        prefix = list(asked.prompt_token_ids)
        for token_id in asked.token_ids:
            if self._is_over():
                return Law(error="not scored before the capture ended")
            found = self._next(prefix, token_id, asked.atoms)
            if not found.positions:
                return found
            positions += found.positions
            prefix.append(token_id)
        return Law(positions=tuple(positions))

    def _next(self, prefix: list[int], token_id: int, atoms: int) -> Law:
        dialect = self._arm.recipe.engine.dialect
        body = dialect.continuation_body(prefix, atoms)
        return _read(self._arm, body, self._deadline_s, lambda reply: (dialect.position(reply, token_id, atoms),))


def scorer(route: ScoringRoute, arm: Arm, deadline_s: float, is_over: Callable[[], bool] = lambda: False) -> Scorer:
    """Return what scores under ``arm`` by ``route``, each request within ``deadline_s`` seconds."""
    return Continuations(arm, deadline_s, is_over) if route is ScoringRoute.CONTINUATIONS else PromptLogprobs(arm, deadline_s)


def _read(arm: Arm, body: Mapping[str, JSON], deadline_s: float, positions: Callable[[Mapping[str, JSON]], tuple[Position, ...]]) -> Law:
    left_s = arm.left_s()
    if left_s <= 0:
        return Law(error="not scored before the capture ended")
    exchange = arm.client.exchange(Route.COMPLETIONS, body, streamed=False, deadline_s=min(deadline_s, left_s))
    if exchange.received is None:
        return Law(error=f"{exchange.status or 'no answer'}: {exchange.error}", failed=exchange.ending is not None)
    try:
        return Law(positions=positions(exchange.received.json()))
    except (RequestError, ValueError, RecursionError) as error:
        return Law(error=str(error))


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
