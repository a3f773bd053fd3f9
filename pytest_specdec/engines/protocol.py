"""The protocol of engines: the command that starts a server, the dialect that it speaks, and the rules of its pair lint."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import SpecCounters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.rules import EngineRules
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Position, ScoringRoute
    from pytest_specdec.model.workload import JSON, Request

__all__ = [
    "HOST",
    "PROTOCOL_VERSION",
    "Command",
    "Dialect",
    "Engine",
    "EngineProgram",
    "Footprint",
    "RoughRates",
    "ServerSetup",
    "VerifySteps",
]

HOST = "127.0.0.1"
PROTOCOL_VERSION = 1
"""Of this module; raised whenever an engine written for the one before could not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, in which environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment."""
    scrubbed: tuple[str, ...] = ()
    """Beginnings of the names of variables in our own environment that would set up the server behind the config's back."""
    stop: tuple[str, ...] = ()
    """A command that ends what signals do not reach, such as a container."""
    kill: tuple[str, ...] = ()
    """The same, at once."""
    look: tuple[str, ...] = ()
    """A command that lists the open files of processes that are not children of ours, such as a container's."""
    secrets: Secrets = field(default_factory=Secrets)

    def __str__(self) -> str:
        return self.secrets.mask(shlex.join(self.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughRates:
    """Rough rates for the estimate that is printed before anything boots; measured ones correct them."""

    boot_s: float
    tokens_per_s: float
    """Emitted by one stream."""
    scored_tokens_per_s: float
    """Emitted tokens scored per second, all requests together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The share of a machine that one server takes, estimated before any is started."""

    memory_gib: float | None = None
    """Of the machine's memory; None where unknown."""
    device_share: float | None = None
    """Of every accelerator's memory, above 0 and at most 1; None for a server that needs no accelerator."""
    share_stated: bool = False
    """Whether the config states the share, instead of leaving it to the engine."""
    devices: int = 1
    """Accelerators that one server takes."""
    options: str = ""
    """The arguments that change share and devices, for a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """The model, arguments and variables of one server, every ``${VAR}`` filled in."""

    model: str
    port: int
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    speculative: bool = False
    secrets: Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySteps:
    """The verify steps of one answer, as a server reports them."""

    accepted: tuple[int, ...]
    """Accepted draft tokens per verify step."""
    drafted: tuple[int, ...]

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens emitted per step, the prefill's one first."""
        return (1, *(accepted + 1 for accepted in self.accepted))

    @property
    def counters(self) -> SpecCounters:
        """The same steps as a server counts them; a step without a draft is not counted."""
        longest = max(self.drafted, default=0)
        return SpecCounters(
            drafts=sum(1 for drafted in self.drafted if drafted),
            draft_tokens=sum(self.drafted),
            accepted_tokens=sum(self.accepted),
            accepted_per_position=tuple(sum(1 for a in self.accepted if a > i) for i in range(longest)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """Two command lines that ask an engine's program about itself without starting a server."""

    version: tuple[str, ...]
    """Prints the version on its last line."""
    help: tuple[str, ...]
    """Without the flag that asks for help."""
    abbreviates: bool
    """Whether its parser takes unambiguous beginnings of flags."""


class Dialect(Protocol):
    """Requests to an engine's servers for what the OpenAI protocol does not have, and how replies are read."""

    health_path: str | None
    """Answers 200 when the server is ready; None where there is no such path. So are the other two."""
    version_path: str | None
    counters_path: str | None

    def added(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the fields that capture adds to a request's body to learn token ids, usage and windows."""

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:
        """Return the verify steps in a reply, or in the last chunk of a stream; None where it holds none."""

    def counters(self, text: str) -> SpecCounters | None:
        """Return the speculation counters in the text of ``counters_path``; None where there are none."""

    def scoring_body(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], top_tokens: int) -> Mapping[str, JSON]:
        """Return the body of a completion whose reply holds the distribution at every one of ``token_ids``."""

    def positions(self, reply: Mapping[str, JSON], token_ids: Sequence[int], top_tokens: int) -> tuple[Position, ...]:
        """Return the distribution at every one of ``token_ids``. Raises RequestError when the reply does not hold it."""

    def continuation_body(self, prefix: Sequence[int], top_tokens: int) -> Mapping[str, JSON]:
        """Return the body of a completion by one token whose reply lists the ``top_tokens`` most probable ones, nothing processed."""

    def position(self, reply: Mapping[str, JSON], token_id: int, top_tokens: int) -> Position:
        """Return the distribution at ``token_id``, which came after the prefix. Raises RequestError when the reply does not hold it."""


class Engine(Protocol):
    """One serving engine: how it is installed, started and asked."""

    kind: str
    """The name in a config, and that of the entry point."""
    protocol_version: int
    """The ``PROTOCOL_VERSION`` that the engine is written for."""
    pace: RoughRates
    dialect: Dialect
    rules: EngineRules
    """The rules of the pair lint."""
    scored_with: str
    """The engine's own options under which its tokens can be scored: the remedy where they cannot."""

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return what ``args`` say about drafting; None when they do not speculate."""

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return the models that a server of ``model`` with ``args`` loads and that :meth:`check` leaves to the hub."""

    def check(self, config: Config) -> None:
        """Raise EngineError when the engine is not installed or a model is not there."""

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the command that serves ``setup``."""

    def program(self, argv: Sequence[str]) -> EngineProgram | None:
        """Return how the program of a server's command ``argv`` is asked about itself; None where it cannot be."""

    def vocabulary(self, config: Config) -> int:
        """Return the tokens in the target's vocabulary; 0 where unknown."""

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return what one server of ``config`` takes on a machine with or without an accelerator."""

    def route(self, config: Config) -> ScoringRoute:
        """Return the route to scores that the baseline's capability probe is expected to find, for the plan's estimate."""

    def single_precision(self, config: Config) -> bool:
        """Whether every arm computes in float32 with nothing quantised, as far as its arguments say."""
