"""The most probable next tokens as a server lists them, by id or by text alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.errors import RequestError
from pytest_specdec.model.transcript import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

WHERE = "the log-probabilities of a one-token completion"
_FIRST_WITHOUT_ID = -2
"""The first of the ids below 0 that stand for texts; -1 marks the lack of a top token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedToken:
    """One token of a listing."""

    logprob: float
    token_id: int | None = None
    """None if the server names the token by its text alone."""
    text: str = ""


def position(token_id: int, listed: Sequence[ListedToken], top_tokens: int, text: str | None = None) -> Position:
    """Return the distribution at ``token_id`` over the most probable tokens.

    ``token_id`` is the emitted token, and ``text`` its text, if known. Of ``listed``, what a server listed at its place,
    the ``top_tokens`` most probable count: servers append the token that they drew, which would be there by chance.

    A server may list tokens by text instead of id. Several tokens may have the same text: they become one top token with the
    sum of the listed probabilities. Its id is ``token_id`` if its text is ``text``. Any other text gets a number below 0, which
    is no token's id. The caller has to give every entry: a JSON object with texts as its keys has already lost all but one
    token of a text.

    The log-probability of ``token_id`` is that of its top token, nan without one. Raises RequestError if no
    listed token has a finite log-probability, or if one of the most probable has no id and ``text`` is None.
    """
    ranked = sorted((token for token in listed if math.isfinite(token.logprob)), key=lambda token: -token.logprob)[:top_tokens]
    if not ranked:
        what = "the server listed no log-probabilities of a next token"
        remedy = "start the server so that completions report log-probabilities"
        listing = f"no finite number among {len(listed)} listed" if listed else "an empty list"
        raise RequestError(what, where=WHERE, found=listing, expected=f"the {top_tokens} most probable tokens", remedy=remedy)
    if text is None and any(token.token_id is None for token in ranked):
        what = "the server names tokens by text alone"
        expected, remedy = "token ids, or a known text of the emitted token", "ask for token ids in the engine's dialect"
        raise RequestError(what, where=WHERE, found=repr(ranked[0].text), expected=expected, remedy=remedy)
    merged = _merge_same_texts(ranked)
    ids = tuple(_top_token_id(id_or_text, rank, token_id, text) for rank, (id_or_text, _) in enumerate(merged))
    logprobs = tuple(logprob for _, logprob in merged)
    return Position(
        token_id=token_id,
        logprob=logprobs[ids.index(token_id)] if token_id in ids else math.nan,
        top_ids=ids,
        top_logprobs=logprobs,
    )


def _merge_same_texts(ranked: Sequence[ListedToken]) -> list[tuple[int | str, float]]:
    """Return ids and texts with their log-probabilities, most probable first.

    The probabilities of entries with the same text and no id are summed.
    """
    logprobs: dict[int | str, float] = {}
    for token in ranked:
        name = token.text if token.token_id is None else token.token_id
        logprobs[name] = _log_sum(logprobs[name], token.logprob) if token.token_id is None and name in logprobs else token.logprob
    return sorted(logprobs.items(), key=lambda item: -item[1])


def _log_sum(first: float, second: float) -> float:
    """Return the log of the sum of two probabilities, given by their logs."""
    # The larger one is taken out, so that the exponential cannot overflow.
    high, low = max(first, second), min(first, second)
    # Rounding may make the sum larger than probability 1.
    return min(high + math.log1p(math.exp(low - high)), 0.0)


def _top_token_id(id_or_text: int | str, rank: int, token_id: int, text: str | None) -> int:
    """Return the id of a listed token, or a number that stands for it.

    ``id_or_text`` is its id, or its text if the server gave no id. ``text`` is that of the emitted token, ``token_id``: a listed
    token with the same text is taken for that one. Any other gets a number below 0 by its ``rank``: no token has it, and no other text.
    """
    if isinstance(id_or_text, int):
        return id_or_text
    if id_or_text == text:
        return token_id
    return _FIRST_WITHOUT_ID - rank
