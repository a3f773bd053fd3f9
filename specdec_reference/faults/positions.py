"""Faults of the verify step's forward: what a position sees, where it stands, what is kept of it."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

AFTER_FULL = "state after a fully accepted draft"
WRONG_CONTEXT = TOKENS_WRONG | dict.fromkeys(
    (Family.PARAMETERS, Family.SAMPLING), "Tokens follow from another context than the answer's; temperature 0 shows where it begins."
)

ROWS = (
    PlantedFault(
        id="kv-short-after-full",
        does="Keeps one entry too few in the KV cache where the whole draft was accepted.",
        expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy=AFTER_FULL),
        mirrors=("vllm-project/vllm#39273",),
    ),
    PlantedFault(
        id="drafts-see-ahead",
        does="Lets each draft position see the token behind it in the verify step.",
        expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="draft positions are verified wrongly"),
        mirrors=("vllm-project/vllm-ascend#15329",),
    ),
    PlantedFault(
        id="positions-behind-after-full",
        does="Places tokens one position early for each fully accepted draft before them.",
        expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy=AFTER_FULL),
        mirrors=("huggingface/transformers#30413",),
    ),
    PlantedFault(
        id="positions-behind-late",
        does="Places tokens a cache block early from the 257th token of an answer on.",
        expected=in_(Place.REFERENCE, may=WRONG_CONTEXT, greedy="tokens wrong", logprobs="reported log-probabilities or verifier numerics"),
    ),
)
