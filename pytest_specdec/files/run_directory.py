"""A run directory: the paths of all files that a capture writes and a judge reads."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = ".specdec"
"""The folder that runs go into unless another is named."""
REPRO_RUN = "run"
"""The folder of a repro that holds the part of the run that its verdict needs."""
_LONGEST = 80
_MOST_BYTES = 1 << 30
"""Of one file: ten times what the longest run has written."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The layout of one run; folders inside of it are made when something is written."""

    root: Path
    secrets: Secrets = field(default_factory=Secrets, repr=False, compare=False)
    """Masked in all that is written here."""

    @classmethod
    def create(cls, root: Path) -> RunDirectory:
        """Return the run directory ``root``, with the folder created if needed.

        Raises RunError if the folder holds anything or cannot be made.
        """
        with writable(root):
            root.mkdir(parents=True, exist_ok=True)
            entry = next(iter(sorted(root.iterdir())), None)
        if entry is not None:
            msg = "the run directory is in use"
            raise RunError(
                msg,
                where=str(root),
                found=entry.name,
                expected="an empty folder, or none",
                remedy="name another folder, or remove this one",
            )
        return cls(root)

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """Return the run directory ``root``; raise RunError if it holds no run."""
        directory = cls(root)
        if not directory.plan.is_file():
            reason = "no plan.json" if root.is_dir() else "no such folder"
            msg = "the folder is no run directory"
            raise RunError(
                msg, where=str(root), found=reason, expected="a folder that a capture wrote", remedy="name the folder that holds plan.json"
            )
        return directory

    @property
    def plan(self) -> Path:
        """The plan."""
        return self.root / "plan.json"

    @property
    def environment(self) -> Path:
        """The file on the machine, the engine and the client."""
        return self.root / "environment.json"

    @property
    def config(self) -> Path:
        """The copy of the config, with every ``${VAR}`` as written."""
        return self.root / "config.yaml"

    @property
    def status(self) -> Path:
        """The state of the capture."""
        return self.root / "status.json"

    @property
    def session(self) -> Path:
        """The session capturing here now, or the last one."""
        return self.root / "session.json"

    @property
    def variables(self) -> Path:
        """Salted digests of the config's ``${VAR}`` values."""
        return self.root / "variables.json"

    @property
    def progress(self) -> Path:
        """The progress file, which gets a line per step while the capture runs."""
        return self.root / "progress.jsonl"

    @property
    def old(self) -> Path:
        """The run of the engine in use, of a config with ``engines``; a run directory of its own."""
        return self.root / "old"

    @property
    def old_session(self) -> Path:
        """The output of the session that captured and judged the engine in use."""
        return self.root / "old.log"

    @property
    def run(self) -> Path:
        """The machine-readable report."""
        return self.root / "run.json"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.root / "report.md"

    @property
    def capabilities(self) -> Path:
        """The folder of probed capabilities, one file per arm."""
        return self.root / "capabilities"

    def capabilities_of(self, arm: str) -> Path:
        """Return the file with the probed capabilities of ``arm``."""
        return self.capabilities / f"{safe(arm)}.json"

    @property
    def baselines(self) -> Path:
        """The folder with the copy of the run's baseline file.

        The copy is at ``<config>/<machine>.yaml``.
        """
        return self.root / "baselines"

    def workload(self, name: str) -> Path:
        """Return the file of a workload as it was sent.

        It exists only if lengths of the workload were filled in from a server's context limit.
        """
        return self.root / "workloads" / f"{safe(name)}.json"

    def server_log(self, boot: int, arm: str) -> Path:
        """Return the log of the server of one boot."""
        return self.root / "servers" / f"{boot}-{safe(arm)}.log"

    def transcript(self, arm: str, workload: str) -> Path:
        """Return the file with the answers of ``arm`` to ``workload``."""
        return self.root / "transcripts" / safe(arm) / f"{safe(workload)}.jsonl"

    def scores(self, under: str, arm: str, workload: str) -> Path:
        """Return the file with the scores of ``arm`` by the model ``under``.

        Scores are the log-probabilities that this model gives to the tokens that the arm answered with.
        """
        return self.root / "scores" / safe(under) / safe(arm) / f"{safe(workload)}.jsonl"


def safe(name: str) -> str:
    """Return ``name`` as a safe file name, different for different names.

    A name is kept if it has only letters, digits and ``._-``, does not begin with a dot or hyphen, and is not long. Any other name, such as
    ``org/model``, is replaced by its allowed characters and 8 digits of its hash.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[:_LONGEST]
    if slug == name:
        return name
    return f"{slug or 'name'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Raise RunError for an OSError in the block, as of a full disk.

    ``path`` is the place that the error names.
    """
    try:
        yield
    except OSError as error:
        what = "the file cannot be written"
        raise RunError(
            what,
            where=str(path),
            found=error.strerror or str(error),
            expected="a writable folder with free space",
            remedy="free space, correct the permissions, or name another folder: --specdec-run-dir of a run, --out of a report",
        ) from error


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file of at most 1 GiB.

    Raises FileNotFoundError if there is no file, or only a link to a missing one. Raises RunError for a larger file, one that cannot be
    opened, a folder, a pipe, a device and a loop of links: anybody may have edited a run, and reading it must end.
    """
    try:
        # O_NONBLOCK: opening a pipe would otherwise wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable_error(path, error.strerror or str(error)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unreadable_error(path, _KINDS.get(stat.S_IFMT(status.st_mode), "no file"))
        if status.st_size > _MOST_BYTES:
            raise _unreadable_error(path, f"{status.st_size:,} bytes")
        # The file closes its copy of the descriptor; the descriptor itself is closed below, also after an error.
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(_MOST_BYTES)
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8.

    Its line ends are line feeds. Raises the errors of :func:`read_bytes`, and UnicodeDecodeError.
    """
    return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")


_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def _unreadable_error(path: Path, found: str) -> RunError:
    what, remedy = "the file cannot be read", "restore the file that the capture wrote, or capture again"
    return RunError(what, where=str(path), found=found, expected=f"a regular file of at most {_MOST_BYTES:,} bytes", remedy=remedy)


def atomic_write(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step, as UTF-8.

    A reader sees the old file or the whole new one. Lone surrogates, which servers send and UTF-8 cannot encode, are written as their JSON
    escapes. Raises RunError if the file cannot be written.
    """
    with writable(path):
        _replace_file(path, text)


def _replace_file(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary_path = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary_path).chmod(0o644)  # mkstemp lets no other user read the file
        Path(temporary_path).replace(path)
    # An interrupt too must leave no temporary file.
    except BaseException:
        Path(temporary_path).unlink(missing_ok=True)
        raise
