"""What a session leaves: run.json, report.md, a step summary, JUnit properties, the table."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from fnmatch import fnmatch

import jsonschema
import pytest


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_run_json_is_what_its_schema_says(project, repository, workers):
    project.tests().run(*workers, subprocess=bool(workers))
    schema = json.loads((repository / "pytest_specdec/files/schemas/run.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(project.document)
    assert project.document["counts"] == {"pass": 4}
    assert project.document["status"]["state"] == "complete"
    assert not project.document["red"]


def test_the_step_summary_is_appended_to(project, monkeypatch):
    summary = project.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    project.tests().run()
    assert summary.read_text().startswith("before\n## ✅ specdec: tiny\n")
    (run,) = project.runs
    assert (run / "report.md").read_text() in summary.read_text()


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_junit_carries_scalars_only(project, workers):
    project.outcome("Outcome.FAIL").run("--junit-xml=out.xml", *workers, subprocess=bool(workers))
    cases = ET.parse(project.path / "out.xml").findall(".//testcase")
    case = next(case for case in cases if case.get("name") == "test_it[draft-k3]")
    properties = {p.get("name"): p.get("value") for p in case.find("properties")}
    assert properties == {
        "specdec.outcome": "fail",
        "specdec.family": "greedy",
        "specdec.pair": "draft-k3",
        "specdec.workload": "chat",
        "specdec.headline": "3 answers",
    }


def test_the_summary_tells_pairs_counts_and_places(project):
    result = project.tests().run("--specdec-run-dir=kept")
    result.stdout.fnmatch_lines(
        [
            "specdec: tiny, standard",
            "specdec: tiny *standard *kept",
            "specdec: boot 1/4 baseline *chat 1/1 *",
            "specdec: *complete *0:02, 4 boots",
            "*--- specdec ---*",
            "CORRECTNESS: nothing wrong found *SPEED: not tested",
            "*draft-k3 *ngram-k3",
            "T=0: *ok *3/3 *ok *3/3",
            "survives *ok *3/3 *ok *3/3",
            "tiny (*), standard: 4 judgements: 4 pass",
            "  draft-k3, ngram-k3: anything worse",
            "run: kept/run.json",
            "report: kept/report.md",
        ]
    )


@pytest.mark.nightly
def test_xdist_shows_plan_and_progress_too(project, monkeypatch):
    monkeypatch.setenv("FAKE_CAPTURE", "slow")
    result = project.tests().run("-n2", subprocess=True)
    result.stdout.fnmatch_lines(["specdec: tiny *standard *", "*4 boots*", "specdec: *complete *"])
    result.stdout.fnmatch_lines(["*--- specdec ---*", "survives *ok *3/3 *ok *3/3"])


def test_a_quiet_session_prints_no_progress(project):
    assert "boot 1/4" not in project.tests().run("-q").stdout.str()


def test_hostile_headlines_do_not_reach_the_terminal(project):
    result = project.outcome("Outcome.FAIL, headline='a\\x1b[2Jb\\r\\nc', cell='\\x1b[31m'").run()
    assert "\x1b[2J" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*draft-k3 greedy: a␛?2Jb␍␊c"])


def test_the_reasons_stand_under_the_table_without_any_option(project):
    result = project.outcome("Outcome.REFUSED, headline='all 3 requests were refused with 400: no grammar'").run()
    result.stdout.fnmatch_lines(["T=0: * refused 3/3 *refused 3/3", "", "  draft-k3, ngram-k3 greedy refused 3/3: all 3 *: no grammar"])


def test_a_test_that_skips_itself_says_why_under_the_table(project):
    project.tests(
        "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
        "def test_it(specdec_captured): pytest.skip('not on this machine')\n"
    )
    project.run().stdout.fnmatch_lines(["  draft-k3, ngram-k3 greedy skipped: not on this machine"])


@pytest.mark.parametrize("family, notes", [("speed", 1), ("greedy", 0)])
def test_a_gate_on_noise_that_greedy_does_not_judge_is_noted(project, family, notes):
    path = project.path / "suites/configs/tiny.yaml"
    path.write_text(path.read_text() + "gates: {verify_noise: {at_most: 3}}\n")
    test = (
        f"from sample import *\n\n@pytest.mark.specdec(CHAT, family='{family}')\n"
        "def test_it(specdec_captured, specdec_check): specdec_check(say(specdec_captured, Outcome.PASS))\n"
    )
    result = project.tests(f"import pytest\n{test}").run()
    line = "gate not used: verify noise at most 3 (tiny.yaml:*gates.verify_noise): only greedy judges it, and no test of it was run"
    assert len([note for note in project.document["notes"] if fnmatch(note, line)]) == notes
    if notes:
        result.stdout.fnmatch_lines([f"note: {line}"])


FOLLOWING = """
import pytest
from sample import *

@pytest.mark.specdec(workload("chat"), family="greedy")
def test_chat(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, Outcome.FAIL, names="accept-all"))

@pytest.mark.specdec(workload("chat"), family="greedy")
def test_again(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, Outcome.FAIL, names="accept-all"))

@pytest.mark.specdec(workload("chat"), family="structured")
def test_own(specdec_captured):
    assert specdec_captured.workload.name == "a mistake in a test of one's own"
"""


NAMESAKE = """
import pytest
from sample import *

@pytest.mark.specdec(workload("chat"), family="greedy")
def test_again(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, Outcome.PASS))
"""


@pytest.mark.examples(1)
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_a_follower_points_to_its_leader_on_the_terminal_and_in_junit(project, workers):
    """A test of the same name, parameters, family and workload in another module does not."""
    (project.path / "test_namesake.py").write_text(NAMESAKE)
    result = project.tests(FOLLOWING).run("--junit-xml=out.xml", *workers, subprocess=bool(workers))
    pointer = "follows from test_it.py::test_chat[draft-k3]: accept-all"
    assert result.stdout.lines.count(pointer) == 1
    cases = {(case.get("classname"), case.get("name")): case for case in ET.parse(project.path / "out.xml").findall(".//testcase")}
    assert cases["test_it", "test_again[draft-k3]"].findtext("system-out") == pointer
    for address in (("test_it", "test_chat[draft-k3]"), ("test_it", "test_own[draft-k3]"), ("test_namesake", "test_again[draft-k3]")):
        assert cases[address].find("system-out") is None
    result.stdout.fnmatch_lines(["WRONG: draft-k3, ngram-k3: *accept-all (4 tests: greedy)"])
    result.stdout.fnmatch_lines(["E *a mistake in a test of one's own*"])
    commands = {judgement["nodeid"]: judgement["replay"] for judgement in project.document["judgements"]}
    assert commands["test_it.py::test_own[draft-k3]"].startswith("pytest 'test_it.py::test_own[draft-k3]' --specdec-replay ")
