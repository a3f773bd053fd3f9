"""A bank: known laws of a baseline and a draft at many positions, to draw emitted tokens from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.drafts import index_of, one_hot
from pytest_specdec.stats.laws import SLACK, Processing, Raw

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_specdec.stats.laws import Bools, Floats, Ints

__all__ = ["Asked", "Bank", "asking", "ids_at", "raw", "zipf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every request asks to be done to the raw law."""

    temperature: float = 1.0
    top_k: int = 0
    """0 for all tokens."""
    top_p: float = 1.0

    def of(self, tokens: int) -> Processing:
        """Return the same for so many tokens."""
        return Processing(
            temperature=np.full(tokens, self.temperature),
            top_k=np.full(tokens, self.top_k, dtype=np.int64),
            top_p=np.full(tokens, self.top_p),
        )


PLAIN = Asked()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bank:
    """Positions to draw from: B laws of a baseline with the draft's."""

    ids: Ints
    """[B, K]."""
    p: Floats
    """[B, K+1], as asked; the tail atom last, at least 1e-6 at temperature 1."""
    q: Floats
    """[B, K+1], as asked."""
    drafted: Bools
    """[B], where a window that begins here has a draft."""
    vocabulary: int
    asked: Asked = PLAIN
    raw: Floats | None = None
    """[B, K+1], the baseline's law with nothing asked of it; None where ``p`` is that."""
    raw_q: Floats | None = None
    """[B, K+1], the draft's; None where ``q`` is that."""

    @property
    def unasked(self) -> Floats:
        """The baseline's law at temperature 1, nothing truncated, [B, K+1]."""
        return self.p if self.raw is None else self.raw

    @property
    def unasked_q(self) -> Floats:
        """The draft's law at temperature 1, nothing truncated, [B, K+1]."""
        return self.q if self.raw_q is None else self.raw_q

    def __len__(self) -> int:
        return len(self.p)


def asking(bank: Bank, asked: Asked) -> Bank:
    """Return ``bank`` as ``asked`` makes both its laws; of a bank that nothing was asked of.

    The tail is taken for equally probable tokens, as many as the vocabulary has beyond the atoms, so the laws are known whole.
    """
    p, q = (law if (law.max(axis=1) == 1.0).all() else _asked(law, asked, bank.vocabulary - bank.ids.shape[1]) for law in (bank.p, bank.q))
    return replace(bank, p=p, q=q, asked=asked, raw=bank.p, raw_q=bank.q)


def _asked(law: Floats, asked: Asked, beyond: int) -> Floats:
    """Return ``law`` cooled and cut to its nucleus; of a tail that the nucleus ends in, the part inside. Top-k is not simulated."""
    assert not asked.top_k
    count = np.concatenate([np.ones(law.shape[1] - 1), [beyond]])
    each = (law / count) ** (1.0 / asked.temperature)
    order = np.argsort(-each, axis=1, kind="stable")
    mass = np.take_along_axis(each * count, order, axis=1)
    mass /= mass.sum(axis=1, keepdims=True)
    room = np.maximum(asked.top_p - (mass.cumsum(axis=1) - mass), 0.0)
    kept = np.where(count[order] > 1, np.minimum(mass, room), np.where(room > 0, mass, 0.0))
    cut = np.empty_like(law)
    np.put_along_axis(cut, order, kept, axis=1)
    return np.asarray(cut / cut.sum(axis=1, keepdims=True))


def raw(ids: Ints, law: Floats, chosen: Floats, outcome: Ints | None = None) -> Raw:
    """Return ``law`` [N, K+1] as a server tells it; of outcome K, the tail, the emitted id is one that no atom has."""
    with np.errstate(divide="ignore"):
        return Raw(
            ids=ids,
            logprobs=np.log(law[:, :-1]),
            chosen=ids[:, 0] if outcome is None else ids_at(ids, outcome),
            chosen_logprobs=np.log(chosen),
        )


def ids_at(ids: Ints, outcome: Ints) -> Ints:
    """Return the token ids [N] of outcomes 0..K among ``ids`` [N, K]; for K, the tail, one that no atom has."""
    beyond = np.full((len(ids), 1), np.iinfo(np.int64).max)
    return np.take_along_axis(np.concatenate([ids, beyond], axis=1), outcome[:, None], axis=1)[:, 0]


def zipf(random: np.random.Generator, *, positions: int, vocabulary: int, atoms: int, certain: bool = False) -> Bank:
    """Return a bank of made-up laws: Zipf logits at many temperatures with noise, and a draft that is a noisy, cooler copy of the target.

    As in facts/statistics.md section 8. A ``certain`` draft proposes its best token, and none at every fourth position.
    """
    rank = np.arange(1, vocabulary + 1)
    sharpness = random.uniform(0.3, 3.0, size=(positions, 1))
    logits = -sharpness * np.log(rank) + 0.7 * random.normal(size=(positions, vocabulary))
    guess = 0.95 * logits + random.normal(size=logits.shape)
    order = np.argsort(-logits, axis=1)[:, :atoms]
    target, draft = _softmax(logits), _softmax(guess)
    p = _coarse(target, order)
    q = _coarse(draft, order)
    if certain:
        q = one_hot(index_of(guess.argmax(axis=1).astype(np.int64), order.astype(np.int64)), atoms + 1)
    drafted = random.integers(4, size=positions) > 0 if certain else np.ones(positions, dtype=np.bool_)
    return Bank(ids=order.astype(np.int64), p=p, q=q, drafted=drafted, vocabulary=vocabulary)


def _softmax(logits: Floats) -> Floats:
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _coarse(law: Floats, order: npt.NDArray[np.intp]) -> Floats:
    atoms = np.take_along_axis(law, order, axis=1)
    tail = np.maximum(1.0 - atoms.sum(axis=1, keepdims=True), SLACK)
    coarse = np.concatenate([atoms, tail], axis=1)
    return np.asarray(coarse / coarse.sum(axis=1, keepdims=True))
