"""Responses: the Responses API gives what the chat route gives, whole and streamed, and its streams keep the protocol.

Broken protocol and lost parts FAIL at the first answer, unless the baseline, the server without speculation, breaks the same rule. Texts
that are merely unlike the chat's are shown: numerical noise may lead two answers of one server apart. ``baseline_boots`` are the baseline
and, booted again, the control; ``speculative`` is the arm under judgement.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, own_refusals, refusal, speculating
from pytest_specdec.judge.response_rules import Fault, ResponseFault, answer_faults, find_loss, is_cut, is_unlike
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts.responses import conversation_of
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["NOT_SERVED", "judge"]

NOT_SERVED = "the Responses API is not served here"
REFUSED = "the Responses API refuses requests that the baseline answers"
_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """An answer of the responses route beside the chat's to the same conversation."""

    answer: Answer
    chat: Answer

    @property
    def is_comparable(self) -> bool:
        """True if both prompts have as many tokens: a server may present tools or turns in another way."""
        usages = (self.answer.usage, self.chat.usage)
        return len({usage.prompt_tokens if usage else None for usage in usages}) == 1

    @property
    def is_unlike(self) -> bool:
        return is_unlike(self.answer.choice, self.chat.choice)

    @property
    def is_miscounted(self) -> bool:
        """True if the same content has another token count."""
        counts = {answer.usage.completion_tokens for answer in (self.answer, self.chat) if answer.usage}
        return not self.is_unlike and len(counts) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What one arm's answers show."""

    arm: str
    answers: int
    """Answers of the responses route."""
    faults: tuple[Fault, ...]
    pairs: tuple[_Pair, ...]
    """Answers beside the chat's, if both prompts have as many tokens."""
    apart: int
    """The number of other answers with a chat beside them: their prompts are not the same."""

    @property
    def unlike_answers(self) -> int:
        """Number of answers with another text than the chat's; they decide nothing, since noise may lead two answers apart for good."""
        return sum(pair.is_unlike for pair in self.pairs)

    @property
    def wrong_counts(self) -> tuple[Fault, ...]:
        """Answers with the chat's content and another number of tokens."""
        wrong = (pair for pair in self.pairs if pair.is_miscounted)
        return tuple(Fault(kind=ResponseFault.COUNT, request_id=pair.answer.request_id, what=_describe_pair(pair)) for pair in wrong)


def judge(captured: Captured) -> Verdict:
    """Return the verdict on the answers of the Responses API.

    Server failures, lost access, a route that no arm serves (REFUSED) and requests that the variant alone refuses (FAIL) come first, then
    broken rules and lost parts, token counts, endings and missing drafts. Rules that an answer of the baseline or the control breaks are
    left out, and listed in the verdict. Other token counts for the same answer FAIL by Fisher's exact test against each boot of the
    baseline, at the captured share of alpha. Texts unlike the chat's are only counted: noise may lead two answers apart for good.
    """
    return (
        server_failure(captured)
        or refusal(captured)
        or _check_route_served(captured)
        or _check_refused_requests(captured)
        or _judge_responses(captured)
    )


def _check_route_served(captured: Captured) -> Verdict | None:
    """Return REFUSED if all arms refuse every request of the route, else None."""
    on_route = {request.id for request in captured.workload.requests if request.route is Route.RESPONSES}
    arms = (captured.speculative, *captured.baseline_boots)
    answers = [answer for arm in arms for answer in arm.answers if answer.request_id in on_route]
    if not answers or not all(map(is_refusal, answers)):
        return None
    headline = f"{NOT_SERVED}: {answers[0].status} to all {len(on_route)} requests; the baseline does not serve it either"
    return say(captured, Outcome.REFUSED, headline, evidence=describe_refusals(answers), cell=f"{answers[0].status}")


def _check_refused_requests(captured: Captured) -> Verdict | None:
    """Return FAIL if the judged arm alone refuses requests of the route, else None.

    Every boot of the baseline answers them.
    """
    refused = [a for a in own_refusals(captured) if captured.workload.by_id[a.request_id].route is Route.RESPONSES]
    if not refused:
        return None
    first = refused[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{REFUSED}: {len(refused)} with {first.status}; first: request {first.request_id}: {quote(first.error or '', 100)}",
        evidence=describe_refusals(refused),
        cell=f"{len(refused)} refused",
        names=REFUSED,
        example=Example(symptom=Symptom.UNANSWERED, request_id=first.request_id),
        figures={"refused_requests": float(len(refused))},
    )


def _judge_responses(captured: Captured) -> Verdict:
    """Return the first applicable verdict on the answers.

    Faults of single answers come first, then token counts over all answers, endings and missing drafts. A kind of fault that an answer of
    the baseline's boots has too is excused: it does not come from speculation.
    """
    peers = [_inspect(captured, transcript) for transcript in captured.baseline_boots]
    findings = _inspect(captured, captured.speculative)
    excused = frozenset(fault.kind for peer in peers for fault in peer.faults)
    wrong = [fault for fault in findings.faults if fault.kind not in excused]
    return (
        (_fail(captured, wrong, findings, "none of the baseline's") if wrong else None)
        or _check_counts(captured, findings, peers)
        or check_endings(captured)
        or speculating(captured, needs_rejections=False)
        or _pass(captured, findings, sorted(excused), _describe_counts(captured, findings, peers))
    )


def _inspect(captured: Captured, transcript: Transcript) -> _Findings:
    """Return the faults and pairs of one arm, whose answers are ``transcript``.

    A pair is an answer of the responses route and the chat's to the same conversation. Both that and the whole answer beside a streamed one
    are looked up among the arm's answers by form: conversation, route, and streamed or not.
    """
    requests = captured.workload.by_id
    answers = {a.request_id: a for a in transcript.answers if a.ok and len(a.choices) == 1 and a.request_id in requests}
    by_form = {_form(requests[id_]): answer for id_, answer in answers.items()}
    on_route = [answer for id_, answer in answers.items() if requests[id_].route is Route.RESPONSES]
    with_chats = [(a, _pair_with_chat(requests[a.request_id], a, by_form)) for a in on_route]
    pairs = [pair for _, pair in with_chats if pair is not None]
    faults = [fault for answer, pair in with_chats for fault in _find_faults(requests[answer.request_id], answer, pair, by_form)]
    comparable = tuple(pair for pair in pairs if pair.is_comparable)  # with prompts of equally many tokens
    return _Findings(arm=transcript.arm, answers=len(on_route), faults=tuple(faults), pairs=comparable, apart=len(pairs) - len(comparable))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The way in which a conversation is sent."""

    conversation: str
    route: Route
    is_streamed: bool


def _form(request: Request) -> _Form:
    return _Form(conversation=conversation_of(request.id), route=request.route, is_streamed=bool(request.stream))


def _pair_with_chat(request: Request, answer: Answer, by_form: Mapping[_Form, Answer]) -> _Pair | None:
    """Return the answer with that of the chat route, streamed or whole alike; None without one."""
    chat = by_form.get(replace(_form(request), route=Route.CHAT))
    return None if chat is None else _Pair(answer=answer, chat=chat)


def _find_faults(request: Request, answer: Answer, pair: _Pair | None, by_form: Mapping[_Form, Answer]) -> Iterator[Fault]:
    """Yield the faults of one answer, at most one of each kind.

    A streamed answer is compared with the whole one to the same conversation: ``by_form`` has the arm's answers by conversation, route, and
    streamed or not. Any answer is compared with the chat's in ``pair`` if their prompts have as many tokens. An answer without its end is
    compared with none. Token counts are no fault of one answer: they are counted over all.
    """
    faults = dict(answer_faults(request, answer))
    whole = by_form.get(replace(_form(request), is_streamed=False)) if request.stream else None
    others = [other for other in (whole, pair.chat if pair and pair.is_comparable else None) if other is not None]
    if ResponseFault.NO_END not in faults:
        for other in others:
            if loss := find_loss(answer, other):
                kind, text = loss
                faults[kind] = text
        if pair is not None and (what := _describe_status(pair)):
            faults[ResponseFault.STATUS] = what
    yield from (Fault(kind=kind, request_id=answer.request_id, what=what) for kind, what in faults.items())


def _describe_status(pair: _Pair) -> str:
    """Return how the status contradicts the chat's finish_reason for the same answer; empty if it does not."""
    chat, answer = pair.chat.choice, pair.answer
    # Only an answer that is the chat's, to the same prompt and with the same tokens, has to be cut if that is.
    is_same = pair.is_comparable and not pair.is_unlike and not pair.is_miscounted
    if not is_same or answer.response is None or is_cut(chat) == is_cut(answer.choice):
        return ""
    return f"status {answer.response.status}, the chat's finish_reason for the same answer is {chat.finish_reason}"


def _describe_pair(pair: _Pair) -> str:
    usages = [answer.usage.completion_tokens if answer.usage else None for answer in (pair.answer, pair.chat)]
    texts = [answer.choice.written or str([call.arguments for call in answer.choice.tool_calls]) for answer in (pair.answer, pair.chat)]
    return f"{usages[0]} tokens {texts[0][:80]!r}, the chat's {usages[1]} tokens {texts[1][:80]!r}"


def _check_counts(captured: Captured, findings: _Findings, peers: Sequence[_Findings]) -> Verdict | None:
    """Return FAIL if too many token counts are unlike the chat's, else None.

    Only answers with the chat's content are looked at. Fisher's exact test must reject against each boot of the baseline, of which
    ``peers`` are the findings.
    """
    wrong, trials = findings.wrong_counts, len(findings.pairs)
    others = [(len(peer.wrong_counts), len(peer.pairs)) for peer in peers]
    if not wrong or not _exceeds_boots(captured, len(wrong), trials, others):
        return None
    peer_counts = ", ".join(f"{peer.arm} {count} of {pairs}" for peer, (count, pairs) in zip(peers, others, strict=True))
    return _fail(captured, wrong, findings, peer_counts, compared=trials)


def _exceeds_boots(captured: Captured, wrong: int, trials: int, others: Sequence[tuple[int, int]]) -> bool:
    """Return True if Fisher's exact test rejects against each boot of the baseline.

    ``wrong`` of ``trials`` answers have wrong counts; ``others`` has these two numbers for each boot.
    """
    return all(proportions.greater_than_other(wrong, trials, *other) < captured.alpha for other in others)


def _describe_counts(captured: Captured, findings: _Findings, peers: Sequence[_Findings]) -> tuple[str, ...]:
    """Return a line on token counts unlike the chat's that are no alarm.

    Empty if there is nothing to admit: without pairs, or if no count is wrong although wrong ones would be an alarm if all were. ``peers``
    are the findings of the baseline's boots.
    """
    wrong, trials = len(findings.wrong_counts), len(findings.pairs)
    if not trials:
        return ()
    can_alarm = _exceeds_boots(captured, trials, trials, [(0, len(peer.pairs)) for peer in peers])
    if can_alarm and not wrong:
        return ()
    # Callers exclude an alarm first. So the answers are too few if some counts are wrong, and also if no number of wrong ones is an alarm.
    return (f"token counts: {wrong} of {trials} unlike the chat's, too few answers to tell",)


def _fail(captured: Captured, wrong: Sequence[Fault], findings: _Findings, peer_counts: str, *, compared: int = 0) -> Verdict:
    """Return FAIL, named after the most frequent fault in ``wrong``.

    ``peer_counts`` says how many of the baseline's answers have it. ``compared`` is the number of answers compared; 0 for all of the route.
    """
    counts = Counter(fault.kind for fault in wrong)
    kind, count = counts.most_common(1)[0]
    first = next(fault for fault in wrong if fault.kind is kind)
    others = "".join(f"; {other.value} in {number}" for other, number in counts.most_common() if other is not kind)
    streamed = {request.id for request in captured.workload.requests if request.stream}
    return say(
        captured,
        Outcome.FAIL,
        f"{kind.value}: in {count} of {compared or findings.answers} answers, {peer_counts}{others}",
        short=(
            f"first        {first.request_id}: {first.what}",
            f"streamed     {sum(fault.request_id in streamed for fault in wrong)} of {len(wrong)} faults",
        ),
        evidence=(*map(str, wrong[:_SHOWN]), *([f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else [])),
        cell=f"{len({fault.request_id for fault in wrong})} wrong",
        names=kind.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"answers": float(findings.answers), "wrong_answers": float(len({fault.request_id for fault in wrong}))},
    )


def _pass(captured: Captured, findings: _Findings, excused: Sequence[str], count_lines: Sequence[str]) -> Verdict:
    """Return PASS, or INCONCLUSIVE without an answer of the route.

    ``excused`` are the rules left out, since the baseline breaks them too. ``count_lines`` is evidence on token counts.
    """
    refusals = sum(map(is_refusal, captured.speculative.answers))
    lines = (f"{findings.apart} answers not compared: the chat's prompt has another number of tokens",) if findings.apart else ()
    if not findings.answers:
        return say(captured, Outcome.INCONCLUSIVE, f"no answer of the Responses API; {refusals} requests refused", cell="no answers")
    unlike = findings.unlike_answers
    return say(
        captured,
        Outcome.PASS,
        f"{findings.answers} answers keep the protocol; {len(findings.pairs) - unlike} of {len(findings.pairs)} are the chat's"
        + (f"; {refusals} requests refused" if refusals else "")
        + "".join(f"; left out, as the baseline does it too: {kind}" for kind in excused),
        evidence=(*lines, *count_lines, *describe_refusals(captured.speculative.answers)),
        rules_out=f"{findings.answers} answers checked; a rate of broken protocol above "
        f"{proportions.ruled_out(findings.answers):.1%} would have been caught (99%)",
        cell=f"{findings.answers} answers",
        figures={"answers": float(findings.answers), "compared_answers": float(len(findings.pairs)), "unlike_answers": float(unlike)},
    )
