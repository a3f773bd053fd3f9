"""Rules with a fault of verification: another acceptance rule, another position, another number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference import rules
from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.rejection_sampler import VerifyWindows, accept
from specdec_reference.sampler import Sampling, distributions

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.rules import EngineRules
    from specdec_reference.sequence import RunningSequence

_SYNTHETIC: Final = 0.7
"""Acceptance rate, whatever p and q."""
_TYPICAL: Final = 5
"""Rank in the target's distribution up to which a draft token passes."""


@instead_of("accept")
def inverted_ratio(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accept with probability min(1, q/p)."""
    return accept(q, p, uniforms)


@instead_of("accept")
def synthetic_acceptance(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG001 - a rule's signature
    """Accept at a fixed rate."""
    accepted: NDArray[np.bool_] = uniforms < _SYNTHETIC
    return accepted


@instead_of("accept")
def last_draft_unverified(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accept the last draft token of a full window unseen."""
    passed = accept(p, q, uniforms)
    passed[:, -1:] = True
    return passed


@instead_of("accept")
def first_draft_unverified(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accept the first draft token unseen."""
    passed = accept(p, q, uniforms)
    passed[:, :1] = True
    return passed


@instead_of("verify")
def typical_acceptance(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Accept a sampled draft token among the target's five best ones."""
    threshold = np.sort(p, axis=1)[:, -_TYPICAL]
    return rules.verify(rows, p, draft, uniforms, replace(given, accept=_above(threshold, p, draft)))


@instead_of("verify")
def greedy_acceptance(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Accept a draft token that is the target's best one, at any temperature; recover from the residual."""
    return rules.verify(rows, p, draft, uniforms, replace(given, accept=_above(p.max(axis=1), p, draft)))


def _above(threshold: NDArray[np.float32], p: NDArray[np.float32], draft: DraftProposal) -> Callable[..., NDArray[np.bool_]]:
    """Return a rule that accepts draft tokens whose probability is at least the threshold of their line, and not 0."""
    lines = np.minimum(draft.starts[:, None] + np.arange(draft.width), len(p) - 1)
    mass = p[lines, draft.tokens]
    passed: NDArray[np.bool_] = (mass >= threshold[lines]) & (mass > 0.0)
    return lambda *_: passed


@instead_of("verify")
def rejection_does_not_stop(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Take as many draft tokens as passed, whether or not one before them was rejected."""

    def counted(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
        live = np.arange(draft.width) < draft.counts[:, None]
        passed: NDArray[np.intp] = (accept(p, q, uniforms) & live).sum(axis=1)
        first: NDArray[np.bool_] = np.arange(draft.width) < passed[:, None]
        return first

    return rules.verify(rows, p, draft, uniforms, replace(given, accept=counted))


@instead_of("verify")
def rejected_emitted(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Put the rejected draft token itself into its place."""
    windows = rules.verify(rows, p, draft, uniforms, given)
    rejected = np.flatnonzero(windows.accepted < draft.counts)
    last = windows.last.copy()
    last[rejected] = draft.tokens[rejected, windows.accepted[rejected]]
    return replace(windows, last=last)


@instead_of("target")
def verified_one_ahead(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:  # noqa: ARG001 - a rule's signature
    """Hold each draft token against the distribution behind it; the bonus has its own."""
    lines = np.arange(len(distribution))
    bonus = draft.starts + draft.counts
    ahead: NDArray[np.float32] = distribution[np.where(np.isin(lines, bonus), lines, np.minimum(lines + 1, len(lines) - 1))]
    return ahead


@instead_of("distribute")
def truncation_ignored_at_drafts(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:
    """Leave top_k and top_p out where draft tokens are verified."""
    bonus = np.isin(np.arange(len(logits)), draft.starts + draft.counts)
    plain = replace(sampling, top_k=np.where(bonus, sampling.top_k, 0), top_p=np.where(bonus, sampling.top_p, 1.0))
    return distributions(logits, plain)


@instead_of("share")
def draft_noise_accepts(uniforms: NDArray[np.float64], k: int, width: int) -> NDArray[np.float64]:
    """Accept by the numbers that drew the draft."""
    return np.concatenate([uniforms[:, :width], uniforms[:, 2 * k :]], axis=1)


@instead_of("verify")
def rejecting_number_recovers(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], given: EngineRules
) -> VerifyWindows:
    """Draw the recovered token by the number that rejected the draft token."""
    windows = rules.verify(rows, p, draft, uniforms, given)
    rejected = np.flatnonzero(windows.accepted < draft.counts)
    drawn = uniforms.copy()
    drawn[rejected, -1] = uniforms[rejected, windows.accepted[rejected]]
    return rules.verify(rows, p, draft, drawn, given)
