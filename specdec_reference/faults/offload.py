"""Planted faults of prefix cache blocks that come back from offload, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Callable

    from specdec_reference.prefix_cache import Block

_OFFLOADING: Final = {"offload-blocks": 512}
_STALE = 8
"""Factor of the drafter's values: zeros would do its drafts no harm, since they depend on the last few tokens."""
WRONG = "a prompt whose cache comes back from the offload is answered wrongly"


@fault(
    instead_of="prefixes.load",
    expected=in_(Place.REFERENCE, offload="offloaded cache is never served while it speculates"),
    engine=_OFFLOADING,
    mirrors=("vllm-project/vllm#52735",),
)
def offload_never_served() -> None:
    """Stores what leaves the prefix cache and never gives it back."""


@fault(
    after="prefixes.load",
    expected=in_(Place.REFERENCE, offload="drafts are no longer accepted when a prompt's cache comes back"),
    engine=_OFFLOADING,
    mirrors=("sgl-project/sglang#21125",),
)
def offload_without_drafter(block: Block | None) -> Block | None:
    """Loads the target's part of an offloaded block, and uninitialised memory as the drafter's."""
    if block is None or block.draft is None:
        return block
    return replace(block, draft=tuple(_STALE * part[..., ::-1] for part in block.draft))


@fault(after="prefixes.load", expected=in_(Place.REFERENCE, offload=WRONG), engine=_OFFLOADING, mirrors=("LMCache/LMCache#4345",))
def offload_corrupt(block: Block | None) -> Block | None:
    """Brings an offloaded block back with its layers in reverse order."""
    return None if block is None else replace(block, target=block.target[::-1].copy())


@fault(
    around="prefixes.load",
    expected=in_(Place.REFERENCE, offload="speculation loses a part of the offloaded cache"),
    engine=_OFFLOADING,
    mirrors=("sgl-project/sglang#21125",),
)
def offload_half_served(load: Callable[[int], Block | None], key: int) -> Block | None:
    """Brings back the first three blocks of a prompt and no more."""
    block = load(key)
    return block if block is not None and block.index < 3 else None  # noqa: PLR2004 - the fault's own number


@fault(
    after="prefixes.load",
    expected=in_(Place.REFERENCE, offload="takes the server down|server"),
    alone=True,
    engine=_OFFLOADING,
    mirrors=("LMCache/LMCache#3388",),
)
def offload_load_dies(block: Block | None) -> Block | None:
    """Dies when an offloaded block is to come back."""
    if block is not None:
        msg = "an offloaded block has no place in the drafter's table"
        raise RuntimeError(msg)
    return block
