"""Sequences of tokens, or texts, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the first index with different elements in two sequences.

    It is the length of the shorter sequence if the longer begins with it.
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (element, counterpart) in pairs if element != counterpart), min(len(one), len(other)))
