"""A stored run is judged again: nothing boots, nothing in it changes."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def stored(project):
    project.tests().run()
    (run,) = project.runs
    return run


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_a_replay_captures_nothing_and_leaves_the_run_alone(project, stored, workers):
    before = contents(stored)
    result = project.run(f"--specdec-replay={stored}", *workers, config=None, subprocess=bool(workers))
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*--- specdec ---*", "*ok *3/3  ok *3/3"])
    assert len(project.captures) == 1
    assert contents(stored) == before
    assert project.runs == [stored]


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_an_archive_is_replayed_and_named_in_what_to_type_next(project, stored, temporary, workers):
    shutil.make_archive(str(project.path / "night"), "gztar", stored.parent)
    project.outcome("Outcome.FAIL")
    result = project.run("--specdec-replay=night.tar.gz", "--specdec-run-dir=again", *workers, config=None, subprocess=bool(workers))
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*--specdec-replay night.tar.gz"])
    assert str(temporary) not in (project.path / "again/run.json").read_text() + result.stdout.str()
    assert list(temporary.glob("specdec-*")) == []


def test_a_replay_that_fails_exits_like_any_other(project, stored):
    project.outcome("Outcome.FAIL")
    result = project.run(f"--specdec-replay={stored}", config=None)
    result.assert_outcomes(failed=2)
    assert result.ret == 1


def test_a_replay_reports_where_it_is_told(project, stored):
    project.run(f"--specdec-replay={stored}", "--specdec-run-dir=again", config=None)
    assert {path.name for path in (project.path / "again").iterdir()} == {"run.json", "report.md", "report.html"}


def test_a_replay_keeps_depth_and_shares_of_the_run(project, stored):
    project.run(f"--specdec-replay={stored}", "--specdec-run-dir=again", "--specdec-depth=deep", "-k", "chat and draft", config=None)
    import json

    plan = json.loads((project.path / "again/run.json").read_text())["plan"]
    assert plan["depth"] == "standard"
    assert plan["judgements"] == json.loads((stored / "run.json").read_text())["plan"]["judgements"]


def test_a_config_on_the_command_line_brings_other_policies(project, stored):
    project.outcome("Outcome.INCONCLUSIVE")
    project.run(f"--specdec-replay={stored}", config=None).assert_outcomes(failed=2)
    project.config("allow_inconclusive: [greedy]\n").run(f"--specdec-replay={stored}").assert_outcomes(skipped=2)


def test_what_the_run_does_not_hold_is_left_out_and_then_nothing_was_judged(project, stored):
    project.tests(
        "import pytest\nfrom sample import *\n\n"
        "@pytest.mark.specdec(workload('other'), family='greedy')\ndef test_it(specdec_captured): pass\n"
    )
    result = project.run(f"--specdec-replay={stored}", config=None)
    result.assert_outcomes(skipped=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*nothing could be judged*", "note: *: greedy of other"])


def test_a_relative_path_is_understood_from_where_one_stands(project, stored):
    project.run("--specdec-replay", str(stored.relative_to(project.path)), config=None).assert_outcomes(passed=4)


def test_a_run_of_an_older_release_is_refused(stored, refused_as_older):
    refused_as_older(stored, "--specdec-replay")
