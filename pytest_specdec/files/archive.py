"""An archive of a stored run, unpacked into a temporary folder for as long as the run is read.

Only regular files and folders come out of it, only below that folder, and only up to a bound: a CI system hands over what anybody uploaded.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from pytest_specdec.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SUFFIXES", "is_archive", "unpack"]

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst", ".zip")
_MOST_BYTES = 4 << 30
"""Of all files together: forty times what the longest run has written."""
_MOST_FILES = 50_000
_CHUNK_BYTES = 1 << 20
_RUN_FILES = {"plan.json", "run.json", "matrix.json"}
"""Each shows that a folder is a run; the last one, that of a matrix with the runs of its groups inside."""
_MOST_NAMES = 4
"""Runs that the message names."""
_REMEDY = "pack the run directory again: tar -czf old-run.tar.gz old-run"
_LINKS = {tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link"}
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, ValueError, RuntimeError)
"""What the readers raise at bytes that are none of theirs; the last also for a password, and for a method of packing that Python lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One thing in an archive."""

    name: str
    size: int
    """Bytes when unpacked."""
    kind: str
    """``file``, ``folder``, or in words what else it is."""
    read: Callable[[], IO[bytes] | None]
    """Opens the content of a file."""


def is_archive(path: Path) -> bool:
    """Return True if ``path`` has an archive's suffix and is no folder.

    It need not exist.
    """
    return path.name.lower().endswith(SUFFIXES) and not path.is_dir()


@contextmanager
def unpack(path: Path) -> Iterator[Path]:
    """Yield the run's folder, unpacked for the block if ``path`` is an archive.

    Any other path is yielded as it is. Raises RunError if the archive cannot be read or unpacked, holds anything but files and folders
    below its own, is too large for a run, or does not hold exactly one run. Raises OSError if the file system refuses to look up ``path``.
    """
    if not is_archive(path):
        yield path
        return
    if not path.exists():
        raise _error(path, "there is no such archive", "no file", "an archive of a run directory", "check the path")
    with tempfile.TemporaryDirectory(prefix=f"specdec-{path.name[:60]}-", ignore_cleanup_errors=True) as folder:
        try:
            _extract(path, Path(folder))
        except _UNREADABLE as error:
            raise _error(path, "the archive cannot be read", str(error) or type(error).__name__, "a complete archive") from None
        except OSError as error:
            expected = f"a readable archive, and room in {tempfile.gettempdir()}"
            raise _error(path, "the archive cannot be unpacked", error.strerror or str(error), expected) from None
        yield _find_run(path, Path(folder))


def _extract(path: Path, folder: Path) -> None:
    """Write the files of the archive ``path`` below ``folder``.

    Raises RunError for an entry that is not allowed, and for more files or bytes than a run may have. Errors of Python's
    archive readers (:data:`_UNREADABLE`) and OSError pass through to :func:`unpack`.
    """
    left_bytes = _MOST_BYTES
    for count, entry in enumerate(_entries(path), start=1):
        left_bytes -= entry.size
        if count > _MOST_FILES or left_bytes < 0:
            excess = f"more than {_MOST_FILES:,} files" if count > _MOST_FILES else f"more than {_MOST_BYTES:,} bytes when unpacked"
            raise _error(path, "the archive is too large for a run", excess, f"at most {_MOST_FILES:,} files and {_MOST_BYTES:,} bytes")
        target = folder / _relative_name(path, entry)
        if entry.kind == "folder":
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = entry.read()
        assert source is not None, "a regular file has content"
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)


def _relative_name(path: Path, entry: _Entry) -> PurePosixPath:
    """Return an entry's path, relative to the folder of the archive.

    Raises RunError for a path outside of that folder, and for an entry that is neither a file nor a folder, such as a link.
    """
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise _error(path, "the archive holds a path outside of its folder", entry.name, "names below the folder that was packed")
    if entry.kind not in {"file", "folder"}:
        raise _error(path, f"the archive holds {entry.kind}", entry.name, "regular files and folders")
    return name


def _entries(path: Path) -> Iterator[_Entry]:
    """Yield the entries of an archive in their stored order.

    Each entry's content has to be read before the next one is taken. Raises RunError if this Python cannot read the compression.
    """
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                # The upper 16 bits of these attributes are the Unix mode.
                kind = "folder" if info.is_dir() else _kind_of(info.external_attr >> 16)
                yield _Entry(name=info.filename, size=info.file_size, kind=kind, read=partial(archive.open, info))
        return
    if path.name.lower().endswith(".zst") and "zst" not in tarfile.TarFile.OPEN_METH:
        expected, remedy = f"Python 3.14, or another of {', '.join(SUFFIXES)}", f"unpack it and name the folder, or {_REMEDY}"
        raise _error(path, "this Python reads no zstd archive", path.name, expected, remedy)
    with tarfile.open(path) as tar:
        for member in tar:
            kind = "folder" if member.isdir() else "file" if member.isreg() else _LINKS.get(member.type, "a device")
            yield _Entry(name=member.name, size=member.size, kind=kind, read=partial(tar.extractfile, member))


def _kind_of(mode: int) -> str:
    """Return the kind of a zip's entry by its Unix mode, 0 where other systems packed it."""
    return {0: "file", stat.S_IFREG: "file", stat.S_IFLNK: "a link"}.get(stat.S_IFMT(mode), "a device")


def _find_run(path: Path, folder: Path) -> Path:
    """Return the folder of the only run below ``folder``.

    The folder of a run has a ``plan.json``, ``run.json`` or ``matrix.json``. A run inside another one, such as that of the old engine or of
    a group of a matrix, is a part of it and does not count. ``path`` is the archive, for the error. Raises RunError if there is no run, or
    more than one.
    """
    runs = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        if not _RUN_FILES.isdisjoint(names):
            runs.append(Path(parent))
            folders.clear()  # so that os.walk goes no deeper
    if len(runs) == 1:
        return runs[0]
    what = "the archive holds several runs" if runs else "the archive holds no run"
    run_names = ", ".join(str(run.relative_to(folder)) for run in runs[:_MOST_NAMES])
    more = f" and {len(runs) - _MOST_NAMES} more" if len(runs) > _MOST_NAMES else ""
    remedy = "unpack it, and name the folder of the run" if runs else _REMEDY
    raise _error(path, what, f"{run_names}{more}" or "no plan.json, run.json or matrix.json in it", "one run directory", remedy)


def _error(path: Path, what: str, found: str, expected: str, remedy: str = _REMEDY) -> RunError:
    return RunError(what, where=str(path), found=found, expected=expected, remedy=remedy)
