"""Server arguments: a mapping in the config, flags on the command line, and the figures read from all arms' arguments.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
A stack is a server of several processes, such as a router and two engines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.config.variables import expand
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.config import Config, Overlay, VariantSettings
    from pytest_specdec.model.workload import JSON


def merge(*layers: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the layers laid over each other, later ones on top; a null removes the argument."""
    result: dict[str, JSON] = {}
    for layer in layers:
        result.update(layer)
    return {name: value for name, value in result.items() if value is not None}


def fill(config: Config, overlay: Overlay | VariantSettings, environ: Mapping[str, str]) -> dict[str, JSON]:
    """Return one arm's arguments with variables filled in.

    ``overlay`` is the baseline or a variant, whose arguments are laid over the engine's. An argument with a ``${VAR}``
    that is not set stays as written.
    """
    return {name: expand_set_variables(value, environ) for name, value in merge(config.engine.args, overlay.args).items()}


def expand_set_variables(value: JSON, environ: Mapping[str, str]) -> JSON:
    """Return an argument's value with its ``${VAR}`` variables filled in.

    Returns the value as written if one of the variables is not set.
    """
    try:
        return expand(value, environ)
    except ConfigError:
        return value


def flags(args: Mapping[str, JSON]) -> list[str]:
    """Return ``args`` as command-line flags, ``--name value``.

    True and false become ``--name`` and ``--no-name``. Mappings and nested lists become JSON.
    """
    argv: list[str] = []
    for name, value in args.items():
        argv += _flag_words(name.lstrip("-"), value)
    return argv


def _flag_words(name: str, value: JSON) -> list[str]:
    """Return one argument's words on the command line.

    True and false are in the name of the flag. A text stays as it is, and a list of plain values becomes one word for
    each. A mapping, a nested list or a number becomes JSON.
    """
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    if isinstance(value, str):
        return [f"--{name}", value]
    if isinstance(value, (list, tuple)) and not any(isinstance(item, (list, tuple, Mapping)) for item in value):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", json.dumps(value, separators=(",", ":"))]


def arm_args(config: Config) -> Iterator[dict[str, JSON]]:
    """Yield every arm's arguments, the baseline's first, then each variant's.

    An arm of a stack has several: those of each process that takes its arguments, one after the other.
    """
    return chain.from_iterable(process_args(config))


def process_args(config: Config) -> Iterator[list[dict[str, JSON]]]:
    """Yield a list for each arm: the arguments of its processes.

    In a stack, those processes that take the arm's arguments have an item each, with their own laid on top. Without a
    stack the list has one item. Names are in one spelling, ``speculative-config`` for ``--speculative_config``.
    """
    processes = [process.args for process in config.stack if process.takes_args] or [{}]
    for layer in (config.baseline.args, *(variant.args for variant in config.variants)):
        layers = [merge(config.engine.args, layer, process) for process in processes]
        yield [{plain(name): value for name, value in args.items()} for args in layers]


def whole_number(value: JSON) -> int:
    """Return a whole number, also from text; 0 for anything else."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def integer_or_zero(value: JSON) -> int:
    """Return a whole number; 0 for anything else, text included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def device_footprint(config: Config, share: str, default: float, parallel: Sequence[Sequence[str]]) -> Footprint:
    """Return the largest device share and device count of all arms.

    ``share`` names the argument for the fraction of an accelerator's memory that a server takes, above 0 and at most 1;
    an arm without such a number counts with the engine's ``default``. The share counts as stated if an arm states the largest one.
    ``parallel`` has a row for each kind of parallelism: all names of the argument for its number of ranks.
    """
    arms = list(arm_args(config))
    stated_shares = [float(fraction) for args in arms if isinstance(fraction := args.get(share), int | float) and 0 < fraction <= 1]
    some_arm_has_default = len(stated_shares) < len(arms)
    largest_share = max([*stated_shares, default] if some_arm_has_default else stated_shares)
    return Footprint(
        device_share=largest_share,
        share_stated=largest_share in stated_shares,
        devices=max(math.prod(_count_ranks(args, names) for names in parallel) for args in arms),
        options=f"{share} or {parallel[0][0]}",  # in remedies: what to lower
    )


def _count_ranks(args: Mapping[str, JSON], names: Sequence[str]) -> int:
    """Return the number of ranks that an argument called any of ``names`` states; 1 without it."""
    return max(1, *(whole_number(args.get(name)) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionFlags:
    """An engine's arguments by which an arm computes in less than float32."""

    quantising: tuple[str, ...]
    """Names of arguments that quantise, whatever their value."""
    formats: frozenset[str] = frozenset({"bitsandbytes", "gguf"})
    """Values of ``load-format`` that are quantised."""
    overrides: str
    """Name of the argument that lays fields over the checkpoint's config.json."""
    cache: str
    """Name of the argument that sets the format of keys and values."""
    caches: frozenset[str] = frozenset({"auto"})
    """Its values that round nothing."""

    def is_single_precision(self, args: Mapping[str, JSON]) -> bool:
        """Return True if ``args`` state float32 and quantise nothing.

        Weights may be quantised by an argument, by their load format, or by a field laid over config.json. Keys and
        values have to stay unrounded too. Names in ``args`` have no dashes before them.
        """
        quantises = any(args.get(name) for name in self.quantising) or args.get("load-format") in self.formats
        overrides_quantisation = "quant" in str(args.get(self.overrides, ""))
        cache_is_exact = args.get(self.cache, "auto") in self.caches
        return args.get("dtype") in {"float32", "float"} and cache_is_exact and not (quantises or overrides_quantisation)
