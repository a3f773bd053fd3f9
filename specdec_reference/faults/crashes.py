"""Faults that take the server down."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sequence import RunningSequence

_IN_COMPANY: Final = 4
"""Sequences of one step."""
RESTARTS = dict.fromkeys(
    (Family.LIVENESS, Family.TOOLS, Family.CONCURRENCY, Family.PRESSURE, Family.SPEED),
    "Its requests with a grammar kill it too, or find no restart left.",
)
IN_FLIGHT = dict.fromkeys(set(Family) - {Family.GREEDY}, "Every suite that asks several at once kills it.")


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, may=RESTARTS, structured="the server dies on"),
    alone=True,
    mirrors=("vllm-project/vllm#9423", "vllm-project/vllm#11484"),
)
def die_on_json(request: EngineRequest) -> None:
    """Kills the server when a request brings a grammar."""
    if request.grammar is not None:
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=IN_FLIGHT, greedy="dies with several requests in flight"),
    alone=True,
    mirrors=("snowflakedb/ArcticInference#145", "sgl-project/sglang#34152", "vllm-project/vllm#42603"),
)
def die_in_company(rows: Rows[RunningSequence]) -> None:
    """Kills the server when a step verifies the drafts of four sequences or more."""
    if len(rows) >= _IN_COMPANY:
        os.kill(os.getpid(), signal.SIGKILL)
