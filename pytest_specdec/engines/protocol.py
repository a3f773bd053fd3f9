"""What capture asks of an engine and of its servers: the command that starts one, and the dialect that it speaks."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import SpecCounters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Position, ScoringRoute
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["HOST", "Command", "Dialect", "Engine", "Footprint", "RoughRates", "ServerSetup", "VerifySteps"]

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, in which environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment, from which variables that turn speculation on by surprise are removed."""
    stop: tuple[str, ...] = ()
    """A command that ends what signals do not reach, such as a container."""
    kill: tuple[str, ...] = ()
    """The same, at once."""
    look: tuple[str, ...] = ()
    """A command that lists the open files of what does not run among our processes, such as a container."""
    secrets: Secrets = field(default_factory=Secrets)

    def __str__(self) -> str:
        return self.secrets.mask(shlex.join(self.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughRates:
    """Rough rates for the estimate that is printed before anything boots; what is measured corrects them."""

    boot_s: float
    tokens_per_s: float
    """Emitted by one stream."""
    scored_tokens_per_s: float
    """Emitted tokens scored per second, all requests together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one server takes of a machine, estimated before any is started."""

    memory_gib: float | None = None
    """Of the machine's memory; None where it cannot be told."""
    device_share: float | None = None
    """Of the accelerator's memory, above 0 and at most 1; None for a server that needs no accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """What one server is to serve, every ``${VAR}`` filled in."""

    model: str
    port: int
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    speculative: bool = False
    secrets: Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySteps:
    """What a server tells about the verify steps of one answer."""

    accepted: tuple[int, ...]
    """Accepted draft tokens per verify step."""
    drafted: tuple[int, ...]

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens emitted per step, the prefill's one first."""
        return (1, *(accepted + 1 for accepted in self.accepted))

    @property
    def counters(self) -> SpecCounters:
        """The same steps as a server counts them; a step without a draft is none."""
        longest = max(self.drafted, default=0)
        return SpecCounters(
            drafts=sum(1 for drafted in self.drafted if drafted),
            draft_tokens=sum(self.drafted),
            accepted_tokens=sum(self.accepted),
            accepted_per_position=tuple(sum(1 for a in self.accepted if a > i) for i in range(longest)),
        )


class Dialect(Protocol):
    """How an engine's servers are asked for what the OpenAI protocol does not have."""

    health_path: str | None
    version_path: str | None
    counters_path: str | None

    def added(self, request: Request, *, stream: bool) -> Mapping[str, JSON]:
        """Return the fields that capture adds to a request's body to learn token ids, usage and windows."""

    def steps(self, reply: Mapping[str, JSON]) -> VerifySteps | None:
        """Return the verify steps that a reply, or the last chunk of a stream, tells of."""

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
    pace: RoughRates
    dialect: Dialect
    scored_with: str
    """How a server has to be set up so that its tokens can be scored, in the engine's own options: the remedy where they cannot."""

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return what ``args`` say about drafting; None when they do not speculate."""

    def check(self, config: Config) -> None:
        """Raise EngineError when the engine is not installed or a model is not there."""

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return the command that serves ``setup``."""

    def vocabulary(self, config: Config) -> int:
        """Return the tokens in the target's vocabulary; 0 where unknown."""

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return what one server of ``config`` takes on a machine with or without an accelerator."""

    def route(self, config: Config) -> ScoringRoute:
        """Return the route to scores that the baseline's capability probe is expected to find, for the plan's estimate."""
