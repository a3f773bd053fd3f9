"""Faults that end or silence a server only under some traffic: after many requests, in long answers, in company, behind a document."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_DEAD = dict.fromkeys(Family, "Its requests meet the outage too, or find no restart left.")
_SCATTERED = "scattered failures"

ROWS = (
    # Reports of servers that die after minutes or hours, at no request in particular.
    PlantedFault(
        id="die-after-requests",
        does="Kills the server at its 170th request, whatever that asks for.",
        expected=in_(Place.REFERENCE, may=_DEAD, liveness=_SCATTERED),
        alone=True,
        mirrors=("ggml-org/llama.cpp#23500", "ggml-org/llama.cpp#23889", "sgl-project/sglang#6309"),
    ),
    PlantedFault(
        id="die-in-long-answer",
        does="Kills the server at the 256th token of an answer.",
        expected=in_(Place.REFERENCE, may=_DEAD, liveness="the server dies on a request with max_tokens"),
        alone=True,
        mirrors=("noonghunna/club-3090#1052 (second fault)",),
    ),
    PlantedFault(
        id="hang-in-long-answer",
        does="Never goes on behind the 256th token of an answer, nor with any request behind it.",
        expected=in_(Place.REFERENCE, may=_DEAD, liveness="the server hangs on a request with max_tokens"),
        alone=True,
        mirrors=("sgl-project/sglang#35822",),
    ),
    PlantedFault(
        id="hang-on-first-greedy",
        does="Never answers the first request at temperature 0 behind its boot, nor any other then.",
        expected=in_(Place.REFERENCE, may=_DEAD, greedy="the server hangs on"),
        alone=True,
        mirrors=("sgl-project/sglang#29347",),
    ),
    PlantedFault(
        id="fail-on-full-drafts",
        does="Fails with every request in flight once eight drafts in a row were accepted whole.",
        expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies on a request|the server answers 5xx to a request"),
        alone=True,
        mirrors=("ggml-org/llama.cpp#10547",),
    ),
    PlantedFault(
        id="die-behind-document",
        does="Kills the server where two draft tokens or more stand behind the end of a document.",
        expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies on"),
        alone=True,
        mirrors=("openvinotoolkit/openvino.genai#4081",),
    ),
    PlantedFault(
        id="die-on-documents-together",
        does="Kills the server when a step verifies the drafts of two requests with a grammar.",
        expected=in_(Place.REFERENCE, may=_DEAD, structured="the server dies with several requests in flight"),
        alone=True,
        mirrors=("vllm-project/vllm#32303",),
    ),
)
