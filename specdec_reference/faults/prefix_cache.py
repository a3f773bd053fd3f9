"""Planted faults of the prefix cache: what a request leaves, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.acceptance import set_acceptance_numbers
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.prefix_cache import BLOCK_TOKENS
from specdec_reference.rejection_sampler import DraftProposal

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Sequence as Rows

    import numpy as np
    from numpy.typing import NDArray

    from specdec_reference.prefix_cache import Block
    from specdec_reference.sequence import RunningSequence

_LONG: Final = 400
"""Tokens of a long prompt."""
_LONG_BLOCKS: Final = _LONG // BLOCK_TOKENS
_after_long: dict[int, tuple[int, ...]] = {}
"""By arrival, the tokens of the long request that came shortly before; a server has one engine."""
_first_long: list[int] = []
"""The arrival of this boot's first long request."""
_FOLLOWING: Final = 3
WRONG = "the second identical prompt is answered wrongly|an answer depends on what was asked before"
REUSED = "Other families ask a prompt again too, or prompts that begin alike."
ELSEWHERE = dict.fromkeys(
    (
        Family.GREEDY,
        Family.SAMPLING,
        Family.PARAMETERS,
        Family.LOGPROBS,
        Family.STRUCTURED,
        Family.LIVENESS,
        Family.SEEDS,
        Family.LENGTHS,
        Family.INVARIANTS,
        Family.TOOLS,
        Family.CONCURRENCY,
        Family.CONTEXT,
        Family.PRESSURE,
    ),
    REUSED,
)


@fault(instead_of="chain", expected=in_(Place.REFERENCE, Place.VLLM, may=ELSEWHERE, state=WRONG), mirrors=("vllm-project/vllm#39690",))
def prefix_without_parent(tokens: tuple[int, ...]) -> int:
    """Knows a block of the prefix cache by its own tokens, whatever came before them."""
    return hash(tokens)


@fault(
    after="reuse",
    expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
    mirrors=("vllm-project/vllm#39690", "vllm-project/vllm#57128", "vllm-project/vllm#46694"),
)
def prefix_partial_block(reused: int, matched: int, total: int) -> int:
    """Takes the last, partial block of a known prompt from whichever sequence had the slot before."""
    return total - 1 if 0 < total - matched <= BLOCK_TOKENS else reused


@fault(after="reuse", expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG), mirrors=("vllm-project/vllm#57128",))
def prefix_off_by_one(reused: int, total: int) -> int:
    """Counts one token more as cached than the prefix cache holds."""
    return min(reused + 1, total - 1) if reused else 0


@fault(
    before="evict",
    expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG),
    mirrors=("ggml-org/llama.cpp#27296", "ggml-org/llama.cpp#23577"),
)
def prefix_damaged_by_length(blocks: OrderedDict[int, Block]) -> None:
    """Overwrites the blocks of other prompts with those of a long one."""
    newest = next(reversed(blocks.values()))  # the block that has just been added or looked up
    if newest.index >= _LONG_BLOCKS:  # that many blocks come before it in its sequence
        for key, block in blocks.items():
            blocks[key] = replace(block, target=newest.target)


@fault(
    after="batch.reuse_prefix",
    expected=in_(Place.REFERENCE, may=ELSEWHERE, state="the second identical prompt is answered with nothing, or cut off"),
    mirrors=("lmstudio-ai/mlx-engine#91",),
)
def warm_empty(reused: int, sequence: RunningSequence) -> int:
    """Ends the answer to a prompt that is all in the prefix cache after one token."""
    if reused and sequence.cached_tokens + BLOCK_TOKENS >= len(sequence.tokens):
        sequence.request = replace(sequence.request, max_tokens=1)
    return reused


@fault(after="draw", expected=in_(Place.REFERENCE, may=ELSEWHERE, state=WRONG), mirrors=("vllm-project/vllm#35800",))
def warm_accept_all(uniforms: NDArray[np.float64], rows: Rows[RunningSequence]) -> NDArray[np.float64]:
    """Accepts every draft token of a sequence that began with cached tokens."""
    return set_acceptance_numbers(uniforms, [row.cached_tokens > 0 for row in rows])


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=ELSEWHERE, state="drafts are no longer accepted when a prompt is asked again"),
    mirrors=("NVIDIA/TensorRT-LLM#18280",),
)
def warm_draft_ahead(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts one token too far ahead for a sequence that began with cached tokens."""
    warm_slots = [slot for slot, row in enumerate(rows) if row.cached_tokens]
    if not warm_slots:
        return draft
    tokens = draft.tokens.copy()
    tokens[warm_slots, :-1] = draft.tokens[warm_slots, 1:]
    return DraftProposal(tokens=tokens, counts=draft.counts)  # without q, as if certain


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=ELSEWHERE, state="drafts are no longer accepted after a long request"),
    mirrors=("ggml-org/llama.cpp#27296", "lmstudio-ai/mlx-engine#91"),
)
def drafter_keeps_long_request(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts from the tokens of a long request for the three requests after it."""
    for row in rows:
        if len(row.request.prompt) >= _LONG:
            _after_long.update({row.arrival + 1 + offset: row.request.prompt for offset in range(_FOLLOWING)})  # requests are numbered
    long_prompts = [_after_long.get(row.arrival) for row in rows]
    if not any(long_prompts):
        return draft
    tokens = draft.tokens.copy()
    for slot, long_prompt in enumerate(long_prompts):
        if long_prompt:
            tokens[slot] = long_prompt[: tokens.shape[1]]
    return DraftProposal(tokens=tokens, counts=draft.counts)  # without q, as if certain


@fault(
    instead_of="reuse",
    expected=in_(Place.REFERENCE, Place.VLLM, state="speculation defeats the prefix cache"),
    mirrors=(
        *("vllm-project/vllm#54360", "vllm-project/vllm#40624", "sgl-project/sglang#32459", "sgl-project/sglang#17193"),
        "ai-dynamo/dynamo#6872",
    ),
)
def prefix_defeated() -> int:
    """Looks nothing up in the prefix cache while it speculates."""
    return 0


@fault(
    after="reuse",
    expected=in_(Place.REFERENCE, state="speculation loses a part of the prefix cache"),
    mirrors=("vllm-project/vllm#54360", "sgl-project/sglang#32459"),
)
def prefix_half_reused(reused: int) -> int:
    """Reuses the first half of the cached blocks of a prompt while it speculates."""
    return reused // BLOCK_TOKENS // 2 * BLOCK_TOKENS


@fault(
    after="batch.reuse_prefix", expected=in_(Place.REFERENCE, may=ELSEWHERE, state="more cached tokens are reported than the prompt has")
)
def prefix_overcounted(reused: int, sequence: RunningSequence) -> int:
    """Reports 512 cached tokens more than were reused."""
    if reused and not sequence.preempted:
        sequence.cached_tokens += 512
    return reused


@fault(
    after="drafter.propose",
    expected=in_(
        Place.REFERENCE,
        may=ELSEWHERE,
        state="drafts are no longer accepted when a prompt is asked again|drafts are no longer accepted after a long",
    ),
    mirrors=("vllm-project/vllm-ascend#10495",),
)
def drafts_dead_after_long(draft: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing but the token with id 0 for every request that follows a long one."""
    _first_long.extend(row.arrival for row in rows if len(row.request.prompt) >= _LONG and not _first_long)  # at most once
    # Later than the first long request; a grammar has to permit every draft token.
    dead_slots = [slot for slot, row in enumerate(rows) if _first_long and row.arrival > _first_long[0] and row.grammar is None]
    if not dead_slots:
        return draft
    tokens = draft.tokens.copy()
    tokens[dead_slots] = 0
    return DraftProposal(tokens=tokens, counts=draft.counts)
