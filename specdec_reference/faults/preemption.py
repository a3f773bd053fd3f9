"""Faults of preemption: what a request loses when it is put off for want of cache."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

WRONG = "answers go wrong when memory runs out"
LIVENESS = {Family.LIVENESS: "Failures that no request brings about are counted over the whole run."}

ROWS = (
    PlantedFault(
        id="preempted-token-lost",
        does="Leaves the first token after a preemption out of the stream.",
        expected=in_(Place.REFERENCE, Place.VLLM, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
        mirrors=("vllm-project/vllm#49620",),
    ),
    PlantedFault(
        id="preempted-token-repeated",
        does="Emits the last token of a preempted sequence a second time.",
        expected=in_(Place.REFERENCE, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
        mirrors=("vllm-project/vllm#49620",),
    ),
    PlantedFault(
        id="preempted-starts-over",
        does="Prefills the prompt of a preempted sequence alone, without the tokens that it had emitted.",
        expected=in_(Place.REFERENCE, pressure=f"{WRONG}|answers lose or repeat tokens when memory runs out"),
    ),
    PlantedFault(
        id="preempted-penalties-forgotten",
        does="Counts the tokens of a preempted sequence for its penalties from nothing again.",
        expected=in_(Place.REFERENCE, pressure=WRONG),
        mirrors=("vllm-project/vllm#30916",),
    ),
    PlantedFault(
        id="preempted-accept-all",
        does="Accepts every draft token of a sequence that was preempted.",
        expected=in_(Place.REFERENCE, pressure=f"{WRONG}|documents go wrong when memory runs out"),
        mirrors=("vllm-project/vllm#30916", "vllm-project/vllm#46899"),
    ),
    PlantedFault(
        id="preempted-refused",
        does="Gives a preempted sequence up with a 500.",
        expected=in_(
            Place.REFERENCE, may=LIVENESS, pressure="the server answers 5xx|requests are lost when memory runs out|scattered failures"
        ),
        mirrors=("sgl-project/sglang#2711",),
    ),
)
