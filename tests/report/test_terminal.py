from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, table, terminal
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.table import Tone

COMMANDS = {"remedy": "judge it again: pytest", "further": "pytest --specdec-continue .specdec/reference-1"}


def text_of(run, *, verbose=False):
    shown = terminal.lines(run, artifacts=("report: .specdec/reference-1/report.md",), **COMMANDS, verbose=verbose)
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in shown)


def test_a_green_run(make_run, verdicts, judged):
    run = make_run(judged(verdicts["greedy"]), judged(verdicts["speed"]))
    assert text_of(run) == (
        "CORRECTNESS: nothing wrong found     SPEED: NOT GATED (draft-k3)\n"
        "NOT GATED: draft-k3: 1.82x [0.91, 2.90], faster, and the interval holds speedup at least 1; settle it with more passes\n"
        "\n"
        "                             draft-k3\n"
        "T=0: the baseline's tokens   ok   0 of 3,072 tokens wrong\n"
        "speed                        not decided 1.82x [0.91, 2.90]\n"
        "\n"
        "reference, standard: 2 judgements; pass: 1, speed not decided: 1\n"
        "Would have been caught in draft-k3:\n"
        "  chat: one wrong token in 1,000 would have shown with probability 0.95\n"
        "Not tested: sampling, parameters, logprobs, structured, liveness, seeds, lengths, invariants, tools, state, concurrency, context, "
        "pressure\n"
        "speed of draft-k3           Normal   Speculative   Speedup\n"
        "  Response Tok/s             22.96         41.88     1.82x\n"
        "  Time To First Token (s)    0.026         0.016     1.60x\n"
        "  1.82x [0.91, 2.90], faster, and the interval holds speedup at least 1\n"
        "report: .specdec/reference-1/report.md"
    )


def test_a_red_run_ends_with_the_remedy(make_run, verdicts, judged):
    text = text_of(make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.FAILED)))
    assert text.splitlines()[:2] == ["CORRECTNESS: WRONG (ngram-k3)     SPEED: not tested", "WRONG: ngram-k3: accept-all (greedy)"]
    assert "FAIL 3 of 3,072 tokens wrong" in text
    assert text.endswith("judge it again: pytest")


def test_suspicion_is_said_before_everything_else(make_run, verdicts, judged):
    suspicious = replace(verdicts["greedy"], outcome=Outcome.SUSPICIOUS, family=Family.SAMPLING, headline="not cleared", cell="1:10^4.4")
    run = make_run(judged(verdicts["greedy"]), judged(suspicious, PytestOutcome.SKIPPED))
    assert not run.red
    assert text_of(run).splitlines()[:3] == [
        "CORRECTNESS: SUSPICIOUS (draft-k3)     SPEED: not tested",
        "SUSPICIOUS: draft-k3 sampling (chat) not cleared",
        "  take it further, under the same share of false alarms: pytest --specdec-continue .specdec/reference-1",
    ]
    assert "T>0: the baseline's distribution   SUSPICIOUS 1:10^4.4" in text_of(run)


def test_a_run_that_was_interrupted_has_no_table(make_run):
    assert text_of(make_run()).splitlines()[0] == "reference, standard: 0 judgements; no verdict - nothing could be judged"


def test_a_run_that_could_not_judge_says_so(make_run, verdicts, judged):
    run = make_run(judged(replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED))
    assert run.red
    assert "nothing could be judged" in text_of(run)


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


def test_long_lists_of_what_was_ruled_out_wait_for_verbose(make_run, verdicts, judged):
    run = make_run(*[judged(verdicts["greedy"])] * 20)
    assert text_of(run).count("one wrong token") == terminal.RULED_OUT_LINES
    assert "and 8 more with -v" in text_of(run)
    assert text_of(run, verbose=True).count("one wrong token") == 20


def test_the_capability_matrix_comes_with_a_refusal(make_run, verdicts, judged):
    refused = replace(verdicts["greedy"], outcome=Outcome.REFUSED)
    assert "capabilities:" not in text_of(make_run(judged(verdicts["greedy"])))
    text = text_of(make_run(judged(verdicts["greedy"]), judged(refused, PytestOutcome.SKIPPED)))
    assert "  feature       baseline   draft-k3\n  json_schema   honoured   -" in text


def test_notes_are_printed_without_control_characters(make_run, verdicts, judged):
    assert "note: a␛b" in text_of(make_run(judged(verdicts["greedy"]), notes=("a\x1bb",)))


def test_the_acceptance_length_has_a_row_of_its_own(make_run, verdicts, judged):
    length = replace(verdicts["speed"], outcome=Outcome.PASS, cell="2.69 tokens a step", figures={"acceptance_length": 2.69})
    rows = table.table(make_run(judged(length), judged(verdicts["speed"])))
    assert [[shown.text for shown in row] for row in rows] == [
        ["", "draft-k3"],
        ["speed", "not decided 1.82x [0.91, 2.90]"],
        ["drafting", "ok   2.69 tokens a step"],
    ]


def sampled(verdict, tokens, log10_wealth):
    return replace(verdict, family=Family.SAMPLING, figures={"tokens": tokens, "log10_wealth": log10_wealth}, cell="1:10^0")


@pytest.mark.parametrize("log10_wealth, shown", [(0.3, "2.0"), (5.0, "100,000.0"), (254.2, "10^254")])
def test_evidence_stands_beside_the_alarm_of_its_own_judgement(make_run, verdicts, judged, plan, log10_wealth, shown):
    known = make_run(judged(sampled(verdicts["greedy"], 800.0, 0.1)), judged(sampled(verdicts["greedy"], 300.0, log10_wealth)))
    judgements = tuple(replace(one, family=Family.SAMPLING) for one in plan.judgements)
    _, total, evidence = table.table(replace(known, plan=replace(plan, judgements=judgements)))
    assert total[1].text == "ok   1,100 tokens of 2 workloads"
    assert evidence[1].text == f"     {shown}  (alarm at 50,000)"


def test_documents_of_several_workloads_are_counted_together(verdicts, judged):
    documents = replace(verdicts["greedy"], family=Family.STRUCTURED, figures={"documents": 90.0, "invalid_documents": 1.0})
    assert table.cell((judged(documents), judged(documents))).text == "ok   178 of 180"


@pytest.mark.parametrize("kind, result, correctness, speed", [
    ("greedy", PytestOutcome.PASSED, "CORRECTNESS: nothing wrong found", "SPEED: not tested"),
    ("failed", PytestOutcome.FAILED, "CORRECTNESS: WRONG (ngram-k3)", "SPEED: not tested"),
    ("greedy", PytestOutcome.ERROR, "CORRECTNESS: 1 of 1 judgements could not be made", "SPEED: not tested"),
    ("speed", PytestOutcome.PASSED, "CORRECTNESS: not tested", "SPEED: NOT GATED (draft-k3)"),
    ("speed", PytestOutcome.FAILED, "CORRECTNESS: not tested", "SPEED: NOT GATED (draft-k3)"),  # required, and not decided
    ("speed", PytestOutcome.ERROR, "CORRECTNESS: not tested", "SPEED: not measured"),
])  # fmt: skip
def test_the_first_line_answers_for_correctness_and_for_speed(make_run, verdicts, judged, kind, result, correctness, speed):
    run = make_run(judged(verdicts[kind], result))
    assert (answer.correctness(run).text, answer.speed(run).text) == (correctness, speed)


def test_a_speed_above_its_gate_and_one_below(make_run, verdicts, judged):
    above = replace(verdicts["speed"], outcome=Outcome.PASS)
    assert answer.speed(make_run(judged(above))).text == "SPEED: above its gate"
    below = make_run(judged(replace(above, outcome=Outcome.FAIL), PytestOutcome.FAILED))
    assert answer.speed(below).text == "SPEED: BELOW ITS GATE (draft-k3)"


def test_an_acceptance_length_says_nothing_of_the_speed(make_run, verdicts, judged):
    length = replace(verdicts["speed"], outcome=Outcome.PASS, figures={"acceptance_length": 2.69})
    assert answer.speed(make_run(judged(length))).text == "SPEED: not tested"


def test_undecided_judgements_are_counted_beside_those_that_found_nothing(make_run, verdicts, judged):
    unsettled = judged(replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED)
    run = make_run(judged(verdicts["greedy"]), unsettled)
    assert answer.correctness(run).text == "CORRECTNESS: nothing wrong found (1 of 2 judgements undecided)"
    assert answer.correctness(make_run(unsettled)).text == "CORRECTNESS: nothing could be judged"
