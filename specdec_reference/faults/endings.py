"""Planted faults of how answers end, and of the reason reported, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.faults.planted import ENDS, Expected, Place, fault

if TYPE_CHECKING:
    from specdec_reference.emission import EmittedToken
    from specdec_reference.openai_request import EngineRequest

OTHERS = dict.fromkeys(set(Family) - {*ENDS}, "Its answers end there too, where they are long enough.")


def _expect_red_endings(words: str) -> dict[Place, Expected]:
    """Return the expectation of families that judge endings."""
    return {Place.REFERENCE: Expected(red=dict.fromkeys(ENDS, words), may=OTHERS)}


@fault(after="end", expected=_expect_red_endings("answers are cut short"), mirrors=("vllm-project/vllm#10442",))
def cut_short(reason: str | None, request: EngineRequest, token: EmittedToken) -> str | None:
    """Ends every answer after a tenth of its max_tokens, with finish_reason length."""
    return reason or ("length" if token.count >= _tenth_of_limit(request) else None)


@fault(after="end", expected=_expect_red_endings("answers are cut short"))
def stop_short(reason: str | None, request: EngineRequest, token: EmittedToken) -> str | None:
    """Ends every answer after a tenth of its max_tokens, with finish_reason stop."""
    return reason or ("stop" if token.count >= _tenth_of_limit(request) else None)


def _tenth_of_limit(request: EngineRequest) -> int:
    return -(-request.max_tokens // 10)


@fault(
    instead_of="end",
    expected=_expect_red_endings("answers go on after their end"),
    mirrors=("huggingface/transformers#31301", "huggingface/transformers#47912"),
)
def past_the_end(request: EngineRequest, token: EmittedToken) -> str | None:
    """Emits an end of sequence and goes on after it up to max_tokens."""
    return rules.end(request, replace(token, eos=False))


@fault(after="end", expected=_expect_red_endings("answers are cut short"))
def wrong_finish(reason: str | None) -> str | None:
    """Gives every answer the finish_reason length."""
    return "length" if reason else None
