"""What a request for the server's own sampling parameters states of them on the wire: nothing, whichever engine it is sent to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.mlx_lm import MlxLmDialect
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.sglang.dialect import SglangDialect
from pytest_specdec.engines.tensorrt_llm.dialect import TensorRtLlmDialect
from pytest_specdec.engines.transformers import TransformersDialect
from pytest_specdec.model.workload import Depth, Route
from pytest_specdec.prompts.calibration import default_draws

TARGET = Path(__file__).parents[2] / "specdec_reference" / "checkpoints" / "target"
DIALECTS = {
    "plain": PlainDialect(),
    "llama_cpp": LlamaCppDialect(),
    "mlx_lm": MlxLmDialect(),
    "sglang": SglangDialect(),
    "tensorrt_llm": TensorRtLlmDialect(str(TARGET), {}, completions_list_tokens=True),
    "transformers": TransformersDialect(str(TARGET), {}, {}),
}
PARAMETERS = {"do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "repeat_penalty", "repeat_last_n"}


def stated(engine, request, *, stream=False):
    """What is sent, with what transformers takes in a field of its own."""
    body = DIALECTS[engine].sent(request, stream=stream)
    return {**body, **json.loads(body.get("generation_config", "{}"))}


@pytest.mark.parametrize("engine", DIALECTS)
def test_a_request_for_the_servers_defaults_states_no_sampling_parameter(engine):
    requests = default_draws(Depth.SMOKE).requests
    assert {request.route for request in requests} == {Route.CHAT, Route.COMPLETIONS}, "on both routes of dialects"
    sent = [stated(engine, request, stream=stream) for request in requests for stream in (False, True)]
    assert [sorted(PARAMETERS & body.keys()) for body in sent if PARAMETERS & body.keys()] == []
    if engine != "plain":
        neutral = stated(engine, replace(requests[0], server_defaults=False))
        assert neutral["temperature"] == neutral["top_p"] == 1.0, "any other request is neutral"
