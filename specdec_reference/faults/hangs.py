"""Faults that leave requests without an answer while ``/health`` says that all is well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
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
    """Never answers a request for log-probabilities, nor any behind it."""
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
