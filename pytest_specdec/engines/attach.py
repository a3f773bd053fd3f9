"""Attached servers: addresses of servers, of any engine, that run already and are not ours.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_specdec.config.rules import DraftingRule, EngineRules, plain
from pytest_specdec.config.validate import nearest
from pytest_specdec.engines import checkpoint, registry
from pytest_specdec.engines.arguments import whole_number
from pytest_specdec.engines.optional import AnyEngine
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.errors import EngineError
from pytest_specdec.files import yaml
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine, ServerSetup
    from pytest_specdec.model.workload import JSON

T = TypeVar("T", bound=StrEnum)

_RULES = EngineRules(
    prefixes=("draft", "ngram"),
    method=("draft",),
    drafting=DraftingRule(
        methods=frozenset(kind.value for kind in DraftKind),
        tokens=(("draft-tokens",),),
        uncounted=frozenset({DraftKind.UNKNOWN.value}),
        complete=True,
    ),
    attached=True,
)


_TEMPLATE = """\
# Servers of one model that run already. They are asked; nothing is started or stopped.
engine:
  kind: attach
  model: {model} # as both servers name it in /v1/models; where one has another name for it: served_as
  # api_key: "${{MY_API_KEY}}"

# The server without speculation.
baseline: {{url: http://127.0.0.1:8000}}

# The same model with speculation. A variant may say how it drafts; the sampling test finds more then.
variants:
  speculative:
    url: http://127.0.0.1:8001
    args: {{}} # draft: model | ngram | head, draft-tokens: 3{speculator}

# Send the requests that have taken servers down, too.
# may_kill: true
"""

_ARGUMENTS = ("draft", "draft-tokens", "draft-model", "draft-sampling", "ngram-min", "ngram-max")


class AttachedDialect(PlainDialect):
    """The OpenAI protocol plus counters, for a server of no known engine.

    The counters are looked for where most engines have them.
    """

    counters_path: str | None = "/metrics"


class Attach:
    """The adapter of servers that run already, whatever their engine.

    A variant's drafting is read from its arguments, since no endpoint reports it.
    """

    kind = "attach"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=1.0, tokens_per_s=100.0, scored_tokens_per_s=350.0)
    rules = _RULES
    scored_with = "attach servers that return token ids, and log-probabilities of given tokens; or name a `scorer:`"

    def template(self, model: str | None, speculator: str | None) -> str:
        """Return the config of two servers on this machine.

        Their addresses are to be edited, and ``speculator`` is named in a comment only. Raises EngineError without a model.
        """
        if not model:
            what = f"{self.kind} writes no config without a model"
            raise EngineError(what, where="--model", found="nothing", expected="its name in /v1/models", remedy="--model NAME")
        return _TEMPLATE.format(model=yaml.scalar(model), speculator=f"; it drafts with {speculator}" if speculator else "")

    def candidates(self) -> Sequence[Engine]:
        """Return every engine with servers of its own."""
        return [engine for engine in registry.installed_engines() if not isinstance(engine, AnyEngine)]

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:  # noqa: ARG002 - nothing is known of the server
        """Return the dialect of a server no engine recognises."""
        return AttachedDialect()

    def draft(self, args: Mapping[str, JSON]) -> Draft:
        """Return the drafting stated in ``args``, with defaults for the rest.

        The arguments are ``draft`` (its kind), ``draft-tokens``, ``draft-model``, ``draft-sampling``, ``ngram-min`` and ``ngram-max``, all
        optional. A variant without them counts as speculating too, in an unknown way. ``ngram-min`` is by default ``ngram-max``. Raises
        EngineError for any other argument, and for an unknown value of ``draft`` or ``draft-sampling``.
        """
        by_flag = {plain(name): value for name, value in args.items()}
        _refuse_unknown(by_flag)
        kind = _read_enum(DraftKind, by_flag, "draft", DraftKind.UNKNOWN)
        ngram_max = whole_number(by_flag.get("ngram-max"))
        # "draft" in place of a name: the draft model is served alone too, and is the only one of its server.
        model = by_flag.get("draft-model") or "draft"
        return Draft(
            kind=kind,
            tokens=whole_number(by_flag.get("draft-tokens")),
            sampling=_read_enum(DraftSampling, by_flag, "draft-sampling", DraftSampling.GREEDY),
            model=str(model) if kind is DraftKind.MODEL else None,
            ngram_min=whole_number(by_flag.get("ngram-min")) or ngram_max,
            ngram_max=ngram_max,
        )

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:  # noqa: ARG002 - a running server has loaded its models
        """Return nothing: a running server has loaded its models."""
        return ()

    def check(self, config: Config) -> None:
        """Do nothing: there is nothing to install.

        The servers are asked before any workload.
        """

    def command(self, config: Config, setup: ServerSetup) -> Command:  # noqa: ARG002 - as above
        """Raise EngineError: a server without an address cannot be started here."""
        what = "an attached server has no address"
        raise EngineError(what, where="engine.url", found="nothing", expected="http://HOST:PORT", remedy="give every arm a `url`")

    def program(self, argv: Sequence[str]) -> EngineProgram | None:  # noqa: ARG002 - there is no program
        """Return None: no program is started here."""
        return None

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of the model's config.json on this machine.

        Returns 0 if the config names the model otherwise than by its folder.
        """
        return checkpoint.vocabulary(Path(config.resolve(config.engine.model)))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:  # noqa: ARG002 - the servers are there already
        """Return no memory and no accelerator: no server is started."""
        return Footprint(memory_gib=0.0)

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - the capability probe decides
        """Return prompt log-probabilities, until the capability probe decides."""
        return ScoringRoute.PROMPT_LOGPROBS

    def single_precision(self, config: Config) -> bool:  # noqa: ARG002 - no endpoint says so
        """Return False: no endpoint reports the precision."""
        return False


def _refuse_unknown(names: Iterable[str]) -> None:
    """Raise EngineError for an argument unrelated to drafting.

    The servers run already, so that such an argument could not reach them.
    """
    for name in names:
        if name not in _ARGUMENTS:
            suggestion = nearest(name, _ARGUMENTS)
            what = f"an attached server takes no argument {name!r}" + (f"; {suggestion}" if suggestion else "")
            expected = f"how a variant drafts: {', '.join(_ARGUMENTS)}"
            raise EngineError(
                what, where=f"args.{name}", found=name, expected=expected, remedy="it is started elsewhere, with its arguments"
            )


def _read_enum(enum: type[T], args: Mapping[str, JSON], name: str, default: T) -> T:
    """Return the enum member in an argument; ``default`` without one.

    Raises EngineError for any other value.
    """
    value = str(args.get(name, default.value))
    try:
        return enum(value)
    except ValueError:
        names = [member.value for member in enum]
        suggestion = nearest(value, names)
        what = f"an attached server does not draft by {value!r}" + (f"; {suggestion}" if suggestion else "")
        raise EngineError(what, where=f"args.{name}", found=value, expected=f"one of {', '.join(names)}") from None
