"""Rules with a fault of the verify step's forward: what a position sees, where it stands, what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.model import Span
    from specdec_reference.sequence import RunningSequence

_LATE: Final = 256
"""Tokens of an answer before a late fault sets in: no sampled answer of the suites is longer."""
_BLOCK: Final = 16
"""Positions of a cache block."""


@instead_of("keep")
def kv_short_after_full(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:  # noqa: ARG001 - a rule's signature
    """Drop the last draft token's entry where all were accepted."""
    kept: NDArray[np.intp] = lengths + 1 + accepted - ((accepted == drafted) & (drafted > 0))
    return kept


@instead_of("place")
def drafts_see_ahead(rows: Rows[RunningSequence], span: Span, rotations: NDArray[np.complex64]) -> Span:  # noqa: ARG001 - a rule's signature
    """Let each position of a window see the draft token behind it."""
    live = np.full(span.n, span.t) if span.live is None else np.bincount(span.live // span.t, minlength=span.n)
    seen = np.minimum(span.positions + 1, (span.positions[:, 0] + live - 1)[:, None])
    columns = np.arange(span.shortest, span.longest)
    return replace(span, hidden=np.where(columns > seen[..., None], np.float32(-np.inf), np.float32(0.0)))


@instead_of("place")
def positions_behind_after_full(rows: Rows[RunningSequence], span: Span, rotations: NDArray[np.complex64]) -> Span:
    """Place a window one position early for each time that a whole draft was accepted before it."""
    fulls = (zip(row.drafted, row.accepted, strict=True) for row in rows)
    late = np.array([sum(drafted == kept > 0 for drafted, kept in each) for each in fulls])
    placed = np.maximum(span.positions - late[:, None], 0).ravel()
    return replace(span, turn=rotations[placed if span.live is None else placed[span.live]][:, None])


@instead_of("place")
def positions_behind_late(rows: Rows[RunningSequence], span: Span, rotations: NDArray[np.complex64]) -> Span:
    """Place a window a cache block early late in an answer."""
    behind = np.array([_BLOCK * (len(row.emitted) >= _LATE) for row in rows])
    placed = np.maximum(span.positions - behind[:, None], 0).ravel()
    return replace(span, turn=rotations[placed if span.live is None else placed[span.live]][:, None])
