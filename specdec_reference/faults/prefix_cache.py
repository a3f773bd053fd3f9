"""Faults of the prefix cache: what one request leaves for the next."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

WRONG = "the second identical prompt is answered wrongly|an answer depends on what was asked before"
REUSED = "Other families ask a prompt again too, or prompts that begin alike."
ELSEWHERE = dict.fromkeys(
    (
        Family.GREEDY,
        Family.SAMPLING,
        Family.PARAMETERS,
        Family.LOGPROBS,
        Family.STRUCTURED,
        Family.LIVENESS,
        Family.SEEDS,
        Family.LENGTHS,
        Family.INVARIANTS,
        Family.TOOLS,
        Family.CONCURRENCY,
        Family.CONTEXT,
        Family.PRESSURE,
    ),
    REUSED,
)

ROWS = (
    PlantedFault(
        id="prefix-without-parent",
        does="Knows a block of the prefix cache by its own tokens, whatever came before them.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=ELSEWHERE, state=WRONG),
        mirrors=("vllm-project/vllm#39690",),
    ),
    PlantedFault(
        id="prefix-partial-block",
        does="Takes the last, partial block of a known prompt from whichever sequence had the slot before.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
        mirrors=("vllm-project/vllm#39690", "vllm-project/vllm#57128"),
    ),
    PlantedFault(
        id="prefix-off-by-one",
        does="Counts one token more as cached than the prefix cache holds.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
        mirrors=("vllm-project/vllm#57128",),
    ),
    PlantedFault(
        id="prefix-damaged-by-length",
        does="Overwrites the blocks of other prompts with those of a long one.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
        mirrors=("ggml-org/llama.cpp#27296", "ggml-org/llama.cpp#23577"),
    ),
    PlantedFault(
        id="warm-empty",
        does="Ends the answer to a prompt that is all in the prefix cache after one token.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state="the second identical prompt is answered with nothing, or cut off"),
        mirrors=("lmstudio-ai/mlx-engine#91",),
    ),
    PlantedFault(
        id="warm-accept-all",
        does="Accepts every draft token of a sequence that began with cached tokens.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
        mirrors=("vllm-project/vllm#35800",),
    ),
    PlantedFault(
        id="warm-draft-ahead",
        does="Drafts one token too far ahead for a sequence that began with cached tokens.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state="drafts are no longer accepted when a prompt is asked again"),
        mirrors=("NVIDIA/TensorRT-LLM#18280",),
    ),
    PlantedFault(
        id="drafter-keeps-long-request",
        does="Drafts from the tokens of a long request for the three requests behind it.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state="drafts are no longer accepted after a long request"),
        mirrors=("ggml-org/llama.cpp#27296", "lmstudio-ai/mlx-engine#91"),
    ),
    PlantedFault(
        id="prefix-defeated",
        does="Looks nothing up in the prefix cache while it speculates.",
        expected=in_(Place.REFERENCE, Place.VLLM, state="speculation defeats the prefix cache"),
        mirrors=("vllm-project/vllm#54360", "vllm-project/vllm#40624", "sgl-project/sglang#32459", "sgl-project/sglang#17193"),
    ),
    PlantedFault(
        id="prefix-overcounted",
        does="Reports 512 cached tokens more than were reused.",
        expected=in_(Place.REFERENCE, may=ELSEWHERE, state="more cached tokens are reported than the prompt has"),
    ),
)
