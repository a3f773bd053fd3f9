"""Planted faults of sleep, reloads of weights, resets, saved slots, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.memory import zero_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_reference.drafters import DraftWeights
    from specdec_reference.engine import ReferenceEngine
    from specdec_reference.model import Model
    from specdec_reference.prefix_cache import DraftBlock

_WHOLE_RUN: Final = dict.fromkeys((Family.INVARIANTS, Family.SPEED), "It reads the drafts of every answer of a run.")
_FAILING: Final = {Family.LIVENESS: "It counts the failures of a whole run."}
_SEED: Final = 28619
_SPREAD: Final = 5.0
"""Of values left in memory. Zeros cost the small draft model nothing: it reads little but the last tokens."""


@fault(
    instead_of="memory.wake_draft",
    expected=in_(Place.REFERENCE, may=_WHOLE_RUN, between="drafts are no longer accepted after sleep level 1"),
    alone=True,  # of a batch every variant would have the events
    mirrors=("sgl-project/sglang#31674",),
)
def draft_lost_in_sleep() -> None:
    """Brings back the target's weights alone when it wakes from sleep of level 1."""


@fault(
    around="memory.load_draft",
    expected=in_(Place.REFERENCE, may=_WHOLE_RUN, between="drafts are no longer accepted after sleep level 2"),
    mirrors=("NVIDIA-NeMo/RL#2646",),
)
def refit_without_draft(load: Callable[[DraftWeights | None], None], weights: DraftWeights | None, engine: ReferenceEngine) -> None:
    """Loads the target's weights alone after sleep of level 2, which has dropped the drafter's as well."""
    if not engine.memory.asleep:
        load(weights)


@fault(
    around="memory.load_draft",
    expected=in_(Place.REFERENCE, may=_WHOLE_RUN, between="drafts are no longer accepted after a reload of the weights"),
    mirrors=("vllm-project/vllm#46725",),
)
def reload_empties_draft(load: Callable[[DraftWeights | None], None], weights: DraftWeights | None) -> None:
    """Allocates the drafter's weights anew at a reload, and fills in the target's alone."""
    load(zero_weights(weights))


@fault(
    around="memory.wake_target",
    expected=in_(Place.REFERENCE, between="answers are wrong after sleep level 1"),
)
def wake_without_last_layer(wake: Callable[[Model], None], weights: Model) -> None:
    """Leaves the last layer of the target at zero when it wakes from sleep of level 1."""
    wake(replace(weights, layers=(*weights.layers[:-1], zero_weights(weights.layers[-1]))))


@fault(
    instead_of="memory.lose_cache",
    expected=in_(Place.REFERENCE, between="answers are wrong after sleep level 1"),
)
def prefixes_survive_sleep(engine: ReferenceEngine) -> None:
    """Keeps the index of the prefix cache over a sleep that has dropped the blocks themselves."""
    prefixes = engine.batch.prefixes
    blocks = {key: replace(block, target=np.zeros_like(block.target)) for key, block in prefixes.copy().items()}
    prefixes.clear()  # as the right method does
    prefixes.restore(blocks)


@fault(
    instead_of="memory.empty_prefixes",
    expected=in_(Place.REFERENCE, between="cached tokens survive a reset of the prefix cache"),
)
def prefixes_survive_reset() -> None:
    """Reports that the prefix cache is reset, and keeps its blocks."""


@fault(
    after="memory.save_slot",
    expected=in_(Place.REFERENCE, may=_WHOLE_RUN, between="drafts are no longer accepted after saving and restoring the slot"),
    mirrors=("ggml-org/llama.cpp#28619",),
)
def slot_without_draft(saved: int, name: str, engine: ReferenceEngine) -> int:
    """Saves a slot without the drafter's context, so that drafts of restored prompts come from memory that nothing was written to."""
    slots, random = engine.memory.slots, np.random.default_rng(_SEED)
    slots[name] = {key: replace(block, draft=_unwritten(block.draft, random)) for key, block in slots[name].items()}
    return saved


def _unwritten(draft: DraftBlock | None, random: np.random.Generator) -> DraftBlock | None:
    """Return random numbers in the form of a drafter's state; None for None."""
    return None if draft is None else tuple((_SPREAD * random.standard_normal(part.shape)).astype(part.dtype) for part in draft)


@fault(
    instead_of="memory.restore_slot",
    expected=in_(Place.REFERENCE, between="a restored slot is computed again"),
    mirrors=("ggml-org/llama.cpp#26004",),
)
def slot_computed_again(name: str, engine: ReferenceEngine) -> int:
    """Reports that a slot is restored, and computes its prompt from the beginning."""
    return len(engine.memory.slots[name])


_ASLEEP = threading.Event()
"""Never set."""


@fault(
    before="engine.resume",
    expected=in_(Place.REFERENCE, may=_FAILING, between="the server hangs on a request after pause and resume"),
    alone=True,
)
def hang_after_resume(engine: ReferenceEngine) -> None:
    """Never makes a step again once it was paused and resumed."""
    vars(engine.batch)["step"] = _ASLEEP.wait


@fault(
    before="memory.sleep",
    expected=in_(Place.REFERENCE, may=_FAILING, between="the server answers 5xx to sleep level 1"),
    alone=True,
)
def sleep_fails() -> None:
    """Raises an error when it is put to sleep."""
    msg = "the drafter has no sleep mode"
    raise RuntimeError(msg)
