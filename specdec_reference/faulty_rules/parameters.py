"""Rules with a fault of sampling parameters."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of
from specdec_reference.sampler import distributions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import PenaltyState, Sampling

    Logits = NDArray[np.float32]


def _asking(state: PenaltyState, request: EngineRequest, counted: Sequence[int] | None = None) -> PenaltyState:
    """Return a state like ``state`` of another request, which has counted other tokens where they are given."""
    other = copy(state)
    other.request = request
    other.counted = list(state.counted if counted is None else counted)
    return other


def _at_drafts(state: PenaltyState, request: EngineRequest, logits: Logits, drafted: Sequence[int]) -> Logits:
    """Return logits shaped by ``request`` at draft positions, and rightly behind them."""
    shaped = _asking(state, request).shaped(logits, drafted)
    shaped[-1] = state.shaped(logits, drafted)[-1]
    return shaped


@instead_of("penalise")
def penalties_ignored(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Shape the last position only: the bonus, or the next token where nothing was drafted."""
    shaped = logits.copy()
    shaped[-1] = state.shaped(logits, drafted)[-1]
    return shaped


@instead_of("penalise")
def logit_bias_ignored_at_drafts(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Leave the biases out at draft positions."""
    return _at_drafts(state, replace(state.request, logit_bias=()), logits, drafted)


@instead_of("penalise")
def repetition_ignored_at_drafts(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Leave the repetition penalty out at draft positions."""
    return _at_drafts(state, replace(state.request, repetition_penalty=1.0), logits, drafted)


@instead_of("penalise")
def bad_words_at_first_token(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Ban words at the first position of a window only."""
    shaped = _asking(state, replace(state.request, bad_words=())).shaped(logits, drafted)
    shaped[0] = state.shaped(logits, drafted)[0]
    return shaped


@instead_of("penalise")
def allowed_ids_not_at_bonus(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Allow every token at the bonus position."""
    shaped = state.shaped(logits, drafted)
    if drafted:
        shaped[-1] = _asking(state, replace(state.request, allowed_token_ids=None)).shaped(logits, drafted)[-1]
    return shaped


@instead_of("penalise")
def frequency_twice(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Take the frequency penalty twice at draft positions."""
    return _at_drafts(state, replace(state.request, frequency_penalty=2.0 * state.request.frequency_penalty), logits, drafted)


_FED: WeakKeyDictionary[PenaltyState, tuple[int, list[int]]] = WeakKeyDictionary()
"""By state: tokens that it had counted at the last step, and those of them that the penalties were fed."""


@instead_of("penalise")
def penalties_fed_once_a_step(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Count the last token of each window only."""
    before, fed = _FED.get(state, (0, []))
    fed = [*fed, *state.counted[before:][-1:]]
    _FED[state] = (len(state.counted), fed)
    return _asking(state, state.request, fed).shaped(logits, drafted)


_STEPS: WeakKeyDictionary[PenaltyState, int] = WeakKeyDictionary()


@instead_of("penalise")
def penalties_weaken(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Divide the penalties by the mean tokens of a step so far."""
    steps = _STEPS[state] = _STEPS.get(state, 0) + 1
    weak = steps / max(steps, len(state.counted) + 1)
    asked = state.request
    request = replace(asked, presence_penalty=weak * asked.presence_penalty, frequency_penalty=weak * asked.frequency_penalty)
    return _asking(state, request).shaped(logits, drafted)


_REJECTED: WeakKeyDictionary[PenaltyState, tuple[int, list[int], list[int]]] = WeakKeyDictionary()
"""By state: tokens counted at the last step, that step's draft, and all rejected draft tokens before it."""


@instead_of("penalise")
def repetition_counts_rejected(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Take every rejected draft token for one that is there already."""
    before, draft, rejected = _REJECTED.get(state, (0, [], []))
    kept = len(state.counted) - before - 1
    rejected = [*rejected, *draft[max(kept, 0) :]]
    _REJECTED[state] = (len(state.counted), list(drafted), rejected)
    return _asking(state, replace(state.request, prompt=(*state.request.prompt, *rejected))).shaped(logits, drafted)


def _drafts(lines: int, draft: DraftProposal) -> NDArray[np.bool_]:
    """Return which lines of all windows are draft positions."""
    marked = np.ones(lines, np.bool_)
    marked[draft.starts + draft.counts] = False
    return marked


@instead_of("distribute")
def min_p_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Cut nothing by min-p at draft positions."""
    return distributions(logits, replace(sampling, min_p=np.where(_drafts(len(logits), draft), 0.0, sampling.min_p)))


@instead_of("distribute")
def top_p_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Cut nothing by top-p at draft positions."""
    return distributions(logits, replace(sampling, top_p=np.where(_drafts(len(logits), draft), 1.0, sampling.top_p)))


@instead_of("distribute")
def temperature_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Draw at temperature 1 at draft positions, but for greedy requests."""
    warm = _drafts(len(logits), draft) & (sampling.temperature > 0)
    return distributions(logits, replace(sampling, temperature=np.where(warm, np.float32(1.0), sampling.temperature)))


@instead_of("distribute")
def temperature_twice(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:  # noqa: ARG001 - a rule's signature
    """Divide by the temperature, and again."""
    return distributions(logits, replace(sampling, temperature=sampling.temperature**2))


@instead_of("distribute")
def top_p_before_temperature(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:  # noqa: ARG001 - a rule's signature
    """Find the nucleus at temperature 1."""
    warm = sampling.temperature > 0
    nucleus = distributions(logits, replace(sampling, temperature=np.ones_like(sampling.temperature)))
    inside = np.where((nucleus > 0) | ~warm[:, None], logits, np.float32(-np.inf))
    return distributions(inside, replace(sampling, top_p=np.ones_like(sampling.top_p)))


@instead_of("read")
def penalties_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Ask for no penalty."""
    return replace(request, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)


@instead_of("read")
def repetition_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Ask for no repetition penalty."""
    return replace(request, repetition_penalty=1.0)


@instead_of("read")
def logit_bias_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Ask for no bias."""
    return replace(request, logit_bias=())


@instead_of("read")
def bad_words_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Ban no word."""
    return replace(request, bad_words=())


@instead_of("read")
def allowed_ids_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Allow every token."""
    return replace(request, allowed_token_ids=None)


@instead_of("read")
def min_p_dropped(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Ask for no min-p."""
    return replace(request, min_p=0.0)


@instead_of("read")
def top_k_without_temperature(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:
    """Leave top-k out where the request leaves out the temperature."""
    return request if body.get("temperature") is not None else replace(request, top_k=0)


@instead_of("read")
def min_p_fails(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:  # noqa: ARG001 - a rule's signature
    """Raise where min-p is asked for, which the server answers with a 500."""
    if request.min_p:
        msg = "min_p with speculative decoding"
        raise NotImplementedError(msg)
    return request
