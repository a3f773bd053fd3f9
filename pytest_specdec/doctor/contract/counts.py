"""The clauses on counts: verify steps in replies, counters of the server, its log, its traffic."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.doctor.contract.clause import Clause, broken, kept, not_claimed, unchecked
from pytest_specdec.doctor.contract.visit import GREEDY
from pytest_specdec.model.transcript import SpecCounters

if TYPE_CHECKING:
    from pytest_specdec.doctor.contract.clause import Finding
    from pytest_specdec.doctor.contract.visit import Visit

_YEAR_S = 365 * 86400
_CLOCK_S = 5.0
_ROUNDED = 0.02
"""Of the drafts, by which those that a log's rounded means give may be off."""


def _check_counters(visit: Visit) -> Finding:
    """Check the counters against the tokens drafted and emitted.

    They rise with what is drafted, in proportion, and never by more than was emitted.
    """
    if visit.dialect.counters_path is None:
        return not_claimed("no path of counters")
    if visit.page() is None:
        return broken(f"no 200 from {visit.dialect.counters_path}")
    if not visit.claims("counters"):
        return not_claimed(f"{visit.dialect.counters_path} is read for its traffic alone")
    return _check_rise(visit)


def _check_rise(visit: Visit) -> Finding:
    """Check the rise of the counters over a few answers."""
    rise, answers = visit.drafted
    if rise is None and visit.dialect.counters_late:
        return unchecked(f"none in the text of {visit.dialect.counters_path}: they may come late, in the log")
    if rise is None:
        return broken(f"none in the text of {visit.dialect.counters_path}, of a server that speculates")
    evidence = _describe_counters(rise)
    if not rise.drafts:
        return (
            broken(f"{evidence} in {sum(timed.tokens for timed in answers)} tokens")
            if visit.own and visit.own.drafts
            else unchecked(evidence)
        )
    draft_tokens = visit.draft.tokens if visit.draft else 0
    if not 0 <= rise.accepted_tokens <= rise.draft_tokens or (draft_tokens and rise.draft_tokens > draft_tokens * rise.drafts):
        return broken(f"{evidence}, with {draft_tokens} draft tokens a step")
    most_tokens = sum(timed.tokens - 1 for timed in answers) + draft_tokens * len(answers)
    if draft_tokens and rise.drafts + rise.accepted_tokens > most_tokens:
        return broken(f"{evidence}, and {sum(timed.tokens for timed in answers)} tokens were emitted")
    return kept(evidence)


def _check_per_position(visit: Visit) -> Finding:
    """Check the accepted tokens counted per position of a draft."""
    rise = visit.drafted[0] if visit.claims("counters") and visit.dialect.counters_path else None
    counters = rise if rise and rise.accepted_per_position else visit.own
    if counters is None or not counters.accepted_per_position:
        return not_claimed("no count per position")
    positions = counters.accepted_per_position
    if sum(positions) != counters.accepted_tokens or any(b > a for a, b in pairwise(positions)):
        return broken(f"{positions} of {counters.accepted_tokens} accepted tokens")
    return kept(f"{positions} of {counters.accepted_tokens} accepted tokens")


def _check_exact(visit: Visit) -> Finding:
    """Check exact counters against the answers' own counts.

    They rise by what the answers report of themselves.
    """
    if visit.dialect.counters_path is None or not visit.claims("counters"):
        return not_claimed("no counters")
    if not visit.dialect.counters_exact:
        return not_claimed("the dialect says that they are not")
    rise, _ = visit.drafted
    if rise is None:
        return unchecked("no counters in the page")
    if visit.own is None:
        return _check_by_chunks(visit)
    agrees = (rise.drafts, rise.draft_tokens, rise.accepted_tokens) == (visit.own.drafts, visit.own.draft_tokens, visit.own.accepted_tokens)
    return (
        kept(_describe_counters(rise))
        if agrees
        else broken(f"the counters rose by {_describe_counters(rise)}, the answers report {_describe_counters(visit.own)}")
    )


def _check_by_chunks(visit: Visit) -> Finding:
    """Check the rise against the chunks of streams.

    This holds where each chunk is a step: exact but for what a limit cut off the last one.
    """
    rise, answers = visit.streamed_drafts
    windows = [timed.answer.choice.windows for timed in answers]
    if rise is None or any(answer_windows is None for answer_windows in windows):
        return unchecked("the answers report no counts of their own, and chunks are no steps")
    steps = sum(len(answer_windows or ()) - 1 for answer_windows in windows)
    accepted = sum(sum(answer_windows or ()) - len(answer_windows or ()) for answer_windows in windows)
    most_accepted = accepted + (visit.draft.tokens if visit.draft else 0) * len(answers)
    evidence = f"{_describe_counters(rise)}; by the chunks {steps} steps and {accepted} to {most_accepted} accepted"
    return kept(evidence) if rise.drafts <= steps and accepted <= rise.accepted_tokens <= most_accepted else broken(evidence)


def _check_drain(visit: Visit) -> Finding:
    """Check two readings without a request in between.

    The second one is empty where a reading drains the counters, and else the same.
    """
    if visit.dialect.counters_path is None or not visit.claims("counters"):
        return not_claimed("no counters")
    visit.asked(GREEDY)
    time.sleep(0.3)  # some servers count behind their answers
    readings = [None if (page := visit.page()) is None else visit.dialect.counters(page) for _ in range(2)]
    first, second = readings
    if (first is None or second is None) and visit.dialect.counters_late:
        return unchecked("no counters in the page: they may come late, in the log")
    if first is None or second is None:
        return unchecked("no counters in the page") if visit.variant == "" else broken("no counters in the page")
    evidence = f"first {_describe_counters(first)}, then {_describe_counters(second)}"
    if visit.dialect.counters_drain:
        return kept(evidence) if not second.draft_tokens else broken(f"a reading does not drain: {evidence}")
    if first == second == SpecCounters():
        return unchecked("nothing was counted")
    return kept(evidence) if second == first else broken(f"the counters move while nothing is asked: {evidence}")


def _check_baseline_counts_nothing(visit: Visit) -> Finding:
    """Check the baseline's counters: it counts no drafts."""
    if visit.dialect.counters_path is None or not visit.claims("counters"):
        return not_claimed("no counters")
    rise, answers = visit.drafted
    if rise is None:
        return kept("the page has none")
    evidence = f"{_describe_counters(rise)} in {sum(timed.tokens for timed in answers)} tokens"
    return broken(evidence) if rise.drafts or rise.draft_tokens or rise.accepted_tokens else kept(evidence)


def _check_steps(visit: Visit) -> Finding:
    """Check the windows of an answer against its tokens.

    They add up to its tokens, but for what a limit cut off the last one.
    """
    if not visit.claims("steps"):
        return not_claimed("replies hold no verify steps")
    windows = [timed.answer.choice.windows for timed in visit.drafted[1]]
    if any(one is None for one in windows):
        return unchecked("the server was started without steps in its replies")
    for timed, window in zip(visit.drafted[1], windows, strict=True):
        excess = sum(window or ()) - timed.tokens
        if not 0 <= excess <= (visit.draft.tokens if visit.draft else 0):
            return broken(f"windows of {sum(window or ())} tokens, and {timed.tokens} were emitted")
        if visit.draft and visit.draft.tokens and max(window or (0,)) > visit.draft.tokens + 1:
            return broken(f"a window of {max(window or (0,))}, with {visit.draft.tokens} draft tokens a step")
    return kept(f"{sum(len(window or ()) for window in windows)} steps, {sum(timed.tokens for timed in visit.drafted[1])} tokens")


def _check_own_counts(visit: Visit) -> Finding:
    """Check an answer's own counts against its length.

    They also have to fit the counters of the server where those are exact.
    """
    if not visit.claims("counted") and not visit.claims("steps"):
        return not_claimed("replies hold no counts")
    rise, answers = visit.drafted
    if visit.own is None:
        return unchecked("the server was started without counts in its replies")
    own_counts, emitted = visit.own, sum(timed.tokens for timed in answers)
    draft_tokens = visit.draft.tokens if visit.draft else 0
    if not own_counts.accepted_tokens <= own_counts.draft_tokens or own_counts.drafts + own_counts.accepted_tokens > emitted + (
        draft_tokens - 1
    ) * len(answers):
        return broken(f"{_describe_counters(own_counts)} in {emitted} tokens")
    if rise is not None and visit.dialect.counters_exact and rise.draft_tokens != own_counts.draft_tokens:
        return broken(f"the answers report {_describe_counters(own_counts)}, the counters rose by {_describe_counters(rise)}")
    if rise is not None and rise.drafts != own_counts.drafts:
        return broken(f"the answers report {own_counts.drafts} drafts, the counters {rise.drafts}")
    return (
        kept(f"{_describe_counters(own_counts)} in {emitted} tokens")
        if own_counts.drafts
        else unchecked(f"nothing was drafted in {emitted} tokens")
    )


def _check_log(visit: Visit) -> Finding:
    """Check the lines of the log against the counters.

    They add up to the counters since the start, where both are there.
    """
    if not visit.claims("logged"):
        return not_claimed("the log is not read")
    if visit.arm.recipe.setup.attached is not None:
        return unchecked("the log of an attached server is not ours")
    total = None if visit.dialect.counters_drain or not visit.claims("counters") else visit.settled()

    def agrees(logged: SpecCounters) -> bool:
        return total is not None and (logged.draft_tokens, logged.accepted_tokens) == (total.draft_tokens, total.accepted_tokens)

    logged = visit.logged(agrees)
    if logged is None:
        return unchecked("no line with counters came in the time in which one is written")
    if total is None:
        return unchecked(f"{_describe_counters(logged)}, and no counters beside them")
    if not agrees(logged) or abs(logged.drafts - total.drafts) > max(1, _ROUNDED * total.drafts):
        return broken(f"the log says {_describe_counters(logged)}, the counters {_describe_counters(total)}")
    return kept(f"log and counters: {_describe_counters(total)}")


def _check_traffic(visit: Visit) -> Finding:
    """Check the traffic reported by the server.

    It grows by the tokens that were asked and answered, and its start is a possible one.
    """
    if visit.dialect.counters_path is None:
        return not_claimed("no path of counters")
    if visit.dialect.counters_drain:
        return not_claimed("a reading would drain the counters")
    traffic_before = visit.dialect.traffic(visit.page() or "")
    usage = visit.asked(GREEDY).answer.usage
    visit.settled()
    time.sleep(0.3)  # some servers count behind their answers
    traffic_after = visit.dialect.traffic(visit.page() or "")
    if traffic_after.started_s is None and traffic_after.generated_tokens is None and traffic_after.prompt_tokens is None:
        return not_claimed("the page says nothing of start and tokens")
    if traffic_after.started_s is not None and not time.time() - _YEAR_S < traffic_after.started_s < time.time() + _CLOCK_S:
        return broken(f"started at {traffic_after.started_s:.0f} s since 1970, which is no start of this server")
    if usage is None:
        return unchecked("no usage to hold it against")
    prompt, generated = (
        _rise(traffic_before.prompt_tokens, traffic_after.prompt_tokens),
        _rise(traffic_before.generated_tokens, traffic_after.generated_tokens),
    )
    usage_text = f"for {usage.prompt_tokens} and {usage.completion_tokens}"
    evidence = f"{_describe_count(prompt)} prompt and {_describe_count(generated)} generated tokens {usage_text}"
    # A prompt that is cached may count as one token, and a token of the next answer may be in.
    agrees = (generated is None or generated >= usage.completion_tokens - 1) and (prompt is None or prompt >= 0)
    return kept(evidence) if agrees else broken(evidence)


def _rise(count_before: int | None, count_after: int | None) -> int | None:
    return None if count_after is None else count_after - (count_before or 0)


def _describe_count(count: int | None) -> str:
    return "untold" if count is None else str(count)


def _describe_counters(counters: SpecCounters) -> str:
    return f"{counters.drafts} drafts, {counters.draft_tokens} draft tokens, {counters.accepted_tokens} accepted"


CLAUSES = (
    Clause(name="counters", members=("counters_path", "counters"), check=_check_counters, baseline=False),
    Clause(name="counters per position", members=("counters", "counted"), check=_check_per_position, baseline=False),
    Clause(name="counters exact", members=("counters_exact",), check=_check_exact, baseline=False),
    Clause(name="counters drain", members=("counters_drain",), check=_check_drain, baseline=False),
    Clause(name="baseline counts nothing", members=("counters",), check=_check_baseline_counts_nothing, variant=False),
    Clause(name="steps in replies", members=("steps",), check=_check_steps, baseline=False),
    Clause(name="counts in replies", members=("counted",), check=_check_own_counts, baseline=False),
    Clause(name="log lines", members=("logged",), check=_check_log, baseline=False),
    Clause(name="traffic", members=("traffic",), check=_check_traffic),
)
