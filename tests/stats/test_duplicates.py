from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.stats import betting
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.duplicates import copy_distribution, repeats, scale_end_odds
from pytest_specdec.stats.fault_models import Fault
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested
from pytest_specdec.stats.verify_slots import Observed, join_slots, unknown_slots

VOCABULARY, LENGTH, END = 12, 24, 0
CHAIN = np.random.default_rng(3).normal(scale=1.5, size=(VOCABULARY, VOCABULARY))


def log_distribution(table, last):
    return table[last] - np.log(np.exp(table[last]).sum())


def drawn(random, answers, *, start=1, copied=(), table=CHAIN, until_end=False):
    """Answers to one prompt; those whose index is in ``copied`` give the first one again."""
    said = []
    for index in range(answers):
        tokens, last = [], start
        while len(tokens) < LENGTH and not (until_end and END in tokens):
            last = int((log_distribution(table, last) + random.gumbel(size=VOCABULARY)).argmax())
            tokens.append(last)
        said.append(said[0] if index in copied else tuple(tokens))
    return said


def distribution_of(said, start=1):
    befores = [last for tokens in said for last in (start, *tokens[:-1])]
    chosen = np.array([token for tokens in said for token in tokens])
    rows = np.array([log_distribution(CHAIN, last) for last in befores])
    ids = np.argsort(-rows, axis=1)[:, :8]
    n = len(chosen)
    raw = RawDistribution(
        ids=ids, logprobs=np.take_along_axis(rows, ids, axis=1), chosen=chosen, chosen_logprobs=rows[np.arange(n), chosen]
    )
    plain = Processing(temperature=np.ones(n), top_k=np.zeros(n, dtype=np.int64), top_p=np.ones(n))
    return ids, requested(raw, plain)


def wealth(said, prompts):
    ids, distribution = distribution_of(said)
    m = copy_distribution(distribution, ids, said, prompts)
    assert m.sum(axis=1) == pytest.approx(1.0)
    return betting.at_outcome(betting.table(distribution, m), distribution)


def test_an_answer_given_again_is_decisive():
    said = drawn(np.random.default_rng(1), 4, copied={2})
    assert wealth(said, ["p"] * 4).sum() > np.log(1e9)


def test_it_does_not_matter_which_earlier_answer_comes_again():
    random = np.random.default_rng(2)
    said = drawn(random, 4)
    assert wealth([*said, said[3]], ["p"] * 5).sum() > np.log(1e6)


def test_answers_to_other_prompts_are_not_compared():
    said = drawn(np.random.default_rng(1), 4, copied={2})
    assert wealth(said, list("abcd")) == pytest.approx(0.0, abs=1e-9)


def test_independent_answers_seldom_reach_what_a_copy_reaches():
    """Ville's inequality at 1/20: 400 runs alarm at most so often that the exact 99.9 % limit is kept."""
    random = np.random.default_rng(5)
    peaks = [wealth(drawn(random, 6), ["p"] * 6).cumsum().max() for _ in range(400)]
    assert np.mean(np.array(peaks) >= np.log(20)) <= 0.05 + 3.3 * np.sqrt(0.05 * 0.95 / 400)


def test_independent_answers_cost_a_fiftieth_each_at_most():
    said = drawn(np.random.default_rng(7), 5)
    assert wealth(said, ["p"] * 5).sum() > 5 * np.log(0.95)


def test_pairs_are_counted_with_what_was_to_be_expected():
    said = drawn(np.random.default_rng(1), 4, copied={2})
    _, distribution = distribution_of(said)
    found = repeats(distribution, said, ["p"] * 4)
    assert (found.pairs, found.equal) == (6, 1)
    assert found.expected < 1e-4
    assert str(found).startswith("1 of 6 pairs of answers to one prompt begin with the same 16 tokens, ")
    assert repeats(distribution, said, list("abcd")).pairs == 0


def panel(said, prompts, ends=True):
    ids, distribution = distribution_of(said)
    marked = np.column_stack([ids == END, np.zeros(len(ids), dtype=np.bool_)])
    slots = join_slots([unknown_slots(len(tokens)) for tokens in said])
    plain = Observed(
        distribution=distribution, ids=ids, q=None, drafted=np.zeros(len(ids), dtype=np.bool_), slots=slots, k=3, vocabulary=VOCABULARY
    )
    return bettors(replace(plain, ends=marked if ends else None, copies=copy_distribution(distribution, ids, said, prompts)))


def test_the_panel_seats_the_bets_on_whole_answers():
    said = drawn(np.random.default_rng(1), 4, copied={2})
    book = betting.wealth_process(panel(said, ["p"] * 4))
    assert book.winner.fault is Fault.DEPENDENCE
    assert book.tokens_to(np.log(1e4)) < 4 * LENGTH


@pytest.mark.parametrize("factor, table", [(2.0, 1.0), (0.5, -1.0)])
def test_an_end_that_comes_too_often_or_too_seldom_is_bet_on(factor, table):
    """The server's end of sequence is e times too probable, or a third as probable as it should be."""
    wrong = CHAIN.copy()
    wrong[:, END] += table
    said = drawn(np.random.default_rng(6), 150, table=wrong, until_end=True)
    richest = max((bettor for bettor in panel(said, list(range(150))) if bettor.fault is Fault.ENDING), key=lambda one: one.log_wealth)
    assert richest.name == f"end of sequence {factor:g} times as probable"
    assert richest.log_wealth > np.log(1e3)


def test_a_hazard_moves_the_end_and_keeps_the_rest_in_proportion():
    p = np.array([[0.1, 0.6, 0.3]])
    m = scale_end_odds(p, np.array([[True, False, False]]), 2.0)
    assert m[0] == pytest.approx([0.2 / 1.1, 0.6 / 1.1, 0.3 / 1.1])
