"""The draft's distribution q, from the draft model served alone or from the tokens themselves."""

# ruff: noqa: ARG002 - the sources of one protocol need different arguments of it
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_specdec.model.pair import DraftKind, DraftSampling
from pytest_specdec.stats.draft_distribution import Lookup, index_of, listed_outcomes, map_draft, one_hot
from pytest_specdec.stats.token_distribution import Bools, Floats, raw_distribution, requested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.transcript import Answer, Position, Score
    from pytest_specdec.stats.token_distribution import Ints, Processing, RawDistribution, TokenDistribution
    from pytest_specdec.stats.verify_slots import VerifySlots

__all__ = ["DraftSource", "DraftView", "PromptLookup", "ServedDraft", "UnknownDraft", "certain", "drafting", "drawn"]

TINY = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftView:
    """The draft's distribution at N tokens."""

    q: Floats
    """[N, K+1]."""
    drafted: Bools
    """[N], where it is known and a draft was made, or would be if a window began here."""
    accepted_if_emitted: Floats
    """[N], ``min(1, q(x)/p(x))`` of the emitted token: the chance that a correct server that emits it at a draft slot had accepted it."""
    chosen: Floats
    """[N], lower bound on ``q`` of the emitted token itself, adding up to one at most over all tokens."""
    accepted_if_drafted: Floats
    """[N], ``min(1, p(x)/q(x))`` of the emitted token: the chance of its acceptance had it been drafted."""
    listed: Bools
    """[N, K+1], outcomes at which ``q`` is exact."""
    q_raw: Floats
    """[N, K+1], ``q`` where nothing that the request asks for is done."""


class DraftSource(Protocol):
    """A drafter as far as it is known."""

    unknown: str
    """Reason that q is unknown; empty when it is known."""

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return how many tokens were drafted for the window that begins after ``start`` emitted tokens."""

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return the window lengths that follow from the tokens of ``answer`` alone, the prefill's first; None where they do not."""

    def view(
        self, answers: Sequence[Answer], slots: VerifySlots, ids: Ints, distribution: TokenDistribution, processing: Processing
    ) -> DraftView | None:
        """Return the draft's distribution on the baseline's outcomes ``ids``; None where it is not known at all."""


def drafting(captured: Captured) -> DraftSource:
    """Return what ``captured`` knows of the draft. Decided by the set-up alone, never by how well the server's answers agree with it."""
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
        """Nothing follows from the tokens."""
        return None

    def view(
        self,
        answers: Sequence[Answer],
        slots: VerifySlots,
        ids: Ints,
        distribution: TokenDistribution,
        processing: Processing,
    ) -> DraftView | None:
        """Nothing is known."""
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
        """Left to the filter over the draft's distribution (stats/chances.py), which is sure where the draft is."""
        return None

    def view(
        self,
        answers: Sequence[Answer],
        slots: VerifySlots,
        ids: Ints,
        distribution: TokenDistribution,
        processing: Processing,
    ) -> DraftView | None:
        """Return the draft's distribution processed as the request asks, or one-hot at its best token where it drafts greedily.

        Tokens of an answer that the draft did not score count as not drafted.
        """
        rows = [self._positions(answer) for answer in answers]
        scored = np.concatenate([np.full(len(answer.choice.token_ids), row is not None) for answer, row in zip(answers, rows, strict=True)])
        if not scored.any():
            return None
        known = raw_distribution([position for row in rows if row is not None for position in row], self._top_tokens)
        if self._draft.sampling is DraftSampling.GREEDY:
            best = np.full(len(scored), -1, dtype=np.int64)
            best[scored] = known.ids[:, 0]
            return certain(best, ids, distribution, _concatenate_tokens(answers))
        return drawn(known, scored, ids, distribution, processing)

    def _positions(self, answer: Answer) -> tuple[Position, ...] | None:
        score = self._scores.get(answer.key)
        fits = score is not None and tuple(position.token_id for position in score.positions) == answer.choice.token_ids
        return score.positions if score is not None and fits else None


def drawn(known: RawDistribution, scored: Bools, ids: Ints, distribution: TokenDistribution, processing: Processing) -> DraftView:
    """Return the view of a drafter that draws from the distribution that is ``known`` at the ``scored`` tokens [N], processed as asked."""
    none, nothing = np.zeros(distribution.p.shape, dtype=np.bool_), np.zeros(len(scored))
    view = DraftView(
        q=distribution.p.copy(),
        drafted=scored,
        accepted_if_emitted=nothing.copy(),
        chosen=nothing.copy(),
        accepted_if_drafted=nothing + 1.0,
        listed=none,
        q_raw=distribution.raw.copy(),
    )
    own, chosen = requested(known, processing.at(scored)), distribution.chosen[scored]
    view.q[scored] = map_draft(own.p, known.ids, ids[scored], distribution.p[scored])
    view.q_raw[scored] = map_draft(own.raw, known.ids, ids[scored], distribution.raw[scored])
    view.accepted_if_emitted[scored] = own.chosen / np.maximum(np.maximum(chosen, own.chosen), TINY)
    view.chosen[scored] = own.chosen_floor
    view.accepted_if_drafted[scored] = chosen / np.maximum(np.maximum(chosen, own.chosen), TINY)
    view.listed[scored] = listed_outcomes(known.ids, ids[scored])
    return view


def certain(tokens: Ints, ids: Ints, distribution: TokenDistribution, emitted: Ints) -> DraftView:
    """Return the view of a drafter that proposed ``tokens`` [N] for certain; -1 where it proposed nothing."""
    q = one_hot(index_of(tokens, ids), distribution.p.shape[1])
    top_tokens = np.ones(q.shape, dtype=np.bool_)
    top_tokens[:, -1] = False
    same = (tokens == emitted).astype(np.float64)
    accepted_if_drafted = np.where(tokens == emitted, distribution.chosen, 1.0)
    return DraftView(
        q=q, drafted=tokens >= 0, accepted_if_emitted=same, chosen=same, accepted_if_drafted=accepted_if_drafted, listed=top_tokens, q_raw=q
    )


def _concatenate_tokens(answers: Sequence[Answer]) -> Ints:
    return np.array([token for answer in answers for token in answer.choice.token_ids], dtype=np.int64)


class PromptLookup:
    """An n-gram drafter, whose draft follows from prompt and emitted tokens: one-hot where there is a match, no draft elsewhere."""

    unknown = ""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._proposals: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {}

    def draft_length(self, answer: Answer, start: int) -> int:
        """Return the length of what prompt lookup proposes there."""
        return len(self._of(answer)[start][: self._draft.tokens])

    def windows(self, answer: Answer) -> tuple[int, ...] | None:
        """Return what a correct server does with these drafts: it accepts as long as they are what it goes on to emit."""
        emitted, start, lengths = answer.choice.token_ids, 1, [1]
        while start < len(emitted):
            draft = self._of(answer)[start][: self._draft.tokens]
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
        """Return one-hot distributions at the window's own draft tokens; where windows are unknown, as if one began at every token."""
        ends = np.cumsum([len(answer.choice.token_ids) for answer in answers])[:-1]
        proposed = [self.tokens(answer, slots) for answer, slots in zip(answers, np.split(slots.slot, ends), strict=True)]
        return certain(np.concatenate(proposed), ids, distribution, _concatenate_tokens(answers))

    def tokens(self, answer: Answer, slots: Ints) -> Ints:
        """Return what was drafted at each token of ``answer``, whose places in their windows are ``slots`` [T]; -1 where nothing was.

        Where the place is not known, as if a window began there; at the bonus slot the guess at the bonus token.
        """
        ahead = np.maximum(slots, 0).tolist()
        drafts = [self._of(answer)[token - place] for token, place in enumerate(ahead)]
        return np.array([draft[place] if place < len(draft) else -1 for place, draft in zip(ahead, drafts, strict=True)], dtype=np.int64)

    def _of(self, answer: Answer) -> tuple[tuple[int, ...], ...]:
        """Return what is proposed before each emitted token, one more than k: the last is the guess at the bonus token."""
        if answer.key not in self._proposals:
            lookup = Lookup(answer.prompt_token_ids, shortest=self._draft.ngram_min, longest=self._draft.ngram_max)
            distributions = []
            for token in answer.choice.token_ids:
                distributions.append(lookup.propose(self._draft.tokens + 1))
                lookup.append(token)
            self._proposals[answer.key] = tuple(distributions)
        return self._proposals[answer.key]
