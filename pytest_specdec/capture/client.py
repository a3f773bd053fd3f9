"""The client: requests sent through the openai package and answered, refused, or failed.

An exchange is one HTTP request with what came back. A refusal is a 4xx; a failure is the server's, and its ``ending`` says how it failed.
The dialect is the engine's way with OpenAI's protocol: it adds fields to requests, and reads replies and their verify steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import openai

from pytest_specdec.capture import response_events, responses, sse
from pytest_specdec.capture.deadlines import describe_overdue
from pytest_specdec.capture.transport import HTTPX, MAX_BYTES, BusyTime, ExchangeLimits, Recorder, Transport, retry_after_s
from pytest_specdec.engines.protocol import CHAT_COMPLETIONS, COMPLETIONS, RESPONSES
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Answer, FailureKind, is_rejection
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pytest_specdec.capture.sse import Arrival, Event, ReceivedResponse
    from pytest_specdec.engines.protocol import ApiRequest, Dialect, ServerSetup
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.transcript import Choice
    from pytest_specdec.model.workload import JSON, Request

_OK = 200
_TOO_MANY = 429
_AGAIN_S = 0.5
"""Seconds before a request refused with a 429 is sent again, if the reply names none; doubled each time."""
_MAX_MESSAGE = 2_000
"""Characters of a server's error that are stored."""
_ASK_S = 30.0
"""Seconds for requests of a dialect outside the workload, such as for the ids of a prompt."""
_LOST: tuple[type[Exception], ...] = (openai.APIConnectionError, OSError, HTTPX.HTTPError)
"""What a broken connection may raise."""
_TIMED_OUT: tuple[type[Exception], ...] = (openai.APITimeoutError, HTTPX.TimeoutException)
"""A read that began with the exchange may end a moment before its timer does."""
_MALFORMED = (ValueError, RecursionError)
"""What bytes may raise that are no answer."""
_NO_EVENTS = "a body without events in answer to a request for a stream"
_FAILURES: tuple[type[Exception], ...] = (openai.APIStatusError, *_LOST, *_MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP exchange: a body, a refusal, or how it failed."""

    sent_s: float
    done_s: float
    status: int | None
    error: str | None = None
    ending: FailureKind | None = None
    """How the server failed the request; None for an answer and for a refusal."""
    retry_after_s: float = 0.0
    """Seconds, from the reply, after which a refused request may be sent again; 0 if it gives none."""
    limited: int = 0
    """Times that it was refused with a 429 before."""
    received: ReceivedResponse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAnswer:
    """An answer, with further data that the capture needs."""

    answer: Answer
    ending: FailureKind | None = None
    counters: SpecCounters | None = None
    """The verify steps of this answer alone; None if the server does not report them."""
    limited: int = 0
    """Times that it was refused with a 429, too many requests, and sent again."""
    arrivals: tuple[Arrival, ...] = ()
    """The chunks of a stream; empty if the answer was not streamed."""
    denial: str = ""
    """Why its 4xx is no refusal of the engine's, as of a lost key; empty for anything else."""
    on_silent_route: bool = False
    """Whether it and a plain request on its route were both refused, and that route has answered nothing yet."""
    unsent: bool = False
    """Whether no byte of its request was sent, since there was no connection; known of stamped requests alone."""
    refusal: TimedAnswer | None = None
    """The refusal of the same request before it was sent again and answered; None otherwise."""

    @property
    def tokens(self) -> int:
        """Emitted tokens, by ids or else by the server's count."""
        counted = sum(len(choice.token_ids) for choice in self.answer.choices)
        return counted or (self.answer.usage.completion_tokens if self.answer.usage else 0)


class Client:
    """Sends requests to one server; safe to use from several threads."""

    def __init__(self, setup: ServerSetup, dialect: Dialect, *, model: str, draft_tokens: int = 0) -> None:
        """Take a server's setup, dialect, model name and draft tokens per step."""
        self._setup = setup
        self._dialect = dialect
        self._model = model
        self._draft_tokens = draft_tokens
        self._prompt_ids: dict[str, tuple[int, ...]] = {}
        """Token ids of prompts by the prompt's key, for servers whose replies do not hold them."""
        self.busy = BusyTime()
        self._openai = openai.OpenAI(
            base_url=f"{setup.url}/v1",
            api_key=setup.api_key or "none",
            max_retries=0,
            default_headers=dict(setup.headers),
            # A redirect leads to a server outside the config, a proxy is of no use on the loopback interface.
            http_client=openai.DefaultHttpxClient(transport=Transport(setup.url), follow_redirects=False, trust_env=False),
        )

    def close(self) -> None:
        """Close the connections."""
        self._openai.close()

    def send(self, request: Request, *, streamed: bool, deadline_s: float, pass_index: int = 0) -> TimedAnswer:
        """Return the answer to one request of a workload.

        Waits for its last byte, at most ``deadline_s`` seconds. A request to be aborted by its client after ``abort_after`` chunks is
        always streamed. ``pass_index`` is the pass of the workload, for the answer's key.
        """
        leave_after = request.abort_after
        streamed = streamed or leave_after is not None
        path, body = self._path_and_body(request, streamed=streamed)
        exchange = self.exchange(path, body, streamed=streamed, deadline_s=deadline_s, leave_after=leave_after)
        return self.read(request, exchange, streamed=streamed, pass_index=pass_index)

    def _path_and_body(self, request: Request, *, streamed: bool) -> tuple[str, Mapping[str, JSON]]:
        """Return path and body of a request, by dialect, config and weights."""
        if request.route is Route.RESPONSES:  # dialects are those of the older routes
            return RESPONSES, {**request.body, **self._setup.body, **request.weights}
        return self._dialect.path(request), {**self._dialect.sent(request, stream=streamed), **self._setup.body, **request.weights}

    def content(self, request: Request, *, deadline_s: float) -> bytes:
        """Return this request as streamed HTTP/1.1, in bytes, without sending it.

        The bytes are those that the openai package would send: a recorder takes the connection's place. The stamper, a process that only
        sends and takes times, sends these without that package.
        """
        path, body = self._path_and_body(request, streamed=True)
        recorder = Recorder()
        with openai.DefaultHttpxClient(transport=recorder) as http_client:
            recording = self._openai.with_options(http_client=http_client)
            with self._create_opener(path, body, recording)(stream=True, timeout=deadline_s):
                return recorder.content

    def read(self, request: Request, exchange: Exchange, *, streamed: bool, pass_index: int) -> TimedAnswer:
        """Return the answer to ``request`` brought by an exchange.

        A response outside the protocol becomes a failure of the server. One that the client has left early, as its request says, becomes an
        aborted answer.
        """
        if exchange.received is not None and exchange.received.left:
            return _aborted_answer(request, pass_index, exchange)
        try:
            answer = self._parse_answer(request, exchange, streamed=streamed, pass_index=pass_index)
        except _MALFORMED as error:
            answer = _failed_answer(request, pass_index, exchange, self.error_text(_describe_malformed(error)), FailureKind.ERROR)
        return replace(answer, limited=exchange.limited)

    def exchange(
        self,
        path: str,
        body: Mapping[str, JSON],
        *,
        streamed: bool = False,
        deadline_s: float,
        max_bytes: int | None = None,
        leave_after: int | None = None,
    ) -> Exchange:
        """Return the exchange of sending ``body`` to ``path``, its fields unchanged.

        The whole response is read, within ``deadline_s`` seconds and ``max_bytes`` (MAX_BYTES by default). With ``leave_after`` the client
        closes the connection after so many events of a stream. A broken connection, a timeout and a malformed response raise nothing: they
        are the exchange's ``ending``.

        A 429 means that there are too many requests now (RFC 6585): the body is sent again while there is time, not before the reply's
        ``retry-after``. ``limited`` counts these refusals.
        """
        opener = self._create_opener(path, body)
        # A Responses reply that breaks off is returned as far as it came: it is a failure only if the server turns out to be down.
        broken_by = _LOST if path == RESPONSES else ()
        until_s, left_s, pause_s, limited = time.monotonic() + deadline_s, deadline_s, _AGAIN_S, 0
        while True:
            with self.busy.count_request(), ExchangeLimits(seconds=left_s, max_bytes=max_bytes or MAX_BYTES) as limits:
                sent_s = time.monotonic()
                try:
                    with opener(stream=streamed, timeout=left_s) as response:
                        received = sse.read(response.iter_bytes(), max_events=leave_after, broken_by=broken_by)
                    exchange = Exchange(
                        sent_s=sent_s, done_s=time.monotonic(), status=response.status_code, received=received, limited=limited
                    )
                except _FAILURES as error:
                    unanswered = Exchange(sent_s=sent_s, done_s=time.monotonic(), status=None, limited=limited)
                    overdue_text = describe_overdue(left_s, limits.parts, body if streamed else {})  # with the token limit of a stream
                    exchange = self._failed_exchange(unanswered, error, overdue_text, is_overdue=limits.overdue)
            wait_s = max(pause_s, exchange.retry_after_s)
            left_s = round(until_s - time.monotonic() - wait_s, 1)  # once that wait is over
            if exchange.status != _TOO_MANY or left_s <= 0:
                return exchange
            time.sleep(wait_s)  # as the server asks for
            pause_s, limited = 2 * pause_s, limited + 1

    def _failed_exchange(self, unanswered: Exchange, error: Exception, overdue_text: str, *, is_overdue: bool) -> Exchange:
        """Return the exchange with the error that ended it, and its ending.

        A request past its time counts as HUNG, with ``overdue_text`` as its error; a lost connection counts as DIED, a reply outside the
        protocol or of a status that is no refusal as ERROR. A refusal is no failure of the server and has no ``ending``.
        """
        if isinstance(error, openai.APIStatusError):
            ending = None if is_rejection(error.status_code) else FailureKind.ERROR
            message, retry_s = self._error_message(error), retry_after_s(error.response.headers)
            return replace(unanswered, status=error.status_code, error=message, ending=ending, retry_after_s=retry_s)
        if not isinstance(error, _LOST):
            return replace(unanswered, error=self.error_text(_describe_malformed(error)), ending=FailureKind.ERROR)
        # The connection broke; if the time was used up, this client has closed it itself.
        if is_overdue or isinstance(error, _TIMED_OUT):
            return replace(unanswered, error=overdue_text, ending=FailureKind.HUNG)
        return replace(unanswered, error=self.error_text(f"connection lost: {error.__cause__ or error!r}"), ending=FailureKind.DIED)

    def _create_opener(
        self, path: str, body: Mapping[str, JSON], client: openai.OpenAI | None = None
    ) -> Callable[..., AbstractContextManager[Any]]:
        """Return a callable for opening the response to ``body``.

        It takes ``stream`` and ``timeout`` (seconds). ``client`` replaces this client's own. On OpenAI's routes the openai package neither
        checks nor changes fields, and adds ``model`` and ``stream`` if missing. Another route gets ``body`` as it is, and is no stream.
        """
        api = client or self._openai
        streaming_api: Any = api.with_streaming_response
        if path == CHAT_COMPLETIONS:
            create, required = streaming_api.chat.completions.create, {"messages": body.get("messages", [])}
        elif path == COMPLETIONS:
            create, required = streaming_api.completions.create, {"prompt": body.get("prompt", "")}
        elif path == RESPONSES:
            create, required = streaming_api.responses.create, {"input": body.get("input", "")}
        else:
            post: Any = partial(api.post, f"{self._setup.url}{path}", cast_to=HTTPX.Response, body=dict(body))
            return lambda *, stream, timeout: closing(post(options={"timeout": timeout}))  # noqa: ARG005 - these replies are whole
        other_fields = {name: value for name, value in body.items() if name not in required}
        return partial(create, model=self._model, extra_body=other_fields, **required)

    def _send_api_request(self, request: ApiRequest) -> Mapping[str, JSON] | None:
        """Return the reply to a request of the dialect's own.

        Such requests are no part of a workload, for example one for the token ids of a prompt. Returns None if the request was refused,
        failed or got a malformed reply.
        """
        # Some servers insist on the model's name on every route.
        exchange = self.exchange(request.path, {"model": self._model, **request.body}, deadline_s=_ASK_S)
        try:
            return exchange.received.json() if exchange.received and exchange.status == _OK else None
        except _MALFORMED:
            return None

    def _error_message(self, error: openai.APIStatusError) -> str:
        """Return the server's error message, cut to a readable length.

        For a redirect it is the address; else it is ``error.message`` of the body, or the openai package's own message.
        """
        if "location" in error.response.headers:
            return self.error_text(f"redirected to {error.response.headers['location']}, which is not followed")
        return self.error_text(error.body) or self.error_text(error.message)

    @property
    def url(self) -> str:
        """Address of the server, without a path."""
        return self._setup.url

    def error_text(self, error: object) -> str:
        """Return the text of an error, cut to a readable length.

        ``error`` is a reply's error object, of which ``message`` is taken, or a text in its place. Secrets are masked, and a web page is
        named by its title.
        """
        text = (error.get("message") or error) if isinstance(error, Mapping) else (error or "")
        return self._setup.secrets.excerpt(sse.web_page(str(text)) or str(text), _MAX_MESSAGE)

    def _parse_answer(self, request: Request, exchange: Exchange, *, streamed: bool, pass_index: int) -> TimedAnswer:
        """Return the answer in an exchange, or the failure it shows.

        An error object in a reply of status 200 is a failure of the server too. An error may come unstreamed although a stream was
        requested. Raises ValueError if the reply is outside the protocol.
        """
        if exchange.received is None:
            return _failed_answer(request, pass_index, exchange, exchange.error or "", exchange.ending)
        if exchange.status != _OK:
            msg = f"status {exchange.status}, expected {_OK} or a refusal"
            raise ValueError(msg)
        if request.route is Route.RESPONSES:
            return self._parse_response(request, exchange, exchange.received, streamed=streamed, pass_index=pass_index)
        if streamed and not exchange.received.body.startswith(b"{"):
            return self._parse_stream(request, exchange, exchange.received.events(), pass_index)
        data = self._dialect.reply(exchange.received.json())
        if data.get("error"):
            return _failed_answer(request, pass_index, exchange, self.error_text(data["error"]), FailureKind.ERROR)
        if streamed:
            raise ValueError(_NO_EVENTS)
        (data,) = self._dialect.answer(request, [data])  # adds token ids; takes a list, since a stream has several chunks
        parsed = responses.parse_body(data, self._dialect.steps(data))
        whole = self._complete_reply(request, parsed)  # adds the text and the prompt's ids, if they are missing
        return _timed_answer(request, pass_index, exchange, whole, counters=self._dialect.counted(data))

    def _parse_stream(self, request: Request, exchange: Exchange, events: Sequence[Event], pass_index: int) -> TimedAnswer:
        """Return the answer streamed in ``events``, or the server's failure.

        A stream ends with ``[DONE]``, or with finish reasons if the dialect has no such event; without its end it counts as a lost
        connection. Verify steps and counters are those of the last chunk with any. Raises ValueError if the reply is outside the protocol.
        """
        stamped_chunks = [(at_s, self._dialect.reply(chunk)) for at_s, chunk in sse.objects(events)]
        error = next((chunk["error"] for _, chunk in stamped_chunks if chunk.get("error")), None)
        if error is not None:
            return _failed_answer(request, pass_index, exchange, self.error_text(error), FailureKind.ERROR)
        chunks = self._dialect.answer(request, [chunk for _, chunk in stamped_chunks])  # adds ids that only the whole stream shows
        stamped_chunks = [(at_s, chunk) for (at_s, _), chunk in zip(stamped_chunks, chunks, strict=True)]
        has_closing_event = any(event.data == sse.DONE for event in events)
        if has_closing_event:
            sse.expect_no_text_after_the_end(events)
        elif self._dialect.closing_event or not responses.is_finished(chunks):
            return _failed_answer(request, pass_index, exchange, "connection lost: the stream has no end", FailureKind.DIED)
        steps = next((chunk_steps for chunk in reversed(chunks) if (chunk_steps := self._dialect.steps(chunk))), None)
        counted = (self._dialect.counted(chunk) for chunk in reversed(chunks))
        counters = next((counts for counts in counted if counts is not None), None)
        # Where each chunk is one verify step, the steps are read off the chunks, given the most tokens that one drafts.
        draft_tokens = self._draft_tokens if self._dialect.chunk_per_step else None
        whole = self._complete_reply(request, responses.parse_stream(chunks, steps, draft_tokens))
        return _timed_answer(request, pass_index, exchange, whole, counters=counters, arrivals=sse.arrivals(stamped_chunks))

    def _parse_response(
        self, request: Request, exchange: Exchange, received: ReceivedResponse, *, streamed: bool, pass_index: int
    ) -> TimedAnswer:
        """Return the answer in a reply of the Responses API.

        If the connection broke, a stream is an answer without an end as long as the server is up; anything else counts as a lost
        connection. Raises ValueError if the reply is outside the protocol.
        """
        is_stream = streamed and not received.body.startswith(b"{")  # an error may come as one JSON object
        if received.broken and not (is_stream and self._is_up()):
            return _failed_answer(request, pass_index, exchange, f"connection lost: {received.broken}", FailureKind.DIED)
        stamped = list(sse.objects(received.events())) if is_stream else [(exchange.done_s, received.json())]
        failure = next((failure for _, data in stamped if (failure := response_events.read_failure(data))), None)
        if failure is not None:
            return _failed_answer(request, pass_index, exchange, self.error_text(failure), FailureKind.ERROR)
        if streamed and not is_stream:  # one JSON object that is no error
            raise ValueError(_NO_EVENTS)
        # Those of the last event with any count the whole answer.
        counters = next((counts for _, data in reversed(stamped) if (counts := self._dialect.counted(data)) is not None), None)
        if not is_stream:
            return _timed_answer(request, pass_index, exchange, response_events.parse_body(stamped[0][1]), counters=counters)
        stream = response_events.parse_stream([event for _, event in stamped], broken=bool(received.broken))
        return _timed_answer(request, pass_index, exchange, stream, counters=counters, arrivals=sse.arrivals(stamped, response_events.size))

    def _is_up(self) -> bool:
        """Return True if the server answers a GET of health or models."""
        url = f"{self._setup.url}{self._dialect.health_path or '/v1/models'}"
        with ExchangeLimits(seconds=_ASK_S), suppress(*_FAILURES):
            return bool(self._openai.get(url, cast_to=HTTPX.Response, options={"timeout": _ASK_S}).status_code == _OK)
        return False

    def _complete_reply(self, request: Request, parsed: responses.ParsedResponse) -> responses.ParsedResponse:
        """Return ``parsed`` with missing text and prompt ids filled in.

        Some servers reply with token ids alone: the dialect may then know their text, and the ids of the prompt. A reply without token ids
        is returned unchanged.
        """
        if not any(choice.token_ids for choice in parsed.choices):
            return parsed
        choices = tuple(
            replace(choice, text=self._dialect.text(choice.token_ids)) if _lacks_content(choice) else choice for choice in parsed.choices
        )
        prompt_token_ids = parsed.prompt_token_ids or self.prompt_token_ids(request)
        return replace(parsed, choices=choices, prompt_token_ids=prompt_token_ids)

    def prompt_token_ids(self, request: Request) -> tuple[int, ...]:
        """Return the token ids of a request's prompt on this server.

        They are worked out once per prompt, by a request to the server if the dialect needs one. Empty if they cannot be known.
        """
        key = request.prompt_key
        if key not in self._prompt_ids:
            self._prompt_ids[key] = self._dialect.prompt_token_ids(request, self._send_api_request)
        return self._prompt_ids[key]


def _lacks_content(choice: Choice) -> bool:
    """Return True if a choice has token ids, but no text or tool calls."""
    return bool(choice.token_ids) and not choice.written and not choice.tool_calls


def _describe_malformed(error: Exception) -> str:
    return f"answered outside the protocol: {error}"


def _timed_answer(
    request: Request,
    pass_index: int,
    exchange: Exchange,
    parsed: responses.ParsedResponse,
    *,
    counters: SpecCounters | None,
    arrivals: tuple[Arrival, ...] = (),
) -> TimedAnswer:
    """Return a timed answer with the contents of a parsed response.

    The inner answer holds ``counters`` only if its verify windows (the tokens that each verify step emitted) are unknown, since windows
    show the same step by step.
    """
    answer = Answer(
        request_id=request.id,
        pass_index=pass_index,
        status=exchange.status,
        prompt_token_ids=parsed.prompt_token_ids,
        choices=parsed.choices,
        prompt_logprobs=parsed.prompt_logprobs,
        usage=parsed.usage,
        response=parsed.response,
        timing=sse.timing(arrivals, parsed.usage, sent_s=exchange.sent_s, done_s=exchange.done_s),
        counters=None if any(choice.windows is not None for choice in parsed.choices) else counters,
    )
    return TimedAnswer(answer=answer, counters=counters, arrivals=arrivals)


def _aborted_answer(request: Request, pass_index: int, exchange: Exchange) -> TimedAnswer:
    """Return the answer to a request that its client was to leave early; no failure of the server."""
    failed = _failed_answer(request, pass_index, exchange, f"the client left after {request.abort_after} chunks", None)
    return replace(failed, answer=replace(failed.answer, aborted=True))


def _failed_answer(request: Request, pass_index: int, exchange: Exchange, error: str, ending: FailureKind | None) -> TimedAnswer:
    """Return an answer without choices, holding ``error`` as its text.

    ``ending`` is None if the server is not to blame. If a body came, the status is left out: its 200 would pass for an answer.
    """
    answer = Answer(
        request_id=request.id,
        pass_index=pass_index,
        status=None if exchange.received else exchange.status,
        error=error,
        timing=Timing(sent_s=exchange.sent_s, first_s=None, done_s=exchange.done_s),
    )
    return TimedAnswer(answer=answer, ending=ending)
