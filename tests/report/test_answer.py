from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.promise import AcceptedLength, CheckedTokens, DraftedTraffic, SpeedFigure
from pytest_specdec.model.verdict import Finding, Outcome, SharedCheck
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, markdown, table, terminal
from pytest_specdec.report.run import PytestOutcome, document

NOT_GATED = "SPEED: NOT GATED (draft-k3)"


@pytest.mark.parametrize("kind, result, correctness, speed", [
    ("greedy", PytestOutcome.PASSED, "CORRECTNESS: nothing wrong found", "SPEED: not tested"),
    ("failed", PytestOutcome.FAILED, "CORRECTNESS: FAILED, 1 finding (ngram-k3)", "SPEED: not tested"),
    ("greedy", PytestOutcome.ERROR, "CORRECTNESS: 1 of 1 judgements could not be made", "SPEED: not tested"),
    ("speed", PytestOutcome.PASSED, "CORRECTNESS: not tested", NOT_GATED),
    ("speed", PytestOutcome.FAILED, "CORRECTNESS: not tested", NOT_GATED),  # required, and not decided
    ("speed", PytestOutcome.ERROR, "CORRECTNESS: not tested", "SPEED: not measured"),
])  # fmt: skip
def test_the_first_line_answers_for_correctness_and_for_speed(make_run, verdicts, judged, kind, result, correctness, speed):
    run = make_run(judged(verdicts[kind], result))
    assert (answer.correctness(run).text, answer.speed(run).text) == (correctness, speed)


def test_a_speed_above_its_gate_and_one_below(make_run, verdicts, judged):
    above = replace(verdicts["speed"], outcome=Outcome.PASS)
    assert answer.speed(make_run(judged(above))).text == "SPEED: above its gate, 1.82x"
    below = make_run(judged(replace(above, outcome=Outcome.FAIL), PytestOutcome.FAILED))
    assert answer.speed(below).text == "SPEED: BELOW ITS GATE (draft-k3)"


def test_a_speed_without_a_gate_is_not_called_above_one(make_run, verdicts, judged):
    above = replace(verdicts["speed"], outcome=Outcome.PASS)
    slower = replace(
        above, workload="load", promise=replace(above.promise, response=SpeedFigure(baseline=10.0, speculative=8.0, speedup=0.8), gates=0)
    )
    assert answer.speed(make_run(judged(above), judged(slower))).text == "SPEED: above its gate, 1.82x"


def test_speeds_that_no_gate_decided_on_have_a_line_per_reason(make_run, verdicts, judged):
    other = judged(replace(verdicts["speed"], workload="acceptance", reason="20 prompts are too few", settle="50 prompts"))
    again = judged(replace(verdicts["speed"], pair="ngram-k3"))
    first, second = answer.undecided_speed_lines(make_run(judged(verdicts["speed"]), other, again))
    because = "because the interval contains the gate: speedup at least 1, settle it with more passes"
    assert first.text == f"NOT GATED: draft-k3 (vacation), ngram-k3 (vacation), {because}"
    assert second.text == "NOT GATED: draft-k3 (acceptance), because 20 prompts are too few, settle it with 50 prompts"


def test_beside_a_missed_gate_every_open_one_has_a_line(make_run, verdicts, judged):
    missed = judged(replace(verdicts["speed"], outcome=Outcome.FAIL, pair="ngram-k3"), PytestOutcome.FAILED)
    run = make_run(judged(verdicts["speed"]), missed)
    assert answer.speed(run).text == "SPEED: BELOW ITS GATE (ngram-k3)"
    assert [line.text.partition(",")[0] for line in answer.undecided_speed_lines(run)] == ["NOT GATED: draft-k3 (vacation)"]


def test_an_acceptance_length_says_nothing_of_the_speed(make_run, verdicts, judged):
    length = replace(verdicts["speed"], outcome=Outcome.PASS, promise=AcceptedLength(tokens_per_step=2.69, prompts=20))
    assert answer.speed(make_run(judged(length))).text == "SPEED: not tested"


def test_drafting_by_kind_of_traffic_is_no_matter_of_the_gate(make_run, verdicts, judged):
    above = judged(replace(verdicts["speed"], outcome=Outcome.PASS))
    kinds = replace(verdicts["speed"], promise=DraftedTraffic(), workload="kinds", names="drafting is off for chat requests")
    assert answer.speed(make_run(above, judged(kinds))).text == "SPEED: above its gate, 1.82x"
    off = make_run(above, judged(replace(kinds, outcome=Outcome.FAIL), PytestOutcome.FAILED))
    assert answer.speed(off).text == "SPEED: SOME REQUESTS ARE NOT DRAFTED FOR (draft-k3)"
    (sentence,) = answer.fault_lines(off)
    assert "some requests do not get the drafts that others get: drafting is off for chat requests (1 test: speed)" in sentence.text


def test_a_change_of_acceptance_is_no_matter_of_the_speed_gate(make_run, verdicts, judged):
    length = AcceptedLength(tokens_per_step=2.1, prompts=20)
    worse = replace(verdicts["speed"], outcome=Outcome.FAIL, promise=length, finding=Finding.WORSE, names=Finding.WORSE)
    run = make_run(judged(worse, PytestOutcome.FAILED))
    assert answer.speed(run).text == "SPEED: ACCEPTANCE HAS CHANGED (draft-k3)"
    assert [line.text for line in answer.fault_lines(run)] == [
        "WRONG: draft-k3: acceptance is not what it was in the stored run: the drafter got worse (1 test: speed)"
    ]
    missed = judged(replace(worse, finding=Finding.SAME, names=""), PytestOutcome.FAILED)
    assert answer.speed(make_run(missed)).text == "SPEED: BELOW ITS GATE (draft-k3)"
    undrafted = judged(replace(verdicts["speed"], outcome=Outcome.FAIL, promise=DraftedTraffic(), pair="ngram-k3"), PytestOutcome.FAILED)
    both = answer.speed(make_run(judged(worse, PytestOutcome.FAILED), undrafted)).text
    assert both == "SPEED: ACCEPTANCE HAS CHANGED (draft-k3), SOME REQUESTS ARE NOT DRAFTED FOR (ngram-k3)"
    either = answer.speed(make_run(undrafted, missed)).text
    assert either == "SPEED: BELOW ITS GATE (draft-k3), SOME REQUESTS ARE NOT DRAFTED FOR (ngram-k3)"


def test_a_missed_gate_on_noise_calls_no_answer_wrong(make_run, verdicts, judged):
    noisy = judged(replace(verdicts["failed"], finding=Finding.TOO_NOISY, names=Finding.TOO_NOISY), PytestOutcome.FAILED)
    assert answer.correctness(make_run(noisy)).text == "CORRECTNESS: NOISE ABOVE ITS GATE, 1 finding (ngram-k3)"
    (sentence,) = answer.fault_lines(make_run(noisy))
    assert sentence.text == f"FAILED: ngram-k3: a gate of the config is missed: {Finding.TOO_NOISY} (1 test: greedy)"
    both = make_run(noisy, judged(verdicts["failed"], PytestOutcome.FAILED))
    assert answer.correctness(both).text == "CORRECTNESS: FAILED, 2 findings (ngram-k3)"


@pytest.mark.parametrize("outcome, word", [(Outcome.INCONCLUSIVE, "undecided"), (Outcome.REFUSED, "refused by the server")])
def test_judgements_without_a_word_on_the_engine_are_counted_beside_those_that_found_nothing(make_run, verdicts, judged, outcome, word):
    unsettled = judged(replace(verdicts["greedy"], outcome=outcome), PytestOutcome.SKIPPED)
    run = make_run(judged(verdicts["greedy"]), unsettled)
    assert answer.correctness(run).text == f"CORRECTNESS: nothing wrong found; 1 of 2 judgements {word}"
    assert answer.limits_of_clean(run) == f"1 of 2 judgements {word}"
    assert answer.correctness(make_run(unsettled)).text.startswith("CORRECTNESS: nothing could be judged")


def test_failures_that_a_lossy_mode_only_reports_are_counted(make_run, verdicts, judged):
    run = make_run(judged(verdicts["greedy"]), judged(verdicts["failed"], PytestOutcome.SKIPPED))
    assert answer.correctness(run).text == "CORRECTNESS: nothing wrong found; 1 failure of a lossy mode reported"
    assert answer.limits_of_clean(run) == "1 failure of a lossy mode reported"


def test_a_clean_runs_last_line_says_what_it_leaves_out(make_run, verdicts, judged):
    waived = judged(verdicts["failed"], PytestOutcome.WAIVED)
    run = make_run(judged(verdicts["greedy"]), waived, judged(replace(verdicts["speed"], outcome=Outcome.NOT_DECIDED)))
    assert answer.limits_of_clean(run) == "1 known failure waived; SPEED: NOT GATED (draft-k3)"
    assert not answer.limits_of_clean(make_run(judged(verdicts["greedy"])))


def test_a_variant_that_refused_everything_is_no_green_run(make_run, verdicts, judged):
    """Beside another that was judged it was counted among its skipped tests, and the run was green."""
    refused = replace(verdicts["greedy"], pair="ngram-k3", outcome=Outcome.REFUSED)
    skipped = judged(refused, PytestOutcome.SKIPPED)
    run = make_run(judged(verdicts["greedy"]), skipped)
    assert run.red
    assert answer.correctness(run).text == "CORRECTNESS: nothing could be judged of ngram-k3: all refused"
    assert not make_run(judged(verdicts["greedy"]), skipped, judged(replace(verdicts["greedy"], pair="ngram-k3"))).red


def test_a_variant_has_one_sentence_for_each_cause_of_its_failures(make_run, verdicts, judged):
    wrong = [replace(verdicts["failed"], family=family) for family in (Family.STRUCTURED, Family.SAMPLING, Family.GREEDY)]
    dies = replace(verdicts["failed"], family=Family.LIVENESS, names="the server dies on a request", check=SharedCheck.SERVER)
    run = make_run(*(judged(verdict, PytestOutcome.FAILED) for verdict in (dies, *wrong)))
    first, second = (sentence.text for sentence in answer.fault_lines(run))
    assert first == f"WRONG: ngram-k3: {answer.BROKEN[Family.GREEDY]}: accept-all (3 tests: greedy, sampling, structured)"
    assert second.endswith("the server dies on a request (1 test: liveness)")
    assert answer.correctness(run).text == "CORRECTNESS: FAILED, 2 findings (ngram-k3)"


def test_a_required_decision_that_is_missing_is_no_fault(make_run, verdicts, judged):
    assert not [*answer.fault_lines(make_run(judged(verdicts["speed"], PytestOutcome.FAILED)))]


def test_detectable_faults_in_short_are_those_of_the_largest_judgements(make_run, verdicts, judged):
    small, large = (replace(verdicts["greedy"], promise=CheckedTokens(tokens=n), rules_out=f"{n} tokens") for n in (10, 900))
    other = replace(large, pair="ngram-k3")
    alive = replace(large, family=Family.LIVENESS, rules_out="deaths")
    run = make_run(*map(judged, (large, small, other, alive)))
    assert answer.detectable_in_short(run) == (("draft-k3, ngram-k3", "900 tokens"),)
    assert len(answer.detectable(run)) == 4
    assert answer.detectable_in_short(make_run(judged(alive))) == (("draft-k3", "deaths"),)


def wrong_and_fast(make_run, verdicts, judged, result=PytestOutcome.FAILED, **fields):
    """A variant with a wrong token that is above its gate, accepts everything and would have caught less."""
    above = {
        "outcome": Outcome.PASS,
        "pair": "ngram-k3",
        "headline": "2.16x, faster; gate met",
        "cell": "2.16x",
        "rules_out": "a speedup below 2",
    }
    length = {
        "headline": "4.00 tokens per step",
        "cell": "4.00 tokens per step",
        "promise": AcceptedLength(tokens_per_step=4.0, prompts=20),
    }
    return make_run(
        judged(replace(verdicts["failed"], **fields), result),
        judged(replace(verdicts["speed"], **above)),
        judged(replace(verdicts["speed"], **{**above, **length})),
        judged(replace(verdicts["speed"], outcome=Outcome.PASS, headline="1.82x, faster; gate met")),
    )


@pytest.mark.parametrize("result", [PytestOutcome.FAILED, PytestOutcome.WAIVED])
def test_the_speed_of_wrong_tokens_is_not_counted_in_any_report(make_run, verdicts, judged, result):
    run = wrong_and_fast(make_run, verdicts, judged, result)
    assert answer.speed(run).text == "SPEED: above its gate, 1.82x; ngram-k3 not counted: tokens are wrong"
    assert run.not_counted == ("ngram-k3",)
    assert document(run)["not_counted"] == ["ngram-k3"]
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.table(run)}
    column = run.pairs.index("ngram-k3")
    for title in (run.plan.rows[Family.SPEED].promise, table.DRAFTING):
        assert cells[title][column] == "not counted: tokens are wrong"
    assert answer.detectable(run) == ()
    on_terminal = "".join(piece.text + "\n" for line in terminal.lines(run) for piece in line)
    for text in (on_terminal, markdown.render(run)):
        assert "not counted: tokens are wrong" in text
        assert "2.16x" not in text
        assert "4.00 tokens" not in text
        assert "1.82x, faster; gate met" in text, "that of the other variant"


def test_where_every_variant_is_wrong_no_speed_is_counted(make_run, verdicts, judged):
    above = replace(verdicts["speed"], outcome=Outcome.PASS, pair="ngram-k3")
    run = make_run(judged(verdicts["failed"], PytestOutcome.FAILED), judged(above))
    assert answer.speed(run).text == "SPEED: not counted: tokens are wrong (ngram-k3)"
    slow = make_run(judged(verdicts["failed"], PytestOutcome.FAILED), judged(replace(above, outcome=Outcome.FAIL), PytestOutcome.FAILED))
    assert answer.speed(slow).text == "SPEED: BELOW ITS GATE (ngram-k3)"
    assert not list(
        answer.undecided_speed_lines(
            make_run(judged(verdicts["failed"], PytestOutcome.FAILED), judged(replace(verdicts["speed"], pair="ngram-k3")))
        )
    )


@pytest.mark.parametrize(
    "fields, result",
    [
        ({"family": Family.LOGPROBS}, PytestOutcome.FAILED),
        ({"family": Family.LIVENESS}, PytestOutcome.FAILED),
        ({"outcome": Outcome.INCONCLUSIVE}, PytestOutcome.FAILED),
        ({}, PytestOutcome.SKIPPED),  # of a lossy mode, reported alone
        ({"finding": Finding.TOO_NOISY}, PytestOutcome.FAILED),
        ({"finding": Finding.TOO_NOISY}, PytestOutcome.WAIVED),
    ],
)
def test_right_tokens_have_a_speed_whatever_else_is_wrong(make_run, verdicts, judged, fields, result):
    run = wrong_and_fast(make_run, verdicts, judged, result, **fields)
    assert run.not_counted == ()
    assert answer.speed(run).text == "SPEED: above its gate, 1.82x or more"


def test_variants_with_one_fault_share_a_line(make_run, verdicts, judged):
    other = replace(verdicts["failed"], pair="draft-k3", workload="w2")
    run = make_run(*(judged(verdict, PytestOutcome.FAILED) for verdict in (verdicts["failed"], other)))
    (line,) = answer.fault_lines(run)
    assert line.text == "WRONG: draft-k3, ngram-k3: tokens at temperature 0 are not the baseline's: accept-all (2 tests: greedy)"
    assert answer.correctness(run).text == "CORRECTNESS: FAILED, 1 finding (ngram-k3, draft-k3)"
    (finding,) = document(run)["findings"]
    assert list(finding["tests"]) == ["draft-k3", "ngram-k3"]


def test_every_family_of_this_package_has_a_sentence_for_its_broken_promise():
    assert [*answer.BROKEN] == [*Family]
