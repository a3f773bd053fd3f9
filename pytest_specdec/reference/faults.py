"""Faults: named, deliberate bugs, each a set of rules with one decision replaced. No other module knows that they exist."""

from __future__ import annotations

import difflib
import os
import signal
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.errors import EngineError
from pytest_specdec.reference.rejection_sampler import AcceptanceRules
from pytest_specdec.reference.rejection_sampler import end as right_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from pytest_specdec.reference.openai_request import EngineRequest
    from pytest_specdec.reference.rejection_sampler import DraftProposal
    from pytest_specdec.reference.sequence import RunningSequence

__all__ = ["FAULTS", "rules"]

_LENIENCE: Final = 1.5
_COMPANY: Final = 4
_LATE: Final = 64
"""Tokens into an answer, from which on a late fault is there."""
_KEEPS: Final = -1.0
"""Less than any uniform: what is verified by it is kept, whatever p and q."""
_NEAR: Final = 0.2
"""Nats."""
_NEVER: Final = 1e-30
"""Stands for a probability of 0, of which JSON has no logarithm."""


def rules(name: str, *, speculating: bool, ceiling: int) -> AcceptanceRules:
    """Return the rules of a server: the right ones for no name, else those with that fault.

    ``ceiling`` is the longest cache length from which a whole window still fits. Raises EngineError for an unknown name, and for a
    fault without speculation.
    """
    if not name:
        return AcceptanceRules()
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, n=1)
        raise EngineError(
            what="no such fault",
            where="--fault",
            found=name,
            expected=", ".join(FAULTS),
            remedy=f"did you mean {near[0]!r}?" if near else "name one of these",
        )
    if not speculating:
        raise EngineError(
            what="a fault of speculation on a server that does not speculate",
            where="--fault",
            found=f"{name} without --speculative-config",
            expected="--speculative-config beside it",
            remedy="plant the fault in the variant: the baseline is the judge",
        )
    return FAULTS[name](ceiling)


def _accept_all(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Keep every draft token, whatever the target says: m = q at draft positions, p at the bonus."""

    def accept(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG001 - a rule's signature
        return np.ones(p.shape, np.bool_)

    return AcceptanceRules(accept=accept)


def _accept_all_unseeded(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Keep every drawn draft token while no request of the batch brings a seed.

    So it would be in an engine that leaves its fast sampler as soon as one of them does.
    """

    def deal(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
        seeded = any(row.request.seed is not None for row in rows)
        return uniforms if seeded else _kept(uniforms, [row.request.temperature > 0 for row in rows])

    return AcceptanceRules(deal=deal)


def _accept_all_late(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Keep every drawn draft token from the 65th of an answer on."""

    def deal(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
        return _kept(uniforms, [row.request.temperature > 0 and len(row.emitted) >= _LATE for row in rows])

    return AcceptanceRules(deal=deal)


def _kept(uniforms: NDArray[np.float64], rows: list[bool]) -> NDArray[np.float64]:
    """Return ``uniforms`` by which every draft token of the marked rows is kept; the last column, which draws, as it is."""
    dealt = uniforms.copy()
    dealt[np.flatnonzero(rows), :-1] = _KEEPS
    return dealt


def _resample_from_p(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Draw the recovered token from p: m = min(p, q) + (1 - sum min(p, q)) p."""

    def residual(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
        return p

    return AcceptanceRules(residual=residual)


def _lenient(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Keep a draft token with probability min(1, 1.5 p/q)."""

    def accept(p: NDArray[np.float64], q: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = uniforms * q < _LENIENCE * p
        return kept

    return AcceptanceRules(accept=accept)


def _recover_argmax(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Take the target's best token for the recovered one."""

    def residual(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG001 - a rule's signature
        best = np.zeros_like(p)
        best[np.arange(len(p)), p.argmax(axis=1)] = 1.0
        return best

    return AcceptanceRules(residual=residual)


def _stale_bonus(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Draw the bonus token from the distribution one position early: that of the last draft token."""

    def bonus(lines: NDArray[np.intp]) -> NDArray[np.intp]:
        return lines - 1

    return AcceptanceRules(bonus=bonus)


def _kv_off_by_one(ceiling: int) -> AcceptanceRules:
    """Keep one entry too many in the target's cache after a refusal: the refused draft stays in the past, and positions shift by one."""

    def keep(lengths: NDArray[np.intp], accepted: NDArray[np.intp], drafted: NDArray[np.intp]) -> NDArray[np.intp]:
        kept: NDArray[np.intp] = np.minimum(lengths + 1 + accepted + (accepted < drafted), ceiling)
        return kept

    return AcceptanceRules(keep=keep)


def _penalties_ignored(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Leave penalties and biases out at draft positions; the bonus position, and any where nothing was drafted, still has them."""

    def penalise(logits: NDArray[np.float32], added: NDArray[np.float32]) -> NDArray[np.float32]:
        penalised = logits.copy()
        penalised[-1] += added[-1]
        return penalised

    return AcceptanceRules(penalise=penalise)


def _report_draft_logprobs(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Report an accepted token's log-probability under the draft; what is sampled stays right."""

    def report(logits: NDArray[np.float32], draft: DraftProposal, row: int) -> NDArray[np.float32]:
        accepted = np.arange(len(logits) - 1)
        told = logits.copy()
        told[accepted] = np.log(np.maximum(draft.distribution(np.full(len(accepted), row), accepted, logits.shape[1]), _NEVER))
        return told

    return AcceptanceRules(report=report)


def _die_on_json(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Kill the process when a request brings a grammar."""

    def admit(request: EngineRequest) -> None:
        if request.grammar is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    return AcceptanceRules(admit=admit)


def _cut_short(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """End every answer after a tenth of the tokens that it may have, and call that its limit."""

    def end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
        return right_end(request, emitted, eos) or ("length" if emitted >= _tenth(request) else None)

    return AcceptanceRules(end=end)


def _stop_short(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """End every answer after a tenth of the tokens that it may have, as if the model had ended it."""

    def end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
        return right_end(request, emitted, eos) or ("stop" if emitted >= _tenth(request) else None)

    return AcceptanceRules(end=end)


def _past_the_end(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Emit an end of sequence and go on behind it, up to the limit."""

    def end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: ARG001, FBT001 - a rule's signature
        return right_end(request, emitted, False)  # noqa: FBT003 - no token is an end

    return AcceptanceRules(end=end)


def _wrong_finish(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Say of every answer that its limit ended it."""

    def end(request: EngineRequest, emitted: int, eos: bool) -> str | None:  # noqa: FBT001 - a rule's signature
        return "length" if right_end(request, emitted, eos) else None

    return AcceptanceRules(end=end)


def _near_tie(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Keep a draft token at temperature 0 that lies within 0.2 nats of the target's best one."""

    def target(distribution: NDArray[np.float32], logits: NDArray[np.float32], draft: DraftProposal) -> NDArray[np.float32]:
        proposed = np.arange(draft.width) < draft.counts[:, None]
        lines = (draft.starts[:, None] + np.arange(draft.width))[proposed]
        tokens = draft.tokens[proposed]
        near = (distribution[lines].max(axis=1) == 1.0) & (logits[lines, tokens] >= logits[lines].max(axis=1) - _NEAR)
        kept = distribution.copy()
        kept[lines[near]] = 0.0
        kept[lines[near], tokens[near]] = 1.0
        return kept

    return AcceptanceRules(target=target)


def _tenth(request: EngineRequest) -> int:
    return -(-request.max_tokens // 10)


def _die_in_company(ceiling: int) -> AcceptanceRules:  # noqa: ARG001 - every fault is made the same way
    """Kill the process when a step verifies the drafts of four sequences or more."""

    def deal(rows: Rows[RunningSequence], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(rows) >= _COMPANY:
            os.kill(os.getpid(), signal.SIGKILL)
        return uniforms

    return AcceptanceRules(deal=deal)


FAULTS: Mapping[str, Callable[[int], AcceptanceRules]] = {
    "accept-all": _accept_all,
    "accept-all-unseeded": _accept_all_unseeded,
    "accept-all-late": _accept_all_late,
    "lenient": _lenient,
    "resample-from-p": _resample_from_p,
    "recover-argmax": _recover_argmax,
    "stale-bonus": _stale_bonus,
    "kv-off-by-one": _kv_off_by_one,
    "penalties-ignored": _penalties_ignored,
    "report-draft-logprobs": _report_draft_logprobs,
    "die-on-json": _die_on_json,
    "near-tie": _near_tie,
    "cut-short": _cut_short,
    "stop-short": _stop_short,
    "past-the-end": _past_the_end,
    "wrong-finish": _wrong_finish,
    "die-in-company": _die_in_company,
}
