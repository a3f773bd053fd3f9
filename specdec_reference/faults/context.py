"""Faults at the end of the context: the server's, and the draft model's shorter one."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

LONG_PROMPT = {Family.LIVENESS: "One of its prompts is long."}

ROWS = (
    PlantedFault(
        id="context-clamped",
        does="Holds the cache length one window before the end of the context, so that the last positions come again.",
        expected=in_(Place.REFERENCE, context="tokens near the context limit are wrong"),
    ),
    PlantedFault(
        id="context-deadly",
        does="Kills the server where a whole window no longer fits the context.",
        expected=in_(Place.REFERENCE, context="the server dies on"),
        alone=True,
        mirrors=("snowflakedb/ArcticInference#60", "vllm-project/vllm#44185"),
    ),
    PlantedFault(
        id="context-ends-early",
        does="Ends answers by length where a whole window no longer fits the context.",
        expected=in_(Place.REFERENCE, Place.VLLM, context="answers end before the context does"),
    ),
    PlantedFault(
        id="context-refused",
        does="Refuses requests that leave no room for a whole window behind their answer.",
        expected=in_(Place.REFERENCE, context="sequences that fit the context are refused"),
    ),
    PlantedFault(
        id="context-admitted",
        does="Admits requests one token longer than the context.",
        expected=in_(
            Place.REFERENCE,
            may={Family.INVARIANTS: "Its usage counts a sequence longer than the context."},
            context="sequences beyond the context are answered",
        ),
    ),
    PlantedFault(
        id="draft-context-deadly",
        does="Kills the server when a sequence is longer than the draft model's context.",
        expected=in_(Place.REFERENCE, may=LONG_PROMPT, context="the server dies on"),
        drafting={"max_model_len": 128},
        alone=True,
        mirrors=("vllm-project/vllm#24662", "vllm-project/vllm#48894", "NVIDIA/TensorRT-LLM#4879"),
    ),
)
