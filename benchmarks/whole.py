"""Whole distributions: target, draft model and EAGLE-3 head over the whole vocabulary, at positions of texts that the target wrote.

A bank of 20 top tokens and a remainder (``benchmarks.bank``) takes the remainder for one token, which a drafter gets right far more often
than its many tokens: without the draft's distribution the faults would look easier than they are. Here what a server emits is worked out
token by token, and only then told by top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import eagle
from benchmarks.bank import SCENES
from pytest_specdec.stats.draft_distribution import one_hot
from specdec_reference.checkpoint import read
from specdec_reference.model import load
from specdec_reference.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.simulation import Rules
    from pytest_specdec.stats.token_distribution import Floats, Ints
    from specdec_reference.model import Model

__all__ = ["DRAFTERS", "TOKENS", "TOP_TOKENS", "Texts", "Whole", "softmax", "whole", "written"]

TOP_TOKENS, TOKENS, MOST_PASSES = 20, 96, 256
LEAST = 1e-6
DRAFTERS = ("draft model", "EAGLE-3 head", "EAGLE-3 head, its best token")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """What the target wrote."""

    ids: tuple[Ints, ...]
    """Prompt and TOKENS further tokens of every text."""

    @property
    def before(self) -> Ints:
        """The id before every written token and the one before that, [texts TOKENS, 2]."""
        return np.concatenate([np.column_stack([ids[-TOKENS - 1 : -1], ids[-TOKENS - 2 : -2]]) for ids in self.ids])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Whole:
    """B positions as K top tokens and a remainder, with the distribution that a server emits under each rule."""

    ids: Ints
    """[B, K]."""
    p: Floats
    """[B, K+1]."""
    before: Ints
    """[B, 2], the id before each position and the one before that."""
    verified: Mapping[str, Floats]
    """By rules: chance of every outcome being accepted, and of its being recovered, [B, 2, K+1]."""
    bonus: Mapping[str, Floats]
    """By rules: the distribution at a bonus slot, [B, K+1]."""
    overlap: float


def softmax(logits: Floats) -> Floats:
    """Return distributions [N, V] of ``logits`` [N, V]."""
    mass = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def written(count: int, random: np.random.Generator) -> Texts:
    """Return ``count`` texts that the target draws at temperature 1."""
    checkpoint = read("target")
    target, tokenizer = load(checkpoint, MOST_PASSES), Tokenizer(checkpoint.folder, checkpoint.shape.vocabulary)
    prompts = [tokenizer.encode(f"{SCENES[i % len(SCENES)]} {SCENES[i // len(SCENES) % len(SCENES)]}") for i in range(count)]
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.intp)
    padded = np.array([[*prompt, *[0] * (lengths.max() - len(prompt))] for prompt in prompts], dtype=np.intp)
    cache = target.cache(count)
    last = target.forward(padded, cache, np.zeros(count, np.intp), counts=lengths)[lengths.cumsum() - 1].copy()
    said = np.empty((count, TOKENS), dtype=np.int64)
    for step in range(TOKENS):
        mass = softmax(target.logits(last)).cumsum(axis=1)
        said[:, step] = (mass > random.random(count)[:, None] * mass[:, -1:]).argmax(axis=1)
        last = target.forward(said[:, step : step + 1], cache, lengths + step).copy()
    return Texts(ids=tuple(np.array([*prompt, *words], dtype=np.int64) for prompt, words in zip(prompts, said, strict=True)))


def whole(texts: Texts, drafter: str, rules: Mapping[str, Rules]) -> Whole:
    """Return the positions of ``texts`` under each of ``rules`` with one of DRAFTERS."""
    parts = list(_parts(texts, drafter, rules))
    return Whole(
        ids=np.concatenate([part.ids for part in parts]),
        p=np.concatenate([part.p for part in parts]),
        before=texts.before,
        verified={name: np.concatenate([part.verified[name] for part in parts]) for name in rules},
        bonus={name: np.concatenate([part.bonus[name] for part in parts]) for name in rules},
        overlap=float(np.mean([part.overlap for part in parts])),
    )


def _parts(texts: Texts, drafter: str, rules: Mapping[str, Rules]) -> Iterator[Whole]:
    target, draft = load(read("target"), MOST_PASSES), load(read("draft"), MOST_PASSES)
    head = eagle.load(target)
    for ids in texts.ids:
        p = _scored(target, ids)
        q = _scored(draft, ids) if drafter == DRAFTERS[0] else softmax(head.logits(ids)[-TOKENS:])
        if drafter == DRAFTERS[2]:
            q = one_hot(q.argmax(axis=1), q.shape[1])
        best, distribution = _top_tokens(p)
        overlap = float(np.minimum(p, q).sum(axis=1).mean())
        found = Whole(ids=best, p=distribution, before=texts.before[:0], verified={}, bonus={}, overlap=overlap)
        yield replace(
            found,
            verified={name: _verified(p, q, one, best) for name, one in rules.items()},
            bonus={name: _told(one.bonus(p, q), best) for name, one in rules.items()},
        )


def _scored(model: Model, ids: Ints) -> Floats:
    hidden = model.forward(ids[None], model.cache(1), np.zeros(1, np.intp))
    return softmax(model.logits(hidden[-TOKENS - 1 : -1].copy()))


def _top_tokens(p: Floats) -> tuple[Ints, Floats]:
    """Return the best ids [N, ATOMS] of ``p`` [N, V] and the distribution on them and the remainder."""
    best = np.argsort(-p, axis=1, kind="stable")[:, :TOP_TOKENS]
    distribution = np.maximum(_told(p, best), LEAST)
    return best, distribution / distribution.sum(axis=1, keepdims=True)


def _verified(p: Floats, q: Floats, rules: Rules, best: Ints) -> Floats:
    accepted = q * rules.accept(p, q)
    recovered = (1.0 - accepted.sum(axis=1, keepdims=True)) * rules.replacement(p, q)
    return np.stack([_told(accepted, best), _told(recovered, best)], axis=1)


def _told(distribution: Floats, best: Ints) -> Floats:
    top_tokens = np.take_along_axis(distribution, best, axis=1)
    return np.column_stack([top_tokens, np.maximum(distribution.sum(axis=1) - top_tokens.sum(axis=1), 0.0)])
