"""The engines that can be captured, by the name that a config gives."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pytest_specdec.engines.reference import Reference
from pytest_specdec.engines.vllm import Vllm
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.engines.protocol import Engine

__all__ = ["ENGINES", "engine_of"]

ENGINES: tuple[Engine, ...] = (Reference(), Vllm())


def engine_of(kind: str) -> Engine:
    """Return the engine called ``kind``. Raises EngineError with the nearest name and the list."""
    engines = {engine.kind: engine for engine in ENGINES}
    if kind in engines:
        return engines[kind]
    near = difflib.get_close_matches(kind, engines, n=1)
    what = f"no engine {kind!r}" + (f"; did you mean {near[0]}?" if near else "")
    raise EngineError(what, where="engine.kind", found=kind, expected=f"one of {', '.join(sorted(engines))}")
