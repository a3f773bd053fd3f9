"""Planted faults of drafts, for suites to detect: tokens that nothing accepts, or another q than the distribution they were drawn from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

UNACCEPTED = "no draft token accepted"
UNDRAFTED = "nothing drafted"
UNDRAFTED_TOO = dict.fromkeys(
    set(Family) - {Family.GREEDY, Family.PARAMETERS, Family.SAMPLING},
    "Its requests are drafted for as badly, so that what it judges is no longer speculative.",
)


def _one_hot(tokens: NDArray[np.intp], vocabulary: int) -> NDArray[np.float32]:
    certain: NDArray[np.float32] = (tokens[..., None] == np.arange(vocabulary)).astype(np.float32)
    return certain


def propose_rejected(proposal: DraftProposal, rows: NDArray[np.bool_]) -> DraftProposal:
    """Return the proposal with other tokens in the marked ``rows``.

    The target accepts next to none of them. They have mirrored ids and a one-hot q, as if certain, so that answers stay
    right. Drafts without q are certain anyway, and get the token with id 0.
    """
    q = proposal.q
    if q is None:
        return replace(proposal, tokens=np.where(rows[:, None], 0, proposal.tokens))
    tokens = np.where(rows[:, None], q.shape[2] - 1 - proposal.tokens, proposal.tokens)
    return replace(proposal, tokens=tokens, q=np.where(rows[:, None, None], _one_hot(tokens, q.shape[2]), q))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, Place.VLLM, may=UNDRAFTED_TOO, greedy=UNACCEPTED, parameters=UNACCEPTED, sampling=UNACCEPTED),
    mirrors=(
        *("sgl-project/sglang#32440", "vllm-project/vllm#43455", "sgl-project/sglang#37736"),
        *("sgl-project/sglang#32226", "NVIDIA/TensorRT-LLM#18662", "vllm-project/vllm-ascend#16980"),
    ),
)
def dead_drafts(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens that the target does not take; the answers are right."""
    return propose_rejected(proposal, np.ones(len(rows), np.bool_))


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=UNDRAFTED_TOO, sampling=UNACCEPTED), mirrors=("jundot/omlx#3370",))
def drafts_dead_when_sampling(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens that the target does not take above temperature 0; the answers are right."""
    return propose_rejected(proposal, np.array([row.request.temperature > 0 for row in rows]))


@fault(
    after="drafter.propose", expected=in_(Place.REFERENCE, may=UNDRAFTED_TOO, sampling=UNDRAFTED), mirrors=("raullenchai/Rapid-MLX#2140",)
)
def no_drafts_when_sampling(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing above temperature 0; the answers are right."""
    counts = np.where([row.request.temperature > 0 for row in rows], 0, proposal.counts)
    width = int(counts.max(initial=0))  # a proposal is as wide as its longest draft
    q = None if proposal.q is None else proposal.q[:, :width]
    return replace(proposal, tokens=proposal.tokens[:, :width], counts=counts, q=q)


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="acceptance leak|acceptance rule"),
    mirrors=("huggingface/transformers#33534", "deepseek-ai/DeepSpec#31"),
)
def q_one_early(proposal: DraftProposal) -> DraftProposal:
    """Verifies each draft token by the draft's distribution of the token before it."""
    q = proposal.q
    return proposal if q is None else replace(proposal, q=q[:, np.maximum(np.arange(q.shape[1]) - 1, 0)])


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=UNDRAFTED_TOO, greedy=UNDRAFTED, parameters=UNDRAFTED, sampling=UNDRAFTED),
    mirrors=("vllm-project/vllm#27287", "ai-dynamo/dynamo#10411"),
)
def nothing_drafted(proposal: DraftProposal) -> DraftProposal:
    """Drafts nothing for any request; the answers are right."""
    q = None if proposal.q is None else proposal.q[:, :0]
    return replace(proposal, tokens=proposal.tokens[:, :0], counts=np.zeros_like(proposal.counts), q=q)
