"""Faults of how answers end, and of what is reported as the reason."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import ENDS, Expected, Place, PlantedFault

__all__ = ["ROWS"]

OTHERS = dict.fromkeys(set(Family) - {*ENDS}, "Its answers end there too, where they are long enough.")


def _everywhere(words: str) -> dict[Place, Expected]:
    return {Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, words), may=OTHERS)}


ROWS = (
    PlantedFault(
        id="cut-short",
        does="Ends every answer after a tenth of its max_tokens, with finish_reason length.",
        expected=_everywhere("answers are cut short"),
        mirrors=("vllm-project/vllm#10442",),
    ),
    PlantedFault(
        id="stop-short",
        does="Ends every answer after a tenth of its max_tokens, with finish_reason stop.",
        expected=_everywhere("answers are cut short"),
    ),
    PlantedFault(
        id="past-the-end",
        does="Emits an end of sequence and goes on behind it up to max_tokens.",
        expected=_everywhere("answers go on after their end"),
        mirrors=("huggingface/transformers#31301", "huggingface/transformers#47912"),
    ),
    PlantedFault(
        id="wrong-finish",
        does="Gives every answer the finish_reason length.",
        expected=_everywhere("answers are cut short"),
    ),
)
