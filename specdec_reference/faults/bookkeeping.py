"""Faults of what is said about an answer: usage, finish reason, text, token ids, counters. The tokens themselves are right."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

_MAY: dict[Family, str] = {
    family: "every judge looks at how answers end and at their text" for family in Family if family is not Family.INVARIANTS
}
_COUNTED = "usage counts other tokens than were answered"

ROWS = (
    PlantedFault(
        id="usage-counts-rejected",
        does="Counts rejected draft tokens among the completion tokens of its usage.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants=_COUNTED),
    ),
    PlantedFault(
        id="usage-drops-last-window",
        does="Leaves the last verify step out of the completion tokens of its usage.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants=_COUNTED),
    ),
    PlantedFault(
        id="usage-forgets-prompt",
        does="Reports 0 prompt tokens.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="usage counts another prompt"),
    ),
    PlantedFault(
        id="usage-total-with-drafts",
        does="Counts all draft tokens in the total of its usage.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="usage does not add up"),
    ),
    PlantedFault(
        id="stop-at-limit",
        does="Gives answers that reach max_tokens the finish_reason stop.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the finish_reason is wrong"),
    ),
    PlantedFault(
        id="finish-missing",
        does="Gives whole answers no finish_reason.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="the finish_reason is wrong"),
    ),
    PlantedFault(
        id="special-token-leaks",
        does="Writes the name of an end of sequence behind every text.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="special tokens stand in the text"),
    ),
    PlantedFault(
        id="window-edge-doubled",
        does="Gives the last character of a verify step twice.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="the same tokens are given as another text"),
    ),
    PlantedFault(
        id="window-edge-dropped",
        does="Drops the first character of every verify step of two tokens or more.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the same tokens are given as another text"),
    ),
    PlantedFault(
        id="window-edge-broken",
        does="Ends a character at the end of every verify step, finished or not, and writes U+FFFD for it.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="the text has broken characters"),
    ),
    PlantedFault(
        id="ids-swapped",
        does="Reports the second and third token of an answer in each other's place; the text is right.",
        expected=in_(Place.REFERENCE, may=_MAY, invariants="token ids and text disagree"),
    ),
    PlantedFault(
        id="counters-accept-more",
        does="Counts one draft token for each verify step, however many were drafted, and all accepted ones.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the speculation counters do not add up"),
    ),
    PlantedFault(
        id="counters-frozen",
        does="Counts no draft at all in its metrics.",
        expected=in_(Place.REFERENCE, Place.VLLM, may=_MAY, invariants="the speculation counters stand still"),
    ),
)
