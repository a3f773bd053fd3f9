"""The rules of the pair lint, which every engine states: settings that speculate, lose the distribution, or keep a server from booting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class LossySetting:
    """A setting under which the engine accepts drafts against the target's distribution."""

    path: tuple[str, ...]
    """In the merged arguments, names as :func:`plain` writes them."""
    is_lossy: Callable[[Any], bool]
    lossless: str
    """The value to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentChange:
    """A setting that the engine changes when it speculates, unless it is stated."""

    name: str
    """The argument, with dots into mappings, or the environment variable."""
    what: str
    """The change, as a verb phrase after "the engine"."""
    methods: frozenset[str]
    """The drafting methods that cause it."""
    also: tuple[str, ...] = ()
    """Other names of it."""
    env: bool = False
    """Whether it is an environment variable; otherwise an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingRule:
    """The speculative settings with which an engine boots."""

    methods: frozenset[str]
    """Every method that the engine is known to take."""
    tokens: tuple[tuple[str, ...], ...]
    """The paths at which the number of draft tokens may stand, in the merged arguments."""
    uncounted: frozenset[str] = frozenset()
    """Methods that need no such number."""
    complete: bool = False
    """Whether ``methods`` are all there are; otherwise a newer release may have another."""
    defaulted: bool = False
    """Whether the engine has a number of draft tokens of its own where the config states none."""

    def split_methods(self, value: object) -> tuple[object, ...]:
        """Return the drafting methods in a setting's value.

        A list, or a text with commas, has several. Any other value is itself the only one.
        """
        methods = value.split(",") if isinstance(value, str) else value
        return tuple(methods) if isinstance(methods, (list, tuple)) else (value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The rules of one engine."""

    prefixes: tuple[str, ...]
    """The beginnings of the speculative settings' names."""
    names: frozenset[str] = frozenset()
    """Speculative settings with other names."""
    mappings: frozenset[str] = frozenset()
    """Speculative settings that hold a mapping, or JSON of one."""
    statistics: frozenset[str] = frozenset()
    """Settings that only count, and that a baseline refuses."""
    method: tuple[str, ...]
    """The path of the drafting method, in the merged arguments."""
    drafting: DraftingRule
    lossy: tuple[LossySetting, ...] = ()
    silent: tuple[SilentChange, ...] = ()
    context: tuple[str, ...] = ()
    """Settings of the longest sequence, prompt and answer together, in tokens."""
    admitted: tuple[str, ...] = ()
    """Settings of how many requests a server computes at once; more wait."""
    attached: bool = False
    """Whether nothing is ever started: every arm needs a ``url``."""

    def speculates(self, name: str) -> bool:
        """Return True if ``name``, an argument or environment variable, is a speculative setting."""
        name = plain(name)
        return name in self.names or name.startswith(self.prefixes)


def plain(name: str) -> str:
    """Return a flag's name in one spelling: ``--speculative_config`` as ``speculative-config``."""
    return name.lstrip("-").replace("_", "-").lower()
