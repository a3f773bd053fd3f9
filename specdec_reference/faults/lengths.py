"""Faults of stops, ends and limits inside a verify window."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

OTHERS = [family for family in Family if family not in {Family.LENGTHS, Family.SPEED}]
EVERYWHERE: dict[Family, str] = dict.fromkeys(OTHERS, "Every family sees how its own answers end.")
LIVE: dict[Family, str] = dict.fromkeys(
    (Family.LIVENESS, Family.INVARIANTS, Family.PARAMETERS), "Some of its requests have a stop string, or ignore the end of sequence."
)

ROWS = (
    PlantedFault(
        id="stop-missed-mid-window",
        does="Looks for a stop string at the last token of a window only.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="a stop string inside a window is missed"),
        mirrors=("sgl-project/sglang#23802", "openvinotoolkit/openvino.genai#1719"),
    ),
    PlantedFault(
        id="stop-split-missed",
        does="Looks for a stop string in each window alone, so that one over two windows is missed.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="a stop string over two windows is missed"),
    ),
    PlantedFault(
        id="limit-before-stop",
        does="Looks for no stop string in a window that reaches max_tokens.",
        expected=in_(Place.REFERENCE, may=LIVE, lengths="the limit goes before a stop in the same window"),
        mirrors=("sgl-project/sglang#31599",),
    ),
    PlantedFault(
        id="stop-not-cut",
        does="Leaves the stop string at the end of the text.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="the stop string stays in the text"),
    ),
    PlantedFault(
        id="stop-cut-early",
        does="Cuts the text one character before the stop string.",
        expected=in_(Place.REFERENCE, may=LIVE, lengths="the stop string is cut from the wrong place"),
    ),
    PlantedFault(
        id="text-behind-stop",
        does="Hands out a whole window whose text has a stop string, and stops behind it.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=LIVE, lengths="what stands behind the stop is delivered too"),
        mirrors=("openvinotoolkit/openvino.genai#1951",),
    ),
    PlantedFault(
        id="include-stop-ignored",
        does="Cuts the stop string off also where include_stop_str_in_output asks for it.",
        expected=in_(Place.REFERENCE, may=LIVE, lengths="include_stop_str_in_output is ignored"),
    ),
    PlantedFault(
        id="stop-said-length",
        does="Gives the finish_reason length to an answer that a stop string ended.",
        expected=in_(Place.REFERENCE, may=LIVE, lengths="finish_reason says length for a stop"),
    ),
    PlantedFault(
        id="stop-ids-at-last-only",
        does="Looks for stop_token_ids at the last token of a window only.",
        expected=in_(Place.REFERENCE, Place.VLLM, lengths="a stop token inside a window is ignored"),
    ),
    PlantedFault(
        id="stop-ids-ignored",
        does="Stops at none of the stop_token_ids.",
        expected=in_(Place.REFERENCE, lengths="a stop token inside a window is ignored"),
    ),
    PlantedFault(
        id="end-missed-mid-window",
        does="Looks for an end of sequence at the last token of a window only.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="an end of sequence inside a window is ignored"),
        mirrors=("huggingface/transformers#31301", "huggingface/transformers#47912"),
    ),
    PlantedFault(
        id="ignore-eos-dropped",
        does="Ends an answer at an accepted draft token that is an end of sequence, whatever ignore_eos says.",
        expected=in_(Place.REFERENCE, may=LIVE, lengths="an end of sequence ends an answer despite ignore_eos"),
    ),
    PlantedFault(
        id="min-tokens-in-steps",
        does="Counts min_tokens in verify steps.",
        expected=in_(Place.REFERENCE, lengths="min_tokens is counted in steps"),
    ),
    PlantedFault(
        id="min-tokens-at-bonus",
        does="Keeps ends of sequence from the last position of a window only until min_tokens is reached.",
        expected=in_(
            Place.REFERENCE,
            Place.VLLM,
            may={Family.INVARIANTS: "It knows the limits that requests ask for."},
            lengths="min_tokens is not reached",
        ),
    ),
    PlantedFault(
        id="limit-overrun",
        does="Hands out the whole window in which max_tokens is reached.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="max_tokens is overrun by part of a window"),
    ),
    PlantedFault(
        id="limit-undershot",
        does="Ends an answer by length where another window as long as the last no longer fits.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=EVERYWHERE, lengths="max_tokens is undershot by part of a window"),
    ),
    PlantedFault(
        id="stop-reason-lost",
        does="Names no stop_reason in the stream of an answer that ends within a window.",
        expected=in_(Place.REFERENCE, lengths="stop_reason is missing"),
    ),
    PlantedFault(
        id="stop-reason-first-id",
        does="Names the lowest of the stop_token_ids as the stop_reason of a stream, whichever ended the answer.",
        expected=in_(Place.REFERENCE, lengths="stop_reason names another stop than the one that ended the answer"),
    ),
    PlantedFault(
        id="usage-counts-discarded",
        does="Counts in the usage the accepted tokens that the end of the answer discarded.",
        expected=in_(Place.REFERENCE, may=EVERYWHERE, lengths="usage counts tokens that were not answered"),
        mirrors=("ikawrakow/ik_llama.cpp#2358",),
    ),
)
