"""One live server under the contract: its adapter, its client, and the answers that several tests look at."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_specdec.capture import sse
from pytest_specdec.capture.scoring import ScoredSequence, ScoringRequest, scorer
from pytest_specdec.capture.server.readiness import get
from pytest_specdec.doctor import probe
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.errors import EngineError
from pytest_specdec.model.transcript import ScoringRoute, SpecCounters
from pytest_specdec.model.workload import Request, Route

from .claims import UncheckedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Dialect, Engine
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Choice
    from pytest_specdec.model.workload import JSON

PROMPT = "Once upon a time there was a"
TOKENS = 32
TOP = 5
"""Most probable tokens asked for at a scored position."""
GREEDY: Mapping[str, JSON] = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.0}
CONVERSATION: Mapping[str, JSON] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": TOKENS, "temperature": 0.0}
_COUNTED = ("def main():\n", "one two three one two three one two", PROMPT)
"""Prompts that give a drafter something to draft, n-grams too."""
_DEADLINE_S = 60.0
_SETTLED_S, _PAUSE_S = 3.0, 0.1
_LOGGED_S = 12.0
"""An engine that logs its counters does so every ten seconds."""


class NoAnswerError(UncheckedError):
    """The server did not answer what a claim rests on."""


class Visit:
    """Asks a server what the tests want to know, each thing once."""

    def __init__(
        self, arm: ArmServer, config: Config, engine: Engine, *, draft: Draft | None, variant: str = "", early: str | None = None
    ) -> None:
        """Take a started server, with the variant's name and drafting.

        ``early`` is what was wrong with its readiness: empty where nothing was, None where nothing could be seen of
        it.
        """
        self.arm = arm
        self.config = config
        self.engine = engine
        self.draft = draft
        self.variant = variant
        """Empty for the baseline."""
        self.early = early
        self._page_sum: SpecCounters | None = None
        self._scored: dict[tuple[ScoringRoute, ScoringRequest], ScoredSequence] = {}

    @property
    def dialect(self) -> Dialect:
        """The dialect of the server.

        For an attached server it may be the one it was recognised for.
        """
        return self.arm.recipe.dialect

    @cached_property
    def program_version(self) -> str | None:
        """The version printed by the server's program.

        None if the program is not asked. Raises EngineError if it prints none.
        """
        command = self.arm.recipe.command
        program = self.engine.program(command.argv) if command is not None and not self.config.engine.image else None
        if program is None or command is None:
            return None
        result = probe.run(program.version, command.env)
        version = result.version(program.version_prefix)
        if not version:
            what = f"the program prints no version and ended with exit code {result.exit_code}"
            raise EngineError(what, found=result.last_words[:150])
        return version

    def claims(self, member: str) -> bool:
        """Return True if the dialect claims ``member`` for itself.

        Its claim goes beyond that of the plain protocol.
        """
        return getattr(type(self.dialect), member, None) is not getattr(PlainDialect, member, None)

    def send(self, body: Mapping[str, JSON], route: Route = Route.COMPLETIONS, *, streamed: bool = False) -> TimedAnswer:
        """Return the answer to a request, even a refusal or failure.

        Raises NoAnswerError if the server is gone.
        """
        if not self.arm.running:
            what = f"the server is gone: {self.arm.wait_for_end() or 'it ended before'}"
            raise NoAnswerError(what)
        answer = self.arm.client.send(Request(id="contract", route=route, body=body), streamed=streamed, deadline_s=_DEADLINE_S)
        if answer.ending is not None:
            self.arm.wait_for_end()
        return answer

    def ask(self, body: Mapping[str, JSON], route: Route = Route.COMPLETIONS, *, streamed: bool = False) -> TimedAnswer:
        """Return the answer to a request.

        Raises NoAnswerError unless the status is 200.
        """
        timed = self.send(body, route, streamed=streamed)
        if not timed.answer.ok:
            what = f"{route.value}{', streamed' if streamed else ''}: {timed.answer.status or timed.ending}: {timed.answer.error}"
            raise NoAnswerError(what)
        return timed

    def reply(self, path: str, body: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the reply to a body untouched by a dialect.

        Raises NoAnswerError unless it is an object with status 200.
        """
        exchange = self.arm.client.exchange(path, body, deadline_s=_DEADLINE_S)
        if exchange.received is None:
            what = f"{path}: {exchange.status or exchange.ending}: {exchange.error}"
            raise NoAnswerError(what)
        return exchange.received.json()

    def chunks(self, body: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
        """Return the chunks of a streamed completion, read by the dialect.

        Raises NoAnswerError without a reply.
        """
        request = Request(id="contract", route=Route.COMPLETIONS, body=body)
        sent_body = {**self.dialect.sent(request, stream=True), **self.arm.recipe.setup.body}
        exchange = self.arm.client.exchange(self.dialect.path(request), sent_body, streamed=True, deadline_s=_DEADLINE_S)
        if exchange.received is None:
            what = f"a streamed completion: {exchange.status or exchange.ending}: {exchange.error}"
            raise NoAnswerError(what)
        return [self.dialect.reply(chunk) for _, chunk in sse.objects(exchange.received.events())]

    @cached_property
    def greedy(self) -> TimedAnswer:
        """A greedy completion."""
        return self.ask(GREEDY)

    @cached_property
    def streamed(self) -> TimedAnswer:
        """The same, streamed."""
        return self.ask(GREEDY, streamed=True)

    @cached_property
    def chat(self) -> TimedAnswer:
        """A greedy conversation."""
        return self.ask(CONVERSATION, Route.CHAT)

    @cached_property
    def streamed_chat(self) -> TimedAnswer:
        """The same, streamed."""
        return self.ask(CONVERSATION, Route.CHAT, streamed=True)

    @cached_property
    def reported(self) -> tuple[TimedAnswer, Choice]:
        """A greedy completion with log-probabilities, and its choice.

        Raises NoAnswerError if ids or log-probabilities are missing.
        """
        timed = self.ask({**GREEDY, "logprobs": 1})
        choice = timed.answer.choice
        if not choice.token_ids or choice.logprobs is None or not timed.answer.prompt_token_ids:
            what = "no ids of prompt and answer with log-probabilities, which scores are held against"
            raise NoAnswerError(what)
        return timed, choice

    def score(self, route: ScoringRoute, prompt: Sequence[int], ids: Sequence[int]) -> ScoredSequence:
        """Return the scores of ``ids`` after ``prompt``, each sequence asked for once.

        Raises NoAnswerError if the server itself failed.
        """
        request = ScoringRequest(prompt_token_ids=tuple(prompt), token_ids=tuple(ids), top_tokens=TOP)
        if (route, request) not in self._scored:
            self._scored[route, request] = scorer(route, self.arm, _DEADLINE_S).distribution(request)
        scored = self._scored[route, request]
        if scored.failed:
            raise NoAnswerError(scored.error)
        return scored

    def claims_route(self, route: ScoringRoute) -> bool:
        """Return True if the dialect can ask by a route."""
        if route is ScoringRoute.PROMPT_LOGPROBS:
            return self.dialect.scoring([1], [1], TOP) is not None
        return self.dialect.continuations([[1]], TOP) is not None

    def score_reported(self, route: ScoringRoute) -> ScoredSequence:
        """Return the scores of the tokens of :attr:`reported`.

        Raises NoAnswerError as that does.
        """
        timed, choice = self.reported
        return self.score(route, timed.answer.prompt_token_ids, choice.token_ids)

    def log(self) -> str:
        """Return the text of the server's log."""
        return self.arm.recipe.log.read_text(encoding="utf-8", errors="replace")

    def page(self) -> str | None:
        """Return the text of ``counters_path``; None without a 200."""
        return get(self.arm.recipe.setup, self.dialect.counters_path)

    def read_counters(self) -> SpecCounters | None:
        """Return the counters of the page, None without any.

        Those that earlier readings drained are included.
        """
        page = self.page()
        counters = None if page is None else self.dialect.counters(page)
        if counters is None or not self.dialect.counters_drain:
            return counters
        self._page_sum = counters if self._page_sum is None else self._page_sum + counters
        return self._page_sum

    def settled_counters(self) -> SpecCounters | None:
        """Return the counters once two readings agree, or after three seconds.

        Some engines enter a step after they have sent its tokens. None without any.
        """
        until_s, counters = time.monotonic() + _SETTLED_S, self.read_counters()
        while counters is not None and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
            counters, previous = self.read_counters(), counters
            if counters == previous:
                break
        return counters

    @cached_property
    def drafted(self) -> tuple[SpecCounters | None, tuple[TimedAnswer, ...]]:
        """The counters' rise over a few answers, and those answers.

        The rise is None without counters.
        """
        return self._count_drafts(streamed=False)

    @cached_property
    def streamed_drafts(self) -> tuple[SpecCounters | None, tuple[TimedAnswer, ...]]:
        """The same of streamed answers."""
        return self._count_drafts(streamed=True)

    def _count_drafts(self, *, streamed: bool) -> tuple[SpecCounters | None, tuple[TimedAnswer, ...]]:
        """Return the counters' rise over a few answers, and these."""
        counters_before = self.settled_counters()
        answers = tuple(self.ask({**GREEDY, "prompt": prompt}, streamed=streamed) for prompt in _COUNTED)
        counters_after = self.settled_counters()
        return (None if counters_after is None else counters_after - (counters_before or SpecCounters())), answers

    @cached_property
    def own(self) -> SpecCounters | None:
        """The counts reported by the answers of ``drafted``.

        None if one of them reports none.
        """
        counts = [timed.counters for timed in self.drafted[1]]
        return None if any(count is None for count in counts) else sum((count for count in counts if count), SpecCounters())

    def logged_counters(self, agrees: Callable[[SpecCounters], bool]) -> SpecCounters | None:
        """Return the counters of the log once they agree.

        If they never do, those read after the time in which a line is written. None where there are none.
        """
        until_s = time.monotonic() + _LOGGED_S
        while True:
            counters = self.dialect.logged(self.log())
            if (counters is not None and agrees(counters)) or time.monotonic() >= until_s:
                return counters
            time.sleep(_PAUSE_S)
