"""Lawful variations: named ways in which an engine may differ from this one without being wrong. No suite may turn red on one.

Some replace a decision of the speculating server by another right one, as ``--variation`` plants it; others are options of both servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from pytest_specdec.errors import EngineError
from specdec_reference.rejection_sampler import VerifyWindows
from specdec_reference.request_fields import Refusal
from specdec_reference.sampler import Sampling, distributions, pick
from specdec_reference.wrappers import Moment, Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence as Rows

    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_Decision = TypeVar("_Decision", bound=Callable[..., Any])
_NOISE: Final = 1e-4
"""Nats: what another order of summation in half precision may do."""
_KINDS_OF_ANSWERS: Final = 3
_STEPS: Final = 32
"""Of so many steps, answers of the three kinds give up none, one and two. With 16 steps 9 % of the rejected draft tokens were right ones,
and judges allow 5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A way of being right."""

    does: str
    """One sentence, in the imperative."""
    wrappers: Mapping[str, Wrapper] = field(default_factory=dict)
    """By decision of EngineRules or by ``object.method``: what makes another right one of it."""
    engine: Mapping[str, JSON] = field(default_factory=dict)
    """Arguments of both servers."""
    mirrors: tuple[str, ...] = ()
    """Public reports of what only looks like a fault, as ``owner/repository#number``."""


VARIATIONS: dict[str, Variation] = {
    "rounded-scores": Variation(does="Round every log-probability to four decimals.", engine={"logprob-decimals": 4}),
    "no-usage": Variation(does="Leave the usage out of every answer.", engine={"usage": False}),
    "no-token-ids": Variation(does="Give answers as text, without token ids.", engine={"token-ids": False}),
    "coalesced-chunks": Variation(does="Send the tokens of up to three steps in one chunk.", engine={"chunk-steps": 3}),
    "split-chunks": Variation(does="Send each token of a step in a chunk of its own.", engine={"chunk-steps": 0}),
}


def wrappers(variation: str) -> Mapping[str, Wrapper]:
    """Return the wrappers of a variation.

    Empty for an empty name. Raises EngineError for an unknown one.
    """
    if variation and variation not in VARIATIONS:
        raise EngineError(what="no such variation", where="--variation", found=variation, expected=", ".join(VARIATIONS))
    return VARIATIONS[variation].wrappers if variation else {}


def _lawful(moment: Moment, method: str, *mirrors: str) -> Callable[[_Decision], _Decision]:
    """Return a decorator that registers a function as a variation of ``method``.

    It runs at ``moment`` of the method's calls, or instead of them. The variation's name is the function's own, in kebab-case; the first
    line of its docstring states its effect. ``mirrors`` are public reports of the same effect in other engines.
    """

    def register(lawful: _Decision) -> _Decision:
        does = (lawful.__doc__ or "").partition("\n")[0]
        VARIATIONS[lawful.__name__.replace("_", "-")] = Variation(
            does=does, wrappers={method: Wrapper(moment=moment, function=lawful)}, mirrors=mirrors
        )
        return lawful

    return register


@_lawful(Moment.INSTEAD, "verify")
def block_verification(p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]) -> VerifyWindows:
    """Verify a draft as a block instead of token by token.

    Sun et al. (2024), "Block Verification Accelerates Speculative Decoding", algorithm 2. With ``b_0 = 1``
    and ``b_i = min(1, b_{i-1} p(x_i)/q(x_i))``, the first i tokens are accepted with probability h_i, where
    ``h_k = b_k`` and, with ``s_i = sum max(b_i p - q, 0)`` at the position after them,
    ``h_i = s_i / (s_i + 1 - b_i)``. The longest accepted part stands; the token after it is drawn from ``max(b_i p - q, 0)``.
    ``p`` has a line for each draft token and one after the last, row after row.
    """
    n = len(draft.counts)
    accepted, last_distribution = np.zeros(n, np.intp), p[draft.starts + draft.counts].astype(np.float64)
    for row, (start, count) in enumerate(zip(draft.starts.tolist(), draft.counts.tolist(), strict=True)):
        length, residual = _accept_block(p[start : start + count + 1].astype(np.float64), draft, row, count, uniforms[row])
        accepted[row] = length
        if length < count:
            last_distribution[row] = residual
    return VerifyWindows(accepted=accepted, last=pick(last_distribution, uniforms[:, -1]))


def _accept_block(
    p: NDArray[np.float64], draft: DraftProposal, row: int, count: int, uniforms: NDArray[np.float64]
) -> tuple[int, NDArray[np.float64]]:
    """Return one row's accepted length and its residual distribution.

    Letters are the paper's. The length counts draft tokens. The distribution is that of the token after them, unnormalised; it is of
    use only to a row whose draft is not accepted whole.
    """
    positions = np.arange(count)
    q = draft.distribution(np.full(count, row), positions, p.shape[1])
    tokens = draft.tokens[row, :count]
    length, b, residual = 0, 1.0, np.maximum(p[0] - q[0], 0.0) if count else p[0]
    for i in range(1, count + 1):
        b = min(1.0, b * p[i - 1, tokens[i - 1]] / q[i - 1, tokens[i - 1]])
        if i < count:
            next_residual = np.maximum(b * p[i] - q[i], 0.0)
            s = next_residual.sum()
            h = s / (s + 1.0 - b) if s > 0.0 else 0.0
        else:
            next_residual, h = p[i], b
        if uniforms[i - 1] < h:  # the longest accepted part stands, so the last i decides
            length, residual = i, next_residual
    # p = q up to rounding leaves nothing; then p is the distribution in the limit.
    return length, residual if residual.any() else p[length]


@_lawful(Moment.INSTEAD, "verify")
def match_the_sample(p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]) -> VerifyWindows:
    """Verify by exact match with a token sampled from the target.

    The target's own token is drawn at every position. Draft tokens are accepted as long as they are equal to
    it.
    """
    n, width = draft.tokens.shape
    accepted, all_equal = np.zeros(n, np.intp), np.ones(n, np.bool_)
    for i in range(width):
        sample = pick(p[np.minimum(draft.starts + i, len(p) - 1)], uniforms[:, i])  # a row beyond its draft is unequal, whatever it draws
        all_equal &= (i < draft.counts) & (sample == draft.tokens[:, i])
        accepted += all_equal
    # The token at a rejected position is the very sample that the draft did not match, so the same number draws it.
    draw_columns = np.where(accepted < draft.counts, np.minimum(accepted, width), width)
    return VerifyWindows(accepted=accepted, last=pick(p[draft.starts + accepted], uniforms[np.arange(n), draw_columns]))


@_lawful(Moment.AFTER, "numbers_to_verify")
def other_numbers(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Use other random numbers than the baseline under the same seed."""
    return (uniforms + 0.5) % 1.0


@_lawful(Moment.INSTEAD, "distribute", "vllm-project/vllm#5313", "mlc-ai/mlc-llm#2167")
def noisy_logits(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float32]:
    """Verify by logits with an error of 1e-4 nats.

    Near-ties may fall on the other side.
    """
    finite = np.isfinite(logits)
    noise = np.sin(np.where(finite, logits, 0.0).astype(np.float64) * 1e6) * _NOISE  # their own low digits are as good as random
    return distributions(np.where(finite, logits + noise, logits).astype(np.float32), sampling)


@_lawful(Moment.AFTER, "engine.parse", "vllm-project/vllm#42744")
def refused_bias(request: EngineRequest) -> EngineRequest:
    """Refuse a logit_bias with a clean 400."""
    if request.logit_bias:
        raise Refusal(message="logit_bias is not supported with speculative decoding", param="logit_bias")
    return request


@_lawful(Moment.AFTER, "drafter.propose", "z-lab/dflash#74")
def best_drafts(draft: DraftProposal) -> DraftProposal:
    """Draft the draft model's best token, at any temperature.

    The drawn tokens of ``draft`` are replaced by the most probable ones, to be verified as certain. What the draft model and
    the grammar computed for later positions is right only after the drawn tokens. So a draft ends with the first best
    token that differs from the drawn one.
    """
    if draft.q is None:
        return draft
    best = draft.q.argmax(axis=2)
    as_drawn = np.logical_and.accumulate(best == draft.tokens, axis=1).sum(axis=1)
    return replace(draft, tokens=best, counts=np.minimum(draft.counts, as_drawn + 1), q=None)


@_lawful(Moment.AFTER, "verify", "vllm-project/vllm#53436")
def uneven_steps(
    windows: VerifyWindows, rows: Rows[RunningSequence], p: NDArray[np.float32], draft: DraftProposal, uniforms: NDArray[np.float64]
) -> VerifyWindows:
    """Give up a draft now and then, unevenly among the answers.

    By its number an answer gives up no draft, or on average one or two in 32 steps. All answers stay right; those that give up drafts
    take more steps. The same seed gives up the same drafts again.
    """
    answer_numbers = [row.arrival if row.request.seed is None else row.request.seed + row.index for row in rows]
    steps = [len(row.drafted) for row in rows]
    given_up = np.array(
        [hash((number, step)) % _STEPS < number % _KINDS_OF_ANSWERS for number, step in zip(answer_numbers, steps, strict=True)]
    )
    # A step without a draft emits one token, drawn from the target's distribution at the first position.
    undrafted_tokens = pick(p[draft.starts], uniforms[:, -1])
    return VerifyWindows(accepted=np.where(given_up, 0, windows.accepted), last=np.where(given_up, undrafted_tokens, windows.last))
