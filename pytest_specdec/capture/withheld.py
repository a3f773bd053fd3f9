"""Workloads that selected tests ask for and that are sent to no arm, each with the reason: the servers cannot, or must not, get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.capture.placement import attached_arms
from pytest_specdec.capture.unmet_needs import UNMET
from pytest_specdec.engines.optional import SmallCache
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.workload import Workload


def withheld_workloads(config: Config, engine: Engine, wanted: Collection[tuple[Workload, Family]]) -> dict[str, str]:
    """Return the workloads sent to no arm, with reasons, by name.

    ``wanted`` are the workloads of the depth, each with a family that judges it. Of several reasons for a workload the last of these
    counts: risk for an attached server, no small cache, an unmet need.
    """
    workloads = [workload for workload, _ in wanted]
    return (
        _risky_workloads(config, wanted)
        | _workloads_without_small_cache(config, engine, workloads)
        | _workloads_with_unmet_needs(config, engine, workloads)
    )


def _risky_workloads(config: Config, wanted: Collection[tuple[Workload, Family]]) -> dict[str, str]:
    """Return the workloads too risky for attached servers, with reasons.

    An attached server belongs to somebody else. Returns an empty mapping without one, or if the config allows the risk (``may_kill``).
    """
    if config.may_kill or not attached_arms(config):
        return {}
    reason = "may take down an attached server, so not sent (may_kill: true in the config sends it)"
    names = {workload.name for workload, family in wanted if workload.may_kill or family is Family.PRESSURE}
    return dict.fromkeys(sorted(names), reason)


def _workloads_without_small_cache(config: Config, engine: Engine, workloads: Collection[Workload]) -> dict[str, str]:
    """Return small-cache workloads without a server, each with the reason.

    Attached servers cannot be restarted with a small cache, and some engines have no setting for one.
    """
    names = sorted({workload.name for workload in workloads if workload.small_cache})
    if names and attached_arms(config):
        return dict.fromkeys(names, "needs a server with a small key-value cache, and attached ones are not started anew")
    setting = engine.small_cache(config) if names and isinstance(engine, SmallCache) else None
    return {} if setting else dict.fromkeys(names, "needs a small key-value cache, for which this engine has no setting")


def _workloads_with_unmet_needs(config: Config, engine: Engine, workloads: Collection[Workload]) -> dict[str, str]:
    """Return workloads with unmet needs, each with the reason.

    The config's servers do not have what such a workload needs, as far as is known before they start.
    """
    needs = sorted((workload.name, workload.needs) for workload in workloads if workload.needs is not None)
    return {name: reason for name, need in needs if (reason := UNMET[need](config, engine))}
