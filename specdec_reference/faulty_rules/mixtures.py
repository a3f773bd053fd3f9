"""Rules that confuse the rows of a batch whose requests differ in kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import RunningSequence

_CAPACITY: Final = 3
"""Rows of a batch."""


def _sorted(rows: Rows[RunningSequence], windows: VerifyWindows, is_first: Rows[bool]) -> VerifyWindows:
    """Return windows whose last tokens are sorted, those of some rows first; a grammar would refuse another row's token."""
    free = np.array([slot for slot, row in enumerate(rows) if row.grammar is None], np.intp)
    last = windows.last.copy()
    last[free] = windows.last[sorted(free.tolist(), key=lambda slot: not is_first[slot])]
    return replace(windows, last=last)


@instead_of("settle")
def seeded_rows_first(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Sort by whether a request has a seed."""
    return _sorted(rows, windows, [row.request.seed is not None for row in rows])


@instead_of("settle")
def undrafted_rows_first(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:
    """Sort by whether a request has a draft."""
    return _sorted(rows, windows, (draft.counts == 0).tolist())


@instead_of("settle")
def drawn_rows_swapped(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:  # noqa: ARG001 - a rule's signature
    """Rotate the last tokens of the sampled rows."""
    drawn = np.flatnonzero([row.request.temperature > 0 and row.grammar is None for row in rows])
    if len(rows) < _CAPACITY:
        return windows
    last = windows.last.copy()
    last[drawn] = np.roll(last[drawn], 1)
    return replace(windows, last=last)
