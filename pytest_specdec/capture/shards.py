"""Shards of a matrix, by an estimate of each arm's seconds that is the same on every machine.

A matrix is many pairs of variant and baseline, its cells; those with the same baseline form a group. Each of N machines runs one shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.engines import model_size
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.plan import Rates
from pytest_specdec.model.shards import divide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.model.matrix import Group, Matrix

_TOKENS = 60_000
"""Emitted by one arm: what the suites at standard depth ask of it."""
_GB_PER_S = 1000.0
"""Weights read per second of decoding, whatever the machine: all shards have to come to the same parts."""
_LOADED_GB_PER_S = 2.0
"""Weights read per second of a boot."""


def part(config: MatrixConfig, selected: Matrix, number: int, count: int) -> Sequence[Group]:
    """Return the groups of shard ``number``, from 1, of ``count``.

    ``selected`` has the cells that are run. The shards depend on it and the config alone, so that all machines divide alike. Raises
    ConfigError if there are more shards than cells.
    """
    cells = len(selected.cells)
    if count > cells:
        what, expected = "there are more shards than cells", f"at most {cells} shards"
        raise ConfigError(
            what,
            where="--specdec-shard",
            found=f"{number}/{count} of {cells} cells",
            expected=expected,
            remedy="lower N, or select more cells",
        )
    return divide(selected, count, {group.name: arm_s(config.config(group)) for group in selected.groups})[number - 1].groups


def arm_s(config: Config) -> float:
    """Return the expected seconds of one arm, by its model's name.

    They are those of a boot and of the tokens that the arm emits, by the model's size if the name gives one. The size of a checkpoint on
    disk is not used: a machine without it would divide otherwise, and some cells would be in no shard.
    """
    rates, size = Rates(), model_size.by_name(config.engine.model)
    if size is None:
        return rates.boot_s + _TOKENS / rates.tokens_per_s
    return rates.boot_s + size.weights_gb / _LOADED_GB_PER_S + _TOKENS / min(rates.tokens_per_s, _GB_PER_S / size.active_gb)
