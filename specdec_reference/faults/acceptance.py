"""Faults of the acceptance rule, the recovered token and the bonus token."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

UNVERIFIED = "draft tokens accepted without verification"
UNLIKELY = "tokens that the grammar allows and the baseline would not choose"
STALE_BONUS = "the token behind a fully accepted draft is not the target's"
SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"

ROWS = (
    PlantedFault(
        id="accept-all",
        does="Accepts every draft token, whatever the target's distribution says.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured=UNLIKELY
        )
        | in_(Place.VLLM, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured="would not choose")
        | in_(Place.SIMULATION, sampling="accept-all"),
    ),
    PlantedFault(
        id="accept-all-unseeded",
        does="Accepts every sampled draft token while no request of the batch has a seed, as an engine's fast sampler might.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=TOKENS_WRONG, sampling="accept-all"),
    ),
    PlantedFault(
        id="accept-all-late",
        does="Accepts every sampled draft token from the 65th token of an answer on.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="accept-all|lenient acceptance"),
    ),
    PlantedFault(
        id="lenient",
        does="Accepts a draft token with probability min(1, 1.5 p/q).",
        expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="lenient acceptance")
        | in_(Place.VLLM, sampling="lenient acceptance|acceptance too lenient"),
    ),
    PlantedFault(
        id="resample-from-p",
        does="Draws the recovered token from p instead of the residual max(p - q, 0).",
        expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="resample from p")
        | in_(Place.VLLM, sampling="resample from p|recovered token"),
    ),
    PlantedFault(
        id="recover-argmax",
        does="Takes the target's most probable token as the recovered one.",
        expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="recover by argmax")
        | in_(Place.VLLM, sampling="recover by argmax|acceptance too lenient"),
    ),
    PlantedFault(
        id="stale-bonus",
        does="Draws the bonus token from the distribution one position early: that of the last draft token.",
        expected=in_(
            Place.REFERENCE,
            may=TOKENS_WRONG,
            greedy=STALE_BONUS,
            parameters=STALE_BONUS,
            sampling="bonus out of place|at the bonus",
            structured="the server dies on",
        )
        | in_(
            Place.VLLM,
            may={Family.LIVENESS: "A bonus token outside its grammar makes vLLM answer with a 5xx or die."},
            greedy=STALE_BONUS,
            parameters=STALE_BONUS,
            sampling="bonus out of place|at the bonus",
            structured=SERVER_ERROR,
        ),
    ),
    PlantedFault(
        id="near-tie",
        does="Accepts a draft token at temperature 0 that lies within 0.2 nats of the target's best one.",
        expected=in_(
            Place.REFERENCE, may=TOKENS_WRONG, greedy="near-ties fall on the other side", parameters="near-ties fall on the other side"
        ),
    ),
)
