"""The contract on counts: verify steps in replies, counters of the server, its log, its traffic."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_specdec.model.transcript import SpecCounters

from .claims import claims, not_claimed, unchecked
from .visit import GREEDY

if TYPE_CHECKING:
    from .claims import Note
    from .visit import Visit

_YEAR_S = 365 * 86400
_CLOCK_S = 5.0
_LATE_S = 0.3
"""Some servers count after their answers."""
_ROUNDED = 0.02
"""Of the drafts, by which those that a log's rounded means give may be off."""


class Counts:
    """The claims on what the server of a variant counts."""

    @claims("counters_path", "counters")
    def test_counters(self, visit: Visit, note: Note) -> None:
        """The counters rise with what is drafted, and never by more than was emitted."""
        if visit.dialect.counters_path is None:
            not_claimed("no path of counters")
        assert visit.page() is not None, f"no 200 from {visit.dialect.counters_path}"
        if not visit.claims("counters"):
            not_claimed(f"{visit.dialect.counters_path} is read for its traffic alone")
        rise, answers = visit.drafted
        if rise is None and visit.dialect.counters_late:
            unchecked(f"none in the text of {visit.dialect.counters_path}: they may come late, in the log")
        assert rise is not None, f"none in the text of {visit.dialect.counters_path}, of a server that speculates"
        emitted = sum(timed.tokens for timed in answers)
        evidence = _describe_counters(rise)
        if not rise.drafts:
            assert not (visit.own and visit.own.drafts), f"{evidence} in {emitted} tokens"
            unchecked(evidence)
        draft_tokens = visit.draft.tokens if visit.draft else 0
        is_possible = 0 <= rise.accepted_tokens <= rise.draft_tokens
        is_possible = is_possible and not (draft_tokens and rise.draft_tokens > draft_tokens * rise.drafts)
        assert is_possible, f"{evidence}, with {draft_tokens} draft tokens a step"
        most_tokens = emitted - len(answers) + draft_tokens * len(answers)
        is_emitted = not draft_tokens or rise.drafts + rise.accepted_tokens <= most_tokens
        assert is_emitted, f"{evidence}, and {emitted} tokens were emitted"
        note(evidence)

    @claims("counters", "counted")
    def test_counters_per_position(self, visit: Visit, note: Note) -> None:
        """Accepted tokens per position of a draft fall, and add up to all."""
        rise = visit.drafted[0] if visit.claims("counters") and visit.dialect.counters_path else None
        counters = rise if rise and rise.accepted_per_position else visit.own
        if counters is None or not counters.accepted_per_position:
            not_claimed("no count per position")
        positions = counters.accepted_per_position
        evidence = f"{positions} of {counters.accepted_tokens} accepted tokens"
        assert sum(positions) == counters.accepted_tokens, evidence
        assert all(later <= earlier for earlier, later in pairwise(positions)), evidence
        note(evidence)

    @claims("counters_exact")
    def test_counters_exact(self, visit: Visit, note: Note) -> None:
        """Exact counters rise by what the answers report of themselves."""
        if visit.dialect.counters_path is None or not visit.claims("counters"):
            not_claimed("no counters")
        if not visit.dialect.counters_exact:
            not_claimed("the dialect says that they are not")
        rise = visit.drafted[0]
        if rise is None:
            unchecked("no counters in the page")
        if visit.own is None:
            note(_check_by_chunks(visit))
            return
        agrees = (rise.drafts, rise.draft_tokens, rise.accepted_tokens) == (
            visit.own.drafts,
            visit.own.draft_tokens,
            visit.own.accepted_tokens,
        )
        assert agrees, f"the counters rose by {_describe_counters(rise)}, the answers report {_describe_counters(visit.own)}"
        note(_describe_counters(rise))

    @claims("counters_drain")
    def test_counters_drain(self, visit: Visit, note: Note) -> None:
        """Of two readings in a row the second is empty where they drain, and else the same."""
        if visit.dialect.counters_path is None or not visit.claims("counters"):
            not_claimed("no counters")
        visit.ask(GREEDY)
        time.sleep(_LATE_S)
        first, second = (None if (page := visit.page()) is None else visit.dialect.counters(page) for _ in range(2))
        if first is None or second is None:
            if visit.dialect.counters_late:
                unchecked("no counters in the page: they may come late, in the log")
            msg = "no counters in the page"
            raise AssertionError(msg)
        evidence = f"first {_describe_counters(first)}, then {_describe_counters(second)}"
        if visit.dialect.counters_drain:
            assert not second.draft_tokens, f"a reading does not drain: {evidence}"
        elif first == second == SpecCounters():
            unchecked("nothing was counted")
        else:
            assert second == first, f"the counters move while nothing is asked: {evidence}"
        note(evidence)

    @claims("steps")
    def test_steps_in_replies(self, visit: Visit, note: Note) -> None:
        """The windows of an answer add up to its tokens, but for what a limit cut off."""
        if not visit.claims("steps"):
            not_claimed("replies hold no verify steps")
        windows = [timed.answer.choice.windows for timed in visit.drafted[1]]
        if any(one is None for one in windows):
            unchecked("the server was started without steps in its replies")
        draft_tokens = visit.draft.tokens if visit.draft else 0
        for timed, window in zip(visit.drafted[1], windows, strict=True):
            total, widest = sum(window or ()), max(window or (0,))
            assert 0 <= total - timed.tokens <= draft_tokens, f"windows of {total} tokens, and {timed.tokens} were emitted"
            assert not draft_tokens or widest <= draft_tokens + 1, f"a window of {widest}, with {draft_tokens} draft tokens a step"
        note(f"{sum(len(window or ()) for window in windows)} steps, {sum(timed.tokens for timed in visit.drafted[1])} tokens")

    @claims("counted")
    def test_counts_in_replies(self, visit: Visit, note: Note) -> None:
        """An answer's own counts fit its length, and the server's counters where those are exact."""
        if not visit.claims("counted") and not visit.claims("steps"):
            not_claimed("replies hold no counts")
        rise, answers = visit.drafted
        if visit.own is None:
            unchecked("the server was started without counts in its replies")
        reported, emitted = visit.own, sum(timed.tokens for timed in answers)
        most_tokens = emitted + ((visit.draft.tokens if visit.draft else 0) - 1) * len(answers)
        is_possible = reported.accepted_tokens <= reported.draft_tokens and reported.drafts + reported.accepted_tokens <= most_tokens
        assert is_possible, f"{_describe_counters(reported)} in {emitted} tokens"
        if rise is not None:
            is_exact = not visit.dialect.counters_exact or rise.draft_tokens == reported.draft_tokens
            assert is_exact, f"the answers report {_describe_counters(reported)}, the counters rose by {_describe_counters(rise)}"
            assert rise.drafts == reported.drafts, f"the answers report {reported.drafts} drafts, the counters {rise.drafts}"
        if not reported.drafts:
            unchecked(f"nothing was drafted in {emitted} tokens")
        note(f"{_describe_counters(reported)} in {emitted} tokens")

    @claims("logged")
    def test_log_lines(self, visit: Visit, note: Note) -> None:
        """The lines of the log add up to the counters since the start."""
        if not visit.claims("logged"):
            not_claimed("the log is not read")
        if visit.arm.recipe.setup.attached is not None:
            unchecked("the log of an attached server is not ours")
        total = None if visit.dialect.counters_drain or not visit.claims("counters") else visit.settled_counters()

        def agrees(logged: SpecCounters) -> bool:
            return total is not None and (logged.draft_tokens, logged.accepted_tokens) == (total.draft_tokens, total.accepted_tokens)

        logged = visit.logged_counters(agrees)
        if logged is None:
            unchecked("no line with counters came in the time in which one is written")
        if total is None:
            unchecked(f"{_describe_counters(logged)}, and no counters beside them")
        is_close = agrees(logged) and abs(logged.drafts - total.drafts) <= max(1, _ROUNDED * total.drafts)
        assert is_close, f"the log says {_describe_counters(logged)}, the counters {_describe_counters(total)}"
        note(f"log and counters: {_describe_counters(total)}")


class BaselineCounts:
    """The claim on the counters of the baseline's server."""

    @claims("counters")
    def test_baseline_counts_nothing(self, visit: Visit, note: Note) -> None:
        """The baseline counts no drafts."""
        if visit.dialect.counters_path is None or not visit.claims("counters"):
            not_claimed("no counters")
        rise, answers = visit.drafted
        if rise is None:
            note("the page has none")
            return
        evidence = f"{_describe_counters(rise)} in {sum(timed.tokens for timed in answers)} tokens"
        assert not any((rise.drafts, rise.draft_tokens, rise.accepted_tokens)), evidence
        note(evidence)


class Traffic:
    """The claim on the traffic that a server reports."""

    @claims("traffic")
    def test_traffic(self, visit: Visit, note: Note) -> None:
        """The traffic grows by the tokens asked and answered, from a possible start."""
        if visit.dialect.counters_path is None:
            not_claimed("no path of counters")
        if visit.dialect.counters_drain:
            not_claimed("a reading would drain the counters")
        traffic_before = visit.dialect.traffic(visit.page() or "")
        usage = visit.ask(GREEDY).answer.usage
        visit.settled_counters()
        time.sleep(_LATE_S)
        traffic_after = visit.dialect.traffic(visit.page() or "")
        started_s = traffic_after.started_s
        if started_s is None and traffic_after.generated_tokens is None and traffic_after.prompt_tokens is None:
            not_claimed("the page says nothing of start and tokens")
        is_possible = started_s is None or time.time() - _YEAR_S < started_s < time.time() + _CLOCK_S
        assert is_possible, f"started at {started_s:.0f} s since 1970, which is no start of this server"
        if usage is None:
            unchecked("no usage to hold it against")
        prompt = _rise(traffic_before.prompt_tokens, traffic_after.prompt_tokens)
        generated = _rise(traffic_before.generated_tokens, traffic_after.generated_tokens)
        usage_text = f"for {usage.prompt_tokens} and {usage.completion_tokens}"
        evidence = f"{_describe_count(prompt)} prompt and {_describe_count(generated)} generated tokens {usage_text}"
        # A prompt that is cached may count as one token, and a token of the next answer may be in.
        assert generated is None or generated >= usage.completion_tokens - 1, evidence
        assert prompt is None or prompt >= 0, evidence
        note(evidence)


def _check_by_chunks(visit: Visit) -> str:
    """Return the rise of the counters over streams, as evidence.

    Raises AssertionError if the chunks show other counts. Each chunk has to be a step: exact but for what a limit cut
    off the last one.
    """
    rise, answers = visit.streamed_drafts
    windows = [timed.answer.choice.windows for timed in answers]
    if rise is None or any(answer_windows is None for answer_windows in windows):
        unchecked("the answers report no counts of their own, and chunks are no steps")
    steps = sum(len(answer_windows or ()) - 1 for answer_windows in windows)
    accepted = sum(sum(answer_windows or ()) - len(answer_windows or ()) for answer_windows in windows)
    most_accepted = accepted + (visit.draft.tokens if visit.draft else 0) * len(answers)
    evidence = f"{_describe_counters(rise)}; by the chunks {steps} steps and {accepted} to {most_accepted} accepted"
    assert rise.drafts <= steps, evidence
    assert accepted <= rise.accepted_tokens <= most_accepted, evidence
    return evidence


def _rise(count_before: int | None, count_after: int | None) -> int | None:
    return None if count_after is None else count_after - (count_before or 0)


def _describe_count(count: int | None) -> str:
    return "untold" if count is None else str(count)


def _describe_counters(counters: SpecCounters) -> str:
    return f"{counters.drafts} drafts, {counters.draft_tokens} draft tokens, {counters.accepted_tokens} accepted"
