"""Verdicts on runs through the doubles are held to what the list of faults expects."""

from __future__ import annotations

import json

import pytest

from benchmarks.doubles import Run, name_of, surprises, table
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

WRONG = ("logprobs", "fail", "reported log-probabilities of accepted draft tokens")
GREEN = ("greedy", "pass", "0 of 808 wrong")


@pytest.fixture
def run(tmp_path):
    """A judged run in which every variant but ``report-draft-logprobs``, the one at hand, is as expected."""

    def _run(colour, *verdicts):
        run = Run(engine="sglang", depth="smoke", colour=colour, root=tmp_path)
        by_fault = {fault: [GREEN] for fault in run.faults}
        for fault in run.faults:
            expected = FAULTS[fault].expected[Place.REFERENCE].red if fault else {}
            by_fault[fault] += [(family.value, "fail", words.split("|")[0]) for family, words in expected.items()]
        by_fault["report-draft-logprobs" if colour == "red" else ""] = list(verdicts)
        (run.folder / "run").mkdir(parents=True)
        judgements = [
            {"pair": name_of(fault), "family": family, "result": "failed", "verdict": {"outcome": outcome, "headline": text, "names": ""}}
            for fault, told in by_fault.items()
            for family, outcome, text in told
        ]
        (run.folder / "run" / "run.json").write_text(json.dumps({"judgements": judgements}))
        return run

    return _run


@pytest.mark.parametrize(
    "colour, verdicts, surprising",
    [
        ("green", [GREEN], []),
        ("green", [GREEN, ("speed", "inconclusive", "too few")], []),
        ("green", [GREEN, WRONG], ["sglang, smoke, healthy: logprobs is red: reported log-probabilities of accepted draft tokens"]),
        ("green", [GREEN, ("greedy", "invalid", "no scores")], ["sglang, smoke, healthy: greedy is red: no scores"]),
        ("green", [GREEN, ("greedy", "inconclusive", "too few")], ["sglang, smoke, healthy: greedy is red: too few"]),
        ("green", [], ["sglang, smoke, healthy: nothing was judged"]),
        ("red", [GREEN, WRONG], []),
        ("red", [GREEN, ("logprobs", "pass", "fine")], ["logprobs should be red"]),
        ("red", [GREEN, ("logprobs", "fail", "off by one")], ["logprobs should be red"]),
        ("red", [("greedy", "fail", "wrong"), WRONG], ["greedy is red: wrong"]),
        ("red", [GREEN, ("logprobs", "fail", "reported log-probabilities or verifier numerics")], []),
    ],
)
def test_a_run_that_is_not_as_expected_says_so(run, colour, verdicts, surprising):
    lines = surprises(run(colour, *verdicts))
    assert len(lines) == len(surprising)
    assert all(expected in line for expected, line in zip(surprising, lines, strict=True))


def test_every_red_verdict_has_its_headline_in_the_table(run):
    rows = table(run("red", GREEN, WRONG))
    assert [row["family"] for row in rows if row["form"] == "report-draft-logprobs"] == ["logprobs"]
    assert all(row["headline"] for row in rows)
    assert table(run("green", GREEN))[0]["family"] == ""
