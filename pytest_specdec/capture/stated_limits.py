"""Limits that the arguments of all servers state: the least of them holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_specdec.engines.arguments import arm_args, expand_set_variables
from pytest_specdec.engines.registry import engine_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.config import Config

__all__ = ["admission_limit", "admitted_tokens"]


def admitted_tokens(config: Config) -> int | None:
    """Return the longest sequence that every server admits, in tokens.

    It is the least of the limits in their arguments. Returns None if the arguments of one of these do not state it.
    """
    return _least_value(config, engine_of(config.engine.kind).rules.context)


def admission_limit(config: Config) -> int | None:
    """Return the most requests computed at once by every server.

    It is the least of the limits in their arguments. Returns None if the arguments of one of these do not state it.
    """
    return _least_value(config, engine_of(config.engine.kind).rules.admitted)


def _least_value(config: Config, names: Sequence[str]) -> int | None:
    """Return the least value of one argument over all servers.

    ``names`` are the argument's spellings. Returns None if the baseline or a variant has no such argument, or no whole number for it.
    """
    stated_values = [next((args[name] for name in names if name in args), None) for args in arm_args(config)]
    values = [expand_set_variables(value, os.environ) for value in stated_values]
    # None, where the argument is missing, is left out here and makes the result None.
    numbers = [int(number) for number in values if str(number).isdigit() and isinstance(number, int | str)]
    return min(numbers) if len(numbers) == len(values) else None
