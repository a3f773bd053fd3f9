"""Faults of the temperature: a division by zero, requests that are drawn greedily, drafts that are."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

_GREEDY_TOO = dict.fromkeys(set(Family) - {Family.SAMPLING, Family.GREEDY}, "Its requests at temperature 0 are answered with the same.")
_DRAWN_TOO = dict.fromkeys(
    (Family.SAMPLING, Family.PARAMETERS, Family.STRUCTURED), "Its requests above temperature 0 are not drawn either."
)

ROWS = (
    PlantedFault(
        id="divided-by-zero",
        does="Divides the logits of greedy requests by their temperature in the verify step, so that all are NaN, and counts -1 accepted.",
        expected=in_(
            Place.REFERENCE,
            may=_GREEDY_TOO,
            greedy="the token in place of a rejected draft token is not the target's",
            invariants="the speculation counters do not add up",
        ),
        mirrors=("vllm-project/vllm#27077",),
    ),
    PlantedFault(
        id="always-greedy",
        does="Answers every request as at temperature 0.",
        expected=in_(Place.REFERENCE, may=_DRAWN_TOO, seeds="different seeds give the same answer"),
        mirrors=("Pushkinist/rMLX#519",),
    ),
    PlantedFault(
        id="drafts-greedy-q-kept",
        does="Drafts the draft's most probable tokens and verifies them as if they had been drawn.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="temperature or truncation|greedy drafts"),
        mirrors=("z-lab/dflash#74", "huggingface/transformers#33534"),
    ),
)
