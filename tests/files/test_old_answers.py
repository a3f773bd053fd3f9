"""The old baseline's answers in the run of the engine after an upgrade."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from pytest_specdec.files import baseline_record, old_answers, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.pair import OLD_BASELINE, old_arm
from pytest_specdec.model.plan import Boot, Role, ScoringTask
from pytest_specdec.model.transcript import Answer, Choice, Position, Score
from pytest_specdec.model.workload import Request, Route
from tests.files.conftest import REQUESTS, WORKLOAD

OLD_PROMPT, NEW_PROMPT = (7, 8), (7, 9)


def answer(request_id, ids, prompt=OLD_PROMPT, **fields):
    return Answer(
        request_id=request_id, status=200, prompt_token_ids=prompt, choices=(Choice(token_ids=ids, finish_reason="stop"),), **fields
    )


def score(arm, request_id, ids, **fields):
    positions = tuple(Position(token_id=token, logprob=-0.5, top_ids=(token, 99), top_logprobs=(-0.5, -1.0)) for token in ids)
    return Score(request_id=request_id, arm=arm, under="baseline", positions=positions, **fields)


@pytest.fixture
def old_run(directory, plan, transcript):
    """A run whose first two answers came with the ids of their prompts, and whose third has them with its scores."""
    answers = (answer("chat-00", (1, 2)), answer("chat-01", (3, 4)), answer("chat-02", (5,), prompt=()))
    run_documents.write_plan(directory, plan)
    transcripts.write(directory, transcript("baseline", answers=answers, server_failures=()))
    scores = [
        score("baseline", each.request_id, each.choice.token_ids, prompt_token_ids=() if each.prompt_token_ids else (6,))
        for each in answers
    ]
    transcripts.write_scores(directory, "baseline", "baseline", WORKLOAD.name, scores)
    return directory


@pytest.fixture
def new_plan(plan):
    """The plan after an upgrade: its workload has the same requests under other ids, and one more."""
    requests = (Request(id="new", route=Route.CHAT, body={"messages": ["new"]}), *(replace(each, id=f"now-{each.id}") for each in REQUESTS))
    workload = replace(WORKLOAD, version=2, requests=requests)
    scoring = plan.boots[2]
    task = ScoringTask(arm=OLD_BASELINE, workload=workload.name, top_tokens=20)
    boots = (*plan.boots[:2], replace(scoring, scores=(*scoring.scores, task)), *plan.boots[3:])
    return replace(plan, workloads=(workload,), boots=boots)


@pytest.fixture
def new_run(tmp_path, new_plan):
    directory = RunDirectory.create(tmp_path / "new")
    run_documents.write_plan(directory, new_plan)
    return directory


def test_an_arm_of_the_old_engine_has_a_name_that_no_variant_has():
    assert (OLD_BASELINE, old_arm("v")) == ("old.baseline", "old.v")


def test_answers_are_those_to_the_same_requests_with_the_prompt_ids_of_the_old_run(old_run, new_run, new_plan):
    assert old_answers.list_answered(old_run.root) == {WORKLOAD.name}
    old_answers.copy(old_run.root, new_run, new_plan)
    copied = transcripts.read(new_run, OLD_BASELINE, WORKLOAD.name)
    assert [(each.request_id, each.prompt_token_ids, each.choice.token_ids) for each in copied.answers] == [
        ("now-chat-00", OLD_PROMPT, (1, 2)),
        ("now-chat-01", OLD_PROMPT, (3, 4)),
        ("now-chat-02", (6,), (5,)),
    ]
    assert (copied.digest, copied.started_at) == (new_plan.workload(WORKLOAD.name).digest, "2026-11-21T06:00:00Z")
    assert old_answers.list_stored(new_run, new_plan) == (WORKLOAD.name,)


def test_drawn_answers_under_one_seed_are_copied_once(old_run, new_run, new_plan, plan):
    bodies = [{"prompt": f"p{number}", "temperature": 1.0, "seed": 4} for number in range(3)]
    sent = tuple(Request(id=each.id, route=Route.COMPLETIONS, body=body) for each, body in zip(REQUESTS, bodies, strict=True))
    run_documents.write_plan(old_run, replace(plan, workloads=(replace(WORKLOAD, requests=sent),)))
    asked = replace(new_plan, workloads=(replace(WORKLOAD, requests=sent),))
    old_answers.copy(old_run.root, new_run, asked)
    assert [each.request_id for each in transcripts.read(new_run, OLD_BASELINE, WORKLOAD.name).answers] == ["chat-00"]


def test_answers_that_are_there_keep_their_scores(old_run, new_run, new_plan):
    old_answers.copy(old_run.root, new_run, new_plan)
    before = new_run.transcript(OLD_BASELINE, WORKLOAD.name).stat().st_mtime_ns
    old_answers.copy(old_run.root, new_run, new_plan)
    assert new_run.transcript(OLD_BASELINE, WORKLOAD.name).stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["plan", "transcript", "scores", "missing"])
def test_what_cannot_be_copied_costs_the_new_run_nothing(old_run, new_run, new_plan, damage):
    path = {
        "plan": old_run.plan,
        "transcript": old_run.transcript("baseline", WORKLOAD.name),
        "scores": old_run.scores("baseline", "baseline", WORKLOAD.name),
        "missing": old_run.transcript("baseline", WORKLOAD.name),
    }[damage]
    if damage == "missing":
        path.unlink()
    else:
        path.write_text('{"schema": "of another release"}\n')
    old_answers.copy(old_run.root, new_run, new_plan)
    assert old_answers.list_stored(new_run, new_plan) == ()


def test_the_new_record_has_old_prefixes_and_its_own_prompts(old_run, new_run, new_plan, transcript):
    """The chat template changed: old tokens are compared after the old prompt, and the prompts are still told apart."""
    old_answers.copy(old_run.root, new_run, new_plan)
    for arm in ("baseline", OLD_BASELINE):
        own = transcripts.read(new_run, OLD_BASELINE, WORKLOAD.name).answers
        if arm == "baseline":
            own = tuple(replace(each, prompt_token_ids=NEW_PROMPT) for each in own)
            transcripts.write(new_run, transcript(arm, answers=own, server_failures=(), started_at="now"))
        scores = [score(arm, each.request_id, each.choice.token_ids) for each in own]
        transcripts.write_scores(new_run, "baseline", arm, WORKLOAD.name, scores)
    before, after = baseline_record.read(old_run), baseline_record.read(new_run)
    assert before.prefixes.keys() <= after.prefixes.keys()
    assert set(after.prompts.values()) == {NEW_PROMPT}
    (old,) = after.old_answers
    assert (old.arm, old.control.arm, old.speculative.started_at) == (OLD_BASELINE, "baseline", before.began[WORKLOAD.name])
    assert len(old.scores[OLD_BASELINE]) == 3
    assert not before.old_answers
    new_run.scores("baseline", "baseline", WORKLOAD.name).unlink()
    assert not baseline_record.read(new_run).prompts, "an old prompt is none of the new run's"


def test_without_answers_of_its_own_a_workload_is_not_read(old_run, new_run, new_plan):
    old_answers.copy(old_run.root, new_run, new_plan)
    assert not tuple(old_answers.read(new_run, new_plan, ReportedDraws()))


@pytest.fixture
def both(directory, plan, transcript, old_run):
    """A run of two engines, with the old one's in its folder: its old baseline scored the new one's answers."""
    after = replace(
        plan, boots=(*plan.boots, Boot(index=4, role=Role.OLD_BASELINE, arm=OLD_BASELINE, number=2, scores=plan.boots[2].scores[2:]))
    )
    root = RunDirectory.create(directory.root.parent / "both")
    run_documents.write_plan(root, after)
    answers = (answer("chat-00", (1, 5)), answer("chat-01", (8,)))
    transcripts.write(root, transcript("baseline", answers=answers, server_failures=(), started_at="now"))
    scores = [replace(score("baseline", each.request_id, each.choice.token_ids), under=OLD_BASELINE) for each in answers]
    transcripts.write_scores(root, OLD_BASELINE, "baseline", WORKLOAD.name, scores)
    directory.root.rename(root.old)
    return root


def test_new_answers_stand_beside_the_old_baselines_own_under_its_scores(both):
    (new,) = baseline_record.read(both).new_answers
    assert (new.arm, new.speculative.started_at, new.control.started_at) == ("new.baseline", "now", "2026-11-21T06:00:00Z")
    assert [each.choice.token_ids for each in new.speculative.answers] == [(1, 5), (8,)]
    assert {name: [each.positions[0].token_id for each in given] for name, given in new.scores.items()} == {
        "new.baseline": [1, 8],
        "baseline": [1, 3, 5],
    }
    assert not baseline_record.read(both).prefixes, "scores of the old baseline are none of the new one's distribution"


def test_old_answers_to_another_request_of_that_id_are_no_control(both, plan):
    first, *others = REQUESTS
    old = RunDirectory(both.old)
    run_documents.write_plan(
        old, replace(plan, workloads=(replace(WORKLOAD, requests=(replace(first, body={"prompt": "else"}), *others)),))
    )
    (new,) = baseline_record.read(both).new_answers
    assert [each.request_id for each in new.control.answers] == ["chat-01", "chat-02"]


def test_without_the_old_run_new_answers_are_not_read(both):
    shutil.rmtree(both.old)
    assert not baseline_record.read(both).new_answers
