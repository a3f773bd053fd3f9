"""A shift of reported log-probabilities: red where requests with something before or beside them are off, and others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import concurrency, context, state
from pytest_specdec.judge.logprob_shift import shift
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_workload, answer, calibration, captured, score

TOKENS = 40
SINGLE = {"capabilities": {"baseline": Capabilities(single_precision=True)}}
HALF = {"capabilities": {"baseline": Capabilities()}, "calibration": calibration(2000, noise=0.03, jumps=1)}
USUAL = ("cold/a", "cold/b", "long/c")
MOVED = ("shared/1", "shared/2", "shared/3", "turn/4")


def asked(ids, **fields):
    body = {"prompt": "a", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return a_workload([Request(id=id_, route=Route.COMPLETIONS, body={**body, "prompt": id_}, reports=True) for id_ in ids], **fields)


def given(workload, arm, off, random, noise):
    """Answers of an arm whose log-probabilities lie beside their scores by ``noise``, and by ``off`` of a request more."""
    answers, scores = [], []
    for place, request in enumerate(workload.requests):
        usage = Usage(prompt_tokens=100, completion_tokens=TOKENS)
        plain = answer(request.id, range(100 * place, 100 * place + TOKENS), finish="length", usage=usage, windows=(1, *(3,) * 13))
        scored = score(arm, plain)
        sd = np.hypot(noise, off.get(request.id, 0.0))
        reported = tuple(min(0.0, each.logprob + sd * random.standard_normal()) for each in scored.positions)
        choice = replace(plain.choice, logprobs=reported if request.reports else None)
        answers.append(replace(plain, choices=(choice,)))
        scores.append(scored)
    return answers, tuple(scores)


def seen(off, *, workload=None, family="state", noise=0.0, **fields):
    random, workload = np.random.default_rng(1), workload or asked((*USUAL, *MOVED))
    mine, my_scores = given(workload, VARIANT, off, random, noise)
    theirs, their_scores = given(workload, "baseline", {}, random, noise)
    again, more_scores = given(workload, "control", {}, random, noise)
    scores = {VARIANT: my_scores, "baseline": their_scores, "control": more_scores}
    return captured(family, mine, theirs, again, workload=workload, scores=scores, alpha=1e-6, **{**SINGLE, **fields})


def test_what_is_off_nowhere_is_none():
    assert shift(seen({}), USUAL) is None
    assert shift(seen({}, noise=0.03, **HALF), USUAL) is None


@pytest.mark.parametrize("noise, fields", [(0.0, SINGLE), (0.03, HALF)])
def test_requests_that_are_off_beside_others_that_are_not_are_told(noise, fields):
    found = shift(seen(dict.fromkeys(MOVED[:3], 0.5), noise=noise, **fields), USUAL)
    assert set(found.requests) == set(MOVED[:3])
    assert f"over {len(MOVED) * TOKENS} tokens" in found.told
    assert found.moved.arm.arm == VARIANT


def test_what_is_off_everywhere_is_the_finding_of_another_family():
    assert shift(seen(dict.fromkeys((*USUAL, *MOVED), 0.5)), USUAL) is None


def test_noise_that_a_verify_kernel_may_have_is_no_shift():
    assert shift(seen(dict.fromkeys(MOVED, 0.08), noise=0.03, **HALF), USUAL) is None


def test_too_few_tokens_of_either_part_are_no_shift():
    few = asked((*USUAL, MOVED[0]))
    assert shift(seen({MOVED[0]: 0.5}, workload=few), USUAL) is None
    assert shift(seen(dict.fromkeys(MOVED, 0.5), workload=asked(MOVED)), USUAL) is None


def one_token_off(fields, noise):
    one = seen({}, noise=noise, **fields)
    *others, last = one.speculative.answers
    values = list(last.choice.logprobs)
    values[7] -= 3.0
    last = replace(last, choices=(replace(last.choice, logprobs=tuple(values)),))
    return replace(one, speculative=replace(one.speculative, answers=(*others, last)))


def test_one_token_is_proof_where_servers_do_not_jump_and_none_where_they_may():
    assert shift(one_token_off(SINGLE, 0.0), USUAL).requests == (MOVED[-1],)
    assert shift(one_token_off(HALF, 0.03), USUAL) is None


def test_values_that_nobody_asked_for_are_not_looked_at():
    workload = asked((*USUAL, *MOVED))
    silent = replace(workload, requests=tuple(replace(each, reports=each.id in USUAL) for each in workload.requests))
    one = seen(dict.fromkeys(MOVED, 0.5))
    assert shift(replace(one, workload=silent), USUAL) is None


def test_state_fails_by_what_came_before():
    verdict = state.judge(seen(dict.fromkeys(MOVED, 0.5)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, state.PREFIX_WRONG)
    assert "reported log-probabilities are off by" in verdict.headline
    assert state.judge(seen({})).outcome is Outcome.PASS
    assert state.judge(seen(dict.fromkeys((*USUAL, *MOVED), 0.5))).outcome is Outcome.PASS


def test_context_fails_near_the_limit():
    workload = asked(("short", "prompt-31", "limit-less-1", "limit-less-2", "limit-less-5"))
    limits = dict.fromkeys(("limit-less-1", "limit-less-2"), 0.5)
    verdict = context.judge(seen(limits, workload=workload, family="context"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "tokens near the context limit are wrong")
    assert context.judge(seen({}, workload=workload, family="context")).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "off, name",
    [
        (("r4", "r5"), "answers go wrong when a neighbour's client leaves"),
        (("r2", "r3", "r4", "r5"), "answers go wrong only in company"),
    ],
)
def test_concurrency_blames_what_the_waves_have_in_common(off, name):
    workload = asked([f"r{number}" for number in range(7)], waves=(1, 1, 2, 3))
    leaving = tuple(replace(each, abort_after=2 if each.id == "r6" else None, reports=each.id != "r6") for each in workload.requests)
    workload = replace(workload, requests=leaving)
    verdict = concurrency.judge(seen(dict.fromkeys(off, 0.5), workload=workload, family="concurrency"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert concurrency.judge(seen({}, workload=workload, family="concurrency")).outcome is Outcome.PASS
