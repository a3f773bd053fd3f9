"""What a run directory tells of its baseline's distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import baseline_record, run_documents, transcripts
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.plan import Boot, Role
from pytest_specdec.model.transcript import Answer, Choice, Position, Score
from tests.files.conftest import REQUESTS, WORKLOAD

PROMPT = (7, 8)


def answer(number, ids):
    return Answer(request_id=f"chat-0{number}", status=200, prompt_token_ids=PROMPT, choices=(Choice(token_ids=ids, finish_reason="stop"),))


def score(arm, number, ids):
    positions = tuple(Position(token_id=token, logprob=-0.5, top_ids=(token, 99), top_logprobs=(-0.5, -1.0)) for token in ids)
    return Score(request_id=f"chat-0{number}", arm=arm, under="baseline", positions=positions)


@pytest.fixture
def run(directory, plan, transcript):
    """A run of three arms: the variant's second answer begins as the baseline's does, and its third was scored as other tokens."""
    run_documents.write_plan(directory, plan)
    emitted = {"baseline": [(1, 2, 3)], "control": [(1, 2, 4)], "v": [(1, 2, 3), (1, 5), (6,)]}
    scored = {"baseline": [(1, 2, 3)], "control": [(1, 2, 4)], "v": [(1, 2, 3), (1, 5), (9,)]}
    for arm, all_ids in emitted.items():
        answers = tuple(answer(number, ids) for number, ids in enumerate(all_ids))
        transcripts.write(directory, transcript(arm, answers=answers, server_failures=()))
        scores = [score(arm, number, ids) for number, ids in enumerate(scored[arm])]
        transcripts.write_scores(directory, "baseline", arm, WORKLOAD.name, scores)
    return directory


def test_every_scored_prefix_counts_once_whichever_arm_gave_it(run):
    record = baseline_record.read(run)
    assert record.prompts == {REQUESTS[0].prompt_key: PROMPT}
    assert record.chats == {REQUESTS[0].prompt_key}
    assert [prefix.position.token_id for prefix in record.prefixes.values()] == [1, 2, 3], "of 4 and 5 the prefixes are there already"
    assert not record.draws


def test_answers_of_most_probable_tokens_have_their_scores_and_the_controls_answer(run):
    (greedy,) = baseline_record.read(run).greedy.values()
    assert (greedy.request_id, greedy.choice.token_ids, greedy.control.token_ids) == ("chat-00", (1, 2, 3), (1, 2, 4))
    assert [position.token_id for position in greedy.positions] == [1, 2, 3]


def test_a_prefix_is_known_by_all_ids_before_it():
    first, second, third = baseline_record._prefix_digests((7, 8), (1, 2, 3))
    assert len({first, second, third}) == 3
    assert next(baseline_record._prefix_digests((7, 8, 1), (2,))) == second, "prompt and answer are one sequence"
    assert next(baseline_record._prefix_digests((7,), (8,))) != first
    assert next(baseline_record._prefix_digests((7, 8), (1,), "first")) not in {
        first,
        next(baseline_record._prefix_digests((7, 8), (1,), "b")),
    }


def test_the_same_ids_under_another_adapter_are_another_prefix(run, plan):
    first, second, *others = WORKLOAD.requests
    under = replace(second, body={**second.body, "model": "first"}, adapter="first")
    run_documents.write_workload(run, replace(WORKLOAD, requests=(first, under, *others)))
    assert [prefix.position.token_id for prefix in baseline_record.read(run).prefixes.values()] == [1, 2, 3, 1, 5]


def test_a_file_that_is_there_and_invalid_is_an_error(run):
    run.scores("baseline", "control", WORKLOAD.name).write_text("{}\n")
    with pytest.raises(RunError):
        baseline_record.read(run)


def test_scores_of_another_engines_server_are_not_the_baselines(run, plan):
    scorer = Boot(index=4, role=Role.SCORER, arm="scorer")
    run_documents.write_plan(run, replace(plan, boots=(*plan.boots, scorer)))
    record = baseline_record.read(run)
    (greedy,) = record.greedy.values()
    assert (record.prefixes, greedy.positions, record.draws.answers) == ({}, (), ())
    assert record.prompts, "token ids of prompts are the engine's own all the same"


def test_scores_of_other_tokens_than_were_answered_are_left_out(run):
    transcripts.write_scores(run, "baseline", "baseline", WORKLOAD.name, [score("baseline", 0, (1, 2, 9))])
    (greedy,) = baseline_record.read(run).greedy.values()
    assert greedy.positions == ()


@pytest.mark.parametrize("has_another_boot, boots, reported", [(True, 2, {-0.1}), (False, 1, {-0.1, -0.2})])
def test_a_record_tells_the_boots_of_its_draws_and_has_those_of_each_variant(run, plan, transcript, has_another_boot, boots, reported):
    """The control scores; where it answered as the baseline too, as at smoke depth, no other boot of the baseline is in the draws."""
    body = {"prompt": "p", "max_tokens": 9, "temperature": 1.0, "logprobs": 1}
    workload = replace(WORKLOAD, requests=tuple(replace(request, body=body) for request in REQUESTS))
    planned = [
        replace(boot, also_baseline=boot.role is Role.CONTROL and not has_another_boot)
        for boot in plan.boots
        if has_another_boot or boot.role is not Role.BASELINE
    ]
    run_documents.write_plan(run, replace(plan, workloads=(workload,), boots=tuple(planned)))
    for arm, logprob, last in (("baseline", -0.1, 3), ("control", -0.2, 4), ("v", -0.3, 3)):
        choice = Choice(token_ids=(1, 2, last), logprobs=(logprob,) * 3)
        answers = (Answer(request_id="chat-00", status=200, prompt_token_ids=PROMPT, choices=(choice,)),)
        transcripts.write(run, transcript(arm, digest=workload.digest, answers=answers, server_failures=()))
    record = baseline_record.read(run)
    assert (record.boots, {logprob for logprob, _ in record.draws}) == (boots, reported)
    assert [{logprob for logprob, _ in draws} for draws in record.variant_draws] == [{-0.3}]
    assert not record.single_precision
    run_documents.write_capabilities(run, "baseline", Capabilities(single_precision=True))
    assert baseline_record.read(run).single_precision


def test_requests_that_got_no_answer_and_answers_of_no_token_are_in_the_record(run, transcript):
    """An answer that has a text without token ids cannot be compared, and is not taken for one of no token."""
    failed, refused, empty, unnamed = (
        Answer(request_id=f"chat-0{number}", status=status, choices=choices)
        for number, (status, choices) in enumerate(
            [
                (None, ()),
                (400, ()),
                (200, (Choice(finish_reason="stop"),)),
                (200, (Choice(text="Yes.", finish_reason="stop"),)),
            ]
        )
    )
    requests = tuple(replace(REQUESTS[0], id=f"chat-0{i}", body={**REQUESTS[0].body, "max_tokens": 9 + i}) for i in range(4))
    workload = replace(WORKLOAD, requests=requests)
    run_documents.write_workload(run, workload)
    answers = (failed, refused, empty, unnamed)
    transcripts.write(run, transcript("baseline", digest=workload.digest, answers=answers, server_failures=(), room=2))
    record = baseline_record.read(run)
    assert record.unanswered == {requests[number].asks for number in (0, 1, 3)}
    (greedy,) = record.greedy.values()
    assert (greedy.request_id, greedy.choice.token_ids, greedy.limit) == ("chat-02", (), 22)
