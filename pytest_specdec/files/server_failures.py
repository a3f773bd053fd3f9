"""Server failures: deaths, hangs and 5xx of an arm over a whole run that did not recur, read from its transcripts."""

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
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.transcript import Transcript


def read(directory: RunDirectory, plan: Plan, pair: str) -> dict[str, UnexplainedFailures]:
    """Return the unexplained failures of a pair's arms.

    They are the variant, the baseline and the control. Those of all workloads in the plan count, also of unfinished
    ones. Empty if the variant has none.
    """
    variant = _failures_of_arm(directory, plan, pair)
    if not variant.unexplained:
        return {}
    return {pair: variant, **{arm: _failures_of_arm(directory, plan, arm) for arm in (BASELINE, CONTROL)}}


def set_aside(directory: RunDirectory, arm: str, workload: str) -> None:
    """Store a copy of answers with an unexplained failure.

    This is done before the workload is captured again. The failure then still counts: otherwise a run could be resumed
    until a server that dies now and then passes.
    """
    for name in (workload, f"{workload}.partial"):
        with suppress(RunError):
            transcript = transcripts.read(directory, arm, name)
            if transcript is not None and transcript.unexplained:
                number = len(_names_set_aside(directory, arm, workload)) + 1
                transcripts.write(directory, replace(transcript, workload=f"{workload}.earlier{number}"))


def _failures_of_arm(directory: RunDirectory, plan: Plan, arm: str) -> UnexplainedFailures:
    """Return the number of requests and the unexplained failures of one arm."""
    arm_transcripts = list(_readable_transcripts(directory, plan, arm))
    return UnexplainedFailures(
        requests=sum(_count_requests(transcript) for transcript in arm_transcripts),
        unexplained=tuple(line for transcript in arm_transcripts for line in _describe_failures(transcript)),
    )


def _readable_transcripts(directory: RunDirectory, plan: Plan, arm: str) -> Iterator[Transcript]:
    """Yield the readable transcripts of one arm, those of its further boots included.

    An unreadable one is skipped, since the judgement of its workload reports it.
    """
    answered = dict.fromkeys(
        (key, name) for boot in plan.boots for key in boot.arms for name in boot.answers if _belongs_to_arm(arm, key, boot)
    )
    for key, name in answered:
        yield from _transcripts_of_workload(directory, key, name)


def _belongs_to_arm(arm: str, key: str, boot: Boot) -> bool:
    """Return True if answers stored under ``key`` are of ``arm``.

    A further boot stores them under a name of its own, so that its arm decides. A first boot's arm does not: at smoke depth the
    control's boot answers as the baseline too, and what it stores under ``baseline`` is not the control's.
    """
    return arm == key or (boot.number > 1 and arm == boot.arm)


def _transcripts_of_workload(directory: RunDirectory, key: str, workload: str) -> Iterator[Transcript]:
    """Yield the readable transcripts of one workload, partial and earlier ones included."""
    for name in stored_names(directory, key, workload):
        with suppress(RunError):
            transcript = transcripts.read(directory, key, name)
            if transcript is not None:
                yield transcript


def stored_names(directory: RunDirectory, key: str, workload: str) -> tuple[str, ...]:
    """Return the names that one arm's answers to ``workload`` may be stored under, partial and earlier ones included."""
    return (workload, f"{workload}.partial", *_names_set_aside(directory, key, workload))


def _names_set_aside(directory: RunDirectory, arm: str, workload: str) -> list[str]:
    return [path.stem for path in sorted(directory.transcript(arm, workload).parent.glob(f"{glob.escape(workload)}.earlier*.jsonl"))]


def _count_requests(transcript: Transcript) -> int:
    """Return the number of requests answered or failed.

    Those never sent do not count.
    """
    failed = {server_failure.request_id for server_failure in transcript.server_failures}
    return sum(answer.status is not None or answer.request_id in failed for answer in transcript.answers)


def _describe_failures(transcript: Transcript) -> Iterator[str]:
    """Yield one line for every unexplained failure, however many requests were in flight."""
    for failures in transcript.unexplained:
        others = f" and {len(failures) - 1} more in flight" if len(failures) > 1 else ""
        yield f"{transcript.workload}: {failures[0].ending.value} on {failures[0].request_id}{others}"
