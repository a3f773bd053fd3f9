"""Planted faults of sampling parameters dropped, or applied at some positions only, for suites to detect.

Each wraps the rule or method named by its decorator. The rule ``penalise`` shapes one row's logits, (len(drafted) + 1, vocabulary), a line
for each draft token and the bonus token's last. ``state`` has the row's request and, as ``counted``, its emitted tokens.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, fault, in_
from specdec_reference.sampler import distributions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sampler import PenaltyState, Sampling

    Logits = NDArray[np.float32]

_FED: WeakKeyDictionary[PenaltyState, tuple[int, list[int]]] = WeakKeyDictionary()
"""By state: tokens that it had counted at the last step, and those of them that the penalties were fed."""
_STEPS: WeakKeyDictionary[PenaltyState, int] = WeakKeyDictionary()
_REJECTED: WeakKeyDictionary[PenaltyState, tuple[int, list[int], list[int]]] = WeakKeyDictionary()
"""By state: tokens counted at the last step, that step's draft, and all rejected draft tokens before it."""
_DRAWN: Final = {Family.SAMPLING: "it draws from another distribution than its requests ask for"}
_CUT_TOO: Final = {Family.PARAMETERS: "its requests set top_p too"}
_WIDER: Final = 0.08
"""Mass that a nucleus has too much."""


def _copy_state(state: PenaltyState, request: EngineRequest, counted: Sequence[int] | None = None) -> PenaltyState:
    """Return a copy of ``state`` for another request.

    It has counted the tokens ``counted`` where they are given, else those of ``state``.
    """
    state_copy = copy(state)
    state_copy.request = request
    state_copy.counted = list(state.counted if counted is None else counted)
    return state_copy


def _shape_drafts(state: PenaltyState, request: EngineRequest, logits: Logits, drafted: Sequence[int]) -> Logits:
    """Return logits shaped by ``request`` at draft positions, by the state's own request at the last."""
    shaped = _copy_state(state, request).shape_logits(logits, drafted)
    shaped[-1] = state.shape_logits(logits, drafted)[-1]
    return shaped


@fault(
    instead_of="penalise",
    expected=in_(Place.REFERENCE, may=TOKENS_WRONG, parameters="penalties or biases are ignored at draft positions")
    | in_(Place.VLLM, parameters="penalties or biases are ignored"),
    mirrors=("vllm-project/vllm#18902",),
)
def penalties_ignored(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Leaves penalties and biases out at draft positions; the bonus position still has them."""
    shaped = logits.copy()
    shaped[-1] = state.shape_logits(logits, drafted)[-1]
    return shaped


@fault(
    after="engine.parse", expected=in_(Place.REFERENCE, parameters="penalties or biases are ignored"), mirrors=("vllm-project/vllm#18902",)
)
def penalties_dropped(request: EngineRequest) -> EngineRequest:
    """Drops presence, frequency and repetition penalties of every request."""
    return replace(request, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)


@fault(
    instead_of="penalise",
    expected=in_(Place.REFERENCE, parameters="_penalty is ignored|_penalty are ignored|penalties or biases are ignored"),
    mirrors=("sgl-project/sglang#33643",),
)
def penalties_fed_once_a_step(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Counts the last token of each verify step for the penalties, and none of the others."""
    counted_before, fed = _FED.get(state, (0, []))  # as the last step left them
    fed = [*fed, *state.counted[counted_before:][-1:]]  # the last token alone of those emitted since
    _FED[state] = (len(state.counted), fed)
    return _copy_state(state, state.request, fed).shape_logits(logits, drafted)


@fault(
    instead_of="penalise",
    expected=in_(Place.REFERENCE, parameters="_penalty is ignored|_penalty are ignored|penalties or biases are ignored"),
    mirrors=("sgl-project/sglang#33643",),
)
def penalties_weaken(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Divides presence and frequency penalties by the mean number of tokens a step."""
    steps = _STEPS[state] = _STEPS.get(state, 0) + 1
    weight = steps / max(steps, len(state.counted) + 1)  # steps over tokens: the mean's inverse
    original = state.request
    request = replace(original, presence_penalty=weight * original.presence_penalty, frequency_penalty=weight * original.frequency_penalty)
    return _copy_state(state, request).shape_logits(logits, drafted)


@fault(instead_of="penalise", expected=in_(Place.REFERENCE, parameters="frequency_penalty"))
def frequency_twice(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Takes the frequency penalty twice at draft positions."""
    return _shape_drafts(state, replace(state.request, frequency_penalty=2.0 * state.request.frequency_penalty), logits, drafted)


@fault(
    after="engine.parse", expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"), mirrors=("vllm-project/vllm#18902",)
)
def repetition_dropped(request: EngineRequest) -> EngineRequest:
    """Drops the repetition penalty of every request."""
    return replace(request, repetition_penalty=1.0)


@fault(instead_of="penalise", expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"))
def repetition_ignored_at_drafts(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Leaves the repetition penalty out at draft positions."""
    return _shape_drafts(state, replace(state.request, repetition_penalty=1.0), logits, drafted)


@fault(instead_of="penalise", expected=in_(Place.REFERENCE, parameters="repetition_penalty is ignored"))
def repetition_counts_rejected(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Penalises the repetition of draft tokens that were rejected and never emitted."""
    counted_before, draft, rejected = _REJECTED.get(state, (0, [], []))  # as the last step left them
    accepted = len(state.counted) - counted_before - 1  # a step counts its accepted draft tokens and one more
    rejected = [*rejected, *draft[max(accepted, 0) :]]
    _REJECTED[state] = (len(state.counted), list(drafted), rejected)
    # Rejected tokens are added to the prompt: of all penalties, repetition alone looks at it.
    return _copy_state(state, replace(state.request, prompt=(*state.request.prompt, *rejected))).shape_logits(logits, drafted)


def _mark_drafts(lines: int, draft: DraftProposal) -> NDArray[np.bool_]:
    """Return which lines of all windows are draft positions."""
    marked = np.ones(lines, np.bool_)
    marked[draft.starts + draft.counts] = False
    return marked


@fault(
    instead_of="penalise",
    expected=in_(Place.REFERENCE, parameters="logit_bias is ignored at draft positions"),
    mirrors=("vllm-project/vllm#42744",),
)
def logit_bias_ignored_at_drafts(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Leaves logit biases out at draft positions."""
    return _shape_drafts(state, replace(state.request, logit_bias=()), logits, drafted)


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="logit_bias is ignored"), mirrors=("vllm-project/vllm#42744",))
def logit_bias_dropped(request: EngineRequest) -> EngineRequest:
    """Drops the logit biases of every request."""
    return replace(request, logit_bias=())


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="bad_words is ignored"), mirrors=("vllm-project/vllm#18902",))
def bad_words_dropped(request: EngineRequest) -> EngineRequest:
    """Drops the banned words of every request."""
    return replace(request, bad_words=())


@fault(
    instead_of="penalise",
    expected=in_(Place.REFERENCE, Place.VLLM, parameters="bad_words is ignored"),
    mirrors=("vllm-project/vllm#18902",),
)
def bad_words_at_first_token(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Bans words at the first position of a verify window only."""
    shaped = _copy_state(state, replace(state.request, bad_words=())).shape_logits(logits, drafted)
    shaped[0] = state.shape_logits(logits, drafted)[0]
    return shaped


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="allowed_token_ids is ignored"), mirrors=("vllm-project/vllm#18902",))
def allowed_ids_dropped(request: EngineRequest) -> EngineRequest:
    """Drops the allowed token ids of every request."""
    return replace(request, allowed_token_ids=None)


@fault(instead_of="penalise", expected=in_(Place.REFERENCE, parameters="allowed_token_ids is ignored"))
def allowed_ids_not_at_bonus(logits: Logits, state: PenaltyState, drafted: Sequence[int]) -> Logits:
    """Allows every token at the bonus position, whatever ids the request allows."""
    shaped = state.shape_logits(logits, drafted)
    if drafted:  # without a draft the last position is no bonus
        shaped[-1] = _copy_state(state, replace(state.request, allowed_token_ids=None)).shape_logits(logits, drafted)[-1]
    return shaped


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="min_p is ignored"), mirrors=("vllm-project/vllm#42744",))
def min_p_dropped(request: EngineRequest) -> EngineRequest:
    """Drops the min_p of every request."""
    return replace(request, min_p=0.0)


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, parameters="min_p is ignored"), mirrors=("vllm-project/vllm#42744",))
def min_p_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Cuts nothing by min_p at draft positions."""
    return distributions(logits, replace(sampling, min_p=np.where(_mark_drafts(len(logits), draft), 0.0, sampling.min_p)))


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="min_p is answered with a server error"))
def min_p_fails(request: EngineRequest) -> EngineRequest:
    """Answers every request with min_p with a 500."""
    if request.min_p:
        msg = "min_p with speculative decoding"
        raise NotImplementedError(msg)
    return request


@fault(after="engine.parse", expected=in_(Place.REFERENCE, parameters="top_k is ignored"))
def top_k_without_temperature(request: EngineRequest, body: Mapping[str, JSON]) -> EngineRequest:
    """Drops the top_k of requests that leave out the temperature."""
    return request if body.get("temperature") is not None else replace(request, top_k=0)


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, may=_DRAWN, parameters="top_p is ignored"))
def top_p_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Cuts nothing by top_p at draft positions."""
    return distributions(logits, replace(sampling, top_p=np.where(_mark_drafts(len(logits), draft), 1.0, sampling.top_p)))


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, may=_CUT_TOO, sampling="temperature or truncation"))
def top_p_squared(logits: Logits, sampling: Sampling) -> Logits:
    """Applies top_p twice, so that a nucleus of 0.9 holds 0.81 of the mass."""
    return distributions(logits, replace(sampling, top_p=sampling.top_p**2))


@fault(
    instead_of="distribute",
    expected=in_(Place.REFERENCE, may=_CUT_TOO, sampling="temperature or truncation|ratio without temperature, top-k and top-p"),
)
def top_p_wider(logits: Logits, sampling: Sampling) -> Logits:
    """Keeps 0.08 of mass more than top_p asks for."""
    return distributions(logits, replace(sampling, top_p=np.minimum(sampling.top_p + _WIDER, 1.0)))


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, may=_DRAWN, parameters="top_p is wrong at temperatures other than 1"))
def top_p_before_temperature(logits: Logits, sampling: Sampling) -> Logits:
    """Finds the nucleus of top_p before the temperature is applied."""
    is_sampled = sampling.temperature > 0
    nucleus = distributions(logits, replace(sampling, temperature=np.ones_like(sampling.temperature)))
    nucleus_logits = np.where((nucleus > 0) | ~is_sampled[:, None], logits, np.float32(-np.inf))  # greedy lines stay whole
    return distributions(nucleus_logits, replace(sampling, top_p=np.ones_like(sampling.top_p)))  # top_p is applied already


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, may=_DRAWN, parameters="wrong at temperatures other than 1"))
def temperature_twice(logits: Logits, sampling: Sampling) -> Logits:
    """Divides the logits by the temperature twice."""
    return distributions(logits, replace(sampling, temperature=sampling.temperature**2))


@fault(instead_of="distribute", expected=in_(Place.REFERENCE, Place.VLLM, may=_DRAWN, parameters="temperature"))
def temperature_ignored_at_drafts(logits: Logits, sampling: Sampling, draft: DraftProposal) -> Logits:
    """Draws at temperature 1 at the draft positions of sampled requests."""
    is_sampled_draft = _mark_drafts(len(logits), draft) & (sampling.temperature > 0)
    return distributions(logits, replace(sampling, temperature=np.where(is_sampled_draft, np.float32(1.0), sampling.temperature)))
