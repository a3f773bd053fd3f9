"""SGLang: its command line, the dialect of its server, its speculative flags, and the rules of its pair lint."""

from __future__ import annotations

from pytest_specdec.engines.sglang.adapter import Sglang
from pytest_specdec.engines.sglang.dialect import SglangDialect
from pytest_specdec.engines.sglang.rules import RULES
from pytest_specdec.engines.sglang.speculative_flags import draft

__all__ = ["RULES", "Sglang", "SglangDialect", "draft"]
