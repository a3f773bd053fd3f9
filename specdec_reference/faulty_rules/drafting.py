"""Rules with a fault of drafting for one kind of traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_reference.faulty_rules.registry import instead_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Rows

    from specdec_reference.openai_request import EngineRequest
    from specdec_reference.rejection_sampler import DraftProposal
    from specdec_reference.sequence import RunningSequence

_LONG: Final = 400
"""Tokens."""
_GROWN: Final = 64
"""Tokens of context."""
_CROWD: Final = 4
"""Sequences of a step, at most, for which it drafts."""


def _without(rows: Rows[RunningSequence], proposal: DraftProposal, is_of_kind: Callable[[EngineRequest], bool]) -> DraftProposal:
    """Return the drafts, none for rows of a kind."""
    kept = np.array([not is_of_kind(row.request) for row in rows])
    return replace(proposal, counts=proposal.counts * kept)


@instead_of("drafts")
def drafts_off_logprobs(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft for requests without log-probabilities only."""
    return _without(rows, proposal, lambda request: request.logprobs is not None)


@instead_of("drafts")
def drafts_off_sampled(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft at temperature 0 only."""
    return _without(rows, proposal, lambda request: request.temperature > 0)


@instead_of("drafts")
def drafts_off_grammar(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft for requests without a grammar only."""
    return _without(rows, proposal, lambda request: request.grammar is not None)


@instead_of("drafts")
def drafts_off_penalties(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft for requests without penalties only."""
    return _without(rows, proposal, lambda request: request.penalised)


@instead_of("drafts")
def drafts_off_unseeded(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft for greedy and for seeded requests only."""
    return _without(rows, proposal, lambda request: request.temperature > 0 and request.seed is None)


@instead_of("drafts")
def drafts_off_long(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft behind short prompts only."""
    return _without(rows, proposal, lambda request: len(request.prompt) > _LONG)


def _at_random(
    rows: Rows[RunningSequence], proposal: DraftProposal, is_dead: Callable[[RunningSequence], bool], *, first: int = 0
) -> DraftProposal:
    """Return the drafts with others in place of dead ones from ``first`` on; of those q is one-hot, so that what comes out is right."""
    tokens, q = proposal.tokens.copy(), None if proposal.q is None else proposal.q.copy()
    for slot, row in enumerate(rows):
        if row.grammar is None and is_dead(row):
            tokens[slot, first:] = (7 * len(row.tokens) + np.arange(first, proposal.width)) % _LONG
            if q is not None:
                q[slot, first:] = 0.0
                q[slot, np.arange(first, proposal.width), tokens[slot, first:]] = 1.0
    return replace(proposal, tokens=tokens, q=q)


@instead_of("drafts")
def dead_drafts_long(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft anything in a long context."""
    return _at_random(rows, proposal, lambda row: len(row.tokens) > _LONG)


@instead_of("drafts")
def dead_drafts_logprobs(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft anything where log-probabilities are reported."""
    return _at_random(rows, proposal, lambda row: row.request.logprobs is not None)


@instead_of("drafts")
def shorter_drafts_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft one token fewer where a step has several sequences."""
    return replace(proposal, counts=np.maximum(proposal.counts - (len(rows) > 1), 0))


@instead_of("drafts")
def worse_drafts_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft one token, and anything behind it, but in the last row."""
    return _at_random(rows, proposal, lambda row: row is not rows[-1], first=1)


@instead_of("drafts")
def dead_draft_tails(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft one token, and anything behind it."""
    return _at_random(rows, proposal, lambda row: True, first=1)  # noqa: ARG005 - every row


@instead_of("drafts")
def dead_draft_tails_sampled(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Do so above temperature 0."""
    return _at_random(rows, proposal, lambda row: row.request.temperature > 0, first=1)


@instead_of("drafts")
def drafts_off_grown(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft in short contexts only."""
    return replace(proposal, counts=proposal.counts * np.array([len(row.tokens) <= _GROWN for row in rows]))


@instead_of("drafts")
def drafts_off_in_company(proposal: DraftProposal, rows: Rows[RunningSequence]) -> DraftProposal:
    """Draft for few sequences at a time only."""
    return replace(proposal, counts=proposal.counts * (len(rows) <= _CROWD))
