"""Faults that leave requests without an answer while ``/health`` says that all is well."""

from __future__ import annotations

from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="hang-on-logprobs",
        does="Never answers a request for log-probabilities, nor any behind it.",
        expected=in_(Place.REFERENCE, liveness="hangs on request", concurrency="hangs on request"),
        alone=True,
        mirrors=("NVIDIA/TensorRT-LLM#18401",),
    ),
    PlantedFault(
        id="hang-in-company",
        does="Never answers again once six requests are in flight.",
        expected=in_(Place.REFERENCE, concurrency="hangs with several requests in flight"),
        alone=True,
        mirrors=("NVIDIA/TensorRT-LLM#3499", "InternLM/lmdeploy#4883"),
    ),
)
