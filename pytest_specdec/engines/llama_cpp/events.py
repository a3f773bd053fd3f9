"""Events of llama.cpp's server (``tools/server/README.md``): slots saved to files and restored, where its arms have a folder for them.

An event is done to a server between requests, which it has to answer afterwards as before. A slot holds one sequence of the server.
An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_specdec.engines.arguments import merge, whole_number
from pytest_specdec.engines.llama_cpp import drafters
from pytest_specdec.model.event import EventName, EventStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

EVENTS_WITH: Final = "set slot-save-path to a folder, and parallel to the number of slots, under `args`"
_FOLDER: Final = "slot-save-path"


def slot_steps(slots: int) -> tuple[EventStep, ...]:
    """Return the requests to save every slot, erase it, and restore it.

    All slots are saved before the first is erased. ``{arm}`` in a file's name is filled in with the arm and the process of the
    run, so that no server restores the slot of another.
    """
    bodies: tuple[Mapping[str, JSON], ...] = tuple({"filename": f"specdec-{{arm}}-slot-{slot}.bin"} for slot in range(slots))
    return tuple(
        EventStep(path=f"/slots/{slot}?action={action}", body=body)
        for action in ("save", "erase", "restore")
        for slot, body in enumerate(bodies)
    )


def events(config: Config) -> Mapping[str, Sequence[EventStep]]:
    """Return the events that every arm serves, by name, with their steps.

    There is one, of slots. Empty unless every arm has a folder for them (``slot-save-path``). As many slots are saved as the
    smallest ``parallel`` of the arms, 1 for an arm that does not state it.
    """
    layers = (config.baseline.args, *(variant.args for variant in config.variants))
    arms = [drafters.by_long_names(merge(config.engine.args, layer)) for layer in layers]
    if not all(args.get(_FOLDER) for args in arms):
        return {}
    slots = min(max(1, whole_number(args.get("parallel"))) for args in arms)
    return {EventName.SLOT: slot_steps(slots)}
