"""Planted faults of answers that loop, repeat or turn into noise, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.rejection_sampler import VerifyWindows

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_BEGUN: Final = 32
"""Tokens of an answer before it turns into a loop."""
_LOOP: Final = 4
"""Tokens of the loop."""
_SOAKED: Final = 24
"""Requests of a boot before a late fault sets in."""
RECOVERED = "the token in place of a rejected draft token is not the target's"
UNDER_CONCURRENCY = "answers go wrong only under concurrency|answers go wrong beside|answers are swapped between requests"
ANY_WRONG = "tokens wrong"
DEGENERATE = dict.fromkeys(set(Family) - {Family.GREEDY}, "Its answers degenerate too, and may end elsewhere or have no draft accepted.")


def _stop_accepting(windows: VerifyWindows, marked: Rows[bool], tokens: Rows[int]) -> VerifyWindows:
    """Return windows with a single token, from ``tokens``, in marked rows.

    No draft token of a marked row is accepted. Other rows are unchanged.
    """
    is_marked = np.array(marked, np.bool_)
    return VerifyWindows(accepted=np.where(is_marked, 0, windows.accepted), last=np.where(is_marked, tokens, windows.last))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=DEGENERATE, greedy=f"{RECOVERED}|{ANY_WRONG}"),
    reasons=True,
    mirrors=("NVIDIA/TensorRT-LLM#8713",),
)
def token_zero_after_reasoning(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Emits the token with id 0 for ever after the end of the reasoning."""
    has_reasoned = [row.reasoning is not None and row.reasoning.characters is not None and row.grammar is None for row in rows]
    return _stop_accepting(windows, has_reasoned, [0] * len(rows))


@fault(
    after="verify",
    expected=in_(
        Place.REFERENCE,
        may=dict.fromkeys(set(Family) - {Family.CONCURRENCY}, "Their requests are in flight together too."),
        concurrency=UNDER_CONCURRENCY,
    ),
    mirrors=("Blaizzy/mlx-vlm#2033",),
)
def token_zero_in_company(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Emits the token with id 0 for every row of a batch of two or more."""
    return _stop_accepting(windows, [len(rows) > 1 and row.grammar is None for row in rows], [0] * len(rows))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=DEGENERATE, greedy=f"{RECOVERED}|{ANY_WRONG}"),
    mirrors=("vllm-project/vllm#41262", "vllm-project/vllm#10559"),
)
def loops_after_start(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Repeats the last four tokens over and over from the 33rd token of every other answer on."""
    is_looping = [row.grammar is None and row.arrival % 2 == 1 and len(row.emitted) >= _BEGUN for row in rows]
    return _stop_accepting(windows, is_looping, [row.tokens[-_LOOP] if len(row.tokens) >= _LOOP else 0 for row in rows])


@fault(after="verify", expected=in_(Place.REFERENCE, may=TOKENS_WRONG | DEGENERATE, greedy=RECOVERED), mirrors=("kekzl/imp#667",))
def accepted_token_twice(windows: VerifyWindows, draft: DraftProposal) -> VerifyWindows:
    """Emits the last accepted draft token a second time in place of the one rejected after it."""
    partly_accepted = np.flatnonzero((windows.accepted > 0) & (windows.accepted < draft.counts))
    last = windows.last.copy()
    last[partly_accepted] = draft.tokens[partly_accepted, windows.accepted[partly_accepted] - 1]
    return replace(windows, last=last)


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=DEGENERATE, greedy=f"{RECOVERED}|{ANY_WRONG}"),
    mirrors=("vllm-project/vllm-ascend#11127",),
)
def wrong_after_soak(windows: VerifyWindows, rows: Rows[RunningSequence]) -> VerifyWindows:
    """Accepts no draft of every other request from the 25th of a boot on, and emits a neighbouring id for each of their tokens."""
    is_lost = [row.grammar is None and row.arrival >= _SOAKED and row.arrival % 2 == 1 for row in rows]
    return _stop_accepting(windows, is_lost, (np.maximum(windows.last, 1) - 1).tolist())
