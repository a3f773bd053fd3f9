"""Tokens of a server over whole distributions, at contexts that are all new or at a few that come again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.simulation import Trace

if TYPE_CHECKING:
    from benchmarks.whole import Whole
    from pytest_specdec.stats.token_distribution import Floats, Ints

__all__ = ["K", "emitted"]

K = 3
CONTEXTS, OPEN = 16, (1.0, 2.6)
"""Contexts of the second workload, and the entropies between which they lie, in nats of top tokens and remainder."""
SURE = 0.92
"""Chance of the prefill's token with which the context is the wanted one."""


def emitted(one: Whole, name: str, random: np.random.Generator, *, tokens: int, again: bool) -> Trace:
    """Return what a server under the rules ``name`` emits: answers of 64 tokens at new contexts, or of 3 at the same ones again."""
    length = 3 if again else 64
    verified, bonus, plain = (_summed(distribution) for distribution in (one.verified[name], one.bonus[name], one.p))
    at = _again(one, random, tokens // length) if again else random.integers(len(one.p), size=(tokens // length, length))
    count, outcomes = len(at), one.p.shape[1]
    whole_numbers = {key: np.zeros((count, length), dtype=np.int64) for key in ("outcome", "slot", "drafted")}
    marks = {key: np.zeros((count, length), dtype=np.bool_) for key in ("short", "ever", "ended", "last")}
    marks["last"][:, -1] = True
    slot, short, ever = np.zeros(count, dtype=np.int64), *np.zeros((2, count), dtype=np.bool_)
    for step in range(length):
        if again and step == length - 1:
            at[:, step] = _child(at[:, step - 1], whole_numbers["outcome"][:, step - 1], one, random)
        here, drafted = at[:, step], np.full(count, K if step else 0)
        verify = slot < drafted
        pair = _pick(verified, here, random)
        after = np.where(drafted > 0, _pick(bonus, here, random), _pick(plain, here, random))
        accepted = verify & (pair < outcomes)
        found = {"outcome": np.where(verify, pair % outcomes, after), "slot": slot, "drafted": drafted}
        for key, value in {**found, "short": short, "ever": ever, "ended": ~accepted}.items():
            (whole_numbers if key in whole_numbers else marks)[key][:, step] = value
        short, ever, slot = np.where(accepted, short, verify), ever | (verify & ~accepted), np.where(accepted, slot + 1, 0)
    return Trace(at=at, **whole_numbers, **marks)


def _summed(distribution: Floats) -> Floats:
    mass = distribution.reshape(len(distribution), -1).cumsum(axis=1)
    return np.asarray(mass / mass[:, -1:])


def _pick(mass: Floats, at: Ints, random: np.random.Generator) -> Ints:
    return np.asarray((mass[at] > random.random(len(at))[:, None]).argmax(axis=1), dtype=np.int64)


def _again(one: Whole, random: np.random.Generator, answers: int) -> Ints:
    entropy = -(one.p * np.log(one.p)).sum(axis=1)
    chosen = random.choice(np.flatnonzero((entropy > OPEN[0]) & (entropy < OPEN[1])), CONTEXTS, replace=False)
    anywhere = random.integers(len(one.p), size=(answers, 3))
    anywhere[:, 1] = np.where(random.random(answers) < SURE, chosen[np.arange(answers) % CONTEXTS], anywhere[:, 1])
    return anywhere


def _child(parent: Ints, outcome: Ints, one: Whole, random: np.random.Generator) -> Ints:
    """Return the position behind a token: one and the same behind the same top token, any behind the remainder's many tokens."""
    same = (parent * 7919 + outcome * 104_729 + 13) % len(one.p)
    return np.where(outcome == one.p.shape[1] - 1, random.integers(len(one.p), size=len(parent)), same)
