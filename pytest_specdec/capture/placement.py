"""The placement of a config's servers on this machine: one at a time, or side by side where they fit.

Attached servers run already, at an address in the config, and are visited in turn. An arm is one server under comparison, such as the
baseline or a variant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment
from pytest_specdec.engines import stack
from pytest_specdec.errors import PlanError
from pytest_specdec.model.pair import BASELINE, SCORER
from pytest_specdec.model.plan import Placement, Role

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.plan import Boot

__all__ = ["MachinePlacement", "attached_arms", "is_attached", "is_served", "resolve"]

_MIN_SERVERS = 2
"""Servers that have to fit for them to stand side by side."""
_USABLE = 0.8
"""Fraction of the machine's memory that servers may fill; the rest is for the system and for this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlacement:
    """The placement resolved for a config on this machine."""

    placement: Placement
    servers: int = 1
    """Most servers that may run at once."""
    reason: str = ""


def resolve(config: Config, engine: Engine) -> MachinePlacement:
    """Return how the config's servers share this machine, and why.

    The placement ``auto`` becomes side by side if two servers fit, by the machine's size and the engine's estimate of one server; else
    servers run in turn. Raises PlanError if the config sets side by side, but pins the servers' port or attaches a server.
    """
    if config.placement is Placement.IN_TURN:
        return MachinePlacement(placement=Placement.IN_TURN)
    if attached_arms(config):
        return _placement_with_attached_servers(config)
    if "port" in config.engine.args:
        return _placement_with_pinned_port(config)
    if config.placement is Placement.SIDE_BY_SIDE:
        return MachinePlacement(placement=Placement.SIDE_BY_SIDE, servers=config.limits.servers)
    fitting_servers, reason = _servers_that_fit(config, engine)
    if fitting_servers < _MIN_SERVERS:
        return MachinePlacement(placement=Placement.IN_TURN, reason=reason)
    return MachinePlacement(placement=Placement.SIDE_BY_SIDE, servers=min(fitting_servers, config.limits.servers), reason=reason)


_DRAFT = "draft models"
"""Stands for them among the arms: no variant's name has a space in it."""


def attached_arms(config: Config) -> frozenset[str]:
    """Return the names of the arms with an attached server.

    An address under ``engine`` counts for the baseline and every variant without its own. All draft models count as one arm (``_DRAFT``).
    """
    engine_url = config.engine.url
    addresses = {BASELINE: config.baseline.url or engine_url, **{variant.name: variant.url or engine_url for variant in config.variants}}
    scorer_url = config.scorer.url if config.scorer else None
    return frozenset(arm for arm, address in {**addresses, _DRAFT: config.draft.url, SCORER: scorer_url}.items() if address)


def _placement_with_attached_servers(config: Config) -> MachinePlacement:
    """Return the placement in turn, the only one for attached servers.

    ``config`` does not ask for it itself. Raises PlanError if it asks for servers side by side instead of leaving it open.
    """
    if config.placement is Placement.AUTO:
        return MachinePlacement(placement=Placement.IN_TURN, reason="attached servers are visited in turn")
    what, setting = "attached servers are visited one after the other", f"placement: {config.placement}"
    raise PlanError(what, where="placement", found=setting, expected="in-turn", remedy="remove `placement`")


def is_attached(boot: Boot, attached: frozenset[str]) -> bool:
    """Return True if ``boot`` visits a server that runs already.

    ``attached`` are the arms with such a server. Boots of the control and of the old engine count as the baseline's.
    """
    return {Role.VARIANT: boot.arm, Role.DRAFT: _DRAFT, Role.SCORER: SCORER}.get(boot.role, BASELINE) in attached


def is_served(boot: Boot, attached: frozenset[str]) -> bool:
    """Return True if there is a server for ``boot``.

    False only for a draft model without an attached server while other arms have one: no draft model is started beside attached servers.
    """
    return boot.role is not Role.DRAFT or not attached or is_attached(boot, attached)


def _placement_with_pinned_port(config: Config) -> MachinePlacement:
    """Return the placement in turn, since servers cannot share a port.

    ``config`` does not ask for it itself. Raises PlanError if it asks for servers side by side instead of leaving it open.
    """
    if config.placement is Placement.AUTO:
        return MachinePlacement(placement=Placement.IN_TURN, reason="the config pins the servers' port")
    what = "servers side by side cannot share a port"
    settings = f"placement: {config.placement}, port: {config.engine.args['port']}"
    raise PlanError(what, where="engine.args.port", found=settings, remedy="remove `port`: then free ones are chosen")


def _servers_that_fit(config: Config, engine: Engine) -> tuple[int, str]:
    """Return how many servers fit this machine, and why, in words.

    The number is by accelerator memory if the engine states one server's share of that, else by the part of the machine's memory that
    servers may fill (``_USABLE``). It is 0 if the memory of one server is unknown.
    """
    footprint = stack.footprint(config, engine, accelerated=environment.has_accelerator())
    if footprint.device_share is not None:
        fitting_servers = int(1.0 / footprint.device_share)
        return fitting_servers, f"one server takes {footprint.device_share:.2g} of the device"
    total_gib = environment.memory_gib()
    if footprint.memory_gib is None:
        return 0, "the memory that a server takes is unknown before it starts"
    return int(_USABLE * total_gib / footprint.memory_gib), f"one server takes about {footprint.memory_gib:.1f} GiB of {total_gib:.0f}"
