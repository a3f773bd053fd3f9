"""Patches of the CPU build of vLLM 0.32.0, chosen by ``SPECDEC_VLLM_PATCHES``: fixes of its bugs, a quicker boot, faults to be caught.

vLLM loads this in the API server, the engine core and the worker. Without the variable nothing is touched: that is the stock build.
An unknown name stops the server, so that a misspelt fault can not pass for a healthy engine. Faults stand in a module per topic, which is
found without being listed.
"""

from __future__ import annotations

import os
import pkgutil
from importlib import import_module

from specdec_vllm_patches.registry import PATCHES


def apply() -> None:
    """Apply the patches named in ``SPECDEC_VLLM_PATCHES``, separated by commas; called by vLLM in each of its processes."""
    wanted = [name for name in os.environ.get("SPECDEC_VLLM_PATCHES", "").split(",") if name]
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    unknown = sorted(set(wanted) - set(PATCHES))
    if unknown:
        msg = f"SPECDEC_VLLM_PATCHES: unknown {', '.join(unknown)}; known are {', '.join(PATCHES)}"
        raise SystemExit(msg)
    for name in wanted:
        PATCHES[name]()
