"""Faults that take the server down."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

RESTARTS = dict.fromkeys(
    (Family.LIVENESS, Family.TOOLS, Family.CONCURRENCY, Family.PRESSURE, Family.SPEED),
    "Its requests with a grammar kill it too, or find no restart left.",
)
IN_FLIGHT = dict.fromkeys(set(Family) - {Family.GREEDY}, "Every suite that asks several at once kills it.")

ROWS = (
    PlantedFault(
        id="die-on-json",
        does="Kills the server when a request brings a grammar.",
        expected=in_(Place.REFERENCE, may=RESTARTS, structured="the server dies on"),
        alone=True,
        mirrors=("vllm-project/vllm#9423", "vllm-project/vllm#11484"),
    ),
    PlantedFault(
        id="die-in-company",
        does="Kills the server when a step verifies the drafts of four sequences or more.",
        expected=in_(Place.REFERENCE, may=IN_FLIGHT, greedy="dies with several requests in flight"),
        alone=True,
        mirrors=("snowflakedb/ArcticInference#145", "sgl-project/sglang#34152", "vllm-project/vllm#42603"),
    ),
)
