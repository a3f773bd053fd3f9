"""Workloads that selected tests ask for and that are sent to no arm, each with the reason: the servers cannot, or must not, get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.capture.events import events_of
from pytest_specdec.capture.placement import attached_arms
from pytest_specdec.engines.arguments import arm_args
from pytest_specdec.engines.optional import Adapting, ServerEvents, SmallCache
from pytest_specdec.model.workload import Family, Need
from pytest_specdec.prompts import adapters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.workload import Workload


def shared_adapters(config: Config, engine: Engine) -> adapters.Adapters:
    """Return the adapters that baseline and variants serve, by their arguments.

    They are the baseline's that every variant has too; empty for an engine that has none.
    """
    if not isinstance(engine, Adapting):
        return adapters.Adapters()
    baseline, *variants = (engine.adapters(args) for args in arm_args(config))
    named = tuple(adapter for adapter in baseline.named if all(adapter in variant.named for variant in variants))
    return adapters.Adapters(named=named, without=baseline.without)


def _lacks_adapters(config: Config, engine: Engine) -> str:
    """Return why no requests with adapters can be sent; empty if they can."""
    if not isinstance(engine, Adapting):
        return "needs LoRA adapters, and how this engine serves them is not known here"
    if config.scorer is not None:
        return "needs LoRA adapters, and tokens are scored by a `scorer:` here, which would have to serve them too"
    names = [adapter.name for adapter in shared_adapters(config, engine).named]
    if len(names) >= adapters.LEAST:
        return ""
    loaded = f"has {', '.join(names)} alone" if names else "has none"
    return f"needs {adapters.LEAST} LoRA adapters in all arms, and this config {loaded}: load them by `args:` under `engine:`"


def _why_no_events(config: Config, engine: Engine) -> str:
    """Return why no event can be done to the config's servers; empty if one can."""
    if attached_arms(config):
        return "events are done to servers that are started here alone: an attached server belongs to somebody else"
    if events_of(config, engine):
        return ""
    own_events = "name one of your own under `between:` in the config"
    remedy = f"{engine.events_with}, or {own_events}" if isinstance(engine, ServerEvents) else own_events
    return f"needs an event between requests, and these servers have none: {remedy}"


_UNMET: Mapping[Need, Callable[[Config, Engine], str]] = {Need.ADAPTERS: _lacks_adapters, Need.EVENTS: _why_no_events}
"""By need, a function that returns why the config's servers do not meet it, as far as is known before they start; empty if they do."""


def withheld_workloads(config: Config, engine: Engine, asked: Collection[tuple[Workload, Family]]) -> dict[str, str]:
    """Return the reason by the name of each workload that no arm is sent.

    ``asked`` are the workloads of the depth, each with a family that judges it.
    """
    workloads = [workload for workload, _ in asked]
    return _risky(config, asked) | _without_small_cache(config, engine, workloads) | _without_needed(config, engine, workloads)


def _risky(config: Config, asked: Collection[tuple[Workload, Family]]) -> dict[str, str]:
    """Return the workloads too risky for attached servers, with reasons.

    An attached server belongs to somebody else. Returns an empty mapping without one, or if the config allows the risk (``may_kill``).
    """
    if config.may_kill or not attached_arms(config):
        return {}
    reason = "may take down an attached server, so not sent (may_kill: true in the config sends it)"
    names = {workload.name for workload, family in asked if workload.may_kill or family is Family.PRESSURE}
    return dict.fromkeys(sorted(names), reason)


def _without_small_cache(config: Config, engine: Engine, workloads: Collection[Workload]) -> dict[str, str]:
    """Return small-cache workloads without a server, each with the reason.

    Attached servers cannot be restarted with a small cache, and some engines have no setting for one.
    """
    names = sorted({workload.name for workload in workloads if workload.small_cache})
    if names and attached_arms(config):
        return dict.fromkeys(names, "needs a server with a small key-value cache, and attached ones are not started anew")
    setting = engine.small_cache(config) if names and isinstance(engine, SmallCache) else None
    return {} if setting else dict.fromkeys(names, "needs a small key-value cache, for which this engine has no setting")


def _without_needed(config: Config, engine: Engine, workloads: Collection[Workload]) -> dict[str, str]:
    """Return workloads that need what the config's servers do not have, each with the reason."""
    needs = sorted((workload.name, workload.needs) for workload in workloads if workload.needs is not None)
    return {name: reason for name, need in needs if (reason := _UNMET[need](config, engine))}
