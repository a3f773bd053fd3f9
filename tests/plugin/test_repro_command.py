"""``python -m pytest_specdec repro RUN TEST``: a folder for one wrong answer, or one error that says why there is none."""

from __future__ import annotations

import json
import runpy
import shutil

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.repro_command import replay_command

FAULTS = """
import pytest
from sample import *
from pytest_specdec.model.verdict import Example, Symptom

def fail(captured, example=None):
    return say(captured, Outcome.FAIL, names="a fault", headline="a fault: 1 token", example=example)

@pytest.mark.specdec(CHAT, family="greedy")
def test_shown(specdec_captured, specdec_check):
    specdec_check(fail(specdec_captured, Example(symptom=Symptom.TEXT, request_id="chat-1", token=1)))

@pytest.mark.specdec(CHAT, family="context")
def test_of_a_run(specdec_captured, specdec_check):
    specdec_check(fail(specdec_captured, Example(symptom=Symptom.ANSWER, request_id="code/code-2")))

@pytest.mark.specdec(CHAT, family="structured")
def test_statistical(specdec_captured, specdec_check):
    specdec_check(fail(specdec_captured))

@pytest.mark.specdec(CODE, family="lengths")
def test_right(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))

@pytest.mark.specdec(CHAT, family="tools")
def test_lost(specdec_captured, specdec_check):
    specdec_check(fail(specdec_captured, Example(symptom=Symptom.TEXT, request_id="gone-7")))
"""


@pytest.fixture
def run(project, monkeypatch):
    """A red run, and its place as the current folder."""
    project.config("").tests(FAULTS)
    text = (project.path / "suites/configs/tiny.yaml").read_text()
    config = text.replace("model: target}", "model: target, body: {user: me}, env: {MODE: fast}}")
    (project.path / "suites/configs/tiny.yaml").write_text(config)
    project.run("-k", "draft")
    monkeypatch.chdir(project.path)
    (directory,) = project.runs
    for log, port in (("0-baseline", 4000), ("1-draft-k3", 5000)):
        (directory / "servers").mkdir(exist_ok=True)
        (directory / f"servers/{log}.log").write_text(f"# /opt/python3 -m server --port {port}\nready\n")
    return directory


def test_a_folder_is_written_from_the_runs_files(run, capsys):
    assert main(["repro", str(run), "test_shown"]) == 0
    assert capsys.readouterr().out == "repro-draft-k3-greedy/README.md\n"
    readme = (run.parents[1] / "repro-draft-k3-greedy/README.md").read_text()
    assert "# Speculative decoding (draft-k3): a fault\n" in readme
    assert '\nMODE="fast" python -m server --port 8001\n' in readme
    assert '\nMODE="fast" python -m server --port 8002\n' in readme
    assert "test_shown[draft-k3]" in readme
    ((path, body),) = json.loads((run.parents[1] / "repro-draft-k3-greedy/requests.json").read_text())[0]
    assert path == "/chat/completions"
    assert body == {"messages": [{"role": "user", "content": "1"}], "max_tokens": 8, "temperature": 0, "user": "me"}


def test_both_arms_get_their_own_fields_and_headers(run, capsys):
    config = (run / "config.yaml").read_text().replace("body: {user: me}", "headers: {x-a: '${A}'}, body: {user: me, key: '${KEY}'}")
    config = config.replace("draft-k3: {", "draft-k3: {headers: {x-b: '${KEY}'}, body: {speculative: true}, ")
    (run / "config.yaml").write_text(config)
    assert main(["repro", str(run), "test_shown"]) == 0
    names = runpy.run_path(str(run.parents[1] / "repro-draft-k3-greedy/repro.py"))
    assert names["ARMS"] == {
        "BASELINE": {"headers": {"x-a": "${A}"}, "body": {"key": "${KEY}"}},
        "SPECULATIVE": {"headers": {"x-a": "${A}", "x-b": "${KEY}"}, "body": {"key": "${KEY}", "speculative": True}},
    }


def test_the_folder_is_judged_again_on_a_machine_without_the_run(run, project, tmp_path):
    assert main(["repro", str(run), "test_shown", "--out", str(tmp_path / "repro")]) == 0
    said = {each["nodeid"]: each for each in json.loads((run / "run.json").read_text())["judgements"]}
    shutil.rmtree(run)
    replayed = project.run(f"--specdec-replay={tmp_path / 'repro'}", f"--specdec-run-dir={tmp_path / 'again'}", config=None)
    replayed.assert_outcomes(failed=1, skipped=4)
    (judgement,) = json.loads((tmp_path / "again/run.json").read_text())["judgements"]
    assert judgement["verdict"] == said[judgement["nodeid"]]["verdict"]
    assert judgement["verdict"]["names"] == "a fault"


def test_a_folder_without_its_run_is_one_error(run, project, tmp_path):
    assert main(["repro", str(run), "test_shown", "--out", str(tmp_path / "repro")]) == 0
    shutil.rmtree(tmp_path / "repro/run")
    result = project.run(f"--specdec-replay={tmp_path / 'repro'}", config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: --specdec-replay: found no plan.json in {tmp_path / 'repro'}, nor in its folder run/; expected *"]
    )


@pytest.mark.parametrize("schema, what", [(1, "an older release wrote this run"), (3, "a newer release wrote this run")])
def test_a_folder_of_another_release_is_one_error(run, project, tmp_path, schema, what):
    assert main(["repro", str(run), "test_shown", "--out", str(tmp_path / "repro")]) == 0
    plan = tmp_path / "repro/run/plan.json"
    plan.write_text(plan.read_text().replace("pytest-specdec:plan:2", f"pytest-specdec:plan:{schema}"))
    result = project.run(f"--specdec-replay={tmp_path / 'repro'}", config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {what}", f"  where:    {plan}"])
    assert "Traceback" not in result.stderr.str()


GREEDY, STATE = "test_every_token_is_the_baselines_choice", "test_no_answer_depends_on_what_was_asked_before"


@pytest.mark.parametrize("nodeid, expected", [
    (f"suites/greedy/test_greedy.py::{GREEDY}[a b]", f"pytest --pyargs 'pytest_specdec.suites.greedy.test_greedy::{GREEDY}[a b]'"),
    (f"../lib/pytest_specdec/suites/state/test_state.py::{STATE}", f"pytest --pyargs pytest_specdec.suites.state.test_state::{STATE}"),
    ("suites/greedy/test_greedy.py::test_mine", "pytest suites/greedy/test_greedy.py::test_mine"),
    ("suites/greedy/test_of_ours.py::test_it", "pytest suites/greedy/test_of_ours.py::test_it"),
    ("test_it.py::test_shown[draft-k3]", "pytest 'test_it.py::test_shown[draft-k3]'"),
])  # fmt: skip
def test_a_test_of_the_package_is_named_as_a_stranger_has_it(nodeid, expected):
    assert replay_command(nodeid) == f"{expected} --specdec-replay ."


def test_nothing_is_written_over(run, capsys):
    (run / "servers/note").write_text("mine")
    assert main(["repro", str(run), "test_shown", "--out", str(run / "servers")]) == 2
    assert "the folder is in use" in capsys.readouterr().err


@pytest.mark.parametrize("spoil, what", [
    (lambda run: (run / "config.yaml").write_text("engine: 7\n"), "config"),
    (lambda run: (run.parents[1] / "repro-draft-k3-greedy").write_text(""), "the folder is in use"),
])  # fmt: skip
def test_a_spoilt_config_and_a_file_in_the_way_are_one_error(run, capsys, spoil, what):
    spoil(run)
    assert main(["repro", str(run), "test_shown"]) == 2
    assert what in capsys.readouterr().err


def test_shrinking_without_addresses_is_one_error(run, capsys):
    assert main(["repro", str(run), "test_shown", "--shrink"]) == 2
    assert capsys.readouterr().err.startswith("shrinking needs both servers\n")


def test_a_verdict_on_a_whole_run_names_the_workload_too(run, tmp_path):
    assert main(["repro", str(run), "test_of_a_run", "--out", str(tmp_path / "out")]) == 0
    assert '"content": "2"' in (tmp_path / "out/requests.json").read_text()


def test_a_replay_into_another_folder_finds_the_answers_of_its_run(run, project, tmp_path):
    project.run(f"--specdec-replay={run}", f"--specdec-run-dir={tmp_path / 'again'}", "-k", "draft")
    assert main(["repro", str(tmp_path / "again"), "test_shown", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/repro.py").is_file()


@pytest.mark.parametrize("test, what, remedy", [
    ("test_statistical", "no single answer shows this fault", "python -m pytest_specdec show"),
    ("test_right", "no such test found a fault", "python -m pytest_specdec report"),
    ("test_none", "the run holds no such test", "name a part of one of these ids"),
    ("test_lost", "the run does not hold the request", "capture again"),
])  # fmt: skip
def test_what_has_no_folder_is_one_error(run, capsys, test, what, remedy):
    assert main(["repro", str(run), test]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{what}\n")
    assert remedy in error
    assert not list(run.parents[1].glob("repro-*"))


def test_a_run_without_its_answers_is_one_error(run, capsys):
    (run / "transcripts/draft-k3/chat.jsonl").unlink()
    assert main(["repro", str(run), "test_shown"]) == 2
    assert capsys.readouterr().err.startswith("the run does not hold the answers\n")
    (run / "plan.json").unlink()
    assert main(["repro", str(run), "test_shown"]) == 2
    assert capsys.readouterr().err.startswith("the folder is no run directory\n")


@pytest.mark.parametrize("nodeid", [
    "/somewhere/suites/greedy/test_greedy.py::test_every_token_is_the_baselines_choice[draft-k3]",
    "greedy/test_greedy.py::test_every_token_is_the_baselines_choice[draft-k3]",
    "test_greedy.py::test_every_token_is_the_baselines_choice[draft-k3]",
])  # fmt: skip
def test_a_test_of_the_package_is_named_by_its_module_from_wherever_it_was_run(nodeid):
    module = "pytest_specdec.suites.greedy.test_greedy::test_every_token_is_the_baselines_choice[draft-k3]"
    assert replay_command(nodeid) == f"pytest --pyargs '{module}' --specdec-replay ."


def test_a_test_of_ones_own_keeps_its_file():
    assert replay_command("test_greedy.py::test_mine[x]") == "pytest 'test_greedy.py::test_mine[x]' --specdec-replay ."
