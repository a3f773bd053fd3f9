"""``python -m pytest_specdec merge``: parts of one matrix become one run, or one clear error."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.files import matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.matrix_run import GroupRun
from pytest_specdec.model.workload import Depth
from pytest_specdec.report import run as run_report
from tests.report.matrices import MATRIX, group_run, matrix_of, stored
from tests.report.runs import ENVIRONMENT

ON, OFF = (group.cell_names for group in MATRIX.groups)


def write_shard(root, *cells, red=(), session=None, environment=ENVIRONMENT, **changes):
    """Write a run of these cells as a session does; return its folder."""
    run = replace(stored(MATRIX, *cells), **changes)
    matrix_run.write(root, run)
    for name, part in run.groups.items():
        directory = RunDirectory(matrix_run.group_directory(root, name))
        run_documents.write_session(directory, session or root.name)
        run_documents.write_environment(directory, environment)
        directory.run.write_text(run_report.render(group_run(part.cells, red)), encoding="utf-8")
        answers, scores = directory.transcript(part.cells[0], "chat"), directory.scores("baseline", part.cells[0], "chat")
        for path in (answers, scores, directory.progress, directory.server_log(0, "baseline")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n", encoding="utf-8")
    return root


@pytest.fixture
def shards(tmp_path):
    """Two runs that are the whole together; the second has a part of both groups."""
    return [write_shard(tmp_path / "one", *ON, OFF[0]), write_shard(tmp_path / "two", *OFF[1:])]


def merge(*arguments, out):
    return main(["merge", *map(str, arguments), "--out", str(out)])


def contents(root):
    return {path.relative_to(root): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def test_parts_become_one_run_and_stay_as_they_are(shards, tmp_path, capsys):
    before = [contents(shard) for shard in shards]
    assert merge(*shards, out=tmp_path / "whole") == 0
    assert [contents(shard) for shard in shards] == before
    merged = matrix_run.read(tmp_path / "whole")
    assert merged.groups == {
        "async-on": GroupRun(group="async-on", cells=ON),
        "async-off": GroupRun(group="async-off", cells=OFF[:1]),
        "async-off.2": GroupRun(group="async-off", cells=OFF[1:]),
    }
    assert merged.missing == ()
    for shard, name, copy in (("one", "async-on", "async-on"), ("one", "async-off", "async-off"), ("two", "async-off", "async-off.2")):
        original = contents(matrix_run.group_directory(tmp_path / shard, name))
        assert {path: data for path, (data, _) in contents(matrix_run.group_directory(tmp_path / "whole", copy)).items()} == {
            path: data for path, (data, _) in original.items()
        }
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == ["groups", "matrix-report.json", "matrix.json", "matrix.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two", "whole"], "no folder is left beside it"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "MATRIX: fleet, smoke: nothing wrong found; 6 of 6 cells judged"
    assert lines[-1] == "RESULT: clean"


def test_only_what_is_never_appended_to_is_linked(shards, tmp_path):
    merge(*shards, out=tmp_path / "whole")
    links = {path.name: path.stat().st_nlink for path in (tmp_path / "whole/groups/async-on").rglob("*") if path.is_file()}
    assert {name for name, count in links.items() if count > 1} == {"chat.jsonl"}
    with (shards[0] / "groups/async-on/progress.jsonl").open("a") as file:
        file.write("resumed\n")
    assert "resumed" not in (tmp_path / "whole/groups/async-on/progress.jsonl").read_text()


def test_files_are_copied_where_no_link_can_be(shards, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert merge(*shards, out=tmp_path / "whole") == 0
    assert (tmp_path / "whole/groups/async-on/transcripts" / ON[0] / "chat.jsonl").read_text() == "async-on\n"


def test_archives_are_read_as_their_folders(shards, tmp_path):
    archive = tmp_path / "two.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(shards[1], "two")
    assert merge(shards[0], archive, out=tmp_path / "whole") == 0
    assert matrix_run.read(tmp_path / "whole").missing == ()


def test_a_merged_run_is_merged_again(tmp_path):
    parts = [write_shard(tmp_path / name, *cells) for name, cells in (("a", OFF[:1]), ("b", OFF[1:2]), ("c", OFF[2:]), ("d", ON))]
    merge(*parts[:2], out=tmp_path / "first")
    assert merge(tmp_path / "first", *parts[2:], out=tmp_path / "whole") == 0
    groups = matrix_run.read(tmp_path / "whole").groups
    assert {name: part.cells for name, part in groups.items() if part.group == "async-off"} == {
        "async-off": OFF[:1],
        "async-off.2": OFF[1:2],
        "async-off.3": OFF[2:],
    }


def test_a_missing_cell_is_a_line_and_a_code(tmp_path, capsys):
    shard = write_shard(tmp_path / "one", *ON, OFF[0])
    assert merge(shard, out=tmp_path / "whole") == 1
    assert f"MISSING: 2 cells ({OFF[1]}, {OFF[2]}): none of the given runs captured this cell" in capsys.readouterr().out
    assert merge(shard, "--exit-codes", out=tmp_path / "again") == 75


@pytest.mark.parametrize("text, reason", [
    (None, "there is no run to read: No such file or directory"),
    ("{", "the file is not JSON: "),
    ('{"schema": "pytest-specdec/run/99"}', "a newer release wrote this run: schema 'pytest-specdec/run/99'"),
])  # fmt: skip
def test_a_group_without_a_readable_report_is_missing(shards, tmp_path, capsys, text, reason):
    document = shards[1] / "groups/async-off/run.json"
    document.unlink()
    if text is not None:
        document.write_text(text)
    assert merge(*shards, out=tmp_path / "whole") == 1
    assert f"MISSING: 2 cells ({OFF[1]}, {OFF[2]}): {reason}" in capsys.readouterr().out


def test_a_group_that_captured_nothing_is_missing(shards, tmp_path, capsys):
    for path in sorted((shards[1] / "groups").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert merge(*shards, "--exit-codes", out=tmp_path / "whole") == 75
    assert "MISSING: 2 cells" in capsys.readouterr().out


def test_a_red_group_is_code_1_and_the_report_says_which_values(tmp_path, capsys):
    parts = [write_shard(tmp_path / "one", *ON, red=ON), write_shard(tmp_path / "two", *OFF)]
    assert merge(*parts, "--format", "md,html", out=tmp_path / "whole") == 1
    assert merge(*parts, "--exit-codes", out=tmp_path / "again") == 1
    place = "red in all 3 cells with async=on, in none of the 3 with async=off"
    assert f"RESULT: finding: accept-all: {place}" in capsys.readouterr().out
    for name in ("matrix.md", "matrix.html", "matrix-report.json"):
        assert place in (tmp_path / "whole" / name).read_text(encoding="utf-8")
    report = json.loads((tmp_path / "whole/matrix-report.json").read_text())
    assert (report["class"], {cell["directory"] for cell in report["cells"]}) == ("finding", {"async-on", "async-off"})


OTHER = replace(ENVIRONMENT, engine_version="0.2.0")
LONGER = matrix_of(**{"async": ("on", "off", "auto")})


@pytest.mark.parametrize("changes, error", [
    ({"matrix": LONGER}, ("the runs are of different matrices", "async: on, off, auto", "on, off, as")),
    ({"matrix": replace(MATRIX, groups=MATRIX.groups[1:])}, ("the runs are of different matrices", f"no cell {min(ON)}", "that cell")),
    ({"matrix": replace(MATRIX, groups=MATRIX.groups[::-1])}, ("the runs are of different matrices", "another order", "the same ones")),
    ({"depth": Depth.DEEP}, ("the runs are of different depths", "deep", "smoke, as")),
    ({"version": "0.0.9"}, ("the runs are of different releases of pytest-specdec", "0.0.9", "0.1.0, as")),
    ({"config_digest": "f" * 16, "config_text": "engine: vllm\n"},
     ("the runs are of different configs", "line 1: engine: vllm", "engine: reference, as")),
    ({"config_digest": "f" * 16}, ("the runs are of different configs", "another masked value", "the same text")),
    ({"workloads": {"chat": "cd" * 8}}, ("the runs are of different tests", "chat: cdcdcd", "abab")),
    ({"workloads": {}}, ("the runs are of different tests", "chat: not sent", "abab")),
    ({"prompts": "ef" * 8}, ("the runs have different prompts of their own", "efef", "none, as")),
    ({"environment": OTHER}, ("runs of different builds have the group async-off", "reference 0.2.0", "reference 0.1.0, as")),
    ({"session": "one"}, ("two of the given runs are copies of one run", "one", "different runs")),
])  # fmt: skip
def test_runs_that_are_no_parts_of_one_are_one_clear_error(tmp_path, capsys, changes, error):
    cells = OFF if "session" in changes else OFF[1:]
    first, second = write_shard(tmp_path / "one", *ON, OFF[0]), write_shard(tmp_path / "two", *cells, **changes)
    assert merge(first, second, out=tmp_path / "whole") == 2
    what, found, expected = error
    output = capsys.readouterr()
    lines = {line.strip().partition(":")[0]: line.strip() for line in output.err.splitlines()[1:]}
    assert (output.out, output.err.splitlines()[0]) == ("", what)
    assert str(second) in lines["where"]
    assert found in lines["found"]
    assert expected in lines["expected"]
    assert lines["remedy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_runs_of_groups_may_differ_in_their_builds(tmp_path):
    """An axis of builds is what a matrix is for."""
    parts = [write_shard(tmp_path / "one", *ON), write_shard(tmp_path / "two", *OFF, environment=OTHER)]
    assert merge(*parts, out=tmp_path / "whole") == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_a_part_that_ended_before_its_first_server_was_ready_has_no_build(tmp_path, is_first):
    """The environment is written before anything boots, without a version."""
    dead, alive = replace(ENVIRONMENT, engine_version=""), ENVIRONMENT
    first, second = (dead, alive) if is_first else (alive, dead)
    parts = [write_shard(tmp_path / "one", OFF[0], environment=first), write_shard(tmp_path / "two", *ON, *OFF[1:], environment=second)]
    assert merge(*parts, out=tmp_path / "whole") == 0


def test_a_cell_in_two_runs_and_a_run_given_twice_are_told_apart(tmp_path, capsys):
    one, two = write_shard(tmp_path / "one", *ON, OFF[0]), write_shard(tmp_path / "two", *OFF)
    assert merge(one, two, out=tmp_path / "whole") == 2
    assert capsys.readouterr().err.splitlines()[0] == "one cell is in two runs"
    assert merge(one, one, out=tmp_path / "whole") == 2
    assert capsys.readouterr().err.splitlines()[0] == "one run is given twice"


def test_the_whole_is_the_cells_of_the_expression(shards, tmp_path, capsys):
    assert merge(*shards, "--only=async=on", out=tmp_path / "whole") == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "MATRIX: fleet, smoke: nothing wrong found; 3 of 3 cells judged; 3 of the matrix not in this run"
    )


def test_an_expression_is_checked_before_anything_is_copied(shards, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pytest_specdec.merge_command._copy_folder", None)
    assert merge(*shards, "--only=asinc=on", out=tmp_path / "whole") == 2
    assert "  where:    --only\n" in capsys.readouterr().err


def test_an_empty_folder_is_a_line_and_its_cells_are_missing(shards, tmp_path, capsys):
    """A job that died before it wrote matrix.json leaves one."""
    (tmp_path / "died").mkdir()
    assert merge(tmp_path / "died", shards[0], out=tmp_path / "whole") == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == f"EMPTY: {tmp_path / 'died'}: its session ended before it wrote matrix.json; its cells are missing unless another run has them"
    )
    assert f"MISSING: 2 cells ({OFF[1]}, {OFF[2]})" in "\n".join(lines)
    assert merge(tmp_path / "died", out=tmp_path / "none") == 2
    assert capsys.readouterr().err.splitlines()[0] == "all of the given runs are empty"


def test_what_cannot_be_merged_is_one_clear_error(shards, tmp_path, capsys):
    ordinary = tmp_path / "ordinary"
    run_documents.write_session(RunDirectory(ordinary), "s")
    (ordinary / "plan.json").write_text("{}")
    (tmp_path / "used").mkdir()
    (tmp_path / "used/notes.txt").touch()
    (tmp_path / "file").touch()
    for arguments, out, first in (
        ([*shards, ordinary], "whole", "this is no run of a matrix"),
        ([shards[0] / "groups/async-on"], "whole", "this is no run of a matrix"),
        ([tmp_path / "gone"], "whole", "this is no run of a matrix"),
        (shards, "used", "the folder of the merged run is in use"),
        (shards, "file", "the folder of the merged run is in use"),
        ([*shards, "--format=junit"], "whole", "the report of a matrix has no format 'junit'"),
    ):
        assert merge(*arguments, out=tmp_path / out) == 2
        assert capsys.readouterr().err.splitlines()[0] == first
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("plant", [
    lambda path: path.symlink_to("/etc/hostname"),
    lambda path: path.symlink_to(path.parents[3] / "two/groups/async-off/servers"),
    os.mkfifo,
], ids=["link", "linked folder", "pipe"])  # fmt: skip
def test_links_and_pipes_in_a_run_are_not_followed(shards, tmp_path, capsys, plant):
    plant(shards[0] / "groups/async-on/planted")
    assert merge(*shards, out=tmp_path / "whole") == 2
    assert capsys.readouterr().err.splitlines()[0] == "the run holds a link or a device"


def test_an_empty_folder_takes_the_run(shards, tmp_path):
    (tmp_path / "whole").mkdir()
    assert merge(*shards, out=tmp_path / "whole") == 0
    assert (tmp_path / "whole/matrix.md").is_file()
