"""Faults of drafting for one kind of traffic: the tokens are right, and come later than they could."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_MAY: dict[Family, str] = {
    family: "a workload of that kind alone has nothing drafted in it" for family in Family if family is not Family.SPEED
}


def _off(kind: str, does: str, words: str) -> PlantedFault:
    return PlantedFault(id=f"drafts-off-{kind}", does=does, expected=in_(Place.REFERENCE, may=_MAY, speed=words))


ROWS = (
    PlantedFault(
        id="drafts-off-logprobs",
        does="Drafts nothing for requests that report log-probabilities.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="drafting is off for requests with log-probabilities")
        # Answers of vLLM do not tell drafts from rejected ones.
        | in_(Place.VLLM, may=_MAY, speed="no draft is accepted for requests with log-probabilities"),
    ),
    _off("sampled", "Drafts nothing above temperature 0.", "drafting is off for requests above temperature 0"),
    _off("grammar", "Drafts nothing for requests with a grammar.", "drafting is off for requests with a grammar"),
    _off("penalties", "Drafts nothing for requests with penalties.", "drafting is off for requests with penalties"),
    _off("unseeded", "Drafts nothing for requests that draw without a seed.", "drafting is off for requests that draw without a seed"),
    _off("long", "Drafts nothing for prompts of more than 400 tokens.", "drafting is off for prompts of more than"),
    PlantedFault(
        id="dead-drafts-long",
        does="Drafts tokens at random behind 400 tokens of context.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for prompts of more than"),
    ),
    PlantedFault(
        id="dead-drafts-logprobs",
        does="Drafts tokens at random for requests that report log-probabilities.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for requests with log-probabilities"),
    ),
    PlantedFault(
        id="shorter-drafts-in-company",
        does="Drafts one token fewer in steps of two sequences or more.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="fewer tokens are drafted for requests with more than"),
        alone=True,
    ),
    PlantedFault(
        id="worse-drafts-in-company",
        does="Drafts one token, and anything behind it, for every row of a batch but the last.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="the drafter falls behind with more than"),
        alone=True,
    ),
    PlantedFault(
        id="dead-draft-tails",
        does="Drafts tokens at random behind the first of every draft.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="draft tokens behind the first are never accepted"),
    ),
    PlantedFault(
        id="dead-draft-tails-sampled",
        does="Drafts tokens at random behind the first of every draft above temperature 0.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="only the first draft token is accepted for requests above temperature 0"),
    ),
    PlantedFault(
        id="drafts-off-grown",
        does="Drafts nothing beyond 64 tokens of context.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="drafting ends beyond 64 tokens of context"),
    ),
    PlantedFault(
        id="drafts-off-in-company",
        does="Drafts nothing in steps of more than four sequences.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="drafting is off for requests with more than"),
        alone=True,
    ),
)
