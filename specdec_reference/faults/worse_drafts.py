"""Faults of drafts that are worse than the drafter: the tokens are right, and fewer drafts are accepted than could be."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_MAY: dict[Family, str] = {
    family: "a workload may have no accepted draft in it, or drafts that die where a prompt is asked again"
    for family in Family
    if family is not Family.SPEED
}
_WORSE = "drafts are worse than the drafter's own"

ROWS = (
    PlantedFault(
        id="draft-cache-stale",
        does="Keeps nothing of an answer in the draft model's own cache: it drafts behind the prompt and the last two tokens.",
        expected=in_(Place.REFERENCE, may=_MAY, speed=_WORSE),
        mirrors=("vllm-project/vllm-ascend#6138",),
    ),
    PlantedFault(
        id="drafts-worse",
        does="Takes another token than the draft model's for every third draft.",
        expected=in_(Place.REFERENCE, may=_MAY, speed=_WORSE),
        mirrors=("vllm-project/vllm#26191",),
    ),
    PlantedFault(
        id="dead-drafts-grammar",
        does="Takes every draft for one that breaks the grammar, and goes on token by token, where a request has one.",
        expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for requests with a grammar"),
        mirrors=("vllm-project/vllm#53777",),
    ),
)
