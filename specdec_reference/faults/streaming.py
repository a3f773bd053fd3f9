"""Faults of streams: text that is lost, doubled or moved between a step and its chunk."""

from __future__ import annotations

from specdec_reference.faults.planted import TEXT_WRONG, Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="stream-tail-lost",
        does="Ends a stream without the text of its last step.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="the end of the text is lost|tool arguments are lost"),
        mirrors=("vllm-project/vllm#39253",),
    ),
    PlantedFault(
        id="stream-step-twice",
        does="Streams the text of the third step twice.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="a part of the text comes twice|not valid JSON"),
        mirrors=("vllm-project/vllm#39253",),
    ),
    PlantedFault(
        id="stream-step-lost",
        does="Streams nothing of the text of the third step.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=TEXT_WRONG, tools="a part of the text is lost|tool arguments are lost"),
        mirrors=("vllm-project/vllm#39253",),
    ),
    PlantedFault(
        id="stream-characters-lost",
        does="Decodes the tokens of each step alone, and leaves out characters that go over two steps.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="characters that go over several tokens are lost"),
        mirrors=("vllm-project/vllm#39253",),
    ),
    PlantedFault(
        id="stream-out-of-order",
        does="Streams the text of the third step behind that of the fourth.",
        expected=in_(Place.REFERENCE, may=TEXT_WRONG, tools="parts of the text are out of order|not valid JSON"),
        mirrors=("vllm-project/vllm#39253",),
    ),
)
