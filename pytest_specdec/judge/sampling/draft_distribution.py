"""The draft's distribution q, from the draft model served alone or, with prompt lookup, from the tokens themselves.

p is the baseline's distribution. Both are [N, K+1]: for N emitted tokens, over the baseline's K top tokens there and the remainder, all
other tokens together. A verify window is the tokens of one verify step. A slot is a token's place in its window: the draft slots come
first, then the bonus, the target's token after a fully accepted draft.
"""

# ruff: noqa: ARG002 - the sources of one protocol need different arguments of it
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_specdec.model.pair import DraftKind, DraftSampling
from pytest_specdec.stats.draft_distribution import Lookup, index_of, listed_outcomes, map_draft, one_hot
from pytest_specdec.stats.raw_distribution import raw_distribution
from pytest_specdec.stats.token_distribution import Bools, Floats, requested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Answer, Position, Score
    from pytest_specdec.stats.raw_distribution import RawDistribution
    from pytest_specdec.stats.token_distribution import Ints, Processing, TokenDistribution
    from pytest_specdec.stats.verify_slots import VerifySlots

__all__ = ["DraftSource", "DraftView", "PromptLookup", "ServedDraft", "UnknownDraft", "certain_view", "drafting", "drawn_view"]

TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftView:
    """The draft's distribution at N tokens."""

    q: Floats
    """[N, K+1]."""
    drafted: Bools
    """[N], True if ``q`` is known and a token was drafted here, or would be if a window began here."""
    accepted_if_emitted: Floats
    """[N], ``min(1, q(x)/p(x))`` of the emitted token: the chance that a correct server that emits it at a draft slot had accepted it."""
    chosen: Floats
    """[N], lower bound on ``q`` of the emitted token itself, adding up to one at most over all tokens."""
    accepted_if_drafted: Floats
    """[N], ``min(1, p(x)/q(x))`` of the emitted token: the chance of its acceptance had it been drafted."""
    listed: Bools
    """[N, K+1], outcomes at which ``q`` is exact."""
    q_raw: Floats
    """[N, K+1], ``q`` before the request's sampling parameters."""


class DraftSource(Protocol):
    """A drafter, with as much of its distribution as is known."""

    unknown: str
    """Reason that q is unknown; empty when it is known."""

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return the number of draft tokens of the window after ``start`` emitted tokens."""

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return the lengths of verify windows by the tokens of ``answer`` alone.

        A window is the tokens of one verify step; the prefill's comes first. Returns None if the lengths do not follow from the tokens.
        """

    def view(
        self, answers: Sequence[Answer], slots: VerifySlots, ids: Ints, distribution: TokenDistribution, processing: Processing
    ) -> DraftView | None:
        """Return the draft's distribution on the baseline's outcomes ``ids``.

        ``ids`` [N, K] are the baseline's top tokens at the N tokens of all answers, ``slots`` the places of these tokens in their verify
        windows, ``distribution`` the baseline's own, and ``processing`` the requests' sampling parameters. Returns None if the draft's
        distribution is unknown at every token.
        """


def drafting(captured: Captured) -> DraftSource:
    """Return the source of the draft's distribution in ``captured``.

    It is prompt lookup for an n-gram drafter, the scores of the draft model if it was served alone, and else an ``UnknownDraft`` with the
    reason. The set-up alone decides, never how well the server's answers agree with the draft: the distribution is for bets on these
    answers, and a bet must not depend on the tokens that it is on.
    """
    draft = captured.pair.variant.draft
    if draft.kind is DraftKind.NGRAM:
        if all(answer.prompt_token_ids for answer in captured.speculative.answers if answer.ok):
            return PromptLookup(draft)
        return UnknownDraft(draft.tokens, "the prompts' token ids are missing")
    if draft.kind is not DraftKind.MODEL:
        return UnknownDraft(draft.tokens, "its drafter cannot be served alone")
    scores = captured.draft_scores.get(captured.arm, ())
    if not scores:
        return UnknownDraft(draft.tokens, "the draft model was not served alone")
    return ServedDraft(draft, scores, captured.workload.top_tokens)


class UnknownDraft:
    """A drafter with an unknown distribution."""

    def __init__(self, k: int, unknown: str) -> None:
        self.unknown = unknown
        self._k = k

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return the configured number of draft tokens."""
        return self._k

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return None, since no window follows from the tokens alone."""
        return None

    def view(
        self,
        answers: Sequence[Answer],
        slots: VerifySlots,
        ids: Ints,
        distribution: TokenDistribution,
        processing: Processing,
    ) -> DraftView | None:
        """Return None, since the distribution is unknown at every token."""
        return None


class ServedDraft:
    """A draft model that was served alone and scored the same tokens."""

    unknown = ""

    def __init__(self, draft: Draft, scores: Sequence[Score], top_tokens: int) -> None:
        self._draft = draft
        self._scores: Mapping[tuple[str, int], Score] = {score.key: score for score in scores}
        self._top_tokens = top_tokens

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return the configured number of draft tokens."""
        return self._draft.tokens

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return None, since the tokens alone do not give the lengths of windows.

        A place in a window is known only as a probability: ``filter_chances`` in stats/verify_slots.py computes it from the result of
        :meth:`view`.
        """
        return None

    def view(
        self,
        answers: Sequence[Answer],
        slots: VerifySlots,
        ids: Ints,
        distribution: TokenDistribution,
        processing: Processing,
    ) -> DraftView | None:
        """Return the draft's distribution after the request's sampling parameters.

        It is one-hot at the draft model's best token if the server drafts greedily. Arguments are those of :class:`DraftSource`: ``ids``
        and ``distribution`` are the baseline's. Tokens of an answer that the draft model did not score count as not drafted. Returns None
        if it scored no answer.
        """
        scores = [self._positions(answer) for answer in answers]
        marks = [np.full(len(answer.choice.token_ids), positions is not None) for answer, positions in zip(answers, scores, strict=True)]
        # [N], tokens with a distribution by the draft model; ``draft`` has these tokens only.
        scored = np.concatenate(marks)
        if not scored.any():
            return None
        draft = raw_distribution([position for positions in scores if positions is not None for position in positions], self._top_tokens)
        if self._draft.sampling is DraftSampling.GREEDY:
            best = np.full(len(scored), -1, dtype=np.int64)  # -1 for no proposal
            best[scored] = draft.ids[:, 0]
            return certain_view(best, ids, distribution, _concatenate_tokens(answers))
        return drawn_view(draft, scored, ids, distribution, processing)

    def _positions(self, answer: Answer) -> tuple[Position, ...] | None:
        """Return the draft model's scores of an answer; None if missing, or of other tokens than the answer's."""
        score = self._scores.get(answer.key)
        fits = score is not None and tuple(position.token_id for position in score.positions) == answer.choice.token_ids
        return score.positions if score is not None and fits else None


def drawn_view(draft: RawDistribution, scored: Bools, ids: Ints, distribution: TokenDistribution, processing: Processing) -> DraftView:
    """Return the view of a drafter sampling from a known distribution.

    ``scored`` [N] marks the tokens at which it is known; the others count as not drafted. ``draft`` has it there, on the draft's own top
    tokens and before the request's sampling parameters. The view has it after these, on the baseline's top tokens ``ids`` [N, K] and their
    remainder. ``distribution`` is the baseline's.
    """
    # Values for tokens without a draft; those of the scored tokens are overwritten below.
    unmarked, zeros = np.zeros(distribution.p.shape, dtype=np.bool_), np.zeros(len(scored))
    view = DraftView(
        q=distribution.p.copy(),
        drafted=scored,
        accepted_if_emitted=zeros.copy(),
        chosen=zeros.copy(),
        accepted_if_drafted=zeros + 1.0,
        listed=unmarked,
        q_raw=distribution.raw.copy(),
    )
    processed = requested(draft, processing.at(scored))
    view.q[scored] = map_draft(processed.p, draft.ids, ids[scored], distribution.p[scored])
    view.q_raw[scored] = map_draft(processed.raw, draft.ids, ids[scored], distribution.raw[scored])
    # Of the emitted token itself. min(1, q/p) is q over the greater of both, min(1, p/q) is p over it.
    p_emitted, q_emitted = distribution.chosen[scored], processed.chosen
    greater = np.maximum(np.maximum(p_emitted, q_emitted), TINY)
    view.accepted_if_emitted[scored] = q_emitted / greater
    view.accepted_if_drafted[scored] = p_emitted / greater
    view.chosen[scored] = processed.chosen_floor  # a lower bound on q_emitted, which may be an estimate
    view.listed[scored] = listed_outcomes(draft.ids, ids[scored])
    return view


def certain_view(tokens: Ints, ids: Ints, distribution: TokenDistribution, emitted: Ints) -> DraftView:
    """Return the view of a drafter with one certain proposal per token.

    ``tokens`` [N] are the proposals, -1 for none, and ``emitted`` [N] the tokens that the server emitted in their places. ``ids`` [N, K]
    and ``distribution`` are the baseline's. Every q is one-hot at its proposal. A correct server that emits the proposed token at a draft
    slot has accepted it, and one that emits another token has rejected it: the chance of acceptance is 1 or 0.
    """
    q = one_hot(index_of(tokens, ids), distribution.p.shape[1])
    # The chance of every top token is known, 0 or 1. Of a proposal beyond them, only that it is in the remainder.
    listed = np.ones(q.shape, dtype=np.bool_)
    listed[:, -1] = False
    # q of the emitted token, 1 for the proposal and 0 for any other; so is min(1, q/p).
    q_emitted = (tokens == emitted).astype(np.float64)
    # min(1, p/q) of the emitted token. ``distribution.chosen`` is its p; at q = 0 the ratio is infinite.
    acceptance = np.where(tokens == emitted, distribution.chosen, 1.0)
    return DraftView(
        q=q, drafted=tokens >= 0, accepted_if_emitted=q_emitted, chosen=q_emitted, accepted_if_drafted=acceptance, listed=listed, q_raw=q
    )


def _concatenate_tokens(answers: Sequence[Answer]) -> Ints:
    return np.array([token for answer in answers for token in answer.choice.token_ids], dtype=np.int64)


class PromptLookup:
    """An n-gram drafter, whose draft follows from prompt and emitted tokens: one-hot if the lookup finds a match, else no draft."""

    unknown = ""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._proposals: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {}

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return the number of draft tokens, at most k, that lookup proposes after ``start`` emitted ones."""
        return len(self._propose(answer)[start][: self._draft.tokens])

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return the windows of a correct server with these drafts.

        A draft token is accepted as long as it equals the token that was emitted in its place. The last window is cut at the answer's end.
        """
        # The first window is the prefill's single token.
        emitted, start, lengths = answer.choice.token_ids, 1, [1]
        while start < len(emitted):
            draft = self._propose(answer)[start][: self._draft.tokens]
            # The draft tokens before the first that was not emitted, and the target's own token after them.
            length = 1 + next((at for at, token in enumerate(draft) if emitted[start + at : start + at + 1] != (token,)), len(draft))
            lengths.append(min(length, len(emitted) - start))
            start += length
        return tuple(lengths)

    def view(
        self,
        answers: Sequence[Answer],
        slots: VerifySlots,
        ids: Ints,
        distribution: TokenDistribution,
        processing: Processing,
    ) -> DraftView | None:
        """Return one-hot distributions at the draft tokens of the windows.

        ``slots`` has the place of each token in its window: the draft depends on where that began. ``ids`` and ``distribution`` are the
        baseline's. A lookup draws nothing, so that sampling parameters do not change its draft.
        """
        ends = np.cumsum([len(answer.choice.token_ids) for answer in answers])[:-1]
        slots_by_answer = np.split(slots.slot, ends)
        proposed = [self.propose_tokens(answer, places) for answer, places in zip(answers, slots_by_answer, strict=True)]
        return certain_view(np.concatenate(proposed), ids, distribution, _concatenate_tokens(answers))

    def propose_tokens(self, answer: Answer, slots: Ints) -> Ints:
        """Return the token proposed in place of each token of ``answer``, [T].

        ``slots`` [T] are the tokens' places in their verify windows: a token at place j is matched with draft token j of the window that
        began j tokens before. A token with an unknown place is treated as if a window began at it. A server drafts k tokens, and the lookup
        is asked for one more: it stands in the bonus slot, so that a server which emits it as its bonus can be recognised. The entry is -1
        if prompt lookup proposes nothing there.
        """
        proposals = self._propose(answer)  # by the index of the token that a window begins with
        tokens = []
        for index, place in enumerate(np.maximum(slots, 0).tolist()):
            draft = proposals[index - place]
            tokens.append(draft[place] if place < len(draft) else -1)
        return np.array(tokens, dtype=np.int64)

    def _propose(self, answer: Answer) -> tuple[tuple[int, ...], ...]:
        """Return the proposal before each emitted token, up to k + 1 tokens.

        The last of them is the guess at the bonus token. The proposals of an answer are computed once.
        """
        if answer.key not in self._proposals:
            lookup = Lookup(answer.prompt_token_ids, shortest=self._draft.ngram_min, longest=self._draft.ngram_max)
            proposals = []
            for token in answer.choice.token_ids:
                proposals.append(lookup.propose(self._draft.tokens + 1))
                lookup.append(token)
            self._proposals[answer.key] = tuple(proposals)
        return self._proposals[answer.key]
