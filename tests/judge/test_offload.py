"""Offload: a prompt asked again is judged as everywhere, and its verdict speaks of the cache that came back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import offload
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts.offload import out_and_back
from tests.judge.captured_values import VARIANT, answer, captured, score

WORKLOAD = out_and_back()
ALIVE, DEAD = (1, *(4, 3) * 4, 3), (1,) * 32


def answers(windows=ALIVE, back=128, between=130):
    """One per request, all with the answer of their prompt; those asked again have ``back`` cached tokens."""
    tokens = {request.body["prompt"]: tuple(range(100 * index, 100 * index + 32)) for index, request in enumerate(WORKLOAD.requests)}
    given = []
    for request in WORKLOAD.requests:
        is_back = request.id.startswith("warm/")
        usage = Usage(prompt_tokens=between, completion_tokens=32, cached_tokens=back if is_back else 0)
        steps = windows if is_back else ALIVE
        given.append(answer(request.id, tokens[request.body["prompt"]], finish="length", windows=steps, usage=usage))
    return given


def judged(mine, wrong=(), baseline=None):
    baseline = baseline or answers()
    gaps = {name: {5: 4.0} for name in wrong}
    scores = {
        VARIANT: tuple(score(VARIANT, each, gaps.get(each.request_id, ())) for each in mine),
        **{arm: tuple(score(arm, each) for each in baseline) for arm in ("baseline", "control")},
    }
    return offload.judge(captured("offload", mine, baseline, baseline, workload=WORKLOAD, scores=scores, alpha=1e-6))


def test_every_prompt_of_the_first_part_comes_back_in_the_last():
    first, last = ([request.asks for request in WORKLOAD.requests if request.id[:6] in ids] for ids in (FIRST, LAST))
    assert first == last
    assert len({request.asks for request in WORKLOAD.requests}) == len(WORKLOAD.requests) - len(last)
    assert not out_and_back(take={Depth.SMOKE: 0}).at(Depth.SMOKE).requests


FIRST, LAST = ({f"{phase}/{number}" for number in range(4)} for phase in ("cold", "warm"))


def test_a_cache_that_comes_back_whole_passes():
    assert judged(answers()).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "mine, wrong, name",
    [
        (answers(), ["warm/1"], offload.BACK_WRONG),
        (answers(DEAD), (), offload.DRAFTS_LOST),
        (answers(back=0), (), offload.NEVER_SERVED),
        (answers(back=48), (), offload.PARTLY_SERVED),
    ],
)
def test_what_is_wrong_with_a_prompt_asked_again_is_named_by_the_offload(mine, wrong, name):
    verdict = judged(mine, wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert name in verdict.headline
    assert "asked again:" not in verdict.names


@pytest.mark.parametrize(
    "baseline, words", [(answers(back=0), "took no cached token back"), (answers(between=20), "tokens came before the prompts")]
)
def test_nothing_is_passed_where_nothing_was_offloaded(baseline, words):
    verdict = judged(baseline, baseline=baseline)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.headline


def test_the_one_verdict_is_reported_once():
    given = []
    mine = answers(back=0)
    scores = {arm: tuple(score(arm, each) for each in mine) for arm in (VARIANT, "baseline", "control")}
    whole = captured("offload", mine, answers(), answers(), workload=WORKLOAD, scores=scores, alpha=1e-6)
    verdict = offload.judge(replace(whole, on_verdict=given.append))
    assert given == [verdict]
