"""Events of vLLM's development endpoints (``entrypoints/serve/dev``, ``entrypoints/rl`` of 0.32): which of them a config's arms serve.

An event is done to a server between requests, which it has to answer afterwards as before.
An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_specdec.engines.arguments import arm_args
from pytest_specdec.model.event import EventName, EventStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config

PAUSE: Final = (EventStep(path="/pause"), EventStep(path="/resume"))
RESET: Final = (EventStep(path="/reset_prefix_cache"),)
_RELOAD: Final = EventStep(path="/collective_rpc", body={"method": "reload_weights"})
RELOAD: Final = (_RELOAD, *RESET)
"""The prefix cache is reset too: its blocks were computed with the weights before."""
SLEEP_1: Final = (EventStep(path="/sleep?level=1"), EventStep(path="/wake_up"))
SLEEP_2: Final = (
    EventStep(path="/sleep?level=2"),
    EventStep(path="/wake_up?tags=weights"),
    _RELOAD,
    EventStep(path="/wake_up?tags=kv_cache"),
)
"""Level 2 drops the weights: they are loaded again before the cache is allocated, as vLLM's own documentation has it."""
EVENTS_WITH: Final = "set VLLM_SERVER_DEV_MODE: 1 under `env`, and enable-sleep-mode: true under `args` for sleep"
_DEV_MODE: Final = "VLLM_SERVER_DEV_MODE"
_SWITCHED_ON: Final = {"1"}
"""vLLM reads the variable as a number."""


def events(config: Config) -> Mapping[str, Sequence[EventStep]]:
    """Return the events that every arm serves, by name, with the requests that make each.

    Empty without the variable that adds development endpoints; sleep needs ``--enable-sleep-mode`` besides.
    """
    arm_envs = [{**config.engine.env, **env} for env in (config.baseline.env, *(variant.env for variant in config.variants))]
    if not all(env.get(_DEV_MODE) in _SWITCHED_ON for env in arm_envs):
        return {}
    served: dict[str, Sequence[EventStep]] = {EventName.PAUSE: PAUSE, EventName.RESET: RESET, EventName.RELOAD: RELOAD}
    if all(args.get("enable-sleep-mode") is True for args in arm_args(config)):
        served |= {EventName.SLEEP_1: SLEEP_1, EventName.SLEEP_2: SLEEP_2}
    return served
