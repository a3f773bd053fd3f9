"""Faults of batches whose requests differ in kind: with a seed and without, drawn and greedy, with a draft and without."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

_EVERY_BATCH = dict.fromkeys(set(Family) - {Family.SPEED}, "Their requests are in flight together too.")

ROWS = (
    PlantedFault(
        id="seeded-rows-first",
        does="Hands out the last tokens of a batch in which some requests have a seed to those with one first.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="answers go wrong beside requests with a seed"),
        mirrors=("vllm-project/vllm#9441", "vllm-project/vllm#11123"),
    ),
    PlantedFault(
        id="undrafted-rows-first",
        does="Hands out the last tokens of a batch in which some requests have no draft to those without one first.",
        expected=in_(
            Place.REFERENCE,
            may=_EVERY_BATCH,
            concurrency="answers go wrong only in company|answers are swapped between requests|answers go wrong beside",
        ),
        drafting={"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        mirrors=("vllm-project/vllm#41768", "HabanaAI/vllm-fork#1780"),
    ),
    PlantedFault(
        id="drawn-rows-swapped",
        does="Gives each request above temperature 0 of a batch of three or more the last token of the one before.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="improbable tokens"),
        mirrors=("1CatAI/1Cat-vLLM#656",),
    ),
)
