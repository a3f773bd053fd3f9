"""Where most of the baseline's documents are cut off, all arms are asked with more room, and it alone decides that."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import remaining, runner
from pytest_specdec.capture.completeness import Completeness
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.room import extended_room, limit_setting_boot, most_useful_round, sufficient_room
from pytest_specdec.capture.workload_runner import WorkloadResult
from pytest_specdec.errors import BootError, DeadlineError
from pytest_specdec.files import captured, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import structured
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, ServerFailure, Transcript
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from tests.capture.test_reference_capture import CONFIG

ANY = {"type": "json_object"}
SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
BOUND = {"type": "json_schema", "json_schema": {"name": "switch", "schema": SWITCH}}
IN_TURN = replace(CONFIG, placement=Placement.IN_TURN, variants=CONFIG.variants[1:])


def documents(count=4, max_tokens=2, bound=BOUND):
    body = {"max_tokens": max_tokens, "temperature": 0.0, "response_format": bound}
    asked = [
        Request(id=f"d{i}", route=Route.CHAT, body={**body, "messages": [{"role": "user", "content": f"Is lamp {i} on?"}]})
        for i in range(count)
    ]
    return Workload(name="documents", version=1, requests=tuple(asked), scored=False)


def answered(cut, count=4, room=1, prompt=10):
    choices = [Choice(text="{", finish_reason="length" if i < cut else "stop") for i in range(count)]
    answers = [Answer(request_id=f"d{i}", status=200, prompt_token_ids=(1,) * prompt, choices=(c,)) for i, c in enumerate(choices)]
    return Transcript(arm="baseline", boot=0, workload="documents", digest="", answers=tuple(answers), room=room)


@pytest.mark.parametrize("cut, room, context, wanted", [
    (3, 1, 1000, 2),
    (2, 1, 1000, 1),
    (4, 2, 1000, 4),
    (4, 4, 1000, 4),
    (4, 1, 13, 1),
    (4, 1, 14, 2),
    (4, 1, 0, 1),
])  # fmt: skip
def test_limits_are_doubled_at_most_twice_while_most_are_cut_and_the_context_holds_them(cut, room, context, wanted):
    assert sufficient_room(documents(), answered(cut, room=room), context, Depth.STANDARD) == wanted


def test_smoke_depth_has_one_more_round_at_most():
    assert [sufficient_room(documents(), answered(4, room=room), 1000, Depth.SMOKE) for room in (1, 2)] == [2, 2]


def test_answers_without_a_grammar_raise_nothing():
    assert sufficient_room(documents(bound={"type": "text"}), answered(4), 1000, Depth.STANDARD) == 1


FAILED = (ServerFailure(request_id="d1", ending=FailureKind.DIED, recurred=False),)


@pytest.mark.parametrize("further, left_s, rounds, room", [
    ({}, float("inf"), [1, 2, 4], 4),
    ({2: {"missing": "cut off"}}, float("inf"), [1, 2], 1),
    ({2: {"failures": FAILED}}, float("inf"), [1, 2], 1),
    ({2: DeadlineError("used up")}, float("inf"), [1, 2], 1),
    ({4: {"failures": FAILED}}, float("inf"), [1, 2, 4], 2),
    ({4: {"missing": "cut off"}}, float("inf"), [1, 2, 4], 2),
    ({1: {"missing": "cut off"}}, float("inf"), [1], 1),
    ({1: {"failures": FAILED}}, float("inf"), [1], 1),
    ({}, 29.0, [1], 1),
    ({}, 59.0, [1, 2], 2),
])  # fmt: skip
def test_a_further_round_that_is_not_whole_costs_none_of_the_answers_before(further, left_s, rounds, room):
    """A round takes ten seconds for each time of the planned limits."""
    begun, again, warnings = [], [], []

    def ask(times):
        begun.append(times)
        ending = further.get(times, {})
        if isinstance(ending, Exception):
            raise ending
        transcript = replace(answered(5 - times, room=times), wall_s=10.0 * times, server_failures=ending.get("failures", ()))
        return WorkloadResult(transcript=transcript, missing=ending.get("missing", ""))

    result = most_useful_round(ask, lambda t: min(4, 2 * t.room), lambda: left_s, say=again.append, warn=warnings.append)
    assert (begun, result.transcript.room) == (rounds, room)
    assert (result.missing, result.transcript.server_failures) == ("", ()) or room == rounds[-1]
    assert len(again) == len(rounds) - 1
    assert len(warnings) == (room < rounds[-1] and not isinstance(further[rounds[-1]], Exception))


@pytest.mark.parametrize("cut, room", [((4, 4, 4), 1), ((4, 4, 3), 4), ((4, 3, 3), 2), ((4, 3, 4), 2), ((3, 4, 4), 1)])
def test_limits_that_end_no_further_document_are_not_kept(cut, room):
    rounds = dict(zip((1, 2, 4), cut, strict=True))
    result = most_useful_round(
        lambda times: WorkloadResult(transcript=answered(rounds[times], room=times)),
        lambda transcript: min(4, 2 * transcript.room),
        lambda: float("inf"),
        say=lambda _: None,
        warn=pytest.fail,
    )
    assert result.transcript.room == room


def test_other_arms_wait_until_the_baseline_has_answered_or_never_will():
    plan = make(BESIDE, wanted(), Depth.STANDARD)
    boot = limit_setting_boot(plan, "documents")

    def settled(enter=lambda account: None):
        account = Completeness(plan)
        enter(account)
        return account.is_settled(boot, "baseline", "documents")

    assert not settled()
    assert not settled(lambda account: account.record_transcript("control", "documents", ""))
    assert settled(lambda account: account.record_transcript("baseline", "documents", ""))
    assert settled(lambda account: account.record_transcript("baseline", "documents", "the server died"))
    assert settled(lambda account: account.record_error(boot, BootError("it did not come up")))


def wanted(**fields):
    return [SelectedWorkload(workload=documents(**fields), family=Family.STRUCTURED)]


def test_only_a_baseline_that_is_asked_first_decides():
    def decides(placement, depth, family=Family.STRUCTURED, config=CONFIG, **fields):
        asked = [SelectedWorkload(workload=replace(documents(), **fields), family=family)]
        boot = limit_setting_boot(make(replace(config, placement=placement), asked, depth), "documents")
        assert boot is None or boot.arms[0] == "baseline"
        return boot is not None

    assert decides(Placement.IN_TURN, Depth.STANDARD)
    assert decides(Placement.SIDE_BY_SIDE, Depth.STANDARD)
    assert decides(Placement.SIDE_BY_SIDE, Depth.SMOKE), "one server is baseline and control, and is there from the first wave on"
    assert not decides(Placement.IN_TURN, Depth.SMOKE), "its only boot is the last"
    attached = replace(CONFIG, engine=replace(CONFIG.engine, url="http://a:1"))
    assert decides(Placement.AUTO, Depth.STANDARD, config=attached)
    assert not decides(Placement.AUTO, Depth.SMOKE, config=attached)
    assert not decides(Placement.IN_TURN, Depth.STANDARD, Family.LIVENESS)
    assert not decides(Placement.IN_TURN, Depth.STANDARD, may_kill=True)


BESIDE = replace(IN_TURN, placement=Placement.SIDE_BY_SIDE)


@pytest.mark.examples(1)
@pytest.mark.parametrize(
    "config, depth, room, limit", [(IN_TURN, Depth.STANDARD, 4, 2), (BESIDE, Depth.SMOKE, 2, 4)], ids=["in-turn", "side-by-side"]
)
def test_all_arms_answer_with_the_room_that_the_baseline_needed_and_are_judged_by_it(tmp_path, config, depth, room, limit):
    """A document of these takes between five and eight tokens."""
    directory, plan = RunDirectory.create(tmp_path / "run"), make(config, wanted(max_tokens=limit), depth)
    said = []
    runner.record(config, plan, directory, deadline_s=None, tell=said.append)
    arms = {arm: transcripts.read(directory, arm, "documents") for arm in ("baseline", "ngram-k3", "control")}
    assert {arm.room for arm in arms.values()} == {room}
    assert all(limit < len(a.choice.token_ids) <= limit * room for arm in arms.values() for a in arm.answers)
    assert {arm.digest for arm in arms.values()} == {plan.workload("documents").digest}
    assert sum("times its token limits" in one.doing for one in said) == room // 2
    (judgement,) = plan.judgements
    read = captured.read(directory, plan, judgement, ())
    assert {request.token_limit for request in read.workload.requests} == {limit * room}
    verdict = structured.judge(read)
    assert verdict.outcome is not Outcome.FAIL, verdict.headline
    assert len(remaining.reusable_results(directory, plan).answers) == 3
    control = directory.transcript("control", "documents")
    control.rename(control.with_suffix(".away"))
    left = set() if depth is Depth.SMOKE else {("baseline", "documents"), ("ngram-k3", "documents")}
    assert remaining.reusable_results(directory, plan).answers == left, "a baseline that answers for its control again decides anew"
    control.with_suffix(".away").rename(control)
    directory.transcript("baseline", "documents").unlink()
    assert remaining.reusable_results(directory, plan).answers == frozenset(), "it decides anew"


def test_further_requests_have_the_room_of_those_that_they_are_added_to(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    plan = SimpleNamespace(extensions={"documents": ("documents.more1",)})
    assert extended_room(directory, plan, "documents.more1") == 1, "not answered yet"
    transcripts.write(directory, answered(cut=3, room=2))
    assert (extended_room(directory, plan, "documents.more1"), extended_room(directory, plan, "documents")) == (2, 1)


def test_side_by_side_the_baseline_answers_first_what_the_others_wait_for(tmp_path):
    greedy = SelectedWorkload(workload=replace(documents(max_tokens=2), name="a few"), family=Family.GREEDY)
    plan, said = make(BESIDE, [greedy, *wanted(max_tokens=2)], Depth.SMOKE), []
    runner.record(BESIDE, plan, RunDirectory.create(tmp_path / "run"), deadline_s=None, tell=said.append)

    def order(arm):
        return list(dict.fromkeys(one.workload for one in said if (one.doing, one.arm) == ("answering", arm)))

    assert (order("baseline"), order("ngram-k3")) == (["documents", "a few"], ["a few", "documents"])
