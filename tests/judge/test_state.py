"""State: phases are judged by scores, repeats by their drafts, cached tokens by what prompts and the baseline have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import state
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, captured, score

ORDER = ("cold/a", "cold/b", "warm/a", "shared/9", "long/x", "after-long/a", "again/b", "left/y", "after-left/a")
TEXT = dict(zip(ORDER, "abasxabya", strict=True))
TOKENS = {name: tuple(range(start, start + 40)) for name, start in (("a", 100), ("b", 200), ("s", 300), ("x", 400), ("y", 500))}
ALIVE, DEAD = (1, *(4, 3) * 5, 4), (1, *(1,) * 39)
WORKLOAD = a_workload(
    Request(id=name, route=Route.COMPLETIONS, body={"prompt": TEXT[name], "max_tokens": 40, "temperature": 1.5 * name.startswith("left/")})
    for name in ORDER
)


def answers(windows=ALIVE, cached=None, **changed):
    """One per request of the order, ``changed`` by its id with underscores."""
    given = []
    for name in ORDER:
        tokens = TOKENS[TEXT[name]]
        usage = Usage(
            prompt_tokens=100, completion_tokens=40, cached_tokens=cached if name in {"warm/a", "after-long/a", "again/b"} else None
        )
        if name.startswith("left/"):
            given.append(changed.get("left_y", replace(answer(name, status=None), aborted=True)))
            continue
        one = answer(name, tokens, finish="length", windows=windows, usage=usage)
        given.append(changed.get(name.replace("/", "_").replace("-", "_"), lambda one: one)(one))
    return given


def judged(mine, wrong=(), baseline=None, control=None, **fields):
    """The verdict where the ids in ``wrong`` have a wrong token each."""
    baseline, control = baseline or answers(), control or answers()
    gaps = {name: {5: 4.0} for name in wrong}
    scores = {
        VARIANT: tuple(score(VARIANT, each, gaps.get(each.request_id, ())) for each in mine),
        "baseline": tuple(score("baseline", each) for each in baseline),
        "control": tuple(score("control", each) for each in control),
    }
    return state.judge(captured("state", mine, baseline, control, workload=WORKLOAD, scores=scores, alpha=1e-5, **fields))


def test_a_server_without_a_memory_of_its_own_passes_and_says_how_often_it_was_asked_again():
    verdict = judged(answers(cached=96), baseline=answers(cached=96))
    assert verdict.outcome is Outcome.PASS
    assert "4 of 8 prompts asked again; 288 of 800 prompt tokens reported as cached" in verdict.headline


def test_without_reported_cached_tokens_a_pass_says_that_the_cache_may_be_off():
    assert "may be off" in judged(answers()).headline


@pytest.mark.parametrize(
    "wrong, name",
    [
        (["warm/a"], state.SECOND_WRONG),
        (["again/b", "shared/9"], state.SECOND_WRONG),
        (["shared/9"], state.PREFIX_WRONG),
        (["after-long/a"], state.LONG_WRONG),
        (["after-left/a"], state.LEFT_WRONG),
        (["after-left/a", "after-long/a"], state.SECOND_WRONG),
    ],
)
def test_wrong_tokens_behind_a_beginning_that_came_before_are_named_by_what_came_before(wrong, name):
    verdict = judged(answers(), wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert f"{len(wrong)} of 5 answers, none of 3 to prompts new to it" in verdict.headline


def test_a_sampled_stream_that_was_over_before_its_client_left_is_no_wrong_answer():
    ended = answer("left/y", TOKENS["y"], finish="length", windows=ALIVE)
    assert judged(answers(left_y=ended), ["left/y"]).outcome is Outcome.PASS


def test_wrong_tokens_of_new_prompts_too_are_no_matter_of_state():
    verdict = judged(answers(), ["cold/a", "warm/a"])
    assert verdict.outcome is Outcome.FAIL
    assert not verdict.names.startswith(("the second", "an answer depends"))
    assert any("cold 1 of 2, warm 1 of 1" in line for line in verdict.short)


def test_a_wrong_end_is_not_named_by_a_single_token_of_a_repeated_prompt():
    verdict = judged(answers(cold_a=lambda one: replace(one, choices=(replace(one.choice, finish_reason="stop"),))), ["warm/a"])
    assert (verdict.outcome, "finish_reason" in verdict.names) == (Outcome.FAIL, True)


def cut(tokens):
    return lambda one: replace(
        one,
        choices=(replace(one.choice, token_ids=one.choice.token_ids[:tokens], windows=(1,), finish_reason="stop"),),
        usage=replace(one.usage, completion_tokens=tokens),
    )


def test_a_repeated_prompt_that_gets_next_to_nothing_fails():
    verdict = judged(answers(warm_a=cut(1)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, state.SECOND_EMPTY)
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="warm/a")
    assert "1 of 4 prompts asked again; first: request warm/a" in verdict.headline


def test_what_the_baseline_answers_with_nothing_as_well_is_no_empty_answer():
    assert judged(answers(warm_a=cut(1)), baseline=answers(warm_a=cut(1))).names != state.SECOND_EMPTY


def slowed(one):
    return replace(one, choices=(replace(one.choice, windows=DEAD),))


def test_drafts_that_die_on_repeats_fail_by_name():
    verdict = judged(answers(warm_a=slowed, again_b=slowed))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, state.DRAFTS_DIE)


def test_drafts_that_die_are_seen_where_nobody_says_how_long_a_draft_is():
    """The later answers alone show no draft at all."""
    unknown = a_pair(k=0)
    verdict = judged(answers(warm_a=slowed, again_b=slowed), pair=unknown)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, state.DRAFTS_DIE)


def test_drafts_that_die_behind_a_long_request_fail_by_another_name():
    assert judged(answers(after_long_a=slowed)).names == state.DRAFTS_DIE_LATER


def test_drafts_that_fall_off_a_little_do_not_fail():
    def slightly(one):
        return replace(one, choices=(replace(one.choice, windows=(1, *(3,) * 13)),))

    assert judged(answers(warm_a=slightly)).outcome is Outcome.PASS


def test_answers_that_are_not_equal_are_not_compared_by_their_drafts():
    def another(one):
        return replace(slowed(one), choices=(replace(one.choice, token_ids=(7, *one.choice.token_ids[1:]), windows=DEAD),))

    assert judged(answers(warm_a=another)).names != state.DRAFTS_DIE


def test_more_cached_tokens_than_the_prompt_has_fail():
    assert judged(answers(cached=101)).names == state.OVERCOUNT
    assert judged(answers(cached=101), baseline=answers(cached=101)).outcome is Outcome.PASS


def test_a_cache_that_only_the_baseline_uses_fails():
    well = {"baseline": answers(cached=96), "control": answers(cached=96)}
    assert judged(answers(), **well).names == state.DEFEATED
    assert judged(answers(), baseline=answers(cached=32), control=answers(cached=32)).outcome is Outcome.PASS


def begun_like_another(one):
    """With one cached block, so that the counts show its size."""
    return replace(one, usage=replace(one.usage, cached_tokens=16))


@pytest.mark.parametrize(
    "cached, kind, outcome",
    [
        (48, DraftKind.MODEL, Outcome.FAIL),
        (80, DraftKind.MODEL, Outcome.PASS),
        (64, DraftKind.MODEL, Outcome.FAIL),
        (64, DraftKind.HEAD, Outcome.PASS),
        (48, DraftKind.HEAD, Outcome.FAIL),
    ],
)
def test_a_cache_that_is_used_in_part_fails_from_a_second_block_on_and_with_heads_from_a_third(cached, kind, outcome):
    well = {name: answers(cached=96, cold_b=begun_like_another) for name in ("baseline", "control")}
    verdict = judged(answers(cached=cached, cold_b=begun_like_another), pair=a_pair(kind), **well)
    assert (verdict.outcome, verdict.names) == (outcome, state.LOST if outcome is Outcome.FAIL else "")
    if outcome is Outcome.FAIL:
        assert f"3 of 3 prompts asked again have over {16 if kind is DraftKind.MODEL else 32} cached tokens fewer" in verdict.headline


def test_a_part_of_the_cache_is_lost_only_where_every_boot_of_the_baseline_has_it():
    assert judged(answers(cached=48), baseline=answers(cached=96), control=answers(cached=48)).outcome is Outcome.PASS


def test_an_arm_that_reports_no_cached_tokens_has_lost_none():
    assert judged(answers(), baseline=answers(cached=32), control=answers(cached=32)).outcome is Outcome.PASS


def test_unscored_answers_are_judged_by_what_needs_no_scores():
    mine = answers(warm_a=slowed, again_b=slowed)
    scores = {"baseline": tuple(score("baseline", each) for each in answers())}
    verdict = state.judge(captured("state", mine, answers(), answers(), workload=WORKLOAD, scores=scores, alpha=1e-5))
    assert verdict.outcome is Outcome.INVALID


def test_every_verdict_is_told_once():
    told = []
    judged(answers(), on_verdict=told.append)
    judged(answers(), ["warm/a"], on_verdict=told.append)
    assert [verdict.outcome for verdict in told] == [Outcome.PASS, Outcome.FAIL]
