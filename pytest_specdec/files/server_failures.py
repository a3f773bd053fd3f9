"""Server failures: what befell an arm's servers over a whole run and did not recur, read from its transcripts."""

from __future__ import annotations

import glob
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files import transcripts
from pytest_specdec.model.captured import UnexplainedFailures
from pytest_specdec.model.pair import BASELINE, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.transcript import Transcript

__all__ = ["put_by", "read"]


def read(directory: RunDirectory, plan: Plan, pair: str) -> dict[str, UnexplainedFailures]:
    """Return the failures of ``pair``'s variant and, where it has any, of the baseline and the control, by arm; else nothing.

    All workloads of the plan count, those that were not answered to the end too.
    """
    mine = _of_arm(directory, plan, pair)
    if not mine.unexplained:
        return {}
    return {pair: mine, **{arm: _of_arm(directory, plan, arm) for arm in (BASELINE, CONTROL)}}


def put_by(directory: RunDirectory, arm: str, workload: str) -> None:
    """Keep answers beside a failure that nothing brought about, before the workload is answered anew: another occasion undoes none."""
    for name in (workload, f"{workload}.partial"):
        with suppress(RunError):
            transcript = transcripts.read(directory, arm, name)
            if transcript is not None and transcript.unexplained:
                number = len(_earlier(directory, arm, workload)) + 1
                transcripts.write(directory, replace(transcript, workload=f"{workload}.earlier{number}"))


def _of_arm(directory: RunDirectory, plan: Plan, arm: str) -> UnexplainedFailures:
    found = list(_transcripts(directory, plan, arm))
    return UnexplainedFailures(
        requests=sum(_requests(transcript) for transcript in found),
        unexplained=tuple(line for transcript in found for line in _lines(transcript)),
    )


def _transcripts(directory: RunDirectory, plan: Plan, arm: str) -> Iterator[Transcript]:
    """Give what can be read: a torn file is the affair of its own workload."""
    asked = dict.fromkeys(name for boot in plan.boots if arm in boot.arms for name in boot.answers)
    for name in (each for one in asked for each in (one, f"{one}.partial", *_earlier(directory, arm, one))):
        with suppress(RunError):
            transcript = transcripts.read(directory, arm, name)
            if transcript is not None:
                yield transcript


def _earlier(directory: RunDirectory, arm: str, workload: str) -> list[str]:
    return [path.stem for path in sorted(directory.transcript(arm, workload).parent.glob(f"{glob.escape(workload)}.earlier*.jsonl"))]


def _requests(transcript: Transcript) -> int:
    """Count the requests that came to an end, one way or the other."""
    failed = {server_failure.request_id for server_failure in transcript.server_failures}
    return sum(answer.status is not None or answer.request_id in failed for answer in transcript.answers)


def _lines(transcript: Transcript) -> Iterator[str]:
    for met in transcript.unexplained:
        others = f" and {len(met) - 1} more in flight" if len(met) > 1 else ""
        yield f"{transcript.workload}: {met[0].ending.value} on {met[0].request_id}{others}"
