"""Adapters: wrong tokens are named by the requests that they go with; refusals and drafts are held against others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import adapters
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, captured, score

ORDER = (
    "alone/a/base",
    "alone/a/first",
    "alone/b/first",
    "alone/b/base",
    "mixed/c/base",
    "mixed/d/first",
    "mixed/e/second",
    "mixed/f/drawn",
)
WAVES = (1, 1, 1, 1, 4)
ALIVE, DEAD = (1, *(4, 1) * 8), (1, *(1,) * 39)
STARTS = {name: 100 * index for index, name in enumerate(ORDER, 1)}


def weights(name):
    place = name.rpartition("/")[2]
    return "" if place in {"base", "drawn"} else place


def a_request(name):
    adapter, sampled = weights(name), name.endswith("drawn")
    body = {"prompt": name.split("/")[1], "max_tokens": 40, "temperature": float(sampled), **({"model": adapter} if adapter else {})}
    return Request(id=name, route=Route.COMPLETIONS, body={**body, **({"seed": 1} if sampled else {})}, adapter=adapter)


WORKLOAD = a_workload(map(a_request, ORDER), waves=WAVES)


def answers(windows=lambda _: ALIVE, refused=()):
    return [
        answer(name, status=404, error="The model does not exist.")
        if name in refused
        else answer(name, range(STARTS[name], STARTS[name] + 40), finish="length", windows=windows(name))
        for name in ORDER
    ]


def judged(mine, wrong=(), baseline=None, **fields):
    """The verdict where the ids in ``wrong`` have a wrong token each."""
    baseline = baseline or answers()
    gaps = {name: {5: 4.0} for name in wrong}
    scores = {
        VARIANT: tuple(score(VARIANT, each, gaps.get(each.request_id, ())) for each in mine if each.ok),
        "baseline": tuple(score("baseline", each) for each in baseline if each.ok),
        "control": tuple(score("control", each) for each in baseline if each.ok),
    }
    return adapters.judge(captured("adapters", mine, baseline, baseline, workload=WORKLOAD, scores=scores, alpha=1e-5, **fields))


def test_the_baseline_s_tokens_under_each_adapter_pass_and_are_counted_by_circumstance():
    verdict = judged(answers())
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.endswith("4 of 8 answers with one of 2 adapters, 4 in mixed batches")


@pytest.mark.parametrize(
    "wrong, name",
    [
        (["alone/a/first", "alone/b/first"], adapters.WRONG),
        (["alone/b/first", "mixed/e/second"], adapters.WRONG),
        (["mixed/d/first", "mixed/e/second"], adapters.WRONG_MIXED),
        (["mixed/c/base", "mixed/e/second"], adapters.LEAK),
        (["mixed/c/base"], adapters.LEAK),
    ],
)
def test_wrong_tokens_are_named_by_the_requests_that_they_go_with(wrong, name):
    verdict = judged(answers(), wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert verdict.headline.startswith(f"{name}: {len(wrong)} of 7 answers hold a wrong token")


def test_a_prompt_that_was_asked_under_other_weights_first_names_the_cache():
    kinds = adapters.circumstances(WORKLOAD)
    assert [name for name, kind in kinds.items() if kind.is_crossed] == ["alone/a/first", "alone/b/base"]
    assert [name for name, kind in kinds.items() if kind.is_mixed] == [name for name in ORDER if name.startswith("mixed/")]
    for wrong in (["alone/a/first"], ["alone/b/base"], ["alone/a/first", "alone/b/base"]):
        assert judged(answers(), wrong).names == adapters.CACHE


def test_wrong_tokens_without_an_adapter_and_alone_are_no_matter_of_adapters():
    verdict = judged(answers(), ["alone/a/base", "alone/b/first"])
    assert verdict.outcome is Outcome.FAIL
    assert "adapter" not in verdict.names
    assert any(line.endswith("1 of 1 without, 1 of 1 with an adapter") for line in verdict.short)


def test_a_wrong_end_is_not_named_by_a_single_token_under_an_adapter():
    first, *others = answers()
    ended = replace(first, choices=(replace(first.choice, finish_reason="stop"),))
    verdict = judged([ended, *others], ["mixed/e/second"])
    assert (verdict.outcome, "finish_reason" in verdict.names) == (Outcome.FAIL, True)


def test_adapters_that_the_baseline_serves_and_the_variant_refuses_fail():
    verdict = judged(answers(refused=["alone/a/first", "mixed/e/second"]))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, adapters.UNSERVED)
    assert "2 of 4, which the baseline answers; first: request alone/a/first, 404" in verdict.headline


def test_adapters_that_the_baseline_refuses_too_are_not_served_here():
    refused = [name for name in ORDER if weights(name)]
    assert judged(answers(refused=refused), baseline=answers(refused=refused)).outcome is Outcome.REFUSED


def dead_with_adapter(name):
    return DEAD if weights(name) else ALIVE


def test_drafts_that_are_never_accepted_with_an_adapter_fail():
    verdict = judged(answers(dead_with_adapter))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, adapters.UNACCEPTED)
    assert "0 of 152 verify steps accepted a draft token" in verdict.headline


def test_a_drafter_without_the_adapter_may_have_fewer_drafts_accepted():
    fewer = (1, *(1,) * 10, 2, *(1,) * 26, 2)
    assert judged(answers(lambda name: fewer if weights(name) else ALIVE)).outcome is Outcome.PASS


def test_prompt_lookup_that_finds_nothing_to_draft_is_no_fault():
    verdict = judged(answers(dead_with_adapter), pair=a_pair(DraftKind.NGRAM))
    assert verdict.outcome is Outcome.PASS
