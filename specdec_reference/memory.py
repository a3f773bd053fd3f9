"""The memory: an engine's weights and caches, put to sleep, woken, loaded again, emptied, saved and restored, as vLLM and llama.cpp do."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from specdec_reference.drafters import DraftWeights
    from specdec_reference.model import Model
    from specdec_reference.prefix_cache import Block
    from specdec_reference.scheduler import Batch

WEIGHTS, CACHE = "weights", "kv_cache"
TAGS: Final = frozenset({WEIGHTS, CACHE})
"""Parts that wake up, by vLLM's names."""
_OFFLOADED: Final = 1
"""The level of sleep at which weights are kept outside; at a higher one they are dropped."""
_Weights = TypeVar("_Weights")


def zero_weights(weights: _Weights) -> _Weights:
    """Return a copy of ``weights`` with every float32 array at zero, as in sleep.

    Everything else in it stays.
    """
    # mypy does not see that a copy has the type of what is copied, so the three returns say ignore.
    value: Any = weights
    if isinstance(value, np.ndarray):
        return np.zeros_like(value) if value.dtype == np.float32 else value  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(map(zero_weights, value))  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: zero_weights(getattr(value, field.name)) for field in fields(value)})  # type: ignore[return-value]
    return weights


class Memory:
    """The weights of target and drafter, and the blocks of the prefix cache; used by the engine's thread alone.

    Every part of an event is a method of its own, so that a fault can be planted in it.
    """

    def __init__(self, batch: Batch, load: Callable[[], tuple[Model, DraftWeights | None]]) -> None:
        """Take the batch and the function that reads the weights from their checkpoints."""
        self._batch = batch
        self._load = load
        self._asleep: frozenset[str] = frozenset()  # among TAGS
        self._offloaded: tuple[Model, DraftWeights | None] | None = None  # weights to come back after sleep
        self.slots: dict[str, dict[int, Block]] = {}
        """Blocks saved by name."""

    @property
    def asleep(self) -> bool:
        """True while a part is asleep."""
        return bool(self._asleep)

    def sleep(self, level: int) -> None:
        """Drop the cache, and set the weights to zero.

        At level 1 :meth:`wake_up` brings the weights back. At any other level they stay zero until :meth:`reload_weights`.
        Nothing happens while a part is asleep.
        """
        if self.asleep:
            return
        batch = self._batch
        self._offloaded = (batch.target, batch.drafter.weights) if level == _OFFLOADED else None
        batch.target = zero_weights(batch.target)
        batch.drafter.put_weights(zero_weights(batch.drafter.weights))
        self.lose_cache()
        self._asleep = TAGS

    def wake_up(self, tags: Collection[str]) -> None:
        """Wake the parts named in ``tags``, or all parts if it is empty.

        Offloaded weights come back; dropped ones stay zero until :meth:`reload_weights`.
        """
        woken = frozenset(tags) or TAGS
        if WEIGHTS in woken and self._offloaded is not None:
            target, draft = self._offloaded
            self._offloaded = None
            self.wake_target(target)
            self.wake_draft(draft)
        self._asleep -= woken

    def wake_target(self, weights: Model) -> None:
        """Bring back the offloaded weights of the target."""
        self._batch.target = weights

    def wake_draft(self, weights: DraftWeights | None) -> None:
        """Bring back the offloaded weights of the drafter."""
        self._batch.drafter.put_weights(weights)

    def reload_weights(self) -> None:
        """Read the weights from their checkpoints again.

        Blocks of the prefix cache are dropped: they are of the weights before.
        """
        target, draft = self._load()
        self.load_target(target)
        self.load_draft(draft)
        self.empty_prefixes()

    def load_target(self, weights: Model) -> None:
        """Take the target's weights from its checkpoint."""
        self._batch.target = weights

    def load_draft(self, weights: DraftWeights | None) -> None:
        """Take the drafter's weights from its checkpoint."""
        self._batch.drafter.put_weights(weights)

    def lose_cache(self) -> None:
        """Drop all keys and values, as sleep does with their memory."""
        self._batch.prefixes.clear()

    def empty_prefixes(self) -> None:
        """Drop every block of the prefix cache."""
        self._batch.prefixes.clear()

    def save_slot(self, name: str) -> int:
        """Save the blocks of the prefix cache under a name.

        Returns their number.
        """
        self.slots[name] = self._batch.prefixes.copy()
        return len(self.slots[name])

    def restore_slot(self, name: str) -> int:
        """Put the blocks saved under a name back into the prefix cache.

        Returns their number. Raises KeyError for an unknown name.
        """
        blocks = self.slots[name]
        self._batch.prefixes.restore(blocks)
        return len(blocks)
