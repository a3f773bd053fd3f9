"""Seeds: repeats and independent draws, each on the baseline's own terms."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from pytest_specdec.judge import seeds
from pytest_specdec.model.transcript import Choice
from pytest_specdec.model.verdict import Outcome, Symptom
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import OPEN_ENDED
from pytest_specdec.prompts.seeding import seeding
from tests.judge.captured_values import VARIANT, answer, arm, captured, score

WORKLOAD = seeding(OPEN_ENDED)
STANDARD = WORKLOAD.at(Depth.STANDARD)
PLACES = {request.id: place for turn in STANDARD.turns for place, request in enumerate(turn)}
SIZES = {request.id: len(turn) for turn in STANDARD.turns for request in turn}
REPEATED = [
    *dict.fromkeys((r.prompt_key, r.seed) for r in STANDARD.requests if SIZES[r.id] == 1 and r.seed is not None and "n" not in r.body)
]
FEW = WORKLOAD.at(Depth.SMOKE)


def drawn(what):
    return crc32(repr(what).encode())


def honest(number, request, index):
    """Tokens by prompt, seed and choice; by number without a seed."""
    return drawn((request.prompt_key, ("u", number) if request.seed is None else request.seed, index))


def answers(rule, workload=STANDARD):
    given = []
    for number, request in enumerate(workload.requests):
        choices = tuple(
            Choice(index=i, token_ids=tuple(range(first, first + 32)), finish_reason="length")
            for i in range(request.body.get("n", 1))
            for first in (rule(number, request, i),)
        )
        given.append(replace(answer(request.id), choices=choices))
    return given


def judged(rule, theirs=honest, *, workload=STANDARD, control=None, scored=True, p_best=0.1, **fields):
    mine, baseline = answers(rule, workload), answers(theirs, workload)
    scores = {name: tuple(score(name, each, p_best=p_best) for each in given) for name, given in ((VARIANT, mine), ("baseline", baseline))}
    other = None if control is None else arm("control", answers(control, workload))
    return seeds.judge(captured("seeds", mine, baseline, other, workload=workload, scores=scores if scored else {}, alpha=4.5e-6, **fields))


def ignoring(number, request, index):
    return drawn((request.prompt_key, number, index))


def by_row(number, request, index):
    return honest(number, request, index) + 31 * PLACES[request.id]


def constant(number, request, index):
    return drawn((request.prompt_key, index))


def unseeded_alike(number, request, index):
    return honest(0, request, index)


def choices_alike(number, request, index):
    return honest(number, request, 0)


def shared_in_company(number, request, index):
    return (
        honest(number, request, index)
        if request.seed is not None or SIZES[request.id] == 1
        else drawn(("together", request.prompt_key, index))
    )


def test_a_server_that_honours_seeds_passes_though_its_answers_are_not_the_baselines():
    verdict = judged(lambda *given: honest(*given) + 7, control=honest)
    assert verdict.outcome is Outcome.PASS
    assert "48 of 48 answers repeated under their seed, 96 of 96 of the baseline's" in verdict.headline
    assert verdict.rules_out.endswith("so would a seed that every answer ignores; so would neighbours that decide every answer")


@pytest.mark.parametrize(
    "rule, name",
    [
        (ignoring, "the seed is not honoured"),
        (by_row, "a seeded answer depends on its neighbours"),
        (constant, "different seeds give the same answer"),
        (unseeded_alike, "requests without a seed give the same answer again"),
        (choices_alike, "n choices are copies"),
        (shared_in_company, "requests share one random stream"),
    ],
)
def test_each_fault_has_its_name(rule, name):
    verdict = judged(rule, control=honest)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    asked_again = verdict.example is not None and verdict.example.symptom is Symptom.UNREPEATED
    assert asked_again is (rule in {ignoring, by_row})


@pytest.mark.parametrize("rule", [ignoring, by_row, constant, unseeded_alike, choices_alike, shared_in_company])
def test_what_the_baseline_does_itself_is_no_fault(rule):
    assert judged(rule, rule, control=rule).outcome is Outcome.PASS


def test_few_pairs_that_do_not_repeat_are_undecided():
    verdict = judged(ignoring, workload=FEW, control=honest)
    assert (verdict.outcome, "not enough evidence" in verdict.headline) == (Outcome.INCONCLUSIVE, True)


def noisy(random, company):
    """Honest draws of which a share under concurrency differs anew at every request, as sums of other batches make them."""
    shifts = [1 + int(random.integers(2**31)) if random.random() < company and SIZES[r.id] > 1 else 0 for r in STANDARD.requests]
    return lambda number, request, index: honest(number, request, index) + shifts[number]


@pytest.mark.examples(2)
@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("mine, theirs", [(0.74, 0.54), (0.67, 0.39), (0.37, 0.42)], ids=["bf16.03", "one-hot g.03", "g.03"])
def test_healthy_servers_that_repeat_less_in_company_pass(mine, theirs):
    """Shares of company pairs that differ, as measured on correct servers: a verify step has more places to flip than a decode step."""
    random = np.random.default_rng(11)
    verdicts = [judged(noisy(random, mine), noisy(random, theirs), control=noisy(random, theirs)) for _ in range(12)]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.PASS}
    assert len({verdict.headline for verdict in verdicts}) > 5


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("company", [0.0, 0.2, 0.5, 0.8])
def test_an_ignored_seed_is_red_however_little_the_baseline_repeats_in_company(company):
    random = np.random.default_rng(12)
    verdicts = [judged(ignoring, noisy(random, company), control=noisy(random, company)) for _ in range(3)]
    assert {(verdict.outcome, verdict.names) for verdict in verdicts} == {(Outcome.FAIL, "the seed is not honoured")}


def flipping(*kinds):
    """Honest draws but for those of the prompts and seeds at these places of the list of repeats, which differ anew under concurrency."""
    flipped = {REPEATED[place] for place in kinds}
    return lambda number, r, index: honest(number, r, index) + 31 * ((r.prompt_key, r.seed) in flipped and SIZES[r.id] > 1)


@pytest.mark.parametrize("control, outcome", [(2, Outcome.FAIL), (4, Outcome.INCONCLUSIVE)])
def test_a_prompt_and_seed_that_flips_on_both_boots_of_the_baseline_counts_once(control, outcome):
    """Boots of a deterministic server flip the same draws: 24 of 24 are too many beside three, and not beside four."""
    verdict = judged(flipping(*range(24)), flipping(1, 2, 3), control=flipping(control))
    assert verdict.outcome is outcome
    assert (verdict.figures["seeded_pairs"], verdict.figures["seeded_pairs_differing"]) == (48, 24)


@pytest.mark.parametrize("count, outcome", [(18, Outcome.INCONCLUSIVE), (8, Outcome.PASS)])
def test_repeats_that_fail_once_in_a_thousand_correct_runs_are_no_pass(count, outcome):
    assert judged(flipping(*range(count)), honest, control=honest).outcome is outcome


def test_a_pass_says_where_repeats_that_differ_are_too_few_to_tell():
    """Ten of 24 flip on the baseline: no number of flips would be an alarm."""
    verdict = judged(flipping(0), flipping(*range(1, 11)), control=flipping(*range(1, 11)))
    assert verdict.outcome is Outcome.PASS
    assert "24 repeats under concurrency are too few to tell" in verdict.headline
    assert "are too few to tell" not in judged(honest, control=honest).headline


def test_a_draw_never_given_alone_is_no_repeat():
    """Batches that keep their size repeat their own noise, which no speculating server's do."""
    concurrent = replace(STANDARD, requests=STANDARD.requests[54:], waves=(24,))
    assert judged(by_row, workload=concurrent).figures["seeded_pairs"] == 0


def test_what_a_baseline_that_hardly_repeats_itself_leaves_open_is_said():
    random = np.random.default_rng(13)
    verdict = judged(noisy(random, 0.8), noisy(random, 0.8), control=noisy(random, 0.8))
    assert verdict.outcome is Outcome.PASS
    assert "under concurrency the baseline repeats only" in verdict.headline
    assert "neighbours" not in verdict.rules_out
    assert verdict.figures["baseline_rate_repeated_in_company"] < 0.5
    assert any(line.startswith("repeated: 24 of 24 alone, ") and "the baseline 48 of 48 alone" in line for line in verdict.evidence)
    unseeded = judged(ignoring, ignoring, control=ignoring)
    assert unseeded.outcome is Outcome.PASS
    assert "the baseline repeats no answer alone, so that a seed that is ignored cannot be told" in unseeded.headline
    assert "ignored" not in unseeded.rules_out


def test_an_equal_draw_is_found_among_few_requests():
    assert judged(choices_alike, workload=FEW).names == "n choices are copies"
    assert "so would" not in judged(honest, workload=FEW).rules_out


def test_one_answer_that_does_not_repeat_is_noise():
    odd = STANDARD.requests[23].id
    assert judged(lambda n, r, i: honest(n, r, i) + (r.id == odd), control=honest).outcome is Outcome.PASS


def test_without_scores_the_number_of_copies_decides():
    assert judged(constant, control=honest, scored=False).names == "different seeds give the same answer"
    assert judged(choices_alike, control=honest, scored=False).outcome is Outcome.PASS


def test_draws_that_may_well_be_equal_prove_nothing():
    verdict = judged(honest, control=honest, p_best=0.9)
    assert (verdict.outcome, "0 pairs of draws that cannot be equal" in verdict.headline) == (Outcome.INCONCLUSIVE, True)


def test_requests_that_are_all_different_say_nothing():
    lone = replace(STANDARD, requests=STANDARD.requests[:1])
    assert judged(honest, workload=lone).outcome is Outcome.INCONCLUSIVE


def test_no_answer_of_the_baseline_is_invalid():
    mine = answers(honest)
    lost = [answer(each.request_id, status=None) for each in mine]
    assert seeds.judge(captured("seeds", mine, lost, workload=STANDARD)).outcome is Outcome.INVALID
