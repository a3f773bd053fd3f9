"""Endurance: what decays over the rounds of a soak is named; what was so from the beginning, or in the baseline too, is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import endurance
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.soak import SoakRound
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters
from pytest_specdec.model.transcript import FailureKind, ServerFailure
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.endurance import mixed_traffic
from tests.judge.captured_values import VARIANT, answer, captured, score, transcript

WORKLOAD = mixed_traffic()
GREEDY = [request.id for request in WORKLOAD.requests if request.greedy]
ALIVE, DEAD = (1, *(4, 3) * 4, 3), (1,) * 32
FLAT = [0.5] * 40


def answers(later=ALIVE):
    return [
        answer(request.id, range(100 * at, 100 * at + 32), finish="length", windows=later if pass_index else ALIVE, pass_index=pass_index)
        for pass_index in (0, 1)
        for at, request in enumerate(WORKLOAD.requests)
    ]


UNCOUNTED = [replace(one, choices=(replace(one.choice, windows=None),)) for one in answers()]


def counted(share):
    return SpecCounters(drafts=100, draft_tokens=300, accepted_tokens=round(1000 * share))


def soak(shares=FLAT, mib=None, ranks=(), failed=0):
    """Rounds of 1,000 tokens, of which ``shares`` were drafts; ``ranks`` has the shares of each rank, ``mib`` the memory."""
    return tuple(
        SoakRound(
            at_s=30.0 * (at + 1),
            seconds=30.0,
            requests=10,
            tokens=1000,
            failed=failed,
            counters=counted(share),
            ranks=tuple(
                RankCounters(name=f"rank{n}", counters=counted(one[at] / len(ranks)), generated_tokens=1000 // len(ranks))
                for n, one in enumerate(ranks)
            ),
            resident_mib=None if mib is None else mib[at],
        )
        for at, share in enumerate(shares)
    )


def judged(mine=None, rounds=None, baseline=None, wrong=(), failures=(), **arm):
    mine, theirs = mine or answers(), [replace(one, choices=(replace(one.choice, windows=None),)) for one in answers()]
    scores = {
        VARIANT: tuple(score(VARIANT, one, {5: 4.0} if one.key in wrong else ()) for one in mine),
        **{arm: tuple(score(arm, one) for one in theirs) for arm in ("baseline", "control")},
    }
    speculative = transcript(VARIANT, mine, soak=soak() if rounds is None else rounds, **arm)
    first = transcript("baseline", theirs, soak=soak(mib=[900.0] * 40) if baseline is None else baseline)
    return endurance.judge(
        captured("endurance", speculative, first, theirs, workload=WORKLOAD, scores=scores, alpha=1e-6, server_failures=failures)
    )


def test_the_traffic_is_mixed_and_sent_at_deep_depth_alone():
    assert not WORKLOAD.at(Depth.STANDARD).requests
    assert {request.draws_unseeded for request in WORKLOAD.at(Depth.DEEP).requests} == {True, False}
    assert replace(WORKLOAD, soak_s=60.0).digest != WORKLOAD.digest


def test_a_soak_without_a_change_passes_and_says_how_long_it_was():
    verdict = judged(rounds=soak(mib=[900.0 + at % 3 for at in range(40)]))
    assert verdict.outcome is Outcome.PASS
    assert "20 minutes and 400 requests" in verdict.headline


SLOW = [0.5 - 0.01 * at for at in range(40)]
WITH_RANK = [0.5 - 0.0025 * at for at in range(40)]
"""Of a server of four ranks, one of them slow."""
LATE = [0.5] * 28 + [0.01] * 12
LEAK = [500.0 + 10.0 * at for at in range(40)]


@pytest.mark.parametrize(
    "given, name",
    [
        ({"rounds": soak(SLOW)}, endurance.DRAFTS_DECAY),
        ({"rounds": soak(LATE)}, endurance.DRAFTS_DIE),
        ({"rounds": soak(WITH_RANK, ranks=(FLAT, FLAT, FLAT, SLOW))}, f"{endurance.RANK_DECAYS}: rank3"),
        ({"mine": answers(DEAD)}, endurance.DRAFTS_DIE),
        ({"rounds": soak(mib=LEAK)}, endurance.MEMORY_GROWS),
        ({"wrong": [(name, 1) for name in GREEDY]}, endurance.WRONG_LATER),
    ],
)
def test_what_comes_with_time_fails_by_name(given, name):
    verdict = judged(**given)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert verdict.headline.startswith(name)


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": soak([0.5 - 0.001 * at for at in range(40)])},
        {"rounds": soak(list(reversed(SLOW)))},
        {"rounds": soak(mib=[900.0 - 300.0 * 0.8**at for at in range(40)])},
        {"rounds": soak(mib=LEAK), "baseline": soak(mib=LEAK)},
        {"rounds": soak(mib=LEAK), "baseline": soak()},
    ],
)
def test_small_falls_warm_caches_and_what_the_baseline_does_too_pass(given):
    assert judged(**given).outcome is Outcome.PASS


RISING = [*range(60)]


@pytest.mark.parametrize(
    "mib",
    [
        *([900.0] * at + [964.0] * (60 - at) for at in (20, 30, 39, 40, 45, 50, 54)),
        [900.0] * 32 + [964.0] * 12 + [1028.0] * 16,
        [900.0 + 60.0 * math.log1p(at) for at in RISING],
        [900.0 + 200.0 * (1.0 - math.exp(-at / 30.0)) for at in RISING],
        [900.0 + 10.0 * min(at, 50) for at in RISING],
    ],
)
def test_steps_and_what_levels_off_are_no_leak(mib):
    assert judged(rounds=soak([0.5] * 60, mib=mib), baseline=soak([0.5] * 60, mib=[900.0] * 60)).outcome is Outcome.PASS


@pytest.mark.parametrize("mib", [[900.0 + 64.0 * (at // 6) for at in RISING], [900.0 + at + 0.3 * (-1) ** at for at in RISING]])
def test_leaks_in_arenas_and_slow_ones_are_seen(mib):
    verdict = judged(rounds=soak([0.5] * 60, mib=mib), baseline=soak([0.5] * 60, mib=[900.0] * 60))
    assert verdict.names == endurance.MEMORY_GROWS


def test_shares_that_drift_or_settle_are_no_decay():
    assert judged(rounds=soak([0.6] * 7 + [0.53] * 53)).outcome is Outcome.PASS
    assert judged(rounds=soak([0.9] * 10 + [0.5] * 50)).outcome is Outcome.PASS
    random = np.random.default_rng(5)
    for _ in range(40):
        shares, drift = [], random.standard_normal()
        for _ in range(60):
            shares.append(0.5 + 0.03 * drift)
            drift = 0.9 * drift + math.sqrt(1.0 - 0.9**2) * random.standard_normal()
        assert judged(rounds=soak(shares)).outcome is not Outcome.FAIL


def test_prompts_that_move_between_ranks_are_no_decay_of_one():
    verdict = judged(rounds=soak(ranks=(SLOW, [1.0 - one for one in SLOW])))
    assert verdict.outcome is Outcome.PASS
    assert any("rank0" in line for line in verdict.evidence)


def test_what_is_refused_after_minutes_alone_fails():
    refused = [
        replace(answer(one.request_id, status=400, error="no room"), pass_index=1)
        if one.pass_index and one.request_id in GREEDY[:2]
        else one
        for one in answers()
    ]
    refusing = tuple(replace(one, refused=5) for one in soak())
    for verdict in (judged(mine=refused), judged(rounds=refusing)):
        assert (verdict.outcome, verdict.names) == (Outcome.FAIL, endurance.REFUSES_LATER)
    both = judged(rounds=tuple(replace(one, refused=5) for one in soak(SLOW)), baseline=refusing)
    assert both.outcome is Outcome.PASS, "what is left of the requests may have fewer drafts"


def test_traffic_of_others_is_no_decay_of_drafts():
    for given in ({"foreign": "12,345 tokens"}, {"uncounted": "300 tokens"}):
        verdict = judged(rounds=soak(SLOW), **given)
        assert verdict.outcome is Outcome.PASS
        assert "drafts not compared" in verdict.headline
    assert judged(rounds=soak([1.2, *SLOW])).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "shares",
    [[0.5] * 6 + [0.0] * 6, [0.5] * 8 + [0.0] * 8, [0.5] * 57 + [0.1] * 3, [0.5] * 3 + [0.0] * 57],
)
def test_a_fall_that_may_be_chance_is_not_passed_over(shares):
    verdict = judged(mine=UNCOUNTED, rounds=soak(shares))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "more minutes" in verdict.settle


def test_half_of_the_drafts_lost_is_a_decay_and_hardly_any_left_is_their_end():
    half = (1, 4, 1, 1, 1) * 5
    for later, name in ((half, endurance.DRAFTS_DECAY), (DEAD, endurance.DRAFTS_DIE)):
        verdict = judged(mine=answers(later))
        assert verdict.names == name
        assert verdict.headline.startswith(name)


def test_a_pass_says_what_was_not_measured():
    verdict = judged(mine=answers(), rounds=tuple(replace(one, counters=None) for one in soak()))
    assert verdict.outcome is Outcome.PASS
    assert "drafts not counted" in verdict.headline
    assert "memory not known" in verdict.headline
    assert "as at first" not in verdict.headline


def test_wrong_answers_from_the_beginning_keep_greedys_name():
    verdict = judged(wrong=[(GREEDY[0], 0), (GREEDY[0], 1), (GREEDY[1], 1)])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names != endurance.WRONG_LATER


def test_near_ties_with_a_noisy_token_after_the_soak_keep_their_name(monkeypatch):
    monkeypatch.setattr(endurance.greedy, "judge", lambda part: say(part, Outcome.FAIL, "near-ties", names="near-ties"))
    assert judged(wrong=[(GREEDY[0], 1)]).names == "near-ties"


def test_a_failure_that_comes_back_in_the_same_traffic_is_named_by_it():
    failure = ServerFailure(request_id=GREEDY[0], ending=FailureKind.DIED, recurred=True, in_soak=True, process="server, exit code 1")
    verdict = judged(rounds=soak(failed=1), failures=[failure])
    assert verdict.outcome is Outcome.FAIL
    assert endurance.FAILS in verdict.names
    assert "alone" not in verdict.headline
    ordinary = judged(rounds=soak(failed=1), failures=[replace(failure, in_soak=False)])
    assert (ordinary.outcome, endurance.FAILS in ordinary.names) == (Outcome.FAIL, False), "it recurred alone, before the soak"
    assert judged(rounds=soak(failed=1), baseline=soak(failed=1), failures=[failure]).outcome is Outcome.INVALID


def test_too_few_rounds_decide_nothing():
    assert judged(rounds=soak(FLAT[:9])).outcome is Outcome.INCONCLUSIVE
