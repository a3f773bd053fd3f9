from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import failure


def test_a_failure_names_who_failed_and_ends_with_the_next_command(verdicts):
    lines = failure.short(verdicts["failed"], "pytest x --specdec-replay y").splitlines()
    assert lines[0] == "ngram-k3 greedy: 3 tokens are not the baseline's choice; first: chat-07, token 17"
    assert lines[-1] == "replay: pytest x --specdec-replay y"


@pytest.mark.parametrize("settle", ["", "4,000 more tokens"])
@pytest.mark.parametrize("said", [0, 3, 4, 9])
def test_a_failure_never_takes_more_than_six_lines(verdicts, said, settle):
    verdict = replace(verdicts["failed"], short=("said",) * said, settle=settle)
    lines = failure.short(verdict, "pytest").splitlines()
    assert len(lines) <= failure.LINES
    assert (f"  to settle it: {settle}" in lines) == bool(settle)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.FAIL])
def test_other_outcomes_are_named_in_the_first_line(verdicts, outcome):
    assert f"greedy {outcome.value}: " in failure.headline(replace(verdicts["greedy"], outcome=outcome))


def test_model_output_cannot_steer_the_terminal(verdicts):
    text = failure.short(verdicts["failed"], "pytest") + failure.evidence(verdicts["failed"])
    assert "\x1b" not in text
    assert "\r" not in text
    assert "␛[31mon␍␊" in text


def test_a_section_fits_a_screen(verdicts):
    assert failure.section(verdicts["greedy"]) == failure.evidence(verdicts["greedy"])
    lines = failure.section(replace(verdicts["greedy"], evidence=("line",) * 100)).splitlines()
    assert len(lines) == failure.SECTION_LINES + 1
    assert lines[-1] == "… and 63 lines more in run.json"


def test_the_evidence_holds_everything(verdicts):
    text = failure.evidence(verdicts["failed"])
    for part in ("3 tokens are not", "named: accept-all", "shared", "line one", "tokens = 3072"):
        assert part in text
    assert "rules out: one wrong token" in failure.evidence(verdicts["greedy"])
