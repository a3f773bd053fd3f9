"""Sequences up to the limit of a server: refusals, lengths and tokens, each breach by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import context
from pytest_specdec.judge.context import ContextFlaw
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts.context import EDGES, LONG, fitted
from tests.judge.captured_values import VARIANT, a_workload, answer, calibration, captured, score

LIMIT = 256
REFUSED = "maximum context length is 256 tokens"
LONG_256, EDGES_256 = (fitted(workload, LIMIT) for workload in (LONG, EDGES))


def lawful(workload):
    return {
        request.id: answer(request.id, range(100, 100 + most), finish="length") if total <= LIMIT else refused(request.id)
        for request in workload.requests
        for most in [request.body["max_tokens"]]
        for total in [len(request.body["prompt"]) + most]
    }


def refused(name):
    return answer(name, status=400, error=REFUSED)


def judged(workload, *wrong, gaps=None, control=None, sent=None, **fields):
    """Judge answers to ``workload``, which the plan has as ``sent`` where that is left open."""
    base = lawful(workload)
    ours, control = base | {each.request_id: each for each in wrong}, base | (control or {})
    scores = {}
    if workload.scored:
        arms = {VARIANT: ours, "baseline": base, "control": control}
        scores = {
            arm: tuple(
                score(arm, each, (gaps or {}).get(each.request_id, {}) if arm == VARIANT else {}) for each in answers.values() if each.ok
            )
            for arm, answers in arms.items()
        }
    arms = [list(answers.values()) for answers in (ours, base, control)]
    return context.judge(captured("context", *arms, workload=sent or workload, **{"scores": scores, **fields}))


@pytest.mark.parametrize("workload, longest", [(LONG_256, LIMIT), (EDGES_256, LIMIT)])
def test_sequences_up_to_the_limit_pass(workload, longest):
    verdict = judged(workload)
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["longest_tokens"] == longest


@pytest.mark.parametrize(
    "flaw, wrong",
    [
        (ContextFlaw.REFUSED, refused("limit-exact")),
        (ContextFlaw.ADMITTED, answer("limit-plus-1", range(23), finish="length")),
        (ContextFlaw.SHORT, answer("limit-exact", range(100, 120), finish="length")),
        (ContextFlaw.OVERRUN, answer("limit-four-tokens", range(100, 106), finish="length")),
    ],
)
def test_each_breach_is_named(flaw, wrong):
    verdict = judged(EDGES_256, wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, flaw.value)
    assert verdict.headline == f"{flaw.value}: 1 of {len(EDGES_256.requests)} answers, none of the baseline's to the same requests"
    assert wrong.request_id in verdict.short[0]


@pytest.mark.parametrize(
    "flaw, name, index",
    [(ContextFlaw.NEAR, "limit-less-1", 20), (ContextFlaw.NEAR, "limit-full-23", 22), (ContextFlaw.WRONG, "prompt-64", 3)],
)
def test_a_wrong_token_is_named_by_how_near_the_limit_is(flaw, name, index):
    verdict = judged(LONG_256, gaps={name: {index: 3.0}})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, flaw.value)
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id=name)


def test_a_pass_says_which_tokens_lie_beyond_the_noise():
    """No round asks again near the limit, where a line more would not fit, so that too few for an alarm are left open nowhere."""
    verdict = judged(LONG_256, gaps={"prompt-64": {3: 3.0}}, calibration=calibration(2000, noise=0.02))
    assert verdict.outcome is Outcome.PASS
    assert "1 beyond the noise, too few for an alarm: 0 of " in verdict.headline
    assert "beyond the noise" not in judged(LONG_256).headline


def test_a_server_of_text_alone_refuses_the_workload_in_its_own_words():
    """mlx-lm says so with 404, transformers with 422; both arms and the control do."""
    words = "text input must be of type str"
    answers = [answer(request.id, status=404, error=words) for request in LONG_256.requests]
    verdict = context.judge(captured("context", answers, answers, answers, workload=LONG_256))
    assert (verdict.outcome, verdict.cell) == (Outcome.REFUSED, "404")
    assert verdict.headline == f'all {len(answers)} requests were refused with 404: "{words}"; the baseline refuses them too'


def test_what_one_boot_of_the_baseline_refuses_decides_nothing():
    verdict = judged(EDGES_256, refused("limit-exact"), control={"limit-exact": refused("limit-exact")})
    assert verdict.outcome is Outcome.PASS


def test_without_a_known_limit_nothing_is_tried():
    verdict = judged(fitted(EDGES, None))
    assert (verdict.outcome, verdict.cell) == (Outcome.REFUSED, "limit unknown")


@pytest.mark.parametrize("workload, longest", [(LONG, LIMIT), (EDGES, LIMIT)])
def test_a_limit_that_the_baseline_told_is_as_good_as_one_of_the_config(workload, longest):
    told = {"baseline": Capabilities(context_tokens=LIMIT)}
    filled = LONG_256 if workload is LONG else EDGES_256
    assert judged(filled).figures["longest_tokens"] == longest
    sent = judged(filled, refused(filled.requests[0].id), sent=workload, capabilities=told)
    assert (sent.outcome, sent.names) == (Outcome.FAIL, ContextFlaw.REFUSED.value)
    verdict = judged(filled, sent=workload, capabilities=told)
    assert (verdict.outcome, verdict.figures["longest_tokens"]) == (Outcome.PASS, longest)


@pytest.mark.parametrize("told, words", [(0, "is unknown"), (131072, "is 131072 tokens, too long to be filled")])
def test_a_pass_says_where_nothing_went_up_to_the_limit(told, words):
    verdict = judged(fitted(LONG, None), sent=LONG, capabilities={"baseline": Capabilities(context_tokens=told)})
    assert verdict.outcome is Outcome.PASS
    assert f"the server's longest sequence {words}: none goes up to it" in verdict.evidence


def test_without_scores_the_tokens_are_undecided():
    unscored = Capabilities(support={"prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.REFUSED})
    verdict = judged(LONG_256, scores={}, capabilities={"baseline": unscored})
    assert verdict.outcome is Outcome.INCONCLUSIVE
    few = replace(LONG_256, requests=LONG_256.requests[:2])
    assert judged(few, scores={}).outcome in {Outcome.INCONCLUSIVE, Outcome.INVALID}


def test_chats_of_a_users_own_suite_have_a_sequence_as_well():
    chat = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 5}
    requests = [Request(id=name, route=Route.CHAT, body=chat) for name in ("end-1", "end-2")]
    answers = [answer(request.id, range(5), finish="length") for request in requests]
    verdict = context.judge(captured("context", answers, answers, answers, workload=replace(a_workload(requests), scored=False)))
    assert verdict.outcome is Outcome.PASS
