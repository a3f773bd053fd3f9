"""Responses: the engine's deltas in the shapes of OpenAI's API, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

from starlette.responses import JSONResponse, Response

from pytest_specdec.model.workload import Route
from specdec_reference.rules import EngineRules
from specdec_reference.tool_calls import ToolCallReader, ToolReading

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from starlette.types import Receive, Scope, Send

    from pytest_specdec.model.workload import JSON
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.responses_reply import ResponsesReply
    from specdec_reference.sampler import Entry
    from specdec_reference.sequence import Delta, RunningSequence
    from specdec_reference.tokenizer import Tokenizer
    from specdec_reference.tool_calls import CallPiece


def error(status: int, message: str, param: str | None = None) -> dict[str, JSON]:
    """Return the body of a failed request."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, kw_only=True)
class ResponseOptions:
    """How one request is answered: its bodies, made of sequences, one a choice, or of deltas, the parts that steps add to these."""

    route: Route
    model: str
    request: EngineRequest
    tokenizer: Tokenizer
    tells_cached: bool = False
    """Whether the usage reports the cached tokens of the prompt, where there are any."""
    metrics: str
    """How much of speculation is reported: ``none``, ``summary`` or ``detailed``."""
    draft_tokens: int
    """k: draft tokens of a step at most."""
    decimals: int | None = None
    """To which log-probabilities are rounded; None for not at all."""
    usage: bool = True
    """Whether the answer reports its token counts."""
    chunk_steps: int = 1
    """Steps whose tokens share a chunk; 0 for a chunk per token."""
    rules: EngineRules = field(default_factory=EngineRules)
    done: ClassVar[bytes] = b"data: [DONE]\n\n"
    """What ends a stream after its last body."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, sequences: Several[RunningSequence]) -> dict[str, JSON]:
        """Return the body for finished sequences."""
        chat = self.route is Route.CHAT
        body = self._common_fields("chat.completion" if chat else "text_completion")
        body["choices"] = [self._whole_choice(sequence) for sequence in sequences]
        body |= self._usage_fields(sequences)
        if chat and self.request.return_token_ids:
            body["prompt_token_ids"] = self.request.prompt
        if chat and self.request.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs(sequences[0])
        return body

    def opening(self, sequence: RunningSequence) -> dict[str, JSON] | None:
        """Return the chunk before any token.

        On the chat route it names the role. None on the completions route.
        """
        if self.route is Route.COMPLETIONS:
            return None
        chunk = self._common_fields("chat.completion.chunk")
        delta = {"role": "assistant", "content": ""}
        chunk["choices"] = [{"index": sequence.index, "delta": delta, "logprobs": None, "finish_reason": None}]
        if self.request.return_token_ids:
            chunk["prompt_token_ids"] = self.request.prompt
        return chunk

    def openings(self, sequences: Several[RunningSequence]) -> list[dict[str, JSON]]:
        """Return the chunks before any token."""
        return [chunk for sequence in sequences if (chunk := self.opening(sequence)) is not None]

    def closings(self, sequences: Several[RunningSequence]) -> list[dict[str, JSON]]:
        """Return the chunks after the last token."""
        return [self.closing(sequences)] if self.request.include_usage else []

    def reader(self) -> ToolCallReader | None:
        """Return the reader of one answer's tool calls.

        None where no tools are offered.
        """
        tools = self.request.tools
        return None if tools is None else ToolCallReader(parallel=tools.parallel)

    def chunk(self, delta: Delta, reader: ToolCallReader | None) -> dict[str, JSON]:
        """Return the chunk of one step.

        ``reader`` has read the sequence so far; None where no tools are offered.
        """
        chat = self.route is Route.CHAT
        reading = self._read_calls(reader, delta.text, ended=delta.finish_reason is not None, tokens=len(delta.tokens))
        choice: dict[str, JSON] = {"index": delta.sequence.index}
        choice |= (
            {"delta": _message_fields(reading.content, delta.reasoning) | self._tool_calls_field(reading.pieces)}
            if chat
            else {"text": delta.text}
        )
        choice["logprobs"] = self._reported_logprobs(delta.entries)
        choice |= {"finish_reason": self._finish_reason(delta.finish_reason, reader), "stop_reason": delta.stop_reason}
        if self.request.return_token_ids:
            choice["token_ids"] = [*delta.tokens]
            if not chat and delta.first:
                choice["prompt_token_ids"] = self.request.prompt
        return self._common_fields("chat.completion.chunk" if chat else "text_completion") | {"choices": [choice]}

    def chunks(self, deltas: Several[Delta], reader: ToolCallReader | None) -> list[dict[str, JSON]]:
        """Return the chunks of one sequence's next deltas."""
        return [self.chunk(delta, reader) for delta in deltas]

    def closing(self, sequences: Several[RunningSequence]) -> dict[str, JSON]:
        """Return the chunk after the last token, with the usage."""
        head = self._common_fields("chat.completion.chunk" if self.route is Route.CHAT else "text_completion")
        return head | {"choices": []} | self._usage_fields(sequences)

    def _read_calls(self, reader: ToolCallReader | None, text: str, *, ended: bool, tokens: int = 0) -> ToolReading:
        """Return the content and tool calls of an answer's next text.

        ``tokens`` are those of its step, 0 for a whole answer. All text is content where no tools are offered.
        """
        return ToolReading(content=text) if reader is None else self.rules.read_calls(reader, text, ended=ended, tokens=tokens)

    def _finish_reason(self, reason: str | None, reader: ToolCallReader | None) -> str | None:
        """Return the finish_reason to report; None before the end."""
        return self.rules.finish(reason, 0 if reader is None else reader.calls, stream=self.request.stream)

    def _tool_calls_field(self, pieces: Several[CallPiece]) -> dict[str, JSON]:
        """Return the calls of an answer, or of a chunk.

        Those of a chunk have an index. A call gets its id together with its name.
        """
        has_index = self.request.stream
        return {"tool_calls": [({"index": piece.index} if has_index else {}) | _call_fields(piece) for piece in pieces]} if pieces else {}

    def _common_fields(self, kind: str) -> dict[str, JSON]:
        """Return the fields at the top of every body."""
        prefix = "chatcmpl" if self.route is Route.CHAT else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _usage_fields(self, sequences: Several[RunningSequence]) -> dict[str, JSON]:
        """Return the usage, and the report of speculation."""
        counts = self.rules.usage(sequences)
        usage: dict[str, JSON] = {"prompt_tokens": counts.prompt, "completion_tokens": counts.completion, "total_tokens": counts.total}
        cached = sequences[0].cached_tokens
        if self.tells_cached and cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        splits = [sequence.reasoning for sequence in sequences if sequence.reasoning is not None]
        if splits:
            usage["completion_tokens_details"] = {"reasoning_tokens": sum(split.tokens for split in splits)}
        return ({"usage": usage} if self.usage else {}) | self._speculation_report(sequences)

    def _speculation_report(self, sequences: Several[RunningSequence]) -> dict[str, JSON]:
        """Return the report of speculation.

        Empty for several sequences, and where none is configured. Steps without a draft are not in it.
        """
        if self.metrics == "none" or len(sequences) != 1:
            return {}
        drafted, accepted = sequences[0].drafted, sequences[0].accepted
        steps = sum(1 for count in drafted if count)
        accepted_lengths = [accepted_tokens for accepted_tokens, count in zip(accepted, drafted, strict=True) if count]
        report: dict[str, JSON] = {
            "mean_acceptance_length": 1.0 + sum(accepted) / steps if steps else None,
            "draft_acceptance_rate": sum(accepted) / sum(drafted) if steps else None,
            "acceptance_histogram": [accepted_lengths.count(length) for length in range(self.draft_tokens + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(drafted),
            "num_spec_tokens": self.draft_tokens,
        }
        if self.metrics == "detailed":
            report |= {"per_step_accepted": accepted, "per_step_drafted": drafted}
        return {"metrics": {"speculative_decoding": report}}

    def _whole_choice(self, sequence: RunningSequence) -> dict[str, JSON]:
        """Return the choice of one finished sequence."""
        text, split = sequence.text.whole, sequence.reasoning
        reasoning, text = ("", text) if split is None else split.split_whole(text)
        reader = self.reader()
        reading = self._read_calls(reader, text, ended=True)
        message: dict[str, JSON] = {
            "role": "assistant",
            **_message_fields(reading.content, reasoning),
            **self._tool_calls_field(reading.pieces),
        }
        choice: dict[str, JSON] = {"index": sequence.index}
        choice |= {"message": message} if self.route is Route.CHAT else {"text": self._echoed_text() + text}
        if self.request.echo and self.request.logprobs is not None:
            choice["logprobs"] = self._completions_logprobs([*sequence.prompt_entries, *sequence.entries], first=self.request.prompt[0])
        else:
            choice["logprobs"] = self._reported_logprobs(sequence.entries)
        choice |= {"finish_reason": self._finish_reason(sequence.finish_reason, reader), "stop_reason": sequence.stop_reason}
        if self.request.return_token_ids:
            choice["token_ids"] = sequence.emitted
        if self.route is Route.COMPLETIONS:
            choice["prompt_token_ids"] = self.request.prompt if self.request.return_token_ids else None
            choice["prompt_logprobs"] = self._prompt_logprobs(sequence)
        return choice

    def _echoed_text(self) -> str:
        """Return the text of an echoed prompt.

        Empty without echo. vLLM leaves the prompt out where it also reports token ids; this server does not.
        """
        echoed = self.request.prompt if self.request.echo else ()
        return b"".join(self.tokenizer.pieces[token] for token in echoed).decode("utf-8", "replace")

    def _prompt_logprobs(self, sequence: RunningSequence) -> JSON:
        """Return the prompt's log-probabilities by position.

        None where they are not requested, and for every choice but the first. The first token's are None: nothing predicts it.
        """
        if self.request.prompt_logprobs is None or sequence.index != 0:
            return None
        return [None, *(self._prompt_position(entry) for entry in sequence.prompt_entries)]

    def _prompt_position(self, entry: Entry) -> dict[str, JSON]:
        """Return the log-probabilities at one position, by token id."""
        words, prompt_token = self.tokenizer.words, entry.token
        by_token_id: dict[str, JSON] = {
            str(prompt_token): {"logprob": self._round(entry.logprob), "rank": entry.rank, "decoded_token": words[prompt_token]}
        }
        for rank, (token, logprob) in enumerate(entry.top, 1):
            if token != prompt_token:
                by_token_id[str(token)] = {"logprob": self._round(logprob), "rank": rank, "decoded_token": words[token]}
        return by_token_id

    def _reported_logprobs(self, entries: Several[Entry]) -> JSON:
        """Return log-probabilities in the form of the route.

        None where they are not requested.
        """
        if self.request.logprobs is None:
            return None
        if self.route is Route.CHAT:
            return {"content": [self._chat_logprob(entry) for entry in entries]}
        return self._completions_logprobs(entries)

    def _completions_logprobs(self, entries: Several[Entry], *, first: int | None = None) -> dict[str, JSON]:
        """Return the lists of the completions route.

        ``first`` is the first token of an echoed prompt. It has no log-probability, because nothing predicts
        it.
        """
        words = [*([] if first is None else [self._token_name(first)]), *(self._token_name(entry.token) for entry in entries)]
        unpredicted: list[JSON] = [] if first is None else [None]
        return {
            "text_offset": [sum(map(len, words[:i])) for i in range(len(words))],
            "token_logprobs": [*unpredicted, *(self._round(entry.logprob) for entry in entries)],
            "tokens": [*words],
            "top_logprobs": [
                *unpredicted,
                *(
                    {self._token_name(token): self._round(logprob) for token, logprob in [(entry.token, entry.logprob), *entry.top]}
                    for entry in entries
                ),
            ],
        }

    def _chat_logprob(self, entry: Entry) -> dict[str, JSON]:
        """Return one entry in the form of the chat route."""
        return self._token_logprob(entry.token, entry.logprob) | {
            "top_logprobs": [self._token_logprob(token, logprob) for token, logprob in entry.top]
        }

    def _token_logprob(self, token: int, logprob: float) -> dict[str, JSON]:
        """Return one token's log-probability on the chat route."""
        return {"token": self._token_name(token), "logprob": self._round(logprob), "bytes": list(self.tokenizer.pieces[token])}

    def _round(self, logprob: float) -> float:
        return logprob if self.decimals is None else round(logprob, self.decimals)

    def _token_name(self, token: int) -> str:
        return f"token_id:{token}" if self.request.tokens_as_ids else self.tokenizer.words[token]


def _message_fields(text: str, reasoning: str) -> dict[str, JSON]:
    """Return a message's content, and its reasoning if any."""
    return {"content": text, **({"reasoning": reasoning} if reasoning else {})}


def _call_fields(piece: CallPiece) -> dict[str, JSON]:
    """Return one tool call, or a further piece of one."""
    if not piece.name:
        return {"function": {"arguments": piece.arguments}}
    function: dict[str, JSON] = {"name": piece.name, "arguments": piece.arguments}
    return {"id": f"call-{uuid.uuid4().hex[:16]}", "type": "function", "function": function}


_GIVEN_UP: Final = "the engine gave this request up"
_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def whole(reply: ResponseOptions | ResponsesReply, engine: ReferenceEngine, receive: Receive) -> Response:
    """Return the answer once every sequence has ended.

    A client that hangs up ends them. The status is 500 if a sequence was given up.
    """
    ended: asyncio.Queue[Delta] = asyncio.Queue()

    def tell(delta: Delta) -> None:
        if delta.finish_reason is not None:
            ended.put_nowait(delta)

    sequences = engine.sequences(reply.request, tell)
    watcher = asyncio.create_task(_watch_disconnect(receive, ended, sequences[0].give_up()))
    engine.submit(sequences)
    try:
        for _ in sequences:
            final_delta = await ended.get()
            if final_delta.finish_reason == "abort":  # one for all sequences if the client has left
                engine.drop(sequences)
                return JSONResponse(error(500, _GIVEN_UP), status_code=500)
        return JSONResponse(reply.whole(sequences))
    finally:
        watcher.cancel()


class Stream(Response):
    """Server-sent events: one chunk a step and sequence, sent as the step ends."""

    def __init__(self, reply: ResponseOptions | ResponsesReply, engine: ReferenceEngine) -> None:
        super().__init__()
        self._reply = reply
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send the whole stream."""
        deltas: asyncio.Queue[Delta] = asyncio.Queue()
        sequences = self._engine.sequences(self._reply.request, deltas.put_nowait)
        watcher = asyncio.create_task(_watch_disconnect(receive, deltas, sequences[0].give_up()))
        self._engine.submit(sequences)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _send_events(send, self._reply.openings(sequences))
            if await self._send_chunks(send, deltas, sequences):
                await _send_events(send, self._reply.closings(sequences))
            else:
                self._engine.drop(sequences)
                await _send_events(send, [error(500, _GIVEN_UP)])
            await send({"type": "http.response.body", "body": self._reply.done, "more_body": False})
        finally:
            watcher.cancel()

    async def _send_chunks(self, send: Send, deltas: asyncio.Queue[Delta], sequences: Several[RunningSequence]) -> bool:
        """Send chunks until every sequence has ended.

        Returns True if none was given up.
        """
        running = len(sequences)
        readers = {sequence: self._reply.reader() for sequence in sequences}
        pending = _Chunks(self._reply.chunk_steps)
        while running:
            delta = await deltas.get()
            if delta.finish_reason == "abort":
                return False
            await _send_events(send, self._reply.chunks(pending.take(delta), readers[delta.sequence]))
            running -= delta.finish_reason is not None
        return True


class _Chunks:
    """Collects ``steps`` steps of a sequence into one chunk, or splits each into its tokens for 0 steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._held: dict[int, list[Delta]] = {}  # by index of the sequence: deltas that wait

    def take(self, delta: Delta) -> list[Delta]:
        """Return the deltas to send now, after ``delta``.

        Empty while a chunk waits for more steps.
        """
        if self._steps == 0:
            return _split_by_token(delta)
        pending = self._held.setdefault(delta.sequence.index, [])
        pending.append(delta)
        if len(pending) < self._steps and delta.finish_reason is None:
            return []
        self._held[delta.sequence.index] = []
        return [_merge_steps(pending)]


def _split_by_token(delta: Delta) -> list[Delta]:
    """Return a delta per token; the text comes with the last.

    A delta without tokens is returned alone.
    """
    last_index = len(delta.tokens) - 1
    textless = replace(delta, text="", reasoning="", finish_reason=None, stop_reason=None)
    token_deltas = (
        replace(textless, tokens=delta.tokens[i : i + 1], entries=delta.entries[i : i + 1], first=delta.first and i == 0)
        for i in range(last_index)
    )
    last_delta = replace(
        delta, tokens=delta.tokens[max(last_index, 0) :], entries=delta.entries[max(last_index, 0) :], first=delta.first and last_index <= 0
    )
    return [*token_deltas, last_delta]


def _merge_steps(deltas: list[Delta]) -> Delta:
    """Return one delta for the steps of a chunk."""
    return replace(
        deltas[-1],
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        entries=tuple(entry for delta in deltas for entry in delta.entries),
        first=deltas[0].first,
    )


async def _send_events(send: Send, bodies: list[dict[str, JSON]]) -> None:
    """Send one server-sent event a body, named if the body has a type."""
    for body in bodies:
        name = f"event: {body['type']}\n".encode() if "type" in body else b""
        data = b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": name + data, "more_body": True})


async def _watch_disconnect(receive: Receive, deltas: asyncio.Queue[Delta], give_up: Delta) -> None:
    """Put ``give_up`` into ``deltas`` once the client has disconnected.

    The reader of ``deltas`` then gives the request up.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    deltas.put_nowait(give_up)
