"""Room: how many servers a machine holds at once, by what all its processes see alike, whatever else runs at the moment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import observe
from pytest_specdec.errors import PlanError
from pytest_specdec.model.plan import Placement

if TYPE_CHECKING:
    from pytest_specdec.capture.engines.protocol import Engine
    from pytest_specdec.config.config import Config

__all__ = ["Room", "accelerated", "of"]

_LEAST = 2
"""Servers that have to fit for them to stand side by side."""
_USABLE = 0.8
"""Part of the machine's memory that servers may fill; the rest is for the system and for us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The placement that a config comes to on this machine."""

    placement: Placement
    servers: int = 1
    """At most, at once."""
    reason: str = ""


def of(config: Config, engine: Engine) -> Room:
    """Return the config's placement, ``auto`` resolved from the machine's size and the engine's estimate of one server.

    Raises PlanError when side by side is asked for and the servers' port is pinned.
    """
    if config.placement is Placement.IN_TURN:
        return Room(placement=Placement.IN_TURN)
    if "port" in config.engine.args:
        return _pinned(config)
    if config.placement is Placement.SIDE_BY_SIDE:
        return Room(placement=Placement.SIDE_BY_SIDE, servers=config.limits.servers)
    fit, why = _fitting(config, engine)
    if fit < _LEAST:
        return Room(placement=Placement.IN_TURN, reason=why)
    return Room(placement=Placement.SIDE_BY_SIDE, servers=min(fit, config.limits.servers), reason=why)


def _pinned(config: Config) -> Room:
    if config.placement is Placement.AUTO:
        return Room(placement=Placement.IN_TURN, reason="the config pins the servers' port")
    what = "servers side by side cannot share a port"
    found = f"placement: {config.placement}, port: {config.engine.args['port']}"
    raise PlanError(what, where="engine.args.port", found=found, remedy="remove `port`: then free ones are chosen")


def accelerated() -> bool:
    """Return whether there is an NVIDIA device that this process may use, by its device file: no driver is asked."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def _fitting(config: Config, engine: Engine) -> tuple[int, str]:
    one = engine.footprint(config, accelerated=accelerated())
    if one.device_share is not None:
        fit = int(1.0 / one.device_share)
        return fit, f"one server takes {one.device_share:.2g} of the device"
    total = observe.memory_gib()
    if one.memory_gib is None:
        return 0, "how much memory a server takes is not known before it is started"
    return int(_USABLE * total / one.memory_gib), f"one server takes about {one.memory_gib:.1f} GiB of {total:.0f}"
