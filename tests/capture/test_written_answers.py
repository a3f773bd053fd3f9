"""Written answers: an end of their server that comes after them is added, unless a failure shows it or it was ended here."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.scoring import PromptLogprobs, ScoringRequest, TranscriptScorer
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.workload_runner import WorkloadResult
from pytest_specdec.capture.written_answers import WrittenAnswers
from pytest_specdec.files import transcripts
from pytest_specdec.model.transcript import Answer, FailureKind, ServerFailure, Timing, Transcript

EARLIER = ServerFailure(request_id="p0", ending=FailureKind.ERROR, recurred=None, failure=0, process="server still running", log_tail=())
ANSWERS = [
    Answer(request_id=name, status=200, timing=Timing(sent_s=1.0, first_s=None, done_s=at)) for name, at in (("p0", 3.0), ("p1", 2.0))
]
MISSING = Answer(request_id="p2", status=None, error="unanswered", timing=Timing(sent_s=1.0, first_s=None, done_s=9.0))


@pytest.fixture
def server(recipe, config):
    with ArmServer(recipe(config), lambda: None) as arm:
        yield arm


@pytest.fixture
def answers(server, directory):
    completeness = SimpleNamespace(warn=lambda _: None, record_transcript=lambda *_: None)
    recipes = SimpleNamespace(directory=directory, plan=SimpleNamespace(workload=lambda _: SimpleNamespace(calibrates=False)))
    made = WrittenAnswers(server=server, recipes=recipes, completeness=completeness)
    transcript = Transcript(arm="v", boot=0, workload="greedy", digest="d", answers=ANSWERS, server_failures=(EARLIER,))
    made.write(WorkloadResult(transcript=transcript))
    return made


def end(server, number=signal.SIGSEGV):
    os.kill(server._server.pid, number)
    assert server._server.wait(10.0)


def ends(directory):
    failures = transcripts.read(directory, "v", "greedy").server_failures
    return [(one.request_id, one.ending, one.failure, one.process, one.log_tail[-1]) for one in failures if one != EARLIER]


def test_an_end_after_the_answers_is_added_to_them_once(answers, server, directory):
    answers.record_silent_end()
    assert ends(directory) == [], "it runs"
    end(server)
    answers.record_silent_end()
    recorded = [("p0", FailureKind.DIED, 1, "server, killed by SIGSEGV, exit code -11, noticed after the last answer", "asked Hello")]
    assert ends(directory) == recorded
    answers.record_silent_end()
    assert ends(directory) == recorded


@pytest.mark.parametrize("why", ["ended here", "a failed request shows it", "the time is up"])
def test_any_other_end_is_not_added(answers, server, directory, why):
    if why == "ended here":
        server.kill()
    end(server, signal.SIGKILL)
    if why == "a failed request shows it":
        server.wait_for_end()
    server.left_s = lambda: 0.0 if why == "the time is up" else 60.0
    answers.record_silent_end()
    assert ends(directory) == []


def test_the_end_of_a_fresh_server_is_silent_again(server):
    end(server)
    server.wait_for_end()
    assert not server.has_ended_silently
    assert server.ensure_running()
    end(server)
    assert server.has_ended_silently


@pytest.mark.parametrize("attached, ends_silently", [("", False), ("http://a", True)])
def test_an_end_by_a_score_asked_ahead_is_none_after_the_answers(recipe, config, attached, ends_silently):
    """The server is waited for where it is started here; an attached one would be given up for good."""
    started = recipe(config, die_on_scoring=True)
    with ArmServer(started, lambda: None) as arm:
        arm.recipe = replace(started, setup=replace(started.setup, attached=attached))
        route = PromptLogprobs(arm, 10.0)
        scoring = TranscriptScorer(server=arm, under="baseline", scorer=lambda: route, prompt_token_ids=lambda _: (), reporter=None)
        scoring.prefetch(ScoringRequest(prompt_token_ids=(1, 2), token_ids=(3,), top_tokens=2))
        assert arm._server.wait(10.0)
        assert arm.has_ended_silently is ends_silently
