"""Penalties: the amounts that logit biases and penalties add to the logits at every token, given the tokens before it.

Biases, presence and frequency penalties add known amounts, so that log-probabilities give the adjusted distribution exactly up to one
factor. A repetition penalty scales the logit itself, which log-probabilities do not give: the tokens that it applies to are marked unsure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.penalty_window import PenaltyWindow
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = ["Adjustment", "Penalties", "join_adjustments", "logit_adjustment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Penalties and biases of one request, applied to the logits before temperature."""

    presence: float = 0.0
    """Subtracted from every token in the penalty window, nats."""
    frequency: float = 0.0
    """Subtracted from a token once for each time that it occurs there, nats."""
    repetition: float = 1.0
    """Divides positive and multiplies negative logits of every token there."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """Added by token id, nats."""

    @property
    def adds(self) -> bool:
        """True if they add a fixed amount to some logit."""
        return bool(self.presence or self.frequency or any(self.bias.values()))

    @property
    def neutral(self) -> bool:
        """True if they change nothing."""
        return not self.adds and self.repetition == 1.0

    def count_prompt(self, window: PenaltyWindow) -> bool:
        """Return True if they depend on the prompt's tokens under ``window``."""
        return (window.prompt and bool(self.presence or self.frequency)) or (window.repetition_prompt and self.repetition != 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adjustment:
    """Amounts added to the raw log-probabilities at N tokens over K top tokens."""

    top_tokens: Floats
    """[N, K], nats."""
    unsure: Bools
    """[N, K], top tokens changed by an unknown amount."""
    chosen: Floats
    """[N], nats, of the emitted token."""
    chosen_unsure: Bools
    """[N]."""
    elsewhere: Bools
    """[N], whether a token outside the top tokens is changed."""
    upwards: Bools
    """[N], whether a token outside the top tokens may have become more probable than the raw distribution shows."""

    @property
    def moves(self) -> Bools:
        """[N], positions at which any token is changed."""
        return np.asarray((self.top_tokens != 0.0).any(axis=1) | self.unsure.any(axis=1) | self.elsewhere)

    def at(self, tokens: Bools) -> Adjustment:
        """Return the adjustment at the marked ``tokens`` [N] only."""
        return Adjustment(**{name: getattr(self, name)[tokens] for name in Adjustment.__slots__})

    def times(self, factor: float) -> Adjustment:
        """Return the same with every known amount multiplied by ``factor``."""
        return replace(self, top_tokens=factor * self.top_tokens, chosen=factor * self.chosen)


def logit_adjustment(penalties: Penalties, window: PenaltyWindow, prompt: Sequence[int], emitted: Sequence[int], ids: Ints) -> Adjustment:
    """Return the amounts added by ``penalties`` to one answer's logits.

    ``prompt`` and ``emitted`` are token ids. At each of the T emitted tokens the result has the amounts of the top tokens, ``ids`` [T, K]
    (-1 for none), of the emitted token, and marks of changes elsewhere. Presence and frequency subtract ``presence [c > 0] + frequency c``
    from a token that occurs ``c`` times in ``window`` (https://platform.openai.com/docs/api-reference/parameter-details). The window has
    the tokens before the next one that the server counts; whether the prompt is among them it says for these two penalties, and apart for
    the repetition penalty (arXiv 1909.05858). Tokens under that one are marked unsure, since the amount is unknown.
    """
    # Only these ids may be changed: counts and amounts have a column for each, [T, M].
    touched = sorted({*prompt, *emitted, *penalties.bias})
    column = {token: index for index, token in enumerate(touched)}
    text, prompt_tokens = [column[token] for token in (*prompt, *emitted)], len(prompt)
    bias = np.array([penalties.bias.get(token, 0.0) for token in touched])
    counts = _count_before(text, prompt_tokens, len(touched), window.last_tokens, prompt=window.prompt)
    scaled = np.zeros(counts.shape, dtype=np.bool_)
    if penalties.repetition != 1.0:
        scaled = _count_before(text, prompt_tokens, len(touched), window.last_tokens, prompt=window.repetition_prompt) > 0
    added = bias - penalties.presence * (counts > 0) - penalties.frequency * counts
    return _adjust_top_tokens(ids, np.array(emitted), np.array(touched), added, scaled)


def _count_before(text: Sequence[int], prompt_tokens: int, columns: int, last: int | None, *, prompt: bool) -> Floats:
    """Return how often each token occurred before each emitted one.

    It is [T, M]: T emitted tokens by M = ``columns``, one for each token id that may be changed. ``text`` has the tokens of prompt and
    answer as columns; the first ``prompt_tokens`` are the prompt's and count only with ``prompt``. ``last`` limits the count to the last so
    many tokens before each; None sets no limit.
    """
    begin = 0 if prompt else prompt_tokens
    counts, running = np.zeros((len(text) - prompt_tokens, columns)), np.zeros(columns)
    for at in range(begin, len(text)):
        if at >= prompt_tokens:
            counts[at - prompt_tokens] = running
        running[text[at]] += 1
        if last is not None and at - last >= begin:
            running[text[at - last]] -= 1
    return counts


def _adjust_top_tokens(ids: Ints, emitted: Ints, touched: Ints, added: Floats, scaled: Bools) -> Adjustment:
    """Return amounts by token id, sorted into top tokens and others.

    ``ids`` [T, K] are the top tokens at each of the T tokens ``emitted``. ``touched`` [M] are the token ids that may be changed, in rising
    order, the emitted ones among them. ``added`` [T, M] are the amounts added to them, and ``scaled`` [T, M] marks those under a repetition
    penalty, by an unknown amount and perhaps upwards.
    """
    # Of each top token: its column in ``touched``, and whether it is there at all.
    column = np.minimum(np.searchsorted(touched, ids), len(touched) - 1)
    touches = touched[column] == ids
    rows = np.arange(len(ids))[:, None]
    emitted_column = np.searchsorted(touched, emitted)
    in_top = np.zeros(added.shape, dtype=np.bool_)  # by column
    in_top[np.broadcast_to(rows, ids.shape)[touches], column[touches]] = True
    outside = ~in_top & ((added != 0.0) | scaled)
    return Adjustment(
        top_tokens=np.where(touches, added[rows, column], 0.0),
        unsure=touches & scaled[rows, column],
        chosen=added[rows[:, 0], emitted_column],
        chosen_unsure=scaled[rows[:, 0], emitted_column],
        elsewhere=outside.any(axis=1),
        upwards=(outside & ((added > 0.0) | scaled)).any(axis=1),
    )


def join_adjustments(parts: Sequence[Adjustment]) -> Adjustment:
    """Return the adjustments of all answers, one after the other."""
    return Adjustment(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Adjustment.__slots__})
