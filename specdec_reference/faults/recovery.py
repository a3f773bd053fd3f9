"""Faults of the recovered token and the bonus token."""

from __future__ import annotations

from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

RECOVERED = "the token in place of a rejected draft token is not the target's"
BONUS = "the token behind a fully accepted draft is not the target's"

ROWS = (
    PlantedFault(
        id="residual-not-clipped",
        does="Recovers from the absolute value of p - q instead of max(p - q, 0).",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="resample from p|acceptance leak"),
    ),
    PlantedFault(
        id="residual-not-normalised",
        does="Draws the recovered token from max(p - q, 0) without making it sum to one: what is missing falls on the last token.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="residual not normalised|improbable tokens")
        | in_(Place.SIMULATION, sampling="residual not normalised"),
    ),
    PlantedFault(
        id="id-zero-on-rejection",
        does="Emits the token with id 0 in place of a rejected draft token.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="improbable tokens"),
        mirrors=("vllm-project/vllm#41834",),
    ),
    PlantedFault(
        id="residual-of-first",
        does="Recovers behind any rejection from the residual of the first draft position.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling="residual|recovered token"),
    ),
    PlantedFault(
        id="bonus-from-q",
        does="Draws the bonus token from the draft's distribution.",
        expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=BONUS, parameters=BONUS, sampling="bonus")
        | in_(Place.SIMULATION, sampling="bonus from q"),
    ),
    PlantedFault(
        id="greedy-bonus",
        does="Takes the target's most probable token for the bonus at any temperature.",
        expected=in_(Place.REFERENCE, Place.SIMULATION, sampling="greedy bonus"),
    ),
)
