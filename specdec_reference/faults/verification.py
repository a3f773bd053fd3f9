"""Faults of verification: another acceptance rule, another position, another number."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

UNVERIFIED = "draft tokens accepted without verification"
RECOVERED = "the token in place of a rejected draft token is not the target's"
EVERYWHERE = "nearly every token is wrong"
AT_DRAFTS = f"{EVERYWHERE}|draft positions are verified wrongly"
TYPICAL = "acceptance leak|typical acceptance|temperature or truncation"
BEST_ONLY = "greedy acceptance|temperature or truncation"
REPEATED = "acceptance leak|accept-all|resample from p|inverted ratio"
REUSED = "reused random numbers"

ROWS = (
    PlantedFault(
        id="inverted-ratio",
        does="Accepts a draft token with probability min(1, q/p): the ratio is upside down.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="inverted ratio|accept-all")
        | in_(Place.SIMULATION, sampling="inverted ratio"),
        mirrors=("SafeAILab/EAGLE#50",),
    ),
    PlantedFault(
        id="synthetic-acceptance",
        does="Accepts each draft token with probability 0.7, as a benchmark's synthetic sampler does.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
        ),
    ),
    PlantedFault(
        id="last-draft-unverified",
        does="Accepts the last draft token of a window unseen once those before it were accepted.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
        ),
    ),
    PlantedFault(
        id="first-draft-unverified",
        does="Accepts the first draft token of a window unseen.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
        ),
    ),
    PlantedFault(
        id="typical-acceptance",
        does="Accepts a sampled draft token that is among the target's five most probable ones.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=TYPICAL) | in_(Place.SIMULATION, sampling="typical acceptance"),
    ),
    PlantedFault(
        id="greedy-acceptance",
        does="Accepts a draft token above temperature 0 only where it is the target's most probable one.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=BEST_ONLY) | in_(Place.SIMULATION, sampling="greedy acceptance"),
        mirrors=("lablup/mlxcel#902",),
    ),
    PlantedFault(
        id="rejection-does-not-stop",
        does="Takes as many draft tokens as passed, whether or not one before them was rejected.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
        ),
    ),
    PlantedFault(
        id="rejected-emitted",
        does="Emits the rejected draft token itself in its place.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling=REPEATED)
        | in_(
            Place.VLLM,
            may=TOKENS_WRONG | dict.fromkeys((Family.GREEDY, Family.SAMPLING), "Its tokens are wrong there too."),
            parameters=RECOVERED,
        ),
    ),
    PlantedFault(
        id="verified-one-ahead",
        does="Holds each draft token against the target's distribution one position behind its own.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=AT_DRAFTS, parameters=AT_DRAFTS, sampling="temperature or truncation"),
        mirrors=("NVIDIA/TensorRT-LLM#11125", "huggingface/text-generation-inference#2997"),
    ),
    PlantedFault(
        id="truncation-ignored-at-drafts",
        does="Leaves top_k and top_p out where draft tokens are verified.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="temperature or truncation"),
        mirrors=("vllm-project/vllm#10198",),
    ),
    PlantedFault(
        id="draft-noise-accepts",
        does="Accepts draft tokens by the random numbers that drew them.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=REUSED),
        mirrors=("local-inference-lab/vllm#205",),
    ),
    PlantedFault(
        id="rejecting-number-recovers",
        does="Draws the recovered token by the random number that rejected the draft token.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=REUSED),
        mirrors=("local-inference-lab/vllm#205",),
    ),
)
