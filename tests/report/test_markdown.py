from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.workload import Family
from pytest_specdec.report import markdown
from pytest_specdec.report.run import PytestOutcome


def test_an_error_is_shown_whole(make_run, judged):
    error = judged(None, PytestOutcome.ERROR, pair="draft-k3", workload="w", family=Family.GREEDY, error="not captured: boom\nline two")
    text = markdown.render(make_run(error, environment=None, status=None, capabilities={}))
    assert "**CORRECTNESS: nothing could be judged**" in text
    assert "    line two" in text


def test_a_report_fits_into_a_step_summary(make_run, verdicts, judged):
    huge = replace(verdicts["failed"], evidence=("x" * 50_000,))
    text = markdown.render(make_run(*(judged(replace(huge, names=f"fault {number}"), PytestOutcome.FAILED) for number in range(200))))
    assert len(text.encode()) < 1024 * 1024
    assert "sections left out for size" in text
    assert "… cut; run.json has the whole" in text
