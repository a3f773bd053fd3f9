"""``matrix`` in a config: a run for each group of cells, judged in one session, selected, resumed and replayed."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory

MATRIX = """
matrix:
  axes:
    engine.args.max-num-seqs: [8, 16]
    k: {two: {variants: {args: {speculative-config: {num_speculative_tokens: 2}}}}, four: {}}
"""
GROUPS = ("max-num-seqs-8", "max-num-seqs-16")
CELLS = [f"{variant}--{group}--{k}" for group in GROUPS for variant in ("draft-k3", "ngram-k3") for k in ("two", "four")]
ONE = ("-k", "test_chat", "--specdec-depth=smoke")


@pytest.fixture
def matrix(project):
    """A project whose config has eight cells in two groups."""
    return project.tests().config(MATRIX)


def root_of(project):
    (run,) = project.runs
    return run


def pairs_of(project):
    return [capture["pairs"] for capture in project.captures]


def test_a_group_of_cells_is_an_ordinary_run_with_one_baseline(matrix):
    result = matrix.run(*ONE)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines([
        "specdec: tiny · reference · smoke · capture into .specdec/tiny-*",
        "  matrix: 8 cells in 2 groups of one baseline each, 8 judgements",
        "  max-num-seqs-8: 4 cells, 5 boots, about *",
        "  together 10 boots, about *",
        "MATRIX: tiny, smoke: nothing wrong found; 8 of 8 cells judged",
    ])  # fmt: skip
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:]]
    root = root_of(matrix)
    assert matrix_run.read(root).captured == tuple(CELLS)
    for group in GROUPS:
        document = json.loads((matrix_run.group_directory(root, group) / "run.json").read_text())
        assert {judgement["pair"] for judgement in document["judgements"]} == {cell for cell in CELLS if f"--{group}--" in cell}
    assert (root / "matrix.md").is_file()
    assert (root / "matrix.html").is_file()


def test_the_budget_is_split_over_all_cells_whatever_a_session_runs(matrix):
    matrix.run(*ONE, "--specdec-only=k=two and variant=ngram-k3", "--specdec-run-dir=few").assert_outcomes(passed=2)
    matrix.run(*ONE, "--specdec-run-dir=all").assert_outcomes(passed=8)
    matrix.config("").run(*ONE, "--specdec-run-dir=plain").assert_outcomes(passed=2)
    few, every = (run_documents.read_plan(RunDirectory(matrix.path / name / "groups" / GROUPS[0])) for name in ("few", "all"))
    plain = run_documents.read_plan(RunDirectory(matrix.path / "plain"))
    assert few.judgements[0].alpha == every.judgements[0].alpha < plain.judgements[0].alpha
    total = sum(sum(plan.red_by_chance.values()) for plan in [every, every])
    assert total <= sum(plain.red_by_chance.values()) * 1.0001


def test_shards_run_every_cell_once_and_merge_can_join_them(matrix):
    numbers = (1, 2, 3)
    for number in numbers:
        assert matrix.run(*ONE, f"--specdec-shard={number}/3", f"--specdec-run-dir=shard{number}").ret == 0
    stored = [matrix_run.read(matrix.path / f"shard{number}") for number in numbers]
    assert sorted(cell for run in stored for cell in run.captured) == sorted(CELLS)
    assert max(len(run.captured) for run in stored) == 3
    assert len({(run.config_digest, *run.workloads.items()) for run in stored}) == 1


def test_a_parallel_job_of_a_ci_system_is_its_shard(matrix, monkeypatch):
    monkeypatch.setenv("CI_NODE_INDEX", "2")
    monkeypatch.setenv("CI_NODE_TOTAL", "8")
    matrix.run(*ONE, "--specdec-shard=auto").assert_outcomes(passed=1)
    monkeypatch.setenv("BUILDKITE_PARALLEL_JOB", "8")
    monkeypatch.setenv("BUILDKITE_PARALLEL_JOB_COUNT", "8")
    result = matrix.run(*ONE, "--specdec-shard=auto")
    result.stderr.fnmatch_lines([
        "ERROR: --specdec-shard: found BUILDKITE_PARALLEL_JOB=8 and BUILDKITE_PARALLEL_JOB_COUNT=8; expected I/N with I from 1 to N, *",
    ])  # fmt: skip


@pytest.mark.parametrize(
    "options, said",
    [
        (["--specdec-shard=9/9"], "ERROR: there are more shards than cells"),
        (["--specdec-shard=0/2"], "ERROR: --specdec-shard: found 0/2; expected I/N with I from 1 to N, such as 2/4"),
        (["--specdec-shard=auto"], "ERROR: --specdec-shard=auto: found neither BUILDKITE_PARALLEL_JOB and *"),
        (["--specdec-only=k=thre"], "ERROR: the expression cannot be used: k=thre"),
        (["--specdec-continue=stored"], "ERROR: a matrix has a run for each group of its cells"),
    ],
)
def test_an_option_that_selects_nothing_is_one_clear_error(matrix, options, said):
    if "continue" in options[0]:
        matrix.run(*ONE, "--specdec-run-dir=stored")
    captures = len(matrix.captures)
    result = matrix.run(*ONE, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert len(matrix.captures) == captures


def test_a_config_without_matrix_has_no_cells_to_select(project):
    result = project.tests().run(*ONE, "--specdec-only=k=two")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the config has no matrix to select cells of", "  remedy:   select a variant with -k"])


def test_a_replay_judges_all_groups_and_a_group_is_replayed_alone(matrix):
    matrix.run(*ONE)
    root, captures = root_of(matrix), len(matrix.captures)
    result = matrix.run(*ONE, f"--specdec-replay={root}", config=None)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["specdec: tiny · reference · smoke · replay of *"])
    result.stdout.fnmatch_lines(["MATRIX: tiny, smoke: nothing wrong found; 8 of 8 cells judged"])
    matrix.run(*ONE, f"--specdec-replay={root}/groups/{GROUPS[1]}", config=None).assert_outcomes(passed=4)
    assert len(matrix.captures) == captures


def test_a_resumed_matrix_captures_the_groups_that_are_missing(matrix, begun_here):
    matrix.run(*ONE)
    root = root_of(matrix)
    begun_here(root / "groups" / GROUPS[0])
    for path in sorted((root / "groups" / GROUPS[1]).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    matrix.run(*ONE, f"--specdec-resume={root}").assert_outcomes(passed=8)
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:], CELLS[4:]]


def test_a_group_that_does_not_come_up_takes_no_other_down(matrix, monkeypatch):
    matrix.run(*ONE, "--specdec-run-dir=first")
    monkeypatch.setenv("FAKE_CAPTURE", "raises")
    result = matrix.run(*ONE, "--specdec-run-dir=second", "--specdec-exit-codes")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["specdec: max-num-seqs-8", "specdec: max-num-seqs-16", "MATRIX: *"])
    assert result.ret == 75


def test_workers_capture_each_group_once(matrix):
    result = matrix.run(*ONE, "-n2", "-pxdist", subprocess=True)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["MATRIX: tiny, smoke: nothing wrong found; 8 of 8 cells judged"])
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:]]
