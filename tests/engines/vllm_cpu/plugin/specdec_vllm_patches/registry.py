"""The patches by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PADDING = -1
"""The id with which vLLM pads rows of tokens."""
PATCHES: dict[str, Callable[[], None]] = {}
"""By name: what each does to the loaded vLLM."""


def patch(apply_patch: Callable[[], None]) -> Callable[[], None]:
    """Register a patch under its own name in kebab-case: of a fault, its id in ``specdec_reference/faults/``."""
    PATCHES[apply_patch.__name__.replace("_", "-")] = apply_patch
    return apply_patch
