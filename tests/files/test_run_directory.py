from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.errors import RunError
from pytest_specdec.files import run_directory
from pytest_specdec.files.run_directory import RunDirectory, atomic_write, safe


def test_create_makes_the_folder_and_its_parents(tmp_path):
    assert RunDirectory.create(tmp_path / "a" / "b").root.is_dir()


def test_create_takes_an_empty_folder_and_refuses_a_used_one(tmp_path):
    RunDirectory.create(tmp_path)
    (tmp_path / "thesis.txt").write_text("…")
    with pytest.raises(RunError, match="the run directory is in use") as caught:
        RunDirectory.create(tmp_path)
    assert (caught.value.found, caught.value.remedy) == ("thesis.txt", "name another folder, or remove this one")


@pytest.mark.parametrize("name, found", [(".", "no plan.json"), ("absent", "no such folder")])
def test_open_refuses_what_is_no_run(tmp_path, name, found):
    with pytest.raises(RunError) as caught:
        RunDirectory.open(tmp_path / name)
    assert caught.value.found == found


def test_open_takes_a_folder_with_a_plan(tmp_path):
    (tmp_path / "plan.json").touch()
    assert RunDirectory.open(tmp_path).root == tmp_path


def test_the_layout_is_the_published_one(tmp_path):
    run = RunDirectory(tmp_path)
    names = [run.plan, run.environment, run.config, run.status, run.progress, run.run, run.report]
    assert [path.name for path in names] == [
        "plan.json",
        "environment.json",
        "config.yaml",
        "status.json",
        "progress.jsonl",
        "run.json",
        "report.md",
    ]
    deeper = [run.server_log(2, "v"), run.transcript("v", "w"), run.scores("baseline", "v", "w"), run.capabilities_of("v")]
    assert [str(path.relative_to(tmp_path)) for path in deeper] == [
        "servers/2-v.log",
        "transcripts/v/w.jsonl",
        "scores/baseline/v/w.jsonl",
        "capabilities/v.json",
    ]


@pytest.mark.parametrize("name", ["baseline", "eagle3-k3", "a.b_c"])
def test_plain_names_stay(name):
    assert safe(name) == name


@settings(deadline=None, derandomize=True)
@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_are_different_file_names(one, other):
    for name in (safe(one), safe(other)):
        assert "/" not in name
        assert "\0" not in name
        assert name not in {"", ".", ".."}
        assert len(name) < 100
    assert (safe(one) == safe(other)) == (one == other)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    atomic_write(tmp_path / "a" / "x.txt", "old\n")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunError, match=r"cannot be written\n.*x.txt\n.*No space left"):
        atomic_write(tmp_path / "a" / "x.txt", "new\n")
    assert [path.read_text() for path in (tmp_path / "a").iterdir()] == ["old\n"]


def sparse(path):
    with path.open("wb") as file:
        file.truncate(2**31)


PLACED = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "Too many levels of symbolic links": lambda path: path.symlink_to(path),
    "2,147,483,648 bytes": sparse,
}


@pytest.mark.parametrize("found", PLACED)
def test_only_a_regular_file_of_some_size_is_read(tmp_path, found):
    """A pipe would be waited for, an endless file would fill the memory."""
    PLACED[found](tmp_path / "a")
    with pytest.raises(RunError, match="the file cannot be read") as caught:
        run_directory.read_bytes(tmp_path / "a")
    assert caught.value.found == found


def test_a_regular_file_is_read_as_it_is_and_through_a_link(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\ntwo\n")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert run_directory.read_bytes(tmp_path / "b") == b"one\r\ntwo\n"
    assert run_directory.read_text(tmp_path / "b") == "one\ntwo\n"
    with pytest.raises(FileNotFoundError):
        run_directory.read_bytes(tmp_path / "c")
