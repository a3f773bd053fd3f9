from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import liveness
from pytest_specdec.model.captured import UnexplainedFailures
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import FailureKind, ServerFailure, SpecCounters
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Family, Request, Route
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, requests, transcript

JSON_OBJECT = {"response_format": {"type": "json_object"}}


def four(**changes):
    return [changes.get(f"at_{i}", answer(f"chat-{i:02}", (1, 2), text="hi")) for i in range(4)]


def dead(request_id="chat-01", *, ending=FailureKind.DIED, recurred=True, log=("INFO fine", "Traceback", "KeyError: 7")):
    return ServerFailure(request_id=request_id, ending=ending, recurred=recurred, process="api server, exit code -9", log_tail=log)


def of(mine=None, theirs=None, control=None, **fields):
    return captured("liveness", mine or four(), theirs or four(), control or four(), **fields)


def judged(*args, **fields):
    return liveness.judge(of(*args, **fields))


def test_a_server_that_answers_everything_passes():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "4 of 4 requests answered"
    assert "68.4%" in verdict.rules_out


@pytest.mark.parametrize(
    "ending, verb", [(FailureKind.DIED, "dies on"), (FailureKind.HUNG, "hangs on"), (FailureKind.ERROR, "answers 5xx to")]
)
def test_a_server_failure_that_recurs_and_that_the_baseline_survives_fails_by_name(ending, verb):
    asked = [*requests(4)]
    asked[1] = Request(id="chat-01", route=Route.CHAT, body={**asked[1].body, **JSON_OBJECT})
    verdict = judged(four(at_1=answer("chat-01", status=None)), server_failures=[dead(ending=ending)], workload=a_workload(asked))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.headline.startswith(f"the server {verb} request chat-01, alone on a fresh server")
    assert verdict.names == f'the server {verb} a request with response_format={{"type":"json_object"}}'
    assert verdict.example == Example(symptom=Symptom.UNANSWERED, request_id="chat-01")
    assert verdict.short == (
        'parameters   response_format={"type":"json_object"}',
        f"ending       {ending.value}: api server, exit code -9",
        "log          Traceback",
        "log          KeyError: 7",
    )


def test_parameters_are_told_also_where_every_request_died_of_them():
    workload = a_workload(requests(4, **JSON_OBJECT))
    everything = [dead(f"chat-{i:02}", log=()) for i in range(4)]
    verdict = judged([answer(f"chat-{i:02}", status=None) for i in range(4)], server_failures=everything, workload=workload)
    assert verdict.short[0] == 'parameters   response_format={"type":"json_object"}'
    assert verdict.figures["server_failures"] == 4
    ordinary = judged(server_failures=everything[:1])
    assert ordinary.short[0] == "parameters   nothing unusual"
    assert ordinary.names == "the server dies on a request"


def test_long_parameters_are_cut():
    asked = [Request(id="chat-00", route=Route.CHAT, body={"tools": "x" * 200}), *requests(4)[1:]]
    assert len(judged(server_failures=[dead("chat-00")], workload=a_workload(asked)).short[0]) < 120


def test_a_baseline_that_refuses_the_deadly_request_has_survived_it():
    assert judged(theirs=four(at_1=answer("chat-01", status=400)), server_failures=[dead()]).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "theirs",
    [
        transcript("baseline", four(), server_failures=(dead(),)),
        four(at_1=answer("chat-01", status=500)),
        four(at_1=answer("chat-01", status=None)),
        [a for a in four() if a.request_id != "chat-01"],
    ],
)
def test_a_request_that_the_baseline_does_not_survive_either_is_invalid(theirs):
    verdict = judged(theirs=theirs, server_failures=[dead()])
    assert verdict.outcome is Outcome.INVALID
    assert "baseline does not survive request chat-01 either" in verdict.headline


def test_a_server_failure_that_does_not_recur_is_infrastructure_and_never_a_pass():
    verdict = judged(server_failures=[dead(recurred=False)])
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.startswith("infrastructure: the server dies on request chat-01 once")
    assert "--specdec-resume" in verdict.settle
    assert verdict.transient
    assert "request chat-01: died: api server, exit code -9; did not recur" in verdict.evidence


def test_of_several_requests_in_flight_none_is_blamed():
    verdict = judged(server_failures=[dead("chat-00", recurred=False), dead(recurred=False)])
    assert "chat-00 (and 1 more in flight)" in verdict.headline


def test_two_deaths_of_the_baseline_are_not_one_with_two_in_flight():
    deaths = (dead("chat-00", recurred=False), replace(dead(recurred=False), failure=1))
    verdict = judged(theirs=transcript("baseline", four(), server_failures=deaths))
    assert verdict.headline.endswith("itself dies on request chat-00")
    both = (dead("chat-00", recurred=False), dead(recurred=False))
    assert judged(theirs=transcript("baseline", four(), server_failures=both)).headline.endswith("chat-00 (and 1 more in flight)")


def test_a_deadly_request_outweighs_one_that_did_not_recur():
    assert judged(server_failures=[dead("chat-00", recurred=False), dead()]).outcome is Outcome.FAIL


def leaving(*indices):
    return a_workload(replace(one, abort_after=4) if index in indices else one for index, one in enumerate(requests(4)))


@pytest.mark.parametrize(
    "workload, name, words",
    [
        (leaving(), "the server hangs on a request right after another", "request chat-01 right after chat-00, on a fresh"),
        (leaving(0), "the server hangs on a request right after one that its client left", "chat-00, whose client left, on a fresh"),
    ],
)
def test_a_failure_that_recurs_after_another_request_names_both(workload, name, words):
    again = replace(dead(ending=FailureKind.HUNG), after="chat-00")
    verdict = judged(server_failures=[dead(ending=FailureKind.HUNG, recurred=False), again], workload=workload)
    assert (verdict.outcome, verdict.names, verdict.cell) == (Outcome.FAIL, name, "hung after another")
    assert words in verdict.headline
    assert verdict.example == Example(symptom=Symptom.UNANSWERED, request_id="chat-01", after="chat-00")
    assert any("recurred right after chat-00" in line for line in verdict.evidence)


@pytest.mark.parametrize("harmed", ["chat-00", "chat-01"])
def test_a_baseline_that_survives_only_one_of_two_requests_in_order_cannot_judge(harmed):
    theirs = transcript("baseline", four(), server_failures=(dead(harmed),))
    verdict = judged(theirs=theirs, server_failures=[replace(dead(), after="chat-00")])
    assert verdict.outcome is Outcome.INVALID
    assert "does not survive request chat-01 after chat-00 either" in verdict.headline


def test_a_baseline_that_ends_after_it_answered_the_deadly_request_has_survived_it():
    ended = replace(dead(recurred=None), answered=True)
    assert judged(theirs=transcript("baseline", four(), server_failures=(ended,)), server_failures=[dead()]).outcome is Outcome.FAIL


def test_an_end_after_the_last_answer_is_no_death_of_its_request():
    ended = replace(dead(recurred=None), answered=True)
    verdict = judged(server_failures=[ended])
    words = "ends on its own after its last answer (request chat-01)"
    assert (verdict.outcome, verdict.headline) == (
        Outcome.INVALID,
        f"infrastructure: the server {words} once, with no request in flight",
    )
    assert judged(theirs=transcript("baseline", four(), server_failures=(ended,))).headline == f"the baseline itself {words}"


@pytest.mark.parametrize("arm", ["baseline", "control"])
def test_a_baseline_with_a_server_failure_of_its_own_cannot_judge(arm):
    hurt = transcript(arm, four(), server_failures=(dead(ending=FailureKind.HUNG),))
    verdict = judged(theirs=hurt) if arm == "baseline" else judged(control=hurt)
    assert verdict.outcome is Outcome.INVALID
    assert f"the {arm} itself hangs on request chat-01" in verdict.headline
    assert verdict.settle == ""
    assert not verdict.transient


def test_a_baseline_that_died_once_may_live_the_next_time():
    verdict = judged(theirs=transcript("baseline", four(), server_failures=(dead(recurred=False),)))
    assert verdict.outcome is Outcome.INVALID
    assert "--specdec-resume" in verdict.settle


def test_the_controls_death_is_its_own_when_it_is_judged():
    hurt = transcript("control", four(), server_failures=(dead(),))
    assert liveness.judge(of(control=hurt).as_control()).outcome is Outcome.FAIL


@pytest.mark.parametrize("family", ["greedy", "speed"])
def test_a_server_failure_keeps_the_family_it_was_met_in(family):
    given = replace(of(server_failures=[dead()]), family=family)
    assert liveness.server_failure(given).family == family
    assert liveness.server_failure(replace(of(), family=family)) is None


@pytest.mark.parametrize("silent", [answer("chat-01", status=None, error="connection lost"), answer("chat-01", status=502)])
def test_a_missing_answer_that_no_server_failure_explains_is_invalid(silent):
    verdict = judged(four(at_1=silent))
    assert verdict.outcome is Outcome.INVALID
    assert "1 of 4 requests have no answer from draft-k3" in verdict.headline
    assert judged(theirs=four(at_1=silent)).outcome is Outcome.INVALID
    assert judged(four()[:3]).outcome is Outcome.INVALID


def test_an_empty_answer_fails_where_the_baseline_says_something():
    verdict = judged(four(at_2=answer("chat-02")))
    assert verdict.outcome is Outcome.FAIL
    assert "1 of 4 answers empty" in verdict.headline
    assert verdict.example == Example(symptom=Symptom.ANSWER, request_id="chat-02")
    assert "chat-02" in verdict.headline
    assert judged(four(at_2=answer("chat-02")), four(at_2=answer("chat-02"))).outcome is Outcome.PASS


@pytest.mark.parametrize("theirs, words", [
    ({}, "none of the baseline's"),
    ({"at_3": answer("chat-03")}, "1 of 4 of the baseline's, to other requests"),
])  # fmt: skip
def test_an_empty_answer_is_said_beside_the_empty_ones_of_the_baseline(theirs, words):
    verdict = judged(four(at_2=answer("chat-02")), four(**theirs))
    assert verdict.headline == f"1 of 4 answers empty, {words}; first: request chat-02"


def test_an_answer_after_the_deadline_fails_where_the_baseline_was_in_time():
    late = answer("chat-02", (1,), timing=Timing(sent_s=0.0, first_s=1.0, done_s=121.0))
    verdict = judged(four(at_2=late))
    assert verdict.outcome is Outcome.FAIL
    assert "deadline of 120 s" in verdict.headline
    assert "121.0 s" in verdict.short[0]
    passed = judged(four(at_2=late), four(at_2=late))
    assert passed.outcome is Outcome.PASS
    assert "slowest 121.0 s" in passed.headline


def test_a_refusal_is_a_capability_and_a_whole_refused_workload_is_refused():
    no = answer("chat-01", status=400, error="unsupported\x1b")
    verdict = judged(four(at_1=no))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline == "3 of 4 requests answered; 1 refused with a 4xx"
    assert "refused capability: 1 requests that the baseline answers, first chat-01" in verdict.evidence
    assert r'refused with 400 "unsupported\x1b": 1 requests, first chat-01' in verdict.evidence
    assert "answered although the baseline refuses: 1, first chat-01" in judged(theirs=four(at_1=no)).evidence
    everything = [answer(f"chat-{i:02}", status=422, error="never") for i in range(4)]
    assert judged(everything).outcome is Outcome.REFUSED
    assert "baseline refuses" in judged(everything, everything).headline
    silent = [answer(f"chat-{i:02}", status=500) for i in range(4)]
    assert "baseline does not answer" in judged(everything, silent).headline


@pytest.mark.parametrize("status", [401, 402, 403, 408, 409, 425, 429, 499])
def test_a_lost_key_or_quota_is_no_refusal(status):
    """Of eight requests two with a 401 passed once."""
    no = {f"at_{i}": answer(f"chat-{i:02}", status=status, error="no such key") for i in (1, 2)}
    for verdict in (judged(four(**no)), judged(theirs=four(**no)), judged(four(**no), four(**no))):
        assert verdict.outcome is Outcome.INVALID
        assert f'2 of 4 requests got no answer, first chat-01, {status}: "no such key"' in verdict.headline
        assert "--specdec-resume" in verdict.settle
        assert verdict.transient
    everything = [answer(f"chat-{i:02}", status=status) for i in range(4)]
    assert judged(everything, everything).outcome is Outcome.INVALID


def test_a_route_that_is_gone_after_answers_is_lost_and_one_that_never_was_is_refused():
    gone = answer("chat-02", status=404, error="not found")
    assert judged(four(at_2=gone)).outcome is Outcome.INVALID
    assert judged([replace(each, status=404, choices=()) for each in four()]).outcome is Outcome.REFUSED


def test_answers_of_the_baselines_server_are_not_the_variants():
    mine = transcript(VARIANT, four(), elsewhere="its counters grew by 500")
    verdict = judged(mine)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline == f"some answers of {VARIANT} are of the baseline's server: its counters grew by 500"
    caveat = judged(transcript(VARIANT, four(), uncounted="its counters grew by 500"))
    assert caveat.outcome is Outcome.PASS
    assert any("another server answered, or they are late" in line for line in caveat.evidence)


def test_a_refusal_that_is_answered_when_it_is_sent_again_is_no_refusal():
    verdict = judged(server_failures=[dead(ending=FailureKind.REFUSED, recurred=False)])
    assert verdict.outcome is Outcome.INVALID
    assert "refuses request chat-01 once, and answers it when it is sent again" in verdict.headline


def test_a_pass_needs_speculation():
    verdict = judged(counters=SpecCounters())
    assert verdict.outcome is Outcome.NOT_SPECULATING
    assert verdict.pair == VARIANT


def test_the_cause_is_shown_instead_of_the_shutdown():
    asked = [*requests(4)]
    asked[1] = Request(id="chat-01", route=Route.CHAT, body={**asked[1].body, **JSON_OBJECT})
    told = replace(dead(), cause="KeyError: 7 (engine.py:3, in step)")
    verdict = judged(four(at_1=answer("chat-01", status=None)), server_failures=[told], workload=a_workload(asked))
    assert verdict.short[2:] == ('cause        "KeyError: 7 (engine.py:3, in step)"',)
    assert "log          KeyError: 7" in verdict.evidence


def together(*ids, failure=0):
    return replace(dead(ids[0]), group=ids, failure=failure)


def test_a_group_that_recurs_is_a_finding_that_names_it():
    first = [dead(f"chat-{i:02}", recurred=False) for i in range(4)]
    verdict = judged(server_failures=[*first, together("chat-01", "chat-02")])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.headline.startswith("the server dies with 2 requests in flight")
    assert verdict.short[0] == "in flight    chat-01, chat-02"
    assert verdict.cell == "died, 2 in flight"
    assert verdict.example == Example(symptom=Symptom.UNANSWERED, request_id="chat-01", beside=("chat-02",))
    assert "recurred with 2 in flight: chat-01, chat-02" in verdict.evidence[0]


def test_one_request_that_kills_alone_is_told_before_a_group():
    assert "request chat-03, alone" in judged(server_failures=[together("chat-01", "chat-02"), dead("chat-03")]).headline


@pytest.mark.parametrize(
    "theirs",
    [
        transcript("baseline", four(), server_failures=(dead("chat-02"),)),
        transcript("baseline", four(), concurrency=1),
        four(at_2=answer("chat-02", status=500)),
    ],
)
def test_a_group_that_the_baseline_does_not_survive_is_invalid(theirs):
    verdict = judged(theirs=theirs, server_failures=[together("chat-01", "chat-02")])
    assert verdict.outcome is Outcome.INVALID
    assert "2 requests in flight together, chat-01, chat-02" in verdict.headline


def scattered(mine=3, theirs=0, *, family="liveness", server_failures=(), **fields):
    failures = {
        VARIANT: UnexplainedFailures(requests=170, unexplained=tuple(f"w{i}: died on p{i}" for i in range(mine))),
        "baseline": UnexplainedFailures(requests=170),
        "control": UnexplainedFailures(requests=170, unexplained=("w: died on p",) * theirs),
    }
    return replace(of(server_failures=server_failures, failures=failures, **fields), family=Family(family))


def test_three_failures_against_none_are_a_finding_with_its_p_value():
    verdict = liveness.judge(scattered())
    assert verdict.outcome is Outcome.FAIL
    assert verdict.headline.startswith("3 of 170 requests")
    assert verdict.headline.endswith("0 of 340")
    assert verdict.figures["p_value"] == pytest.approx(170 * 169 * 168 / (510 * 509 * 508))
    assert "p = 0.037" in verdict.short[-1]


def test_fewer_failures_and_failures_of_both_arms_are_no_finding():
    assert liveness.judge(scattered(2)).outcome is Outcome.PASS
    assert liveness.judge(scattered(3, 1)).outcome is Outcome.PASS
    assert liveness.judge(scattered(2, server_failures=[dead(recurred=False)])).outcome is Outcome.INVALID
    assert liveness.judge(scattered().as_control()).outcome is Outcome.PASS


def test_other_families_tell_scattered_failures_where_they_met_one():
    assert liveness.server_failure(scattered(family="greedy")) is None
    assert liveness.server_failure(scattered(family="greedy", server_failures=[dead(recurred=False)])).outcome is Outcome.FAIL


def test_a_failure_that_was_not_tried_again_says_so():
    verdict = judged(server_failures=[dead(recurred=None), replace(dead("chat-02", recurred=None), failure=1)])
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.startswith("infrastructure: the server dies on request chat-01 once")
    assert "was not tried again" in verdict.headline
    assert verdict.headline.endswith("1 more such")


def test_times_of_arms_with_fewer_requests_in_flight_do_not_compare():
    slowed = transcript("baseline", four(), concurrency=2)
    verdict = judged(theirs=slowed, workload=a_workload(requests(4), timed=True))
    assert verdict.outcome is Outcome.INVALID
    assert "baseline was asked 2 at a time instead of 8" in verdict.headline
    assert judged(theirs=slowed).evidence[-1].startswith("baseline was asked 2 at a time instead of 8")


@pytest.mark.parametrize("arm", ["speculative", "baseline", "control"])
def test_a_server_that_somebody_else_started_anew_is_invalid_and_may_be_asked_again(arm):
    found = of()
    verdict = liveness.judge(replace(found, **{arm: replace(getattr(found, arm), replaced="its counters went back")}))
    assert verdict.outcome is Outcome.INVALID
    assert "its counters went back" in verdict.headline
    assert "--specdec-resume" in verdict.settle
    assert verdict.transient


CHAT = (Route.CHAT,)


@pytest.mark.parametrize(
    "mine, baseline, control, outcome",
    [
        (CHAT, (), (), Outcome.INVALID),
        (CHAT, (), CHAT, Outcome.INVALID),
        ((), CHAT, (), Outcome.INVALID),
        ((), (), CHAT, Outcome.INVALID),
        (CHAT, CHAT, CHAT, Outcome.REFUSED),
        ((), (), (), Outcome.REFUSED),
    ],
)
@pytest.mark.parametrize("status", [400, 404, 501])
def test_a_route_that_answers_one_arm_alone_is_out_and_one_that_answers_none_is_refused(status, mine, baseline, control, outcome):
    """Routes on which not even a plain request is answered: behind a proxy's 400, or of an engine without it."""
    no = [replace(each, status=status, error="no", choices=()) for each in four()]
    given = of(no, no if baseline else four())
    given = replace(
        given,
        workload=replace(given.workload, requests=tuple(replace(each, route=Route.CHAT) for each in given.workload.requests)),
        speculative=replace(given.speculative, answers=tuple(no if mine or not (baseline or control) else four()), silent_routes=mine),
        baseline=replace(given.baseline, silent_routes=baseline),
        control=replace(given.baseline, arm="control", answers=tuple(no if control else four()), silent_routes=control),
    )
    assert liveness.judge(given).outcome is outcome
    answering, out = replace(given.speculative, arm="ngram-k3", silent_routes=()), Outcome.INVALID if mine else outcome
    assert liveness.judge(replace(given, beside=(answering,))).outcome is out, "another variant answers"
    silent = replace(answering, silent_routes=CHAT)
    assert liveness.judge(replace(given, beside=(silent,))).outcome is outcome, "another variant is as silent"
