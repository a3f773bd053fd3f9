"""The registry of faulty rules: by fault, the one decision of the engine's rules that it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DECISIONS", "instead_of"]

_Decision = TypeVar("_Decision", bound="Callable[..., Any]")

DECISIONS: dict[str, dict[str, Callable[..., Any]]] = {}
"""By fault id: the faulty decision by its name in EngineRules."""


def instead_of(decision: str, **beside: Callable[..., Any]) -> Callable[[_Decision], _Decision]:
    """Register a function in place of ``decision`` under the fault id that is its own name in kebab-case.

    ``beside`` has further decisions by name, which keep the engine alive where the fault would end it.
    """

    def register(faulty: _Decision) -> _Decision:
        DECISIONS[faulty.__name__.replace("_", "-")] = {decision: faulty, **beside}
        return faulty

    return register
