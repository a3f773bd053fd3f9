"""Room for documents: the token limits of a structured workload, raised if most of the baseline's documents do not end within them.

The baseline alone decides, before any other arm answers: all arms answer under the same limits. The room is the factor of the planned token
limits, 1 to begin with. A round is all requests of the workload sent once under one room. Documents are answers bound by a grammar; one is
cut off if it ends at its token limit. A boot is one start of a server with its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.errors import DeadlineError
from pytest_specdec.files import transcripts
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.workload import Depth, Family

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.workload_runner import WorkloadResult
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import Workload

MOST = 4
"""Times the planned limits, at most: the baseline answers again twice, each time with twice as many tokens."""
_MOST_AT_SMOKE = 2
"""One more round of the baseline alone: a quick look stays one."""
_ROUNDS_LEFT = 3
"""Times the last round that must be left for a further one, which has twice its tokens and other arms after it."""


def limit_setting_boot(plan: Plan, workload: str) -> Boot | None:
    """Return the baseline's boot settling a workload's token limits.

    If a workload is judged as structured output, the baseline answers first, and again under larger limits if most of its documents are
    cut off. Concurrent servers wait for it. Returns None if the limits stay as planned.
    """
    is_judged_as_structured = any((judgement.workload, judgement.family) == (workload, Family.STRUCTURED) for judgement in plan.judgements)
    first_boot = next((boot for boot in plan.boots if workload in boot.answers and not boot.role.is_old), None)
    if first_boot is None or not is_judged_as_structured:
        return None
    if plan.workload(workload).may_kill:
        return None  # it may end its server: it is sent once, and documents that are cut off show as well whether the server survives
    first_arm = first_boot.arms[0]  # of two at smoke depth, where one boot answers as the baseline, then as the control
    return first_boot if first_arm == BASELINE else None  # other arms come first where servers run in turn at smoke depth


def extended_room(directory: RunDirectory, plan: Plan, workload: str) -> int:
    """Return the room of the workload that ``workload`` adds requests to.

    Further requests are sent to settle a doubt about answers to an earlier workload. They get the room of the baseline's answers there,
    since they could end before the tokens in doubt otherwise. Returns 1 if ``workload`` extends none, or the baseline has no answers.
    """
    extended = next((name for name, further in plan.extensions.items() if workload in further), None)
    baseline = transcripts.read(directory, BASELINE, extended) if extended is not None else None
    return 1 if baseline is None else baseline.room


def most_useful_round(
    send_round: Callable[[int], WorkloadResult],
    wanted_room: Callable[[Transcript], int],
    left_s: Callable[[], float],
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> WorkloadResult:
    """Return the baseline's answers from its most useful whole round.

    That is the round in which most answers ended within their limits, of several the one with the smallest room: a larger one that ends no
    further document would cost all arms time. A round is whole if no answer is missing and no request failed. If none is, the first counts.

    ``send_round`` sends all requests under the given room. ``wanted_room`` returns the room that a round's answers call for, the same if
    enough of them have ended. A further round that is not whole ends the search, and the best round before it counts. No further round
    begins unless ``left_s()`` is three times the last one's duration: it has twice the tokens, and other arms answer after it. ``say`` gets
    a line before each further round, and ``warn`` one about a further round that is not whole.
    """
    best = result = send_round(1)
    while _is_whole(result) and left_s() >= _ROUNDS_LEFT * result.transcript.wall_s:
        room = wanted_room(result.transcript)
        if room == result.transcript.room:
            break
        say(f"{result.transcript.workload} again with {room} times its token limits: most documents were cut off")
        try:
            next_result = send_round(room)
        except DeadlineError:
            break
        if not _is_whole(next_result):
            failures = next_result.transcript.server_failures
            reason = next_result.missing or f"the server failed {failures[0].request_id}"
            warn(f"{result.transcript.workload} keeps {best.transcript.room} times its token limits: with {room} times, {reason}")
            break
        result = next_result
        if _count_ended(result.transcript) > _count_ended(best.transcript):
            best = result
    return best


def _count_ended(transcript: Transcript) -> int:
    return sum(answer.ok and not _is_cut_off(answer) for answer in transcript.answers)


def _is_cut_off(answer: Answer) -> bool:
    return any(choice.finish_reason == "length" for choice in answer.choices)


def _is_whole(result: WorkloadResult) -> bool:
    return not (result.missing or result.transcript.server_failures)


def sufficient_room(workload: Workload, transcript: Transcript, context_tokens: int, depth: Depth) -> int:
    """Return the room that the baseline's answers so far call for.

    ``transcript`` has these answers, captured with ``transcript.room`` times the token limits of ``workload``. The room is doubled if most
    of its documents were cut off. It stays if the depth allows no larger one, or if a prompt and its larger limit would exceed
    ``context_tokens``, the server's context limit, 0 if unknown. All requests get the same room: with more for only those that were cut
    off, the documents that happened to end early would be a selection.
    """
    grammar_ids = {request.id for request in workload.requests if request.grammar}
    answers = [answer for answer in transcript.answers if answer.ok and answer.request_id in grammar_ids]
    cut_off_count = sum(map(_is_cut_off, answers))
    larger_room = 2 * transcript.room
    if 2 * cut_off_count <= len(answers) or larger_room > (_MOST_AT_SMOKE if depth is Depth.SMOKE else MOST):
        return transcript.room
    limits = {request.id: request.token_limit for request in workload.with_room(larger_room).requests}
    fits = all(_count_prompt_tokens(answer) + (limits[answer.request_id] or 0) <= context_tokens for answer in transcript.answers)
    return larger_room if fits else transcript.room


def _count_prompt_tokens(answer: Answer) -> int:
    return len(answer.prompt_token_ids) or (answer.usage.prompt_tokens if answer.usage is not None else 0)
