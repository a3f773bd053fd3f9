"""Room for documents: the token limits of a structured workload, raised where most of the baseline's documents do not end within them.

The baseline alone decides, before any other arm is asked: all arms answer under the same limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Workload

__all__ = ["MOST", "deciding_boot", "sufficient"]

MOST = 4
"""Times the planned limits, at most: asked again twice, each time with twice as much."""


def deciding_boot(plan: Plan, workload: str) -> Boot | None:
    """Return the baseline's boot that may raise the limits of a workload whose documents are judged.

    None where it is not the first to answer: at smoke depth, side by side, and where its server belongs to somebody else. Nor is what may
    take a server down asked twice: that the server survives shows in short documents too.
    """
    judged = any((each.workload, each.family) == (workload, Family.STRUCTURED) for each in plan.judgements)
    first = next((boot for boot in plan.boots if workload in boot.answers), None)
    if first is None or not judged or plan.workload(workload).may_kill or plan.placement is not Placement.IN_TURN:
        return None
    return first if first.arms == (BASELINE,) and not first.attached else None


def sufficient(workload: Workload, transcript: Transcript, context_tokens: int) -> int:
    """Return how many times the limits of ``workload`` are to be, of which ``transcript`` had ``transcript.room``.

    Twice as many where its documents were cut off more often than not and ``context_tokens``, 0 where unknown, hold every request; else as
    many as they were. All requests get the same: drawn documents that happened to end early would be a selection.
    """
    bound = {request.id for request in workload.requests if request.grammar}
    answers = [answer for answer in transcript.answers if answer.ok and answer.request_id in bound]
    cut = sum(any(choice.finish_reason == "length" for choice in answer.choices) for answer in answers)
    more = 2 * transcript.room
    if 2 * cut <= len(answers) or more > MOST:
        return transcript.room
    limits = {request.id: request.token_limit for request in workload.with_room(more).requests}
    fits = all(_prompt_tokens(answer) + (limits[answer.request_id] or 0) <= context_tokens for answer in transcript.answers)
    return more if fits else transcript.room


def _prompt_tokens(answer: Answer) -> int:
    return len(answer.prompt_token_ids) or (answer.usage.prompt_tokens if answer.usage is not None else 0)
