from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.workload import Family
from pytest_specdec.report import markdown
from pytest_specdec.report.run import PytestOutcome


def test_a_report_has_table_speed_and_what_was_ruled_out(make_run, verdicts, judged):
    text = markdown.render(make_run(judged(verdicts["greedy"]), judged(verdicts["speed"]), notes=("not comparable: x",)))
    assert text.startswith("## ⚠️ specdec: reference\n")
    assert "\n**CORRECTNESS: nothing wrong found** · **SPEED: NOT GATED (draft-k3)**\n" in text
    assert "\n⚠️ **NOT GATED: draft-k3: 1.82x" in text
    assert "| speed | ⚠️ not decided 1.82x \\[0.91, 2.90\\] |" in text
    assert "| Response Tok/s | 22.96 | 41.88 | 1.82x |" in text
    assert "- draft-k3, chat: one wrong token in 1,000" in text
    assert "- not comparable: x" in text
    assert "Xeon\\|5, 2 cores, 8 GiB, no accelerator" in text


def test_hostile_evidence_stays_inside_its_block(make_run, verdicts, judged):
    text = markdown.render(make_run(judged(verdicts["failed"], PytestOutcome.FAILED)))
    assert "## ❌ specdec" in text
    evil = next(line for line in text.splitlines() if "<script>" in line)
    assert evil.startswith("    ")
    assert "\x1b" not in text


def test_an_error_is_shown_whole(make_run, judged):
    error = judged(None, PytestOutcome.ERROR, pair="draft-k3", workload="w", family=Family.GREEDY, error="not captured: boom\nline two")
    text = markdown.render(make_run(error, environment=None, status=None, capabilities={}))
    assert "**CORRECTNESS: nothing could be judged**" in text
    assert "    line two" in text


def test_a_report_fits_into_a_step_summary(make_run, verdicts, judged):
    huge = replace(verdicts["failed"], evidence=("x" * 50_000,))
    text = markdown.render(make_run(*[judged(huge, PytestOutcome.FAILED)] * 200))
    assert len(text.encode()) < 1024 * 1024
    assert "sections left out for size" in text
    assert "… cut; run.json has the whole" in text
