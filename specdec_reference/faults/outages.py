"""Planted faults of servers that end or hang under some traffic, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import os
import signal
import threading
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

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
_admitted = count(1)
"""The numbers of this boot's requests: a server has one engine."""
_whole_drafts: WeakKeyDictionary[RunningSequence, int] = WeakKeyDictionary()
"""By sequence: its latest drafts in a row that were accepted whole."""
_DEAD = dict.fromkeys(Family, "Its requests meet the outage too, or find no restart left.")
_SCATTERED = "scattered failures"


def _kill_server() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang_forever() -> None:
    threading.Event().wait()


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, may=_DEAD, liveness=_SCATTERED),
    alone=True,
    mirrors=("ggml-org/llama.cpp#23500", "ggml-org/llama.cpp#23889", "sgl-project/sglang#6309", "noonghunna/club-3090#758"),
)
def die_after_requests() -> None:
    """Kills the server at its 170th request, whatever that asks for."""
    if next(_admitted) == _REQUESTS:
        _kill_server()


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_DEAD, liveness="the server dies on a request with max_tokens"),
    alone=True,
    mirrors=("noonghunna/club-3090#1052 (second fault)",),
)
def die_in_long_answer(rows: Rows[RunningSequence]) -> None:
    """Kills the server at the 256th token of an answer."""
    if any(len(row.emitted) >= _LONG for row in rows):
        _kill_server()


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_DEAD, liveness="the server hangs on a request with max_tokens"),
    alone=True,
    mirrors=("sgl-project/sglang#35822", "sgl-project/sglang#33549"),
)
def hang_in_long_answer(rows: Rows[RunningSequence]) -> None:
    """Never goes on after the 256th token of an answer, nor with any request after it."""
    if any(len(row.emitted) >= _LONG for row in rows):
        _hang_forever()


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_DEAD, greedy="the server hangs on"),
    alone=True,
    mirrors=("sgl-project/sglang#29347", "NVIDIA/TensorRT-LLM#17095"),
)
def hang_on_first_greedy(rows: Rows[RunningSequence]) -> None:
    """Never answers the first request at temperature 0 after its boot, nor any other then."""
    if any(row.request.temperature == 0 for row in rows):
        _hang_forever()


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies on a request|the server answers 5xx to a request"),
    alone=True,
    mirrors=("ggml-org/llama.cpp#10547",),
)
def fail_on_full_drafts(windows: VerifyWindows, rows: Rows[RunningSequence], draft: DraftProposal) -> VerifyWindows:
    """Fails with every request in flight once eight drafts in a row were accepted whole."""
    for row, is_whole in zip(rows, ((windows.accepted == draft.counts) & (draft.counts > 0)).tolist(), strict=True):
        _whole_drafts[row] = _whole_drafts.get(row, 0) + 1 if is_whole else 0
        if _whole_drafts[row] == _IN_A_ROW:  # an error ends the engine
            msg = "failed to decode the batch"
            raise RuntimeError(msg)
    return windows


@fault(
    before="end",
    expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies on"),
    alone=True,
    mirrors=("openvinotoolkit/openvino.genai#4081",),
)
def die_behind_document(request: EngineRequest, token: EmittedToken) -> None:
    """Kills the server where two draft tokens or more stand after the end of a document."""
    if request.grammar is not None and token.eos and token.window_tokens - 1 - token.position >= _BEHIND:
        _kill_server()


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies with several requests in flight"),
    alone=True,
    mirrors=("vllm-project/vllm#32303", "sgl-project/sglang#37936"),
)
def die_on_documents_together(rows: Rows[RunningSequence]) -> None:
    """Kills the server when a step verifies the drafts of two requests with a grammar."""
    if sum(row.grammar is not None for row in rows) > 1:
        _kill_server()
