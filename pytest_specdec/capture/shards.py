"""Shards: the cells of a matrix in parts of about the same time, for jobs on several machines."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.engines import model_size
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.matrix import Group
from pytest_specdec.model.plan import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.model.matrix import Cell, Matrix

_TOKENS = 60_000
"""Emitted by one arm: what the suites at standard depth ask of it."""
_BASELINE_ARMS = 2
"""Of every group, or part of one: the baseline and the control."""
_MOST_CUTS = 4
"""Further cuts that are tried, for each shard."""
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
    """Return the groups of each shard.

    While that makes the longest shard shorter, the longest group that can be cut in it is cut into one part more.
    """
    numbers = _least_numbers(groups, count, seconds)
    shards = _assign(groups, numbers, count, seconds)
    for _ in range(_MOST_CUTS * count):
        longest = max(shards, key=lambda shard: sum(map(seconds, shard)))
        whole = {group.name: group for group in groups}
        cuttable = [piece.name for piece in longest if numbers[piece.name] < len(whole[piece.name].cells)]
        if not cuttable:
            break
        name = max(cuttable, key=lambda name: seconds(whole[name]) / numbers[name])
        further = _assign(groups, {**numbers, name: numbers[name] + 1}, count, seconds)
        if _longest_s(further, seconds) >= _longest_s(shards, seconds):
            break
        numbers, shards = {**numbers, name: numbers[name] + 1}, further
    return shards


def _longest_s(shards: Sequence[Sequence[Group]], seconds: Callable[[Group], float]) -> float:
    return max(sum(map(seconds, shard)) for shard in shards)


def _least_numbers(groups: Sequence[Group], count: int, seconds: Callable[[Group], float]) -> dict[str, int]:
    """Return by name the number of parts of each group: one, or more where it takes longer than a shard's fair time.

    There are at least ``count`` parts in all.
    """
    fair_s = sum(map(seconds, groups)) / count
    numbers = {group.name: min(len(group.cells), math.ceil(seconds(group) / fair_s)) for group in groups}
    while sum(numbers.values()) < count:
        cuttable = [group for group in groups if numbers[group.name] < len(group.cells)]
        numbers[max(cuttable, key=lambda group: seconds(group) / numbers[group.name]).name] += 1
    return numbers


def _assign(groups: Sequence[Group], numbers: Mapping[str, int], count: int, seconds: Callable[[Group], float]) -> list[list[Group]]:
    """Return the groups of each shard, if each group is cut into its number of parts: the longest first, each to the shard with the least.

    The longest shard takes at most 4/3 of the least possible time (Graham 1969, Bounds on multiprocessing timing anomalies). Parts of one
    group that come together are joined.
    """
    pieces = [piece for group in groups for piece in _cut(group, numbers[group.name])]
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


def _cut(group: Group, number: int) -> list[Group]:
    """Return a group's cells in ``number`` groups of about as many cells, in their order."""
    size, extra = divmod(len(group.cells), number)
    ends = [size * index + min(index, extra) for index in range(number + 1)]
    return [replace(group, cells=group.cells[start:end]) for start, end in pairwise(ends)]


def _arm_s(config: Config) -> float:
    """Return the seconds that one arm is expected to take: a boot and the tokens that it emits, by the size that the model's name gives.

    A checkpoint on disk does not count: on a machine without it the shards would be others, and some cells in none of them.
    """
    rates, size = Rates(), model_size.by_name(config.engine.model)
    if size is None:
        return rates.boot_s + _TOKENS / rates.tokens_per_s
    return rates.boot_s + size.weights_gb / _LOADED_GB_PER_S + _TOKENS / min(rates.tokens_per_s, _GB_PER_S / size.active_gb)
