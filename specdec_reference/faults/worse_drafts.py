"""Planted faults of drafts worse than the drafter's own, for suites to detect; each wraps the method named by its decorator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_EVERY: Final = 3
"""Drafts."""
_RARELY: Final = 50
"""Steps."""
_MAY: dict[Family, str] = {
    family: "a workload may have no accepted draft in it, or drafts that die where a prompt is asked again"
    for family in Family
    if family is not Family.SPEED
}
_WORSE = "drafts are worse than the drafter's own"


@fault(instead_of="draft_lengths", expected=in_(Place.REFERENCE, may=_MAY, speed=_WORSE), mirrors=("vllm-project/vllm-ascend#6138",))
def draft_cache_stale(rows: Rows[RunningSequence]) -> list[int]:
    """Keeps nothing of an answer in the draft model's own cache: it drafts after the prompt and the last two tokens."""
    return [len(row.request.prompt) + 1 for row in rows]


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed=_WORSE),
    mirrors=("vllm-project/vllm#26191", "vllm-project/vllm-ascend#9871"),
)
def drafts_worse(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Takes another token than the draft model's for every third draft."""
    return replace_drafts(proposal, np.array([row.grammar is None and len(row.drafted) % _EVERY == 0 for row in rows]))


def replace_drafts(proposal: DraftProposal, is_replaced: NDArray[np.bool_]) -> DraftProposal:
    """Return drafts with other tokens than the draft model's in marked rows.

    They have mirrored ids and a one-hot q, as if certain. Drafts without q are certain anyway, and get the token with id 0.
    """
    if proposal.q is None:
        return replace(proposal, tokens=np.where(is_replaced[:, None], 0, proposal.tokens))
    vocabulary = proposal.q.shape[2]
    tokens = np.where(is_replaced[:, None], vocabulary - 1 - proposal.tokens, proposal.tokens)
    certain = (tokens[..., None] == np.arange(vocabulary)).astype(np.float32)
    return replace(proposal, tokens=tokens, q=np.where(is_replaced[:, None, None], certain, proposal.q))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for requests with a grammar"),
    mirrors=("vllm-project/vllm#53777",),
)
def dead_drafts_grammar(
    windows: VerifyWindows, rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]
) -> VerifyWindows:
    """Takes every draft for one that breaks the grammar, and goes on token by token, where a request has one."""
    has_grammar = np.array([row.grammar is not None for row in rows])
    undrafted_tokens = pick(p[draft.starts], uniforms[:, -1])  # from a row's first line, before any draft token
    return VerifyWindows(accepted=np.where(has_grammar, 0, windows.accepted), last=np.where(has_grammar, undrafted_tokens, windows.last))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed=f"{_WORSE}|no draft token accepted"),
    mirrors=("vllm-project/vllm#55605", "vllm-project/vllm-ascend#12521"),
)
def drafts_of_noise(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random but for one step in fifty, as a head does whose weights were loaded wrongly."""
    return replace_drafts(proposal, np.array([row.grammar is None and len(row.tokens) % _RARELY != 0 for row in rows]))
