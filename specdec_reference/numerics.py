"""Numerics: logits as inexact kernels compute them, other ones by kernel, batch size and boot, and still a correct server's.

The noise of a kernel depends on the text before a token, on the kernel and on how many sequences share the step. So it is with real
kernels: their order of summation changes with shapes. A request alone repeats itself, one together with concurrent others does not.
Where no numerics are set nothing changes. A position is the text before a token, known by its length and last tokens.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_TAIL: Final = 8
"""Tokens that identify a text, together with its length."""
_NUMBERS, _SCALES = 2**20, 2**16
_MODULUS: Final = 2**61 - 1
"""Of hashes: what Python takes integers by."""
_JUMP: Final = 1.0
"""Nats: what other experts change a logit by."""
_SEED: Final = 20_261_124
_GRIDS: Final = ("bf16", "fp16")


class Kernel(IntEnum):
    """What computes the logits of a step."""

    PREFILL = 0
    DECODE = 1
    VERIFY = 2


class TextPosition(NamedTuple):
    """A position in a text: the length of the text before it, and that text's last tokens."""

    length: int
    tail: tuple[int, ...]


def text_positions(tokens: Sequence[int], drafted: Sequence[int] = ()) -> list[TextPosition]:
    """Return the positions after ``tokens`` and after each of ``drafted``.

    The draft tokens follow ``tokens``, so there are len(drafted) + 1 positions, one for each line of a window's logits.
    """
    text = (*tokens[-_TAIL:], *drafted)
    undrafted = len(text) - len(drafted)
    ends = range(undrafted, len(text) + 1)
    return [TextPosition(len(tokens) + end - undrafted, text[max(0, end - _TAIL) : end]) for end in ends]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How a server's logits are off; nothing by default. All sizes are nats of one logit.

    ``normal`` and ``heavy`` are sizes of noise, ``verify`` a factor on it in verify steps. ``jumps`` is the share of positions with a
    jump: a change of every logit by about 1 nat. ``boot`` is the size of noise that depends on the server's start, by its ``number``.
    """

    normal: float = 0.0
    """Standard deviation of independent normal noise."""
    heavy: float = 0.0
    """Standard deviation of noise of Student's t with 3 degrees of freedom: normal, with a scale drawn for every position."""
    jumps: float = 0.0
    """Share of positions at which every logit is off by 1 nat, as where another expert is chosen."""
    verify: float = 1.0
    """Factor on the noise of the verify kernel."""
    boot: float = 0.0
    """Standard deviation of what a boot adds at a place, whichever kernel computes it."""
    grid: str = ""
    """``bf16`` or ``fp16``: logits are rounded to it."""
    number: int = 0
    """Number of the boot: the noise of ``boot`` depends on it."""

    @classmethod
    def parse(cls, text: str, number: int) -> Numerics:
        """Return the numerics of a text like ``normal:0.03,grid:bf16``.

        ``number`` is the boot's. Raises EngineError for another word or size.
        """
        sizes: dict[str, float] = {}
        grid = ""
        for setting in filter(None, text.split(",")):
            name, _, size = setting.partition(":")
            if name == "grid" and size in _GRIDS:
                grid = size
            elif name in _SIZES and (value := _parse_size(size)) is not None:
                sizes[name] = value
            else:
                raise _numerics_error(setting, name)
        return cls(**sizes, grid=grid, number=number)

    @property
    def exact(self) -> bool:
        """True if logits are left as they are.

        ``verify`` is a factor on noise, and changes nothing by itself.
        """
        return self == Numerics(number=self.number, verify=self.verify)

    def vary(self, logits: NDArray[np.float32], kernel: Kernel, positions: Iterable[TextPosition], batch: int) -> NDArray[np.float32]:
        """Return ``logits`` (rows, vocabulary) as ``kernel`` computes them.

        ``positions`` are the rows' own; the step has ``batch`` sequences. Kernel, position and batch decide a row's noise.
        """
        if self.exact:
            return logits
        varied = logits.copy()
        factor = self.verify if kernel is Kernel.VERIFY else 1.0
        for row, position in zip(varied, positions, strict=True):
            self._add_noise(row, hash((kernel.value, batch, position)) % _MODULUS, factor)
            if self.boot:
                row[:] += np.float32(self.boot) * _cut_noise(hash((self.number, position)) % _MODULUS, len(row))
        return _round_to_grid(varied, self.grid)

    def _add_noise(self, row: NDArray[np.float32], key: int, factor: float) -> None:
        """Add noise to ``row`` in place, and for some keys a jump.

        ``key`` decides all that is random; ``factor`` is on the noise alone.
        """
        width, second_key = len(row), hash((key, 1)) % _MODULUS
        # One scale for all logits of a position: a scale drawn by position makes the noise heavy.
        scale = factor * (self.normal + self.heavy * float(_random_pool().scales[second_key % _SCALES]))
        if scale:
            row += np.float32(scale) * _cut_noise(key, width)
        # The hash is spread evenly below the modulus, so that a share of ``jumps`` of all positions is below this bound.
        if second_key / _MODULUS < self.jumps:
            row += np.float32(_JUMP) * _cut_noise(hash((key, 2)) % _MODULUS, width)


_SIZES: Final = ("normal", "heavy", "jumps", "verify", "boot")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Random numbers that every row is cut from, the same for every server."""

    numbers: NDArray[np.float32]
    """Standard normal."""
    scales: NDArray[np.float32]
    """Factors that turn normal numbers into Student's t with 3 degrees of freedom, scaled to variance 1."""


@cache
def _random_pool() -> _Pool:
    """Return the random numbers, drawn once in a process."""
    random = np.random.default_rng(_SEED)
    # Student's t is normal / sqrt(chi2 / 3), with a variance of 3: without that 3 the variance is 1.
    scales = 1.0 / np.sqrt(random.chisquare(3, _SCALES))
    return _Pool(numbers=random.standard_normal(_NUMBERS, dtype=np.float32), scales=scales.astype(np.float32))


def _cut_noise(key: int, width: int) -> NDArray[np.float32]:
    """Return ``width`` normal numbers; ``key`` decides where they begin."""
    start = key % (_NUMBERS - width)
    return _random_pool().numbers[start : start + width]


def _round_to_grid(logits: NDArray[np.float32], grid: str) -> NDArray[np.float32]:
    """Return logits rounded to half precision, by the grid's name.

    Unchanged for an empty name; ``logits`` may be overwritten.
    """
    if grid == "fp16":
        return logits.astype(np.float16).astype(np.float32)
    if grid == "bf16":  # the upper half of float32, ties to even
        bits = logits.view(np.uint32)
        bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        bits &= np.uint32(0xFFFF0000)
    return logits


def _parse_size(text: str) -> float | None:
    """Return a finite size of at least 0.

    None for any other text.
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


def _numerics_error(setting: str, name: str) -> EngineError:
    """Return the error for one unknown setting."""
    names = (*_SIZES, "grid")
    similar = difflib.get_close_matches(name, names, n=1)
    return EngineError(
        what="no such numerics",
        where="--numerics",
        found=setting,
        expected=", ".join([*(f"{word}:SIZE" for word in _SIZES), *(f"grid:{grid}" for grid in _GRIDS)]),
        remedy=f"did you mean {similar[0]!r}?" if similar and similar[0] != name else "write sizes as plain numbers: normal:0.03,grid:bf16",
    )
