"""Faults of speed alone: the tokens and the drafts are right, and a verify step takes longer than it could."""

from __future__ import annotations

import time
from typing import Any

from specdec_vllm_patches.registry import patch

LATE_S = 0.15
"""Several plain steps: the fault is time that a step takes too long, so it sleeps."""


@patch
def slow_verify() -> None:
    """Verify as it should be, and late."""
    from vllm.v1.sample import rejection_sampler

    stock = rejection_sampler.rejection_sample

    def rejection_sample(*args: Any, **kwargs: Any) -> Any:
        time.sleep(LATE_S)  # the fault itself
        return stock(*args, **kwargs)

    rejection_sampler.rejection_sample = rejection_sample
