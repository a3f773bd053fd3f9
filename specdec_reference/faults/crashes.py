"""Planted faults of requests that take the server down, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.prefix_cache import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from specdec_reference.emission import EmittedToken
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.sequence import Delta, RunningSequence

_IN_COMPANY: Final = 4
"""Sequences of one step."""
_SECOND: Final = 2
_sizes = [0]
"""Sequences of the verify step before: a server has one engine."""
RESTARTS = dict.fromkeys(
    (Family.LIVENESS, Family.TOOLS, Family.CONCURRENCY, Family.PRESSURE, Family.SPEED),
    "Its requests with a grammar kill it too, or find no restart left.",
)
TOGETHER = dict.fromkeys(set(Family) - {Family.CONCURRENCY}, "Every suite that asks several at once meets it.")
REUSING = dict.fromkeys(set(Family) - {Family.STATE}, "Other families ask a prompt again too.")
EVERYTHING = dict.fromkeys(set(Family) - {Family.LIVENESS}, "Its requests meet the outage too, or find no restart left.")
IN_FLIGHT = dict.fromkeys(set(Family) - {Family.GREEDY}, "Every suite that asks several at once kills it.")


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, may=RESTARTS, structured="the server dies on"),
    alone=True,
    mirrors=("vllm-project/vllm#9423", "vllm-project/vllm#11484", "sgl-project/sglang#29660"),
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


@fault(
    before="engine.sequences",
    expected=in_(Place.REFERENCE, may=TOGETHER, concurrency="answers 5xx with several requests in flight"),
    alone=True,
    mirrors=("NVIDIA/TensorRT-LLM#12063",),
)
def no_free_slot(engine: ReferenceEngine) -> None:
    """Answers a request that comes while another one runs with a 500."""
    if any(row.finish_reason is None for row in engine.batch.rows):
        msg = "no free slots"
        raise RuntimeError(msg)


@fault(
    after="batch.step",
    expected=in_(Place.REFERENCE, may=TOGETHER, concurrency="answers 5xx with several requests in flight"),
    alone=True,
    mirrors=("spiritbuun/buun-llama-cpp#57",),
)
def second_request_fails(deltas: list[Delta], engine: ReferenceEngine) -> list[Delta]:
    """Gives a request up after its first token where another one was there before it."""
    failing = [row for row in engine.batch.rows[1:] if len(row.emitted) == 1]
    engine.batch.drop(set(failing))
    return [*deltas, *(row.give_up() for row in failing)]


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=TOGETHER, concurrency="dies with several requests in flight"),
    alone=True,
    mirrors=("vllm-project/vllm#47014",),
)
def die_as_batch_grows(rows: Rows[RunningSequence]) -> None:
    """Kills the server when a verify step has more than four sequences right after one that had fewer."""
    before, _sizes[0] = _sizes[0], len(rows)
    if 0 < before <= _IN_COMPANY < len(rows):
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    before="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=TOGETHER, concurrency="dies with several requests in flight"),
    alone=True,
    mirrors=("vllm-project/vllm#34871",),
)
def die_on_joining_prompt(engine: ReferenceEngine) -> None:
    """Kills the server when a prompt is taken in between two verify steps of other requests."""
    if any(row.drafted for row in engine.batch.rows):
        os.kill(os.getpid(), signal.SIGKILL)


@fault(
    after="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=REUSING, state="the server dies on a request right after another|scattered failures"),
    alone=True,
    mirrors=("vllm-project/vllm#41233",),
)
def die_on_reused_prefix(reused: int, sequence: RunningSequence) -> int:
    """Kills the server when all of a prompt but its last block is in the prefix cache."""
    if reused and reused + BLOCK_TOKENS >= len(sequence.tokens):
        os.kill(os.getpid(), signal.SIGKILL)
    return reused


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, may=EVERYTHING, liveness="the server answers 5xx to a request|the server dies on a request"),
    alone=True,
    mirrors=(
        *("ml-explore/mlx-lm#1446", "xLLM-AI/xllm#1477", "ai-dynamo/dynamo#12198", "sgl-project/sglang#30222"),
        "sgl-project/sglang#4328",
    ),
)
def first_verify_fails() -> None:
    """Fails at the first verify step of a boot, and answers nothing after it."""
    msg = "index 4096 is out of bounds"
    raise IndexError(msg)


@fault(
    after="end",
    expected=in_(Place.REFERENCE, may=EVERYTHING, liveness="the server dies on a request with max_tokens=2"),
    alone=True,
    mirrors=("vllm-project/vllm#40768",),
)
def die_on_placeholders(reason: str | None, token: EmittedToken) -> str | None:
    """Kills the server where an answer ends with its second token, while the drafts after it are placeholders still."""
    if reason == "length" and token.count == _SECOND:
        os.kill(os.getpid(), signal.SIGKILL)
    return reason
