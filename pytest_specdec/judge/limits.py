"""Limits: what a request allows of the end of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["Kind", "Limits", "limits"]

_GRAMMARS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "tools")


class Kind(StrEnum):
    """What besides the model may end an answer."""

    PLAIN = "plain"
    STOPS = "stops"
    """Stop strings or stop token ids of the request's own."""
    GRAMMAR = "grammar"
    """A grammar, which ends where its document does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request says about where its answer may end."""

    most: int | None
    """Tokens at most; None where the request leaves it to the server."""
    least: int = 0
    """Tokens before which nothing ends an answer."""
    ignores_eos: bool = False
    strings: tuple[str, ...] = ()
    ids: frozenset[int] = frozenset()
    keeps_stop: bool = False
    """Whether the stop string stays in the text."""
    grammar: bool = False

    @property
    def kind(self) -> Kind:
        """What may end the answer besides the model; a grammar before stops, since it ends where no token says so."""
        if self.grammar:
            return Kind.GRAMMAR
        return Kind.STOPS if self.strings or self.ids else Kind.PLAIN


def limits(request: Request) -> Limits:
    """Return the limits that ``request`` sets."""
    body = request.body
    return Limits(
        most=_whole(body.get("max_completion_tokens")) or _whole(body.get("max_tokens")),
        least=_whole(body.get("min_tokens")) or 0,
        ignores_eos=body.get("ignore_eos") is True,
        strings=_strings(body.get("stop")),
        ids=_ids(body.get("stop_token_ids")),
        keeps_stop=body.get("include_stop_str_in_output") is True,
        grammar=any(_binds(body.get(name)) for name in _GRAMMARS),
    )


def _whole(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _strings(value: JSON) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value if isinstance(value, Sequence) else ()
    return tuple(each for each in given if isinstance(each, str) and each)


def _ids(value: JSON) -> frozenset[int]:
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return frozenset(each for each in given if isinstance(each, int))


def _binds(value: JSON) -> bool:
    return bool(value) and not (isinstance(value, Mapping) and value.get("type") == "text")
