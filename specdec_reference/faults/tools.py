"""Faults of tool calls: a parser that takes a step for a token."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

WHOLE_ANSWERS = {Family.INVARIANTS: "It holds text and finish_reason of every answer against its tokens."}

ROWS = (
    PlantedFault(
        id="tool-arguments-lost",
        does="Streams the name of a tool call without the arguments that came in the same step.",
        expected=in_(Place.REFERENCE, tools="the first tool arguments are lost in the stream"),
        mirrors=("vllm-project/vllm#41967",),
    ),
    PlantedFault(
        id="tool-arguments-doubled",
        does="Streams tool arguments twice where a step of several tokens ends in a quotation mark.",
        expected=in_(Place.REFERENCE, tools="the arguments of a tool call are not valid JSON"),
        mirrors=("vllm-project/vllm#39253", "vllm-project/vllm-ascend#7580"),
    ),
    PlantedFault(
        id="tool-arguments-cut",
        does="Loses the end of tool arguments where their last brace comes in a step of several tokens.",
        expected=in_(Place.REFERENCE, tools="the last tool arguments are lost"),
        mirrors=("vllm-project/vllm-ascend#7580",),
    ),
    PlantedFault(
        id="tool-arguments-empty",
        does="Gives a tool call the arguments {} in whole answers.",
        expected=in_(Place.REFERENCE, tools="the arguments of a tool call are empty"),
        mirrors=("vllm-project/vllm#56077",),
    ),
    PlantedFault(
        id="tool-name-twice",
        does="Streams the name of a tool again with the first arguments that follow it.",
        expected=in_(Place.REFERENCE, tools="the name of a tool call is sent more than once"),
        mirrors=("vllm-project/vllm#56077",),
    ),
    PlantedFault(
        id="tool-second-call-lost",
        does="Loses a parallel tool call whose name comes in a step of several tokens.",
        expected=in_(Place.REFERENCE, tools="a tool call is lost"),
        mirrors=("vllm-project/vllm#41967",),
    ),
    PlantedFault(
        id="tool-index-stuck",
        does="Streams every parallel tool call under the index 0.",
        expected=in_(Place.REFERENCE, tools="tool calls are put together under a wrong index"),
        mirrors=("vllm-project/vllm#41967",),
    ),
    PlantedFault(
        id="tool-id-missing",
        does="Streams a tool call without its id where its name comes in a step of several tokens.",
        expected=in_(Place.REFERENCE, tools="a tool call has no id"),
        mirrors=("vllm-project/vllm-ascend#11788",),
    ),
    PlantedFault(
        id="tool-id-repeated",
        does="Gives all tool calls of an answer one id.",
        expected=in_(Place.REFERENCE, tools="two tool calls have one id"),
        mirrors=("vllm-project/vllm-ascend#11788",),
    ),
    PlantedFault(
        id="tool-close-swallows",
        does="Swallows what follows the end of a tool call in the same step.",
        expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="a tool call is lost|delivered as text"),
        mirrors=("vllm-project/vllm#35800",),
    ),
    PlantedFault(
        id="tool-call-as-text",
        does="Takes the opening tag of a tool call for text where it is not alone in its step.",
        expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="a tool call is delivered as text"),
        mirrors=("vllm-project/vllm#35800",),
    ),
    PlantedFault(
        id="tool-finish-stop",
        does="Ends an answer with tool calls with the finish_reason stop.",
        expected=in_(Place.REFERENCE, may=WHOLE_ANSWERS, tools="the finish_reason of a tool call is wrong"),
        mirrors=("vllm-project/vllm#46249",),
    ),
    PlantedFault(
        id="tool-brace-doubled",
        does="Begins tool arguments with two braces where the first one comes in a step of several tokens.",
        expected=in_(
            Place.REFERENCE, tools="the arguments of a tool call are not valid JSON|the same tokens are given as other tool calls"
        ),
        mirrors=("vllm-project/vllm#39253",),
    ),
)
