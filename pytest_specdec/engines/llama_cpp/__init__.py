"""llama.cpp: the command line of ``llama-server``, the dialect of its OpenAI routes, its drafters, and the headers of its model files."""

from __future__ import annotations

from pytest_specdec.engines.llama_cpp.adapter import LlamaCpp
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.llama_cpp.rules import RULES

__all__ = ["RULES", "LlamaCpp", "LlamaCppDialect"]
