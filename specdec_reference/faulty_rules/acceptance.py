"""Rules with a fault of acceptance, recovery or the bonus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_LENIENCE: Final = 1.5
_LATE: Final = 64
"""Tokens of an answer before a late fault sets in."""
_ALWAYS_ACCEPTED: Final = -1.0
"""Less than any uniform: accepts a draft token whatever p and q."""
_NEAR: Final = 0.2
"""Nats."""


@instead_of("accept")
def accept_all(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG001 - a rule's signature
    """Emit q at draft positions, p at the bonus."""
    return np.ones(p.shape, np.bool_)


@instead_of("deal")
def accept_all_unseeded(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every sampled draft token of a batch without seeds."""
    seeded = any(row.request.seed is not None for row in rows)
    return uniforms if seeded else accepting(uniforms, [row.request.temperature > 0 for row in rows])


@instead_of("deal")
def accept_all_late(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every sampled draft token late in an answer."""
    return accepting(uniforms, [row.request.temperature > 0 and len(row.emitted) >= _LATE for row in rows])


def accepting(uniforms: NDArray[np.float64], rows: list[bool]) -> NDArray[np.float64]:
    """Return ``uniforms`` that accept every draft token of the marked rows; the last column, which draws, as it is."""
    dealt = uniforms.copy()
    dealt[np.flatnonzero(rows), :-1] = _ALWAYS_ACCEPTED
    return dealt


@instead_of("accept")
def lenient(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Accept with probability min(1, 1.5 p/q)."""
    accepted: NDArray[np.bool_] = uniforms * q < _LENIENCE * p
    return accepted


@instead_of("residual")
def resample_from_p(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Emit min(p, q) + (1 - sum min(p, q)) p."""
    return p


@instead_of("residual")
def recover_argmax(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
    """Put all mass on the target's best token."""
    best = np.zeros_like(p)
    best[np.arange(len(p)), p.argmax(axis=1)] = 1.0
    return best


@instead_of("bonus")
def stale_bonus(lines: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the lines of the last draft tokens."""
    return lines - 1


@instead_of("target")
def near_tie(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
    """Move the mass of a greedy line to a draft token near its best one."""
    proposed = np.arange(draft.width) < draft.counts[:, None]
    lines = (draft.starts[:, None] + np.arange(draft.width))[proposed]
    tokens = draft.tokens[proposed]
    near = (distribution[lines].max(axis=1) == 1.0) & (logits[lines, tokens] >= logits[lines].max(axis=1) - _NEAR)
    moved = distribution.copy()
    moved[lines[near]] = 0.0
    moved[lines[near], tokens[near]] = 1.0
    return moved
