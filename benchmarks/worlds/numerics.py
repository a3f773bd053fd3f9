"""Numerics: what a correct server's kernels add to its logits, by world."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds.language import CONTEXTS, VOCABULARY, follow, language, row_of
from benchmarks.worlds.pool import NORMAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.worlds.language import Hashes, Logits

__all__ = ["WORLDS", "BaselineBoots", "Boot", "Kernel", "World"]


class Kernel(StrEnum):
    """What computes the logits of one token."""

    PREFILL = "prefill"
    """Of a prompt's last token, and of all tokens that are scored."""
    DECODE = "decode"
    VERIFY = "verify"
    """Of the tokens of a draft and the one behind them."""


class Tail(StrEnum):
    """The distribution of noise."""

    NORMAL = "normal"
    LOGIT_T3 = "Student t, 3 degrees, on every logit"
    POSITION_T3 = "normal, with a scale for every position from Student t, 3 degrees"


class BaselineBoots(StrEnum):
    """Which boots the baseline has, and which of them scores."""

    IN_TURN = "the last of two scores"
    SIDE_BY_SIDE = "the first of two scores"
    ATTACHED = "one server is asked twice and scores"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How the logits of correct servers vary."""

    name: str
    noise: float = 0.0
    """Standard deviation of one logit at one prefix, nats, drawn anew at every call."""
    tail: Tail = Tail.NORMAL
    verify: float = -1.0
    """The same of the verify kernel; below 0 where it is no other."""
    jump_rate: float = 0.0
    """Positions at which another expert answers."""
    jump: float = 1.0
    """Standard deviation of one logit there, nats."""
    jumps_recur: bool = False
    """Whether kernels repeat themselves: one jumps behind the same prefix at every call, of every boot."""
    per_boot: float = 0.0
    """Of what a boot adds to a token behind a context, whenever it comes."""
    per_token: float = 0.0
    """Of what a boot adds to a token, whatever comes before it."""
    grid: bool = False
    """Whether logits are rounded to bfloat16 where real ones lie, between 20 and 29: in steps of an eighth at the best."""
    tilt: Mapping[Kernel, float] | None = None
    """Powers that kernels take the distribution to."""
    single_precision: bool = False
    boots: BaselineBoots = BaselineBoots.IN_TURN

    def noise_of(self, kernel: Kernel) -> float:
        """Return the scale of what is drawn anew at every call of ``kernel``."""
        return self.verify if kernel is Kernel.VERIFY and self.verify >= 0.0 else self.noise


_JUMPS: Final = 0.02
_T3_SD: Final = 3.0**0.5
"""Standard deviation of Student's t with 3 degrees."""
WORLDS: Final = {
    world.name: world
    for world in (
        World(name="exact", single_precision=True),
        World(name="g.01", noise=0.01),
        World(name="g.03", noise=0.03),
        World(name="g.1", noise=0.1),
        World(name="t3.03", noise=0.03, tail=Tail.LOGIT_T3),
        World(name="mt3.03", noise=0.03, tail=Tail.POSITION_T3),
        World(name="mt3.1", noise=0.1, tail=Tail.POSITION_T3),
        World(name="out1e-4", noise=_JUMPS, jump_rate=1e-4),
        World(name="out1e-4h", noise=_JUMPS, jump_rate=1e-4, jump=0.5),
        World(name="out1e-3", noise=_JUMPS, jump_rate=1e-3),
        World(name="rep1e-4", noise=_JUMPS, jump_rate=1e-4, jumps_recur=True),
        World(name="rep1e-3", noise=_JUMPS, jump_rate=1e-3, jumps_recur=True),
        World(name="boot.1", noise=0.02, per_boot=0.1),
        World(name="boot.1-side", noise=0.02, per_boot=0.1, boots=BaselineBoots.SIDE_BY_SIDE),
        World(name="boot.1-attached", noise=0.02, per_boot=0.1, boots=BaselineBoots.ATTACHED),
        World(name="tok.03", noise=0.01, per_token=0.03),
        World(name="bf16.03", noise=0.03, grid=True),
        World(name="bf16.06", noise=0.06, grid=True),
        World(name="ver2x", noise=0.02, verify=0.04),
        World(name="ver3x", noise=0.02, verify=0.06),
        World(name="ver.1", noise=0.02, verify=0.1),
        World(name="tilt.02", noise=0.01, tilt={Kernel.PREFILL: 1.02}),
        World(name="vtilt.02", noise=0.01, tilt={Kernel.VERIFY: 1.02}),
    )
}
"""Every world of the tables, by name; noise is in nats."""


class Boot:
    """One boot of one server: what it keeps, and what its kernels make of logits.

    It serves the logits ``table`` [CONTEXTS, VOCABULARY]; the language's own where it is None.
    """

    def __init__(self, world: World, number: int, seed: int, *, table: Logits | None = None) -> None:
        self.world = world
        self._table = language().target if table is None else table
        self.number = number
        random = np.random.default_rng([seed, number])
        self._contexts = random.standard_normal((CONTEXTS, VOCABULARY), dtype=np.float32) * world.per_boot if world.per_boot else None
        self._tokens = random.standard_normal(VOCABULARY, dtype=np.float32) * world.per_token if world.per_token else None

    def target(self, prefixes: Hashes, kernel: Kernel, random: np.random.Generator) -> Logits:
        """Return the target's logits [N, V] behind ``prefixes`` [N] as ``kernel`` computes them now."""
        rows = row_of(prefixes)
        logits = self._varied(self._table[rows], prefixes, kernel, random)
        if self.world.tilt is not None and kernel in self.world.tilt:
            logits *= np.float32(self.world.tilt[kernel])
        return _rounded(logits, language().level[rows]) if self.world.grid else logits

    def draft(self, prefixes: Hashes, random: np.random.Generator) -> Logits:
        """Return the draft model's logits, off by what decoding is off by: a seed then repeats less often under speculation."""
        rows = row_of(prefixes)
        logits = self._varied(language().draft[rows], prefixes, Kernel.DECODE, random)
        return _rounded(logits, language().level[rows]) if self.world.grid else logits

    def _varied(self, logits: Logits, prefixes: Hashes, kernel: Kernel, random: np.random.Generator) -> Logits:
        world, scale, rows = self.world, self.world.noise_of(kernel), row_of(prefixes)
        if scale:
            logits += _drawn(world.tail, logits.shape, random) * np.float32(scale)
        if self._contexts is not None:
            logits += self._contexts[rows]
        if self._tokens is not None:
            logits += self._tokens
        if world.jump_rate:
            keys = _keys(prefixes, kernel) if world.jumps_recur else random.integers(2**63, size=len(rows), dtype=np.uint64)
            for row in np.flatnonzero((keys >> np.uint64(11)) * 2.0**-53 < world.jump_rate).tolist():
                logits[row] += np.random.default_rng(int(keys[row])).standard_normal(VOCABULARY, dtype=np.float32) * np.float32(world.jump)
        return logits


def _keys(prefixes: Hashes, kernel: Kernel) -> Hashes:
    """Return numbers [N] that hang on prefix and kernel alone."""
    return follow(prefixes, np.full(len(prefixes), zlib.crc32(kernel.encode()), dtype=np.int64))


def _drawn(tail: Tail, shape: tuple[int, int], random: np.random.Generator) -> Logits:
    if tail is Tail.LOGIT_T3:
        return (random.standard_t(3, shape) / _T3_SD).astype(np.float32)
    normal = NORMAL.rows(shape[0], random)
    if tail is Tail.POSITION_T3:
        normal /= np.sqrt(random.chisquare(3, (shape[0], 1))).astype(np.float32)
    return normal


def _rounded(logits: Logits, level: Logits) -> Logits:
    """Return ``logits`` as bfloat16 holds them where the best lies about ``level`` higher: to eight bits, ties to even."""
    bits = (logits + level).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.asarray(bits.view(np.float32) - level)
