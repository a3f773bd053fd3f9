"""Faults of structured output: masks that are missing or misplaced, grammars that lose their place or are not asked for."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"
FORM = "the grammar is not enforced on speculated tokens"
BEFORE = "text stands in front of the document"
BEHIND = "text goes on behind the document"
CUT_OFF = "a document ends in the middle and is called finished"
RULES = "a document breaks its schema"
ANY = f"{FORM}|{BEFORE}|{BEHIND}|{CUT_OFF}|{RULES}"
"""What most invalid documents break hangs on the model."""
ENDS = {
    Family.LIVENESS: "It sees how every answer ends, also those with a grammar.",
    Family.TOOLS: "A required call is a document under a grammar.",
    **dict.fromkeys((Family.CONCURRENCY, Family.PRESSURE), "Some of its requests have a grammar."),
}
"""What may be red beside, where a grammar is not kept."""

ROWS = (
    PlantedFault(
        id="grammar-skipped",
        does="Masks the last position of a verify step by the grammar, and none of the draft tokens' positions.",
        expected={
            **in_(
                Place.VLLM,
                may={Family.LIVENESS: "A token outside its grammar makes vLLM answer with a 5xx or die."},
                structured=SERVER_ERROR,
            ),
            **in_(Place.REFERENCE, may=ENDS, structured=ANY),
        },
        mirrors=("vllm-project/vllm#27969",),
    ),
    PlantedFault(
        id="grammar-bonus-unmasked",
        does="Masks the draft tokens' positions by the grammar, and not the bonus token's.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
        mirrors=("NVIDIA/TensorRT-LLM#7878",),
    ),
    PlantedFault(
        id="grammar-mask-late",
        does="Uses the grammar's mask of each position of a window at the position behind it.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
    ),
    PlantedFault(
        id="grammar-not-advanced",
        does="Advances the grammar over the last token of a window only, and not over the accepted drafts before it.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
        mirrors=("vllm-project/vllm#48228",),
    ),
    PlantedFault(
        id="grammar-rollback-short",
        does="Rolls the grammar back one token too few behind the verified drafts.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
        mirrors=("vllm-project/vllm#44006",),
    ),
    PlantedFault(
        id="grammar-stuck",
        does="Allows nothing but white space from the ninth token of a document on.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is stuck in white space until the limit"),
        alone=True,
    ),
    PlantedFault(
        id="grammar-off-reasoning",
        does="Drops the grammar of every request that may reason before it answers.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is not enforced behind the reasoning"),
        mirrors=("vllm-project/vllm#34650",),
        reasons=True,
    ),
    PlantedFault(
        id="grammar-end-missed",
        does="Misses the end of the reasoning where it is not the last token of its window, and never enforces the grammar then.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="the grammar is not enforced behind the reasoning"),
        mirrors=("vllm-project/vllm#36138",),
        reasons=True,
    ),
    PlantedFault(
        id="json-object-array",
        does="Answers a request for any JSON object with an array.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="another JSON value than asked for is answered"),
    ),
    PlantedFault(
        id="regex-prefix-only",
        does="Lets any text follow what matches a regular expression.",
        expected=in_(Place.REFERENCE, structured=BEHIND),
    ),
    PlantedFault(
        id="choice-with-tail",
        does="Lets any text follow a choice.",
        expected=in_(Place.REFERENCE, structured=BEHIND),
    ),
    PlantedFault(
        id="document-cut-off",
        does="Ends a document after eight tokens with finish_reason stop.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="answers are cut short|" + CUT_OFF),
        mirrors=("vllm-project/vllm#10442",),
    ),
    PlantedFault(
        id="grammar-before",
        does="Binds an answer by the grammar of the request that came before it.",
        expected=in_(Place.REFERENCE, may=ENDS, structured="documents obey the grammar of another request"),
    ),
    PlantedFault(
        id="grammar-only-streamed",
        does="Enforces the grammar of streamed answers only.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
    ),
    PlantedFault(
        id="grammar-only-unstreamed",
        does="Enforces the grammar only of answers that are not streamed.",
        expected=in_(Place.REFERENCE, may=ENDS, structured=ANY),
    ),
    PlantedFault(
        id="json-object-error",
        does="Answers a request for any JSON object with a 500.",
        expected=in_(
            Place.REFERENCE,
            may={Family.LIVENESS: "Its ladder asks for a JSON object too."},
            structured="the server answers 5xx to a request with response_format",
        ),
        mirrors=("NVIDIA/TensorRT-LLM#7878",),
        alone=True,
    ),
    PlantedFault(
        id="die-on-bad-grammar",
        does="Kills the server when a grammar cannot be compiled.",
        expected=in_(Place.REFERENCE, structured="the server dies on a request with structured_outputs"),
        alone=True,
    ),
)
