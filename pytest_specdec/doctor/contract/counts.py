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


def _counters(visit: Visit) -> Finding:
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
    rise, answers = visit.drafted
    if rise is None and visit.dialect.counters_late:
        return unchecked(f"none in the text of {visit.dialect.counters_path}: they may come late, in the log")
    if rise is None:
        return broken(f"none in the text of {visit.dialect.counters_path}, of a server that speculates")
    shown = _counts_text(rise)
    if not rise.drafts:
        return broken(f"{shown} in {sum(timed.tokens for timed in answers)} tokens") if visit.own and visit.own.drafts else unchecked(shown)
    k = visit.draft.tokens if visit.draft else 0
    if not 0 <= rise.accepted_tokens <= rise.draft_tokens or (k and rise.draft_tokens > k * rise.drafts):
        return broken(f"{shown}, with {k} draft tokens a step")
    most = sum(timed.tokens - 1 for timed in answers) + k * len(answers)
    if k and rise.drafts + rise.accepted_tokens > most:
        return broken(f"{shown}, and {sum(timed.tokens for timed in answers)} tokens were emitted")
    return kept(shown)


def _per_position(visit: Visit) -> Finding:
    rise = visit.drafted[0] if visit.claims("counters") and visit.dialect.counters_path else None
    counted = rise if rise and rise.accepted_per_position else visit.own
    if counted is None or not counted.accepted_per_position:
        return not_claimed("no count per position")
    positions = counted.accepted_per_position
    if sum(positions) != counted.accepted_tokens or any(b > a for a, b in pairwise(positions)):
        return broken(f"{positions} of {counted.accepted_tokens} accepted tokens")
    return kept(f"{positions} of {counted.accepted_tokens} accepted tokens")


def _exact(visit: Visit) -> Finding:
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
        return _by_chunks(visit)
    same = (rise.drafts, rise.draft_tokens, rise.accepted_tokens) == (visit.own.drafts, visit.own.draft_tokens, visit.own.accepted_tokens)
    return (
        kept(_counts_text(rise))
        if same
        else broken(f"the counters rose by {_counts_text(rise)}, the answers report {_counts_text(visit.own)}")
    )


def _by_chunks(visit: Visit) -> Finding:
    """Check the rise against the chunks of streams.

    This holds where each chunk is a step: exact but for what a limit cut off the last one.
    """
    rise, answers = visit.streamed_drafts
    windows = [timed.answer.choice.windows for timed in answers]
    if rise is None or any(one is None for one in windows):
        return unchecked("the answers report no counts of their own, and chunks are no steps")
    steps = sum(len(one or ()) - 1 for one in windows)
    accepted = sum(sum(one or ()) - len(one or ()) for one in windows)
    most = accepted + (visit.draft.tokens if visit.draft else 0) * len(answers)
    shown = f"{_counts_text(rise)}; by the chunks {steps} steps and {accepted} to {most} accepted"
    return kept(shown) if rise.drafts <= steps and accepted <= rise.accepted_tokens <= most else broken(shown)


def _drain(visit: Visit) -> Finding:
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
    shown = f"first {_counts_text(first)}, then {_counts_text(second)}"
    if visit.dialect.counters_drain:
        return kept(shown) if not second.draft_tokens else broken(f"a reading does not drain: {shown}")
    if first == second == SpecCounters():
        return unchecked("nothing was counted")
    return kept(shown) if second == first else broken(f"the counters move while nothing is asked: {shown}")


def _still(visit: Visit) -> Finding:
    """Check the baseline's counters: it counts no drafts."""
    if visit.dialect.counters_path is None or not visit.claims("counters"):
        return not_claimed("no counters")
    rise, answers = visit.drafted
    if rise is None:
        return kept("the page has none")
    shown = f"{_counts_text(rise)} in {sum(timed.tokens for timed in answers)} tokens"
    return broken(shown) if rise.drafts or rise.draft_tokens or rise.accepted_tokens else kept(shown)


def _steps(visit: Visit) -> Finding:
    """Check the windows of an answer against its tokens.

    They add up to its tokens, but for what a limit cut off the last one.
    """
    if not visit.claims("steps"):
        return not_claimed("replies hold no verify steps")
    windows = [timed.answer.choice.windows for timed in visit.drafted[1]]
    if any(one is None for one in windows):
        return unchecked("the server was started without steps in its replies")
    for timed, window in zip(visit.drafted[1], windows, strict=True):
        over = sum(window or ()) - timed.tokens
        if not 0 <= over <= (visit.draft.tokens if visit.draft else 0):
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
    own, emitted = visit.own, sum(timed.tokens for timed in answers)
    k = visit.draft.tokens if visit.draft else 0
    if not own.accepted_tokens <= own.draft_tokens or own.drafts + own.accepted_tokens > emitted + (k - 1) * len(answers):
        return broken(f"{_counts_text(own)} in {emitted} tokens")
    if rise is not None and visit.dialect.counters_exact and rise.draft_tokens != own.draft_tokens:
        return broken(f"the answers report {_counts_text(own)}, the counters rose by {_counts_text(rise)}")
    if rise is not None and rise.drafts != own.drafts:
        return broken(f"the answers report {own.drafts} drafts, the counters {rise.drafts}")
    return kept(f"{_counts_text(own)} in {emitted} tokens") if own.drafts else unchecked(f"nothing was drafted in {emitted} tokens")


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
        return unchecked(f"{_counts_text(logged)}, and no counters beside them")
    if not agrees(logged) or abs(logged.drafts - total.drafts) > max(1, _ROUNDED * total.drafts):
        return broken(f"the log says {_counts_text(logged)}, the counters {_counts_text(total)}")
    return kept(f"log and counters: {_counts_text(total)}")


def _traffic(visit: Visit) -> Finding:
    """Check the traffic reported by the server.

    It grows by the tokens that were asked and answered, and its start is a possible one.
    """
    if visit.dialect.counters_path is None:
        return not_claimed("no path of counters")
    if visit.dialect.counters_drain:
        return not_claimed("a reading would drain the counters")
    before = visit.dialect.traffic(visit.page() or "")
    usage = visit.asked(GREEDY).answer.usage
    visit.settled()
    time.sleep(0.3)  # some servers count behind their answers
    after = visit.dialect.traffic(visit.page() or "")
    if after.started_s is None and after.generated_tokens is None and after.prompt_tokens is None:
        return not_claimed("the page says nothing of start and tokens")
    if after.started_s is not None and not time.time() - _YEAR_S < after.started_s < time.time() + _CLOCK_S:
        return broken(f"started at {after.started_s:.0f} s since 1970, which is no start of this server")
    if usage is None:
        return unchecked("no usage to hold it against")
    prompt, generated = _rise(before.prompt_tokens, after.prompt_tokens), _rise(before.generated_tokens, after.generated_tokens)
    asked = f"for {usage.prompt_tokens} and {usage.completion_tokens}"
    shown = f"{_count_text(prompt)} prompt and {_count_text(generated)} generated tokens {asked}"
    # A prompt that is cached may count as one token, and a token of the next answer may be in.
    is_told = (generated is None or generated >= usage.completion_tokens - 1) and (prompt is None or prompt >= 0)
    return kept(shown) if is_told else broken(shown)


def _rise(before: int | None, after: int | None) -> int | None:
    return None if after is None else after - (before or 0)


def _count_text(count: int | None) -> str:
    return "untold" if count is None else str(count)


def _counts_text(counters: SpecCounters) -> str:
    return f"{counters.drafts} drafts, {counters.draft_tokens} draft tokens, {counters.accepted_tokens} accepted"


CLAUSES = (
    Clause(name="counters", members=("counters_path", "counters"), check=_counters, baseline=False),
    Clause(name="counters per position", members=("counters", "counted"), check=_per_position, baseline=False),
    Clause(name="counters exact", members=("counters_exact",), check=_exact, baseline=False),
    Clause(name="counters drain", members=("counters_drain",), check=_drain, baseline=False),
    Clause(name="baseline counts nothing", members=("counters",), check=_still, variant=False),
    Clause(name="steps in replies", members=("steps",), check=_steps, baseline=False),
    Clause(name="counts in replies", members=("counted",), check=_check_own_counts, baseline=False),
    Clause(name="log lines", members=("logged",), check=_check_log, baseline=False),
    Clause(name="traffic", members=("traffic",), check=_traffic),
)
