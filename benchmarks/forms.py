"""Forms in which the baseline's distribution may be known, and servers of which it is known exactly, for ``benchmarks.size``.

A server draws from distributions over a whole vocabulary, processed as a request asks, with logit noise of its own; the judge sees what a
form leaves of the scorer's distribution. So truncation, coarsening, noise and a biased scorer meet the bets as they do with a real server.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bank import Bank
from benchmarks.simulation import RIGHT, Rules, simulate
from pytest_specdec.model.transcript import Position
from pytest_specdec.prompts import ALL
from pytest_specdec.stats.draft_distribution import map_draft, one_hot
from pytest_specdec.stats.duplicates import copy_distribution
from pytest_specdec.stats.penalties import Adjustment
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested
from pytest_specdec.stats.verify_slots import Observed, join_slots, unknown_slots
from specdec_reference import checkpoint, model
from specdec_reference.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.stats.token_distribution import Floats, Ints, TokenDistribution
    from specdec_reference.model import Model

VOCABULARY = 128
"""The distributions are cut to their most probable tokens: the whole of them is one of the forms, and the dearest."""
PROMPT_TOKENS, ANSWER_TOKENS, K = 12, 64, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is asked of a server and what is known of the distribution."""

    name: str
    top_tokens: int = 20
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    bias: float = 0.0
    """Nats, on one token in ten."""
    listed_only: bool = False
    """Whether the probability of an emitted token is known among the top tokens only, as from one-token continuations."""
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
        Form(name="full", top_tokens=VOCABULARY, cost=4),
        Form(name="top-20"),
        Form(name="top-5", top_tokens=5),
        Form(name="one-token", listed_only=True),
        Form(name="one-token-5", top_tokens=5, listed_only=True),
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
class RecordedDistributions:
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


def recorded(random: np.random.Generator, answers: int = 64) -> RecordedDistributions:
    """Return the distributions of the models that come with the reference engine, along texts that the target drew."""
    target, draft = (model.load(checkpoint.read(name), PROMPT_TOKENS + ANSWER_TOKENS) for name in ("target", "draft"))
    tokenizer = Tokenizer(checkpoint.locate("target"), target.shape.vocabulary)
    prompts = [tokenizer.encode(prompt.text)[:PROMPT_TOKENS] for prompt in ALL.items]
    tokens = np.array([prompt for prompt in prompts if len(prompt) == PROMPT_TOKENS][:answers], dtype=np.intp)
    while tokens.shape[1] < PROMPT_TOKENS + ANSWER_TOKENS:
        distribution = _log_softmax(_logits(target, tokens)[:, -1])
        drawn = (distribution + random.gumbel(size=distribution.shape)).argmax(axis=1)
        tokens = np.column_stack([tokens, drawn])
    ours, theirs = (
        _log_softmax(_logits(one, tokens)[:, PROMPT_TOKENS - 1 : -1].reshape(-1, one.shape.vocabulary)) for one in (target, draft)
    )
    ids = np.argsort(-ours, axis=1, kind="stable")[:, :VOCABULARY]
    cut = (_log_softmax(np.take_along_axis(distribution, ids, axis=1)) for distribution in (ours, theirs))
    return RecordedDistributions(ids=ids.astype(np.int64), logprobs=next(cut), draft_logprobs=next(cut))


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
    """The scorer takes the distribution to this power."""
    rules: Rules = RIGHT
    windows: bool = True
    drafts: str = "model"
    """``model``: drawn from the draft's distribution; ``greedy``: its best token; empty: the arm does not speculate and no draft's
    distribution is known."""


def draw(
    distributions: RecordedDistributions,
    form: Form,
    arm: Arm,
    random: np.random.Generator,
    *,
    runs: int,
    tokens: int,
    scoring_bias: float = 0.0,
) -> Observed:
    """Return what the judge sees of ``runs`` runs of ``tokens`` tokens each, run by run, with scores to the power ``1 + scoring_bias``."""
    moved = form.bias * _biased(distributions.ids)
    noisy = distributions.logprobs + arm.noise * random.normal(size=distributions.logprobs.shape) + moved
    truth, guess = _processed(noisy, form), _processed(distributions.draft_logprobs, form)
    if arm.drafts != "model":
        guess = one_hot(distributions.draft_order[:, 0], distributions.ids.shape[1])
    nothing = np.zeros((len(truth), 1))
    bank = Bank(
        # Ids that tell the row as well: simulate gives back tokens, and the scorer's distribution is wanted at the same position.
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
    return _seen(distributions, form, arm, seen, moved, scoring_bias=scoring_bias)


def reported(
    distributions: RecordedDistributions, form: Form, arm: Arm, random: np.random.Generator, tokens: int
) -> Iterator[tuple[float, Position]]:
    """Yield what a server that does not speculate reports of tokens that it draws, beside their scores."""
    rows = random.integers(len(distributions.ids), size=tokens)
    truth = _log_softmax(distributions.logprobs[rows] + arm.noise * random.normal(size=(tokens, distributions.logprobs.shape[1])))
    scored = _log_softmax(arm.tilt * distributions.logprobs[rows])
    slots = (truth + random.gumbel(size=truth.shape)).argmax(axis=1)
    for index, place in enumerate(slots.tolist()):
        ids = distributions.ids[rows[index]]
        position = Position(
            token_id=int(ids[place]),
            logprob=float(scored[index, place]),
            top_ids=tuple(ids[: form.top_tokens].tolist()),
            top_logprobs=tuple(scored[index, : form.top_tokens].tolist()),
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
    distribution = np.zeros_like(ranked)
    np.put_along_axis(distribution, order, ranked / ranked.sum(axis=1, keepdims=True), axis=1)
    return distribution


def _seen(distributions: RecordedDistributions, form: Form, arm: Arm, drawn: Observed, moved: Floats, *, scoring_bias: float) -> Observed:
    place, top_tokens = drawn.distribution.outcome, form.top_tokens
    rows = drawn.ids[:, 0] // distributions.ids.shape[1]
    scored = _log_softmax(arm.tilt * distributions.logprobs)
    ids = distributions.ids[rows, :top_tokens]
    chosen_logprobs = scored[rows, place]
    raw = RawDistribution(
        ids=ids,
        logprobs=scored[rows, :top_tokens],
        chosen=distributions.ids[rows, place],
        chosen_logprobs=np.where(place < top_tokens, chosen_logprobs, np.nan) if form.listed_only else chosen_logprobs,
        vocabulary=distributions.ids.shape[1],
    )
    adjustment = _adjustment(moved[rows], place, top_tokens) if form.bias else None
    wish = replace(form.wish(len(rows)), adjustment=adjustment)
    distribution = requested(raw, wish.adapt_to_bias(scoring_bias) if scoring_bias else wish)
    q, q_raw = _draft_distributions(distributions, form, arm, rows, distribution) if arm.drafts else (None, None)
    return Observed(
        distribution=distribution,
        ids=ids,
        q=q,
        q_raw=q_raw,
        accepted_if_emitted=drawn.accepted_if_emitted if arm.drafts else None,
        drafted=np.full(len(rows), bool(arm.drafts)),
        slots=drawn.slots,
        k=K,
        vocabulary=distributions.ids.shape[1],
        ends=np.column_stack([ids % 50 == 7, np.zeros(len(rows), dtype=np.bool_)]),
    )


def _adjustment(moved: Floats, place: Ints, top_tokens: int) -> Adjustment:
    n = len(moved)
    none = np.zeros(n, dtype=np.bool_)
    outside = (moved[:, top_tokens:] != 0.0).any(axis=1)
    return Adjustment(
        top_tokens=moved[:, :top_tokens],
        unsure=np.zeros((n, top_tokens), dtype=np.bool_),
        chosen=moved[np.arange(n), place],
        chosen_unsure=none,
        elsewhere=outside,
        upwards=outside,
    )


def _draft_distributions(
    distributions: RecordedDistributions, form: Form, arm: Arm, rows: Ints, baseline: TokenDistribution
) -> tuple[Floats, Floats]:
    """Return the draft's distribution as the judge has it, its top tokens processed without biases, and unprocessed."""
    order, ids = distributions.draft_order[rows, : form.top_tokens], distributions.ids[rows, : form.top_tokens]
    own = distributions.ids[rows[:, None], order]
    if arm.drafts != "model":
        sure = one_hot(np.where((ids == own[:, :1]).any(axis=1), (ids == own[:, :1]).argmax(axis=1), ids.shape[1]), ids.shape[1] + 1)
        return sure, sure
    logprobs = distributions.draft_logprobs[rows[:, None], order]
    distribution = requested(
        RawDistribution(ids=own, logprobs=logprobs, chosen=own[:, 0], chosen_logprobs=logprobs[:, 0]), form.wish(len(rows))
    )
    return map_draft(distribution.p, own, ids, baseline.p), map_draft(distribution.raw, own, ids, baseline.raw)


def asked_again(
    distributions: RecordedDistributions, random: np.random.Generator, *, prompts: int, answers: int, tokens: int, temperature: float
) -> Observed:
    """Return independent answers to each of some prompts, prompt by prompt, with the distribution of a server that may give one again.

    What was said decides the position, so that answers that begin alike go on under one distribution.
    """
    said = np.empty((prompts * answers, tokens), dtype=np.int64)
    rows = np.empty_like(said)
    state = np.repeat(random.integers(2**30, size=prompts), answers)
    logprobs = _log_softmax(distributions.logprobs / temperature)
    for step in range(tokens):
        rows[:, step] = state % len(distributions.ids)
        place = (logprobs[rows[:, step]] + random.gumbel(size=(len(state), logprobs.shape[1]))).argmax(axis=1)
        said[:, step] = distributions.ids[rows[:, step], place]
        state = (state * 31 + 7 * said[:, step] + 11) % (2**30)
    form = Form(name="again")
    flat, chosen = rows.ravel(), said.ravel()
    raw = RawDistribution(
        ids=distributions.ids[flat, : form.top_tokens],
        logprobs=logprobs[flat, : form.top_tokens],
        chosen=chosen,
        chosen_logprobs=logprobs[flat, (distributions.ids[flat] == chosen[:, None]).argmax(axis=1)],
    )
    distribution = requested(raw, form.wish(len(flat)))
    copies = copy_distribution(
        distribution, raw.ids, [tuple(line) for line in said.tolist()], [index // answers for index in range(len(said))]
    )
    slots = join_slots([unknown_slots(tokens)] * len(said))
    return Observed(
        distribution=distribution, ids=raw.ids, q=None, drafted=np.zeros(len(flat), dtype=np.bool_), slots=slots, k=K, copies=copies
    )
