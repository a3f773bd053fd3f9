"""The protocol of engines: the command that starts a server, the dialect that it speaks, and the rules of its pair lint.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
Capture starts the servers, sends the requests and records the answers, which judges compare afterwards.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pytest_specdec.files.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.rules import EngineRules
    from pytest_specdec.engines.server_counts import Traffic, VerifySteps
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.penalty_window import PenaltyWindow
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.transcript import Position, ScoringRoute
    from pytest_specdec.model.workload import JSON, Request

__all__ = [
    "CHAT_COMPLETIONS",
    "COMPLETIONS",
    "HOST",
    "PROTOCOL_VERSION",
    "RESPONSES",
    "AnswerDialect",
    "ApiRequest",
    "Ask",
    "Command",
    "CounterDialect",
    "CounterSource",
    "Dialect",
    "Engine",
    "EngineProgram",
    "Footprint",
    "Get",
    "RoughRates",
    "ScoringDialect",
    "ServerSetup",
]

HOST = "127.0.0.1"
COMPLETIONS, CHAT_COMPLETIONS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
"""Paths of the OpenAI protocol."""
PROTOCOL_VERSION = 3
"""The version of this protocol, raised whenever an engine written for the version before could not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of a server and its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment."""
    scrubbed: tuple[str, ...] = ()
    """Prefixes of variable names in our own environment that would configure the server unnoticed by the config."""
    folders: tuple[str, ...] = ()
    """Folders that are made before it runs, such as a cache's."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that are written before it runs, by absolute path, such as a file of options."""
    stop: tuple[str, ...] = ()
    """A command that ends what signals do not reach, such as a container."""
    kill: tuple[str, ...] = ()
    """A command that kills what ``stop`` would end, at once."""
    running: tuple[str, ...] = ()
    """A command that prints something while the container runs and nothing afterwards, with exit code 0 either way."""
    container: str = ""
    """The name of the container that it runs in; empty for a process."""
    look: tuple[str, ...] = ()
    """A command that lists the open files of processes outside our own process tree, such as a container's."""
    secrets: Secrets = field(default_factory=Secrets)

    def __str__(self) -> str:
        return self.secrets.mask(shlex.join(self.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughRates:
    """An engine's rough speeds, to estimate times before anything is measured.

    They are those of a model so small that its weights take no time; the plan allows for the weights of a larger one.
    """

    boot_s: float
    """Without loading weights."""
    tokens_per_s: float
    """Emitted by one stream."""
    scored_tokens_per_s: float
    """Emitted tokens scored per second, all requests together."""
    compile_s: float = 0.0
    """Seconds added to a boot on an accelerator, where kernels are compiled and graphs captured."""
    scaling: float = 0.5
    """Part of ideal scaling that concurrent streams reach on the processor, 0..1."""
    timed_tokens_per_s: float | None = None
    """Emitted by all timed streams together under a config's ``speed:`` settings; None if these slow nothing down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The share of a machine that one server takes, estimated before any is started."""

    memory_gib: float | None = None
    """GiB of the machine's memory; None if unknown."""
    device_share: float | None = None
    """Fraction of every accelerator's memory, above 0 and at most 1; None for a server that needs no accelerator."""
    share_stated: bool = False
    """Whether the config states the share, instead of leaving it to the engine."""
    devices: int = 1
    """Accelerators that one server takes."""
    takes_first: bool = True
    """Whether the server takes the first of the accelerators that it sees; False if it may take any of them."""
    options: str = ""
    """The arguments that change share and devices, for a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSource:
    """One address that a server's counters are read from."""

    name: str
    """The rank that counts there: a process, or host and port."""
    url: str
    """The address with the path of its counters, or without a path for the dialect's own ``counters_path``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """The model, arguments and variables of one server, every ``${VAR}`` filled in."""

    model: str
    port: int
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request, together with the key."""
    body: Mapping[str, JSON] = field(default_factory=dict)
    """Fields laid over the body of every request of a workload."""
    attached: str | None = None
    """The address of a server that runs already and belongs to somebody else, without ``/v1``; None for one started here."""
    counted: tuple[CounterSource, ...] = ()
    """Where its counters are read, one source for each rank; empty for its own address."""
    served_as: str = ""
    """The name under which its server lists the model, if it is not ``model``."""
    any_model: bool = False
    """Whether an attached server's only model is meant, whatever its name: the config names none."""
    speculative: bool = False
    """Whether the server is to speculate."""
    folder: Path = Path(tempfile.gettempdir())
    """Where the command's files are written: a folder of the run, or a temporary one for the doctor, which only looks at the command."""
    secrets: Secrets

    @property
    def asked_model(self) -> str:
        """The name of the model, as requests give it.

        The ``model`` field of ``body`` comes first, then ``served_as``, then ``model``.
        """
        return str(self.body.get("model") or self.served_as or self.model)

    @property
    def url(self) -> str:
        """The server's address, without a slash at its end."""
        return self.attached or f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """Two command lines that ask an engine's program about itself without starting a server."""

    version: tuple[str, ...]
    """Prints the version on the last line of its standard output, or on the line of ``version_prefix``."""
    help: tuple[str, ...]
    """Without the flag that asks for help."""
    abbreviates: bool
    """Whether its parser takes unambiguous beginnings of flags."""
    version_prefix: str = ""
    """The beginning of the line with the version, on either stream; empty if it is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A POST that a dialect wants sent."""

    path: str
    """From the server's address on: ``/v1/completions``."""
    body: Mapping[str, JSON]


Get: TypeAlias = "Callable[[str], str | None]"
"""Asks a server for a path and returns the body of a 200; None for anything else."""

Ask: TypeAlias = "Callable[[ApiRequest], Mapping[str, JSON] | None]"
"""Sends a request to the server and returns its reply; None for anything but an object with status 200."""


class AnswerDialect(Protocol):
    """Requests of workloads as an engine takes them, and how it answers them."""

    chunk_per_step: bool
    """Whether a chunk of a stream holds the tokens of one verify step; False if every token has a chunk of its own."""
    closing_event: bool
    """Whether a stream ends with ``[DONE]``; otherwise the chunk with the finish_reason is its end."""
    penalty_window: PenaltyWindow
    """The tokens that penalties count in a request as :meth:`sent` writes it."""

    def path(self, request: Request) -> str:
        """Return the URL path to send a request to.

        It is the path of the request's route, unless another route of the engine answers with more, such as token ids.
        """

    def sent(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return a request's body in the form of this server.

        It has the server's field names, the fields that ask for token ids, and neutral sampling parameters in place of
        defaults that the server would fill in. A request with ``server_defaults`` gets no neutral parameters. ``stream``
        is True if the answer is to be streamed.
        """

    def reply(self, data: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a reply or stream chunk with its token ids added.

        They are put into ``token_ids`` of every choice, where capture reads them. A reply without ids stays without.
        """

    def answer(self, request: Request, replies: Sequence[Mapping[str, JSON]]) -> Sequence[Mapping[str, JSON]]:
        """Return an answer's reply or chunks, with complete token ids.

        ``replies`` is one reply, or the chunks of a stream, each already read by :meth:`reply`. This step adds the ids
        if they can be known only from the whole answer.
        """

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer's token ids; empty if unknown.

        It is asked for if the server returned the answer as ids without text.
        """

    def prompt_token_ids(self, request: Request, ask: Ask) -> tuple[int, ...]:
        """Return the token ids of a request's prompt.

        It is used when replies do not hold the ids. ``ask`` sends a request to the same server, such as one to its
        tokenizer. Returns an empty tuple if the ids cannot be known.
        """


class CounterDialect(Protocol):
    """An engine's reports about itself: its state, its version, and its drafting."""

    health_path: str | None
    """Answers 200 when the server is ready; like the other two paths, None if there is no such path."""
    version_path: str | None
    counters_path: str | None
    counters_drain: bool
    """Whether a reading of the counters sets them back to 0."""
    counters_exact: bool
    """Whether the counters count every draft token; otherwise the counts in the answers themselves are preferred."""
    counters_late: bool
    """Whether the counters may come after the answers that they count: answers are then streamed, so that chunks show the steps."""

    def version(self, text: str) -> str:
        """Return the engine's version in the text of ``version_path``.

        Returns an empty string without one.
        """

    def wrong_build(self, log: str) -> str:
        """Return the reason to reject this server's build; empty if right.

        ``log`` is the server's log up to its readiness. The build is right if the server is the one that the config
        names.
        """

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:
        """Return the verify steps in a reply or last stream chunk.

        Returns None if it holds none.
        """

    def counted(self, reply: Mapping[str, JSON]) -> SpecCounters | None:
        """Return one answer's speculation counters from a reply or stream chunk.

        Returns None if it holds none.
        """

    def counters(self, text: str) -> SpecCounters | None:
        """Return the speculation counters in the text of ``counters_path``.

        Returns None without any.
        """

    def logged(self, text: str) -> SpecCounters | None:
        """Return the speculation counters in a server's log.

        They count from the server's start, and are used when ``counters_path`` has none. Returns None without any.
        """

    def traffic(self, text: str) -> Traffic:
        """Return the traffic counters in the text of ``counters_path``.

        They cover the requests of all clients: capture compares two readings to find other clients, a restarted server
        and preempted requests.
        """


class ScoringDialect(Protocol):
    """Requests for a server's distribution at given tokens, and how the replies are read."""

    prefixes_per_request: int
    """Prefixes that one request for continuations may hold, at least 1."""

    def scoring(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> ApiRequest | None:
        """Return a request to score given tokens after a prompt.

        For each of ``token_ids`` its reply holds the server's next-token distribution after the prompt and the tokens
        before it. Of each distribution it lists the ``top_tokens`` most probable tokens. Returns None if the engine has
        no such request.
        """

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distributions in the reply to a scoring request.

        ``reply`` answers :meth:`scoring`'s request. There is a distribution for each of ``token_ids``, in order. Raises
        RequestError if one is missing.
        """

    def continuations(self, prefixes: Sequence[Sequence[int]], top_tokens: int) -> ApiRequest | None:
        """Return a request to continue every prefix by one token.

        A prefix is the prompt and the answer up to a token to score; there are at most ``prefixes_per_request``. After
        each the reply lists the ``top_tokens`` most probable tokens, unchanged by sampling parameters. Returns None if
        the engine has no such request.
        """

    def continued(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distributions in the reply to a continuation request.

        ``reply`` answers :meth:`continuations`'s request, which asked for ``top_tokens``. ``token_ids`` has a token for each
        prefix: the next one in the scored answer. Position i holds the top tokens after prefix i, and the log-probability of
        token i. Raises RequestError if one is missing.
        """


class Dialect(AnswerDialect, CounterDialect, ScoringDialect, Protocol):
    """The requests to an engine's servers and the reading of their replies.

    ``engines/plain_dialect.py`` has every member for an engine that serves the OpenAI protocol and nothing beyond it.
    """


class Engine(Protocol):
    """One serving engine: how it is installed and started, and which requests it takes."""

    kind: str
    """The name in a config, and that of the entry point."""
    protocol_version: int
    """The ``PROTOCOL_VERSION`` that the engine is written for."""
    pace: RoughRates
    rules: EngineRules
    """The rules of the pair lint."""
    scored_with: str
    """The engine's own options under which its tokens can be scored: the remedy if they cannot."""

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:
        """Return the dialect of the server of ``setup``."""

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings in ``args``.

        Returns None if they do not speculate.
        """

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return the names of a server's models, possibly from the hub.

        They are ``model`` and the draft model in ``args``, as the config writes them. Models are left out if
        :meth:`check` always looks for their files on this machine.
        """

    def check(self, config: Config) -> None:
        """Raise EngineError if the engine cannot serve this config.

        The engine or a model may be missing, or a setting may be one with which no server starts.
        """

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the command for the server of ``setup``."""

    def program(self, argv: Sequence[str]) -> EngineProgram | None:
        """Return the command lines that print the program's version and its flags.

        ``argv`` is the command of a server, as of :meth:`command`. Returns None if the program cannot be asked.
        """

    def vocabulary(self, config: Config) -> int:
        """Return the target's vocabulary size in tokens; 0 if unknown."""

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the memory and accelerators of one server, by its config.

        They are estimated before any server runs, for the arm that needs most. ``accelerated`` is True for a machine
        with an accelerator.
        """

    def route(self, config: Config) -> ScoringRoute | None:
        """Return the expected way to score tokens, for estimates of time.

        The plan needs it before any server runs. The capability probe then tries the ways on the running baseline.
        Returns None if the engine has none, so that another server has to score.
        """

    def single_precision(self, config: Config) -> bool:
        """Return True if every arm computes in float32, nothing quantised.

        It is judged by the arguments and the checkpoint. Judges tolerate less noise between float32 servers.
        """
