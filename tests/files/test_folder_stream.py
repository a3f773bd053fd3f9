"""A folder's changes, read on one machine and written on another."""

from __future__ import annotations

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files.folder_stream import FilePart, FolderReader, write_parts
from pytest_specdec.files.run_directory import RunDirectory, atomic_write


@pytest.fixture
def there(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path):
    return tmp_path / "here"


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_files_that_are_replaced_grow_or_go_are_the_same_on_the_other_side(there, here):
    reader = FolderReader(there)
    atomic_write(there / "plan.json", "{}")
    (there / "progress.jsonl").write_text("a\n")
    write_parts(here, reader.changes())
    assert content(here) == content(there)
    atomic_write(there / "plan.json", "[]")
    with (there / "progress.jsonl").open("a") as file:
        file.write("b\n")
    atomic_write(there / "transcripts" / "baseline" / "chat.jsonl", "x")
    changes = list(reader.changes())
    assert FilePart(path="progress.jsonl", data=b"b\n", appended=True) in changes
    write_parts(here, changes)
    assert content(here) == content(there)
    (there / "transcripts" / "baseline" / "chat.jsonl").unlink()
    write_parts(here, reader.changes())
    assert content(here) == content(there)
    assert list(reader.changes()) == []


def test_a_larger_file_in_the_place_of_another_is_sent_whole_though_it_has_its_inode(there, here):
    reader = FolderReader(there)
    (there / "plan.json").write_text("old")
    write_parts(here, reader.changes())
    (there / "plan.json").write_text("a new one")
    write_parts(here, reader.changes())
    assert content(here) == content(there)


def test_what_the_other_side_has_is_not_sent_again(there, here):
    atomic_write(there / "plan.json", "{}")
    parts = tuple(FolderReader(there).changes())
    write_parts(here, parts)
    reader = FolderReader(here)
    reader.skip(parts)
    assert list(reader.changes()) == []
    (here / "plan.json").unlink()
    assert list(reader.changes()) == [FilePart(path="plan.json", data=None)]


def test_the_log_of_a_server_is_sent_once_it_has_ended_and_secrets_are_struck_out(there):
    reader, log = FolderReader(there), RunDirectory(there).server_log(1, "baseline")
    log.parent.mkdir()
    log.write_text("key sk-1234")
    log.with_suffix(".json").write_text("{}")
    (there / ".half").write_text("")
    assert list(reader.changes()) == []
    log.write_text("key *******")
    log.with_suffix(".json").unlink()
    assert [(part.path, part.data) for part in reader.changes()] == [("servers/1-baseline.log", b"key *******")]


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../up", ""])
def test_no_part_leads_out_of_its_folder(here, path):
    with pytest.raises(RunError, match="no place here"):
        write_parts(here, [FilePart(path=path, data=b"")])
