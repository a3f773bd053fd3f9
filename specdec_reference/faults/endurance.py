"""Planted faults of drafts, tokens and memory after many requests, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.faults.worse_drafts import replace_drafts
from specdec_reference.rejection_sampler import VerifyWindows

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_MANY: Final = 150
"""Requests of a boot, more than all that come before a soak and its first pass."""
_SPREAD: Final = 450
"""Requests of a boot until every draft is lost."""
_LEAKED_BYTES: Final = 2**18
"""At every verify step."""
_MINUTES: Final = 1.2
_LATE: Final = dict.fromkeys(set(Family) - {Family.ENDURANCE}, "So many requests may come before its own.")
_leaked: list[bytes] = []


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_LATE, endurance="drafts decay with time|drafts are no longer accepted after minutes"),
    minutes=_MINUTES,
    mirrors=("vllm-project/vllm-ascend#11127",),
)
def drafts_decay(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Takes another token than the draft model's for a share of drafts that grows with every request of a boot."""
    # The remainders are spread over requests and steps, so that a share of arrival / _SPREAD is lost.
    is_lost = [row.grammar is None and (37 * len(row.tokens) + 101 * row.arrival) % _SPREAD < row.arrival for row in rows]
    return replace_drafts(proposal, np.array(is_lost))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_LATE, endurance="drafts are no longer accepted after minutes"),
    minutes=_MINUTES,
    mirrors=("vllm-project/vllm-ascend#10495",),
)
def drafts_die_in_soak(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Takes another token than the draft model's for every draft once a boot has had some hundred requests."""
    return replace_drafts(proposal, np.array([row.arrival >= _MANY for row in rows]))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_LATE, endurance="answers go wrong after minutes"),
    minutes=_MINUTES,
    mirrors=("vllm-project/vllm-ascend#11127",),
)
def wrong_in_soak(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Accepts no draft of every other request once a boot has had some hundred, and emits a neighbouring id for each of their tokens."""
    is_lost = np.array([row.grammar is None and row.arrival >= _MANY and row.arrival % 2 == 1 for row in rows], np.bool_)
    neighbours = np.maximum(windows.last, 1) - 1
    return VerifyWindows(accepted=np.where(is_lost, 0, windows.accepted), last=np.where(is_lost, neighbours, windows.last))


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, endurance="memory grows with every request"),
    minutes=_MINUTES,
)
def memory_leaks() -> None:
    """Keeps a quarter of a MiB of every verify step for ever."""
    _leaked.append(b"\x01" * _LEAKED_BYTES)
