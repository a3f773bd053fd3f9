"""Verify slots: the place of each emitted token in its verify step, from windows or as probabilities, and all that is known before it.

A window is the tokens that one verify step emits, and a slot is a place in it: draft slots, each for a draft token, then the bonus slot for
the target's token after a draft accepted in full. A window goes on after a draft slot if the draft token was accepted. If a correct server
emitted x there, it had accepted x with probability ``min(1, q(x)/p(x))``, which depends on x and both distributions only. So the slot of
the next token has a distribution given the tokens before it, by the forward recursion of a hidden Markov chain (Rabiner 1989, section
III.A). It does not depend on that token itself, so that a test may weight the token by it. With a one-hot draft the windows follow from the
tokens with certainty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints, TokenDistribution

__all__ = [
    "NEVER_REJECTED",
    "NO_DRAFT",
    "NO_TOKEN",
    "REMAINDER",
    "UNKNOWN",
    "WIDEST_VOCABULARY",
    "Observed",
    "SlotChances",
    "VerifySlots",
    "certain_chances",
    "chances",
    "filter_chances",
    "join_slots",
    "slots_from_windows",
    "unknown_slots",
]

UNKNOWN = -1
"""Slot and draft length of a token whose window is unknown."""
DRAFT, BONUS, NO_DRAFT = 0, 1, 2
"""Kinds of slot; without a draft for the prefill's token."""
NEVER_REJECTED, REJECTED_BEFORE, AFTER_REJECTION = 0, 1, 2
"""States of rejection before a token: none in its answer, one in an earlier window, one in the window right before."""
NO_TOKEN = -1
"""The id before an answer's first token."""
REMAINDER = -2
"""The id of a token in the remainder."""
WIDEST_VOCABULARY = 2**18
"""Assumed size of an unknown vocabulary: a size that is too large costs power, but never validity."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifySlots:
    """Slots of N tokens in their windows.

    A test may condition on ``slot``, ``drafted``, ``after_rejection`` and ``rejected_before``: let F_t be the tokens up to t and, for each,
    whether its window went on after it. A correct server draws token t+1 from p given F_t, at a draft slot (draft, accept, else recover:
    marginally p whatever q) as well as at a bonus slot. The slot of t+1 is that of t plus one if t's window went on and 0 if it ended, so
    that it follows from F_t; so do the windows before it, and which of them were shorter than their draft. ``ended`` does not: it is known
    after t and depends on it, so that no token may be selected by its own ``ended`` (accepted tokens do not follow p). It is used only to
    name a fault, and to learn for later tokens.
    """

    slot: Ints
    """[N], number of tokens before it in its window; UNKNOWN if its window is."""
    drafted: Ints
    """[N], number of draft tokens of its window; UNKNOWN if its window is."""
    after_rejection: Bools
    """[N], whether the window before its own had a rejected draft token."""
    rejected_before: Bools
    """[N], whether any earlier window of its answer had one."""
    ended: Bools
    """[N], whether its window ended with it."""
    last: Bools
    """[N], whether it is the last token of its answer: a limit may have cut its window."""
    implied: bool = False
    """Whether the windows are computed as those of a correct server with these drafts, so that they are no evidence."""

    @property
    def known(self) -> Bools:
        """[N], tokens with a known window."""
        return np.asarray(self.slot != UNKNOWN)

    @property
    def draft_slot(self) -> Bools:
        """[N], slots of verified draft tokens."""
        return self.known & (self.slot < self.drafted)

    @property
    def bonus_slot(self) -> Bools:
        """[N], slots of the target's token after a fully accepted draft."""
        return np.asarray(self.known & (self.slot == self.drafted) & (self.drafted > 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotChances:
    """The probabilities of N tokens to be at a draft slot, a bonus slot or a slot without a draft, by earlier rejections."""

    at: Floats
    """[N, 3, 3]: DRAFT, BONUS and NO_DRAFT by NEVER_REJECTED, REJECTED_BEFORE and AFTER_REJECTION; their sum is 1, or 0 if unknown."""

    @property
    def draft(self) -> Floats:
        """[N], the probability of a draft slot."""
        return np.asarray(self.at[:, DRAFT].sum(axis=1))

    @property
    def bonus(self) -> Floats:
        """[N], the probability of a bonus slot."""
        return np.asarray(self.at[:, BONUS].sum(axis=1))

    @property
    def after_rejection(self) -> Floats:
        """[N], the probability of the verify step right after a rejection."""
        return np.asarray(self.at[:, :, AFTER_REJECTION].sum(axis=1))

    @property
    def rejected_before(self) -> Floats:
        """[N], the probability of any earlier rejection in the answer."""
        return np.asarray(self.at[:, :, REJECTED_BEFORE:].sum(axis=(1, 2)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """N emitted tokens with all that is known before each of them."""

    distribution: TokenDistribution
    ids: Ints
    """[N, K], the top tokens' token ids."""
    q: Floats | None
    """[N, K+1], the draft's distribution on the same outcomes; None if unknown."""
    drafted: Bools
    """[N], whether ``q`` is known and there was a draft, or would be if a window began here."""
    slots: VerifySlots
    k: int
    """Draft tokens per verify step."""
    accepted_if_emitted: Floats | None = None
    """[N], ``min(1, q(x)/p(x))`` of the emitted token: the probability that a correct server accepted it as a draft; None if ``q`` is."""
    q_chosen: Floats | None = None
    """[N], lower bound on q of the emitted token itself; over all tokens these add up to one at most. None if only top tokens are known."""
    accepted_if_drafted: Floats | None = None
    """[N], ``min(1, p(x)/q(x))`` of the emitted token: the probability of its acceptance if it is drafted; None if ``q`` is."""
    listed: Bools | None = None
    """[N, K+1], outcomes at which ``q`` is exact; None if ``q`` is."""
    q_raw: Floats | None = None
    """[N, K+1], the draft's distribution before sampling parameters; None if ``q`` is."""
    vocabulary: int = 0
    """Tokens in the vocabulary; 0 if unknown."""
    previous: Ints | None = None
    """[N], the token id before each, -1 for an answer's first; None if unknown."""
    contexts: Ints | None = None
    """[N], a number that is equal for tokens with the same prompt and answer so far; None if ``previous`` is."""
    ends: Bools | None = None
    """[N, K+1], outcomes that end an answer; None if unknown."""
    copies: Floats | None = None
    """[N, K+1], the distribution of a server that may repeat an earlier answer to the same prompt; None if no prompt comes twice."""
    mishandled: Mapping[str, Floats] = field(default_factory=dict)
    """Distributions [N, K+1] of a server that ignores penalties and biases or applies them twice, by name; empty without
    any."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.distribution.outcome)

    @property
    def before(self) -> Ints:
        """[N], the token id before each token.

        It is NO_TOKEN for an answer's first. Without ``previous`` it is REMAINDER for one outside the top tokens.
        """
        if self.previous is not None:
            return self.previous
        ids = np.column_stack([self.ids, np.full(self.tokens, REMAINDER)])
        emitted = np.take_along_axis(ids, self.distribution.outcome[:, None], axis=1)[:-1, 0]
        return np.concatenate([[NO_TOKEN], np.where(self.slots.last[:-1], NO_TOKEN, emitted)]).astype(np.int64)

    @cached_property
    def slot_chances(self) -> SlotChances:
        """The probabilities of each slot, from windows or from the draft's distribution."""
        return chances(self.slots, self.accepted_if_emitted, self.drafted, self.k)

    @property
    def slots_known(self) -> bool:
        """True if some windows or the draft's distribution are known."""
        return self.q is not None or bool(self.slots.known.any())

    @property
    def size(self) -> int:
        """The vocabulary's size; WIDEST_VOCABULARY if unknown."""
        return max(self.vocabulary or WIDEST_VOCABULARY, int(self.ids.shape[1]) + 1)


def slots_from_windows(windows: Sequence[int], tokens: int, drafts: Callable[[int], int]) -> VerifySlots:
    """Return the slots of an answer's tokens from its window lengths.

    A window is the tokens emitted in one step: ``windows`` has the number for each, first the prefill's, which has no draft. ``tokens`` is
    the number of emitted tokens. ``drafts`` returns the number of draft tokens of the window that begins after so many emitted tokens.
    Tokens beyond the windows are UNKNOWN. A window cut by the end of the answer has not ``ended``.
    """
    slots = unknown_slots(tokens)
    begin, rejected, any_rejected = 0, False, False
    for step, length in enumerate(windows):
        if begin >= tokens:
            break
        drafted = drafts(begin) if step else 0  # the prefill has no draft
        window = slice(begin, min(begin + length, tokens))
        slots.slot[window] = np.arange(window.stop - window.start)
        slots.drafted[window] = drafted
        slots.after_rejection[window] = rejected
        slots.rejected_before[window] = any_rejected
        slots.ended[window.stop - 1] = window.stop == begin + length
        # A draft accepted in full has a window of one token more, the bonus.
        rejected = drafted > 0 and length < drafted + 1
        any_rejected |= rejected
        begin += length
    return slots


def unknown_slots(tokens: int) -> VerifySlots:
    """Return the slots of an answer with unknown windows."""
    none = np.zeros(tokens, dtype=np.bool_)
    return VerifySlots(
        slot=np.full(tokens, UNKNOWN, dtype=np.int64),
        drafted=np.full(tokens, UNKNOWN, dtype=np.int64),
        after_rejection=none.copy(),
        rejected_before=none.copy(),
        ended=none.copy(),
        last=np.arange(tokens) == tokens - 1,
    )


def join_slots(parts: Sequence[VerifySlots]) -> VerifySlots:
    """Return the slots of all answers, one after the other."""
    return VerifySlots(
        slot=np.concatenate([part.slot for part in parts]),
        drafted=np.concatenate([part.drafted for part in parts]),
        after_rejection=np.concatenate([part.after_rejection for part in parts]),
        rejected_before=np.concatenate([part.rejected_before for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        last=np.concatenate([part.last for part in parts]),
        implied=any(part.implied for part in parts),
    )


def chances(slots: VerifySlots, accepted_if_emitted: Floats | None, drafted: Bools, k: int) -> SlotChances:
    """Return the probabilities of each token's slot in its verify window.

    For tokens of known windows they are 0 or 1. For others they follow from the tokens before if ``accepted_if_emitted`` [N] is known, the
    probability that an emitted token was an accepted draft token, else all are 0. ``drafted`` [N] marks the tokens at which it holds; ``k``
    is the number of draft tokens per verify step.
    """
    sure = certain_chances(slots)
    if accepted_if_emitted is None or bool(slots.known.all()):
        return sure
    hidden = filter_chances(accepted_if_emitted, drafted, slots.last, k)
    return SlotChances(at=np.where(slots.known[:, None, None], sure.at, hidden.at))


def certain_chances(slots: VerifySlots) -> SlotChances:
    """Return the probabilities of each token's slot by known windows.

    They are ``at`` [N, 3, 3], by kind of slot (DRAFT, BONUS, NO_DRAFT) and by state: the window before rejected a draft token
    (AFTER_REJECTION), only an earlier one did (REJECTED_BEFORE), or none (NEVER_REJECTED). They are 0 or 1, all 0 if the window is unknown.
    """
    at = np.zeros((len(slots.slot), 3, 3))
    state = np.where(slots.after_rejection, AFTER_REJECTION, np.where(slots.rejected_before, REJECTED_BEFORE, NEVER_REJECTED))
    for slot, tokens in ((DRAFT, slots.draft_slot), (BONUS, slots.bonus_slot), (NO_DRAFT, slots.known & (slots.drafted == 0))):
        at[tokens, slot, state[tokens]] = 1.0
    return SlotChances(at=at)


def filter_chances(accepted_if_emitted: Floats, drafted: Bools, last: Bools, k: int) -> SlotChances:
    """Return the probabilities of each token's slot for unknown windows.

    They are [N, 3, 3]: by kind of slot (DRAFT, BONUS, NO_DRAFT) and by state of rejection before the token (NEVER_REJECTED,
    REJECTED_BEFORE, AFTER_REJECTION). They follow from the tokens before in the same answer. Its first token is the prefill's, and every
    window drafts ``k`` tokens. ``accepted_if_emitted`` [N] is the probability that a correct server accepted the emitted token as a draft:
    its window then goes on, else the next token begins another one. ``drafted`` [N] marks the tokens at which that is known: others count
    as windows of one token without a draft. ``last`` [N] marks the ends of answers. All answers advance together, a token at a time.
    """
    starts = np.flatnonzero(np.concatenate([[True], last[:-1]]))
    lengths = np.diff([*starts.tolist(), len(last)])
    at = np.zeros((len(last), 3, 3))
    at[starts, NO_DRAFT, NEVER_REJECTED] = 1.0
    # Of the token that each answer is at: by slot, 0 to k - 1 for draft tokens and k for the bonus, and by state of rejection.
    current = np.zeros((len(starts), k + 1, 3))
    current[:, 0, NEVER_REJECTED] = 1.0
    for step in range(1, int(lengths.max(initial=0))):
        going = lengths > step
        rows, here = starts[going] + step, current[going]  # [A, k+1, 3], for the A answers that go on
        has_draft = drafted[rows][:, None]
        slots = np.stack([here[:, :k].sum(axis=1), here[:, k]], axis=1)  # of DRAFT and BONUS
        at[rows, DRAFT:NO_DRAFT] = np.where(has_draft[:, None], slots, 0.0)
        at[rows, NO_DRAFT] = np.where(has_draft, 0.0, here.sum(axis=1))
        current[going] = np.where(has_draft[:, None], _next_slot(here, accepted_if_emitted[rows]), _next_window(here))
    return SlotChances(at=at)


def _next_slot(state: Floats, accepted: Floats) -> Floats:
    """Return the slot probabilities of the next token of each answer.

    Both are [A, k+1, 3], for A answers: slots 0 to k of a verify window by the three states of rejection; ``state`` has those of this
    token. A token at a draft slot was accepted with probability ``accepted`` [A], so that the next one is at the slot after it; otherwise
    it ended its window by a rejection. A token at the bonus slot ended its window without one, so that any earlier rejection is no longer
    right before.
    """
    following = np.zeros_like(state)
    following[:, 1:] = state[:, :-1] * accepted[:, None, None]
    following[:, 0, AFTER_REJECTION] = (state[:, :-1] * (1.0 - accepted)[:, None, None]).sum(axis=(1, 2))
    following[:, 0, NEVER_REJECTED] += state[:, -1, NEVER_REJECTED]
    following[:, 0, REJECTED_BEFORE] += state[:, -1, REJECTED_BEFORE] + state[:, -1, AFTER_REJECTION]
    return following


def _next_window(state: Floats) -> Floats:
    """Return the slot probabilities of the token after one without a draft.

    Argument and result are [A, k+1, 3], for A answers: slots 0 to k of a window, by the last rejection of a draft token. There was none
    (NEVER_REJECTED), or it was in the window right before (AFTER_REJECTION) or in an earlier one (REJECTED_BEFORE).
    """
    following = np.zeros_like(state)
    # A token without a draft is a window by itself, in which nothing is rejected. So the next token begins a window, at slot 0.
    following[:, 0, NEVER_REJECTED] = state[:, :, NEVER_REJECTED].sum(axis=1)
    # Any rejection lies before that window of one token. The slice has the last two of the three, REJECTED_BEFORE and AFTER_REJECTION.
    following[:, 0, REJECTED_BEFORE] = state[:, :, REJECTED_BEFORE:].sum(axis=(1, 2))
    return following
