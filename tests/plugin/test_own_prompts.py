"""A config's own prompts and reasoning: in the plan and the reports; wrong files end the session; a stored run needs none of it."""

from __future__ import annotations

import json

import pytest

TESTS = """
import pytest
from sample import *

MINE = workload("mine", takes_prompts=True, take={Depth.SMOKE: 1})


@pytest.mark.specdec(MINE, family="greedy")
def test_mine(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))


@pytest.mark.specdec(CODE, family="liveness")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""
PROMPTS = '{"id": "a", "prompt": "Once"}\n{"id": "b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 99}\n'
MORE = "prompts: mine.jsonl\nreasoning: {tokens: 50, template: {enable_thinking: true}}\n"


@pytest.fixture
def own(project):
    """A project whose config names a prompts file."""
    (project.path / "suites/configs/mine.jsonl").write_text(PROMPTS)
    return project.config(MORE).tests(TESTS)


def planned(run):
    workloads = json.loads((run / "plan.json").read_text())["workloads"]
    return {workload["name"]: workload["requests"] for workload in workloads}


def test_they_are_sent_at_every_depth_and_the_reports_count_them(own):
    result = own.run("--specdec-depth=smoke")
    result.assert_outcomes(passed=4)
    (run,) = own.runs
    assert [request["id"] for request in planned(run)["mine"]] == ["own:a", "own:b", "mine-0"]
    assert [request["id"] for request in planned(run)["code"]] == ["code-0", "code-1", "code-2"]
    bodies = {request["id"]: request["body"] for request in planned(run)["mine"]}
    assert bodies["own:a"] == {"prompt": "Once", "max_tokens": 8, "temperature": 0}
    assert (bodies["own:b"]["max_tokens"], bodies["own:b"]["chat_template_kwargs"]) == (99, {"enable_thinking": True})
    note = "2 of 6 requests are your own prompts, in 1 workload"
    result.stdout.fnmatch_lines([f"  {note}", f"note: {note}"])
    assert note in (run / "report.md").read_text()
    assert {w["name"]: w["own_requests"] for w in own.document["plan"]["workloads"]} == {"mine": 2, "code": 0}


def test_a_share_of_the_false_alarm_budget_is_what_it_is_without_them(own):
    own.run()
    own.config("").run()
    first, second = ({judgement["alpha"] for judgement in json.loads((run / "plan.json").read_text())["judgements"]} for run in own.runs)
    assert first == second


def test_a_replay_needs_neither_file(own):
    captured = own.run()
    (run,) = own.runs
    (own.path / "suites/configs/mine.jsonl").unlink()
    (own.path / "suites/configs/tiny.yaml").unlink()
    replayed = own.run(f"--specdec-replay={run}", config=None)
    replayed.assert_outcomes(passed=4)
    assert replayed.ret == captured.ret == 0
    replayed.stdout.fnmatch_lines(["note: 2 of 8 requests are your own prompts, in 1 workload"])


def test_a_run_is_resumed_with_the_prompts_that_it_was_begun_with(own, begun_here):
    own.run()
    (run,) = own.runs
    begun_here(run)
    assert own.run(f"--specdec-resume={run}").ret == 0
    (own.path / "suites/configs/mine.jsonl").write_text(PROMPTS.replace("hello", "goodbye"))
    result = own.run(f"--specdec-resume={run}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--specdec-resume: *", "*plan.workloads.mine.digest: *"])


@pytest.mark.parametrize("args", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "workers"])
def test_a_wrong_file_ends_the_session_before_anything_boots(own, args):
    (own.path / "suites/configs/mine.jsonl").write_text(f'{PROMPTS}{{"id": "a", "promt": "x"}}\n')
    result = own.run(*args, subprocess=bool(args))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the prompts file has 3 problems", "*mine.jsonl:3  *'prompt'?*"])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert not own.captures


def test_an_id_that_begins_as_theirs_do_is_refused(project):
    asked = "Workload(name='w', version=1, requests=(Request(id='own:x', route=Route.CHAT, body={'temperature': 0}),))"
    text = f"import pytest\nfrom sample import *\nW = {asked}\n\n@pytest.mark.specdec(W, family='greedy')\n"
    result = project.tests(f"{text}def test_it(specdec_captured, specdec_check):\n    specdec_check(say(specdec_captured))\n").run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*begins with 'own:'*"])
