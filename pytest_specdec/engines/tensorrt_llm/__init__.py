"""TensorRT-LLM: the command line of trtllm-serve, its file of options, the dialect of its OpenAI server, and the rules of its pair lint."""

from __future__ import annotations

from pytest_specdec.engines.tensorrt_llm.adapter import TensorRtLlm
from pytest_specdec.engines.tensorrt_llm.dialect import TensorRtLlmDialect
from pytest_specdec.engines.tensorrt_llm.options import draft, options_text
from pytest_specdec.engines.tensorrt_llm.rules import RULES

__all__ = ["RULES", "TensorRtLlm", "TensorRtLlmDialect", "draft", "options_text"]
