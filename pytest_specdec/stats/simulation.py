"""Simulation: emitted tokens of a server that speculates over known laws, rightly or with one decision replaced.

It tells how often the betting test alarms on a correct server and how soon on a faulty one. Every draw comes from the generator passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.alternatives import (
    best_only,
    greedy,
    inverted,
    leaky,
    lenient,
    ratio,
    residual,
    residual_best,
    the_target,
    tilted,
)
from pytest_specdec.stats.drafts import Split, index_of, one_hot
from pytest_specdec.stats.laws import SLACK, Processing, Raw, requested
from pytest_specdec.stats.panel import Observed
from pytest_specdec.stats.places import Places

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from pytest_specdec.stats.alternatives import Shape
    from pytest_specdec.stats.laws import Bools, Floats, Ints

__all__ = ["FAULTS", "RIGHT", "Bank", "Rules", "simulate", "zipf"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bank:
    """Positions to draw from: B laws of a baseline at temperature 1, with the draft's."""

    ids: Ints
    """[B, K]."""
    p: Floats
    """[B, K+1], the tail atom last, at least 1e-6."""
    q: Floats
    """[B, K+1]."""
    drafted: Bools
    """[B], where a window that begins here has a draft."""
    vocabulary: int

    def __len__(self) -> int:
        return len(self.p)


def zipf(random: np.random.Generator, *, positions: int, vocabulary: int, atoms: int, certain: bool = False) -> Bank:
    """Return a bank of made-up laws: Zipf logits at many temperatures with noise, and a draft that is a noisy, cooler copy of the target.

    As in facts/statistics.md section 8. A ``certain`` draft proposes its best token, and none at every fourth position.
    """
    rank = np.arange(1, vocabulary + 1)
    sharpness = random.uniform(0.3, 3.0, size=(positions, 1))
    logits = -sharpness * np.log(rank) + 0.7 * random.normal(size=(positions, vocabulary))
    guess = 0.95 * logits + random.normal(size=logits.shape)
    order = np.argsort(-logits, axis=1)[:, :atoms]
    target, draft = _softmax(logits), _softmax(guess)
    p = _coarse(target, order)
    q = _coarse(draft, order)
    if certain:
        q = one_hot(index_of(guess.argmax(axis=1).astype(np.int64), order.astype(np.int64)), atoms + 1)
    drafted = random.integers(4, size=positions) > 0 if certain else np.ones(positions, dtype=np.bool_)
    return Bank(ids=order.astype(np.int64), p=p, q=q, drafted=drafted, vocabulary=vocabulary)


def _softmax(logits: Floats) -> Floats:
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _coarse(law: Floats, order: npt.NDArray[np.intp]) -> Floats:
    atoms = np.take_along_axis(law, order, axis=1)
    tail = np.maximum(1.0 - atoms.sum(axis=1, keepdims=True), SLACK)
    coarse = np.concatenate([atoms, tail], axis=1)
    return np.asarray(coarse / coarse.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The decisions of a speculating server, each a function of p and q, all [M, K+1]."""

    accept: Shape = ratio
    """Probability that each draft token is accepted."""
    replacement: Shape = residual
    bonus: Shape = the_target
    stale: Shape = the_target
    """What the target's law has become once a draft was rejected in the answer."""


RIGHT = Rules()


FAULTS: Mapping[str, Rules] = {
    "accept-all": Rules(accept=leaky(1.0)),
    "acceptance leak of 20%": Rules(accept=leaky(0.2)),
    "acceptance leak of 5%": Rules(accept=leaky(0.05)),
    "lenient acceptance 1.5 p/q": Rules(accept=lenient(1 / 1.5)),
    "inverted ratio": Rules(accept=inverted),
    "greedy acceptance": Rules(accept=best_only, replacement=the_target),
    "resample from p": Rules(replacement=the_target),
    "residual argmax": Rules(replacement=residual_best),
    "bonus from q": Rules(bonus=lambda _, q: q),
    "greedy bonus": Rules(bonus=greedy(1.0)),
    "flattened once a draft was rejected": Rules(stale=tilted(0.8)),
}
"""The faults whose detection is published, by name."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Servers:
    """M servers in step, each at its own place of its own window."""

    slot: Ints
    drafted: Ints
    short: Bools
    """Whether the window before came short of its draft."""
    ever: Bools
    """Whether any window of the answer did."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Emitted:
    """One token of every server."""

    token: Ints
    """Of the split outcomes: K is the draft token in the tail, K+1 the rest of the tail."""
    ended: Bools


def simulate(
    bank: Bank, rules: Rules, random: np.random.Generator, *, runs: int, answers: int, tokens: int, k: int, windows: bool = True
) -> Observed:
    """Return the tokens of ``runs`` runs of ``answers`` answers of ``tokens`` tokens each, run by run and answer by answer.

    Every position is drawn from ``bank`` evenly. The first token of an answer is the prefill's and not speculated. ``windows`` says
    whether the judge may know the windows.
    """
    streams = runs * answers
    at = random.integers(len(bank), size=(streams, tokens))
    outcome = np.empty((streams, tokens), dtype=np.int64)
    flags = {name: np.zeros((streams, tokens), dtype=np.int64) for name in ("slot", "drafted", "short", "ever", "ended")}
    now = _Servers(
        slot=np.zeros(streams, dtype=np.int64),
        drafted=np.zeros(streams, dtype=np.int64),
        short=np.zeros(streams, dtype=np.bool_),
        ever=np.zeros(streams, dtype=np.bool_),
    )
    for step in range(tokens):
        if step:
            now.drafted = np.where(now.slot == 0, k * bank.drafted[at[:, step]], now.drafted)
        for name in ("slot", "drafted", "short", "ever"):
            flags[name][:, step] = getattr(now, name)
        emitted = _step(bank.p[at[:, step]], bank.q[at[:, step]], now, rules, random)
        outcome[:, step], flags["ended"][:, step] = emitted.token, emitted.ended
    return _observed(bank, at, outcome, flags, k=k, windows=windows)


def _step(p: Floats, q: Floats, now: _Servers, rules: Rules, random: np.random.Generator) -> _Emitted:
    """Emit one token on every server and move on: its place among the split outcomes, and whether it ended its window."""
    split = Split.of(np.where(now.ever[:, None], rules.stale(p, q), p), q)
    p, q = split.p, split.q
    verify, bonus = now.slot < now.drafted, (now.slot == now.drafted) & (now.drafted > 0)
    draft = _pick(q, random)
    chance = np.take_along_axis(rules.accept(p, q), draft[:, None], axis=1)[:, 0]
    accepted = verify & (random.random(len(p)) < chance)
    law = np.where(verify[:, None], rules.replacement(p, q), np.where(bonus[:, None], rules.bonus(p, q), p))
    token = np.where(accepted, draft, _pick(law, random))
    now.short = np.where(accepted, now.short, verify)
    now.ever = now.ever | (verify & ~accepted)
    now.slot = np.where(accepted, now.slot + 1, 0)
    return _Emitted(token=token, ended=~accepted)


def _pick(law: Floats, random: np.random.Generator) -> Ints:
    mass = law.cumsum(axis=1)
    return np.asarray((mass > random.random(len(law))[:, None] * mass[:, -1:]).argmax(axis=1), dtype=np.int64)


def _observed(bank: Bank, at: Ints, outcome: Ints, flags: Mapping[str, Ints], *, k: int, windows: bool) -> Observed:
    rows, width = at.ravel(), bank.ids.shape[1]
    chosen = np.minimum(outcome.ravel(), width)
    certain = bank.q[rows].max(axis=1) == 1.0
    drafted = np.where(certain, bank.q[rows].argmax(axis=1) == outcome.ravel(), 0.0)
    own = np.take_along_axis(bank.p[rows], chosen[:, None], axis=1)[:, 0]
    own_draft = np.take_along_axis(bank.q[rows], chosen[:, None], axis=1)[:, 0]
    # The tail's tokens are taken to be equally probable.
    own = np.where(chosen == width, own / max(bank.vocabulary - width, 1), own)
    own_draft = np.where(chosen == width, own_draft / max(bank.vocabulary - width, 1), own_draft)
    ids = np.concatenate([bank.ids, np.full((len(bank), 1), bank.vocabulary)], axis=1)
    with np.errstate(divide="ignore"):
        raw = Raw(
            ids=bank.ids[rows],
            logprobs=np.log(bank.p[rows, :-1]),
            chosen=np.take_along_axis(ids[rows], chosen[:, None], axis=1)[:, 0],
            chosen_logprobs=np.log(own),
        )
    plain = Processing(temperature=np.ones(len(rows)), top_k=np.zeros(len(rows), dtype=np.int64), top_p=np.ones(len(rows)))
    return Observed(
        law=requested(raw, plain),
        ids=bank.ids[rows],
        q=bank.q[rows],
        drafted=bank.drafted[rows],
        places=_places(flags, windows=windows),
        k=k,
        kept=np.where(certain, drafted, ratio(own_draft, own)),
        listed=np.arange(width + 1)[None, :] < np.where(certain, width, width + 1)[:, None],
        vocabulary=bank.vocabulary,
    )


def _places(flags: Mapping[str, Ints], *, windows: bool) -> Places:
    last = np.zeros(flags["slot"].shape, dtype=np.bool_)
    last[:, -1] = True
    hidden = np.full(last.size, -1, dtype=np.int64)
    return Places(
        slot=flags["slot"].ravel() if windows else hidden,
        drafted=flags["drafted"].ravel() if windows else hidden,
        after_rejection=flags["short"].ravel().astype(np.bool_) & windows,
        rejected_before=flags["ever"].ravel().astype(np.bool_) & windows,
        ended=flags["ended"].ravel().astype(np.bool_),
        last=last.ravel(),
    )
