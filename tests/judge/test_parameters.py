"""Parameters: each law over toy answers, the place that a fault is named by, and the matrix of baseline and variant."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import parameters
from pytest_specdec.judge.parameter_rules import check_departures, parameter_rules, set_parameters
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.transcript import FailureKind, Position, Score, ServerFailure
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, transcript

GREEDY = {"temperature": 0, "max_tokens": 8}
BODIES = {
    "allowed": {**GREEDY, "allowed_token_ids": [10, 11, 12]},
    "banned": {**GREEDY, "logit_bias": {"20": -100, "21": -100}},
    "forced": {**GREEDY, "logit_bias": {"30": 100}},
    "words": {**GREEDY, "bad_words": ["no"]},
    "frequency": {**GREEDY, "frequency_penalty": 1.0},
    "top_k": {"top_k": 1, "max_tokens": 8},
    "min_p": {"min_p": 0.5, "temperature": 1.0, "max_tokens": 8},
    "warm": {"min_p": 0.5, "temperature": 2.0, "max_tokens": 8},
    **{f"repeat-{i}": {**GREEDY, "repetition_penalty": 2.0} for i in range(14)},
}
"""By request id."""
LAWFUL = {
    "allowed": (10, 11, 12, 10),
    "banned": (22, 23, 22, 24),
    "forced": (30, 30, 30, 30),
    "words": (41, 42, 43, 44),
    "frequency": (51, 52, 53, 54),
    "top_k": (61, 62, 63, 64),
    "min_p": (71, 72, 73, 74),
    "warm": (71, 72, 73, 74),
    **{f"repeat-{i}": (81, 82, 83, 84) for i in range(14)},
}
BEST = {"allowed": 99, "banned": 20, "forced": 99, "words": 40}
"""The plain choice where it is not the lawful one."""
RUNS = 50


def listed(token, *better, gap=2.0, p_best=0.6):
    """A position at which each of ``better`` is likelier than ``token`` by so many nats; another token is far behind."""
    top = {each: math.log(p_best) for each in better} | {token: math.log(p_best) - (gap if better else 0.0), 900: math.log(0.01)}
    ranked = sorted(top.items(), key=lambda item: -item[1])
    return Position(
        token_id=token, logprob=top[token], top_ids=tuple(t for t, _ in ranked), top_logprobs=tuple(logprob for _, logprob in ranked)
    )


def positions(request_id, tokens):
    if request_id.startswith("repeat"):
        # The prompt's token 3 is what a server without the penalty would say; after it the same again.
        return [listed(t, *(() if t == 3 else (3,))) for t in tokens]
    if request_id == "frequency":
        return [listed(t, *((51,) if i and t != 51 else ()), gap=0.5) for i, t in enumerate(tokens)]
    best = BEST.get(request_id)
    return [listed(t, *(() if best in {None, t} else (best,))) for t in tokens]


def judged(changes=None, *, baseline_changes=None, windows=None, statuses=None, error=None, scored=None, **fields):
    """The verdict on a variant that answers as the baseline but for ``changes`` by request id."""
    said = {"baseline": {**LAWFUL, **(baseline_changes or {})}, "control": {**LAWFUL, **(baseline_changes or {})}}
    said[VARIANT] = {**LAWFUL, **(changes or {})}
    answers = {
        arm: [
            answer(
                i,
                tokens,
                finish="length",
                windows=windows.get(i, (1, 1, 1, 1)) if isinstance(windows, dict) else windows,
                status=(statuses or {}).get((arm, i), 200),
                error=error,
            )
            for i, tokens in by_id.items()
        ]
        for arm, by_id in said.items()
    }
    scores = {
        arm: tuple(
            Score(request_id=i, arm=arm, under="baseline", positions=tuple((scored or {}).get((arm, i)) or positions(i, t)))
            for i, t in by_id.items()
        )
        for arm, by_id in said.items()
    }
    requests = [
        Request(id=i, route=Route.COMPLETIONS, body={"prompt": "x", **body, "max_tokens": len(LAWFUL[i])}) for i, body in BODIES.items()
    ]
    failures = fields.pop("server_failures", ())
    return parameters.judge(
        captured(
            "parameters",
            transcript(VARIANT, answers[VARIANT]),
            transcript("baseline", answers["baseline"]),
            transcript("control", answers["control"]),
            workload=a_workload(requests, concurrency=4),
            scores=scores,
            server_failures=failures,
            **{"alpha": 1e-5, **fields},
        )
    )


def test_the_baselines_own_answers_pass_with_what_bound():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS, verdict
    for name in ("allowed_token_ids", "logit_bias", "bad_words", "repetition_penalty", "frequency_penalty", "top_k"):
        assert f"{name}: baseline honoured, {VARIANT} honoured" in verdict.evidence
    assert f"presence_penalty: baseline not asked, {VARIANT} not asked" in verdict.evidence
    assert {arm: effects["bad_words"] for arm, effects in verdict.parameters.items()} == {"baseline": "honoured", VARIANT: "honoured"}


@pytest.mark.parametrize(
    "request_id, tokens, name",
    [
        ("allowed", (10, 99, 12, 10), "allowed_token_ids is ignored"),
        ("banned", (22, 20, 22, 24), "logit_bias is ignored"),
        ("forced", (30, 31, 30, 30), "logit_bias is ignored"),
        ("words", (41, 40, 43, 44), "bad_words is ignored"),
    ],
)
def test_one_token_against_an_exact_law_fails_by_the_parameters_name(request_id, tokens, name):
    verdict = judged({request_id: tokens})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert request_id in verdict.short[0]
    assert verdict.parameters[VARIANT][name.partition(" ")[0]] == "ignored"


def test_a_score_without_top_tokens_shows_no_wrong_choice_and_binds_nothing():
    """A server may score the emitted token alone: whether another was likelier is then unknown."""
    alone = [Position(token_id=token, logprob=math.log(0.3), top_ids=(), top_logprobs=()) for token in LAWFUL["top_k"]]
    verdict = judged(scored={(arm, "top_k"): alone for arm in (VARIANT, "baseline", "control")})
    assert verdict.outcome is Outcome.PASS
    assert f"top_k: baseline did not bind, {VARIANT} did not bind" in verdict.evidence


def test_a_penalty_that_is_not_taken_is_a_wrong_choice():
    repeated = [listed(51), listed(51, 52, gap=-0.1), listed(51, 52, gap=-0.1), listed(51, 52, gap=-0.1)]
    verdict = judged({"frequency": (51,) * 4}, scored={(VARIANT, "frequency"): repeated})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "frequency_penalty is ignored")


REPEATED = [listed(51), *(listed(51, 52, gap=-0.1) for _ in range(3))]
"""Scores of an answer without its frequency penalty: the third and fourth token lie more than a nat below the best one under it."""


def test_a_penalty_that_is_not_taken_is_found_by_the_baselines_own_choices_where_nothing_reported_shows_noise(monkeypatch):
    """In half precision without log-probabilities nobody knows how often a correct server jumps; the baseline's boots do not."""
    names = [f"more-{i}" for i in range(29)]
    for name in names:
        monkeypatch.setitem(BODIES, name, BODIES["frequency"])
        monkeypatch.setitem(LAWFUL, name, LAWFUL["frequency"])
    ignoring = dict.fromkeys(("frequency", *names), (51,) * 4)
    of = {(VARIANT, name): REPEATED for name in ignoring}
    verdict = judged(ignoring, scored=of, calibration=ReportedDraws())
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "frequency_penalty is ignored")
    assert verdict.parameters[VARIANT]["frequency_penalty"] == "ignored"
    alike = {(arm, name): REPEATED for arm in (VARIANT, "baseline", "control") for name in ignoring}
    excused = judged(ignoring, baseline_changes=ignoring, scored=alike, calibration=ReportedDraws())
    assert excused.outcome is Outcome.PASS
    assert f"frequency_penalty: baseline did not bind, {VARIANT} did not bind" in excused.evidence
    lawful = judged(calibration=ReportedDraws())
    assert lawful.outcome is Outcome.PASS
    assert f"frequency_penalty: baseline honoured, {VARIANT} honoured" in lawful.evidence
    assert "a share above" in lawful.rules_out.partition("of frequency_penalty")[2]


def test_a_pass_does_not_claim_what_could_not_be_decided():
    """Four tokens under one penalty are too few to tell a fault from jumps that nobody has measured."""
    verdict = judged({"frequency": (51,) * 4}, scored={(VARIANT, "frequency"): REPEATED}, calibration=ReportedDraws())
    assert verdict.outcome is Outcome.PASS
    assert f"frequency_penalty: baseline honoured, {VARIANT} not decided" in verdict.evidence
    assert "not decided: temperature, top_k, frequency_penalty, bad_words" in verdict.headline
    assert verdict.figures["honoured_parameters"] < judged().figures["honoured_parameters"]
    assert "not decided" not in judged().headline


@pytest.mark.parametrize("arm", ["baseline", "control"])
def test_the_baseline_is_not_said_to_honour_what_its_own_tokens_break(arm):
    """Nothing shows whether jumps broke the rule, or a server that ignores the penalty."""
    verdict = judged(
        scored={(arm, "frequency"): [listed(51), listed(52, 59, gap=2.0), listed(53), listed(54)]}, calibration=ReportedDraws()
    )
    assert verdict.outcome is Outcome.PASS
    assert f"frequency_penalty: baseline not decided, {VARIANT} not decided" in verdict.evidence
    assert verdict.parameters["baseline"]["frequency_penalty"] == "not decided"


@pytest.mark.parametrize("broken, effect", [(1, "honoured"), (30, "not decided")])
def test_more_than_jumps_of_the_baseline_leave_open_what_many_tokens_decide(broken, effect, monkeypatch):
    """All arms may draw where ``top_k`` asks for the best token."""
    for name in (names := [f"more-{i}" for i in range(30)]):
        monkeypatch.setitem(BODIES, name, BODIES["top_k"])
        monkeypatch.setitem(LAWFUL, name, LAWFUL["top_k"])
    drawn = [listed(61), listed(62, 69), listed(63), listed(64)]
    scored = {(arm, name): drawn for arm in ("baseline", "control", VARIANT) for name in names[:broken]}
    verdict = judged(scored=scored, calibration=ReportedDraws())
    assert verdict.outcome is Outcome.PASS
    assert f"top_k: baseline {effect}, {VARIANT} {effect}" in verdict.evidence


def test_parameters_that_could_not_be_decided_are_none_that_a_pass_needs(monkeypatch):
    for name in set(BODIES) - {"allowed", "frequency", "top_k", "words"}:
        monkeypatch.delitem(BODIES, name)
        monkeypatch.delitem(LAWFUL, name)
    assert judged().outcome is Outcome.PASS
    verdict = judged(calibration=ReportedDraws())
    assert (verdict.outcome, verdict.figures["bound_parameters"]) == (Outcome.INCONCLUSIVE, 1)


def test_top_k_of_one_leaves_the_best_token():
    verdict = judged({"top_k": (61, 65, 63, 64)}, scored={(VARIANT, "top_k"): [listed(61), listed(65, 62), listed(63), listed(64)]})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "top_k is ignored")


def test_a_token_so_unlikely_that_no_list_has_it_is_not_the_best_one():
    unlisted = replace(listed(62), token_id=65, logprob=math.nan)
    verdict = judged({"top_k": (61, 65, 63, 64)}, scored={(VARIANT, "top_k"): [listed(61), unlisted, listed(63), listed(64)]})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "top_k is ignored")


def test_a_near_tie_is_no_fault():
    near = [listed(61), listed(65, 62, gap=0.1), listed(63), listed(64)]
    assert judged({"top_k": (61, 65, 63, 64)}, scored={(VARIANT, "top_k"): near}).outcome is Outcome.PASS
    banned = [listed(41), listed(45, 40, gap=2.1), listed(43), listed(44)]
    assert judged({"words": (41, 45, 43, 44)}, scored={(VARIANT, "words"): banned}).outcome is Outcome.PASS


def test_a_cut_that_is_not_made_fails_and_one_token_beyond_its_margin_does_not():
    beyond = [listed(75, 71, gap=4.0), listed(76, 72, gap=4.0), listed(77, 73, gap=4.0), listed(74)]
    few = judged({"min_p": (71, 72, 73, 75)}, scored={(VARIANT, "min_p"): [listed(71), listed(72), listed(73), listed(75, 74, gap=4.0)]})
    assert few.outcome is Outcome.PASS
    assert judged({"min_p": (75, 76, 77, 74)}, scored={(VARIANT, "min_p"): beyond}).names == "min_p is ignored"


BEYOND = {"min_p": [listed(71), listed(72), listed(73), listed(75, 74, gap=4.0)]}


@pytest.mark.parametrize("arm", ["baseline", "control"])
def test_one_token_of_a_baseline_beyond_a_margin_is_chance_and_not_called_ignored(arm):
    verdict = judged(scored={(arm, "min_p"): BEYOND["min_p"]})
    assert verdict.outcome is Outcome.PASS
    assert f"min_p: baseline honoured, {VARIANT} honoured" in verdict.evidence or "min_p: baseline did not bind" in str(verdict.evidence)
    assert "ignored" not in verdict.headline


def test_as_many_tokens_of_the_baseline_beyond_a_margin_excuse_the_variants():
    """Beyond chance on neither boot alone, and as often as here."""
    own = {(arm, "min_p"): BEYOND["min_p"] for arm in ("baseline", "control", VARIANT)}
    two = [listed(71), listed(72), listed(75, 73, gap=4.0), listed(75, 74, gap=4.0)]
    assert judged(scored={**own, (VARIANT, "min_p"): two}, alpha=1e-4).outcome is Outcome.PASS


def uncut(*tokens):
    """Positions where ``min_p`` cuts off most of the probability, 900 among it."""
    top = {70: 0.3, 900: 0.01, 901: 0.009, 902: 0.008}
    logprobs = tuple(map(math.log, top.values()))
    return [Position(token_id=token, logprob=math.log(top[token]), top_ids=tuple(top), top_logprobs=logprobs) for token in tokens]


@pytest.mark.parametrize("of_baseline", [0, 2])
def test_the_share_that_a_pass_names_of_its_weakest_rule_fails_as_often_as_promised(of_baseline, monkeypatch):
    """One token beyond a cut is chance, so that several are needed, and more where the baseline breaks it too."""
    for name in tuple(BODIES):
        if name not in {"allowed", "forced", "min_p"}:
            monkeypatch.delitem(BODIES, name)
            monkeypatch.delitem(LAWFUL, name)
        else:
            monkeypatch.setitem(LAWFUL, name, (70,) * 40 if name == "min_p" else LAWFUL[name] * 6)
    beyond = {"min_p": (900,) * of_baseline + (70,) * (40 - of_baseline)}
    own = {(arm, "min_p"): uncut(*beyond["min_p"]) for arm in ("baseline", "control")}

    def plant(share):
        drawn = tuple(np.where(random.random(40) < share, 900, 70).tolist())
        return judged({"min_p": drawn}, baseline_changes=beyond, scored=own | {(VARIANT, "min_p"): uncut(*drawn)})

    random = np.random.default_rng(5)
    passed = plant(0.0)
    assert passed.outcome is Outcome.PASS
    share = re.search(r"40 of them under min_p, the weakest rule: a share of these above ([\d.]+)% that breaks it would", passed.rules_out)
    failed = sum(plant(float(share[1]) / 100).names == "min_p is ignored" for _ in range(RUNS))
    assert failed >= 0.98 * RUNS


@pytest.mark.parametrize(
    "windows, names",
    [(None, "min_p is wrong at temperatures other than 1"), ({"warm": (1, 3)}, "min_p is ignored after the first token of a window")],
    ids=["anywhere", "in one place"],
)
def test_a_cut_that_fails_at_other_temperatures_only_says_so_unless_it_fails_in_one_place(windows, names):
    binding = [listed(t, p_best=0.3) for t in LAWFUL["min_p"]]
    binding = [
        replace(p, top_ids=(*p.top_ids, 901, 902), top_logprobs=(*p.top_logprobs, math.log(0.009), math.log(0.008))) for p in binding
    ]
    beyond = [listed(74), listed(71), listed(76, 72, gap=6.0), listed(77, 73, gap=6.0)]
    own = {(arm, "min_p"): binding for arm in (VARIANT, "baseline", "control")}
    verdict = judged({"warm": (74, 71, 76, 77)}, scored={**own, (VARIANT, "warm"): beyond}, windows=windows)
    assert verdict.names == names


def test_a_repetition_penalty_fails_where_more_answers_repeat_than_chance_explains():
    every = {f"repeat-{i}": (3, 3, 3, 3) for i in range(14)}
    assert judged(every).names == "repetition_penalty is ignored"
    assert judged({"repeat-0": (3, 3, 3, 3)}).outcome is Outcome.PASS


def test_a_new_token_passed_over_for_a_worse_one_breaks_any_repetition_penalty():
    worse = [listed(81), listed(85, 82), listed(83), listed(84)]
    verdict = judged({"repeat-3": (81, 85, 83, 84)}, scored={(VARIANT, "repeat-3"): worse})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "repetition_penalty is ignored")


def test_a_departure_is_read_in_the_answer_of_its_own_pass():
    """After 81, 85 the penalty weighs on 85, after 81, 82 it does not: another pass's tokens would change the verdict."""
    request = Request(id="twice", route=Route.COMPLETIONS, body={"prompt": "x", **GREEDY, "repetition_penalty": 2.0})
    passes = {"baseline": ((81, 82, 83), (81, 85, 83)), VARIANT: ((81, 82, 84), (81, 85, 85))}
    answers = {arm: [replace(answer("twice", tokens), pass_index=n) for n, tokens in enumerate(given)] for arm, given in passes.items()}
    scores = {
        arm: tuple(
            Score(request_id="twice", pass_index=n, arm=arm, under="baseline", positions=tuple(listed(t) for t in tokens))
            for n, tokens in enumerate(given)
        )
        for arm, given in passes.items()
    }
    of_both = captured("parameters", answers[VARIANT], answers["baseline"], workload=a_workload([request], passes=2), scores=scores)
    departures = check_departures(of_both, of_both.speculative, 0.1)
    assert [departure.answer.pass_index for departure in departures] == [0, 1]
    assert [departure.index for departure in departures] == [2, 2]


def test_what_the_baseline_ignores_itself_is_reported_and_no_fault():
    ignoring = {"allowed": (99, 99, 99, 99)}
    verdict = judged(ignoring, baseline_changes=ignoring)
    assert verdict.outcome is Outcome.PASS
    assert f"allowed_token_ids: baseline ignored, {VARIANT} ignored" in verdict.evidence
    assert "ignored by the baseline itself: allowed_token_ids" in verdict.headline


def test_a_parameter_that_the_variant_refuses_is_listed_by_name():
    verdict = judged(statuses={(VARIANT, "min_p"): 400, (VARIANT, "warm"): 400})
    assert verdict.outcome is Outcome.REFUSED
    assert any(line.startswith("min_p: baseline ") and line.endswith(f"{VARIANT} refused") for line in verdict.evidence)
    assert verdict.headline.startswith("min_p refused")


@pytest.mark.parametrize(
    "error, names",
    [
        ("min_p and logit_bias are not supported with speculative decoding", ["logit_bias"]),
        ("not supported with speculative decoding", ["logit_bias", "presence_penalty"]),
    ],
)
def test_a_parameter_beside_the_one_that_a_refusal_mentions_is_not_called_refused(error, names, monkeypatch):
    monkeypatch.setitem(BODIES, "beside", {**GREEDY, "logit_bias": {"30": 100}, "presence_penalty": 1.0})
    monkeypatch.setitem(LAWFUL, "beside", (30, 30, 30, 30))
    verdict = judged(statuses={(VARIANT, i): 400 for i in ("banned", "forced", "beside")}, error=error)
    assert verdict.outcome is Outcome.REFUSED
    assert sorted(verdict.headline.partition(" refused")[0].split(", ")) == names


def test_a_server_error_names_the_parameter_that_its_requests_share():
    failed = [ServerFailure(request_id=i, ending=FailureKind.ERROR, recurred=True) for i in ("min_p", "warm")]
    verdict = judged(statuses={(VARIANT, "min_p"): 500, (VARIANT, "warm"): 500}, server_failures=failed)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "min_p is answered with a server error")
    assert verdict.parameters == {VARIANT: {"min_p": "harmful"}}


def test_several_parameters_at_once_are_one_fault_and_its_place_is_named():
    lost = {
        "allowed": (10, 99, 99, 99),
        "banned": (22, 20, 20, 20),
        "words": (41, 40, 43, 44),
        **{f"repeat-{i}": (81, 3, 3, 3) for i in range(14)},
    }
    verdict = judged({**lost, "top_k": (61, 65, 63, 64)}, scored={(VARIANT, "top_k"): [listed(61), listed(65, 62), listed(63), listed(64)]})
    assert verdict.names == "sampling parameters are ignored"


@pytest.mark.parametrize(
    "windows, tokens, place",
    [
        ((1, 3), (10, 99, 99, 99), " at draft positions"),
        ((1, 2, 1), (10, 11, 12, 10), ""),
        ((1, 3), (10, 11, 99, 99), " after the first token of a window"),
    ],
)
def test_a_fault_is_placed_in_the_windows_where_few_tokens_stand_there(windows, tokens, place):
    verdict = judged({"allowed": tokens}, windows=windows)
    assert verdict.names in ("", f"allowed_token_ids is ignored{place}", "allowed_token_ids is ignored")


def test_few_parameters_that_bind_are_not_enough():
    only = {name: BODIES[name] for name in ("top_k",)}
    requests = [Request(id=i, route=Route.COMPLETIONS, body={"prompt": "x", **body}) for i, body in only.items()]
    given_answers = [answer("top_k", LAWFUL["top_k"], finish="length", windows=(1, 2, 1))]
    own = tuple(
        Score(request_id="top_k", arm=arm, under="baseline", positions=tuple(positions("top_k", LAWFUL["top_k"])))
        for arm in ("baseline", VARIANT)
    )
    verdict = parameters.judge(
        captured("parameters", given_answers, given_answers, workload=a_workload(requests), scores={"baseline": own[:1], VARIANT: own[1:]})
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_neutral_values_set_no_parameter():
    body = {"top_p": 1.0, "top_k": -1, "min_p": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "seed": 4, "bad_words": None}
    assert set_parameters(body) == ()
    assert set_parameters({**body, "temperature": 0.0, "logit_bias": {"1": 1}}) == ("temperature", "logit_bias")


def test_a_forced_token_outside_the_allowed_ones_leaves_the_allowed_ones():
    own = parameter_rules({**GREEDY, "allowed_token_ids": [1], "logit_bias": {"2": 100, "1": -100}})
    assert (own.allowed, own.forced, own.banned) == ({1}, {2}, {1})
    assert parameter_rules({"temperature": 0, "logit_bias": {"1": 2.0}, "presence_penalty": 1}).moves == ("presence_penalty", "logit_bias")
    assert parameter_rules({"top_p": 1e-4, "temperature": 1.0}).greedy == ("top_p",)
    assert parameter_rules({"top_k": 4, "temperature": 1.0}).cuts == ("top_k",)
