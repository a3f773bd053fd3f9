"""Needs of workloads that a config's servers do not meet, as far as is known before they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.capture.events import events_of
from pytest_specdec.capture.placement import attached_arms
from pytest_specdec.capture.stated_limits import admitted_tokens
from pytest_specdec.engines.arguments import arm_args
from pytest_specdec.engines.optional import Adapting, ImageTaking, Offloading, ServerEvents, ThinkingBudgets
from pytest_specdec.model.workload import Need
from pytest_specdec.prompts import adapters
from pytest_specdec.prompts.context import SHORTEST_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine

__all__ = ["UNMET", "shared_adapters"]

_IMAGES_STATED = "images: true in the config sends them"


def shared_adapters(config: Config, engine: Engine) -> adapters.Adapters:
    """Return the adapters that baseline and variants serve, by their arguments.

    They are the baseline's that every variant has too, in each process of a stack, a server of several processes. Empty for an engine that
    serves none. ``without`` are the fields by which a request asks for the model without an adapter.
    """
    if not isinstance(engine, Adapting):
        return adapters.Adapters()
    first, *others = (engine.adapters(config, args) for args in arm_args(config))
    named = tuple(adapter for adapter in first.named if all(adapter in other.named for other in others))
    return adapters.Adapters(named=named, without=first.without)


def _why_no_adapters(config: Config, engine: Engine) -> str:
    """Return why no requests with adapters can be sent; empty if some can."""
    if not isinstance(engine, Adapting):
        return "needs LoRA adapters, and how this engine serves them is not known here"
    if config.scorer is not None:
        return "needs LoRA adapters, and tokens are scored by a `scorer:` here, which would have to serve them too"
    names = [adapter.name for adapter in shared_adapters(config, engine).named]
    if len(names) >= adapters.LEAST:
        return ""
    loaded = f"has {', '.join(names)} alone" if names else "has none"
    return f"needs {adapters.LEAST} LoRA adapters in all arms, and this config {loaded}: load them by `args:` under `engine:`"


def _why_no_endurance(config: Config, _engine: Engine) -> str:
    """Return why the config wants no soak; empty if it wants one."""
    if config.endurance.minutes:
        return ""
    return "sends the same traffic for minutes, and the config states none: endurance: {minutes: 30} sends it for half an hour to each arm"


def _why_no_events(config: Config, engine: Engine) -> str:
    """Return why no event can be done to the servers; empty if one can.

    An event, such as a sleep or a reload of the weights, comes from the engine or the config. An attached server, of somebody else, gets
    none, whatever the config says. In a stack, a server of several processes, only the config's own are of use.
    """
    if attached_arms(config):
        return "events are done to servers that are started here alone: an attached server belongs to somebody else"
    if events_of(config, engine):
        return ""
    own_events = "name one of your own under `between:` in the config"
    if config.stack:
        return f"needs an event between requests, and the engine's own would reach one process of a stack alone: {own_events}"
    remedy = f"{engine.events_with}, or {own_events}" if isinstance(engine, ServerEvents) else own_events
    return f"needs an event between requests, and these servers have none: {remedy}"


def _why_no_images(config: Config, engine: Engine) -> str:
    """Return why the model is sent no images; empty if it is.

    The config's own statement comes before what the engine knows of its arguments and of the checkpoint.
    """
    if config.images is not None:
        return "" if config.images else "needs a model that takes images, and the config says images: false"
    if attached_arms(config):
        return f"needs a model that takes images, which an attached server does not tell ({_IMAGES_STATED})"
    takes_images = engine.takes_images(config) if isinstance(engine, ImageTaking) else None
    if takes_images is None:
        return f"needs a model that takes images, and neither arguments nor a checkpoint on this machine tell ({_IMAGES_STATED})"
    text_alone = f"needs a model that takes images: by arguments and checkpoint it takes text alone ({_IMAGES_STATED} all the same)"
    return "" if takes_images else text_alone


def _why_no_long_context(config: Config, _engine: Engine) -> str:
    """Return why the servers admit no long sequences; empty if they do.

    Long are those above ``SHORTEST_LIMIT`` tokens, the least context of which shares are asked for. The workloads of the family "context",
    whose prompts go up to the limit, cover a shorter one.
    """
    limit = admitted_tokens(config)
    if limit is None or limit > SHORTEST_LIMIT:  # None if their arguments do not state it: they report it when they are started
        return ""
    return f"needs sequences of more than {SHORTEST_LIMIT:,} tokens, and the servers admit {limit:,}, which the family context fills"


def _why_no_offload(config: Config, engine: Engine) -> str:
    """Return why the cache has no second tier; empty if it has one."""
    if not isinstance(engine, Offloading):
        return "needs a second tier for the key-value cache, for which this engine has no setting"
    return engine.why_not_offloaded(config)


def _why_no_thinking_budget(config: Config, engine: Engine) -> str:
    """Return why no reasoning budget can be asked for; empty if one can."""
    if not isinstance(engine, ThinkingBudgets):
        return "needs a budget for reasoning by thinking_token_budget, which this engine does not know"
    return engine.why_no_thinking_budget(config)


UNMET: Mapping[Need, Callable[[Config, Engine], str]] = {
    Need.ADAPTERS: _why_no_adapters,
    Need.ENDURANCE: _why_no_endurance,
    Need.EVENTS: _why_no_events,
    Need.IMAGES: _why_no_images,
    Need.LONG_CONTEXT: _why_no_long_context,
    Need.OFFLOAD: _why_no_offload,
    Need.THINKING_BUDGET: _why_no_thinking_budget,
}
"""By need, a function that returns why the config's servers do not meet it, as far as is known before they start; empty if they do."""
