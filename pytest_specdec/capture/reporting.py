"""Reporting: log-probabilities are asked for beside an answer, of arms that have shown in the calibration that they report them.

An engine that refuses them under speculation, or dies of them, keeps its plain requests, and its fault stays with the family of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts.prompts import reported

if TYPE_CHECKING:
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import Workload

__all__ = ["reporting"]

_TOP = 1
"""Most probable tokens beside each token's own, as in the calibration."""


def reporting(workload: Workload, directory: RunDirectory, plan: Plan, arm: str) -> Workload:
    """Return ``workload`` as ``arm`` is sent it: with log-probabilities where a request wants them and its route reports them."""
    if not any(request.reports for request in workload.requests):
        return workload
    routes = _routes(directory, plan, arm)
    asked = (
        replace(each, body={**each.body, **reported(each.route, _TOP)}) if each.reports and each.route in routes else each
        for each in workload.requests
    )
    return replace(workload, requests=tuple(asked))


def _routes(directory: RunDirectory, plan: Plan, arm: str) -> frozenset[Route]:
    """Return the routes on which ``arm`` answered every request of the calibration, with log-probabilities."""
    calibration = next((each for each in plan.workloads if each.calibrates), None)
    transcript = None if calibration is None else _read(directory, arm, calibration)
    if calibration is None or transcript is None:
        return frozenset()
    answered = {answer.request_id for answer in transcript.answers if answer.ok and answer.choice.logprobs}
    return frozenset(Route) - {request.route for request in calibration.requests if request.id not in answered}


def _read(directory: RunDirectory, arm: str, workload: Workload) -> Transcript | None:
    try:
        return transcripts.read(directory, arm, workload.name)
    except RunError:
        return None
