"""A simulated server that shares no line with the package's: distributions over a whole vocabulary, and a loop that speculates.

The distributions are made up: Zipf-like and peaked ones over 600 tokens, mean entropy some 2.7 nats, a draft that is accepted three times
in four (two times in five where it is certain of its best token). A context is a hash of the prompt and the tokens so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = ["RIGHT", "VOCABULARY", "MadeUpDistributions", "Server", "Text", "made_up", "speak"]

VOCABULARY, K = 600, 3
CONTEXTS = 1500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeUpDistributions:
    """What a target and a draft model say at C contexts, [C, V] each, before and after what a request asks for."""

    raw_p: Floats
    raw_q: Floats
    p: Floats
    q: Floats

    def asked(self, *, temperature: float = 1.0, top_p: float = 1.0, certain: bool = False) -> MadeUpDistributions:
        """Return the same distributions for requests that ask for this; ``certain`` makes the draft propose its best token."""
        p, q = (_nucleus(_cooled(distribution, temperature), top_p) for distribution in (self.raw_p, self.raw_q))
        if certain:
            q = np.eye(VOCABULARY)[self.raw_q.argmax(axis=1)]
        return MadeUpDistributions(raw_p=self.raw_p, raw_q=self.raw_q, p=p, q=q)


def made_up(random: np.random.Generator, error: float = 0.95) -> MadeUpDistributions:
    """Return distributions of two kinds: three in five Zipf-like, the others with one token that has most of the mass.

    The draft's logits are off by ``error`` nats.
    """
    steepness = random.uniform(0.85, 1.6, size=(CONTEXTS, 1))
    logits = -steepness * np.log(np.arange(1, VOCABULARY + 1)) + random.normal(size=(CONTEXTS, VOCABULARY)) * 0.6
    peaked = random.random(CONTEXTS) < 0.4
    logits[peaked, 0] += random.uniform(1.0, 6.0, size=int(peaked.sum()))
    guess = logits + random.normal(size=logits.shape) * error
    shuffled = random.permuted(np.tile(np.arange(VOCABULARY), (CONTEXTS, 1)), axis=1)
    p, q = (_softmax(np.take_along_axis(one, shuffled, axis=1)) for one in (logits, guess))
    return MadeUpDistributions(raw_p=p, raw_q=q, p=p, q=q)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Server:
    """How one server decides. Tables are [C, V], functions of its distributions; None for the right one."""

    accept: Floats | None = None
    """Chance that a draft token is accepted."""
    replacement: Floats | None = None
    """Distribution of what is emitted for a rejected one."""
    one_number: bool = False
    """Whether one number decides for a whole window."""
    every: int = 1
    """One answer in so many has the fault; the others are right."""
    leak: float = 0.0
    """Share of all tokens that are drawn from the draft's distribution without a check."""


RIGHT = Server()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Text:
    """What A answers of T tokens were, [A, T]."""

    context: Ints
    token: Ints
    slot: Ints
    """Place in its window."""
    drafted: Ints
    """Drafts of its window."""
    ended: Bools
    """Whether the window ended with it."""
    prompt: Ints = field(repr=False)
    """[A]."""


def speak(distributions: MadeUpDistributions, server: Server, random: np.random.Generator, *, prompts: Ints, tokens: int) -> Text:
    """Return answers of ``tokens`` tokens to ``prompts`` [A]; the first is the prefill's own, drawn from the target."""
    count, right = len(prompts), np.minimum(1.0, distributions.p / np.maximum(distributions.q, 1e-300))
    short = np.maximum(distributions.p - distributions.q, 0.0)
    none = short.sum(axis=1, keepdims=True) < 1e-12
    instead = np.where(none, distributions.p, short / np.where(none, 1.0, short.sum(axis=1, keepdims=True)))
    accept = right if server.accept is None else server.accept
    wrong = np.arange(count) % server.every == 0 if server.every == 1 else random.random(count) < 1.0 / server.every
    target, draft, residual = _Urn(distributions.p), _Urn(distributions.q), _Urn(instead)
    replaced = residual if server.replacement is None else _Urn(server.replacement)
    out = {name: np.zeros((count, tokens), dtype=np.int64) for name in ("context", "token", "slot", "drafted")}
    ended = np.ones((count, tokens), dtype=np.bool_)
    hashed, slot, shared = _hash(prompts.astype(np.uint64)), np.zeros(count, dtype=np.int64), np.zeros(count)
    for step in range(tokens):
        here = (hashed % np.uint64(CONTEXTS)).astype(np.int64)
        shared = np.where(slot == 0, random.random(count), shared)
        number = np.where(server.one_number & wrong, shared, random.random(count))
        proposal, own = draft.draw(here, random), target.draw(here, random)
        other = np.where(wrong, replaced.draw(here, random), residual.draw(here, random))
        chance = np.where(wrong, accept[here, proposal], right[here, proposal])
        verify = (slot < K) & (step > 0)
        taken = verify & (number < chance)
        token = np.where(verify, np.where(taken, proposal, other), own)
        token = np.where(wrong & (random.random(count) < server.leak), draft.draw(here, random), token)
        out["context"][:, step], out["token"][:, step], out["slot"][:, step] = here, token, slot
        out["drafted"][:, step], ended[:, step] = K if step else 0, ~taken
        slot = np.where(taken, slot + 1, 0)
        hashed = _hash(hashed ^ (token.astype(np.uint64) + np.uint64(7)))
    return Text(**out, ended=ended, prompt=prompts)


class _Urn:
    """Draws tokens from distributions [C, V] by bisection of their distribution functions."""

    def __init__(self, distribution: Floats) -> None:
        self._whole = distribution.cumsum(axis=1)

    def draw(self, rows: Ints, random: np.random.Generator) -> Ints:
        """Return a token for each of ``rows``."""
        number = random.random(len(rows)) * self._whole[rows, -1]
        low, high = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), VOCABULARY - 1)
        while (low < high).any():
            middle = (low + high) // 2
            above = self._whole[rows, middle] > number
            low, high = np.where(above, low, middle + 1), np.where(above, middle, high)
        return low


def _softmax(logits: Floats) -> Floats:
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _cooled(distribution: Floats, temperature: float) -> Floats:
    return distribution if temperature == 1.0 else _softmax(np.log(distribution) / temperature)


def _nucleus(distribution: Floats, top_p: float) -> Floats:
    """Return ``distribution`` cut to the fewest tokens that have ``top_p`` of the mass."""
    order = np.argsort(-distribution, axis=1)
    sorted_distribution = np.take_along_axis(distribution, order, axis=1)
    kept = np.where(sorted_distribution.cumsum(axis=1) - sorted_distribution < top_p, sorted_distribution, 0.0)
    cut = np.zeros_like(distribution)
    np.put_along_axis(cut, order, kept, axis=1)
    return np.asarray(cut / cut.sum(axis=1, keepdims=True))


def _hash(number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return another number, far off for a neighbour (the xor-shift-multiply finaliser of MurmurHash3)."""
    number = (number ^ (number >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    number = (number ^ (number >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return np.asarray((number ^ (number >> np.uint64(33))) + np.uint64(0x9E3779B97F4A7C15))
