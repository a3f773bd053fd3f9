"""Endings: how an answer ends, held against the request's limits and the baseline's ends.

Ends: whether every answer stops where, when and as it has to. The end of an answer is a decision like any token. The rules need no scores,
so that every family asks them. A rule that the baseline or the control breaks itself is none of this engine's.

Which ids end a sequence is learned from answers of the baseline and the control that stopped of themselves, without a stop or a grammar
asked for. An engine whose stopped answers end in ids that stand in the middle of others does not put its end of sequence into the ids. Else
an id is an end where three different answers stop with it and none goes on behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from pytest_specdec.judge.verdicts import quoted, say
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["BadEnd", "BaselineEndings", "EndKind", "RequestLimits", "ended", "habits", "limits"]

_GRAMMARS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "tools")


class EndKind(StrEnum):
    """What besides the model may end an answer."""

    PLAIN = "plain"
    STOPS = "stops"
    """Stop strings or stop token ids of the request's own."""
    GRAMMAR = "grammar"
    """A grammar, which ends where its document does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request says about where its answer may end."""

    most: int | None
    """Tokens at most; None where the request leaves it to the server."""
    least: int = 0
    """Tokens before which nothing ends an answer."""
    ignores_eos: bool = False
    strings: tuple[str, ...] = ()
    ids: frozenset[int] = frozenset()
    keeps_stop: bool = False
    """Whether the stop string stays in the text."""
    grammar: bool = False

    @property
    def kind(self) -> EndKind:
        """What may end the answer besides the model; a grammar before stops, since it ends where no token says so."""
        if self.grammar:
            return EndKind.GRAMMAR
        return EndKind.STOPS if self.strings or self.ids else EndKind.PLAIN


def limits(request: Request) -> RequestLimits:
    """Return the limits that ``request`` sets."""
    body = request.body
    return RequestLimits(
        most=_whole_number(body.get("max_completion_tokens")) or _whole_number(body.get("max_tokens")),
        least=_whole_number(body.get("min_tokens")) or 0,
        ignores_eos=body.get("ignore_eos") is True,
        strings=_strings(body.get("stop")),
        ids=_ids(body.get("stop_token_ids")),
        keeps_stop=body.get("include_stop_str_in_output") is True,
        grammar=any(_binds(body.get(name)) for name in _GRAMMARS),
    )


def _whole_number(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _strings(value: JSON) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value if isinstance(value, Sequence) else ()
    return tuple(each for each in given if isinstance(each, str) and each)


def _ids(value: JSON) -> frozenset[int]:
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return frozenset(each for each in given if isinstance(each, int))


def _binds(value: JSON) -> bool:
    return bool(value) and not (isinstance(value, Mapping) and value.get("type") == "text")


_TELLING = 3
"""Different answers that must stop with an id before it counts as an end of sequence."""
_REASONS = ("stop", "length")


class BadEnd(StrEnum):
    """What is wrong with the end of an answer."""

    CUT = "answers are cut short"
    PAST = "answers go on after their end"
    REASON = "the finish_reason is wrong"
    COUNT = "usage counts other tokens than were answered"
    TEXT = "the same tokens are given as another text"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """One choice of one answer, with what its request allows."""

    answer: Answer
    choice: Choice
    limits: RequestLimits
    twin: Choice | None
    """What the baseline answered to the same request; None where there is no such answer, or there are several choices."""

    @property
    def tokens(self) -> int | None:
        """Emitted tokens, by ids or else by the server's count; None where neither tells."""
        if self.choice.token_ids or len(self.answer.choices) > 1:
            return len(self.choice.token_ids) or None
        return self.answer.usage.completion_tokens if self.answer.usage else None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 where unknown."""
        return len(self.answer.prompt_token_ids) or (self.answer.usage.prompt_tokens if self.answer.usage else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEndings:
    """How the baseline's boots end their own answers."""

    within: frozenset[int]
    """Ids behind which answers go on: no ends of sequence."""
    eos_ids: frozenset[int]
    """Ids that are shown to end a sequence."""
    hidden: Mapping[EndKind, bool]
    """By kind, whether answers stop without an end of sequence among their ids; a kind of which nothing stopped is missing."""
    context: int | None
    """The fewest tokens, prompt and answer together, at which an answer ended for length below its own limit."""
    tells_ids: bool
    miscounts: Mapping[tuple[str, EndKind], frozenset[int]]
    """By finish reason and kind, by how many tokens usage exceeds the ids; empty where one of the two is not told."""

    def hides(self, kind: EndKind) -> bool:
        """Whether an answer of ``kind`` may have stopped at an end that its ids do not show."""
        return self.hidden.get(kind, self.hidden.get(EndKind.PLAIN, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRule:
    """One thing that holds of the ends of any correct server."""

    flaw: BadEnd
    broken: Callable[[AnswerEnd, BaselineEndings], str]
    """What an end breaks of it, in words; empty where it keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongEnd:
    """An end that breaks a rule."""

    flaw: BadEnd
    end: AnswerEnd
    what: str


def ended(captured: Captured) -> Verdict | None:
    """Return a failure where answers end otherwise than their requests and the baseline's own answers allow; None otherwise.

    Only what holds of any correct server is asked: no limit is called that was not reached, nothing stops without a reason, nothing comes
    behind an end, finish_reason and usage agree with the tokens, and the same tokens end in the same way.
    """
    peers = _ends(captured, _peers(captured))
    known = habits(peers)
    leeway = 0 if captured.is_control else captured.pair.variant.draft.tokens + 1
    rules = tuple(rule for rule in _rules(leeway) if not any(rule.broken(peer, known) for peer in peers))
    broken = (_first(end, known, rules) for end in _ends(captured, (captured.speculative,)))
    found = tuple(one for one in broken if one is not None)
    return _failed(captured, found) if found else None


def habits(peers: Sequence[AnswerEnd]) -> BaselineEndings:
    """Return how ``peers``, answers of the baseline's boots, end."""
    going = [end for end in peers if not end.limits.ignores_eos]
    within = frozenset(token for end in going for token in end.choice.token_ids[end.limits.least : -1])
    stopped = [end for end in going if end.choice.finish_reason == "stop" and end.choice.token_ids]
    kinds = {end.limits.kind for end in stopped}
    hidden = {
        kind: any(end.choice.token_ids[-1] in within for end in stopped if end.limits.kind is kind) for kind in kinds - {EndKind.STOPS}
    }
    endings = {end.choice.token_ids for end in stopped if end.limits.kind is EndKind.PLAIN}
    last = Counter(ids[-1] for ids in endings)
    shown = frozenset() if hidden.get(EndKind.PLAIN, True) else frozenset(one for one, count in last.items() if count >= _TELLING)
    return BaselineEndings(
        within=within,
        eos_ids=shown,
        hidden=hidden,
        context=min((end.prompt_tokens + (end.tokens or 0) for end in peers if _below(end)), default=None),
        tells_ids=any(end.choice.token_ids for end in peers),
        miscounts=_miscounts(peers),
    )


def _peers(captured: Captured) -> tuple[Transcript, ...]:
    control = () if captured.control is None or captured.is_control else (captured.control,)
    return (captured.baseline, *control)


def _ends(captured: Captured, transcripts: Sequence[Transcript]) -> tuple[AnswerEnd, ...]:
    allowed = {request.id: limits(request) for request in captured.workload.requests}
    theirs = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    return tuple(
        AnswerEnd(answer=answer, choice=choice, limits=allowed[answer.request_id], twin=_twin(answer, theirs.get(answer.key)))
        for transcript in transcripts
        for answer in transcript.answers
        if answer.ok and answer.request_id in allowed
        for choice in answer.choices
    )


def _twin(answer: Answer, other: Answer | None) -> Choice | None:
    if other is None or other is answer or len(answer.choices) != 1 or len(other.choices) != 1:
        return None
    return other.choice if other.choice.token_ids else None


def _below(end: AnswerEnd) -> bool:
    most = end.limits.most
    return end.choice.finish_reason == "length" and end.tokens is not None and most is not None and end.tokens < most


def _miscounts(peers: Sequence[AnswerEnd]) -> dict[tuple[str, EndKind], frozenset[int]]:
    told = [end for end in peers if len(end.answer.choices) == 1 and end.choice.token_ids and end.answer.usage]
    found: dict[tuple[str, EndKind], set[int]] = {}
    for end in told:
        found.setdefault((str(end.choice.finish_reason), end.limits.kind), set()).add(_excess(end.answer))
    return {reason: frozenset(amounts) for reason, amounts in found.items()}


def _excess(answer: Answer) -> int:
    return (answer.usage.completion_tokens if answer.usage else 0) - sum(len(choice.token_ids) for choice in answer.choices)


def _rules(leeway: int) -> tuple[EndRule, ...]:
    return (
        EndRule(flaw=BadEnd.CUT, broken=partial(_unreached, leeway=leeway)),
        EndRule(flaw=BadEnd.CUT, broken=_early_stop),
        EndRule(flaw=BadEnd.PAST, broken=_overrun),
        EndRule(flaw=BadEnd.PAST, broken=_behind_an_end),
        EndRule(flaw=BadEnd.PAST, broken=_behind_a_stop),
        EndRule(flaw=BadEnd.CUT, broken=_endless_stop),
        EndRule(flaw=BadEnd.CUT, broken=partial(_shorter, leeway=leeway)),
        EndRule(flaw=BadEnd.PAST, broken=_longer),
        EndRule(flaw=BadEnd.REASON, broken=_reason),
        EndRule(flaw=BadEnd.COUNT, broken=_count),
        EndRule(flaw=BadEnd.TEXT, broken=_text),
    )


def _first(end: AnswerEnd, known: BaselineEndings, rules: Sequence[EndRule]) -> WrongEnd | None:
    """Return the first of ``rules`` that ``end`` breaks, None where it keeps them all."""
    broken = ((rule.flaw, rule.broken(end, known)) for rule in rules)
    return next((WrongEnd(flaw=flaw, end=end, what=what) for flaw, what in broken if what), None)


def _unreached(end: AnswerEnd, known: BaselineEndings, *, leeway: int) -> str:
    """Tell a limit that is called and was not reached."""
    if not _below(end) or _at_context(end, known, leeway):
        return ""
    return f"finish_reason 'length' after {end.tokens} of {end.limits.most} allowed tokens"


def _at_context(end: AnswerEnd, known: BaselineEndings, leeway: int) -> bool:
    """Whether the end of the context explains an end; a speculating server may keep a window's room free there."""
    return known.context is not None and end.prompt_tokens + (end.tokens or 0) >= known.context - leeway


def _early_stop(end: AnswerEnd, known: BaselineEndings) -> str:  # noqa: ARG001 - a rule's signature
    """Tell a stop where none was allowed."""
    allowed, tokens = end.limits, end.tokens
    if end.choice.finish_reason != "stop" or tokens is None:
        return ""
    if tokens < allowed.least:
        return f"finish_reason 'stop' after {tokens} tokens where min_tokens is {allowed.least}"
    alone = allowed.ignores_eos and allowed.kind is EndKind.PLAIN
    return f"finish_reason 'stop' after {tokens} tokens despite ignore_eos" if alone else ""


def _endless_stop(end: AnswerEnd, known: BaselineEndings) -> str:
    """Tell a stop behind an ordinary token, where neither a stop nor a grammar was asked for."""
    plain = end.limits.kind is EndKind.PLAIN and end.choice.finish_reason == "stop"
    if not plain or not known.tells_ids or known.hides(EndKind.PLAIN):
        return ""
    if not end.choice.token_ids:
        return "finish_reason 'stop' before any token" if not end.choice.text else ""
    counted = end.answer.usage is not None and len(end.answer.choices) == 1 and not _excess(end.answer)
    shown = counted or EndKind.PLAIN in known.hidden
    last = end.choice.token_ids[-1]
    ordinary = shown and last in known.within
    return f"finish_reason 'stop' after {end.tokens} tokens, at id {last}, which ends no sequence" if ordinary else ""


def _overrun(end: AnswerEnd, known: BaselineEndings) -> str:  # noqa: ARG001 - a rule's signature
    most = end.limits.most
    return f"{end.tokens} tokens where max_tokens is {most}" if end.tokens is not None and most is not None and end.tokens > most else ""


def _behind_an_end(end: AnswerEnd, known: BaselineEndings) -> str:
    """Tell tokens behind an end of sequence or a stop id."""
    allowed, ids = end.limits, end.choice.token_ids
    enders = allowed.ids | (frozenset() if allowed.ignores_eos else known.eos_ids)
    at = next((i for i, token in enumerate(ids[:-1]) if token in enders and i >= allowed.least), None)
    return "" if at is None else f"{len(ids) - at - 1} tokens after id {ids[at]}, which ends an answer"


def _behind_a_stop(end: AnswerEnd, known: BaselineEndings) -> str:  # noqa: ARG001 - a rule's signature
    """Tell text behind a stop string."""
    allowed, text = end.limits, end.choice.text
    if allowed.least:
        return ""
    beyond = next((stop for stop in allowed.strings if stop in (text[: -len(stop)] if allowed.keeps_stop else text)), None)
    return "" if beyond is None else f"text goes on after the stop string {quoted(beyond)}"


def _shorter(end: AnswerEnd, known: BaselineEndings, *, leeway: int) -> str:
    """Tell an answer that ends behind the very tokens behind which the baseline goes on."""
    mine, twin = end.choice, end.twin
    if twin is None or not mine.token_ids or len(mine.token_ids) >= len(twin.token_ids):
        return ""
    explained = known.hides(end.limits.kind) if mine.finish_reason == "stop" else _at_context(end, known, leeway)
    if explained or twin.token_ids[: len(mine.token_ids)] != mine.token_ids:
        return ""
    reason, emitted = mine.finish_reason, len(mine.token_ids)
    return f"finish_reason {reason!r} after {emitted} tokens; the baseline goes on to {len(twin.token_ids)}"


def _longer(end: AnswerEnd, known: BaselineEndings) -> str:
    """Tell an answer that goes on behind the very tokens behind which the baseline stops."""
    mine, twin = end.choice.token_ids, end.twin
    if twin is None or twin.finish_reason != "stop" or len(mine) <= len(twin.token_ids) or known.hides(end.limits.kind):
        return ""
    same = mine[: len(twin.token_ids)] == twin.token_ids
    return f"{len(mine) - len(twin.token_ids)} tokens after the {len(twin.token_ids)} at which the baseline stops" if same else ""


def _reason(end: AnswerEnd, known: BaselineEndings) -> str:  # noqa: ARG001 - a rule's signature
    mine, twin = end.choice, end.twin
    if mine.finish_reason is None:
        return "no finish_reason"
    if twin is not None and mine.token_ids == twin.token_ids and mine.finish_reason != twin.finish_reason:
        return f"finish_reason {mine.finish_reason!r}; the baseline's is {twin.finish_reason!r} for the same tokens"
    strange = mine.finish_reason not in _REASONS and not end.limits.grammar
    return f"finish_reason {mine.finish_reason!r}" if strange else ""


def _count(end: AnswerEnd, known: BaselineEndings) -> str:
    """Tell a usage that differs from the ids by another number than the baseline's does."""
    answer = end.answer
    if not known.miscounts or end.choice is not answer.choices[0]:
        return ""
    if answer.usage is None:
        return "no usage"
    ways = [(str(choice.finish_reason), end.limits.kind) for choice in answer.choices]
    if _excess(answer) in {sum(parts) for parts in product(*(_lawful(way, known) for way in ways))}:
        return ""
    emitted = sum(len(choice.token_ids) for choice in answer.choices)
    return f"usage counts {answer.usage.completion_tokens} completion tokens; the answer has {emitted} ids"


def _lawful(way: tuple[str, EndKind], known: BaselineEndings) -> frozenset[int]:
    """Return the excesses of usage that the baseline shows of such ends; of ends that it does not show, all of its own and a hidden end."""
    return known.miscounts.get(way) or frozenset({0, 1}).union(*known.miscounts.values())


def _text(end: AnswerEnd, known: BaselineEndings) -> str:  # noqa: ARG001 - a rule's signature
    """Tell another text of the same tokens; a character that is not whole at the end may be shown or left out."""
    mine, twin = end.choice, end.twin
    if twin is None or mine.token_ids != twin.token_ids or _whole(mine.text) == _whole(twin.text):
        return ""
    ours, others = _whole(mine.text), _whole(twin.text)
    at = next((i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), min(len(ours), len(others)))
    return f"text goes on with {quoted(ours[at:], 20)}, the baseline's with {quoted(others[at:], 20)}, from the same tokens"


def _whole(text: str) -> str:
    return text.rstrip("\ufffd")


def _failed(captured: Captured, found: Sequence[WrongEnd]) -> Verdict:
    counts = Counter(one.flaw for one in found)
    flaw = counts.most_common(1)[0][0]
    first = next(one for one in found if one.flaw is flaw)
    others = ", ".join(f"{other.value} in {count}" for other, count in counts.items() if other is not flaw)
    answers = sum(answer.ok for answer in captured.speculative.answers)
    lines = [f"{one.end.answer.request_id}, pass {one.end.answer.pass_index}: {one.what}" for one in found]
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value}: {counts[flaw]} of {answers} answers, none of the baseline's" + (f"; also {others}" if others else ""),
        short=(f"first        {first.end.answer.request_id}: {first.what}", *_baseline(first.end)),
        evidence=(*lines[:50], *([f"and {len(lines) - 50} more"] if len(lines) > 50 else [])),  # noqa: PLR2004 - lines shown
        cell=f"{len(found)} wrong ends",
        names=flaw.value,
        figures={"answers": float(answers), "wrong_ends": float(len(found))},
    )


def _baseline(end: AnswerEnd) -> tuple[str, ...]:
    if end.twin is None:
        return ()
    return (f"baseline     {len(end.twin.token_ids)} tokens, finish_reason {end.twin.finish_reason!r}",)
