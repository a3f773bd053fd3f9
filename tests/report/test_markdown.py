from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import markdown
from pytest_specdec.report.plan_summary import summarise
from pytest_specdec.report.run import PytestOutcome, RunClass
from pytest_specdec.report.upgrade import UpgradeWord
from tests.report.runs import GREEN, MIXED, SPEED, judgement, upgraded_by


def test_an_error_is_shown_whole(make_run, judged):
    error = judged(None, PytestOutcome.ERROR, pair="draft-k3", workload="w", family=Family.GREEDY, error="not captured: boom\nline two")
    text = markdown.render(make_run(error, environment=None, status=None, capabilities={}))
    assert "**CORRECTNESS: nothing could be judged**" in text
    assert "    line two" in text


def test_no_table_is_wider_than_a_comment(make_run, verdicts, judged, plan):
    pairs = [f"variant-{number}" for number in range(8)]
    failures = (judged(replace(verdicts["failed"], pair=pair, names=f"fault of {pair}"), PytestOutcome.FAILED) for pair in pairs)
    one = plan.pairs[0]
    wide = replace(plan, pairs=tuple(replace(one, variant=replace(one.variant, name=pair)) for pair in pairs))
    run = make_run(*failures, plan=summarise(wide))
    text = markdown.render(run)
    tables = [line.count(" |") for line in text.splitlines() if line.startswith("|")]
    assert max(tables) == 4
    assert all(f" {pair} |" in text for pair in pairs)


def test_the_most_important_comes_first(make_run, verdicts, judged):
    text = markdown.render(make_run(judged(verdicts["failed"], PytestOutcome.FAILED)))
    parts = ("**CORRECTNESS", "| T=0", "<details><summary>❌", "<summary>Capabilities and environment", "Run directory")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_report_fits_into_a_comment(make_run, verdicts, judged):
    huge = replace(verdicts["failed"], evidence=("x" * 50_000,))
    text = markdown.render(make_run(*(judged(replace(huge, names=f"fault {number}"), PytestOutcome.FAILED) for number in range(200))))
    assert len(text.encode()) < 65_536
    assert "sections left out for size" in text
    assert "… cut; run.json has the whole" in text


COMPLETE = GREEN.status
NOT_DECIDED = judgement(replace(SPEED, outcome=Outcome.NOT_DECIDED))


@pytest.mark.parametrize("changes, run_class, sign", [
    ({}, RunClass.CLEAN, "✅"),
    ({"judgements": (*GREEN.judgements, NOT_DECIDED)}, RunClass.CLEAN, "⚠️"),
    ({"upgrade": upgraded_by(UpgradeWord.FINE)}, RunClass.CLEAN, "✅"),
    ({"upgrade": upgraded_by(UpgradeWord.UNKNOWN)}, RunClass.UNDECIDED, "⚠️"),
    ({"upgrade": upgraded_by(UpgradeWord.WORSE)}, RunClass.FINDING, "❌"),
    ({"status": None}, RunClass.INFRASTRUCTURE, "⚠️"),
    ({"status": replace(COMPLETE, state=State.INCOMPLETE)}, RunClass.INFRASTRUCTURE, "⚠️"),
    ({"status": replace(COMPLETE, error="the old engine session left no run.json"), "upgrade": upgraded_by(UpgradeWord.UNKNOWN)},
     RunClass.INFRASTRUCTURE, "❌"),
    ({"status": replace(COMPLETE, error="the model is gone", lasting=True)}, RunClass.SETUP_INVALID, "❌"),
    ({"judgements": MIXED.judgements}, RunClass.FINDING, "❌"),
])  # fmt: skip
def test_the_titles_sign_agrees_with_class_and_exit_code(changes, run_class, sign):
    run = replace(GREEN, **changes)
    assert (run.run_class, markdown.render(run).split()[1]) == (run_class, sign)
