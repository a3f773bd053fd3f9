"""The spans of a run: one per boot, workload and judgement, at the times that the run has stored."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.status import BootTime, Progress, State, Status
from pytest_specdec.report.spans import Period, run_span
from tests.report.runs import GREEN, MIXED

WHOLE = Period(start_s=1000.0, end_s=1100.0)


def line(at_s, boot, doing, arm, workload="", **fields):
    return Progress(at_s=at_s, boot=boot, boots=2, arm=arm, doing=doing, workload=workload, began_at_s=1000.0, **fields)


PROGRESS = (
    line(0.0, 0, "booting", "control"),
    line(5.0, 0, "answering", "baseline", "chat", of=3),
    line(1.0, 1, "booting", "draft-k3"),
    line(7.5, 0, "answering", "baseline", "chat", done=3, of=3, tokens=90),
    line(7.6, 0, "probed: scores come by another route", "baseline"),
    line(8.0, 0, "scoring", "draft-k3", "chat", of=3),
    line(9.0, 1, "answering", "draft-k3", "chat", done=2, of=3, tokens=50),
    line(10.0, 0, "scoring", "draft-k3", "chat", done=3, of=3, tokens=90),
    line(12.0, 0, "stopping", "control"),
)


def spans(run, progress=PROGRESS, judged=None):
    return run_span(run, WHOLE, progress, judged or {})


def test_each_boot_has_its_workloads_at_their_times():
    """Boots side by side write their lines in any order; a boot that died ends with its last line."""
    root = spans(
        replace(GREEN, status=Status(state=State.COMPLETE, served=(BootTime(boot=0, arm="control", readiness_s=4.5, wall_s=7, busy=1),)))
    )
    first, second = root.children
    assert (root.name, root.period, root.is_failed) == ("specdec run", WHOLE, False)
    assert [(boot.name, boot.period) for boot in (first, second)] == [
        ("boot control", Period(start_s=1000.0, end_s=1012.0)),
        ("boot draft-k3", Period(start_s=1001.0, end_s=1009.0)),
    ]
    assert [boot.attributes.get("specdec.readiness_s") for boot in (first, second)] == [4.5, None]
    assert [(work.name, work.period, work.attributes["specdec.arm"], work.attributes["specdec.tokens"]) for work in first.children] == [
        ("answering chat", Period(start_s=1005.0, end_s=1007.5), "baseline", 90),
        ("scoring chat", Period(start_s=1008.0, end_s=1010.0), "draft-k3", 90),
    ]


def test_two_captures_of_a_session_have_their_boots_apart():
    """A count that was open was asked again: the clock of the progress begins anew."""
    again = replace(PROGRESS[0], began_at_s=1050.0)
    assert [span.period.start_s for span in spans(GREEN, (*PROGRESS[:2], again)).children] == [1000.0, 1050.0]


def test_a_judgement_has_its_outcome_and_the_bug_that_it_names():
    judged = {judgement.nodeid: Period(start_s=1060.0, end_s=1061.0) for judgement in MIXED.judgements}
    root = spans(MIXED, (), judged)
    assert root.is_failed
    assert len(root.children) == len(MIXED.judgements)
    for judgement, span in zip(MIXED.judgements, root.children, strict=True):
        outcome = judgement.verdict.outcome.value if judgement.verdict else judgement.result.value
        assert span.attributes["specdec.outcome"] == span.attributes["gen_ai.evaluation.score.label"] == outcome
        assert span.is_failed is (span.attributes["test.case.result.status"] == "fail") is (judgement.result in {"failed", "error"})
    named = {judgement.verdict.names for judgement in MIXED.judgements if judgement.verdict and judgement.verdict.red} - {""}
    assert {span.attributes["specdec.finding"] for span in root.children if "specdec.finding" in span.attributes} == named


def test_no_span_quotes_what_a_server_said():
    """Headlines, evidence and errors of this run are hostile text of a model."""
    judged = {judgement.nodeid: WHOLE for judgement in MIXED.judgements}
    hostile = {text for j in MIXED.judgements if j.verdict for text in (j.verdict.headline, *j.verdict.evidence, *j.verdict.short)}
    hostile |= {judgement.error for judgement in MIXED.judgements} - {""}
    values = {str(value) for span in spans(MIXED, PROGRESS, judged).children for value in span.attributes.values()}
    assert hostile
    assert not {text for text in hostile if any(text in value for value in values)}


def test_a_test_that_never_ran_has_no_span():
    assert not spans(GREEN, ()).children
