"""Old timings: timed answers of the engine in use, the old one, sent between those of the engine under test and stored in its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.model.pair import arm_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.transcript import Transcript

__all__ = ["read"]


def read(directory: RunDirectory) -> Mapping[str, Mapping[str, tuple[Transcript, ...]]]:
    """Return the old engine's timed answers by workload, then by arm.

    An arm is ``baseline`` or a variant, with a transcript for each boot, a start of its server. The new engine's answers of the same run
    were taken in turn with them, pass by pass or boot by boot, so that both share the machine's state. Answers to requests without a speed
    gate are left out, and so are boots without a complete transcript. Raises RunError if an existing file is invalid.
    """
    plan = run_documents.read_plan(directory)
    by_workload: dict[str, dict[str, tuple[Transcript, ...]]] = {}
    for boot in plan.boots:
        for name in boot.answers if boot.role.is_old else ():
            transcript = transcripts.read(directory, boot.arms[0], name)
            if transcript is not None:
                gated_ids = {request.id for request in run_documents.read_workload(directory, plan, name).gated_requests}
                by_arm = by_workload.setdefault(name, {})
                arm = arm_of(boot.arm)  # without `old.` before it
                by_arm[arm] = (*by_arm.get(arm, ()), transcript.part(gated_ids))
    return by_workload
