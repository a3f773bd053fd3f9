"""Archives of runs: what comes out of them, and one clear error for each that is none."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import archive

RUN = {"night/plan.json": b"{}", "night/transcripts/baseline/chat.jsonl": b"answers" * 1000, "night/old/plan.json": b"{}"}


def pack(path, files, *, mode="w", extra=()):
    """Write a tar or zip with ``files``, and ``extra`` members of a tar as they are."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                packed.writestr(name, content)
        return path
    with tarfile.open(path, mode) as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
        for member in extra:
            packed.addfile(member)
    return path


def member(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def error_of(path):
    with pytest.raises(RunError) as caught, archive.unpack(path):
        pass
    assert (caught.value.where, bool(caught.value.expected), bool(caught.value.remedy)) == (str(path), True, True)
    return caught.value.what, caught.value.found


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary folders, which every test leaves empty."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name, mode", [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.TGZ", "w:gz"), ("a.tar.xz", "w:xz"), ("a.zip", "")])
def test_the_run_of_an_archive_is_there_until_the_block_ends(tmp_path, name, mode):
    with archive.unpack(pack(tmp_path / name, RUN, mode=mode)) as run:
        assert run.name == "night"
        assert {str(path.relative_to(run.parent)): path.read_bytes() for path in run.rglob("*") if path.is_file()} == RUN
    assert not run.exists()


def test_files_of_an_archive_without_a_folder_are_the_run(tmp_path):
    with archive.unpack(pack(tmp_path / "a.zip", {"run.json": b"{}"})) as run:
        assert (run / "run.json").read_bytes() == b"{}"


def test_the_folder_is_removed_after_an_error_in_the_block(tmp_path):
    with pytest.raises(ZeroDivisionError), archive.unpack(pack(tmp_path / "a.zip", RUN)):
        raise ZeroDivisionError


def test_a_folder_and_another_file_are_themselves(tmp_path):
    (tmp_path / "run.tar.gz").mkdir()
    for path in (tmp_path / "run.tar.gz", tmp_path / "run.json", tmp_path):
        with archive.unpack(path) as run:
            assert run == path


@pytest.mark.parametrize("name", ["../../evil", "/evil", "night/../../evil"])
@pytest.mark.parametrize("file", ["a.tar", "a.zip"])
def test_a_path_outside_of_the_folder_is_refused_before_it_is_written(tmp_path, file, name):
    assert error_of(pack(tmp_path / file, {name: b"x", **RUN})) == ("the archive holds a path outside of its folder", name)
    assert list(tmp_path.rglob("evil")) == []


@pytest.mark.parametrize("extra, what", [
    (member("night/link", tarfile.SYMTYPE, "/etc"), "the archive holds a link"),
    (member("night/link", tarfile.LNKTYPE, "night/plan.json"), "the archive holds a link"),
    (member("night/link", tarfile.FIFOTYPE), "the archive holds a device"),
    (member("night/link", tarfile.CHRTYPE), "the archive holds a device"),
])  # fmt: skip
def test_links_and_devices_are_refused(tmp_path, extra, what):
    assert error_of(pack(tmp_path / "a.tar", RUN, extra=[extra])) == (what, "night/link")


def test_a_link_in_a_zip_is_refused(tmp_path):
    path = pack(tmp_path / "a.zip", RUN)
    with zipfile.ZipFile(path, "a") as packed:
        link = zipfile.ZipInfo("night/link")
        link.external_attr = 0o120777 << 16
        packed.writestr(link, "/etc/passwd")
    assert error_of(path) == ("the archive holds a link", "night/link")


@pytest.mark.parametrize("file", ["a.tar", "a.zip"])
def test_too_many_bytes_and_too_many_files_are_refused(tmp_path, monkeypatch, file):
    path = pack(tmp_path / file, RUN)
    monkeypatch.setattr(archive, "_MOST_BYTES", 5000)
    assert error_of(path) == ("the archive is too large for a run", "more than 5,000 bytes when unpacked")
    monkeypatch.setattr(archive, "_MOST_FILES", 1)
    assert error_of(path) == ("the archive is too large for a run", "more than 1 files")


def cut(content):
    return content[: len(content) * 2 // 3]


def flip(content):
    return content[: len(content) // 3] + bytes([content[len(content) // 3] ^ 0xFF]) + content[len(content) // 3 + 1 :]


NOISE = {"night/plan.json": b"{}", "night/noise": bytes(i * i * i % 251 for i in range(40_000))}


@pytest.mark.parametrize("spoil", [cut, flip])
@pytest.mark.parametrize("name, mode", [("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz"), ("a.zip", "")])
def test_what_is_cut_off_or_spoiled_is_one_error(tmp_path, name, mode, spoil):
    path = pack(tmp_path / name, NOISE, mode=mode)
    path.write_bytes(spoil(path.read_bytes()))
    assert error_of(path)[0] == "the archive cannot be read"


@pytest.mark.parametrize("name, content", [
    ("a.tar", b""),
    ("a.zip", b"no archive"),
    ("a.tgz", gzip.compress(b"no tar" * 100)),
], ids=["empty", "no zip", "no tar"])  # fmt: skip
def test_what_is_no_archive_is_one_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert error_of(tmp_path / name)[0] == "the archive cannot be read"


def test_one_name_twice_and_a_missing_archive_are_one_error(tmp_path):
    path = pack(tmp_path / "a.tar", RUN, extra=[tarfile.TarInfo("night/plan.json")])
    assert error_of(path) == ("the archive cannot be unpacked", "File exists")
    assert error_of(tmp_path / "absent.tar.gz") == ("there is no such archive", "no file")


def test_a_tar_that_ends_too_soon_is_one_error(tmp_path):
    path = pack(tmp_path / "a.tar", NOISE)
    path.write_bytes(cut(path.read_bytes()))
    assert error_of(path)[0] == "the archive cannot be read"


@pytest.mark.skipif("zst" in tarfile.TarFile.OPEN_METH, reason="this Python reads them")
def test_an_archive_that_this_python_cannot_read_is_said(tmp_path):
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    assert error_of(tmp_path / "a.tar.zst") == ("this Python reads no zstd archive", "a.tar.zst")


def test_no_run_and_several_runs_are_one_error(tmp_path):
    none = pack(tmp_path / "none.zip", {"notes.txt": b""})
    assert error_of(none) == ("the archive holds no run", "no plan.json, run.json or matrix.json in it")
    two = {"a/plan.json": b"{}", "b/run.json": b"{}", "c/notes.txt": b""}
    assert error_of(pack(tmp_path / "two.zip", two)) == ("the archive holds several runs", "a, b")
    many = {f"{i}/run.json": b"{}" for i in range(6)}
    assert error_of(pack(tmp_path / "many.zip", many)) == ("the archive holds several runs", "0, 1, 2, 3 and 2 more")


def test_an_archive_is_known_by_its_name(tmp_path):
    assert [name for name in ("a.zip", "a.tar.zst", "a.tgz", "run.json", "zip", "a.tar.gz.part") if archive.is_archive(Path(name))] == [
        "a.zip",
        "a.tar.zst",
        "a.tgz",
    ]
