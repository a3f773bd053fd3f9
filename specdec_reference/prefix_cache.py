"""The prefix cache: keys and values of full blocks, found again by their tokens and by everything before them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Several

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.rules import EngineRules

DraftBlock: TypeAlias = "tuple[NDArray[np.float32], ...]"
"""A drafter's copies of its state for a block."""

BLOCK_TOKENS: Final = 16


def blocks_of(tokens: int) -> int:
    """Return the number of blocks for ``tokens`` tokens."""
    return -(-tokens // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Copies of the keys and values of :data:`BLOCK_TOKENS` tokens, each (layers, heads, tokens, head_dim)."""

    index: int
    """Blocks before it in its sequence."""
    target: NDArray[np.float32]
    draft: DraftBlock | None
    """The drafter's state for them; None where it has none."""


class PrefixCache:
    """At most ``most`` blocks by key, the least recently used leaving first; none at all for 0.

    A key stands for the tokens of a block and everything before it.

    Those that leave are offloaded: as many as ``offloaded`` says are kept in a second tier, and come back when they are looked up.
    """

    def __init__(self, most: int, rules: EngineRules, offloaded: int = 0) -> None:
        self._most = most
        self._most_offloaded = offloaded
        self._rules = rules
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._offloaded: OrderedDict[int, Block] = OrderedDict()

    def keys(self, tokens: Several[int], known: Several[int] = (), *, adapter: str = "") -> list[int]:
        """Return a key for each full block of ``tokens``.

        ``known`` are the keys of the first blocks, which are taken over. ``adapter`` is the name of the sequence's LoRA
        adapter, empty for none: other adapters give the same tokens other keys and values.
        """
        keys = list(known)
        for index in range(len(keys), len(tokens) // BLOCK_TOKENS):
            block = tuple(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
            keys.append(self._rules.chain(keys[-1] if keys else self._rules.root(adapter), block))
        return keys

    def match(self, keys: Several[int]) -> list[Block]:
        """Return the cached blocks of these keys, in order.

        The list ends before the first key without a block.
        """
        blocks: list[Block] = []
        for key in keys:
            if key not in self._blocks and not self._bring_back(key):
                break
            self._blocks.move_to_end(key)
            blocks.append(self._blocks[key])
        return blocks

    def put(self, key: int, copy: Callable[[], Block]) -> None:
        """Keep a block unless it is there already.

        ``copy`` is called only for a new one. Either way the block is then the most recently used. A cache for no blocks
        keeps nothing.
        """
        if not self._most:
            return
        if key not in self._blocks:
            self._blocks[key] = copy()
        self._blocks.move_to_end(key)
        self._make_room()

    def _make_room(self) -> None:
        """Evict blocks down to ``most``, and offload them.

        The second tier drops its oldest block for each that it has no room for.
        """
        for key, block in self._rules.evict(self._blocks, self._most):
            self._offloaded[key] = block
            self._offloaded.move_to_end(key)
            if len(self._offloaded) > self._most_offloaded:
                self._offloaded.popitem(last=False)

    def _bring_back(self, key: int) -> bool:
        """Put the offloaded block of a key into the cache again.

        Returns False if there is none. The block stays offloaded, too.
        """
        block = self.load(key)
        if block is None:
            return False
        self._blocks[key] = block
        self._make_room()
        return True

    def load(self, key: int) -> Block | None:
        """Return the offloaded block of a key; None if there is none."""
        return self._offloaded.get(key)

    def clear(self) -> None:
        """Drop every block, the offloaded ones too."""
        self._blocks.clear()
        self._offloaded.clear()

    def copy(self) -> dict[int, Block]:
        """Return all blocks by key, the least recently used first, and before them the offloaded ones."""
        return {**self._offloaded, **self._blocks}

    def restore(self, blocks: Mapping[int, Block]) -> None:
        """Put copied blocks in again, as the most recently used ones."""
        for key, block in blocks.items():
            self.put(key, partial(_return_block, block))

    def __len__(self) -> int:
        return len(self._blocks)


def _return_block(block: Block) -> Block:
    return block
