"""vLLM: its command line, the dialect of its OpenAI server, its speculative setting, and the rules of its pair lint."""

from __future__ import annotations

from pytest_specdec.engines.vllm.adapter import Vllm
from pytest_specdec.engines.vllm.dialect import METRICS_FLAG, VllmDialect, parse
from pytest_specdec.engines.vllm.rules import RULES
from pytest_specdec.engines.vllm.speculative_setting import draft, speculative_setting

__all__ = ["METRICS_FLAG", "RULES", "Vllm", "VllmDialect", "draft", "parse", "speculative_setting"]
