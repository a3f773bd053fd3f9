"""One reader of replies for every dialect: whatever a server sends in place of JSON is nothing, and never an exception of Python's."""

from __future__ import annotations

import pytest

from pytest_specdec.engines import json_reply, mlx_lm
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.plain_dialect import PlainDialect, owner
from pytest_specdec.engines.sglang.dialect import SglangDialect
from pytest_specdec.engines.tensorrt_llm.dialect import TensorRtLlmDialect
from pytest_specdec.engines.vllm import VllmDialect

HOSTILE = ("[" * 200_000, '{"data":' * 200_000, "[0," * 2**20, '{"version": ' + "9" * 10_000 + "}", "<html>", '"text"', "3", "null", "")


@pytest.mark.examples(2)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:12]}… ({len(text)})")
def test_every_reader_of_a_reply_takes_hostile_text_for_nothing(text):
    trtllm = TensorRtLlmDialect("nowhere", {}, completions_list_tokens=False)
    for dialect in (PlainDialect(), VllmDialect(), SglangDialect(), LlamaCppDialect(), trtllm):
        assert dialect.version(text) == ""
        assert not dialect.counters(text)
        assert dialect.traffic(text).generated_tokens is None
    assert owner(lambda _: text) == ""
    assert not mlx_lm.MlxLm().recognises(lambda _: text)
    assert json_reply.document(text) == {}


@pytest.mark.parametrize("text, error", [("[" * 200_000, "nested too deeply"), ("[0," * 2**21, "too many values")])
def test_json_beyond_the_limits_is_told_from_text_that_is_none(text, error):
    with pytest.raises(json_reply.BeyondLimitsError, match=error):
        json_reply.load(text)
    assert json_reply.load('{"a": [1, "[[[["]}') == {"a": [1, "[[[["]}
