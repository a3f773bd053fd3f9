"""Liveness: every request gets an answer, and none of them takes the server down.

A server failure is a death, a hang or a 5xx, with an entry for each request then in flight. Its requests are sent again to a fresh server.
A failure recurs if its request fails again alone, if its ``group`` of requests fails again in flight together, or if its request fails
again right after the one before it (``after``). Others are scattered. An arm is one server: the variant, which speculates, the baseline, or
the control, the baseline booted again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.prerequisites import RESUME, describe_refusals, is_refusal, refusal, speculating
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.verdict import Example, Outcome, SharedCheck, Symptom
from pytest_specdec.model.workload import Family
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, ServerFailure, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import JSON

__all__ = ["judge", "server_failure"]

_VERB = {FailureKind.DIED: "dies on", FailureKind.HUNG: "hangs on", FailureKind.ERROR: "answers 5xx to", FailureKind.REFUSED: "refuses"}
_VERB_OF_GROUP = {FailureKind.DIED: "dies", FailureKind.HUNG: "hangs", FailureKind.ERROR: "answers 5xx", FailureKind.REFUSED: "refuses"}
_PROMPT = {"prompt", "messages", "seed", "chat_template_kwargs", "reasoning_effort"}
_ORDINARY = {*_PROMPT, "temperature", "top_p", "max_tokens", "ignore_eos"}


def judge(captured: Captured) -> Verdict:
    """Return the verdict on unanswered, empty and late requests.

    In this order: failures of the server, refused requests, INVALID for missing answers, FAIL for empty or late ones (after the workload's
    ``deadline_s``) unlike the baseline's, wrong endings, missing drafts. PASS otherwise.
    """
    return (
        server_failure(captured)
        or refusal(captured)
        or _check_unanswered(captured)
        or _fail_answers(captured)
        or check_endings(captured)
        or speculating(captured, needs_rejections=False)
        or _pass_liveness(captured)
    )


def server_failure(captured: Captured) -> Verdict | None:
    """Return a verdict if a server died, hung or answered 5xx; None otherwise.

    Most judges call this first. INVALID if others restarted an attached server. FAIL for a recurring failure if the baseline answers the
    same requests, INVALID if not. FAIL for scattered failures, if the whole run has many. INVALID for any other failure, of the variant or
    else of the baseline, and for a timed workload with fewer requests in flight than planned.
    """
    if replaced := _check_replaced(captured):
        return replaced
    failures = captured.speculative.server_failures
    # The simplest is reported: one that recurs alone, else after another request (``after`` is its id), else with the smallest group.
    recurring = sorted((failure for failure in failures if failure.recurred), key=lambda failure: (len(failure.group), failure.after))
    blamed = [failure for failure in recurring if all(_has_survived(arm, failure) for arm in captured.baseline_boots)]
    if blamed:
        fail = _fail_together if blamed[0].group else _fail_after if blamed[0].after else _fail_alone
        return fail(captured, blamed)
    if recurring:
        headline = f"the baseline does not survive {_describe_requests(recurring[0])} either, so it cannot judge"
        return _judge_infrastructure(captured, recurring, headline)
    # Scattered failures are counted over the whole run: liveness reports them even if its own requests met none.
    if (failures or captured.family is Family.LIVENESS) and (verdict := _judge_scattered(captured)):
        return verdict
    if failures:
        # As none of them recurs, ``unexplained`` has all of them, with the requests then in flight.
        return _judge_infrastructure(captured, failures, _describe_unrepeated(captured.speculative.unexplained), settle=RESUME)
    return _check_baseline_failures(captured) or _check_slowed(captured)


def _check_replaced(captured: Captured) -> Verdict | None:
    """Return INVALID if others restarted an attached server between its answers, else None."""
    for transcript in (captured.speculative, *captured.baseline_boots):
        if transcript.replaced:
            headline = f"somebody else started the server of {transcript.arm} anew while it answered: {transcript.replaced}"
            return say(captured, Outcome.INVALID, headline, settle=RESUME, transient=True)
    return None


def _check_baseline_failures(captured: Captured) -> Verdict | None:
    """Return INVALID if a boot of the baseline failed, else None.

    The remedy is to send the workload again, unless a failure recurred: that one would come back.
    """
    failed = [boot for boot in captured.baseline_boots if boot.server_failures]
    if not failed:
        return None
    entries = [entry for boot in failed for entry in boot.server_failures]
    settle = "" if any(entry.recurred for entry in entries) else RESUME
    # The headline describes the first failure of the first boot: entries of one failure have the same number.
    first_failure = [entry for entry in failed[0].server_failures if entry.failure == entries[0].failure]
    return _judge_infrastructure(captured, entries, f"the {failed[0].arm} itself {_describe_act(first_failure)}", settle=settle)


def _check_slowed(captured: Captured) -> Verdict | None:
    """Return INVALID if a timed workload had too few requests in flight, else None."""
    # An arm gets fewer at a time if its server failed with as many as planned.
    slowed = [t for t in (captured.speculative, *captured.baseline_boots) if t.concurrency is not None]
    if not slowed or not captured.workload.timed:
        return None
    first = slowed[0]
    headline = f"{first.arm} was asked {first.concurrency} at a time instead of {captured.workload.concurrency}: times are not comparable"
    return say(captured, Outcome.INVALID, headline)


def _has_survived(transcript: Transcript, failure: ServerFailure) -> bool:
    """Return True if an arm answered the failure's requests without failing.

    ``transcript`` is the arm's. It got the same workload in the same order, so that the failure's requests met there as well, together or
    one after the other. False if its concurrency was cut below the size of the group, which was then never in flight at once.
    """
    had_enough_in_flight = transcript.concurrency is None or len(failure.group) <= transcript.concurrency
    needed = failure.group or (failure.request_id, *([failure.after] if failure.after else []))
    return had_enough_in_flight and all(_is_unharmed(transcript, request_id) for request_id in needed)


def _is_unharmed(transcript: Transcript, request_id: str) -> bool:
    """Return True if an arm responded to a request and no failure met it.

    A refusal is no harm, nor a client that leaves, nor a server that ends by itself after its last answer (``answered``).
    """
    answers = [answer for answer in transcript.answers if answer.request_id == request_id]
    unharmed = request_id not in {failure.request_id for failure in transcript.server_failures if not failure.answered}
    return bool(answers) and unharmed and all(answer.ok or answer.aborted or is_refusal(answer) for answer in answers)


def _fail_alone(captured: Captured, deadly: Sequence[ServerFailure]) -> Verdict:
    """Return FAIL for requests failing again alone on a fresh server.

    ``deadly`` are these failures, those of a soak again in the same traffic. The unusual parameters of the first request give the name.
    """
    first = deadly[0]
    verb, parameters = _VERB[first.ending], _unusual_parameters(captured, deadly)
    where = "in the same traffic on a fresh server too" if first.in_soak else "alone on a fresh server too"
    return say(
        captured,
        Outcome.FAIL,
        f"the server {verb} request {first.request_id}, {where}; the baseline answers it",
        short=(f"parameters   {parameters or 'nothing unusual'}", f"ending       {_describe_ending(first)}", *_quote_log(first, 2)),
        evidence=[line for failure in deadly for line in _describe_failure(failure)],
        cell=f"{len(deadly)} {first.ending.value}",
        names=f"the server {verb} a request" + (f" with {parameters}" if parameters else ""),
        check=SharedCheck.SERVER,
        example=Example(symptom=Symptom.UNANSWERED, request_id=first.request_id),
        figures={"server_failures": len(deadly)},
    )


def _fail_together(captured: Captured, deadly: Sequence[ServerFailure]) -> Verdict:
    """Return FAIL for requests failing again only in flight together; the first failure, of the smallest group, is described."""
    first = deadly[0]
    leaving = {request.id for request in captured.workload.requests if request.abort_after is not None}
    count, verb = len(first.group), _VERB_OF_GROUP[first.ending]
    left = ", one of which its client leaves" if leaving & set(first.group) else ""
    return say(
        captured,
        Outcome.FAIL,
        f"the server {verb} with {count} requests in flight{left}, the smallest group found; it answers each alone, "
        f"and the baseline answers {_most_in_flight(captured)} at a time",
        short=(f"in flight    {_cut(', '.join(first.group), 120)}", f"ending       {_describe_ending(first)}", *_quote_log(first, 2)),
        evidence=[line for failure in (*deadly, *_other_failures(captured, deadly)) for line in _describe_failure(failure)],
        cell=f"{first.ending.value}, {count} in flight",
        names=f"the server {verb} with several requests in flight{left}",
        check=SharedCheck.SERVER,
        example=Example(
            symptom=Symptom.UNANSWERED, request_id=first.request_id, beside=tuple(id_ for id_ in first.group if id_ != first.request_id)
        ),
        figures={"server_failures": len(deadly), "smallest_group": count},
    )


def _fail_after(captured: Captured, deadly: Sequence[ServerFailure]) -> Verdict:
    """Return FAIL for a request failing again only right after another one; the first such failure is described."""
    first = deadly[0]
    verb, earlier = _VERB[first.ending], captured.workload.by_id[first.after]
    left, name = (", whose client left", "one that its client left") if earlier.abort_after is not None else ("", "another")
    return say(
        captured,
        Outcome.FAIL,
        f"the server {verb} request {first.request_id} right after {first.after}{left}, on a fresh server too; it answers it alone, "
        "and the baseline answers it after the same",
        short=(f"before it    {first.after}{left}", f"ending       {_describe_ending(first)}", *_quote_log(first, 2)),
        evidence=[line for failure in (*deadly, *_other_failures(captured, deadly)) for line in _describe_failure(failure)],
        cell=f"{first.ending.value} after another",
        names=f"the server {verb} a request right after {name}",
        check=SharedCheck.SERVER,
        example=Example(symptom=Symptom.UNANSWERED, request_id=first.request_id, after=first.after),
        figures={"server_failures": len(deadly)},
    )


def _most_in_flight(captured: Captured) -> int:
    """Return the most requests that the workload has in flight."""
    workload = captured.workload
    return max(map(len, workload.in_waves)) if workload.waves else workload.concurrency


def _other_failures(captured: Captured, deadly: Sequence[ServerFailure]) -> list[ServerFailure]:
    return [failure for failure in captured.speculative.server_failures if failure not in deadly]


def _judge_scattered(captured: Captured) -> Verdict | None:
    """Return FAIL for three or more failures without recurrence, else None.

    They are counted over all boots of the variant in the run, since no single request causes them; the baseline and the control must have
    none. The p-value is Fisher's, one-sided: the chance that all failures fall on the variant if each request is as likely to meet one in
    any arm. The rule is outside the run's false-alarm budget, as the report states. None for the control itself.
    """
    variant = captured.failures.get(captured.arm)
    others = [captured.failures[arm] for arm in (BASELINE, CONTROL) if arm in captured.failures]
    if captured.is_control or variant is None or not variant.are_finding(others):
        return None
    count, baseline_requests = len(variant.unexplained), sum(other.requests for other in others)
    p_value = proportions.greater_than_other(count, variant.requests, 0, baseline_requests)
    return say(
        captured,
        Outcome.FAIL,
        f"{count} of {variant.requests} requests met a crash, hang, 5xx or refusal that does not recur on replay; "
        f"baseline and control: 0 of {baseline_requests}",
        short=(
            *variant.unexplained[:3],
            f"rule         three scattered failures against none: p = {p_value:.2g}, outside the 1e-3 budget",
        ),
        evidence=(*variant.unexplained, *(line for failure in captured.speculative.server_failures for line in _describe_failure(failure))),
        cell=f"{count} scattered",
        names="scattered failures: the server dies, hangs or answers 5xx now and then",
        check=SharedCheck.SERVER,
        figures={"scattered_failures": count, "requests": variant.requests, "baseline_requests": baseline_requests, "p_value": p_value},
    )


def _describe_requests(failure: ServerFailure) -> str:
    """Describe the requests of a failure, to be followed by more words."""
    if not failure.group:
        return f"request {failure.request_id}" + (f" after {failure.after}" if failure.after else "")
    return f"{len(failure.group)} requests in flight together, {_cut(', '.join(failure.group))},"


def _describe_unrepeated(failures: Sequence[Sequence[ServerFailure]]) -> str:
    """Return a headline on failures without recurrence, by the first one.

    Each item of ``failures`` is one failure of the server, with an entry for every request in flight; ``recurred`` is None for a request
    that was not sent again.
    """
    first = failures[0][0]
    if first.answered:  # its request already had an answer: the server ended by itself
        replay = "with no request in flight"
    elif first.ending is FailureKind.REFUSED:
        replay = "and answers it when it is sent again"
    else:
        replay = "and was not tried again" if first.recurred is None else "and not again on a fresh server"
    others = f"; {len(failures) - 1} more such" if len(failures) > 1 else ""
    return f"infrastructure: the server {_describe_act(failures[0])} once, {replay}{others}"


def _describe_act(failures: Sequence[ServerFailure]) -> str:
    """Describe one failure by its first entry; there is one for each request in flight, any of which may have caused it."""
    first = failures[0]
    if first.answered:
        return f"ends on its own after its last answer (request {first.request_id})"
    others = f" (and {len(failures) - 1} more in flight)" if len(failures) > 1 else ""
    return f"{_VERB[first.ending]} request {first.request_id}{others}"


def _judge_infrastructure(captured: Captured, failures: Sequence[ServerFailure], headline: str, settle: str = "") -> Verdict:
    """Return INVALID for server failures not blamed on the variant.

    ``settle`` is the remedy in words if sending the workload again may help, and makes the verdict transient; else it is empty.
    """
    return say(
        captured,
        Outcome.INVALID,
        headline,
        short=(f"ending       {_describe_ending(failures[0])}", *_quote_log(failures[0], 3)),
        evidence=[line for failure in failures for line in _describe_failure(failure)],
        settle=settle,
        transient=bool(settle),
        figures={"server_failures": len(failures)},
    )


def _describe_ending(failure: ServerFailure) -> str:
    return f"{failure.ending.value}{': ' + failure.process if failure.process else ''}"


def _describe_failure(failure: ServerFailure) -> tuple[str, ...]:
    """Return lines on one failure: its recurrence, its cause, its log."""
    return (
        f"request {failure.request_id}: {_describe_ending(failure)}; {_describe_recurrence(failure)}",
        *_quote_cause(failure),
        *_quote_tail(failure, len(failure.log_tail)),
    )


def _describe_recurrence(failure: ServerFailure) -> str:
    """Describe what made a failure come back on a fresh server, if anything did."""
    if failure.after:
        return f"recurred right after {failure.after}"
    if failure.in_soak and failure.recurred:  # in minutes of the same traffic, where no request is sent again alone
        return "recurred in the same traffic on a fresh server"
    if failure.group:
        return f"recurred with {len(failure.group)} in flight: {', '.join(failure.group)}"
    return {True: "recurred alone on a fresh server", False: "did not recur", None: "not tried again"}[failure.recurred]


def _quote_cause(failure: ServerFailure) -> tuple[str, ...]:
    return (f"cause        {quote(failure.cause, 200)}",) if failure.cause else ()


def _quote_log(failure: ServerFailure, lines: int) -> tuple[str, ...]:
    """Return the cause of a failure, or else the last ``lines`` lines of its log.

    The cause is preferred since the last lines after a death are those of the shutdown.
    """
    return _quote_cause(failure) or _quote_tail(failure, lines)


def _quote_tail(failure: ServerFailure, lines: int) -> tuple[str, ...]:
    return tuple(f"log          {line}" for line in failure.log_tail[-lines:]) if lines else ()


def _unusual_parameters(captured: Captured, deadly: Sequence[ServerFailure]) -> str:
    """Return the request fields most likely to cause the first failure.

    They are the fields of its request, the prompt's left out, with values that no request without a failure has. If there are none, they
    are all fields but ordinary ones, such as max_tokens. Each is written as ``key=value``; empty without any.
    """
    harmed = {failure.request_id for failure in captured.speculative.server_failures}
    bodies = {request.id: request.body for request in captured.workload.requests}
    body = bodies.get(deadly[0].request_id, {})
    unharmed = [other for id_, other in bodies.items() if id_ not in harmed]
    # Without an unharmed request to compare with, every value would be unique.
    unique = {k: v for k, v in body.items() if k not in _PROMPT and unharmed and all(k not in other or other[k] != v for other in unharmed)}
    return _list_fields(unique or {k: v for k, v in body.items() if k not in _ORDINARY})


def _list_fields(body: Mapping[str, JSON]) -> str:
    return ", ".join(f"{key}={_cut(json.dumps(value, ensure_ascii=True, separators=(',', ':')))}" for key, value in body.items())


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _check_unanswered(captured: Captured) -> Verdict | None:
    """Return INVALID if answers are missing without any server failure.

    Their requests were lost, never sent, or held back after they failed a server alone. Refused requests and those aborted by their client
    do not count. The judged arm is looked at first, then the baseline's boots; None if no answer is missing.
    """
    for transcript in (captured.speculative, *captured.baseline_boots):
        silent = [a for a in transcript.answers if not a.ok and not a.aborted and not is_refusal(a)]
        expected = len(captured.workload.requests) * captured.workload.passes
        missing = len(silent) + max(0, expected - len(transcript.answers))
        if missing:
            lines = [f"request {a.request_id}: status {a.status}, {quote(a.error or '', 200)}" for a in silent]
            headline = f"{missing} of {expected} requests have no answer from {transcript.arm}, with no server failure"
            return say(captured, Outcome.INVALID, headline, evidence=lines, figures={"unanswered_requests": missing})
    return None


def _fail_answers(captured: Captured) -> Verdict | None:
    """Return FAIL for empty or late answers, unlike the baseline's.

    Bad is an empty answer if the baseline's to the same request is not empty, or a late one if the baseline's is not late. The headline
    also counts the baseline's own empty or late answers, which are to other requests. None without a bad answer.
    """
    baseline = {answer.key: answer for answer in captured.baseline.answers}
    for what, is_bad in (("empty", _is_empty), (f"later than the deadline of {captured.workload.deadline_s:g} s", _is_late)):
        bad = [
            a
            for a in captured.speculative.answers
            if is_bad(captured, a) and a.key in baseline and baseline[a.key].ok and not is_bad(captured, baseline[a.key])
        ]
        if bad:
            count = len(captured.speculative.answers)
            elsewhere = sum(is_bad(captured, other) for other in baseline.values())
            beside = f"{elsewhere} of {len(baseline)} of the baseline's, to other requests" if elsewhere else "none of the baseline's"
            headline = f"{len(bad)} of {count} answers {what}, {beside}; first: request {bad[0].request_id}"
            lines = [
                f"request {a.request_id}, pass {a.pass_index}: {_describe_latency(a)}, finish reason {a.choice.finish_reason}" for a in bad
            ]
            return say(
                captured,
                Outcome.FAIL,
                headline,
                short=lines[:4],
                evidence=lines,
                cell=f"{len(bad)} bad",
                example=Example(symptom=Symptom.ANSWER, request_id=bad[0].request_id, pass_index=bad[0].pass_index),
                figures={"bad_answers": len(bad)},
            )
    return None


def _is_empty(_: Captured, answer: Answer) -> bool:
    """Return True if an answer came without text, ids or counted tokens; called as :func:`_is_late` is."""
    content = any(choice.written or choice.token_ids for choice in answer.choices)
    return answer.ok and not content and not (answer.usage and answer.usage.completion_tokens)


def _is_late(captured: Captured, answer: Answer) -> bool:
    return answer.ok and answer.timing is not None and answer.timing.latency_s > captured.workload.deadline_s


def _describe_latency(answer: Answer) -> str:
    return f"{answer.timing.latency_s:.1f} s" if answer.timing else "time unknown"


def _pass_liveness(captured: Captured) -> Verdict:
    """Return PASS, with the numbers of answered and of refused requests."""
    answers = captured.speculative.answers
    good = sum(answer.ok for answer in answers)
    refusals = sum(map(is_refusal, answers))
    slowest = max((a.timing.latency_s for a in answers if a.ok and a.timing), default=None)
    pace = "" if slowest is None else f", slowest {slowest:.1f} s"
    return say(
        captured,
        Outcome.PASS,
        f"{good} of {len(answers)} requests answered{pace}" + (f"; {refusals} refused with a 4xx" if refusals else ""),
        evidence=(*describe_refusals(answers), *_list_one_sided_refusals(captured)),
        rules_out=f"{good} requests answered; a failure rate above {proportions.ruled_out(good):.1%} would have been caught (99%)",
        cell=f"{good} of {len(answers)}",
        figures={"answered_requests": good, "refused_requests": refusals},
    )


def _list_one_sided_refusals(captured: Captured) -> list[str]:
    """Return lines, for information, on requests refused by the judged arm or the baseline alone."""
    baseline = {answer.key: answer for answer in captured.baseline.answers}
    both = [(answer, baseline[answer.key]) for answer in captured.speculative.answers if answer.key in baseline]
    only_here = [answer.request_id for answer, other in both if is_refusal(answer) and other.ok]
    only_there = [answer.request_id for answer, other in both if answer.ok and is_refusal(other)]
    lines = [f"refused capability: {len(only_here)} requests that the baseline answers, first {only_here[0]}"] if only_here else []
    return lines + ([f"answered although the baseline refuses: {len(only_there)}, first {only_there[0]}"] if only_there else [])
