"""Faults of reported log-probabilities; the tokens themselves are right."""

from __future__ import annotations

from pytest_specdec.reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="report-draft-logprobs",
        does="Reports the draft model's log-probability of an accepted token; the tokens themselves are right.",
        expected=in_(Place.REFERENCE, logprobs="reported log-probabilities of accepted draft tokens"),
    ),
)
