"""Tools: calls, reasoning and text come out of the same tokens alike, streamed or whole, and are what the request asked for.

Tokens are not compared: if two arms emitted different ones, each answer is judged by the rules alone. A peer is a boot of the baseline, the
server without speculation; its second boot is the control. A breach is one fault of one answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating
from pytest_specdec.judge.tool_rules import BY_MODEL, CHOSEN, Breach, ToolFault, compare_answers, find_faults, requested_tools
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.judge.tool_rules import RequestedTools
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["judge"]

_SHOWN = 30
_PROMPTS, _MOSTLY = 3, 0.75
"""Prompts, and the share of their answers in which each boot of the baseline calls a tool, from which on no call at all is doubtful."""
_HIDDEN = 1
"""Tokens by which usage and ids may differ though no id is missing: an end of sequence, in one of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """The answers of one arm."""

    requests: Mapping[str, Request]
    answers: tuple[Answer, ...]

    def choice(self, answer: Answer) -> str:
        """Return the tool_choice of an answer's request, in one word."""
        return requested_tools(self.requests[answer.request_id]).choice

    def pairs(self) -> list[tuple[Answer, Answer]]:
        """Return each streamed answer with its whole counterpart.

        Both answer equal requests in one pass. Streamed answers without a whole one are left out.
        """
        whole = {(self.requests[a.request_id].asks, a.pass_index): a for a in self.answers if not self.requests[a.request_id].stream}
        streamed = (answer for answer in self.answers if self.requests[answer.request_id].stream)
        both = ((answer, whole.get((self.requests[answer.request_id].asks, answer.pass_index))) for answer in streamed)
        return [(answer, other) for answer, other in both if other is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """Faults in the answers of one arm."""

    differing: tuple[Breach, ...] = ()
    """Answers that differ from another one of the same tokens."""
    alone: tuple[Breach, ...] = ()
    """Answers that are wrong by themselves."""
    compared: int = 0
    """Answers that were compared with another one of the same tokens."""
    answers: int
    """All answers of the arm."""

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """All faults, those beside another answer first."""
        return (*self.differing, *self.alone)


def judge(captured: Captured) -> Verdict:
    """Return the verdict on tool calls, reasoning and text of answers.

    Faults that the baseline or the control have too are left out, and listed in the verdict. A fault of the server FAILs at its first
    answer. A fault that a model may commit by itself FAILs so only if another answer of the same tokens differs, or if the request requires
    a call and the baseline enforces schemas; otherwise Fisher's exact test against the baseline decides, at the captured share of alpha.
    """
    return server_failure(captured) or refusal(captured) or _judge_tools(captured)


def _judge_tools(captured: Captured) -> Verdict:
    """Return the first applicable verdict on the answers.

    Faults that are surely the server's come first, then faults by frequency, streams unlike whole answers, endings, missing drafts, a
    baseline that calls no tools, and missing calls of the arm.
    """
    requests = captured.workload.by_id
    peers = tuple(_select_answers(requests, transcript) for transcript in captured.baseline_boots)
    arm = _select_answers(requests, captured.speculative)
    peer_findings = [_find_breaches(peer, peers) for peer in peers]  # of each boot, compared with its own and the others' answers
    baseline_faults = _baseline_faults(peers, peer_findings)
    findings = _find_breaches(arm, peers)
    counted = [breach for breach in findings.breaches if breach.fault not in baseline_faults]
    wrong = [breach for breach in counted if _is_by_server(captured, breach, findings, requests)]
    return (
        (_fail_tools(captured, wrong, peer_findings) if wrong else None)
        or _check_frequency(captured, findings, peer_findings)
        or _check_streams(captured, arm, peers)
        or check_endings(captured)
        or speculating(captured, needs_rejections=False)
        or _check_baseline_calls(captured, arm, peers)
        or _check_missing_calls(captured, arm, peers)
        or _pass_tools(captured, arm, findings, peers, peer_findings)
    )


def _baseline_faults(peers: Sequence[_Arm], peer_findings: Sequence[_Findings]) -> frozenset[ToolFault]:
    """Return the faults of the baseline's boots, which do not count on the variant."""
    faults = frozenset(breach.fault for other in peer_findings for breach in other.breaches) | _find_stream_faults(peers)
    return faults - {ToolFault.NOT_CALLED}  # It is counted in every arm, beside the other boots.


def _find_stream_faults(peers: Sequence[_Arm]) -> frozenset[ToolFault]:
    """Return the faults of the baseline's streams beside whole answers.

    Both are of one boot and the same tokens, for equal requests. Elsewhere a boot's stream is compared with another boot's first, which may
    have the same fault.
    """
    pairs = ((stream, whole) for peer in peers for stream, whole in peer.pairs() if _ids(stream) and _ids(stream) == _ids(whole))
    return frozenset(difference[0] for stream, whole in pairs if (difference := _difference(stream, whole)))


def _select_answers(requests: Mapping[str, Request], transcript: Transcript) -> _Arm:
    """Return an arm's successful answers with one choice."""
    answers = tuple(answer for answer in transcript.answers if answer.ok and answer.request_id in requests and len(answer.choices) == 1)
    return _Arm(requests=requests, answers=answers)


def _ids(answer: Answer) -> tuple[int, ...]:
    """Return the token ids of an answer; empty if some are missing.

    Streams of some engines leave out tokens without text; the usage counts them all. It may differ by _HIDDEN, an end of sequence.
    """
    ids, usage = answer.choice.token_ids, answer.usage
    return ids if usage is None or abs(usage.completion_tokens - len(ids)) <= _HIDDEN else ()


def _find_breaches(arm: _Arm, peers: Sequence[_Arm]) -> _Findings:
    """Return the faults in the answers of ``arm``.

    ``peers`` are the baseline's boots, of which ``arm`` may be one. An answer is compared with others of the same tokens
    (:func:`_same_tokens`), and checked by itself only if it does not differ. Only its first fault counts.
    """
    differing, alone, compared = [], [], 0
    reasons, uncalled = _finish_reasons(peers), {answer.key for answer in _find_uncalled(arm, peers)}
    for answer in arm.answers:
        request = arm.requests[answer.request_id]
        # A boot of the baseline is among its own peers.
        others = [other for other in _same_tokens(answer, arm, peers) if other is not answer]
        compared += bool(others)
        difference = next((unlike for other in others if (unlike := _difference(answer, other))), None)
        if difference is not None:
            fault, what = difference
            differing.append(Breach(fault=fault, request_id=answer.request_id, what=what))
            continue
        faults = find_faults(requested_tools(request), answer.choice) + _check_finish(requested_tools(request), answer.choice, reasons)
        if answer.key in uncalled:
            faults.append((ToolFault.NOT_CALLED, f"content is {quote(answer.choice.text, 60)}"))
        alone += [Breach(fault=fault, request_id=answer.request_id, what=what) for fault, what in faults[:1]]
    return _Findings(differing=tuple(differing), alone=tuple(alone), compared=compared, answers=len(arm.answers))


def _find_uncalled(arm: _Arm, peers: Sequence[_Arm]) -> Iterator[Answer]:
    """Yield answers without a call where all other boots of the baseline call a tool.

    Each prompt counts once, since a near-tie between a call and a text changes all its answers. None are yielded without another boot.
    """
    others = [{answer.key: answer.choice.tool_calls for answer in peer.answers} for peer in peers if peer is not arm]
    prompts: set[str] = set()
    for answer in arm.answers:
        prompt = arm.requests[answer.request_id].asks
        if others and prompt not in prompts and not answer.choice.tool_calls and all(calls.get(answer.key) for calls in others):
            prompts.add(prompt)
            yield answer


def _same_tokens(answer: Answer, arm: _Arm, peers: Sequence[_Arm]) -> list[Answer]:
    """Return answers of the same tokens to the same question.

    The first kind with an answer is taken: one of a baseline boot to the same request, all of the boots to requests that ask the same, or
    for a streamed answer the arm's own to such requests. Empty without all token ids. An arm among ``peers`` may have ``answer`` returned.
    """
    ids, request = _ids(answer), arm.requests[answer.request_id]
    if not ids:
        return []

    def alike(other: Answer) -> bool:
        return arm.requests[other.request_id].asks == request.asks and _ids(other) == ids

    of_peers = [other for peer in peers for other in peer.answers if alike(other)]
    same_request = [other for other in of_peers if other.request_id == answer.request_id and other is not answer]
    arm_answers = arm.answers if request.stream else ()
    of_arm = [other for other in arm_answers if other is not answer and alike(other)]
    return same_request[:1] or of_peers or of_arm


def _difference(answer: Answer, other: Answer) -> tuple[ToolFault, str] | None:
    """Return the fault of ``answer`` beside ``other``, or None if equal.

    Both have the same tokens. They may differ in content, or in the reasoning tokens that usage counts, if it counts them.
    """
    difference = compare_answers(answer.choice, other.choice)
    if difference is not None or answer.usage is None or other.usage is None:
        return difference
    counted, others = answer.usage.reasoning_tokens, other.usage.reasoning_tokens
    if counted is None or others is None or counted == others:
        return None
    return ToolFault.COUNT, f"usage counts {counted} reasoning tokens, elsewhere {others} of the same tokens"


def _finish_reasons(peers: Iterable[_Arm]) -> dict[str, frozenset[str | None]]:
    """Return the baseline's finish reasons after calls, by tool_choice.

    They are learned, since engines differ in the reason for a call that the request required.
    """
    reasons: dict[str, frozenset[str | None]] = {}
    for peer in peers:
        for answer in peer.answers:
            if answer.choice.tool_calls:
                choice = requested_tools(peer.requests[answer.request_id]).choice
                reasons[choice] = reasons.get(choice, frozenset()) | {answer.choice.finish_reason}
    return reasons


def _check_finish(tools: RequestedTools, choice: Choice, reasons: Mapping[str, frozenset[str | None]]) -> list[tuple[ToolFault, str]]:
    """Return the fault of a finish reason unlike the baseline's.

    ``reasons`` are the baseline's, by tool_choice. Empty for an answer without calls, for one cut by its limit, and if the baseline calls
    no tool under this tool_choice.
    """
    usual = reasons.get(tools.choice, frozenset()) - {"length"}
    if not choice.tool_calls or not usual or choice.finish_reason in {*usual, "length"}:
        return []
    return [
        (
            ToolFault.FINISH,
            f"finish_reason {choice.finish_reason!r} with {len(choice.tool_calls)} calls, the baseline's {sorted(map(str, usual))}",
        )
    ]


def _is_by_server(captured: Captured, breach: Breach, findings: _Findings, requests: Mapping[str, Request]) -> bool:
    """Return True if the server, not the model, surely caused the fault.

    It caused those that no model commits (not in BY_MODEL), and those at which another answer of the same tokens differs. Those of CHOSEN
    may always be the model's. It caused the others if the request requires a call and the baseline enforces schemas.
    """
    if breach.fault not in BY_MODEL or breach in findings.differing:
        return True
    if breach.fault in CHOSEN:
        return False
    capabilities = captured.capabilities.get(BASELINE)
    enforced = capabilities is None or capabilities.support.get("json_schema") is not FeatureSupport.IGNORED
    return enforced and requested_tools(requests[breach.request_id]).required


def _fail_tools(captured: Captured, wrong: Sequence[Breach], peers: Sequence[_Findings]) -> Verdict:
    """Return FAIL, named after the most frequent of these faults.

    ``wrong`` has one fault at most of an answer. ``peers`` are those of each boot of the baseline; the headline counts the same fault.
    """
    counts = Counter(breach.fault for breach in wrong)
    fault, count = counts.most_common(1)[0]
    first = next(breach for breach in wrong if breach.fault is fault)
    others = ", ".join(f"{other.value} in {number}" for other, number in counts.most_common() if other is not fault)
    answers = sum(answer.ok for answer in captured.speculative.answers)
    streamed = {request.id for request in captured.workload.requests if request.stream}
    wrong_streamed = sum(breach.request_id in streamed for breach in wrong)
    return say(
        captured,
        Outcome.FAIL,
        f"{fault.value}: in {count} of {answers} answers, {_describe_peers(captured, fault, peers)}" + (f"; {others}" if others else ""),
        short=(f"first        {first.request_id}: {first.what}", f"streamed     {wrong_streamed} of {len(wrong)} wrong answers"),
        evidence=(*map(str, wrong[:_SHOWN]), *([f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else [])),
        cell=f"{len(wrong)} wrong",
        names=fault.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"answers": float(answers), "wrong_answers": float(len(wrong)), "wrong_streamed": float(wrong_streamed)},
    )


def _describe_peers(captured: Captured, fault: ToolFault, peers: Sequence[_Findings]) -> str:
    """Return the number of answers of each baseline boot with ``fault``, in words."""
    counts = [sum(breach.fault is fault for breach in peer.breaches) for peer in peers]
    if not any(counts):
        return "none of the baseline's"
    boots = zip(captured.baseline_boots, counts, peers, strict=True)
    return ", ".join(f"{boot.arm} {count} of {peer.answers}" for boot, count, peer in boots)


def _check_frequency(captured: Captured, findings: _Findings, peers: Sequence[_Findings]) -> Verdict | None:
    """Return FAIL if faults of BY_MODEL are too frequent, else None.

    A model may commit them by itself: Fisher's exact test must reject against each boot of the baseline, whose faults are ``peers``.
    """
    by_model = [breach for breach in findings.alone if breach.fault in BY_MODEL]
    return _fail_tools(captured, by_model, peers) if _is_frequent(captured, len(by_model), findings.answers, peers) else None


def _is_frequent(captured: Captured, count: int, answers: int, peers: Sequence[_Findings]) -> bool:
    """Return True if ``count`` faults of BY_MODEL in ``answers`` are too many beside each boot of the baseline."""
    boots = [(sum(breach.fault in BY_MODEL for breach in peer.alone), peer.answers) for peer in peers]
    # Each boot must reject, so that the largest p-value decides.
    return count > 0 and max(proportions.greater_than_other(count, answers, *boot) for boot in boots) < captured.alpha


def _describe_detectable(captured: Captured, answers: int, peers: Sequence[_Findings]) -> str:
    """Return the rate of wrong answers caught with 99 % probability, in words."""
    # A FAIL takes one fault that no model commits. Of faults that a model may commit it takes more: so many that ``peers``, the baseline's
    # boots, surely have fewer. A server at a rate above the upper limit for least - 1 faults commits that many with 99 % probability
    # (two-sided limits at 98 % are one-sided ones at 99 %).
    least = next((count for count in range(1, answers + 1) if _is_frequent(captured, count, answers, peers)), None)
    certain = f"a rate above {proportions.ruled_out(answers):.1%} of faults that no model commits would have been caught (99%)"
    if least is None:
        return f"{answers} answers checked; {certain}; untested: others, of which even {answers} would not be too many"
    return f"{answers} answers checked; {certain}, and above {proportions.limits(least - 1, answers, 0.98).high:.1%} of others"


def _check_streams(captured: Captured, arm: _Arm, peers: Sequence[_Arm]) -> Verdict | None:
    """Return FAIL if streams differ from whole answers too often, else None.

    A whole answer is one to the same question without streaming. Only unsure pairs count, without complete token ids: their tokens may
    differ, so that a single difference proves nothing. Fisher's exact test must reject against each boot of the baseline.
    """
    differing = _differing_streams(arm)
    if not differing:
        return None
    unsure_pairs = _count_unsure_pairs(arm)
    peer_findings = [_Findings(differing=tuple(_differing_streams(peer)), answers=len(peer.answers)) for peer in peers]
    p_value = max(
        proportions.greater_than_other(len(differing), unsure_pairs, len(streams.differing), _count_unsure_pairs(peer))
        for streams, peer in zip(peer_findings, peers, strict=True)
    )
    return _fail_tools(captured, differing, peer_findings) if p_value < captured.alpha else None


def _count_unsure_pairs(arm: _Arm) -> int:
    """Count the pairs of a stream and a whole answer without complete token ids."""
    return sum(not _ids(answer) or not _ids(other) for answer, other in arm.pairs())


def _differing_streams(arm: _Arm) -> list[Breach]:
    """Return the streams of unsure pairs that differ from the whole answers."""
    unsure = ((answer, other) for answer, other in arm.pairs() if not _ids(answer) or not _ids(other))
    compared = ((answer, compare_answers(answer.choice, other.choice)) for answer, other in unsure)
    return [Breach(fault=fault[0], request_id=answer.request_id, what=fault[1]) for answer, fault in compared if fault]


def _count_calls(arm: _Arm) -> Counter[str]:
    """Count the answers with calls, by tool_choice."""
    return Counter(arm.choice(answer) for answer in arm.answers if answer.choice.tool_calls)


def _count_offers(arm: _Arm) -> Counter[str]:
    """Count the answers to requests that offer tools, by tool_choice."""
    return Counter(choice for answer in arm.answers if (choice := arm.choice(answer)) != "none")


def _check_baseline_calls(captured: Captured, arm: _Arm, peers: Sequence[_Arm]) -> Verdict | None:
    """Return INCONCLUSIVE if the baseline calls no tool, else None.

    Nothing is then known about calls. It is REFUSED instead if the judged arm also refused every request with tools.
    """
    if _count_calls(peers[0]):
        return None
    with_tools = [answer for answer in captured.speculative.answers if requested_tools(arm.requests[answer.request_id]).choice != "none"]
    if with_tools and all(map(is_refusal, with_tools)):
        headline = f"all {len(with_tools)} requests with tools were refused; {len(arm.answers)} others keep the law"
        return say(captured, Outcome.REFUSED, headline, evidence=describe_refusals(with_tools), cell="refused")
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"the tools did not bind: the baseline calls none in {_count_offers(peers[0]).total()} answers that may; nothing is wrong in "
        f"{len(arm.answers)} answers",
        evidence=describe_refusals(captured.speculative.answers),
        settle="switch on the engine's tool parser, or serve a model that calls tools",
        cell="no calls",
    )


def _check_missing_calls(captured: Captured, arm: _Arm, peers: Sequence[_Arm]) -> Verdict | None:
    """Return INCONCLUSIVE for a tool_choice without a call where the baseline mostly calls, else None.

    Every boot of the baseline calls in three quarters or more. The prompts are too few for an alarm, and too many for near-ties.
    """
    for choice, offered in _count_offers(arm).items():
        prompts = {arm.requests[answer.request_id].asks for answer in arm.answers if arm.choice(answer) == choice}
        calls = [(_count_calls(peer)[choice], _count_offers(peer)[choice]) for peer in peers]
        if _count_calls(arm)[choice] or len(prompts) < _PROMPTS or any(called < max(1.0, _MOSTLY * total) for called, total in calls):
            continue
        baseline = f"{sum(called for called, _ in calls)} of {sum(total for _, total in calls)} of the baseline's"
        return say(
            captured,
            Outcome.INCONCLUSIVE,
            f"none of {offered} answers under tool_choice {choice} calls a tool, {baseline} do: too few to tell",
            settle="more prompts with this tool_choice",
            cell=f"{choice}: no calls",
        )
    return None


def _pass_tools(
    captured: Captured,
    arm: _Arm,
    findings: _Findings,
    peers: Sequence[_Arm],
    peer_findings: Sequence[_Findings],
) -> Verdict:
    """Return PASS, naming the faults left out because the baseline has them, and missing calls."""
    called, offered = _count_calls(arm), _count_offers(arm)
    calls = sum(len(answer.choice.tool_calls) for answer in arm.answers)
    unbound = [choice for choice in offered if not called[choice] and not any(_count_calls(peer)[choice] for peer in peers)]  # no arm calls
    uncalled = sum(breach.fault is ToolFault.NOT_CALLED for breach in findings.alone)
    by_choice = ", ".join(f"{choice} {called[choice]} of {offered[choice]}" for choice in offered)
    left_out = "".join(
        f"; left out, as the baseline does it too: {fault.value}" for fault in sorted(_baseline_faults(peers, peer_findings))
    )
    refusals = sum(map(is_refusal, captured.speculative.answers))
    return say(
        captured,
        Outcome.PASS,
        f"{calls} tool calls well formed, in {called.total()} of {len(arm.answers)} answers; "
        f"{findings.compared} answers say what others say of the same tokens"
        + "".join(f"; {choice} did not bind" for choice in unbound)
        + (f"; at {uncalled} prompts no tool is called where the baseline calls one, too few to tell" if uncalled else "")
        + (f"; {refusals} requests refused" if refusals else "")
        + left_out,
        evidence=(f"answers with calls by tool_choice: {by_choice}", *describe_refusals(captured.speculative.answers)),
        rules_out=_describe_detectable(captured, findings.answers, peer_findings),
        cell=f"{calls} calls",
        figures={
            "answers": float(len(arm.answers)),
            "answers_with_calls": float(called.total()),
            "tool_calls": float(calls),
            "compared_answers": float(findings.compared),
            "twins": float(len(arm.pairs())),  # streams with a whole answer to an equal request
        },
    )
