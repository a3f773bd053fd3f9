"""Faults of the draft: tokens that nothing accepts, or another q than they were drawn from."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

UNACCEPTED = "no draft token accepted"
UNDRAFTED = "nothing drafted"
UNDRAFTED_TOO = dict.fromkeys(
    set(Family) - {Family.GREEDY, Family.PARAMETERS, Family.SAMPLING},
    "Its requests are drafted for as badly, so that what it judges is no longer speculative.",
)

ROWS = (
    PlantedFault(
        id="dead-drafts",
        does="Drafts tokens that the target does not take; the answers are right.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=UNDRAFTED_TOO, greedy=UNACCEPTED, parameters=UNACCEPTED, sampling=UNACCEPTED),
        mirrors=("sgl-project/sglang#32440", "vllm-project/vllm#43455", "sgl-project/sglang#37736"),
    ),
    PlantedFault(
        id="drafts-dead-when-sampling",
        does="Drafts tokens that the target does not take above temperature 0; the answers are right.",
        expected=in_(Place.REFERENCE, may=UNDRAFTED_TOO, sampling=UNACCEPTED),
        mirrors=("jundot/omlx#3370",),
    ),
    PlantedFault(
        id="no-drafts-when-sampling",
        does="Drafts nothing above temperature 0; the answers are right.",
        expected=in_(Place.REFERENCE, may=UNDRAFTED_TOO, sampling=UNDRAFTED),
        mirrors=("raullenchai/Rapid-MLX#2140",),
    ),
    PlantedFault(
        id="q-one-early",
        does="Verifies each draft token by the draft's distribution of the token before it.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="acceptance leak|acceptance rule"),
        mirrors=("huggingface/transformers#33534", "deepseek-ai/DeepSpec#31"),
    ),
)
