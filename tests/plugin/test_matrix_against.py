"""``--specdec-against`` of a matrix: each group is compared with the earlier group of the same cells."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.plugin import against
from tests.plugin.test_matrix import GROUPS, MATRIX, ONE
from tests.plugin.test_option_against import CHANGED, SAME


@pytest.fixture
def matrix(project):
    """A project whose config has eight cells in two groups, with a stored run of all of them."""
    project.tests().config(MATRIX).run(*ONE, "--specdec-run-dir=old")
    return project


def test_each_group_is_compared_with_the_earlier_one_of_its_cells(matrix, monkeypatch):
    compared = []

    def compare(old, new):
        compared.append((old.relative_to(matrix.path), new.relative_to(matrix.path)))
        return CHANGED if new.name == GROUPS[1] else SAME

    monkeypatch.setattr(against, "_compare_baselines", compare)
    result = matrix.run(*ONE, "--specdec-against=old", "--specdec-run-dir=new")
    assert result.ret == pytest.ExitCode.TESTS_FAILED, "the tests passed, and the answers changed"
    assert [tuple(map(str, paths)) for paths in compared] == [(f"old/groups/{name}", f"new/groups/{name}") for name in GROUPS]
    result.stdout.fnmatch_lines([
        "MATRIX: tiny, smoke: no finding in the cells; 8 of 8 cells judged",
        "UPGRADE: 1 of 2 groups (max-num-seqs-16): worse: ANSWERS CHANGED, speculation follows: *",
        "UPGRADE: 1 of 2 groups (max-num-seqs-8): fine: SAFE TO UPGRADE*",
        "RESULT: finding: UPGRADE: 1 of 2 groups (max-num-seqs-16): worse: *",
    ])  # fmt: skip
    words = [group["upgrade"]["word"] for group in json.loads((matrix.path / "new" / "matrix-report.json").read_text())["groups"]]
    assert words == ["fine", "worse"]
    for page in ("matrix.md", "matrix.html"):
        assert "UPGRADE: 1 of 2 groups" in (matrix.path / "new" / page).read_text()
    captures = len(matrix.captures)
    replayed = matrix.run(*ONE, "--specdec-replay=new", "--specdec-against=old", config=None)
    replayed.stdout.fnmatch_lines(["UPGRADE: 1 of 2 groups (max-num-seqs-16): worse: *"])
    assert len(matrix.captures) == captures


def test_a_group_that_the_earlier_run_does_not_have_leaves_the_upgrade_open(matrix, monkeypatch):
    monkeypatch.setattr(against, "_compare_baselines", lambda *_: SAME)
    matrix.run(*ONE, "--specdec-only=max-num-seqs=8", "--specdec-run-dir=part")
    result = matrix.run(*ONE, "--specdec-against=part")
    result.stdout.fnmatch_lines([
        "UPGRADE: 1 of 2 groups (max-num-seqs-16): unknown: NOT JUDGED: the earlier run has none of these cells",
        "UPGRADE: 1 of 2 groups (max-num-seqs-8): fine: *",
        "RESULT: undecided*",
    ])  # fmt: skip


def test_a_matrix_and_one_run_are_not_compared(matrix):
    captures = len(matrix.captures)
    result = matrix.run(*ONE, f"--specdec-against=old/groups/{GROUPS[0]}")
    result.stderr.fnmatch_lines(["ERROR: this is no run of a matrix"])
    result = matrix.config("").run(*ONE, "--specdec-against=old")
    result.stderr.fnmatch_lines([
        "ERROR: the earlier run is of a matrix, and this one is not",
        f"  remedy:   name one, such as *old/groups/{GROUPS[0]}*",
    ])  # fmt: skip
    assert len(matrix.captures) == captures
