from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import failure


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


def test_a_section_fits_a_screen(verdicts):
    assert failure.section(verdicts["greedy"]) == failure.evidence(verdicts["greedy"])
    lines = failure.section(replace(verdicts["greedy"], evidence=("line",) * 100)).splitlines()
    assert len(lines) == failure.SECTION_LINES + 1
    assert "63 lines" in lines[-1]


def test_the_evidence_holds_everything(verdicts):
    text = failure.evidence(verdicts["failed"])
    for part in ("3 tokens are not", "named: accept-all", "shared", "line one", "tokens = 3072"):
        assert part in text
    assert "rules out: 3,072 tokens checked" in failure.evidence(verdicts["greedy"])
