"""Faults that take the server down."""

from __future__ import annotations

from pytest_specdec.reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="die-on-json",
        does="Kills the server when a request brings a grammar.",
        expected=in_(Place.REFERENCE, liveness="dies on request"),
        alone=True,
        mirrors=("vllm-project/vllm#9423", "vllm-project/vllm#11484"),
    ),
    PlantedFault(
        id="die-in-company",
        does="Kills the server when a step verifies the drafts of four sequences or more.",
        expected=in_(Place.REFERENCE, greedy="dies with several requests in flight"),
        alone=True,
        mirrors=("snowflakedb/ArcticInference#145",),
    ),
)
