"""Log-probabilities beside the baseline's own: of prompts, and of the tokens that both answered at temperature 0."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import logprobs
from pytest_specdec.judge.baseline_logprobs import check_echo
from pytest_specdec.model.captured import Capabilities, ReportedDraws
from pytest_specdec.model.transcript import Position, SpecCounters
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import a_workload, answer, captured

RANDOM = np.random.default_rng(3)
TRUE = tuple(float(value) for value in np.log(RANDOM.uniform(0.05, 0.9, size=24)))
TOKENS = tuple(range(100, 124))


def answers(values=TRUE, prompt=TRUE, *, tokens=TOKENS, noise=0.0, seed=1):
    random = np.random.default_rng(seed)

    def noisy(given):
        return None if given is None else tuple(float(min(0.0, v + noise * random.normal())) for v in given)

    return [replace(answer(f"chat-{i:02}", tokens, logprobs=noisy(values)), prompt_logprobs=noisy(prompt)) for i in range(3)]


WORKLOAD = a_workload(
    [Request(id=f"chat-{i:02}", route=Route.COMPLETIONS, body={"temperature": 0, "max_tokens": 64, "logprobs": 0}) for i in range(3)],
    scored=False,
)


def judged(mine, theirs=None, control=None, *, temperature=0, prompts=False, **fields):
    body = {"temperature": temperature, "max_tokens": 64, **({"prompt_logprobs": 0} if prompts else {"logprobs": 0})}
    workload = a_workload([Request(id=f"chat-{i:02}", route=Route.COMPLETIONS, body=body) for i in range(3)], scored=False)
    theirs = answers() if theirs is None else theirs
    fields = {"calibration": ReportedDraws(), **fields}
    return logprobs.judge(captured("logprobs", mine, theirs, theirs if control is None else control, workload=workload, **fields))


def test_the_baselines_values_pass_and_say_how_near():
    verdict = judged(answers(noise=0.02))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["tokens"] == 2 * 3 * 24
    assert "(99%)" in verdict.rules_out


def test_values_that_are_far_off_fail():
    verdict = judged(answers(tuple(value - 1.0 for value in TRUE)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "reported log-probabilities are not the baseline's")
    assert verdict.example == Example(symptom=Symptom.LOGPROBS, request_id="chat-00", token=1, limit_nats=0.5)


@pytest.mark.parametrize("value, name", [
    (-9999.0, "reported log-probabilities are not the baseline's"),
    (0.3, "reported log-probabilities are above 0"),
    (5.0, "reported log-probabilities are above 0"),
    (1e4, "reported log-probabilities are above 0"),
])  # fmt: skip
def test_one_value_that_no_log_probability_has_fails_unless_the_baseline_reports_such_too(value, name):
    theirs = answers()
    choice = replace(theirs[0].choice, logprobs=(*TRUE[:3], value, *TRUE[4:]))
    wrong = [replace(theirs[0], choices=(choice,)), *theirs[1:]]
    verdict = judged(wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert judged(wrong, control=wrong).outcome is Outcome.PASS


def test_values_of_the_neighbour_are_named_so():
    verdict = judged(answers(TRUE[-1:] + TRUE[:-1]))
    assert verdict.names == "reported log-probabilities are those of a neighbouring token"


SINGLE = {"baseline": Capabilities(single_precision=True)}


@pytest.mark.parametrize(
    "far, known, control, outcome",
    [
        (2, SINGLE, 0, Outcome.PASS),
        (3, SINGLE, 0, Outcome.FAIL),
        (3, SINGLE, 1, Outcome.PASS),
        (3, {}, 0, Outcome.PASS),
        (20, {}, 0, Outcome.FAIL),
        (20, {}, 12, Outcome.PASS),
    ],
    ids=[
        "two",
        "three in single precision",
        "a baseline that jumps",
        "three of half precision",
        "twenty",
        "twenty and the baseline's twelve",
    ],
)
def test_a_few_tokens_are_a_finding_only_where_nothing_jumps(far, known, control, outcome):
    verdict = judged(off_by(far), control=off_by(control), capabilities=known, alpha=4.5e-6)
    assert verdict.outcome is outcome, verdict.headline


def off_by(far):
    """Answers of which so many tokens are off, in prompt and answer alike."""
    wrong = tuple(value - 2.0 if i < far else value for i, value in enumerate(TRUE))
    mine = answers()
    return [replace(mine[0], choices=(replace(mine[0].choice, logprobs=wrong),)), *mine[1:]]


def test_two_kernels_of_one_server_are_no_finding_whatever_their_tails():
    """Tails of .03 nats, a jump of a nat in one of a thousand tokens, and a verify kernel three times as noisy."""
    random = np.random.default_rng(5)

    def said(noise):
        jumps = (random.random((2, 72)) < 1e-3) * random.standard_normal((2, 72))
        deltas = noise * np.abs(random.standard_t(3, size=(2, 72))) * random.standard_normal((2, 72)) + jumps
        values = [tuple(float(min(0.0, value + delta)) for value, delta in zip(TRUE * 3, row, strict=True)) for row in deltas]
        cut = [(values[0][24 * i : 24 * i + 24], values[1][24 * i : 24 * i + 24]) for i in range(3)]
        return [
            replace(one, choices=(replace(one.choice, logprobs=answer),), prompt_logprobs=prompt)
            for one, (answer, prompt) in zip(answers(), cut, strict=True)
        ]

    assert {judged(said(0.09), said(0.03), said(0.03), alpha=4.5e-6).outcome for _ in range(30)} == {Outcome.PASS}


def test_without_another_report_of_the_baseline_a_lawful_rate_is_stated():
    mine, theirs = off_by(3), answers()
    unknown = {"workload": WORKLOAD, "calibration": ReportedDraws(), "alpha": 4.5e-6}
    alone = [captured("logprobs", given, theirs, **unknown) for given in (mine, off_by(8))]
    assert [logprobs.judge(one).outcome for one in alone] == [Outcome.PASS, Outcome.FAIL]


def test_noise_between_the_baselines_boots_widens_the_limit_and_wild_ones_excuse():
    wild = answers(noise=0.3, seed=4)
    assert judged(answers(noise=0.3), control=wild).outcome is Outcome.PASS
    off = answers(tuple(value - 1.0 for value in TRUE))
    assert judged(off, control=off).outcome is Outcome.PASS


def test_calibration_stands_in_where_there_is_no_control():
    position = Position(token_id=1, logprob=math.log(0.5), top_ids=(1,), top_logprobs=(math.log(0.5),))
    pairs = tuple((position.logprob + 0.3 * (-1) ** i, position) for i in range(50))
    off = answers(tuple(value - 1.0 for value in TRUE), tuple(value - 1.0 for value in TRUE))
    assert judged(off).outcome is Outcome.FAIL
    assert judged(off, calibration=ReportedDraws(answers=(pairs,))).outcome is Outcome.PASS


def test_only_tokens_behind_the_same_tokens_are_compared():
    others = answers(tuple(value - 1.0 for value in TRUE), tokens=(7, *TOKENS[1:]))
    verdict = judged(others, answers(prompt=None))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert judged(answers(tuple(value - 1.0 for value in TRUE), None), answers(prompt=None), temperature=1).outcome is Outcome.INCONCLUSIVE


def test_values_of_a_prompts_rare_tokens_count_too_and_those_of_marks_do_not():
    """Sixteen values of one prompt that are off by ten nats were no finding while only tokens of 2 % and more were compared."""
    rare = tuple(value - 6.0 for value in TRUE)
    noisy = {"noise": 0.02, "seed": 3}
    given = [answers(prompt=rare[:8] + tuple(value - 10.0 for value in rare[8:]), **noisy)[0], *answers(prompt=rare, **noisy)[1:]]
    verdict = judged(given, answers(prompt=rare, noise=0.02), answers(prompt=rare, noise=0.02, seed=2), prompts=True)
    assert (verdict.outcome, verdict.figures["tokens_far_off"]) == (Outcome.FAIL, 16.0)
    marked = tuple(-9999.0 for _ in TRUE)
    assert judged(answers(prompt=marked), answers(prompt=marked), temperature=1, prompts=True).outcome is Outcome.INCONCLUSIVE


def test_prompts_are_compared_whatever_is_answered_and_name_their_lengths():
    wrong = (*TRUE[:-8], *(value - 3.0 for value in TRUE[-8:]))
    verdict = judged(answers(prompt=wrong), prompts=True)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "log-probabilities of prompts are not the baseline's")
    assert "in prompts of 25 tokens; of the baseline against itself, 0 of " in verdict.headline
    every = tuple(value - 3.0 for value in TRUE)
    assert ": all 72 of prompts of 25 tokens; " in judged(answers(prompt=every), prompts=True).headline
    assert judged(answers(prompt=TRUE), prompts=True).outcome is Outcome.PASS


def test_wrong_values_of_answers_make_up_for_no_right_ones_of_prompts():
    """Of 72 values of prompts 69 are off, of the answers' 72 three."""
    all_but_one = (TRUE[0], *(value - 3.0 for value in TRUE[1:]))
    headline = judged(answers((TRUE[0] - 3.0, *TRUE[1:]), prompt=all_but_one)).headline
    assert "72 of 144 are off" in headline
    assert ", in prompts of 25 tokens" in headline


@pytest.mark.parametrize("prompt", [None, TRUE[:-1]])
def test_log_probabilities_of_prompts_that_are_missing_fail(prompt):
    verdict = judged(answers(prompt=prompt), prompts=True)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "log-probabilities of prompts are missing")


def test_a_baseline_that_reports_none_of_its_prompts_is_refused():
    assert judged(answers(), answers(prompt=None), prompts=True).outcome is Outcome.REFUSED


def test_a_pass_needs_speculation_and_answers_that_failed_are_left_out():
    assert judged(answers(), counters=SpecCounters()).outcome is Outcome.NOT_SPECULATING
    mine = [replace(answers()[0], status=400, choices=()), *answers()[1:]]
    assert judged(mine).figures["tokens"] == 2 * 2 * 24


ECHO = "so he can do it"


def echoed(text=ECHO + " now", prompt=TRUE):
    return [replace(each, choices=(replace(each.choice, text=text),)) for each in answers(prompt=prompt)]


def echo_judged(mine, theirs=None, control=None):
    body = {"temperature": 0, "max_tokens": 64, "prompt": ECHO, "echo": True, "logprobs": 1}
    workload = a_workload([Request(id=f"chat-{i:02}", route=Route.COMPLETIONS, body=body) for i in range(3)], scored=False)
    theirs = echoed() if theirs is None else theirs
    return logprobs.judge(captured("logprobs", mine, theirs, theirs if control is None else control, workload=workload))


def test_an_echo_of_the_prompt_with_the_baselines_values_passes():
    assert echo_judged(echoed()).outcome is Outcome.PASS


def test_a_chat_has_no_prompt_to_echo():
    body = {"temperature": 0, "max_tokens": 64, "messages": [{"role": "user", "content": ECHO}], "echo": True}
    workload = a_workload([Request(id=f"chat-{i:02}", route=Route.CHAT, body=body) for i in range(3)], scored=False)
    assert check_echo(captured("logprobs", answers(), answers(), answers(), workload=workload)) is None


def test_a_text_without_the_echo_fails_where_the_baselines_has_it():
    verdict = echo_judged(echoed("o he can do it now"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the text does not begin with the prompt that is echoed")
    assert verdict.short or verdict.evidence[0].startswith("chat-00")


def test_a_text_without_the_echo_is_no_finding_where_one_boot_of_the_baseline_lacks_it_too():
    assert echo_judged(echoed("now"), control=echoed("now")).outcome is Outcome.PASS
    assert echo_judged(echoed("now"), theirs=echoed("now")).outcome is Outcome.PASS


def test_an_echo_without_its_values_fails_and_one_that_the_baseline_ignores_is_refused():
    assert echo_judged(echoed(prompt=None)).names == "log-probabilities of prompts are missing"
    assert echo_judged(echoed(prompt=None), theirs=echoed(prompt=None)).outcome is Outcome.REFUSED
