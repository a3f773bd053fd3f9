from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import markdown
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.table import WIDEST, reasons

SAID = "all 8 requests were refused with 400: 'no grammar backend is installed'; the baseline refuses them too"


def test_a_refusal_is_told_once_for_all_pairs_with_the_servers_words(make_run, verdicts, judged):
    refused = replace(verdicts["greedy"], outcome=Outcome.REFUSED, family=Family.STRUCTURED, headline=SAID, cell="400")
    run = make_run(
        judged(refused, PytestOutcome.SKIPPED), judged(replace(refused, pair="ngram-k3"), PytestOutcome.SKIPPED), judged(verdicts["greedy"])
    )
    assert reasons(run) == (f"draft-k3, ngram-k3 structured refused 400: {SAID}",)
    assert "no grammar backend is installed" in markdown.render(run)


def test_an_inconclusive_verdict_says_what_would_settle_it(make_run, verdicts, judged):
    verdict = replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE, headline="too little to tell", settle="200 more tokens", cell="")
    assert reasons(make_run(judged(verdict, PytestOutcome.SKIPPED))) == (
        "draft-k3 greedy inconclusive: too little to tell; to settle it: 200 more tokens",
    )


def test_what_was_not_captured_says_why_in_one_line(make_run, judged):
    about = {"pair": "ngram-k3", "workload": "chat", "family": Family.GREEDY}
    error = judged(None, PytestOutcome.ERROR, error="not captured: the run has no answers\n  found:    exit code 7\x1b[2J", **about)
    other = replace(error, family=Family.SPEED, error=error.error.replace("answers", "scores"))
    assert reasons(make_run(error, other)) == ("ngram-k3 greedy, speed NOT CAPTURED: exit code 7␛[2J",)
    assert reasons(make_run(error, replace(other, pair="draft-k3"))) == (
        "ngram-k3 greedy NOT CAPTURED: exit code 7␛[2J",
        "draft-k3 speed NOT CAPTURED: exit code 7␛[2J",
    )
    long = replace(error, error="x" * 1000)
    assert len(reasons(make_run(long))[0]) == len("ngram-k3 greedy NOT CAPTURED: ") + WIDEST


def test_what_passed_or_failed_needs_no_line(make_run, verdicts, judged):
    assert reasons(make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED))) == ()
