"""``matrix`` in a config: a run for each group of cells, judged in one session, selected, resumed and replayed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile

import pytest

from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.matrix_run import Difference, find_difference

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


def test_the_groups_share_the_deadline_of_the_session(matrix):
    """Each would else take all of it, and the job would run as many times as long as it was told to."""
    matrix.run(*ONE, "--specdec-deadline=1h", "--specdec-only=max-num-seqs=8 or k=two").assert_outcomes(passed=6)
    assert [capture["deadline_s"] for capture in matrix.captures] == pytest.approx([3600 * 6 / 10, 3600 * 4 / 10])


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
        (["--specdec-continue=stored"], "ERROR: --specdec-continue: found */stored, part of a matrix's run; *"),
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
    result.stderr.fnmatch_lines(["ERROR: the config has no matrix to select cells of", "  remedy:   leave it out; -k selects variants"])


def test_a_replay_judges_all_groups_and_a_group_is_replayed_alone(matrix):
    matrix.run(*ONE)
    root, captures = root_of(matrix), len(matrix.captures)
    result = matrix.run(*ONE, f"--specdec-replay={root}", config=None)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["specdec: tiny · reference · smoke · replay of *"])
    result.stdout.fnmatch_lines(["MATRIX: tiny, smoke: nothing wrong found; 8 of 8 cells judged"])
    matrix.run(*ONE, f"--specdec-replay={root}/groups/{GROUPS[1]}", config=None).assert_outcomes(passed=4)
    assert len(matrix.captures) == captures


def test_a_replay_judges_by_the_config_of_the_command_line(matrix):
    """As a person replays who repeats the command line: with waivers and gates as the file has them now."""
    matrix.run(*ONE, "--specdec-run-dir=stored")
    about = "variant: ngram-k3, family: greedy, workload: chat, bug: 'https://example.com/bug/7'"
    waiver = f"waivers:\n- {{{about}, owner: ann, expires: 2026-01-31, words: wrong}}\n"
    result = matrix.config(MATRIX + waiver).run(*ONE, "--specdec-replay=stored", "--specdec-run-dir=judged", "--specdec-date=2026-03-01")
    result.assert_outcomes(passed=8)
    assert "bug/7" in (matrix.path / "judged" / "groups" / GROUPS[0] / "run.json").read_text()
    result = matrix.config(MATRIX.replace("[8, 16]", "[1, 2]")).run(*ONE, "--specdec-replay=stored")
    result.stderr.fnmatch_lines(["ERROR: the matrix has no cell of the stored run"])
    result = matrix.run(*ONE, "--specdec-replay=stored", "--specdec-only=k=two", config=None)
    result.stderr.fnmatch_lines(["ERROR: a replay judges the cells that the run has", "  remedy:   leave it out; -k selects variants"])


def test_the_archive_of_a_matrix_is_replayed_and_named_as_it_was_typed(matrix):
    matrix.run(*ONE, "--specdec-run-dir=stored")
    with tarfile.open(matrix.path / "stored.tar.gz", "w:gz") as archive:
        archive.add(matrix.path / "stored", "stored")
    matrix.run(*ONE, "--specdec-replay=stored.tar.gz", "--specdec-run-dir=judged", config=None).assert_outcomes(passed=8)
    run = json.loads((matrix.path / "judged" / "groups" / GROUPS[0] / "run.json").read_text())
    assert {judgement["replay"].rpartition(" ")[2] for judgement in run["judgements"]} == {"stored.tar.gz"}


def test_a_resumed_matrix_captures_the_groups_that_are_missing(matrix, begun_here):
    matrix.run(*ONE)
    root = root_of(matrix)
    begun_here(root / "groups" / GROUPS[0])
    for path in sorted((root / "groups" / GROUPS[1]).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    matrix.run(*ONE, f"--specdec-resume={root}").assert_outcomes(passed=8)
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:], CELLS[4:]]


def test_a_matrix_is_resumed_at_its_own_depth_also_where_a_group_was_not_begun(matrix, begun_here):
    matrix.run(*ONE)
    root = root_of(matrix)
    begun_here(root / "groups" / GROUPS[0])
    shutil.rmtree(root / "groups" / GROUPS[1])
    matrix.run("-k", "test_chat", f"--specdec-resume={root}").assert_outcomes(passed=8)
    assert {capture["depth"] for capture in matrix.captures} == {"smoke"}


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "options, found",
    [
        ([*ONE, "--specdec-only=max-num-seqs=8"], "4 cells of the run are not selected, and 0 others are"),
        ([*ONE, "--specdec-shard=1/2"], "4 cells of the run are not selected, and 0 others are"),
        (["--specdec-depth=smoke", "-k", "test_chat or test_code"], "the runs are of different tests: code: *, and the run has not sent"),
    ],
)
def test_a_matrix_is_not_resumed_with_another_selection(matrix, options, found):
    """Even where no group that was begun shows it: cells would be forgotten."""
    matrix.run(*ONE)
    root = root_of(matrix)
    shutil.rmtree(root / "groups")
    stored, captures = (root / "matrix.json").read_text(), len(matrix.captures)
    result = matrix.run(*options, f"--specdec-resume={root}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the run to resume was begun with something else", "  where: *", f"  found:    {found}"])
    assert (root / "matrix.json").read_text() == stored
    assert len(matrix.captures) == captures


def test_runs_that_sent_other_prompts_of_their_own_are_no_parts_of_one(matrix):
    """The config only names the file of prompts, whose text may have changed since."""
    for text in ("one", "two"):
        (matrix.path / "suites/configs/mine.jsonl").write_text(json.dumps({"id": "a", "prompt": text}))
        matrix.config(f"prompts: mine.jsonl\n{MATRIX}").run(*ONE, f"--specdec-only={CELLS[0]}", f"--specdec-run-dir={text}")
    one, two = (matrix_run.read(matrix.path / text) for text in ("one", "two"))
    assert find_difference(two, one) == Difference(what="the runs have different prompts of their own", here=two.prompts, there=one.prompts)
    shutil.rmtree(matrix.path / "one/groups")
    result = matrix.run(*ONE, f"--specdec-only={CELLS[0]}", "--specdec-resume=one")
    result.stderr.fnmatch_lines(["  found:    the runs have different prompts of their own: *, and the run has *"])


def test_a_refused_resume_leaves_the_reports_of_its_groups_alone(matrix, begun_here):
    matrix.run(*ONE)
    root = root_of(matrix)
    for group in GROUPS:
        begun_here(root / "groups" / group)
    before = {path: path.read_text() for path in [*root.glob("*.*"), *root.glob("groups/*/run.json")]}
    result = matrix.run(*ONE, "--specdec-only=max-num-seqs=8", f"--specdec-resume={root}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert {path: path.read_text() for path in before} == before
    result.stdout.no_fnmatch_line("MATRIX: *")


def test_an_ordinary_run_is_not_resumed_as_a_matrix(matrix):
    matrix.config("").run(*ONE, "--specdec-run-dir=plain")
    result = matrix.config(MATRIX).run(*ONE, "--specdec-resume=plain")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: this is no run of a matrix", "  found:    an ordinary run, without matrix.json"])
    assert not (matrix.path / "plain" / "matrix.json").exists()


RACE = """

def pytest_report_collectionfinish():
    import shutil
    if (HERE / "first").exists():
        shutil.copytree(HERE / "first", HERE / "second")
"""


def test_two_sessions_that_begin_at_once_do_not_share_a_directory(matrix):
    """Two shards with one --specdec-run-dir would have other groups each, and one matrix.json."""
    matrix.run(*ONE, "--specdec-only=max-num-seqs=8", "--specdec-run-dir=first")
    conftest = matrix.path / "conftest.py"
    conftest.write_text(conftest.read_text() + RACE)
    result = matrix.run(*ONE, "--specdec-only=max-num-seqs=16", "--specdec-run-dir=second")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the run directory is in use"])
    assert matrix_run.read(matrix.path / "second").captured == tuple(CELLS[:4])
    assert len(matrix.captures) == 1


def test_cells_that_k_deselects_are_no_part_of_the_run(matrix):
    result = matrix.run("-k", "test_chat and ngram", "--specdec-depth=smoke", "--specdec-exit-codes")
    result.assert_outcomes(passed=4, deselected=12)
    result.stdout.fnmatch_lines(["MATRIX: tiny, smoke: nothing wrong found; 4 of 4 cells judged; 4 of the matrix not in this run"])
    assert result.ret == 0
    assert matrix_run.read(root_of(matrix)).captured == tuple(cell for cell in CELLS if cell.startswith("ngram"))


def test_a_group_that_does_not_come_up_takes_no_other_down(matrix, monkeypatch):
    matrix.run(*ONE, "--specdec-run-dir=first")
    monkeypatch.setenv("FAKE_CAPTURE", "raises")
    result = matrix.run(*ONE, "--specdec-run-dir=second", "--specdec-exit-codes")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["specdec: max-num-seqs-8", "specdec: max-num-seqs-16", "MATRIX: *"])
    assert result.ret == 75


def test_a_group_whose_files_cannot_be_written_takes_no_other_down(matrix, full_disk):
    full_disk(GROUPS[0])
    result = matrix.run(*ONE, "--specdec-exit-codes", "--specdec-run-dir=m")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines([
        "not captured: the file cannot be written",
        f"  where:    {matrix.path}/m/groups/{GROUPS[0]}/session.json",
        "  found:    No space left on device",
    ])  # fmt: skip
    result.stdout.fnmatch_lines([f"MISSING: 4 cells (*--{GROUPS[0]}--*): the file cannot be written; *; found: No space left *"])
    assert result.ret == 75
    assert pairs_of(matrix) == [CELLS[4:]]


def test_workers_capture_each_group_once(matrix):
    result = matrix.run(*ONE, "-n2", "-pxdist", subprocess=True)
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["MATRIX: tiny, smoke: nothing wrong found; 8 of 8 cells judged"])
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:]]


KEYED = """
matrix:
  axes:
    gate: {open: {engine: {}}, keyed: {engine: {env: {GATE: "${GATE_WORD}"}}}}
"""
WORD = "heliotrope-cupboard"


def test_what_any_group_takes_for_a_secret_is_masked_at_the_root(matrix, monkeypatch):
    """The variable has no telling name, and the file has it at the place of an axis: only the config of its group says what it is."""
    monkeypatch.setenv("GATE_WORD", WORD)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(matrix.path / "summary.md"))
    matrix.config(KEYED).outcome(f"Outcome.FAIL, headline='the server said {WORD}'")
    matrix.run("--specdec-run-dir=m", "--specdec-depth=smoke", f"--junitxml={matrix.path / 'j.xml'}").assert_outcomes(failed=4)
    texts = {path: path.read_text() for path in (*sorted((matrix.path / "m").rglob("*")), matrix.path / "summary.md") if path.is_file()}
    assert {path.name for path in texts} >= {"matrix.json", "matrix-report.json", "matrix.md", "matrix.html", "summary.md"}
    rooted = [path for path in texts if "gate-open" not in path.parts and "open" not in path.parts]
    assert [path.name for path in rooted if WORD in texts[path]] == []
    assert "the server said ***" in texts[matrix.path / "m" / "matrix.md"]
    assert texts[matrix.path / "summary.md"].count("## ") == 1, "one report, of the whole"


def test_properties_of_groups_have_names_of_their_own_in_junit(matrix):
    matrix.run(*ONE, f"--junitxml={matrix.path / 'j.xml'}")
    names = re.findall('property name="([^"]*class)"', (matrix.path / "j.xml").read_text())
    assert sorted(names) == sorted([*(f"specdec.{group}.class" for group in GROUPS), "specdec.class"])


TIMED = """
import pytest
from sample import *

@pytest.mark.specdec(workload('chat', timed=True), family='speed')
def test_it(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, promise=speedup(1.5)))
"""


def test_each_group_has_a_baseline_file_and_benchmarks_of_its_own(matrix):
    ini = matrix.path / "tox.ini"
    ini.write_text(ini.read_text().replace("-p no:benchmark", ""))
    options = ("--specdec-depth=smoke", "--specdec-update-baselines", "--benchmark-json=saved.json")
    result = matrix.tests(TIMED).run(*options)
    names = [benchmark["name"] for benchmark in json.loads((matrix.path / "saved.json").read_text())["benchmarks"]]
    assert names == [f"{group}/capture" for group in GROUPS]
    result.stdout.fnmatch_lines([f"{group}: *baseline*" for group in GROUPS])


SECOND_INTERRUPTED = """

_fake = fake


def fake(config, plan, directory, **how):
    if "INTERRUPT" in os.environ and directory.root.name == os.environ["INTERRUPT"]:
        raise KeyboardInterrupt
    return _fake(config, plan, directory, **how)
"""


def test_an_interrupt_in_the_second_group_ends_with_the_command_that_resumes(matrix, monkeypatch, begun_here):
    """Also where it came before anything of that group was captured: its folder has a plan and no environment."""
    conftest = matrix.path / "conftest.py"
    conftest.write_text(conftest.read_text() + SECOND_INTERRUPTED)
    monkeypatch.setenv("INTERRUPT", GROUPS[1])
    result = matrix.run(*ONE, subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (line,) = [line for line in result.outlines if line.startswith("Next: ")]
    command = shlex.split(line.removeprefix("Next: resume the incomplete capture: "))
    assert command[-2] == "--specdec-resume"
    root = matrix.path / command[-1]
    assert (root / "groups" / GROUPS[1] / "plan.json").exists()
    begun_here(root / "groups" / GROUPS[0])
    monkeypatch.delenv("INTERRUPT")
    matrix.pytester.runpytest_inprocess(*command[1:]).assert_outcomes(passed=8)
    assert pairs_of(matrix) == [CELLS[:4], CELLS[4:]]


def test_a_worker_that_is_told_to_end_begins_no_further_group(matrix):
    conftest = matrix.path / "conftest.py"
    conftest.write_text(conftest.read_text() + "\n\ndef written(*_):\n    pytest.exit('ended by SIGTERM', 143)\n")
    result = matrix.run(*ONE, "-n1", "-pxdist", subprocess=True)
    result.assert_outcomes(errors=2)
    assert pairs_of(matrix) == [CELLS[:4]]


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "options, said",
    [
        (["--specdec-continue=m/groups/g"], "ERROR: --specdec-continue: found */m/groups/g, part of a matrix's run; *"),
        (
            ["--specdec-continue=m"],
            "ERROR: --specdec-continue: found */m, part of a matrix's run; *--specdec-only=CELL captures a cell anew",
        ),
        (["--specdec-replay=m"], "ERROR: the file is of another kind"),
    ],
)
def test_a_controller_leaves_what_it_cannot_read_to_its_workers(matrix, options, said):
    (matrix.path / "m" / "groups" / "g").mkdir(parents=True)
    (matrix.path / "m" / "matrix.json").write_text("{}")
    (matrix.path / "m" / "groups" / "g" / "plan.json").write_text("{}")
    result = matrix.run(*ONE, *options, "-n1", "-pxdist", subprocess=True)
    result.stderr.fnmatch_lines([said])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
