"""A run is resumed where it is, under the plan, the config and the machine that it was begun with."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def stored(project, monkeypatch, begun_here):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    project.tests().run()
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    return run


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_an_incomplete_run_is_taken_up_where_it_is(project, stored, workers):
    result = project.run(f"--specdec-resume={stored}", *workers, subprocess=True)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"specdec: resume of {stored}"])
    assert project.runs == [stored]
    assert len(project.captures) == 2
    assert (project.path / "resumed").exists()
    assert json.loads((stored / "run.json").read_text())["status"]["state"] == "complete"


def test_a_complete_run_is_judged_again_without_a_capture(project, stored):
    project.run(f"--specdec-resume={stored}").assert_outcomes(passed=4)
    project.run(f"--specdec-resume={stored}").assert_outcomes(passed=4)
    assert len(project.captures) == 2


def test_the_depth_is_that_of_the_run(project, monkeypatch, begun_here):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    project.tests().run("--specdec-depth=smoke")
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    project.run(f"--specdec-resume={run}").assert_outcomes(passed=4)
    assert [capture["depth"] for capture in project.captures] == ["smoke", "smoke"]


@pytest.mark.parametrize(
    "args, found",
    [
        (("-k", "chat"), "plan.workloads.code: the run has"),
        (("--specdec-depth=smoke",), "plan.depth: the run has 'standard', found 'smoke'"),
    ],
)
def test_another_selection_or_depth_is_told_with_its_difference(project, stored, args, found):
    result = project.run(f"--specdec-resume={stored}", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-resume: found another plan*"])
    assert found in result.stderr.str()
    assert len(project.captures) == 1


def test_other_sampling_parameters_by_default_are_another_plan(project, stored):
    """They are no part of what a request says, but of what is sent."""
    (project.path / "sample.py").write_text((project.path / "sample.py").read_text().replace("Request(", "Request(server_defaults=True, "))
    result = project.run(f"--specdec-resume={stored}", subprocess=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*plan.workloads.chat.server_defaults: the run has [[]], found ?'chat-0', 'chat-1', 'chat-2'?"])


def test_another_config_is_told_with_its_difference(project, stored):
    project.config("limits: {boot_s: 60}\n")
    result = project.run(f"--specdec-resume={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*config.limits: the run has nothing, found {'boot_s': 60}"])


def test_another_machine_or_version_is_told(project, stored):
    path = stored / "environment.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "cores": 999, "packages": {"pytest-specdec": "0.0.1"}}))
    result = project.run(f"--specdec-resume={stored}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*machine: the run has *", "*pytest-specdec: the run has '0.0.1'*"])


def test_what_is_no_run_is_refused(project):
    result = project.tests().run("--specdec-resume=nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-resume: found no directory *nowhere; *a directory that a capture wrote*"])


@pytest.mark.parametrize("other", ["--specdec-replay", "--specdec-run-dir"])
def test_a_run_is_resumed_where_it_is(project, stored, other):
    (project.path / "empty").mkdir()
    value = stored if other == "--specdec-replay" else "empty"
    result = project.run(f"--specdec-resume={stored}", f"{other}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --specdec-resume cannot be combined with {other}*"])


def test_a_run_of_an_older_release_is_refused(stored, refused_as_older):
    refused_as_older(stored, "--specdec-resume")
