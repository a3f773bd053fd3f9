"""The contract on answers: routes, neutral values, text, token ids, streams, usage."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.engines.protocol import COMPLETIONS
from pytest_specdec.model.workload import Request, Route

from .claims import claims, not_claimed, unchecked
from .visit import CONVERSATION, GREEDY, PROMPT, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.model.transcript import Choice
    from pytest_specdec.model.workload import JSON

    from .claims import Note
    from .visit import Visit

_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
_BARE: Mapping[Route, Mapping[str, JSON]] = {
    Route.COMPLETIONS: {"prompt": PROMPT, "max_tokens": 2},
    Route.CHAT: {"messages": CONVERSATION["messages"], "max_tokens": 2},
}
_DRAWS = 4
_SHOWN = 60
"""Characters of a text in a line of evidence."""


class Answers:
    """The claims on what a server answers."""

    @claims("path", "sent", "reply", "answer")
    def test_completion(self, visit: Visit, note: Note) -> None:
        """A greedy completion is answered with a text."""
        note(_check_text(lambda: visit.greedy))

    @claims("path", "sent", "reply")
    def test_chat(self, visit: Visit, note: Note) -> None:
        """A greedy conversation is answered with a text."""
        note(_check_text(lambda: visit.chat))

    @claims("path")
    def test_path(self, visit: Visit, note: Note) -> None:
        """The server answers at the dialect's paths."""
        paths = {route: visit.dialect.path(Request(id="contract", route=route, body={})) for route in _BARE}
        for route, body in ((Route.COMPLETIONS, GREEDY), (Route.CHAT, CONVERSATION)):
            visit.ask(body, route)
        note(", ".join(f"{route.value}: {path}" for route, path in paths.items()))

    @claims("sent")
    def test_fields_accepted(self, visit: Visit, note: Note) -> None:
        """The server takes what the dialect adds to a bare request, and neutral values."""
        for route, bare in _BARE.items():
            for neutral_note, fields in (("", bare), (" with neutral values", {**bare, **_NEUTRAL})):
                for streamed in (False, True):
                    answer = visit.send(fields, route, streamed=streamed).answer
                    assert answer.ok, f"{route.value}{neutral_note}, streamed {streamed}: {answer.status}: {answer.error}"
        bare = _BARE[Route.COMPLETIONS]
        sent_fields = visit.dialect.sent(Request(id="contract", route=Route.COMPLETIONS, body=bare), stream=False)
        added_names = ", ".join(sorted(sent_fields.keys() - bare.keys()))
        note(f"8 requests taken; added to a bare completion: {added_names or 'nothing'}")

    @claims("sent")
    def test_neutral_temperature(self, visit: Visit, note: Note) -> None:
        """A request without a temperature is drawn at 1, whatever the server's own default is."""
        body = {name: value for name, value in GREEDY.items() if name != "temperature"}
        texts = [visit.ask(body).answer.choice.written for _ in range(_DRAWS)]
        is_greedy = set(texts) == {visit.greedy.answer.choice.written}
        assert not is_greedy, f"{_DRAWS} answers without a temperature are the greedy one: {texts[0][:_SHOWN]!r}"
        note(f"{len(set(texts))} different answers of {_DRAWS} without a temperature")

    @claims("sent")
    def test_greedy_repeats(self, visit: Visit, note: Note) -> None:
        """A greedy completion gets the same answer again."""
        second = visit.ask(GREEDY).answer.choice
        note(_check_same_answer("the first greedy answer", visit.greedy.answer.choice, "the second", second))

    @claims("sent", "reply", "closing_event")
    def test_stream_as_whole(self, visit: Visit, note: Note) -> None:
        """A streamed completion has the text, ids and end of a whole one."""
        note(_check_same_answer("the whole answer", visit.greedy.answer.choice, "the stream", visit.streamed.answer.choice))

    @claims("sent", "reply")
    def test_chat_stream_as_whole(self, visit: Visit, note: Note) -> None:
        """A streamed conversation has the text, ids and end of a whole one."""
        note(_check_same_answer("the whole answer", visit.chat.answer.choice, "the stream", visit.streamed_chat.answer.choice))

    @claims("text", "reply")
    def test_text(self, visit: Visit, note: Note) -> None:
        """The text is that of the reply to a request without the dialect's fields."""
        sent_fields = visit.dialect.sent(Request(id="contract", route=Route.COMPLETIONS, body=GREEDY), stream=False)
        model = {name: sent_fields[name] for name in ("model",) if name in sent_fields}
        plain_choices = visit.reply(COMPLETIONS, {**GREEDY, **model}).get("choices")
        first_choice = plain_choices[0] if isinstance(plain_choices, list) and plain_choices else {}
        plain_text, dialect_text = str(first_choice.get("text", "")), visit.greedy.answer.choice.text
        assert plain_text == dialect_text, f"a plain reply: {plain_text[:_SHOWN]!r}; by the dialect: {dialect_text[:_SHOWN]!r}"
        note(f"{len(dialect_text)} characters as in a plain reply")

    @claims("reply")
    def test_token_ids(self, visit: Visit, note: Note) -> None:
        """The first half of an answer's ids, sent as a prompt, is continued by the other half."""
        answer = visit.greedy.answer
        ids, prompt = answer.choice.token_ids, answer.prompt_token_ids
        if not ids:
            not_claimed("replies hold no token ids")
        if not prompt:
            unchecked("the ids of the prompt are unknown")
        half = len(ids) // 2
        continuation = visit.send({**GREEDY, "prompt": [*prompt, *ids[:half]], "max_tokens": len(ids) - half}).answer
        if not continuation.ok:
            unchecked(f"the server takes no ids as a prompt: {continuation.status}: {str(continuation.error)[:_SHOWN]}")
        continued_ids = continuation.choice.token_ids
        before, after = list(ids[half : half + 5]), list(continued_ids[:5])
        assert continued_ids == ids[half:], f"{before} came before, and {after} after the same ids as a prompt"
        note(f"{half} ids as a prompt are continued by the other {len(continued_ids)}")

    @claims("prompt_token_ids", "reply")
    def test_prompt_token_ids(self, visit: Visit, note: Note) -> None:
        """The ids of a prompt are as many as the usage counts, and get the same answer."""
        evidence = "; ".join(_check_prompt_ids(visit, name, timed) for name, timed in (("completion", visit.greedy), ("chat", visit.chat)))
        if not visit.greedy.answer.prompt_token_ids:
            not_claimed(evidence)
        note(evidence)

    @claims("reply", "sent")
    def test_usage(self, visit: Visit, note: Note) -> None:
        """The usage counts as many tokens as there are ids."""
        answers = {"whole": visit.greedy, "streamed": visit.streamed, "chat": visit.chat, "streamed chat": visit.streamed_chat}
        evidence = []
        for name, timed in answers.items():
            usage, ids = timed.answer.usage, timed.answer.choice.token_ids
            assert usage is not None, f"{name}: no usage"
            assert not ids or usage.completion_tokens == len(ids), f"{name}: {len(ids)} ids, and the usage counts {usage.completion_tokens}"
            evidence.append(f"{name} {usage.completion_tokens}" + ("" if ids else " (no ids)"))
        note(", ".join(evidence))

    @claims("sent")
    def test_max_tokens(self, visit: Visit, note: Note) -> None:
        """An answer keeps to a limit that ends it inside a window."""
        for limit in (1, 2, 3, 5):
            answer = visit.ask({**GREEDY, "max_tokens": limit}).answer
            count = answer.tokens or 0
            is_cut = answer.choice.finish_reason == "length"
            assert count == limit or (count < limit and not is_cut), (
                f"max_tokens {limit}: {count} tokens, end {answer.choice.finish_reason}"
            )
        note("max_tokens 1, 2, 3 and 5 give as many tokens")

    @claims("chunk_per_step", "reply")
    def test_chunk_per_step(self, visit: Visit, note: Note) -> None:
        """A chunk of a stream holds the tokens of a step, or one, as the dialect says."""
        if visit.variant == "":
            not_claimed("the baseline has no verify steps")
        chunks = visit.chunks({**GREEDY, "prompt": "one two three one two three one two"})
        lengths = [length for chunk in chunks if (length := _count_tokens(chunk))]
        if not lengths:
            (unchecked if visit.dialect.chunk_per_step else not_claimed)("chunks hold no ids")
        shape = f"chunks of {', '.join(map(str, lengths[:12]))}{' …' if len(lengths) > 12 else ''} tokens"  # noqa: PLR2004 - a line's worth
        steps = next((steps for chunk in reversed(chunks) if (steps := visit.dialect.steps(chunk))), None)
        if not visit.dialect.chunk_per_step:
            assert max(lengths) == 1, f"a token has a chunk of its own, says the dialect: {shape}"
            note(shape)
        elif steps is None:
            _check_chunks_by_draft(visit, lengths, shape)
            note(shape)
        else:
            ends_of_steps = set(accumulate(steps.windows))
            assert set(list(accumulate(lengths))[:-1]) <= ends_of_steps, f"{shape}, of steps of {', '.join(map(str, steps.windows[:12]))}"
            note(f"{shape}, as the {len(steps.windows)} steps that the reply tells")


def _check_text(answer: Callable[[], TimedAnswer]) -> str:
    """Return the beginning of an answer's text, as evidence.

    Raises AssertionError without an answer or without a text.
    """
    try:
        timed_answer = answer()
    except NoAnswerError as error:
        raise AssertionError(str(error)) from None
    text = timed_answer.answer.choice.written if timed_answer.answer.choices else ""
    assert text, "200 without a text"
    return f"200: {text[:_SHOWN]!r}"


def _check_same_answer(first_name: str, first: Choice, second_name: str, second: Choice) -> str:
    """Return the size of two answers as evidence that they are the same.

    Raises AssertionError if their texts, ids or finish reasons differ; ids that one of them lacks are not compared.
    """
    assert first.written == second.written, f"{first_name}: {first.written[:_SHOWN]!r}; {second_name}: {second.written[:_SHOWN]!r}"
    have_ids = first.token_ids and second.token_ids
    assert not have_ids or first.token_ids == second.token_ids, f"one text, other ids: {first.token_ids[:8]} and {second.token_ids[:8]}"
    assert first.finish_reason == second.finish_reason, f"one text, other ends: {first.finish_reason} and {second.finish_reason}"
    nameless = next((choice_name for choice_name, choice in ((first_name, first), (second_name, second)) if not choice.token_ids), "")
    return f"{len(first.written)} characters" + (f"; no ids in {nameless}" if nameless else f", {len(first.token_ids)} ids")


def _check_prompt_ids(visit: Visit, name: str, timed: TimedAnswer) -> str:
    """Return the number of ids of an answer's prompt, as evidence.

    Raises AssertionError if the usage counts others, or if the ids as a prompt get another answer.
    """
    answer = timed.answer
    prompt, usage = answer.prompt_token_ids, answer.usage
    if not prompt:
        return f"{name}: none"
    if usage is not None:
        assert usage.prompt_tokens == len(prompt), f"{name}: {len(prompt)} ids, and the usage counts {usage.prompt_tokens} prompt tokens"
    again = visit.send({**GREEDY, "prompt": list(prompt)}).answer
    texts = f"{again.choice.written[:_SHOWN]!r}, not {answer.choice.written[:_SHOWN]!r}" if again.ok else ""
    is_same = not (again.ok and again.choice.token_ids) or answer.choice.token_ids == again.choice.token_ids
    assert is_same, f"{name}: as a prompt the ids get {texts}"
    return f"{name}: {len(prompt)}" + ("" if again.ok else ", no ids taken as a prompt")


def _check_chunks_by_draft(visit: Visit, lengths: Sequence[int], shape: str) -> None:
    """Raise AssertionError for a chunk longer than the longest step.

    The claim is unchecked if every chunk has one token. ``shape`` is the evidence.
    """
    longest = visit.draft.tokens + 1 if visit.draft and visit.draft.tokens else max(lengths)
    assert max(lengths) <= longest, f"{shape}, and a step emits {longest} at most"
    if max(lengths) == 1:
        unchecked(f"{shape}: no draft was accepted, or every token has a chunk of its own")


def _count_tokens(chunk: Mapping[str, JSON]) -> int:
    """Return the number of token ids in a chunk."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    ids: Sequence[JSON] = first.get("token_ids") or ()
    return len(ids)
