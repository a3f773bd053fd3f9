"""The clauses on answers: routes, neutral values, text, token ids, streams, usage."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.doctor.contract.clause import Clause, broken, kept, not_claimed, unchecked
from pytest_specdec.doctor.contract.visit import CONVERSATION, GREEDY, PROMPT, NoAnswerError
from pytest_specdec.engines.protocol import COMPLETIONS
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.doctor.contract.clause import Finding
    from pytest_specdec.doctor.contract.visit import Visit
    from pytest_specdec.model.transcript import Choice
    from pytest_specdec.model.workload import JSON

_NEUTRAL: Mapping[str, JSON] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
_DRAWS = 4
_SHOWN = 60
"""Characters of a text in a line of evidence."""


def _check_completion(visit: Visit) -> Finding:
    return _check_answer(lambda: visit.greedy)


def _check_chat(visit: Visit) -> Finding:
    return _check_answer(lambda: visit.chat)


def _check_answer(answer: Callable[[], TimedAnswer]) -> Finding:
    """Check an answer for a text."""
    try:
        timed_answer = answer()
    except NoAnswerError as error:
        return broken(str(error))
    text = timed_answer.answer.choice.written if timed_answer.answer.choices else ""
    return kept(f"200: {text[:_SHOWN]!r}") if text else broken("200 without a text")


def _check_paths(visit: Visit) -> Finding:
    """Check the dialect's paths: the server answers there."""
    paths = {route: visit.dialect.path(Request(id="contract", route=route, body={})) for route in Route}
    for route, body in ((Route.COMPLETIONS, GREEDY), (Route.CHAT, CONVERSATION)):
        visit.asked(body, route)
    return kept(", ".join(f"{route.value}: {path}" for route, path in paths.items()))


def _check_neutral_values(visit: Visit) -> Finding:
    """Check the fields added by the dialect, and neutral values.

    The server has to take what the dialect adds to a bare request, and neutral values that the request states.
    """
    bare: dict[Route, dict[str, JSON]] = {
        Route.COMPLETIONS: {"prompt": PROMPT, "max_tokens": 2},
        Route.CHAT: {"messages": CONVERSATION["messages"], "max_tokens": 2},
    }
    for route, body in bare.items():
        for fields in (body, {**body, **_NEUTRAL}):
            for streamed in (False, True):
                answer = visit.sent(fields, route, streamed=streamed).answer
                if not answer.ok:
                    neutral_note = " with neutral values" if fields is not body else ""
                    return broken(f"{route.value}{neutral_note}, streamed {streamed}: {answer.status}: {answer.error}")
    sent_fields = visit.dialect.sent(Request(id="contract", route=Route.COMPLETIONS, body=bare[Route.COMPLETIONS]), stream=False)
    added_names = sorted(sent_fields.keys() - bare[Route.COMPLETIONS].keys())
    return kept(f"8 requests taken; added to a bare completion: {', '.join(added_names) or 'nothing'}")


def _check_default_temperature(visit: Visit) -> Finding:
    """Check for temperature 1 in a request without one.

    The answer has to be drawn at 1, as in the OpenAI protocol, whatever the server's own default is.
    """
    body = {name: value for name, value in GREEDY.items() if name != "temperature"}
    texts = [visit.asked(body).answer.choice.written for _ in range(_DRAWS)]
    if set(texts) == {visit.greedy.answer.choice.written}:
        return broken(f"{_DRAWS} answers without a temperature are the greedy one: {texts[0][:_SHOWN]!r}")
    return kept(f"{len(set(texts))} different answers of {_DRAWS} without a temperature")


def _check_repeatable(visit: Visit) -> Finding:
    second = visit.asked(GREEDY).answer.choice
    return _compare_choices("the first greedy answer", visit.greedy.answer.choice, "the second", second)


def _check_stream(visit: Visit) -> Finding:
    return _compare_choices("the whole answer", visit.greedy.answer.choice, "the stream", visit.streamed.answer.choice)


def _check_streamed_chat(visit: Visit) -> Finding:
    return _compare_choices("the whole answer", visit.chat.answer.choice, "the stream", visit.streamed_chat.answer.choice)


def _compare_choices(first_name: str, first: Choice, second_name: str, second: Choice) -> Finding:
    """Compare two answers: text, token ids and end."""
    if first.written != second.written:
        return broken(f"{first_name}: {first.written[:_SHOWN]!r}; {second_name}: {second.written[:_SHOWN]!r}")
    if first.token_ids and second.token_ids and first.token_ids != second.token_ids:
        return broken(f"one text, other ids: {first.token_ids[:8]} and {second.token_ids[:8]}")
    if first.finish_reason != second.finish_reason:
        return broken(f"one text, other ends: {first.finish_reason} and {second.finish_reason}")
    nameless = next((choice_name for choice_name, choice in ((first_name, first), (second_name, second)) if not choice.token_ids), "")
    return kept(f"{len(first.written)} characters" + (f"; no ids in {nameless}" if nameless else f", {len(first.token_ids)} ids"))


def _check_text(visit: Visit) -> Finding:
    """Compare the text with the reply to a plain request.

    It is the same request without the fields that the dialect adds.
    """
    sent_fields = visit.dialect.sent(Request(id="contract", route=Route.COMPLETIONS, body=GREEDY), stream=False)
    model = {name: sent_fields[name] for name in ("model",) if name in sent_fields}
    plain_choices = visit.reply(COMPLETIONS, {**GREEDY, **model}).get("choices")
    first_choice = plain_choices[0] if isinstance(plain_choices, list) and plain_choices else {}
    plain_text, dialect_text = str(first_choice.get("text", "")), visit.greedy.answer.choice.text
    if plain_text != dialect_text:
        return broken(f"a plain reply: {plain_text[:_SHOWN]!r}; by the dialect: {dialect_text[:_SHOWN]!r}")
    return kept(f"{len(dialect_text)} characters as in a plain reply")


def _check_ids(visit: Visit) -> Finding:
    """Check the ids of an answer as a prompt.

    Sent back as a prompt, the first half of them is continued by the other half.
    """
    answer = visit.greedy.answer
    ids, prompt = answer.choice.token_ids, answer.prompt_token_ids
    if not ids:
        return not_claimed("replies hold no token ids")
    if not prompt:
        return unchecked("the ids of the prompt are unknown")
    half = len(ids) // 2
    continuation = visit.sent({**GREEDY, "prompt": [*prompt, *ids[:half]], "max_tokens": len(ids) - half}).answer
    if not continuation.ok:
        return unchecked(f"the server takes no ids as a prompt: {continuation.status}: {str(continuation.error)[:_SHOWN]}")
    continued_ids = continuation.choice.token_ids
    if continued_ids != ids[half:]:
        return broken(f"{list(ids[half : half + 5])} came before, and {list(continued_ids[:5])} after the same ids as a prompt")
    return kept(f"{half} ids as a prompt are continued by the other {len(continued_ids)}")


def _check_prompt_ids(visit: Visit) -> Finding:
    """Check the ids of a prompt against usage and answer.

    They are as many as the usage counts, and as a prompt they get the same answer.
    """
    evidence = []
    for name, timed in (("completion", visit.greedy), ("chat", visit.chat)):
        answer = timed.answer
        prompt, usage = answer.prompt_token_ids, answer.usage
        if not prompt:
            evidence.append(f"{name}: none")
            continue
        if usage is not None and usage.prompt_tokens != len(prompt):
            return broken(f"{name}: {len(prompt)} ids, and the usage counts {usage.prompt_tokens} prompt tokens")
        again = visit.sent({**GREEDY, "prompt": list(prompt)}).answer
        if again.ok and again.choice.token_ids and answer.choice.token_ids != again.choice.token_ids:
            return broken(f"{name}: as a prompt the ids get {again.choice.written[:_SHOWN]!r}, not {answer.choice.written[:_SHOWN]!r}")
        evidence.append(f"{name}: {len(prompt)}" + ("" if again.ok else ", no ids taken as a prompt"))
    return kept("; ".join(evidence)) if visit.greedy.answer.prompt_token_ids else not_claimed("; ".join(evidence))


def _check_usage(visit: Visit) -> Finding:
    """Check the usage against the number of token ids."""
    evidence = []
    for name, timed in (
        ("whole", visit.greedy),
        ("streamed", visit.streamed),
        ("chat", visit.chat),
        ("streamed chat", visit.streamed_chat),
    ):
        usage, ids = timed.answer.usage, timed.answer.choice.token_ids
        if usage is None:
            return broken(f"{name}: no usage")
        if ids and usage.completion_tokens != len(ids):
            return broken(f"{name}: {len(ids)} ids, and the usage counts {usage.completion_tokens}")
        evidence.append(f"{name} {usage.completion_tokens}" + ("" if ids else " (no ids)"))
    return kept(", ".join(evidence))


def _check_limit(visit: Visit) -> Finding:
    """Check lengths ending inside a window: they are kept to."""
    for limit in (1, 2, 3, 5):
        answer = visit.asked({**GREEDY, "max_tokens": limit}).answer
        count = answer.tokens or 0
        if count > limit or (count < limit and answer.choice.finish_reason == "length"):
            return broken(f"max_tokens {limit}: {count} tokens, end {answer.choice.finish_reason}")
    return kept("max_tokens 1, 2, 3 and 5 give as many tokens")


def _check_chunks(visit: Visit) -> Finding:
    """Check the tokens in each chunk of a stream."""
    if visit.variant == "":
        return not_claimed("the baseline has no verify steps")
    chunks = visit.chunks({**GREEDY, "prompt": "one two three one two three one two"})
    lengths = [length for chunk in chunks if (length := _count_tokens(chunk))]
    if not lengths:
        return unchecked("chunks hold no ids") if visit.dialect.chunk_per_step else not_claimed("chunks hold no ids")
    shape = f"chunks of {', '.join(map(str, lengths[:12]))}{' …' if len(lengths) > 12 else ''} tokens"  # noqa: PLR2004 - a line's worth
    if not visit.dialect.chunk_per_step:
        return kept(shape) if max(lengths) == 1 else broken(f"a token has a chunk of its own, says the dialect: {shape}")
    steps = next((steps for chunk in reversed(chunks) if (steps := visit.dialect.steps(chunk))), None)
    return _check_chunks_by_draft(visit, lengths, shape) if steps is None else _check_chunks_by_windows(steps.windows, lengths, shape)


def _check_chunks_by_windows(windows: Sequence[int], lengths: Sequence[int], shape: str) -> Finding:
    """Check chunks against the windows reported in the reply.

    A chunk ends where a step does.
    """
    if not set(list(accumulate(lengths))[:-1]) <= set(accumulate(windows)):
        return broken(f"{shape}, of steps of {', '.join(map(str, windows[:12]))}")
    return kept(f"{shape}, as the {len(windows)} steps that the reply tells")


def _check_chunks_by_draft(visit: Visit, lengths: Sequence[int], shape: str) -> Finding:
    """Check chunks against the longest step there is."""
    if visit.draft and visit.draft.tokens and max(lengths) > visit.draft.tokens + 1:
        return broken(f"{shape}, and a step emits {visit.draft.tokens + 1} at most")
    return kept(shape) if max(lengths) > 1 else unchecked(f"{shape}: no draft was accepted, or every token has a chunk of its own")


def _count_tokens(chunk: Mapping[str, JSON]) -> int:
    """Return the number of token ids in a chunk."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    ids: Sequence[JSON] = first.get("token_ids") or ()
    return len(ids)


CLAUSES = (
    Clause(name="completion", members=("path", "sent", "reply", "answer"), check=_check_completion),
    Clause(name="chat", members=("path", "sent", "reply"), check=_check_chat),
    Clause(name="path", members=("path",), check=_check_paths),
    Clause(name="fields accepted", members=("sent",), check=_check_neutral_values),
    Clause(name="neutral temperature", members=("sent",), check=_check_default_temperature),
    Clause(name="greedy repeats", members=("sent",), check=_check_repeatable),
    Clause(name="stream as whole", members=("sent", "reply", "closing_event"), check=_check_stream),
    Clause(name="chat stream as whole", members=("sent", "reply"), check=_check_streamed_chat),
    Clause(name="text", members=("text", "reply"), check=_check_text),
    Clause(name="token ids", members=("reply",), check=_check_ids),
    Clause(name="prompt token ids", members=("prompt_token_ids", "reply"), check=_check_prompt_ids),
    Clause(name="usage", members=("reply", "sent"), check=_check_usage),
    Clause(name="max_tokens", members=("sent",), check=_check_limit),
    Clause(name="chunk per step", members=("chunk_per_step", "reply"), check=_check_chunks),
)
"""In the order in which a server is asked."""
