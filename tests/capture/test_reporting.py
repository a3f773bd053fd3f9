"""Reporting: log-probabilities are asked for beside an answer only where the arm reported them in the calibration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.reporting import reporting
from pytest_specdec.files import transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.transcript import Answer, Choice, Transcript
from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts.calibration import plain_draws

CALIBRATION = plain_draws(Depth.SMOKE)
COMPLETIONS, CHAT = (next(r for r in CALIBRATION.requests if r.route is route) for route in (Route.COMPLETIONS, Route.CHAT))
ASKED = Workload(
    name="asked",
    version=1,
    requests=(
        Request(id="text", route=Route.COMPLETIONS, body={"prompt": "a", "max_tokens": 4}, reports=True),
        Request(id="chat", route=Route.CHAT, body={"messages": [], "max_tokens": 4}, reports=True),
        Request(id="plain", route=Route.COMPLETIONS, body={"prompt": "a", "max_tokens": 4}),
    ),
)


@pytest.fixture
def plan():
    asked = (CALIBRATION, ASKED)
    return Plan(
        config="tiny", engine="reference", model="m", depth=Depth.SMOKE, workloads=asked, pairs=(), judgements=(), boots=(), estimate_s=0.0
    )


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run")


def answered(directory, *, change=lambda answer: answer, arm="v"):
    reported = Choice(text="a", token_ids=(1,), finish_reason="length", logprobs=(-1.0,))
    answers = (Answer(request_id=request.id, status=200, choices=(reported,)) for request in CALIBRATION.requests)
    transcript = Transcript(arm=arm, boot=0, workload=CALIBRATION.name, digest=CALIBRATION.digest, answers=tuple(map(change, answers)))
    transcripts.write(directory, transcript)


def sent(directory, plan, arm="v"):
    return {request.id: request.body for request in reporting(ASKED, directory, plan, arm).requests if "logprobs" in request.body}


def test_an_arm_that_reported_on_both_routes_is_asked_in_the_words_of_each(directory, plan):
    answered(directory)
    bodies = sent(directory, plan)
    assert {name: body["logprobs"] for name, body in bodies.items()} == {"text": 1, "chat": True}
    assert bodies["chat"]["top_logprobs"] == 1


def test_before_the_calibration_and_of_another_arm_nothing_is_asked(directory, plan):
    assert sent(directory, plan) == {}
    answered(directory, arm="other")
    assert sent(directory, plan) == {}
    assert sent(directory, replace(plan, workloads=(ASKED,)), "other") == {}


@pytest.mark.parametrize(
    "fails",
    [
        lambda answer: replace(answer, status=400, error="no log-probabilities", choices=()),
        lambda answer: replace(answer, status=None, choices=()),
        lambda answer: replace(answer, choices=(replace(answer.choice, logprobs=None),)),
    ],
    ids=["refused", "lost", "bare"],
)
def test_one_refused_lost_or_bare_answer_leaves_its_route_plain(directory, plan, fails):
    answered(directory, change=lambda answer: fails(answer) if answer.request_id == CHAT.id else answer)
    assert sent(directory, plan).keys() == {"text"}


def test_a_calibration_that_cannot_be_read_leaves_all_plain(directory, plan):
    answered(directory)
    path = next(directory.root.rglob(f"*{CALIBRATION.name}*"))
    path.write_bytes(path.read_bytes()[:40])
    assert sent(directory, plan) == {}
