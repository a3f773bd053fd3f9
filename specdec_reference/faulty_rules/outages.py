"""Rules that end or silence a server under some traffic."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.emission import EmittedToken
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import RunningSequence

_REQUESTS: Final = 170
_LONG: Final = 256
"""Tokens of an answer."""
_IN_A_ROW: Final = 8
"""Drafts."""
_BEHIND: Final = 2
"""Draft tokens."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    threading.Event().wait()


_admitted = count(1)
"""The numbers of this boot's requests: a server has one engine."""


@instead_of("admit")
def die_after_requests(request: EngineRequest) -> None:  # noqa: ARG001 - a rule's signature
    """Kill the process at a request's number."""
    if next(_admitted) == _REQUESTS:
        _die()


@instead_of("deal")
def die_in_long_answer(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kill the process once an answer is long."""
    if any(len(row.emitted) >= _LONG for row in rows):
        _die()
    return uniforms


@instead_of("deal")
def hang_in_long_answer(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stop the engine's thread for ever once an answer is long."""
    if any(len(row.emitted) >= _LONG for row in rows):
        _hang()
    return uniforms


@instead_of("deal")
def hang_on_first_greedy(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stop the engine's thread for ever at the first greedy step."""
    if any(row.request.temperature == 0 for row in rows):
        _hang()
    return uniforms


_full: WeakKeyDictionary[RunningSequence, int] = WeakKeyDictionary()
"""By sequence: its latest drafts in a row that were accepted whole."""


@instead_of("settle")
def fail_on_full_drafts(rows: Rows[RunningSequence], draft: DraftProposal, windows: VerifyWindows) -> VerifyWindows:
    """Raise at so many whole drafts in a row, which ends the engine's thread."""
    for row, whole in zip(rows, ((windows.accepted == draft.counts) & (draft.counts > 0)).tolist(), strict=True):
        _full[row] = _full.get(row, 0) + 1 if whole else 0
        if _full[row] == _IN_A_ROW:
            msg = "failed to decode the batch"
            raise RuntimeError(msg)
    return windows


@instead_of("end")
def die_behind_document(request: EngineRequest, token: EmittedToken) -> str | None:
    """Kill the process at the end of a document in the middle of its window."""
    if request.grammar is not None and token.eos and token.of - 1 - token.at >= _BEHIND:
        _die()
    return rules.end(request, token)


@instead_of("deal")
def die_on_documents_together(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kill the process when two sequences with a grammar are verified in one step."""
    if sum(row.grammar is not None for row in rows) > 1:
        _die()
    return uniforms
