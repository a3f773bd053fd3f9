"""A planned judgement that was never made is an error of the run: what judged only a part is not clean."""

from __future__ import annotations

import pytest

TWO = """
import os
import pytest
from sample import CHAT, CODE, say


@pytest.fixture
def tokenizer():
    raise OSError("no such file")


@pytest.mark.specdec(CHAT, family="greedy")
def test_chat(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))


{mark}@pytest.mark.specdec(CODE, family="greedy")
def test_code({fixtures}specdec_captured, specdec_check):
    {body}
"""
INTERRUPT = "raise KeyboardInterrupt"


def two_tests(body="specdec_check(say(specdec_captured))", fixtures="", mark=""):
    return TWO.format(body=body, fixtures=fixtures, mark=mark)


def outcomes(project):
    return {(j["workload"], j["pair"]): (j["result"], j["error"]) for j in project.document["judgements"]}


@pytest.mark.examples(1)
@pytest.mark.parametrize("how, reason", [
    ({"body": INTERRUPT}, "not made: its test came to no end; --specdec-replay judges the same answers again"),
    ({"fixtures": "tokenizer, "}, "not made: OSError: no such file"),
], ids=["interrupted", "failed before its answers were read"])  # fmt: skip
def test_a_judgement_that_was_not_made_is_an_error(project, how, reason):
    project.tests(two_tests(**how)).run("-k", "draft-k3", "--specdec-exit-codes", subprocess=True)
    assert outcomes(project) == {("chat", "draft-k3"): ("passed", ""), ("code", "draft-k3"): ("error", reason)}
    assert project.document["class"] == "infrastructure"
    assert "NOT JUDGED" in next(iter(project.runs)).joinpath("report.md").read_text()


@pytest.mark.examples(1)
@pytest.mark.parametrize("args", [(), ("-x",)], ids=["", "first failure ends"])
def test_a_worker_that_dies_leaves_errors(project, args):
    project.tests(two_tests("os._exit(9)")).run("-n2", *args, "--specdec-exit-codes", subprocess=True)
    judged = outcomes(project)
    assert len(judged) == 4
    assert {result for (workload, _), (result, _) in judged.items() if workload == "code"} == {"error"}
    assert project.document["class"] == "infrastructure"


def test_tests_that_share_a_cell_are_missed_one_by_one(project):
    text = two_tests(INTERRUPT).replace("CODE, family", "CHAT, family")
    project.tests(text).run("-k", "draft-k3", subprocess=True)
    assert sorted(j["result"] for j in project.document["judgements"]) == ["error", "passed"]


@pytest.mark.examples(1)
@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["one process", "workers"])
@pytest.mark.parametrize("selection", ["test_chat and draft-k3 or test_code and ngram-k3", "draft-k3"])
def test_deselected_tests_are_left_out(project, selection, workers):
    project.tests(two_tests()).run("-k", selection, *workers, "--specdec-exit-codes", subprocess=True).assert_outcomes(passed=2)
    assert [result for result, _ in outcomes(project).values()] == ["passed"] * 2
    assert project.document["class"] == "clean"


@pytest.mark.parametrize("how", [
    {"mark": "@pytest.mark.skip\n"},
    {"mark": "@pytest.mark.xfail(run=False)\n"},
    {"fixtures": "tokenizer, ", "mark": "@pytest.mark.xfail\n"},
], ids=["skipped", "not run", "expected to fail"])  # fmt: skip
def test_skipped_tests_are_left_out(project, how):
    project.tests(two_tests(**how)).run("--specdec-exit-codes")
    assert [key for key, (result, _) in outcomes(project).items() if result == "error"] == []
    assert project.document["class"] == "clean"


def test_a_replay_misses_only_what_was_selected_for_it(project):
    project.tests(two_tests()).run().assert_outcomes(passed=4)
    (run,) = project.runs
    project.run(f"--specdec-replay={run}", "--specdec-run-dir=again", "-k", "chat", "--specdec-exit-codes").assert_outcomes(passed=2)
    project.tests(two_tests(INTERRUPT))
    project.run(f"--specdec-replay={run}", "--specdec-run-dir=more", "-k", "ngram-k3", subprocess=True)
    assert '"class": "clean"' in (project.path / "again/run.json").read_text()
    assert '"class": "infrastructure"' in (project.path / "more/run.json").read_text()
