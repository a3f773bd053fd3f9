"""Planted faults of drafting for one kind of traffic, for suites of speed to detect: answers are right, but late."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, fault, in_

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Rows

    from specdec_reference.faults.planted import Expected
    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_LONG: Final = 400
"""Tokens."""
_LATE: Final = 200
"""Tokens of an answer."""
_GROWN: Final = 64
"""Tokens of context."""
_CROWD: Final = 4
"""Sequences of a step, at most, for which it drafts."""
_MAY: dict[Family, str] = {
    family: "a workload of that kind alone has nothing drafted in it" for family in Family if family is not Family.SPEED
}


def _remove_drafts(rows: Rows[RunningSequence], proposal: DraftProposal, is_of_kind: Callable[[EngineRequest], bool]) -> DraftProposal:
    """Return the proposal without the drafts of requests of a kind."""
    has_draft = np.array([not is_of_kind(row.request) for row in rows])
    return replace(proposal, counts=proposal.counts * has_draft)


def _expect_speed_red(words: str) -> Mapping[Place, Expected]:
    """Return the expectation of a red speed verdict."""
    return in_(Place.REFERENCE, may=_MAY, speed=words)


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="drafting is off for requests with log-probabilities")
    # Answers of vLLM do not tell drafts from rejected ones.
    | in_(Place.VLLM, may=_MAY, speed="no draft is accepted for requests with log-probabilities"),
)
def drafts_off_logprobs(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for requests that report log-probabilities."""
    return _remove_drafts(rows, proposal, lambda request: request.logprobs is not None)


@fault(after="drafter.propose", expected=_expect_speed_red("drafting is off for requests above temperature 0"))
def drafts_off_sampled(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing above temperature 0."""
    return _remove_drafts(rows, proposal, lambda request: request.temperature > 0)


@fault(after="drafter.propose", expected=_expect_speed_red("drafting is off for requests with a grammar"))
def drafts_off_grammar(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for requests with a grammar."""
    return _remove_drafts(rows, proposal, lambda request: request.grammar is not None)


@fault(after="drafter.propose", expected=_expect_speed_red("drafting is off for requests with penalties"))
def drafts_off_penalties(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for requests with penalties."""
    return _remove_drafts(rows, proposal, lambda request: request.penalised)


@fault(after="drafter.propose", expected=_expect_speed_red("drafting is off for requests that draw without a seed"))
def drafts_off_unseeded(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for requests that draw without a seed."""
    return _remove_drafts(rows, proposal, lambda request: request.temperature > 0 and request.seed is None)


@fault(after="drafter.propose", expected=_expect_speed_red("drafting is off for prompts of more than"))
def drafts_off_long(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for prompts of more than 400 tokens."""
    return _remove_drafts(rows, proposal, lambda request: len(request.prompt) > _LONG)


def draft_at_random(
    rows: Rows[RunningSequence], proposal: DraftProposal, is_dead: Callable[[RunningSequence], bool], *, first: int = 0
) -> DraftProposal:
    """Return drafts with random-looking tokens in the rows marked by ``is_dead``.

    Tokens before position ``first`` stay, and so do rows with a grammar, which has to permit every draft token. The q of the
    new tokens is one-hot, as if certain: verification rejects nearly all of them and still emits the right tokens.
    """
    tokens, q = proposal.tokens.copy(), None if proposal.q is None else proposal.q.copy()
    for slot, row in enumerate(rows):
        if row.grammar is None and is_dead(row):
            # Ids that change from step to step; the modulus, any number at hand, keeps them within every vocabulary.
            tokens[slot, first:] = (7 * len(row.tokens) + np.arange(first, proposal.width)) % _LONG
            if q is not None:
                q[slot, first:] = 0.0
                q[slot, np.arange(first, proposal.width), tokens[slot, first:]] = 1.0
    return replace(proposal, tokens=tokens, q=q)


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for prompts of more than"))
def dead_drafts_long(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random after 400 tokens of context."""
    return draft_at_random(rows, proposal, lambda row: len(row.tokens) > _LONG)


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=_MAY, speed="drafts get worse in the course of an answer"))
def dead_drafts_late(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random after 200 tokens of an answer."""
    return draft_at_random(rows, proposal, lambda row: len(row.emitted) > _LATE)


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=_MAY, speed="no draft is accepted for requests with log-probabilities"))
def dead_drafts_logprobs(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random for requests that report log-probabilities."""
    return draft_at_random(rows, proposal, lambda row: row.request.logprobs is not None)


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="fewer tokens are drafted for requests with more than"),
    alone=True,
)
def shorter_drafts_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts one token fewer in steps of two sequences or more."""
    return replace(proposal, counts=np.maximum(proposal.counts - (len(rows) > 1), 0))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="the drafter falls behind with more than"),
    alone=True,
    mirrors=("vllm-project/vllm#57053",),
)
def worse_drafts_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts one token, and anything after it, for every row of a batch but the last."""
    return draft_at_random(rows, proposal, lambda row: row is not rows[-1], first=1)


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=_MAY, speed="draft tokens after the first are never accepted"))
def dead_draft_tails(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random after the first of every draft."""
    return draft_at_random(rows, proposal, lambda row: True, first=1)  # noqa: ARG005 - every row


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="only the first draft token is accepted for requests above temperature 0"),
)
def dead_draft_tails_sampled(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts tokens at random after the first of every draft above temperature 0."""
    return draft_at_random(rows, proposal, lambda row: row.request.temperature > 0, first=1)


@fault(after="drafter.propose", expected=in_(Place.REFERENCE, may=_MAY, speed="drafting ends beyond 64 tokens of context"))
def drafts_off_grown(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing beyond 64 tokens of context."""
    return replace(proposal, counts=proposal.counts * np.array([len(row.tokens) <= _GROWN for row in rows]))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="drafting is off for requests with more than"),
    alone=True,
    mirrors=("vllm-project/vllm#49548",),
)
def drafts_off_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing in steps of more than four sequences."""
    return replace(proposal, counts=proposal.counts * (len(rows) <= _CROWD))


@fault(
    after="drafter.propose",
    expected=in_(
        Place.REFERENCE,
        may=dict.fromkeys(set(Family) - {Family.GREEDY}, "what it asks one at a time has nothing drafted in it"),
        greedy="nothing drafted",
    ),
    mirrors=("xLLM-AI/xllm#2255",),
)
def drafts_off_alone(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Throws every draft away in steps of fewer than four sequences."""
    return replace(proposal, counts=proposal.counts * (len(rows) >= _CROWD))


@fault(
    after="drafter.propose",
    expected=in_(Place.REFERENCE, may=_MAY, speed="drafting is off for requests that reason"),
    reasons=True,
    mirrors=("raullenchai/Rapid-MLX#3052",),
)
def drafts_off_reasoning(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Drafts nothing for requests that reason before they answer."""
    return replace(proposal, counts=proposal.counts * np.array([row.reasoning is None for row in rows]))
