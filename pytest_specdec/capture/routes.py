"""Routes: the two ways to a server's law at tokens that another arm emitted, teacher-forced from token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.errors import RequestError
from pytest_specdec.model.score import Position, ScoringRoute
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.capture.arm import Arm
    from pytest_specdec.model.workload import JSON

__all__ = ["Asked", "Continuations", "Law", "PromptLogprobs", "Scorer", "scorer"]


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
