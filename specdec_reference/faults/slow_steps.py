"""Faults of speed alone: the tokens and the drafts are right, and a verify step takes longer than it could."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_MAY: dict[Family, str] = {Family.LIVENESS: "a request may outlast its deadline, which follows what the baseline needed"}

ROWS = (
    PlantedFault(
        id="slow-verify",
        does="Takes several plain steps longer for every verify step, as one that runs outside its captured graph.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, speed="the step is too dear"),
        alone=True,
        timed=True,
        mirrors=("vllm-project/vllm#36165",),
    ),
)
