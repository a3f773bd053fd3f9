"""In every form in which the distribution may be known, no bet is favourable to a correct server: its mean is at most one, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.stats import betting, verify_slots
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.penalties import Penalties, join_adjustments, logit_adjustment
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, Weights, by_share, requested
from pytest_specdec.stats.verify_slots import Observed, slots_from_windows

VOCABULARY = 60
RANDOM = np.random.default_rng(11)
LOGITS = 1.8 * RANDOM.normal(size=VOCABULARY) + 2.0
PROMPT, SAID = (3, 7, 7, 12), (5, 9, 5, 21, 30)
BIAS = Penalties(bias={int(np.argsort(LOGITS)[3]): 4.0, int(LOGITS.argmax()): -1.5, 17: 0.7})
PENALTIES = Penalties(presence=0.6, frequency=0.9)
REPETITION = Penalties(repetition=1.4, presence=0.2)
ENCOURAGED = Penalties(repetition=0.5)


def engine(penalties=None, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0):
    """What vLLM does to logits, after SAID was emitted: bias, penalties, temperature, min-p, top-k, top-p."""
    logits = LOGITS.copy()
    if penalties is not None:
        for token, value in penalties.bias.items():
            logits[token] += value
        for token in {*PROMPT, *SAID}:
            logits[token] *= 1 / penalties.repetition if logits[token] > 0 else penalties.repetition
        for token in set(SAID):
            logits[token] -= penalties.presence + penalties.frequency * SAID.count(token)
    mass = np.exp(logits / temperature - (logits / temperature).max())
    mass = np.where(mass >= min_p * mass.max(), mass, 0.0)
    order = np.argsort(-mass, kind="stable")
    ranked = mass[order]
    if top_k:
        ranked[top_k:] = 0.0
    ranked = np.where(ranked.cumsum() - ranked < top_p * ranked.sum(), ranked, 0.0)
    distribution = np.zeros(VOCABULARY)
    distribution[order] = ranked / ranked.sum()
    return distribution


def judged(top_tokens=20, *, listed_only=False, vocabulary=VOCABULARY, penalties=None, **asked):
    """The judge's distribution at that position, a row for each token that might be emitted there."""
    logprobs = LOGITS - np.log(np.exp(LOGITS).sum())
    ids = np.broadcast_to(np.argsort(-logprobs)[:top_tokens], (VOCABULARY, top_tokens))
    every = np.arange(VOCABULARY)
    told = np.where(np.isin(every, ids[0]) | (not listed_only), logprobs, np.nan)
    raw = RawDistribution(ids=ids, logprobs=logprobs[ids], chosen=every, chosen_logprobs=told, vocabulary=vocabulary)
    moved = None
    if penalties is not None:
        parts = [
            logit_adjustment(penalties, PenaltyWindow(), PROMPT, (*SAID, token), np.broadcast_to(ids[0], (len(SAID) + 1, top_tokens)))
            for token in range(VOCABULARY)
        ]
        last = np.tile(np.arange(len(SAID) + 1) == len(SAID), VOCABULARY)
        moved = join_adjustments(parts).at(last)
    wish = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, **asked}
    processing = Processing(
        temperature=np.full(VOCABULARY, wish["temperature"]),
        top_k=np.full(VOCABULARY, wish["top_k"], dtype=np.int64),
        top_p=np.full(VOCABULARY, wish["top_p"]),
        min_p=np.full(VOCABULARY, wish["min_p"]),
        adjustment=moved,
    )
    return ids, requested(raw, processing, noise=0.0)


def at_slot(slot):
    """The place of one token of the second window, three drafts long, as an answer of its own."""
    whole = slots_from_windows((1, 1, 4), 6, lambda _start: 3)
    fields = {name: getattr(whole, name)[[2 + slot]] for name in whole.__slots__ if name != "implied"}
    return type(whole)(**{**fields, "last": np.ones(1, dtype=np.bool_)})


FORMS = [{}, {"top_tokens": 5}, {"top_tokens": VOCABULARY}, {"listed_only": True}, {"listed_only": True, "top_tokens": 5}]
ASKED = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"top_p": 0.8},
    {"top_k": 8},
    {"min_p": 0.05},
    {"min_p": 0.05, "temperature": 0.7, "top_p": 0.9},
    {"min_p": 0.02, "top_k": 12},
    {"penalties": BIAS},
    {"penalties": PENALTIES},
    {"min_p": 0.08, "top_p": 0.75},
    {"penalties": REPETITION},
    {"penalties": ENCOURAGED},
    {"penalties": ENCOURAGED, "temperature": 0.7},
    {"penalties": BIAS, "temperature": 0.7},
    {"penalties": BIAS, "top_p": 0.8},
    {"penalties": PENALTIES, "top_k": 6, "temperature": 1.3},
    {"penalties": REPETITION, "top_p": 0.8},
]


@pytest.mark.examples(4)
@pytest.mark.parametrize("slot", [0, 3], ids=["draft", "bonus"])
@pytest.mark.parametrize("form", FORMS)
def test_no_bet_has_a_mean_above_one_under_a_correct_server(form, slot):
    means = {f"{asked} {name}": mean for asked in ASKED for name, mean in mean_payoffs(form, asked, slot).items()}
    # Five millionths: the remainder's mass is known to a millionth only.
    assert not {bet: mean for bet, mean in means.items() if not mean <= 1.0 + 5e-6}


def mean_payoffs(form, asked, slot):
    """Return by bettor what one unit becomes on average at that slot."""
    ids, distribution = judged(**form, **asked)
    truth = engine(**asked)
    observed = Observed(
        distribution=distribution,
        ids=ids,
        q=np.roll(distribution.p, 1, axis=1),
        drafted=np.ones(VOCABULARY, dtype=np.bool_),
        q_raw=np.roll(distribution.raw, 2, axis=1),
        accepted_if_emitted=np.ones(VOCABULARY),
        slots=verify_slots.join_slots([at_slot(slot)] * VOCABULARY),
        k=3,
        vocabulary=VOCABULARY,
        ends=np.column_stack([ids % 7 == 0, np.zeros(VOCABULARY, dtype=np.bool_)]),
    )
    return {bettor.name: float(truth @ np.exp(bettor.log_payoffs)) for bettor in bettors(observed)}


@pytest.mark.parametrize("form", FORMS)
def test_the_bound_on_the_emitted_token_is_one(form):
    bounds = [(asked, judged(**form, **asked)[1].chosen_bound) for asked in ASKED]
    assert not [asked for asked, bound in bounds if not (engine(**asked) <= bound + 1e-9).all()]


@pytest.mark.parametrize("asked", [asked for asked in ASKED if asked.get("penalties", BIAS).repetition == 1.0])
def test_the_whole_vocabulary_makes_the_distribution_exact(asked):
    ids, distribution = judged(VOCABULARY, **asked)
    truth = engine(**asked)
    assert distribution.p[0, :-1] == pytest.approx(truth[ids[0]], abs=1e-9)
    assert distribution.p[0, -1] == 0.0


@pytest.mark.parametrize("asked", [{"penalties": BIAS}, {"penalties": PENALTIES}, {"penalties": PENALTIES, "temperature": 0.6}])
def test_among_top_tokens_moved_by_known_amounts_the_distribution_is_exact(asked):
    ids, distribution = judged(20, **asked)
    truth = engine(**asked)[ids[0]]
    mine = distribution.p[0, :-1]
    assert distribution.core[0, :-1].all()
    assert mine / mine.sum() == pytest.approx(truth / truth.sum(), abs=1e-9)


def test_what_a_repetition_penalty_touches_is_left_alone():
    ids, distribution = judged(20, penalties=REPETITION)
    touched = np.isin(ids[0], [*PROMPT, *SAID])
    assert touched.any()
    assert (distribution.core[0, :-1] == ~touched).all()
    assert not distribution.core[0, -1]


def test_truncation_of_moved_top_tokens_is_left_alone_without_the_whole_vocabulary():
    _, distribution = judged(20, penalties=BIAS, top_p=0.8)
    assert distribution.core[0].sum() == 1
    assert not distribution.violation.any()


def test_min_p_is_bet_on_either_side_of_a_margin():
    ids, distribution = judged(VOCABULARY, min_p=0.05)
    share = np.exp(LOGITS[ids[0]] - LOGITS.max())
    assert (distribution.core[0, :-1] == (share >= 0.05 * np.exp(0.6))).all()
    assert (distribution.violation[0, :-1] == (share < 0.05 * np.exp(-0.6))).all()


def test_penalties_count_the_answer_and_repetition_the_prompt_too():
    ids = np.array([[7, 5, 2]] * 3)
    found = logit_adjustment(
        Penalties(presence=1.0, frequency=0.5, repetition=1.1, bias={2: 3.0, 50: 1.0}), PenaltyWindow(), (7,), (5, 5, 2), ids
    )
    assert found.top_tokens.tolist() == [[0.0, 0.0, 3.0], [0.0, -1.5, 3.0], [0.0, -2.0, 3.0]]
    assert found.unsure.tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert found.chosen.tolist() == [0.0, -1.5, 3.0]
    assert found.elsewhere.tolist() == found.upwards.tolist() == [True] * 3
    assert found.moves.all()


@pytest.mark.parametrize(
    "window, presence, repetition",
    [
        (PenaltyWindow(), [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]),
        (PenaltyWindow(repetition_prompt=False), [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]),
        (PenaltyWindow(prompt=True), [2, 2, 3, 3, 3], [2, 2, 3, 3, 3]),
        (PenaltyWindow(prompt=True, last_tokens=2), [1, 0, 1, 1, 0], [1, 0, 1, 1, 0]),
        (PenaltyWindow(prompt=True, last_tokens=100), [2, 2, 3, 3, 3], [2, 2, 3, 3, 3]),
        (PenaltyWindow(last_tokens=1), [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]),
        (PenaltyWindow(prompt=True, last_tokens=0), [0] * 5, [0] * 5),
    ],
)
def test_a_window_says_what_penalties_count(window, presence, repetition):
    """Of token 7, after the prompt 7 7 5, in the answer 5 7 5 5 5."""
    ids = np.full((5, 1), 7)
    found = logit_adjustment(Penalties(frequency=1.0, repetition=1.1), window, (7, 7, 5), (5, 7, 5, 5, 5), ids)
    assert (-found.top_tokens[:, 0]).tolist() == presence
    assert found.unsure[:, 0].tolist() == [count > 0 for count in repetition]


def test_penalties_need_the_prompt_where_its_window_has_it():
    openai, everything = PenaltyWindow(), PenaltyWindow(prompt=True)
    assert [Penalties(presence=1.0).count_prompt(window) for window in (openai, everything)] == [False, True]
    assert [Penalties(repetition=1.1).count_prompt(window) for window in (openai, PenaltyWindow(repetition_prompt=False))] == [True, False]
    assert not Penalties(bias={1: 1.0}).count_prompt(everything)


def test_a_window_is_said_in_words():
    assert str(PenaltyWindow(prompt=True, last_tokens=64)) == "the last 64 tokens of prompt and answer"
    assert str(PenaltyWindow()) == "the answer, repetition over prompt and answer"


def test_neutral_penalties_are_told():
    assert Penalties().neutral
    assert Penalties(bias={3: 0.0}).neutral
    assert not Penalties(repetition=1.01).neutral


def test_noise_travels_with_the_distribution():
    _, distribution = judged()
    view = np.roll(distribution.p, 1, axis=1)
    assert (betting.table(distribution, view, noise=0.3) <= betting.table(distribution, view)).all()


def test_the_remainder_is_never_surely_kept_by_min_p():
    weights = Weights(top_tokens=np.array([[1.0, 0.9]]), remainder=np.array([0.5]), remainder_bound=np.array([0.5]), last=np.array([0.9]))
    assert by_share(weights, np.array([0.1]), np.array([1.8])).core.tolist() == [[True, True, False]]
    assert by_share(weights, np.array([0.0]), np.array([1.8])).core.all()
