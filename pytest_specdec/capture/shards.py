"""Shards: the cells of a matrix in parts of about the same time, for jobs on several machines."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines import model_size
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.matrix import Group
from pytest_specdec.model.plan import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.model.matrix import Cell, Matrix

_TOKENS = 60_000
"""Emitted by one arm: what the suites at standard depth ask of it."""
_BASELINE_ARMS = 2
"""Of every group, or part of one: the baseline and the control."""
_CUTS = (1, 2, 4)
"""Parts of a shard's fair time that a piece of a group may take at most, of the ways that are tried: the whole, a half and a quarter."""
_GB_PER_S = 1000.0
"""Weights read per second of decoding, whatever the machine: all shards have to come to the same parts."""
_LOADED_GB_PER_S = 2.0
"""Weights read per second of a boot."""


def part(config: MatrixConfig, selected: Matrix, number: int, count: int) -> Sequence[Group]:
    """Return the groups of shard ``number``, from 1, of ``count``.

    The shards depend on the config and the selection alone, not on the machine. A group goes to one shard as a whole, since its cells share
    a baseline, unless the shards come out more even if it is cut. Raises ConfigError if there are more shards than cells.
    """
    cells = len(selected.cells)
    if count > cells:
        what, expected = "there are more shards than cells", f"at most {cells} shards"
        raise ConfigError(what, where="--specdec-shard", found=f"{number}/{count} of {cells} cells", expected=expected)
    arm_s = {group.name: _arm_s(config.config(group)) for group in selected.groups}
    return _split(selected.groups, count, lambda group: (len(group.cells) + _BASELINE_ARMS) * arm_s[group.name])[number - 1]


def _split(groups: Sequence[Group], count: int, seconds: Callable[[Group], float]) -> list[list[Group]]:
    """Return the groups of each shard: of several ways to cut long groups the one whose longest shard is the shortest."""
    fair = sum(map(seconds, groups)) / count
    ways = [_assign(_pieces(groups, count, seconds, fair / parts), count, seconds) for parts in _CUTS]
    return min(ways, key=lambda shards: max(sum(map(seconds, shard)) for shard in shards))


def _assign(pieces: Sequence[Group], count: int, seconds: Callable[[Group], float]) -> list[list[Group]]:
    """Return the pieces of each shard: the longest first, each to the shard with the least so far.

    The longest shard takes at most 4/3 of the least possible time (Graham 1969, Bounds on multiprocessing timing anomalies). Pieces of one
    group that come together are joined.
    """
    totals = [0.0] * count
    chosen: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(pieces)), key=lambda index: -seconds(pieces[index])):
        least = min(range(count), key=lambda shard: (totals[shard], len(chosen[shard])))
        totals[least] += seconds(pieces[index])
        chosen[least].append(index)
    return [_join([pieces[index] for index in sorted(indices)]) for indices in chosen]


def _join(pieces: Sequence[Group]) -> list[Group]:
    cells: dict[str, tuple[Cell, ...]] = {}
    for piece in pieces:
        cells[piece.name] = (*cells.get(piece.name, ()), *piece.cells)
    return [Group(name=name, cells=own) for name, own in cells.items()]


def _pieces(groups: Sequence[Group], count: int, seconds: Callable[[Group], float], longest_s: float) -> list[Group]:
    """Return the groups, those over ``longest_s`` seconds cut into several, at least ``count`` in all."""
    numbers = [min(len(group.cells), math.ceil(seconds(group) / longest_s)) for group in groups]
    while sum(numbers) < count:
        longest = max(
            (index for index, group in enumerate(groups) if numbers[index] < len(group.cells)),
            key=lambda index: seconds(groups[index]) / numbers[index],
        )
        numbers[longest] += 1
    return [piece for group, number in zip(groups, numbers, strict=True) for piece in _cut(group, number)]


def _cut(group: Group, number: int) -> list[Group]:
    """Return a group's cells in ``number`` groups of about as many cells, in their order."""
    size, extra = divmod(len(group.cells), number)
    ends = [size * index + min(index, extra) for index in range(number + 1)]
    return [replace(group, cells=group.cells[start:end]) for start, end in pairwise(ends)]


def _arm_s(config: Config) -> float:
    """Return the seconds that one arm is expected to take: a boot and the tokens that it emits, by the size of the model where known."""
    rates, size = Rates(), model_size.of(config.engine.model, Path(config.resolve(config.engine.model)))
    if size is None:
        return rates.boot_s + _TOKENS / rates.tokens_per_s
    return rates.boot_s + size.weights_gb / _LOADED_GB_PER_S + _TOKENS / min(rates.tokens_per_s, _GB_PER_S / size.active_gb)
