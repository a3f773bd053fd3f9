"""The faults of the reference engine: each replaces one decision of its rules. No other module knows that they exist."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from pytest_specdec.reference import rejection_sampler
from pytest_specdec.reference.faults import refuse_unknown
from pytest_specdec.reference.rejection_sampler import AcceptanceRules

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from pytest_specdec.reference.openai_request import EngineRequest
    from pytest_specdec.reference.rejection_sampler import DraftProposal
    from pytest_specdec.reference.sequence import RunningSequence

__all__ = ["DECISIONS", "instead_of", "rules"]

_Decision = TypeVar("_Decision", bound="Callable[..., Any]")

_LENIENCE: Final = 1.5
_IN_COMPANY: Final = 4
"""Sequences of one step."""
_LATE: Final = 64
"""Tokens of an answer before a late fault sets in."""
_ALWAYS_ACCEPTED: Final = -1.0
"""Less than any uniform: accepts a draft token whatever p and q."""
_NEAR: Final = 0.2
"""Nats."""
_NO_MASS: Final = 1e-30
"""Stands for a probability of 0, of which JSON has no logarithm."""

DECISIONS: dict[str, dict[str, Callable[..., Any]]] = {}
"""By fault id: the faulty decision by its name in AcceptanceRules."""


def instead_of(decision: str) -> Callable[[_Decision], _Decision]:
    """Register a function in place of ``decision`` under the fault id that is its own name in kebab-case."""

    def register(faulty: _Decision) -> _Decision:
        DECISIONS[faulty.__name__.replace("_", "-")] = {decision: faulty}
        return faulty

    return register


def rules(fault: str, *, speculating: bool) -> AcceptanceRules:
    """Return the right rules for no fault, else those with that fault.

    Raises EngineError for an unknown fault, and for one without speculation.
    """
    if not fault:
        return AcceptanceRules()
    refuse_unknown(fault, speculating=speculating)
    return AcceptanceRules(**DECISIONS[fault])


@instead_of("accept")
def accept_all(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG001 - a rule's signature
    """Emit q at draft positions, p at the bonus."""
    return np.ones(p.shape, np.bool_)


@instead_of("deal")
def accept_all_unseeded(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every sampled draft token of a batch without seeds."""
    seeded = any(row.request.seed is not None for row in rows)
    return uniforms if seeded else _accepting(uniforms, [row.request.temperature > 0 for row in rows])


@instead_of("deal")
def accept_all_late(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accept every sampled draft token late in an answer."""
    return _accepting(uniforms, [row.request.temperature > 0 and len(row.emitted) >= _LATE for row in rows])


def _accepting(uniforms: NDArray[np.float64], rows: list[bool]) -> NDArray[np.float64]:
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


@instead_of("keep")
def kv_off_by_one(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Keep the first rejected draft token too."""
    kept: NDArray[np.intp] = np.minimum(lengths + 1 + accepted + (accepted < drafted), most)
    return kept


@instead_of("penalise")
def penalties_ignored(logits: NDArray[np.float32], added: NDArray[np.float32]) -> NDArray[np.float32]:
    """Penalise the last position only: the bonus, or the next token where nothing was drafted."""
    penalised = logits.copy()
    penalised[-1] += added[-1]
    return penalised


@instead_of("report")
def report_draft_logprobs(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:
    """Report the draft's log-probabilities for accepted tokens."""
    accepted = np.arange(len(logits) - 1)
    reported = logits.copy()
    reported[accepted] = np.log(np.maximum(draft.distribution(np.full(len(accepted), row), accepted, logits.shape[1]), _NO_MASS))
    return reported


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


@instead_of("end")
def cut_short(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """End by length at a tenth of the limit."""
    return rejection_sampler.end(request, emitted, eos) or ("length" if emitted >= _tenth(request) else None)


@instead_of("end")
def stop_short(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """End by stop at a tenth of the limit."""
    return rejection_sampler.end(request, emitted, eos) or ("stop" if emitted >= _tenth(request) else None)


def _tenth(request: EngineRequest) -> int:
    return -(-request.max_tokens // 10)


@instead_of("end")
def past_the_end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: ARG001, FBT001 - a rule's signature
    """Take no token for an end of sequence."""
    return rejection_sampler.end(request, emitted, False)  # noqa: FBT003 - a rule's signature


@instead_of("end")
def wrong_finish(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
    """Report every end as the limit's."""
    return "length" if rejection_sampler.end(request, emitted, eos) else None


@instead_of("admit")
def die_on_json(request: EngineRequest) -> None:
    """Kill the process when a request brings a grammar."""
    if request.grammar is not None:
        os.kill(os.getpid(), signal.SIGKILL)


@instead_of("deal")
def die_in_company(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kill the process when enough sequences are verified in one step."""
    if len(rows) >= _IN_COMPANY:
        os.kill(os.getpid(), signal.SIGKILL)
    return uniforms
