"""Shards: the cells of a matrix in parts of about the same time, for jobs on several machines."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner
from pytest_specdec.engines import model_size
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.plan import Rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.model.matrix import Group, Matrix

_TOKENS = 60_000
"""Emitted by one arm: what the suites at standard depth ask of it."""
_GB_PER_S = 1000.0
"""Weights read per second, whatever the machine: all shards have to come to the same parts."""


def part(config: MatrixConfig, selected: Matrix, number: int, count: int) -> Sequence[Group]:
    """Return the groups of shard ``number``, from 1, of ``count``.

    The parts depend on the config and the selection alone, not on the machine. A group goes to one shard as a whole, since its cells share
    a baseline, unless it takes longer than a shard's fair part of the time: it is then cut into several. The longest go first, each to the
    shard with the least so far (Graham 1969: at most 4/3 of the best makespan). Raises ConfigError if there are more shards than cells.
    """
    cells = len(selected.cells)
    if count > cells:
        what, expected = "there are more shards than cells", f"at most {cells} shards"
        raise ConfigError(what, where="--specdec-shard", found=f"{number}/{count} of {cells} cells", expected=expected)
    pieces = _pieces(config, selected.groups, count)
    totals = [0.0] * count
    chosen: dict[int, list[Group]] = defaultdict(list)
    for seconds, order in sorted(((_seconds(config, piece), -order) for order, piece in enumerate(pieces)), reverse=True):
        least = min(range(count), key=lambda shard: (totals[shard], len(chosen[shard])))
        totals[least] += seconds
        chosen[least].append(pieces[-order])
    return sorted(chosen[number - 1], key=pieces.index)


def _pieces(config: MatrixConfig, groups: Sequence[Group], count: int) -> list[Group]:
    """Return the groups, the long ones cut into several, at least ``count`` in all."""
    seconds = [_seconds(config, group) for group in groups]
    fair = sum(seconds) / count
    numbers = [min(len(group.cells), math.ceil(own / fair)) for group, own in zip(groups, seconds, strict=True)]
    while sum(numbers) < count:
        longest = max(
            (index for index, group in enumerate(groups) if numbers[index] < len(group.cells)),
            key=lambda index: seconds[index] / numbers[index],
        )
        numbers[longest] += 1
    return [piece for group, number in zip(groups, numbers, strict=True) for piece in _cut(group, number)]


def _cut(group: Group, number: int) -> list[Group]:
    """Return a group's cells in ``number`` groups of about as many cells, in their order."""
    size, extra = divmod(len(group.cells), number)
    ends = [size * index + min(index, extra) for index in range(number + 1)]
    return [replace(group, cells=group.cells[start:end]) for start, end in pairwise(ends)]


def _seconds(config: MatrixConfig, group: Group) -> float:
    """Return the seconds that a group's capture is expected to take, at any machine's rates.

    They are those of its boots, and of the tokens that its arms emit, by the size of its model where that is known.
    """
    own, rates = config.config(group), Rates()
    size = model_size.of(own.engine.model, Path(own.resolve(own.engine.model)))
    if size is not None:
        tokens_per_s = min(rates.tokens_per_s, _GB_PER_S / size.active_gb)
        rates = replace(rates, boot_s=rates.boot_s + size.weights_gb / 2.0, tokens_per_s=tokens_per_s)
    boots = planner.plan_servers(own, rates).boots
    return len(boots) * rates.boot_s + (len(group.cells) + 2) * _TOKENS / rates.tokens_per_s
