"""Tools: calls, reasoning and text come out of the same tokens alike, streamed or whole, and are what the request asked for.

Tokens are not compared: where two arms chose others, each answer is held to the law alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, messages, refusal, speculating
from pytest_specdec.judge.tool_rules import BY_MODEL, Breach, Broken, apart, breaches, requested_tools
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.judge.tool_rules import ToolsAsked
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["judge"]

_SHOWN = 30
_HIDDEN = 1
"""Tokens by which usage may exceed the ids of an answer that shows all it has: an end of sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """The answers of one arm."""

    requests: Mapping[str, Request]
    answers: tuple[Answer, ...]

    def pairs(self) -> list[tuple[Answer, Answer]]:
        """Return the answers that were streamed, each beside the whole one to the same question in the same pass."""
        whole = {(self.requests[a.request_id].asks, a.pass_index): a for a in self.answers if not self.requests[a.request_id].stream}
        streamed = (answer for answer in self.answers if self.requests[answer.request_id].stream)
        both = ((answer, whole.get((self.requests[answer.request_id].asks, answer.pass_index))) for answer in streamed)
        return [(answer, other) for answer, other in both if other is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What is wrong with the answers of one arm."""

    differing: tuple[Breach, ...] = ()
    """Answers that say something else than another one of the same tokens."""
    alone: tuple[Breach, ...] = ()
    """Answers that are wrong by themselves."""
    compared: int = 0
    """Answers that were held beside another one of the same tokens."""


def judge(captured: Captured) -> Verdict:
    """Return whether the judged arm's calls, reasoning and text keep the law, wherever the baseline's own do.

    What the baseline or the control break themselves is left out, and said. What a model may write by itself fails at the first answer
    only where a call is required, the baseline enforces schemas, and breaks nothing; elsewhere by Fisher's exact test at the captured share
    of alpha.
    """
    return server_failure(captured) or refusal(captured) or _judge_tools(captured)


def _judge_tools(captured: Captured) -> Verdict:
    requests = captured.workload.by_id
    peers = tuple(_arm(requests, transcript) for transcript in captured.baseline_boots)
    mine = _arm(requests, captured.speculative)
    theirs = [_found(peer, peers) for peer in peers]
    spoilt = frozenset(breach.broken for other in theirs for breach in (*other.differing, *other.alone))
    findings = _found(mine, peers)
    wrong = [
        breach
        for breach in (*findings.differing, *findings.alone)
        if breach.broken not in spoilt and _sure(captured, breach, findings, requests)
    ]
    return (
        (_fail_tools(captured, wrong) if wrong else None)
        or _more_often(captured, findings, theirs, len(mine.answers), [len(peer.answers) for peer in peers])
        or _unlike(captured, mine, peers)
        or check_endings(captured)
        or speculating(captured, rejecting=False)
        or _check_unbound(captured, mine, peers)
        or _pass_tools(captured, mine, findings, spoilt)
    )


def _arm(requests: Mapping[str, Request], transcript: Transcript) -> _Arm:
    answers = tuple(answer for answer in transcript.answers if answer.ok and answer.request_id in requests and len(answer.choices) == 1)
    return _Arm(requests=requests, answers=answers)


def _ids(answer: Answer) -> tuple[int, ...]:
    """Return the ids of an answer that shows all of them: streams of some engines leave out those that bring no text."""
    ids, usage = answer.choice.token_ids, answer.usage
    return ids if usage is None or abs(usage.completion_tokens - len(ids)) <= _HIDDEN else ()


def _found(mine: _Arm, peers: Sequence[_Arm]) -> _Findings:
    differing, alone, compared = [], [], 0
    reasons = _reasons(peers)
    for answer in mine.answers:
        request = mine.requests[answer.request_id]
        others = [other for other in _same_tokens(answer, mine, peers) if other is not answer]
        compared += bool(others)
        parted = next((difference for other in others if (difference := _apart(answer, other))), None)
        if parted is not None:
            differing.append(Breach(broken=parted[0], request_id=answer.request_id, what=parted[1]))
            continue
        laws = breaches(requested_tools(request), answer.choice) + _finish(requested_tools(request), answer.choice, reasons)
        alone += [Breach(broken=broken, request_id=answer.request_id, what=what) for broken, what in laws[:1]]
    return _Findings(differing=tuple(differing), alone=tuple(alone), compared=compared)


def _same_tokens(answer: Answer, mine: _Arm, peers: Sequence[_Arm]) -> list[Answer]:
    """Return answers of the same tokens to the same question: the baseline's to the same request, else its others.

    A stream without any is held beside the arm's own whole answer.
    """
    ids, asks = _ids(answer), mine.requests[answer.request_id].asks
    if not ids:
        return []
    alike = [
        [other for other in arm.answers if mine.requests[other.request_id].asks == asks and _ids(other) == ids] for arm in (*peers, mine)
    ]
    of_peers = [other for arm in alike[:-1] for other in arm]
    exact = [other for other in of_peers if other.request_id == answer.request_id and other is not answer]
    own = [other for other in alike[-1] if mine.requests[answer.request_id].stream and other is not answer]
    return exact[:1] or of_peers or own


def _apart(answer: Answer, other: Answer) -> tuple[Broken, str] | None:
    parted = apart(answer.choice, other.choice)
    if parted is not None or answer.usage is None or other.usage is None:
        return parted
    counted, others = answer.usage.reasoning_tokens, other.usage.reasoning_tokens
    if counted is None or others is None or counted == others:
        return None
    return Broken.COUNT, f"usage counts {counted} reasoning tokens, elsewhere {others} of the same tokens"


def _reasons(peers: Iterable[_Arm]) -> dict[str, frozenset[str | None]]:
    """Return how the baseline's answers with calls end, by what was asked: engines disagree on a tool that had to be called."""
    reasons: dict[str, frozenset[str | None]] = {}
    for peer in peers:
        for answer in peer.answers:
            if answer.choice.tool_calls:
                choice = requested_tools(peer.requests[answer.request_id]).choice
                reasons[choice] = reasons.get(choice, frozenset()) | {answer.choice.finish_reason}
    return reasons


def _finish(tools: ToolsAsked, choice: Choice, reasons: Mapping[str, frozenset[str | None]]) -> list[tuple[Broken, str]]:
    known = reasons.get(tools.choice, frozenset()) - {"length"}
    if not choice.tool_calls or not known or choice.finish_reason in {*known, "length"}:
        return []
    return [
        (
            Broken.FINISH,
            f"finish_reason {choice.finish_reason!r} with {len(choice.tool_calls)} calls, the baseline's {sorted(map(str, known))}",
        )
    ]


def _sure(captured: Captured, breach: Breach, found: _Findings, requests: Mapping[str, Request]) -> bool:
    """Whether a breach is the server's: the model cannot have written it."""
    if breach.broken not in BY_MODEL or breach in found.differing:
        return True
    known = captured.capabilities.get(BASELINE)
    enforced = known is None or known.support.get("json_schema") is not FeatureSupport.IGNORED
    return enforced and requested_tools(requests[breach.request_id]).required


def _fail_tools(captured: Captured, wrong: Sequence[Breach]) -> Verdict:
    counts = Counter(breach.broken for breach in wrong)
    broken, count = counts.most_common(1)[0]
    first = next(breach for breach in wrong if breach.broken is broken)
    others = ", ".join(f"{other.value} in {number}" for other, number in counts.most_common() if other is not broken)
    answers = sum(answer.ok for answer in captured.speculative.answers)
    streamed = {request.id for request in captured.workload.requests if request.stream}
    mostly = sum(breach.request_id in streamed for breach in wrong)
    return say(
        captured,
        Outcome.FAIL,
        f"{broken.value}: in {count} of {answers} answers, none of the baseline's" + (f"; {others}" if others else ""),
        short=(f"first        {first.request_id}: {first.what}", f"streamed     {mostly} of {len(wrong)} wrong answers"),
        evidence=(*map(str, wrong[:_SHOWN]), *([f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else [])),
        cell=f"{len(wrong)} wrong",
        names=broken.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"answers": float(answers), "wrong_answers": float(len(wrong)), "wrong_streamed": float(mostly)},
    )


def _more_often(captured: Captured, found: _Findings, theirs: Sequence[_Findings], answers: int, others: Sequence[int]) -> Verdict | None:
    """Test whether calls are wrong more often than the baseline's, where a model may write wrong ones by itself."""
    mine = [breach for breach in found.alone if breach.broken in BY_MODEL]
    counts = [sum(breach.broken in BY_MODEL for breach in other.alone) for other in theirs]
    p_value = max(proportions.greater_than_other(len(mine), answers, count, total) for count, total in zip(counts, others, strict=True))
    return _fail_tools(captured, mine) if mine and p_value < captured.alpha else None


def _unlike(captured: Captured, mine: _Arm, peers: Sequence[_Arm]) -> Verdict | None:
    """Test whether streams differ from whole answers more often than the baseline's, where no ids tell whether tokens do."""
    unlike = [_unlike_pairs(arm) for arm in (mine, *peers)]
    if not unlike[0]:
        return None
    totals = [sum(not _ids(answer) or not _ids(other) for answer, other in arm.pairs()) for arm in (mine, *peers)]
    tested = (
        proportions.greater_than_other(len(unlike[0]), totals[0], len(pairs), total)
        for pairs, total in zip(unlike[1:], totals[1:], strict=True)
    )
    return _fail_tools(captured, unlike[0]) if max(tested) < captured.alpha else None


def _unlike_pairs(arm: _Arm) -> list[Breach]:
    unknown = ((answer, other) for answer, other in arm.pairs() if not _ids(answer) or not _ids(other))
    parted = ((answer, apart(answer.choice, other.choice)) for answer, other in unknown)
    return [Breach(broken=difference[0], request_id=answer.request_id, what=difference[1]) for answer, difference in parted if difference]


def _count_calls(arm: _Arm) -> Counter[str]:
    """Count the answers with calls by what was asked."""
    return Counter(requested_tools(arm.requests[answer.request_id]).choice for answer in arm.answers if answer.choice.tool_calls)


def _count_offers(arm: _Arm) -> Counter[str]:
    return Counter(choice for answer in arm.answers if (choice := requested_tools(arm.requests[answer.request_id]).choice) != "none")


def _check_unbound(captured: Captured, mine: _Arm, peers: Sequence[_Arm]) -> Verdict | None:
    """Return INCONCLUSIVE where the baseline calls no tool: nothing is shown of calls then."""
    if _count_calls(peers[0]):
        return None
    tools = [answer for answer in captured.speculative.answers if requested_tools(mine.requests[answer.request_id]).choice != "none"]
    if tools and all(map(is_refusal, tools)):
        headline = f"all {len(tools)} requests with tools were refused; {len(mine.answers)} others keep the law"
        return say(captured, Outcome.REFUSED, headline, evidence=messages(tools), cell="refused")
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"the tools did not bind: the baseline calls none in {_count_offers(peers[0]).total()} answers that may; nothing is wrong in "
        f"{len(mine.answers)} answers",
        evidence=messages(captured.speculative.answers),
        settle="switch on the engine's tool parser, or serve a model that calls tools",
        cell="no calls",
    )


def _pass_tools(captured: Captured, mine: _Arm, found: _Findings, spoilt: frozenset[Broken]) -> Verdict:
    called, offered = _count_calls(mine), _count_offers(mine)
    calls = sum(len(answer.choice.tool_calls) for answer in mine.answers)
    unbound = [choice for choice in offered if not called[choice]]
    by_choice = ", ".join(f"{choice} {called[choice]} of {offered[choice]}" for choice in offered)
    left_out = "".join(f"; left out, as the baseline does it too: {broken.value}" for broken in sorted(spoilt))
    refusals = sum(map(is_refusal, captured.speculative.answers))
    return say(
        captured,
        Outcome.PASS,
        f"{calls} tool calls well formed, in {called.total()} of {len(mine.answers)} answers; "
        f"{found.compared} answers say what others say of the same tokens"
        + "".join(f"; {choice} did not bind" for choice in unbound)
        + (f"; {refusals} requests refused" if refusals else "")
        + left_out,
        evidence=(f"answers with calls by tool_choice: {by_choice}", *messages(captured.speculative.answers)),
        rules_out=f"{len(mine.answers)} answers checked; a rate of wrong ones above "
        f"{proportions.ruled_out(len(mine.answers)):.1%} would have been caught (99%)",
        cell=f"{calls} calls",
        figures={
            "answers": float(len(mine.answers)),
            "answers_with_calls": float(called.total()),
            "tool_calls": float(calls),
            "compared_answers": float(found.compared),
            "twins": float(len(mine.pairs())),
        },
    )
