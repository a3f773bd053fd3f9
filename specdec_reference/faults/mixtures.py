"""Planted faults of batches whose requests differ in kind, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import RunningSequence

_CAPACITY: Final = 3
"""Rows of a batch."""
_EVERY_BATCH = dict.fromkeys(set(Family) - {Family.SPEED}, "Their requests are in flight together too.")


def _reorder_last_tokens(rows: Rows[RunningSequence], windows: VerifyWindows, is_first: Rows[bool]) -> VerifyWindows:
    """Return windows with last tokens handed out in another order.

    A window's last token follows its accepted draft tokens. Those of rows marked in ``is_first`` go to the first rows. Rows
    with a grammar keep their own, since it would refuse another row's token.
    """
    slots = np.array([slot for slot, row in enumerate(rows) if row.grammar is None], np.intp)
    last = windows.last.copy()
    last[slots] = windows.last[sorted(slots.tolist(), key=lambda slot: not is_first[slot])]  # False sorts first, in stable order
    return replace(windows, last=last)


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="answers go wrong beside requests with a seed"),
    mirrors=("vllm-project/vllm#9441", "vllm-project/vllm#11123"),
)
def seeded_rows_first(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Hands out the last tokens of a batch in which some requests have a seed to those with one first."""
    return _reorder_last_tokens(rows, windows, [row.request.seed is not None for row in rows])


@fault(
    after="verify",
    expected=in_(
        Place.REFERENCE,
        may=_EVERY_BATCH,
        concurrency="answers go wrong only under concurrency|answers are swapped between requests|answers go wrong beside",
    ),
    drafting={"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    mirrors=("vllm-project/vllm#41768", "HabanaAI/vllm-fork#1780"),
)
def undrafted_rows_first(windows: VerifyWindows, rows: Rows[RunningSequence], draft: DraftProposal) -> VerifyWindows:
    """Hands out the last tokens of a batch in which some requests have no draft to those without one first."""
    return _reorder_last_tokens(rows, windows, (draft.counts == 0).tolist())


@fault(after="verify", expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="improbable tokens"), mirrors=("1CatAI/1Cat-vLLM#656",))
def drawn_rows_swapped(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Gives each request above temperature 0 of a batch of three or more the last token of the one before."""
    # A grammar would refuse another row's token.
    sampled_slots = np.flatnonzero([row.request.temperature > 0 and row.grammar is None for row in rows])
    if len(rows) < _CAPACITY:
        return windows
    last = windows.last.copy()
    last[sampled_slots] = np.roll(last[sampled_slots], 1)
    return replace(windows, last=last)
