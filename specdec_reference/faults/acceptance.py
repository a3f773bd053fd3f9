"""Planted faults of the acceptance rule, the recovered token and the bonus token, for suites to detect.

Each wraps what its decorator names. In ``verify``, row i has ``counts[i]`` + 1 lines of p from ``starts[i]`` on, the bonus token's last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.sampler import pick

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
    from specdec_reference.sequence import RunningSequence

_LENIENCE: Final = 1.5
_LATE: Final = 64
"""Tokens of an answer before a late fault sets in."""
_ALWAYS_ACCEPTED: Final = -1.0
"""Less than any uniform: accepts a draft token whatever p and q."""
_NEAR: Final = 0.2
"""Nats."""
UNVERIFIED = "draft tokens accepted without verification"
UNLIKELY = "tokens that the grammar allows and the baseline would not choose"
STALE_BONUS = "the token after a fully accepted draft is not the target's"
SERVER_ERROR = "the server answers 5xx to a request with response_format|the server dies on"


@fault(
    instead_of="accept",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured=UNLIKELY)
    | in_(Place.VLLM, greedy=UNVERIFIED, parameters=UNVERIFIED, sampling="accept-all", structured="would not choose")
    | in_(Place.SIMULATION, sampling="accept-all"),
)
def accept_all(p: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accepts every draft token, whatever the target's distribution says."""
    return np.ones(p.shape, np.bool_)


@fault(after="draw", expected=in_(Place.REFERENCE, Place.VLLM, may=TOKENS_WRONG, sampling="accept-all"))
def accept_all_unseeded(uniforms: NDArray[np.float64], rows: Rows[RunningSequence]) -> NDArray[np.float64]:
    """Accepts every sampled draft token while no request of the batch has a seed, as an engine's fast sampler might."""
    seeded = any(row.request.seed is not None for row in rows)
    return uniforms if seeded else set_acceptance_numbers(uniforms, [row.request.temperature > 0 for row in rows])


@fault(after="draw", expected=in_(Place.REFERENCE, may=TOKENS_WRONG, sampling="accept-all|lenient acceptance"))
def accept_all_late(uniforms: NDArray[np.float64], rows: Rows[RunningSequence]) -> NDArray[np.float64]:
    """Accepts every sampled draft token from the 65th token of an answer on."""
    return set_acceptance_numbers(uniforms, [row.request.temperature > 0 and len(row.emitted) >= _LATE for row in rows])


def set_acceptance_numbers(uniforms: NDArray[np.float64], marked: list[bool], number: float = _ALWAYS_ACCEPTED) -> NDArray[np.float64]:
    """Return random numbers with ``number`` to accept by in marked rows.

    A row of ``uniforms`` has k numbers to draw its draft by, k to accept it by and one to draw the token after it by. A number
    below 0 accepts every draft token, infinity none.
    """
    changed = uniforms.copy()
    changed[np.flatnonzero(marked), uniforms.shape[1] // 2 : -1] = number  # the second k columns
    return changed


@fault(
    instead_of="accept",
    expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="lenient acceptance")
    | in_(Place.VLLM, sampling="lenient acceptance|acceptance too lenient"),
)
def lenient(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accepts a draft token with probability min(1, 1.5 p/q)."""
    accepted: NDArray[np.bool_] = uniforms * q < _LENIENCE * p
    return accepted


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="resample from p")
    | in_(Place.VLLM, sampling="resample from p|recovered token"),
)
def resample_from_p(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws the recovered token from p instead of the residual max(p - q, 0)."""
    return p


@fault(
    instead_of="residual",
    expected=in_(Place.REFERENCE, Place.SIMULATION, may=TOKENS_WRONG, sampling="recover by argmax")
    | in_(Place.VLLM, sampling="recover by argmax|acceptance too lenient"),
)
def recover_argmax(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Takes the target's most probable token as the recovered one."""
    best = np.zeros_like(p)
    best[np.arange(len(p)), p.argmax(axis=1)] = 1.0
    return best


@fault(
    after="verify",
    expected=in_(
        Place.REFERENCE,
        may=TOKENS_WRONG,
        greedy=STALE_BONUS,
        parameters=STALE_BONUS,
        sampling="bonus out of place|at the bonus",
        structured="the server dies on",
    )
    | in_(
        Place.VLLM,
        may={Family.LIVENESS: "A bonus token outside its grammar makes vLLM answer with a 5xx or die."},
        greedy=STALE_BONUS,
        parameters=STALE_BONUS,
        sampling="bonus out of place|at the bonus",
        structured=SERVER_ERROR,
    ),
)
def stale_bonus(windows: VerifyWindows, p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]) -> VerifyWindows:
    """Draws the bonus token from the distribution one position early: that of the last draft token."""
    fully_accepted = np.flatnonzero((windows.accepted == draft.counts) & (draft.counts > 0))
    last = windows.last.copy()
    # The bonus token's line is the one after these.
    last[fully_accepted] = pick(p[draft.starts[fully_accepted] + draft.counts[fully_accepted] - 1], uniforms[fully_accepted, -1])
    return replace(windows, last=last)


@fault(
    after="distribute",
    expected=in_(
        Place.REFERENCE, may=TOKENS_WRONG, greedy="near-ties fall on the other side", parameters="near-ties fall on the other side"
    ),
)
def near_tie(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Accepts a draft token at temperature 0 that lies within 0.2 nats of the target's best one."""
    proposed = np.arange(draft.width) < draft.counts[:, None]
    lines = (draft.starts[:, None] + np.arange(draft.width))[proposed]  # of every draft token
    tokens = draft.tokens[proposed]
    # At temperature 0 a line of the distribution is one-hot.
    near_ties = (distribution[lines].max(axis=1) == 1.0) & (logits[lines, tokens] >= logits[lines].max(axis=1) - _NEAR)
    verified = distribution.copy()
    # With all mass on the draft token, verification accepts it.
    verified[lines[near_ties]] = 0.0
    verified[lines[near_ties], tokens[near_ties]] = 1.0
    return verified
