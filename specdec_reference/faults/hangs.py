"""Planted faults of hangs while ``/health`` says that all is well, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from specdec_reference.sequence import RunningSequence

_IN_COMPANY: Final = 6
"""Sequences of one step."""


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, liveness="hangs on request", concurrency="hangs on request"),
    alone=True,
    mirrors=("NVIDIA/TensorRT-LLM#18401",),
)
def hang_on_logprobs(rows: Rows[RunningSequence]) -> None:
    """Never answers a request for log-probabilities, nor any after it."""
    if any(row.request.logprobs is not None for row in rows):
        threading.Event().wait()


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, concurrency="hangs with several requests in flight"),
    alone=True,
    mirrors=("NVIDIA/TensorRT-LLM#3499", "InternLM/lmdeploy#4883"),
)
def hang_in_company(rows: Rows[RunningSequence]) -> None:
    """Never answers again once six requests are in flight."""
    if len(rows) >= _IN_COMPANY:
        threading.Event().wait()


_client_left = threading.Event()
"""Set until the next request: a server has one engine."""


@fault(
    around="engine.submit",
    beside={"engine.drop": Wrapper(moment=Moment.BEFORE, function=_client_left.set)},
    expected=in_(
        Place.REFERENCE,
        may={Family.CONCURRENCY: "Clients leave there too."},
        state="hangs on a request right after one that its client left",
    ),
    alone=True,
)
def hang_after_hang_up(submit: Callable[[tuple[RunningSequence, ...]], None], sequences: tuple[RunningSequence, ...]) -> None:
    """Never answers the first request after a client left in the middle of an answer."""
    if _client_left.is_set():
        _client_left.clear()  # the request is not queued
    else:
        submit(sequences)
