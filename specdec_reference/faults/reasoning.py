"""Faults of reasoning: an end of the reasoning in the middle of a step."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TEXT_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="reasoning-leaks",
        does="Streams a step in which the reasoning ends as text, all of it.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the reasoning leaks into the answer"),
        reasons=True,
        mirrors=("vllm-project/vllm#46118",),
    ),
    PlantedFault(
        id="reasoning-end-swallows",
        does="Loses the text that follows the end of the reasoning in the same step.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text is lost|a tool call is delivered as text"),
        reasons=True,
        mirrors=("vllm-project/vllm#46118",),
    ),
    PlantedFault(
        id="reasoning-miscounted",
        does="Counts every token of a streamed answer as reasoning.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="the reasoning tokens are counted wrongly"),
        reasons=True,
        mirrors=("vllm-project/vllm#46118",),
    ),
    PlantedFault(
        id="reasoning-counts-discarded",
        does="Counts accepted tokens that the limit discarded as reasoning, where it cuts an answer short of its text.",
        expected=in_(
            Place.REFERENCE,
            may={**TEXT_WRONG, Family.SAMPLING: "It counts the tokens of its answers."},
            invariants="usage counts other tokens than were answered",
        ),
        reasons=True,
        mirrors=("sgl-project/sglang#39826", "sgl-project/sglang#37450"),
    ),
)
