from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import matrix, terminal
from pytest_specdec.report.matrix import Tone
from pytest_specdec.report.run import Result

COMMANDS = {"remedy": "judge it again: pytest", "further": "pytest --specdec-continue .specdec/reference-1"}


def text_of(run, *, verbose=False):
    shown = terminal.lines(run, artifacts=("report: .specdec/reference-1/report.md",), **COMMANDS, verbose=verbose)
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in shown)


def test_a_green_run(make_run, verdicts, judged):
    run = make_run(judged(verdicts["greedy"]), judged(verdicts["speed"]))
    assert text_of(run) == (
        "SPEED: NOT GATED for draft-k3: 1.82x [0.91, 2.90], faster, and the interval holds speedup at least 1; settle it with more passes\n"
        "pair       greedy       speed\n"
        "draft-k3   0 of 3,072   1.82x [0.91, 2.90] not decided\n"
        "\n"
        "reference, standard: 2 judgements; pass: 1, speed not decided: 1\n"
        "ruled out for draft-k3:\n"
        "  chat: one wrong token in 1,000 would have shown with probability 0.95\n"
        "speed of draft-k3           Normal   Speculative   Speedup\n"
        "  Response Tok/s             22.96         41.88     1.82x\n"
        "  Time To First Token (s)    0.026         0.016     1.60x\n"
        "  1.82x [0.91, 2.90], faster, and the interval holds speedup at least 1\n"
        "report: .specdec/reference-1/report.md"
    )


def test_a_red_run_ends_with_the_remedy(make_run, verdicts, judged):
    text = text_of(make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], Result.FAILED)))
    assert "3 of 3,072 FAIL" in text
    assert text.endswith("judge it again: pytest")


def test_suspicion_is_said_before_everything_else(make_run, verdicts, judged):
    suspicious = replace(verdicts["greedy"], outcome=Outcome.SUSPICIOUS, family=Family.SAMPLING, headline="not cleared", cell="1:10^4.4")
    run = make_run(judged(verdicts["greedy"]), judged(suspicious, Result.SKIPPED))
    assert not run.red
    assert text_of(run).splitlines()[:4] == [
        "SUSPICIOUS: draft-k3 sampling (chat) not cleared",
        "  take it further, under the same share of false alarms: pytest --specdec-continue .specdec/reference-1",
        "pair       greedy       sampling",
        "draft-k3   0 of 3,072   1:10^4.4 SUSPICIOUS",
    ]


def test_a_run_that_was_interrupted_has_no_table(make_run):
    assert text_of(make_run()).splitlines()[0] == "reference, standard: 0 judgements; no verdict - nothing could be judged"


def test_a_run_that_could_not_judge_says_so(make_run, verdicts, judged):
    run = make_run(judged(replace(verdicts["greedy"], outcome=Outcome.INCONCLUSIVE), Result.SKIPPED))
    assert run.red
    assert "nothing could be judged" in text_of(run)


@pytest.mark.parametrize(
    "outcome, result, text, tone",
    [
        (Outcome.PASS, Result.PASSED, "c", Tone.GOOD),
        (Outcome.PASS, Result.FAILED, "c FAILED", Tone.BAD),
        (Outcome.FAIL, Result.FAILED, "c FAIL", Tone.BAD),
        (Outcome.FAIL, Result.SKIPPED, "c FAIL", Tone.UNSURE),
        (Outcome.NOT_SPECULATING, Result.FAILED, "c NOT SPECULATING", Tone.BAD),
        (Outcome.INCONCLUSIVE, Result.FAILED, "c INCONCLUSIVE", Tone.BAD),
        (Outcome.INCONCLUSIVE, Result.SKIPPED, "c inconclusive", Tone.UNSURE),
        (Outcome.SUSPICIOUS, Result.FAILED, "c SUSPICIOUS", Tone.BAD),
        (Outcome.SUSPICIOUS, Result.SKIPPED, "c SUSPICIOUS", Tone.UNSURE),
        (Outcome.NOT_DECIDED, Result.PASSED, "c not decided", Tone.UNSURE),
        (Outcome.NOT_DECIDED, Result.FAILED, "c NOT DECIDED", Tone.BAD),
        (Outcome.REFUSED, Result.SKIPPED, "c refused", Tone.UNSURE),
        (Outcome.REFUSED, Result.FAILED, "c REFUSED", Tone.BAD),
        (Outcome.INVALID, Result.FAILED, "c INVALID", Tone.BAD),
    ],
)
def test_every_outcome_has_its_words_and_tone(verdicts, judged, outcome, result, text, tone):
    shown = matrix.cell((judged(replace(verdicts["greedy"], outcome=outcome, cell="c"), result),))
    assert (shown.text, shown.tone) == (text, tone)


@pytest.mark.parametrize(
    "result, error, text",
    [
        (Result.ERROR, "not captured: boom", "NOT CAPTURED"),
        (Result.ERROR, "invalid: the control fails", "INVALID"),
        (Result.PASSED, "", "passed"),
        (Result.FAILED, "", "FAILED"),
        (Result.SKIPPED, "", "skipped"),
    ],
)
def test_a_test_without_a_verdict_has_words_too(judged, result, error, text):
    bare = judged(None, result, pair="p", workload="w", family=Family.GREEDY, error=error)
    assert matrix.cell((bare,)).text == text


def test_a_cell_of_several_judgements_shows_the_worst(verdicts, judged):
    shown = matrix.cell((judged(verdicts["greedy"]), judged(verdicts["failed"], Result.FAILED), judged(verdicts["greedy"])))
    assert (shown.text, shown.tone) == ("3 of 3,072 FAIL (2 of 3)", Tone.BAD)
    assert matrix.cell(()).text == "-"


def test_a_finding_is_shown_rather_than_what_was_not_captured(verdicts, judged):
    missing = judged(None, Result.ERROR, pair="p", workload="w", family=Family.GREEDY, error="not captured: boom")
    assert matrix.cell((judged(verdicts["failed"], Result.FAILED), missing)).text == "3 of 3,072 FAIL (0 of 2)"
    assert matrix.cell((judged(verdicts["greedy"]), missing)).text == "NOT CAPTURED (1 of 2)"


def test_long_lists_of_what_was_ruled_out_wait_for_verbose(make_run, verdicts, judged):
    run = make_run(*[judged(verdicts["greedy"])] * 20)
    assert text_of(run).count("one wrong token") == terminal.RULED_OUT_LINES
    assert "and 8 more with -v" in text_of(run)
    assert text_of(run, verbose=True).count("one wrong token") == 20


def test_the_capability_matrix_comes_with_a_refusal(make_run, verdicts, judged):
    refused = replace(verdicts["greedy"], outcome=Outcome.REFUSED)
    assert "capabilities:" not in text_of(make_run(judged(verdicts["greedy"])))
    text = text_of(make_run(judged(verdicts["greedy"]), judged(refused, Result.SKIPPED)))
    assert "  feature       baseline   draft-k3\n  json_schema   honoured   -" in text


def test_notes_are_printed_without_control_characters(make_run, verdicts, judged):
    assert "note: a␛b" in text_of(make_run(judged(verdicts["greedy"]), notes=("a\x1bb",)))


def test_among_equals_the_cell_shows_the_speedup(verdicts, judged):
    length = replace(verdicts["speed"], cell="2.69 tokens a step", figures={"acceptance_length": 2.69})
    shown = matrix.cell((judged(length), judged(verdicts["speed"])))
    assert shown.text == "1.82x [0.91, 2.90] not decided (2 of 2)"
