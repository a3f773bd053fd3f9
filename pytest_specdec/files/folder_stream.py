"""A run directory as a stream: what changes in it on one machine, written on another.

Files of a run are replaced whole or grow at their end. A part is one or the other, or says that a file is gone; whoever writes all parts in
their order has the same files. The log of a server is sent once its server has ended, when secrets are struck out of it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files.run_directory import writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FilePart", "FolderReader", "write_parts"]

_NOTE, _LOG = ".json", ".log"
_GROWING = {"progress.jsonl", "output.log"}
"""Files that are written at their end only; all others are replaced whole, or end before they are sent."""
_SERVERS = "servers"
"""The folder of the servers' logs, and of the notes on those that run: a note means something on its own machine only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """A change of one file."""

    path: str
    """Relative to the folder, with slashes."""
    data: bytes | None
    """The file's content, or what follows at its end; None if the file is gone."""
    appended: bool = False
    """Whether ``data`` follows what was sent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileState:
    """A file as it was when it was last sent."""

    inode: int
    size: int
    changed_ns: int


class FolderReader:
    """Reads the changes of a folder that another process writes into.

    ``_sent_states`` has by path the state in which a file was last sent.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent_states: dict[str, _FileState] = {}

    def changes(self) -> Iterator[FilePart]:
        """Yield the changes since the last call, files that are gone first.

        New and changed files follow, the earliest written first. Left out are temporary files, whose names begin with a dot, and the logs
        and notes of running servers. So is a file that vanishes before it is read; if it was sent earlier, the next call yields it as gone.
        """
        present = {path: status for path, status in _files(self._root) if not _is_of_running_server(self._root, path)}
        # The log of a server that runs again exists, though `present` leaves it out.
        for path in [path for path in self._sent_states if path not in present and not (self._root / path).exists()]:
            del self._sent_states[path]
            yield FilePart(path=path, data=None)
        for path in sorted(present, key=lambda path: present[path].st_mtime_ns):
            part = self._read(path, present[path])
            if part is not None:
                yield part

    def skip(self, parts: Iterable[FilePart]) -> None:
        """Count the files of ``parts`` as sent already."""
        for part in parts:
            self._sent_states[part.path] = _file_state((self._root / part.path).stat())

    def _read(self, path: str, status: os.stat_result) -> FilePart | None:
        """Return a file's change since it was last sent, and count it as sent.

        ``status`` is that of the walk through the folder. None without a change, or if the file is gone before it is read.
        """
        before, listed = self._sent_states.get(path), _file_state(status)
        if before == listed:
            return None
        # An equal inode does not prove growth, since a file that replaces another may get it: only _GROWING are appended to.
        has_grown = path in _GROWING and before is not None and before.inode == listed.inode and before.size < listed.size
        sent_bytes = before.size if before and has_grown else 0
        try:
            with (self._root / path).open("rb") as file:
                file.seek(sent_bytes)
                data = file.read()
                after = _file_state(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None
        # The size is that of the bytes read: if the file has grown since, the next call finds another size, and sends the rest.
        self._sent_states[path] = _FileState(inode=after.inode, size=sent_bytes + len(data), changed_ns=after.changed_ns)
        return FilePart(path=path, data=data, appended=has_grown)


def _file_state(status: os.stat_result) -> _FileState:
    return _FileState(inode=status.st_ino, size=status.st_size, changed_ns=status.st_mtime_ns)


def _files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the paths of plain files below ``root``, each with its status.

    Temporary files, whose names begin with a dot, are left out, and so are files that vanish meanwhile.
    """
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                yield path.relative_to(root).as_posix(), status


def _is_of_running_server(root: Path, path: str) -> bool:
    """Return True for the log of a running server, and for a server's note.

    A note means something on its own machine only. It has the log's name with another suffix, and is removed when the server has ended and
    secrets are struck out of the log.
    """
    pure = PurePosixPath(path)
    if pure.parent.name != _SERVERS:
        return False
    return pure.suffix == _NOTE or (pure.suffix == _LOG and (root / pure.with_suffix(_NOTE)).exists())


def write_parts(root: Path, parts: Iterable[FilePart]) -> None:
    """Write the parts of another folder's files into ``root``, in their order.

    A part without data removes its file, an appended one adds to its end, and any other replaces it in one step. Raises RunError for a
    path that leads out of the folder, and if a file cannot be written.
    """
    for part in parts:
        path = root / _check_inside(part.path)
        with writable(path):
            if part.data is None:
                path.unlink(missing_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if part.appended:
                with path.open("ab") as file:
                    file.write(part.data)
            else:
                temporary = path.with_name(f".{path.name}.part")
                temporary.write_bytes(part.data)
                temporary.replace(path)


def _check_inside(path: str) -> PurePosixPath:
    """Return a part's path; raise RunError if it leaves its folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        what, remedy = "a file of another machine's run has no place here", "capture again on nodes that run this release"
        raise RunError(what, found=path, expected="a path below the run directory", remedy=remedy)
    return pure
