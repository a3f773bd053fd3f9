"""docs/coverage.md is what the catalogue says, and every report is in it."""

from __future__ import annotations

import re

import pytest

from benchmarks import coverage


def test_the_page_is_fresh():
    """Else: ``python -m benchmarks.coverage --write``."""
    assert coverage.page() == coverage.PAGE.read_text(encoding="utf-8")


def test_every_record_has_one_state_and_a_line():
    lines = [line for line in coverage.page().split("\n") if line.startswith("| [")]
    assert len(lines) == len(coverage.records()) == len({record.key for record in coverage.records()})
    assert not set(coverage.covered()) & set(coverage.not_expressible())


def test_a_report_that_no_fault_mirrors_is_open_and_counted(monkeypatch):
    monkeypatch.setattr(coverage, "covered", dict)
    monkeypatch.setattr(coverage, "not_expressible", dict)
    text = coverage.page()
    assert f"0 mirrored, 0 not expressible, {len(coverage.records())} open" in text


def test_a_fault_cannot_mirror_a_report_that_is_not_recorded(monkeypatch):
    monkeypatch.setattr(coverage, "covered", lambda: {"acme/engine#1": ("accept-all",)})
    with pytest.raises(ValueError, match="no record of acme/engine#1"):
        coverage.page()


def test_reports_are_named_by_repository_and_number():
    assert not [record.key for record in coverage.records() if not re.match(r"[\w.-]+/[\w.-]+#\d+", record.key)]
    assert not [record.url for record in coverage.records() if not record.url.startswith("https://")]
