"""Faults of sampling parameters: dropped, or applied at some positions only."""

from __future__ import annotations

from typing import Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

_DRAWN: Final = {Family.SAMPLING: "it draws from another distribution than its requests ask for"}

ROWS = (
    PlantedFault(
        id="penalties-ignored",
        does="Leaves penalties and biases out at draft positions; the bonus position still has them.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, parameters="penalties or biases are ignored at draft positions")
        | in_(Place.VLLM, parameters="penalties or biases are ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="penalties-dropped",
        does="Drops presence, frequency and repetition penalties of every request.",
        expected=in_(Place.REFERENCE, parameters="penalties or biases are ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="penalties-fed-once-a-step",
        does="Counts the last token of each verify step for the penalties, and none of the others.",
        expected=in_(Place.REFERENCE, parameters="_penalty is ignored|_penalty are ignored|penalties or biases are ignored"),
        mirrors=("sgl-project/sglang#33643",),
    ),
    PlantedFault(
        id="penalties-weaken",
        does="Divides presence and frequency penalties by the mean number of tokens a step.",
        expected=in_(Place.REFERENCE, parameters="_penalty is ignored|_penalty are ignored|penalties or biases are ignored"),
        mirrors=("sgl-project/sglang#33643",),
    ),
    PlantedFault(
        id="frequency-twice",
        does="Takes the frequency penalty twice at draft positions.",
        expected=in_(Place.REFERENCE, parameters="frequency_penalty"),
    ),
    PlantedFault(
        id="repetition-dropped",
        does="Drops the repetition penalty of every request.",
        expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="repetition-ignored-at-drafts",
        does="Leaves the repetition penalty out at draft positions.",
        expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"),
    ),
    PlantedFault(
        id="repetition-counts-rejected",
        does="Penalises the repetition of draft tokens that were rejected and never emitted.",
        expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"),
    ),
    PlantedFault(
        id="logit-bias-ignored-at-drafts",
        does="Leaves logit biases out at draft positions.",
        expected=in_(Place.REFERENCE, parameters="logit_bias is ignored at draft positions"),
        mirrors=("vllm-project/vllm#42744",),
    ),
    PlantedFault(
        id="logit-bias-dropped",
        does="Drops the logit biases of every request.",
        expected=in_(Place.REFERENCE, parameters="logit_bias is ignored"),
        mirrors=("vllm-project/vllm#42744",),
    ),
    PlantedFault(
        id="bad-words-dropped",
        does="Drops the banned words of every request.",
        expected=in_(Place.REFERENCE, parameters="bad_words is ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="bad-words-at-first-token",
        does="Bans words at the first position of a verify window only.",
        expected=in_(Place.REFERENCE, Place.VLLM, parameters="bad_words is ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="allowed-ids-dropped",
        does="Drops the allowed token ids of every request.",
        expected=in_(Place.REFERENCE, parameters="allowed_token_ids is ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
    PlantedFault(
        id="allowed-ids-not-at-bonus",
        does="Allows every token at the bonus position, whatever ids the request allows.",
        expected=in_(Place.REFERENCE, parameters="allowed_token_ids is ignored"),
    ),
    PlantedFault(
        id="min-p-dropped",
        does="Drops the min_p of every request.",
        expected=in_(Place.REFERENCE, parameters="min_p is ignored"),
        mirrors=("vllm-project/vllm#42744",),
    ),
    PlantedFault(
        id="min-p-ignored-at-drafts",
        does="Cuts nothing by min_p at draft positions.",
        expected=in_(Place.REFERENCE, parameters="min_p is ignored"),
        mirrors=("vllm-project/vllm#42744",),
    ),
    PlantedFault(
        id="min-p-fails",
        does="Answers every request with min_p with a 500.",
        expected=in_(Place.REFERENCE, parameters="min_p is answered with a server error"),
    ),
    PlantedFault(
        id="top-k-without-temperature",
        does="Drops the top_k of requests that leave out the temperature.",
        expected=in_(Place.REFERENCE, parameters="top_k is ignored"),
    ),
    PlantedFault(
        id="top-p-ignored-at-drafts",
        does="Cuts nothing by top_p at draft positions.",
        expected=in_(Place.REFERENCE, may=_DRAWN, parameters="top_p is ignored"),
    ),
    PlantedFault(
        id="top-p-before-temperature",
        does="Finds the nucleus of top_p before the temperature is applied.",
        expected=in_(Place.REFERENCE, may=_DRAWN, parameters="top_p is wrong at temperatures other than 1"),
    ),
    PlantedFault(
        id="temperature-twice",
        does="Divides the logits by the temperature twice.",
        expected=in_(Place.REFERENCE, may=_DRAWN, parameters="wrong at temperatures other than 1"),
    ),
    PlantedFault(
        id="temperature-ignored-at-drafts",
        does="Draws at temperature 1 at the draft positions of sampled requests.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_DRAWN, parameters="temperature"),
    ),
)
