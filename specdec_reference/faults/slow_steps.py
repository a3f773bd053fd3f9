"""Planted faults of speed alone, for suites to detect: tokens and drafts are right, and a verify step takes longer than it could."""

from __future__ import annotations

import time
from typing import Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_

_LATE_S: Final = 0.05
"""Several plain steps: the fault is time that a step takes too long, so it sleeps."""
_MAY: dict[Family, str] = {Family.LIVENESS: "a request may outlast its deadline, which follows what the baseline needed"}


@fault(
    before="verify",
    expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, speed="the step is too dear"),
    alone=True,
    timed=True,
    mirrors=("vllm-project/vllm#36165", "vllm-project/vllm#30330", "ggml-org/llama.cpp#22673"),
)
def slow_verify() -> None:
    """Takes several plain steps longer for every verify step, as one that runs outside its captured graph."""
    time.sleep(_LATE_S)
