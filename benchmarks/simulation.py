"""Simulation: emitted tokens of a server that speculates over known distributions, rightly or with one decision replaced.

It tells how often the betting test alarms on a correct server and how soon on a faulty one. Every draw comes from the generator passed in.
A token is drawn by inverse CDF in the order of token ids, or as the largest of log-probabilities with Gumbel noise. A random number that
serves twice ties decisions that have to be independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import ndtri

from benchmarks.bank import Bank, zipf
from pytest_specdec.stats.draft_distribution import SplitRemainder, index_of
from pytest_specdec.stats.fault_models import (
    ratio,
    residual,
    the_target,
)
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.reused_numbers import ReusedNumber
from pytest_specdec.stats.token_distribution import requested
from pytest_specdec.stats.verify_slots import Observed, VerifySlots

if TYPE_CHECKING:
    from pytest_specdec.stats.fault_models import Shape
    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = [
    "RIGHT",
    "Bank",
    "Drawn",
    "Rules",
    "Trace",
    "accepts",
    "blurred",
    "draw",
    "emit",
    "id_order",
    "moved",
    "observe",
    "simulate",
    "trace_of",
    "zipf",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """One token of M servers."""

    token: Ints
    """[M], of the split outcomes."""
    accepted: Bools
    """[M], whether it is the draft token."""


def id_order(ids: Ints) -> Ints:
    """Return the split outcomes [B, K+2] in the order of token ids, the remainder's two last, for top tokens ``ids`` [B, K]."""
    remainder = np.tile(np.arange(ids.shape[1], ids.shape[1] + 2), (len(ids), 1))
    return np.concatenate([np.argsort(ids, axis=1, kind="stable"), remainder], axis=1)


def draw(
    random: np.random.Generator,
    reuse: ReusedNumber,
    *,
    q: Floats,
    accept: Floats,
    otherwise: Floats,
    verify: Bools,
    order: Ints,
    shared: Floats,
) -> Drawn:
    """Return a token of each server: the draft from ``q`` where it is accepted, else one from ``otherwise``; distributions are [M, K+2].

    ``verify`` [M] marks who has a draft, ``order`` [M, K+2] is that of token ids. ``shared`` [M] are the numbers that a window has in
    common, used for WINDOW only.
    """
    first, second, third = random.random((3, len(q)))
    if reuse is ReusedNumber.GUMBEL:
        noise, fresh = random.gumbel(size=(2, *q.shape))
        draft = _largest(q, noise)
        other = _largest(otherwise, np.where(verify[:, None], noise, fresh))
    else:
        draft = _inverse(q, order, first)
        other = _inverse(otherwise, order, np.where(verify, second, third) if reuse is ReusedNumber.RECOVERY else third)
    decides = {ReusedNumber.DRAFT: first, ReusedNumber.WINDOW: shared}.get(reuse, second)
    accepted = verify & (decides < np.take_along_axis(accept, draft[:, None], axis=1)[:, 0])
    return Drawn(token=np.where(accepted, draft, other), accepted=accepted)


def _inverse(distribution: Floats, order: Ints, uniform: Floats) -> Ints:
    mass = np.take_along_axis(distribution, order, axis=1).cumsum(axis=1)
    place = (mass > uniform[:, None] * mass[:, -1:]).argmax(axis=1)
    return np.asarray(np.take_along_axis(order, place[:, None], axis=1)[:, 0], dtype=np.int64)


def _largest(distribution: Floats, noise: Floats) -> Ints:
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(distribution) + noise).argmax(axis=1), dtype=np.int64)


def blurred(deviation: float) -> Shape:
    """Add noise of so many nats to every top token's logit: a fixed function of the probability's digits, so that it has no direction."""

    def distribution(p: Floats, _q: Floats) -> Floats:
        digits = np.clip((p[:, :-1] * 1e10) % 1.0, 1e-6, 1.0 - 1e-6)
        weight = np.concatenate([p[:, :-1] * np.exp(deviation * ndtri(digits)), p[:, -1:]], axis=1)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    return distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The decisions of a speculating server, each a function of p and q, all [M, K+1]."""

    accept: Shape = ratio
    """Probability that each draft token is accepted."""
    replacement: Shape = residual
    bonus: Shape = the_target
    target: Shape = the_target
    """What the server takes for the target's distribution at every token."""
    stale: Shape = the_target
    """What the target's distribution has become once a draft was rejected in the answer."""
    passing: Shape = the_target
    """What it has become in the verify step behind a rejection."""
    forgets: Literal["", "ratio", "bonus", "everywhere"] = ""
    """Where the server does nothing of what is asked of the distributions: ``ratio`` is the acceptance of drafts that are drawn as
    asked."""
    bonus_ids_off_by: int = 0
    """What is added to the id of a bonus token; an id that no top token has lies in the remainder."""
    stutters: bool = False
    """Whether the bonus token is the token before it once more."""
    reuses: ReusedNumber = ReusedNumber.NONE


RIGHT = Rules()


@dataclass(slots=True, kw_only=True, eq=False)
class _Servers:
    """M servers in step, each at its own place of its own window."""

    slot: Ints
    drafted: Ints
    short: Bools
    """Whether the window before came short of its draft."""
    ever: Bools
    """Whether any window of the answer did."""
    uniform: Floats
    """A random number that the drafts of a window have in common."""

    def move(self, emitted: _Emitted) -> None:
        """Go on behind what was emitted."""
        self.short = np.where(emitted.accepted, self.short, emitted.verify)
        self.ever = self.ever | (emitted.verify & ~emitted.accepted)
        self.slot = np.where(emitted.accepted, self.slot + 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Emitted:
    """One token of every server."""

    token: Ints
    """Of the split outcomes."""
    accepted: Bools
    verify: Bools
    bonus: Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What S answers of T tokens went through, arrays [S, T]."""

    at: Ints
    """The bank's position."""
    outcome: Ints
    """0..K+1, of the split outcomes: K is the draft token in the remainder, K+1 the rest of the remainder."""
    slot: Ints
    drafted: Ints
    short: Bools
    """Whether the window before came short of its draft."""
    ever: Bools
    """Whether any window of the answer before did."""
    ended: Bools
    """Whether its window ended with it."""
    last: Bools
    """Whether it is the last of its answer."""

    def part(self, answers: slice | Ints) -> Trace:
        """Return some of the answers."""
        return Trace(**{name: getattr(self, name)[answers] for name in self.__slots__})

    def flat(self, tokens: int) -> Trace:
        """Return the first ``tokens`` of all answers, one behind the other, as a single answer."""
        return Trace(**{name: getattr(self, name).reshape(1, -1)[:, :tokens] for name in self.__slots__})


def trace_of(at: Ints, outcome: Ints, *, slot: int = 0, drafted: int = 0, short: bool = False, ever: bool = False) -> Trace:
    """Return one answer in which every token, at positions ``at`` [T], stands at the same place of a window."""
    shape = (1, len(at))
    return Trace(
        at=at[None, :],
        outcome=outcome[None, :],
        slot=np.full(shape, slot),
        drafted=np.full(shape, drafted),
        short=np.full(shape, short),
        ever=np.full(shape, ever),
        ended=np.zeros(shape, dtype=np.bool_),
        last=np.zeros(shape, dtype=np.bool_),
    )


def simulate(
    bank: Bank, rules: Rules, random: np.random.Generator, *, runs: int, answers: int, tokens: int, k: int, windows: bool = True
) -> Observed:
    """Return the tokens of ``runs`` runs of ``answers`` answers of ``tokens`` tokens each, run by run and answer by answer.

    Every position is drawn from ``bank`` evenly. ``windows`` says whether the judge may know the windows.
    """
    return observe(bank, emit(bank, rules, random, answers=runs * answers, tokens=tokens, k=k), k=k, windows=windows)


def emit(bank: Bank, rules: Rules, random: np.random.Generator, *, answers: int, tokens: int, k: int) -> Trace:
    """Return what ``answers`` answers of ``tokens`` tokens went through; the first token is the prefill's and not speculated.

    Every position is drawn from ``bank`` evenly and anew.
    """
    shape = (answers, tokens)
    at, outcome, slot, drafted = (np.zeros(shape, dtype=np.int64) for _ in range(4))
    short, ever, ended, last = (np.zeros(shape, dtype=np.bool_) for _ in range(4))
    last[:, -1] = True
    now = _Servers(
        slot=np.zeros(answers, dtype=np.int64),
        drafted=np.zeros(answers, dtype=np.int64),
        short=np.zeros(answers, dtype=np.bool_),
        ever=np.zeros(answers, dtype=np.bool_),
        uniform=np.zeros(answers),
    )
    shifted = moved(bank, rules.bonus_ids_off_by)
    for step in range(tokens):
        here = random.integers(len(bank), size=answers)
        if step:
            now.drafted = np.where(now.slot == 0, k * bank.drafted[here], now.drafted)
        at[:, step], slot[:, step], drafted[:, step], short[:, step], ever[:, step] = here, now.slot, now.drafted, now.short, now.ever
        emitted = _step(bank, here, now, rules, random)
        now.move(emitted)
        token = emitted.token
        if shifted is not None:
            token = np.where(emitted.bonus, shifted[here, token], token)
        if rules.stutters and step:
            token = np.where(emitted.bonus, _again(bank, here, at[:, step - 1], outcome[:, step - 1]), token)
        outcome[:, step], ended[:, step] = token, ~emitted.accepted
    return Trace(at=at, outcome=outcome, slot=slot, drafted=drafted, short=short, ever=ever, ended=ended, last=last)


def _again(bank: Bank, at: Ints, before: Ints, token: Ints) -> Ints:
    """Return the split outcome at positions ``at`` of the ids that were the outcomes ``token`` at positions ``before``."""
    width = bank.ids.shape[1]
    found = index_of(ids_at(bank.ids[before], np.minimum(token, width)), bank.ids[at])
    return np.where(found == width, width + 1, found)


def moved(bank: Bank, by: int) -> Ints | None:
    """Return the split outcome [B, K+2] of the id that lies ``by`` behind each outcome's; None for 0."""
    if not by:
        return None
    width = bank.ids.shape[1]
    top_tokens = np.stack([index_of(bank.ids[:, top_token] + by, bank.ids) for top_token in range(width)], axis=1)
    rest = np.full((len(bank), 2), width + 1, dtype=np.int64)
    return np.concatenate([np.where(top_tokens == width, width + 1, top_tokens), rest], axis=1)


def _step(bank: Bank, at: Ints, now: _Servers, rules: Rules, random: np.random.Generator) -> _Emitted:
    """Emit one token on every server."""
    p, q, raw_p = bank.p[at], bank.q[at], bank.unasked[at]
    p = raw_p if rules.forgets == "everywhere" else rules.target(p, q)
    p = np.where(now.ever[:, None], rules.stale(p, q), p)
    split = SplitRemainder.of(np.where(now.short[:, None], rules.passing(p, q), p), q)
    p, q = split.p, split.q
    verify, bonus = now.slot < now.drafted, (now.slot == now.drafted) & (now.drafted > 0)
    after = SplitRemainder.of(raw_p, bank.q[at]).p if rules.forgets == "bonus" else rules.bonus(p, q)
    distribution = np.where(verify[:, None], rules.replacement(p, q), np.where(bonus[:, None], after, p))
    now.uniform = np.where(now.slot == 0, random.random(len(p)), now.uniform)
    found = draw(
        random,
        rules.reuses,
        q=q,
        accept=accepts(bank, at, rules, SplitRemainder(p=p, q=q)),
        otherwise=distribution,
        verify=verify,
        order=id_order(bank.ids[at]),
        shared=now.uniform,
    )
    return _Emitted(token=found.token, accepted=found.accepted, verify=verify, bonus=bonus)


def accepts(bank: Bank, at: Ints, rules: Rules, split: SplitRemainder) -> Floats:
    """Return the acceptance probabilities [M, K+2] under ``rules`` of drafts from ``split.q`` at positions ``at`` [M]."""
    if rules.forgets != "ratio":
        return rules.accept(split.p, split.q)
    raw = SplitRemainder.of(bank.unasked[at], bank.unasked_q[at])
    return rules.accept(raw.p, raw.q)


def observe(bank: Bank, trace: Trace, *, k: int, windows: bool) -> Observed:
    """Return what a judge knows of ``trace``, answer by answer; ``windows`` says whether it knows the windows."""
    rows, outcome, width = trace.at.ravel(), trace.outcome.ravel(), bank.ids.shape[1]
    chosen = np.minimum(outcome, width)
    q = bank.q[rows]
    certain = q.max(axis=1) == 1.0
    own, own_raw, own_draft = (_own(distribution, q, outcome, bank.vocabulary) for distribution in (bank.p[rows], bank.unasked[rows], q))
    return Observed(
        distribution=requested(raw(bank.ids[rows], bank.unasked[rows], own_raw, chosen), bank.asked.of(len(rows))),
        ids=bank.ids[rows],
        q=q,
        drafted=bank.drafted[rows],
        slots=_slots(trace, windows=windows),
        k=k,
        accepted_if_emitted=np.where(certain, np.where(certain, q.argmax(axis=1) == outcome, 0.0), ratio(own_draft, own)),
        q_chosen=own_draft if bank.raw is None else None,
        accepted_if_drafted=ratio(own, own_draft),
        listed=np.arange(width + 1)[None, :] < np.where(certain, width, width + 1)[:, None],
        q_raw=bank.unasked_q[rows],
        vocabulary=bank.vocabulary,
    )


def _own(distribution: Floats, q: Floats, outcome: Ints, vocabulary: int) -> Floats:
    """Return the probability [N] of the emitted tokens themselves in ``distribution`` [N, K+1], drafts being drawn from ``q`` [N, K+1].

    The remainder's tokens are taken to be equally probable, but for the one that a draft is certain of.
    """
    split, beyond = SplitRemainder.of(distribution, q).p, max(vocabulary - distribution.shape[1] + 1, 1)
    if distribution is q:
        split[:, -2:] = np.where((q[:, -1:] == 1.0), [[1.0, 0.0]], split[:, -2:])
    return np.asarray(np.take_along_axis(split, outcome[:, None], axis=1)[:, 0] / np.where(outcome == distribution.shape[1], beyond, 1))


def _slots(trace: Trace, *, windows: bool) -> VerifySlots:
    hidden = np.full(trace.at.size, -1, dtype=np.int64)
    return VerifySlots(
        slot=trace.slot.ravel() if windows else hidden,
        drafted=trace.drafted.ravel() if windows else hidden,
        after_rejection=trace.short.ravel() & windows,
        rejected_before=trace.ever.ravel() & windows,
        ended=trace.ended.ravel(),
        last=trace.last.ravel(),
    )


def raw(ids: Ints, distribution: Floats, chosen: Floats, outcome: Ints | None = None) -> RawDistribution:
    """Return ``distribution`` [N, K+1] as a server tells it; of outcome K, the remainder, the emitted id is one that no top token has."""
    with np.errstate(divide="ignore"):
        return RawDistribution(
            ids=ids,
            logprobs=np.log(distribution[:, :-1]),
            chosen=ids[:, 0] if outcome is None else ids_at(ids, outcome),
            chosen_logprobs=np.log(chosen),
        )


def ids_at(ids: Ints, outcome: Ints) -> Ints:
    """Return the token ids [N] of outcomes 0..K among ``ids`` [N, K]; for K, the remainder, one that no top token has."""
    beyond = np.full((len(ids), 1), np.iinfo(np.int64).max)
    return np.take_along_axis(np.concatenate([ids, beyond], axis=1), outcome[:, None], axis=1)[:, 0]
