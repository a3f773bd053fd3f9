"""Server failures: deaths, hangs and 5xx of an arm over a whole run that did not recur, read from its transcripts.

A failure recurs if the same request brings it about again on a fresh server; it is unexplained if not. A transcript is stored under a key,
the arm's name (``baseline``, ``control`` or a variant's), or for each further boot of the arm another name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count, takewhile
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
    """Return the unexplained failures of variant, baseline and control, by arm.

    An unexplained failure is a death, a hang or a 5xx that did not recur on a fresh server. All workloads in the plan count, unfinished
    ones included. Empty if the variant has no such failure.
    """
    # Each judgement asks for this, and failures are rare: headers show at a hundredth of the cost that there are none.
    if not any(transcripts.reports_failures(directory, key, name) for key, name in _stored_answers(directory, plan, pair)):
        return {}
    variant = _failures_of_arm(directory, plan, pair)
    if not variant.unexplained:
        return {}
    return {pair: variant, **{arm: _failures_of_arm(directory, plan, arm) for arm in (BASELINE, CONTROL)}}


def set_aside(directory: RunDirectory, arm: str, workload: str) -> None:
    """Write a copy of a transcript with an unexplained failure.

    This is done before the workload is captured again, so that the failure still counts: otherwise a run could be resumed until a server
    that dies now and then passes. The partial transcript of an unfinished workload is copied too. Nothing is written for transcripts that
    are missing, cannot be read or have no such failure.
    """
    for name in (workload, f"{workload}.partial"):
        with suppress(RunError):
            transcript = transcripts.read(directory, arm, name)
            if transcript is not None and transcript.unexplained:
                number = len(_names_set_aside(directory, arm, workload)) + 1
                transcripts.write(directory, replace(transcript, workload=f"{workload}.earlier{number}"))


def _failures_of_arm(directory: RunDirectory, plan: Plan, arm: str) -> UnexplainedFailures:
    """Return one arm's requests and unexplained failures, over all workloads."""
    arm_transcripts = list(_readable_transcripts(directory, plan, arm))
    return UnexplainedFailures(
        requests=sum(_count_requests(transcript) for transcript in arm_transcripts),
        unexplained=tuple(line for transcript in arm_transcripts for line in _describe_failures(transcript)),
    )


def _readable_transcripts(directory: RunDirectory, plan: Plan, arm: str) -> Iterator[Transcript]:
    """Yield the readable transcripts of one arm, further boots included.

    An unreadable one is skipped, since the judgement of its workload reports it.
    """
    for key, name in _stored_answers(directory, plan, arm):
        with suppress(RunError):
            transcript = transcripts.read(directory, key, name)
            if transcript is not None:
                yield transcript


def _stored_answers(directory: RunDirectory, plan: Plan, arm: str) -> Iterator[tuple[str, str]]:
    """Yield the places at which the answers of one arm may be stored.

    A place is a key and the name of a workload, as :func:`transcripts.read` takes them. Partial answers and earlier ones that were set
    aside are included.
    """
    answered = dict.fromkeys(
        (key, name) for boot in plan.boots for key in boot.arms for name in boot.answers if _belongs_to_arm(arm, key, boot)
    )
    for key, workload in answered:
        yield from ((key, name) for name in stored_names(directory, key, workload))


def _belongs_to_arm(arm: str, key: str, boot: Boot) -> bool:
    """Return True if the answers of ``boot`` under ``key`` are from ``arm``.

    ``key`` is the name that the answers are stored under. A first boot stores them under the arm's own name; at smoke depth the control's
    boot answers as the baseline too, under ``baseline``. A further boot stores them under another name, so that its arm decides.
    """
    return arm == key or (boot.number > 1 and arm == boot.arm)


def stored_names(directory: RunDirectory, key: str, workload: str) -> tuple[str, ...]:
    """Return the workload names that answers to ``workload`` may be stored under.

    ``key`` is the name of the arm there. Partial answers and earlier ones that were set aside have names of their own.
    """
    return (workload, f"{workload}.partial", *_names_set_aside(directory, key, workload))


def _names_set_aside(directory: RunDirectory, arm: str, workload: str) -> list[str]:
    names = (f"{workload}.earlier{number}" for number in count(1))
    return list(takewhile(lambda name: directory.transcript(arm, name).is_file(), names))


def _count_requests(transcript: Transcript) -> int:
    """Return the number of requests answered or failed.

    Those never sent do not count.
    """
    failed = {server_failure.request_id for server_failure in transcript.server_failures}
    return sum(answer.status is not None or answer.request_id in failed for answer in transcript.answers)


def _describe_failures(transcript: Transcript) -> Iterator[str]:
    """Yield a line for each unexplained failure of a transcript.

    It names the first request in flight, and counts the others.
    """
    for failures in transcript.unexplained:
        others = f" and {len(failures) - 1} more in flight" if len(failures) > 1 else ""
        yield f"{transcript.workload}: {failures[0].ending.value} on {failures[0].request_id}{others}"
