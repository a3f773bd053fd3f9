"""Events of SGLang's server (``srt/entrypoints/http_server.py`` of 0.5.23): which of them a config's arms serve.

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

_RELEASE_AND_RESUME: Final = (EventStep(path="/release_memory_occupation"), EventStep(path="/resume_memory_occupation"))
EVENTS_WITH: Final = "enable-memory-saver: true under `args` adds the release of memory"
_SAVER: Final = "enable-memory-saver"
_BACKUP: Final = "enable-weights-cpu-backup"


def events(config: Config) -> Mapping[str, Sequence[EventStep]]:
    """Return the events that every arm serves, by name, with the requests that make each.

    Sleep, the release of a server's memory, needs ``--enable-memory-saver``. For level 1 a copy on the host has to bring the weights
    back (``--enable-weights-cpu-backup``); level 2 reads them from disk again.
    """
    arms = list(arm_args(config))
    reload = EventStep(path="/update_weights_from_disk", body={"model_path": config.resolve(config.engine.model)})
    served: dict[str, Sequence[EventStep]] = {
        EventName.PAUSE: (EventStep(path="/pause_generation"), EventStep(path="/continue_generation")),
        EventName.RESET: (EventStep(path="/flush_cache"),),
        EventName.RELOAD: (reload,),
    }
    if all(args.get(_SAVER) is True for args in arms):
        if all(args.get(_BACKUP) is True for args in arms):
            served[EventName.SLEEP_1] = _RELEASE_AND_RESUME
        served[EventName.SLEEP_2] = (*_RELEASE_AND_RESUME, reload)
    return served
