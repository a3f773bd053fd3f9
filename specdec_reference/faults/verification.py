"""Planted faults of verification, for suites to detect: another acceptance rule, another position, another number.

Each wraps what its decorator names. In ``verify``, row i has ``counts[i]`` + 1 lines of p from ``starts[i]`` on, the bonus token's last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference import rules
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
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
UNVERIFIED = "draft tokens accepted without verification"
RECOVERED = "the token in place of a rejected draft token is not the target's"
EVERYWHERE = "nearly every token is wrong"
AT_DRAFTS = f"{EVERYWHERE}|draft positions are verified wrongly"
TYPICAL = "acceptance leak|typical acceptance|temperature or truncation"
BEST_ONLY = "greedy acceptance|temperature or truncation"
REPEATED = "acceptance leak|accept-all|resample from p|inverted ratio"
REUSED = "reused random numbers"


@fault(
    instead_of="accept",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="inverted ratio|accept-all")
    | in_(Place.SIMULATION, sampling="inverted ratio"),
    mirrors=("SafeAILab/EAGLE#50",),
)
def inverted_ratio(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accepts a draft token with probability min(1, q/p): the ratio is upside down."""
    return accept(q, p, uniforms)


@fault(
    instead_of="accept",
    expected=in_(
        Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
    ),
)
def synthetic_acceptance(uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accepts each draft token with probability 0.7, as a benchmark's synthetic sampler does."""
    accepted: NDArray[np.bool_] = uniforms < _SYNTHETIC
    return accepted


@fault(
    after="accept",
    expected=in_(
        Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
    ),
)
def last_draft_unverified(passed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Accepts the last draft token of a window unseen once those before it were accepted."""
    passed[:, -1:] = True
    return passed


@fault(
    after="accept",
    expected=in_(
        Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
    ),
)
def first_draft_unverified(passed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Accepts the first draft token of a window unseen."""
    passed[:, :1] = True
    return passed


@fault(
    instead_of="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=TYPICAL) | in_(Place.SIMULATION, sampling="typical acceptance"),
)
def typical_acceptance(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], engine_rules: EngineRules
) -> VerifyWindows:
    """Accepts a sampled draft token that is among the target's five most probable ones."""
    threshold = np.sort(p, axis=1)[:, -_TYPICAL]  # the fifth largest probability of each line
    return rules.verify(rows, p, draft, uniforms, replace(engine_rules, accept=_accept_above(threshold, p, draft)))


@fault(
    instead_of="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=BEST_ONLY) | in_(Place.SIMULATION, sampling="greedy acceptance"),
    mirrors=("lablup/mlxcel#902",),
)
def greedy_acceptance(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], engine_rules: EngineRules
) -> VerifyWindows:
    """Accepts a draft token above temperature 0 only where it is the target's most probable one."""
    return rules.verify(rows, p, draft, uniforms, replace(engine_rules, accept=_accept_above(p.max(axis=1), p, draft)))


def _accept_above(threshold: NDArray[np.float32], p: NDArray[np.float32], draft: DraftProposal) -> Callable[..., NDArray[np.bool_]]:
    """Return a rule of acceptance by a probability's threshold.

    It accepts a draft token whose probability in ``p`` is at least the ``threshold`` of its line, and not 0.
    """
    lines = np.minimum(draft.starts[:, None] + np.arange(draft.width), len(p) - 1)  # beyond a row's draft any line does
    mass = p[lines, draft.tokens]
    passed: NDArray[np.bool_] = (mass >= threshold[lines]) & (mass > 0.0)
    return lambda *_: passed  # q and the random numbers do not matter


@fault(
    instead_of="verify",
    expected=in_(
        Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="acceptance leak|accept-all|lenient"
    ),
)
def rejection_does_not_stop(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], engine_rules: EngineRules
) -> VerifyWindows:
    """Takes as many draft tokens as passed, whether or not one before them was rejected."""

    def accept_count(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
        is_drafted = np.arange(draft.width) < draft.counts[:, None]
        passed_count: NDArray[np.intp] = (accept(p, q, uniforms) & is_drafted).sum(axis=1)
        accepted: NDArray[np.bool_] = np.arange(draft.width) < passed_count[:, None]  # as many, from the first on
        return accepted

    return rules.verify(rows, p, draft, uniforms, replace(engine_rules, accept=accept_count))


@fault(
    after="verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=RECOVERED, parameters=RECOVERED, sampling=REPEATED)
    | in_(
        Place.VLLM,
        may=TOKENS_WRONG | dict.fromkeys((Family.GREEDY, Family.SAMPLING), "Its tokens are wrong there too."),
        parameters=RECOVERED,
    ),
)
def rejected_emitted(windows: VerifyWindows, draft: DraftProposal) -> VerifyWindows:
    """Emits the rejected draft token itself in its place."""
    rejected = np.flatnonzero(windows.accepted < draft.counts)
    last = windows.last.copy()
    last[rejected] = draft.tokens[rejected, windows.accepted[rejected]]
    return replace(windows, last=last)


@fault(
    after="distribute",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=AT_DRAFTS, parameters=AT_DRAFTS, sampling="temperature or truncation"),
    mirrors=("NVIDIA/TensorRT-LLM#11125", "huggingface/text-generation-inference#2997"),
)
def verified_one_ahead(distribution: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Holds each draft token against the target's distribution one position after its own."""
    lines = np.arange(len(distribution))
    bonus_lines = draft.starts + draft.counts
    ahead: NDArray[np.float32] = distribution[np.where(np.isin(lines, bonus_lines), lines, np.minimum(lines + 1, len(lines) - 1))]
    return ahead


@fault(
    instead_of="distribute",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="temperature or truncation"),
    mirrors=("vllm-project/vllm#10198",),
)
def truncation_ignored_at_drafts(logits: NDArray[np.float32], sampling: Sampling, draft: DraftProposal) -> NDArray[np.float32]:
    """Leaves top_k and top_p out where draft tokens are verified."""
    bonus = np.isin(np.arange(len(logits)), draft.starts + draft.counts)
    plain = replace(sampling, top_k=np.where(bonus, sampling.top_k, 0), top_p=np.where(bonus, sampling.top_p, 1.0))
    return distributions(logits, plain)


@fault(
    instead_of="numbers_to_verify",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=REUSED),
    mirrors=("local-inference-lab/vllm#205",),
)
def draft_noise_accepts(uniforms: NDArray[np.float64], k: int, width: int) -> NDArray[np.float64]:
    """Accepts draft tokens by the random numbers that drew them."""
    return np.concatenate([uniforms[:, :width], uniforms[:, 2 * k :]], axis=1)


@fault(instead_of="verify", expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling=REUSED), mirrors=("local-inference-lab/vllm#205",))
def rejecting_number_recovers(
    rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64], engine_rules: EngineRules
) -> VerifyWindows:
    """Draws the recovered token by the random number that rejected the draft token."""
    windows = rules.verify(rows, p, draft, uniforms, engine_rules)
    rejected = np.flatnonzero(windows.accepted < draft.counts)
    reused = uniforms.copy()
    reused[rejected, -1] = uniforms[rejected, windows.accepted[rejected]]  # the last number draws the recovered token
    return rules.verify(rows, p, draft, reused, engine_rules)  # accepts the same tokens
