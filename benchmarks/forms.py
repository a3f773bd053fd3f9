"""Forms in which the baseline's law may be known, and servers of which it is known exactly: what ``benchmarks.size`` draws from.

A server draws from laws over a whole vocabulary, processed as a request asks, with logit noise of its own; the judge sees what a form
leaves of the scorer's law. So truncation, coarsening, noise and a leaning scorer meet the bets as they do with a real server.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bank import Bank
from benchmarks.simulation import RIGHT, Rules, simulate
from pytest_specdec.model.transcript import Position
from pytest_specdec.prompts import ALL
from pytest_specdec.reference import checkpoint, model
from pytest_specdec.reference.tokenizer import Tokenizer
from pytest_specdec.stats.draft_distribution import mapped, one_hot
from pytest_specdec.stats.duplicates import again
from pytest_specdec.stats.penalties import Adjustment
from pytest_specdec.stats.token_distribution import Processing, Raw, requested
from pytest_specdec.stats.verify_slots import Observed, joined, unplaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.reference.model import Model
    from pytest_specdec.stats.token_distribution import Floats, Ints, Law

VOCABULARY = 128
"""The laws are cut to their most probable tokens: the whole of them is one of the forms, and the dearest."""
PROMPT_TOKENS, ANSWER_TOKENS, K = 12, 64, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is asked of a server and what is known of the law."""

    name: str
    atoms: int = 20
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    bias: float = 0.0
    """Nats, on one token in ten."""
    listed_only: bool = False
    """Whether the probability of an emitted token is known among the atoms only, as from one-token continuations."""
    cost: int = 1
    """How many times dearer than the others it is: so many times fewer runs."""

    def wish(self, tokens: int) -> Processing:
        """Return what is asked at that many tokens, biases left out."""
        return Processing(
            temperature=np.full(tokens, self.temperature),
            top_k=np.full(tokens, self.top_k, dtype=np.int64),
            top_p=np.full(tokens, self.top_p),
            min_p=np.full(tokens, self.min_p),
        )


FORMS = {
    form.name: form
    for form in (
        Form(name="full", atoms=VOCABULARY, cost=4),
        Form(name="top-20"),
        Form(name="top-5", atoms=5),
        Form(name="one-token", listed_only=True),
        Form(name="one-token-5", atoms=5, listed_only=True),
        Form(name="nucleus", top_p=0.9),
        Form(name="nucleus-cool", top_p=0.9, temperature=0.7),
        Form(name="top-k", top_k=12),
        Form(name="min-p", min_p=0.05),
        Form(name="cool", temperature=0.6),
        Form(name="hot", temperature=1.4),
        Form(name="bias", bias=1.5),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laws:
    """B positions of a target and a draft model over one vocabulary, temperature 1, by falling probability of the target."""

    ids: Ints
    """[B, V]."""
    logprobs: Floats
    """[B, V]."""
    draft_logprobs: Floats
    """[B, V], of the same tokens."""
    draft_order: Ints = field(init=False)
    """[B, V], places by falling probability of the draft."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "draft_order", np.argsort(-self.draft_logprobs, axis=1, kind="stable"))


def recorded(random: np.random.Generator, answers: int = 64) -> Laws:
    """Return the laws of the models that come with the reference engine, along texts that the target drew."""
    target, draft = (model.load(checkpoint.read(name), PROMPT_TOKENS + ANSWER_TOKENS) for name in ("target", "draft"))
    tokenizer = Tokenizer(checkpoint.locate("target"), target.shape.vocabulary)
    prompts = [tokenizer.encode(prompt.text)[:PROMPT_TOKENS] for prompt in ALL.items]
    tokens = np.array([prompt for prompt in prompts if len(prompt) == PROMPT_TOKENS][:answers], dtype=np.intp)
    while tokens.shape[1] < PROMPT_TOKENS + ANSWER_TOKENS:
        law = _log_softmax(_logits(target, tokens)[:, -1])
        drawn = (law + random.gumbel(size=law.shape)).argmax(axis=1)
        tokens = np.column_stack([tokens, drawn])
    ours, theirs = (
        _log_softmax(_logits(one, tokens)[:, PROMPT_TOKENS - 1 : -1].reshape(-1, one.shape.vocabulary)) for one in (target, draft)
    )
    ids = np.argsort(-ours, axis=1, kind="stable")[:, :VOCABULARY]
    cut = (_log_softmax(np.take_along_axis(law, ids, axis=1)) for law in (ours, theirs))
    return Laws(ids=ids.astype(np.int64), logprobs=next(cut), draft_logprobs=next(cut))


def _logits(one: Model, tokens: Ints) -> Floats:
    hidden = one.forward(tokens, one.cache(len(tokens)), np.zeros(len(tokens), np.intp))
    return one.logits(hidden).reshape(*tokens.shape, -1).astype(np.float64)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """How a server draws and how its tokens are scored."""

    noise: float = 0.0
    """Of the server's own logits against the scorer's, sd in nats, fresh for every position."""
    tilt: float = 1.0
    """The scorer takes the law to this power."""
    rules: Rules = RIGHT
    windows: bool = True
    drafts: str = "model"
    """``model``: drawn from the draft's law; ``greedy``: its best token; empty: the arm does not speculate and no draft's law is known."""


def draw(laws: Laws, form: Form, arm: Arm, random: np.random.Generator, *, runs: int, tokens: int, lean: float = 0.0) -> Observed:
    """Return what the judge sees of ``runs`` runs of ``tokens`` tokens each, run by run, the scores taken to the power ``1 + lean``."""
    moved = form.bias * _biased(laws.ids)
    noisy = laws.logprobs + arm.noise * random.normal(size=laws.logprobs.shape) + moved
    truth, guess = _processed(noisy, form), _processed(laws.draft_logprobs, form)
    if arm.drafts != "model":
        guess = one_hot(laws.draft_order[:, 0], laws.ids.shape[1])
    nothing = np.zeros((len(truth), 1))
    bank = Bank(
        # Ids that tell the row as well: simulate gives back tokens, and the scorer's law is wanted at the same position.
        ids=np.arange(truth.size, dtype=np.int64).reshape(truth.shape),
        p=np.column_stack([truth, nothing]),
        q=np.column_stack([guess, nothing]),
        drafted=np.full(len(truth), bool(arm.drafts)),
        vocabulary=truth.shape[1],
    )
    seen = simulate(
        bank,
        arm.rules,
        random,
        runs=runs,
        answers=tokens // ANSWER_TOKENS,
        tokens=ANSWER_TOKENS,
        k=K,
        windows=arm.windows and bool(arm.drafts),
    )
    return _seen(laws, form, arm, seen, moved, lean=lean)


def reported(laws: Laws, form: Form, arm: Arm, random: np.random.Generator, tokens: int) -> Iterator[tuple[float, Position]]:
    """Yield what a server that does not speculate reports of tokens that it draws, beside their scores."""
    rows = random.integers(len(laws.ids), size=tokens)
    truth = _log_softmax(laws.logprobs[rows] + arm.noise * random.normal(size=(tokens, laws.logprobs.shape[1])))
    scored = _log_softmax(arm.tilt * laws.logprobs[rows])
    places = (truth + random.gumbel(size=truth.shape)).argmax(axis=1)
    for index, place in enumerate(places.tolist()):
        ids = laws.ids[rows[index]]
        position = Position(
            token_id=int(ids[place]),
            logprob=float(scored[index, place]),
            atom_ids=tuple(ids[: form.atoms].tolist()),
            atom_logprobs=tuple(scored[index, : form.atoms].tolist()),
        )
        yield float(truth[index, place]), position


def _biased(ids: Ints) -> Floats:
    return np.asarray(ids % 10 == 3, dtype=np.float64)


def _processed(logprobs: Floats, form: Form) -> Floats:
    """Do as an engine does, over the whole vocabulary: temperature, min-p, top-k, top-p."""
    logits = logprobs / form.temperature
    order = np.argsort(-logits, axis=1, kind="stable")
    ranked = np.exp(np.take_along_axis(_log_softmax(logits), order, axis=1))
    ranked = np.where(ranked >= form.min_p * ranked[:, :1], ranked, 0.0)
    if form.top_k:
        ranked[:, form.top_k :] = 0.0
    above = ranked.cumsum(axis=1) - ranked
    ranked = np.where(above < form.top_p * ranked.sum(axis=1, keepdims=True), ranked, 0.0)
    law = np.zeros_like(ranked)
    np.put_along_axis(law, order, ranked / ranked.sum(axis=1, keepdims=True), axis=1)
    return law


def _seen(laws: Laws, form: Form, arm: Arm, drawn: Observed, moved: Floats, *, lean: float) -> Observed:
    place, atoms = drawn.law.outcome, form.atoms
    rows = drawn.ids[:, 0] // laws.ids.shape[1]
    scored = _log_softmax(arm.tilt * laws.logprobs)
    ids = laws.ids[rows, :atoms]
    chosen_logprobs = scored[rows, place]
    raw = Raw(
        ids=ids,
        logprobs=scored[rows, :atoms],
        chosen=laws.ids[rows, place],
        chosen_logprobs=np.where(place < atoms, chosen_logprobs, np.nan) if form.listed_only else chosen_logprobs,
        vocabulary=laws.ids.shape[1],
    )
    adjustment = _adjustment(moved[rows], place, atoms) if form.bias else None
    wish = replace(form.wish(len(rows)), adjustment=adjustment)
    law = requested(raw, wish.leaning(lean) if lean else wish)
    q, q_unasked = _draft_laws(laws, form, arm, rows, law) if arm.drafts else (None, None)
    return Observed(
        law=law,
        ids=ids,
        q=q,
        q_unasked=q_unasked,
        kept=drawn.kept if arm.drafts else None,
        drafted=np.full(len(rows), bool(arm.drafts)),
        places=drawn.places,
        k=K,
        vocabulary=laws.ids.shape[1],
        ends=np.column_stack([ids % 50 == 7, np.zeros(len(rows), dtype=np.bool_)]),
    )


def _adjustment(moved: Floats, place: Ints, atoms: int) -> Adjustment:
    n = len(moved)
    none = np.zeros(n, dtype=np.bool_)
    outside = (moved[:, atoms:] != 0.0).any(axis=1)
    return Adjustment(
        atoms=moved[:, :atoms],
        unsure=np.zeros((n, atoms), dtype=np.bool_),
        chosen=moved[np.arange(n), place],
        chosen_unsure=none,
        elsewhere=outside,
        upwards=outside,
    )


def _draft_laws(laws: Laws, form: Form, arm: Arm, rows: Ints, baseline: Law) -> tuple[Floats, Floats]:
    """Return the draft's law as the judge has it, its own atoms processed as asked, biases left out, and the same unprocessed."""
    order, ids = laws.draft_order[rows, : form.atoms], laws.ids[rows, : form.atoms]
    own = laws.ids[rows[:, None], order]
    if arm.drafts != "model":
        sure = one_hot(np.where((ids == own[:, :1]).any(axis=1), (ids == own[:, :1]).argmax(axis=1), ids.shape[1]), ids.shape[1] + 1)
        return sure, sure
    logprobs = laws.draft_logprobs[rows[:, None], order]
    law = requested(Raw(ids=own, logprobs=logprobs, chosen=own[:, 0], chosen_logprobs=logprobs[:, 0]), form.wish(len(rows)))
    return mapped(law.p, own, ids, baseline.p), mapped(law.unasked, own, ids, baseline.unasked)


def asked_again(laws: Laws, random: np.random.Generator, *, prompts: int, answers: int, tokens: int, temperature: float) -> Observed:
    """Return independent answers to each of some prompts, prompt by prompt, with the law of a server that may give one again.

    What was said decides the position, so that answers that begin alike go on under one law.
    """
    said = np.empty((prompts * answers, tokens), dtype=np.int64)
    rows = np.empty_like(said)
    state = np.repeat(random.integers(2**30, size=prompts), answers)
    logprobs = _log_softmax(laws.logprobs / temperature)
    for step in range(tokens):
        rows[:, step] = state % len(laws.ids)
        place = (logprobs[rows[:, step]] + random.gumbel(size=(len(state), logprobs.shape[1]))).argmax(axis=1)
        said[:, step] = laws.ids[rows[:, step], place]
        state = (state * 31 + 7 * said[:, step] + 11) % (2**30)
    form = Form(name="again")
    flat, chosen = rows.ravel(), said.ravel()
    raw = Raw(
        ids=laws.ids[flat, : form.atoms],
        logprobs=logprobs[flat, : form.atoms],
        chosen=chosen,
        chosen_logprobs=logprobs[flat, (laws.ids[flat] == chosen[:, None]).argmax(axis=1)],
    )
    law = requested(raw, form.wish(len(flat)))
    copies = again(law, raw.ids, [tuple(line) for line in said.tolist()], [index // answers for index in range(len(said))])
    places = joined([unplaced(tokens)] * len(said))
    return Observed(law=law, ids=raw.ids, q=None, drafted=np.zeros(len(flat), dtype=np.bool_), places=places, k=K, copies=copies)
