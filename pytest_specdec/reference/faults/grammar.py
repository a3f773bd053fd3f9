"""Faults of structured output: positions of a window that the grammar does not bind."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from pytest_specdec.reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"

ROWS = (
    PlantedFault(
        id="grammar-skipped",
        does="Masks the last position of a verify step by the grammar, and none of the draft tokens' positions.",
        expected=in_(
            Place.VLLM,
            may={Family.LIVENESS: "A token outside its grammar makes vLLM answer with a 5xx or die."},
            structured=SERVER_ERROR,
        ),
        mirrors=("NVIDIA/TensorRT-LLM#7878",),
    ),
)
