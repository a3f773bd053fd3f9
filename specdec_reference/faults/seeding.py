"""Faults of seeds and random streams."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_AGAIN = {Family.SAMPLING: "Answers that are given again are no independent draws.", Family.STRUCTURED: "The same."}

ROWS = (
    # llama.cpp and vLLM both dropped a request's generator on the way to the rejection sampler.
    PlantedFault(
        id="seed-ignored",
        does="Draws a request with a seed like one without.",
        expected=in_(Place.REFERENCE, Place.VLLM, seeds="the seed is not honoured"),
    ),
    PlantedFault(
        id="constant-stream",
        does="Starts the random stream of every request at the same place.",
        expected=in_(Place.REFERENCE, may=_AGAIN, seeds="different seeds give the same answer"),
    ),
    PlantedFault(
        id="unseeded-alike",
        does="Draws every request without a seed from one and the same stream.",
        expected=in_(Place.REFERENCE, may=_AGAIN, seeds="requests without a seed give the same answer again"),
        mirrors=("NVIDIA/TensorRT-LLM#19487",),
    ),
    PlantedFault(
        id="choices-alike",
        does="Draws all choices of a request from one stream.",
        expected=in_(Place.REFERENCE, seeds="n choices are copies"),
    ),
    PlantedFault(
        id="stream-of-first-row",
        does="Gives every row of a batch the random numbers of the first.",
        expected=in_(
            Place.REFERENCE, Place.VLLM, may=_AGAIN, seeds="requests share one random stream|a seeded answer depends on its neighbours"
        ),
    ),
    PlantedFault(
        id="seed-by-row",
        does="Turns a request's random numbers by its row in the batch.",
        expected=in_(Place.REFERENCE, seeds="a seeded answer depends on its neighbours"),
    ),
    PlantedFault(
        id="one-number-a-window",
        does="Accepts the draft tokens of a window and draws the token behind them by one random number.",
        expected=in_(Place.REFERENCE, sampling="reused random numbers"),
    ),
)
