"""A transcript: everything that one arm answered to one workload in one boot, and how a server scored it.

An arm is a server setup: the baseline, a variant, which speculates, or the control, the baseline booted again. A boot is one start of its
server; a pass is one sending of all requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pytest_specdec.model.event import EventOutcome
from pytest_specdec.model.response_object import ResponseObject
from pytest_specdec.model.server_failure import FailureKind, ServerFailure
from pytest_specdec.model.soak import SoakRound
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters
from pytest_specdec.model.timing import MOST_PER_CORE, ClientLoad, Timing
from pytest_specdec.model.workload import Route

__all__ = [
    "REFUSALS",
    "Answer",
    "Choice",
    "FailureKind",
    "ListedTokens",
    "Position",
    "Score",
    "ScoringRoute",
    "ServerFailure",
    "SpecCounters",
    "Stream",
    "ToolCall",
    "Transcript",
    "Usage",
    "is_rejection",
]


REFUSALS = frozenset({400, 404, 405, 413, 415, 422, 501})
"""Statuses that refuse what is asked. Any other 4xx is about a key, a quota, a proxy or a timeout, and says nothing of the engine."""
_CLIENT_ERRORS = range(400, 500)


def is_rejection(status: int | None) -> bool:
    """Return True if the status refuses a request or denies access.

    It is a 4xx, or 501. Any other status outside 2xx counts as a failure of the server. False for None, no answer at all.
    """
    return status in REFUSALS or status in _CLIENT_ERRORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The server's own token counts."""

    prompt_tokens: int
    completion_tokens: int
    """Those of the reasoning included."""
    reasoning_tokens: int | None = None
    """Completion tokens that the server counts as reasoning; None where it does not count them."""
    cached_tokens: int | None = None
    """Prompt tokens that the server took from its prefix cache; None where it tells none."""
    total_tokens: int | None = None
    """The sum of prompt and completion as the server gives it; None where it gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTokens:
    """The tokens that a server listed with one emitted token, in its order."""

    token: str
    """The emitted token, as the server names it."""
    tokens: tuple[str, ...]
    """The most probable tokens; on the completions route the emitted one may be among them though it is none of those."""
    logprobs: tuple[float, ...]


_OPENING_TAG, _CLOSING_TAG = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, as a client puts it together."""

    index: int = 0
    """Its place among the calls, as the deltas of a stream number it."""
    id: str = ""
    """The first that came under its index; empty where none did."""
    name: str = ""
    """All parts that came under its index, in their order; so are the arguments."""
    arguments: str = ""
    """JSON, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the ``n`` answers to a request."""

    index: int = 0
    text: str = ""
    """What answers the request, without the reasoning."""
    reasoning: str = ""
    """What a model wrote before its answer, where the server tells the two apart."""
    tool_calls: tuple[ToolCall, ...] = ()
    """In the order in which they came."""
    token_ids: tuple[int, ...] = ()
    """The emitted tokens as ids, an emitted end-of-sequence token included; empty where the server does not report them."""
    finish_reason: str | None = None
    stop_string: str | None = None
    """The stop string that ended it, as the server names it; None where it names none."""
    stop_token_id: int | None = None
    """The stop token id that ended it, likewise; None for an end of sequence."""
    logprobs: tuple[float, ...] | None = None
    """Natural-log probabilities of the emitted tokens as this server reported them, one per token id; None when not requested."""
    listed: tuple[ListedTokens, ...] | None = None
    """One entry per reported log-probability; None where the server listed nothing."""
    windows: tuple[int, ...] | None = None
    """Tokens emitted per step; the first entry is the prefill's (1), each later one a verify step's 1..k+1. None where unknown.

    The sum may exceed ``len(token_ids)`` when the last window was cut by a limit.
    """
    drafted: tuple[int, ...] | None = None
    """Draft tokens per verify step, one entry for each window after the prefill's; None where unknown."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The tokens emitted in each whole verify step of the answer.

        The prefill is left out, since it verifies nothing, and so is the last step, which a limit may have cut. () if the steps are
        unknown.
        """
        return (self.windows or ())[1:-1]

    @property
    def written(self) -> str:
        """The reasoning and then the text."""
        return self.reasoning + self.text

    @property
    def cut_in_reasoning(self) -> bool:
        """True if the token limit cut the answer within its reasoning.

        There is then no text to judge. Without the closing tag some reasoning parsers return the reasoning as text,
        with its opening tag; such a text counts as reasoning here.
        """
        text = self.text.strip()
        unparsed = text.startswith(_OPENING_TAG) and _CLOSING_TAG not in text
        return self.finish_reason == "length" and ((bool(self.reasoning) and not text) or unparsed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request in one pass."""

    request_id: str
    pass_index: int = 0
    """From 0; always 0 where the workload has one pass."""
    status: int | None
    """The HTTP status; None when no answer came (connection lost, hung, or quarantined and not sent)."""
    error: str | None = None
    """The server's message for a 4xx or 5xx, or how the connection ended."""
    prompt_token_ids: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()
    prompt_logprobs: tuple[float, ...] | None = None
    """Natural-log probabilities of the prompt's tokens from the second on, as the server reported them; None without them."""
    usage: Usage | None = None
    timing: Timing | None = None
    counters: SpecCounters | None = None
    """What was drafted for it, where the server reports that with the answer and its windows are not known."""
    response: ResponseObject | None = None
    """What an answer of the responses route has beside its choice; None on any other route."""
    aborted: bool = False
    """Whether the client left before the end, as its request says: no answer, and no failure of the server."""

    @property
    def ok(self) -> bool:
        """True if the server answered with status 200."""
        return self.status == 200  # noqa: PLR2004 - the one status that means success here

    @property
    def refused(self) -> bool:
        """True if the status is one for an unsupported request."""
        return self.status in REFUSALS

    @property
    def denied(self) -> bool:
        """True if the status is a 4xx that refuses no feature.

        Such a status, as of an expired key or a quota, says nothing about the engine.
        """
        return self.status is not None and 400 <= self.status < 500 and not self.refused  # noqa: PLR2004 - what a 4xx is

    def is_longer_than(self, tokens: int | None) -> bool:
        """Return True if prompt and answer have more than ``tokens`` tokens; False for None."""
        return tokens is not None and self.prompt_tokens + self.reported_tokens > tokens

    @property
    def choice(self) -> Choice:
        """The only choice, or an empty one when there is none."""
        return self.choices[0] if self.choices else Choice()

    @property
    def tokens(self) -> int | None:
        """Number of emitted tokens in its only choice, by their ids.

        Without ids it is the server's own count, and None if the server reports none. Ids and count may differ:
        :attr:`reported_tokens` prefers the count, which is what a client is billed.
        """
        return len(self.choice.token_ids) or (self.usage.completion_tokens if self.usage else None)

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of its prompt, by the server's own count or else by their ids."""
        return self.usage.prompt_tokens if self.usage else len(self.prompt_token_ids)

    @property
    def reported_tokens(self) -> int:
        """Number of emitted tokens by the server's own count.

        If the server reports no count, it is the number of ids in the only choice; :attr:`tokens` prefers the ids.
        """
        return self.usage.completion_tokens if self.usage else len(self.choice.token_ids)

    @property
    def key(self) -> tuple[str, int]:
        """Its request id and pass."""
        return (self.request_id, self.pass_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """How one streamed answer arrived, chunk by chunk; chunks without text are left out."""

    prompt: int
    """Which of the prompts asked it answers, from 0."""
    text: str
    ends: tuple[int, ...]
    """Characters of the text that are there with each chunk, rising to ``len(text)``."""
    at_s: tuple[float, ...]
    """When each chunk was read, in seconds from sending."""
    tokens: int
    """Completion tokens by the server's own count; the number of chunks where it does not count."""


class ScoringRoute(StrEnum):
    """How a server's distribution at given tokens is obtained."""

    PROMPT_LOGPROBS = "prompt log-probabilities"
    """The tokens are sent as a prompt: one request per answer, and every token's own log-probability."""
    CONTINUATIONS = "one-token continuations"
    """Every prefix is continued by one token: one request per token, and the log-probabilities of the listed tokens alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The raw distribution (temperature 1, nothing processed) at one emitted token, given everything before it.

    All log-probabilities are natural logs of the full-vocabulary softmax.
    """

    token_id: int
    logprob: float
    """Of ``token_id``, also when it is not among the top tokens; nan where the route to the scores lists the top tokens only."""
    top_ids: tuple[int, ...]
    """The most probable tokens, by falling probability; below 0 for one that the server names by text alone."""
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One answer's tokens under one server, teacher-forced from token ids."""

    request_id: str
    pass_index: int = 0
    arm: str
    """The arm that emitted the tokens."""
    under: str
    """The scoring server: ``baseline``, or the draft model's name."""
    positions: tuple[Position, ...]
    """One per emitted token of the answer's first choice."""
    prompt_token_ids: tuple[int, ...] = ()
    """Of the prompt that the tokens were scored after; empty where the answer itself has them."""

    @property
    def key(self) -> tuple[str, int]:
        """The answer's request id and pass."""
        return (self.request_id, self.pass_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The answers of one arm to one workload, with the server's own counts."""

    arm: str
    """``baseline``, ``control``, or the variant's name."""
    boot: int
    """Which boot of the run answered, from 0."""
    workload: str
    digest: str
    answers: tuple[Answer, ...]
    """In the order of the workload's requests, pass by pass; a request that was not sent has an answer with status None."""
    counters: SpecCounters | None = None
    """Speculation counters over exactly these answers; None where the server has none."""
    ranks: tuple[RankCounters, ...] = ()
    """The same by rank, where the counters come from several processes or are labelled by rank; empty where they have one source."""
    server_failures: tuple[ServerFailure, ...] = ()
    restarts: int = 0
    concurrency: int | None = None
    """Requests in flight at most, where the server was found to fail with as many as the workload says; None elsewhere."""
    replaced: str = ""
    """How it shows that somebody else started the server anew meanwhile; empty where nothing shows it."""
    foreign: str = ""
    """What an attached server was asked by others meanwhile, as its counters tell; empty where they tell nothing."""
    elsewhere: str = ""
    """How counters show that the baseline's server gave some of these answers; empty where nothing shows it."""
    uncounted: str = ""
    """How many fewer tokens an attached server counted than its answers brought, with no sign of another server; empty otherwise."""
    silent_routes: tuple[Route, ...] = ()
    """Routes that refused every request, a plain one too: the engine lacks them, or they were down."""
    limited: int = 0
    """Times that a request was refused with a 429, too many requests, and sent again."""
    client: ClientLoad | None = None
    """How busy the client was where answers were timed by a process of its own, over all passes. None elsewhere."""
    machine_load: float | None = None
    """Processes that ran or waited to run, per core of the client's machine: the most that the one-minute average was at a timed pass.
    None where nothing was timed, or not known."""
    new_ttft_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds to the first token by request where its prompt was new to the server: in the warm-up pass, and not mostly cached."""
    preemptions: int | None = None
    """Requests that the server put off for want of cache, where the workload asks for a small one and the server counts them."""
    events: tuple[EventOutcome, ...] = ()
    """What came of the workload's events, in their order; shorter where the workload was not sent to its end."""
    soak: tuple[SoakRound, ...] = ()
    """What came of the minutes between the first pass and the next, round by round; empty where there were none."""
    room: int = 1
    """Times the planned token limits that its requests had, as most of the baseline's documents did not end within fewer."""
    started_at: str = ""
    """UTC, ISO 8601."""
    wall_s: float = 0.0

    def lost_routes(self, others: Iterable[Transcript]) -> frozenset[Route]:
        """Return the routes silent here, but not in all of ``others``.

        A silent route refused every request; ``others`` are other arms' transcripts of the same workload. If another arm answers on a
        route, the engine has it. The route was then lost on the way to this server, as by a proxy in front of it, and its refusals say
        nothing of the engine. Empty without ``others``.
        """
        silent = frozenset(self.silent_routes)
        return silent - silent.intersection(*(other.silent_routes for other in others))

    @property
    def busy_machine(self) -> str:
        """A sentence on a client machine with more processes than cores.

        It is written if their number per core is above MOST_PER_CORE: the times may then be those of a queue for the processor. Empty if
        the load was low enough or is unknown.
        """
        if self.machine_load is None or self.machine_load <= MOST_PER_CORE:
            return ""
        return f"{self.machine_load:.1f} processes to a core of the client's machine while {self.arm} was timed (limit {MOST_PER_CORE:g})"

    @property
    def unexplained(self) -> tuple[tuple[ServerFailure, ...], ...]:
        """The failures of the server that did not recur, each as a tuple of entries.

        An entry, a ``ServerFailure``, is one request in flight at a failure; ``failure`` numbers the failure. It recurs if a request brings
        it about again on a fresh server. Empty if any failure here recurred: the verdict is then about that one.
        """
        if any(server_failure.recurred for server_failure in self.server_failures):
            return ()
        by_failure: dict[int, list[ServerFailure]] = {}
        for server_failure in self.server_failures:
            by_failure.setdefault(server_failure.failure, []).append(server_failure)
        return tuple(map(tuple, by_failure.values()))

    @property
    def tokens(self) -> int:
        """Emitted tokens over all choices."""
        return sum(len(choice.token_ids) for answer in self.answers for choice in answer.choices)

    def part(self, request_ids: Collection[str]) -> Transcript:
        """Return the transcript with the answers to these requests only.

        The server's counters are left out, since they cover all requests.
        """
        return replace(self, answers=tuple(answer for answer in self.answers if answer.request_id in request_ids), counters=None, ranks=())

    def __repr__(self) -> str:
        return f"<Transcript {self.arm}/{self.workload}: {len(self.answers)} answers, {self.tokens} tokens>"
