from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.captured import CHAT_ROUTE, Capabilities, FeatureSupport
from pytest_specdec.model.promise import AcceptedLength, CheckedDocuments, DraftedTraffic, SampledTokens
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import markdown, table
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.table import WIDEST, Tone, reasons

REFUSAL = "no grammar backend is installed"


@pytest.mark.parametrize(
    "outcome, result, text, tone",
    [
        (Outcome.PASS, PytestOutcome.PASSED, "ok   c", Tone.GOOD),
        (Outcome.PASS, PytestOutcome.FAILED, "FAILED c", Tone.BAD),
        (Outcome.FAIL, PytestOutcome.FAILED, "FAIL c", Tone.BAD),
        (Outcome.FAIL, PytestOutcome.SKIPPED, "FAIL c", Tone.UNSURE),
        (Outcome.NOT_SPECULATING, PytestOutcome.FAILED, "NOT SPECULATING c", Tone.BAD),
        (Outcome.INCONCLUSIVE, PytestOutcome.FAILED, "INCONCLUSIVE c", Tone.BAD),
        (Outcome.INCONCLUSIVE, PytestOutcome.SKIPPED, "inconclusive c", Tone.UNSURE),
        (Outcome.SUSPICIOUS, PytestOutcome.FAILED, "SUSPICIOUS c", Tone.BAD),
        (Outcome.SUSPICIOUS, PytestOutcome.SKIPPED, "SUSPICIOUS c", Tone.UNSURE),
        (Outcome.NOT_DECIDED, PytestOutcome.PASSED, "not decided c", Tone.UNSURE),
        (Outcome.NOT_DECIDED, PytestOutcome.FAILED, "NOT DECIDED c", Tone.BAD),
        (Outcome.REFUSED, PytestOutcome.SKIPPED, "refused c", Tone.UNSURE),
        (Outcome.REFUSED, PytestOutcome.FAILED, "REFUSED c", Tone.BAD),
        (Outcome.INVALID, PytestOutcome.FAILED, "INVALID c", Tone.BAD),
    ],
)
def test_every_outcome_has_its_words_and_tone(verdicts, judged, outcome, result, text, tone):
    shown = table.cell((judged(replace(verdicts["greedy"], outcome=outcome, cell="c"), result),))
    assert (shown.text, shown.tone) == (text, tone)


@pytest.mark.parametrize(
    "result, error, text",
    [
        (PytestOutcome.ERROR, "not captured: boom", "NOT CAPTURED"),
        (PytestOutcome.ERROR, "invalid: the control fails", "INVALID"),
        (PytestOutcome.PASSED, "", "passed"),
        (PytestOutcome.FAILED, "", "FAILED"),
        (PytestOutcome.SKIPPED, "", "skipped"),
    ],
)
def test_a_test_without_a_verdict_has_words_too(judged, result, error, text):
    bare = judged(None, result, pair="p", workload="w", family=Family.GREEDY, error=error)
    assert table.cell((bare,)).text == text


def test_a_cell_of_several_judgements_shows_the_worst(verdicts, judged):
    shown = table.cell((judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED), judged(verdicts["greedy"])))
    assert (shown.text, shown.tone) == ("FAIL 3 of 3,072 tokens wrong (2 of 3 passed)", Tone.BAD)
    assert table.cell(()).text == "-"


def test_a_finding_is_shown_rather_than_what_was_not_captured(verdicts, judged):
    missing = judged(None, PytestOutcome.ERROR, pair="p", workload="w", family=Family.GREEDY, error="not captured: boom")
    assert table.cell((judged(verdicts["failed"], PytestOutcome.FAILED), missing)).text == "FAIL 3 of 3,072 tokens wrong (0 of 2 passed)"
    assert table.cell((judged(verdicts["greedy"]), missing)).text == "NOT CAPTURED (1 of 2 passed)"


def test_acceptance_length_and_kinds_of_traffic_have_rows_of_their_own(make_run, verdicts, judged):
    length = replace(
        verdicts["speed"], outcome=Outcome.PASS, cell="2.69 tokens a step", promise=AcceptedLength(tokens_per_step=2.69, prompts=20)
    )
    kinds = replace(length, cell="23 kinds compared", promise=DraftedTraffic(kinds=23))
    rows = table.table(make_run(judged(length), judged(verdicts["speed"]), judged(kinds)))
    assert [[shown.text for shown in row] for row in rows] == [
        ["", "draft-k3"],
        ["speed", "not decided 1.82x [0.91, 2.90]"],
        ["drafting", "ok   2.69 tokens a step"],
        ["drafts for every kind of request", "ok   23 kinds compared"],
    ]


def sampled(verdict, tokens, log10_wealth):
    return replace(verdict, family=Family.SAMPLING, promise=SampledTokens(tokens=tokens, log10_wealth=log10_wealth), cell="1:10^0")


@pytest.mark.parametrize("log10_wealth, shown", [(0.3, "2.0"), (5.0, "100,000.0"), (254.2, "10^254")])
def test_evidence_stands_beside_the_alarm_of_its_own_judgement(make_run, verdicts, judged, plan, log10_wealth, shown):
    known = make_run(judged(sampled(verdicts["greedy"], 800, 0.1)), judged(sampled(verdicts["greedy"], 300, log10_wealth)))
    judgements = tuple(replace(one, family=Family.SAMPLING) for one in plan.judgements)
    _, total, evidence = table.table(replace(known, plan=replace(plan, judgements=judgements)))
    assert total[1].text == "ok   1,100 tokens (2 of 2)"
    assert evidence[1].text == f"     {shown} (alarm at 50,000)"


def test_documents_of_several_workloads_are_counted_together(verdicts, judged):
    documents = replace(verdicts["greedy"], family=Family.STRUCTURED, promise=CheckedDocuments(documents=90, invalid=1))
    assert table.cell((judged(documents), judged(documents))).text == "ok   178 of 180"


def test_a_refusal_is_told_once_for_all_pairs_with_the_servers_words(make_run, verdicts, judged):
    refused = replace(verdicts["greedy"], outcome=Outcome.REFUSED, family=Family.STRUCTURED, headline=REFUSAL, cell="400")
    run = make_run(
        judged(refused, PytestOutcome.SKIPPED), judged(replace(refused, pair="ngram-k3"), PytestOutcome.SKIPPED), judged(verdicts["greedy"])
    )
    assert reasons(run) == (f"draft-k3, ngram-k3 structured refused 400: {REFUSAL}",)
    assert REFUSAL in markdown.render(run)


def test_an_inconclusive_verdict_says_what_would_settle_it(make_run, verdicts, judged):
    verdict = replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE, headline="too little to tell", settle="200 more tokens", cell="")
    (line,) = reasons(make_run(judged(verdict, PytestOutcome.SKIPPED)))
    assert line.startswith("draft-k3 greedy inconclusive: ")
    assert line.endswith(": 200 more tokens")


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
    assert len(reasons(make_run(long))[0]) == len("ngram-k3 greedy NOT JUDGED: ") + WIDEST


def test_what_passed_or_failed_needs_no_line(make_run, verdicts, judged):
    assert reasons(make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED))) == ()


def test_arms_whose_conversations_went_to_another_route_are_named():
    rerouted = Capabilities(support={CHAT_ROUTE: FeatureSupport.IGNORED})
    (note,) = table.untested_routes({"draft-k3": rerouted, "baseline": rerouted, "other": Capabilities()})
    assert "chat template of baseline, draft-k3;" in note
    assert table.untested_routes({"baseline": Capabilities()}) == ()


def test_scores_that_the_probe_found_wrong_are_not_said_to_be_ignored(make_run):
    support = {"prompt_logprobs": FeatureSupport.IGNORED, "seed": FeatureSupport.IGNORED}
    rows = table.capability_rows(make_run(capabilities={"baseline": Capabilities(support=support)}))
    assert [[cell.text for cell in row] for row in rows[1:]] == [["prompt_logprobs", "absent or wrong"], ["seed", "ignored"]]
