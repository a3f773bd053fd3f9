"""A boot without repeated imports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specdec_vllm_patches.registry import patch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@patch
def fork_processes() -> None:
    """Fork the engine core and the worker instead of spawning them.

    A spawned process imports torch and vLLM again, which is two thirds of a boot on two cores. The CPU build spawns whatever
    ``VLLM_WORKER_MULTIPROC_METHOD`` says (``platforms/cpu.py``), so that OpenMP can be bound anew in each process; here it has one thread.
    """
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: VllmConfig) -> None:
        stock(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
