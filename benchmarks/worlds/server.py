"""A server that answers a batch: from the best or a drawn token, one by one or speculating, over logits that vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds.asking import Batch, cut, masked, processed
from benchmarks.worlds.language import END, VOCABULARY, follow, language, log_mass, log_softmax, ranked, row_of
from benchmarks.worlds.numerics import Kernel
from benchmarks.worlds.pool import GUMBEL

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.worlds.asking import Asking
    from benchmarks.worlds.language import Hashes, Ids, Logits
    from benchmarks.worlds.numerics import Boot

    Bools = npt.NDArray[np.bool_]
    Floats = npt.NDArray[np.float64]

__all__ = ["CORRECT", "Fault", "K", "Spoken", "speak"]

K: Final = 3
"""Draft tokens of a verify step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a speculating server does wrong."""

    unverified: float = 0.0
    """Share of draft tokens that are emitted unverified."""
    wrong: float = 0.0
    """Share of all tokens that are wrong: the draft's best token that is not the target's."""
    near: float = 0.0
    """Nats below the best token within which drafts are accepted at temperature 0."""
    lenient: float = 1.0
    """Factor on the ratio of probabilities by which drafts are accepted."""
    best: float = 0.0
    """1 where the draft is its model's best token at any temperature, and verified as certain: no fault."""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that ``unverified:0.01`` names; several are combined by commas. Raises TypeError for another name."""
        parts = (part.partition(":") for part in text.split(",") if part)
        return cls(**{name: float(size or 1.0) for name, _, size in parts})


CORRECT: Final = Fault()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spoken:
    """A answers of T tokens at most."""

    lengths: Ids
    """[A]."""
    tokens: Ids
    """[A, T]."""
    prefixes: Hashes
    """[A, T], what each token stands behind."""
    reported: Floats
    """[A, T], log-probability of the token as the server itself computed it."""
    listed: Ids
    """[A, T, L], the best tokens as the server itself ranks them."""
    listed_logprobs: Floats
    ended: Bools
    """[A, T], whether a verify step ended with the token."""
    accepted: Bools
    """[A, T], whether it is an accepted draft token."""


class _Draws:
    """Random numbers of A answers: of its own generator for one with a seed, of the server's for the others."""

    def __init__(self, asked: tuple[Asking, ...], random: np.random.Generator) -> None:
        self._seeded = np.array([one.request.seed is not None for one in asked], dtype=np.bool_)
        self._state = np.array([_number_of(one) for one in asked], dtype=np.uint64)
        self._random = random

    def common(self, count: int) -> Floats:
        """Return so many numbers of the server's own."""
        return self._random.random(count)

    def uniform(self, rows: Ids) -> Floats:
        return np.where(self._seeded[rows], self._next(rows), self._random.random(len(rows)))

    def race(self, rows: Ids) -> Logits:
        """Return Gumbel noise [N, V]."""
        return GUMBEL.rows_at(np.where(self._seeded[rows], self._next(rows), self._random.random(len(rows))))

    def _next(self, rows: Ids) -> Floats:
        """Return the next number of each answer's own, 0..1."""
        self._state[rows] = follow(self._state[rows], rows * 0)
        return np.asarray((self._state[rows] >> np.uint64(11)) * 2.0**-53)


def _number_of(one: Asking) -> int:
    """Return where the random numbers of a seeded answer begin."""
    return int(np.random.SeedSequence(one.stream).generate_state(1, np.uint64)[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Step:
    """One token of the live answers ``rows``, as target and draft see it."""

    rows: Ids
    logits: Logits
    guess: Logits
    offers: Bools
    """Whether a draft token is verified there."""

    def part(self, some: Ids) -> _Step:
        """Return that of some of the answers."""
        return _Step(rows=self.rows[some], logits=self.logits[some], guess=self.guess[some], offers=self.offers[some])


class _Speech:
    """Answers under way."""

    def __init__(self, batch: Batch, *, listed: int) -> None:
        count, most = len(batch.asked), int(batch.most.max(initial=1))
        shape, wide = (count, most), (count, most, listed)
        self.tokens, self.lengths = np.zeros(shape, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.prefixes, self.reported = np.zeros(shape, dtype=np.uint64), np.zeros(shape)
        self.listed, self.listed_logprobs = np.zeros(wide, dtype=np.int64), np.zeros(wide)
        self.ended, self.accepted = np.ones(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        self.slot = np.zeros(count, dtype=np.int64)
        self.counts = np.zeros((count, VOCABULARY), dtype=np.float32) if batch.penalises else None
        self.prefix = np.array([one.prompt for one in batch.asked], dtype=np.uint64)
        self.live = np.arange(count)
        self.width = listed

    def add(self, step: int, batch: Batch, logits: Logits, token: Ids, accepted: Bools) -> None:
        """Take in one token of every live answer."""
        contexts = row_of(self.prefix[self.live])
        rows, mass = self.live, log_mass(logits)
        self.tokens[rows, step], self.prefixes[rows, step], self.accepted[rows, step] = token, self.prefix[rows], accepted
        self.reported[rows, step], self.ended[rows, step] = logits[np.arange(len(rows)), token] - mass[:, 0], ~accepted
        if self.width:
            best = ranked(logits, self.width, language().likely[contexts])
            self.listed[rows, step], self.listed_logprobs[rows, step] = best, np.take_along_axis(logits, best, axis=1) - mass
        self.slot[rows] = np.where(accepted, self.slot[rows] + 1, 0)
        self.lengths[rows] += 1
        self.prefix[rows] = follow(self.prefix[rows], token)
        if self.counts is not None:
            self.counts[rows, token] += 1.0
        self.live = rows[((token != END) | batch.ignores_end[rows]) & (self.lengths[rows] < batch.most[rows])]

    def spoken(self) -> Spoken:
        fields = ("lengths", "tokens", "prefixes", "reported", "listed", "listed_logprobs", "ended", "accepted")
        return Spoken(**{name: getattr(self, name) for name in fields})


def speak(
    asked: tuple[Asking, ...], boot: Boot, random: np.random.Generator, *, speculates: bool, fault: Fault = CORRECT, listed: int = 0
) -> Spoken:
    """Return the answers of ``boot`` to ``asked``, with so many best tokens ``listed``; the first token is the prefill's own."""
    batch = Batch.of(asked)
    speech, draws = _Speech(batch, listed=listed), _Draws(asked, random)
    for step in range(int(batch.most.max(initial=0))):
        rows = speech.live
        if not len(rows):
            break
        verifies = speculates and step > 0
        kernel = Kernel.PREFILL if step == 0 else Kernel.VERIFY if speculates else Kernel.DECODE
        prefixes = speech.prefix[rows]
        contexts = row_of(prefixes)
        raw = boot.target(prefixes, kernel, random)
        counts = None if speech.counts is None else speech.counts[rows]
        logits = masked(processed(raw, batch, rows, counts), batch, rows, contexts, step)
        token, accepted = _own(logits, batch, rows, draws), np.zeros(len(rows), dtype=np.bool_)
        if verifies:
            guess = masked(processed(boot.draft(prefixes, random), batch, rows, None), batch, rows, contexts, step)
            verified = _Step(rows=rows, logits=logits, guess=guess, offers=speech.slot[rows] < K)
            token, accepted = _verified(verified, token, batch, draws, fault)
        speech.add(step, batch, raw, token, accepted)
    return speech.spoken()


def _own(logits: Logits, batch: Batch, rows: Ids, draws: _Draws) -> Ids:
    """Return the target's own choice [N]: the best token, or one drawn."""
    token, hot = logits.argmax(axis=1), np.flatnonzero(batch.temperature[rows] > 0.0)
    if len(hot):
        scaled = cut(logits[hot], batch, rows[hot])
        token[hot] = (scaled + draws.race(rows[hot])).argmax(axis=1)
    return token


def _verified(step: _Step, own: Ids, batch: Batch, draws: _Draws, fault: Fault) -> tuple[Ids, Bools]:
    """Return a token of every live answer, and whether it is an accepted draft; ``own`` is the target's choice."""
    rows, offers, hot = step.rows, step.offers, batch.temperature[step.rows] > 0.0
    token, draft = own.copy(), step.guess.argmax(axis=1)
    accepted = offers & ~hot & (draft == own)
    if fault.near:
        below = step.logits.max(axis=1) - step.logits[np.arange(len(rows)), draft]
        accepted |= offers & ~hot & (below <= fault.near)
    drawn = np.flatnonzero(offers & hot)
    if len(drawn):
        drafted = _rejection(step.part(drawn), batch, draws, fault)
        draft[drawn], token[drawn], accepted[drawn] = drafted.draft, drafted.token, drafted.accepted
    token = np.where(accepted, draft, token)
    if fault.unverified:
        leaks = offers & (draws.common(len(rows)) < fault.unverified)
        token, accepted = np.where(leaks, draft, token), accepted | leaks
    if fault.wrong:
        leaks = offers & (draws.common(len(rows)) < fault.wrong * len(offers) / max(1, int(offers.sum())))
        other = np.where(np.arange(VOCABULARY)[None, :] == own[:, None], -np.inf, step.guess).argmax(axis=1)
        token, accepted = np.where(leaks, other, token), accepted | leaks
    return token, accepted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Drafted:
    """Drafts, what was emitted for them, and whether it is the draft, [N] each."""

    draft: Ids
    token: Ids
    accepted: Bools


def _rejection(step: _Step, batch: Batch, draws: _Draws, fault: Fault) -> _Drafted:
    """Verify a drawn draft of each answer (Leviathan et al. 2023, algorithm 1)."""
    log_p, log_q = (log_softmax(cut(each, batch, step.rows)) for each in (step.logits, step.guess))
    if fault.best:
        with np.errstate(divide="ignore"):
            log_q = np.log(np.eye(VOCABULARY)[log_q.argmax(axis=1)])
    draft = (log_q + draws.race(step.rows)).argmax(axis=1)
    at = np.arange(len(step.rows))
    accepted = draws.uniform(step.rows) < fault.lenient * np.exp(np.minimum(log_p[at, draft] - log_q[at, draft], 50.0))
    left = np.maximum(np.exp(log_p) - np.exp(log_q), 0.0)
    with np.errstate(divide="ignore"):
        recovered = (np.log(left) + draws.race(step.rows)).argmax(axis=1)
    return _Drafted(draft=draft, token=np.where(accepted, draft, recovered), accepted=accepted)
