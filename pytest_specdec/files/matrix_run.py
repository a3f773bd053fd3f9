"""A run of a matrix on disk: ``matrix.json`` at its root, and below ``groups`` an ordinary run directory for each group.

A matrix is many pairs of one config, its cells; a group is the cells with the same baseline. Sessions called shards run a part of the
matrix each; cells of one group from several shards have directories of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec import __version__
from pytest_specdec.errors import RunError
from pytest_specdec.files.run_documents import read_document, write_document
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.matrix_run import GroupRun, MatrixRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pytest_specdec.model.matrix import Matrix
    from pytest_specdec.model.workload import Depth

DOCUMENT = "matrix.json"
_GROUPS = "groups"
_KIND = "matrix:1"
_DIRECTORY = re.compile(r"[a-z0-9][a-z0-9-]*(\.[0-9]+)?")
_NONE = Secrets()


def new_run(
    *, config: str, text: str, matrix: Matrix, cells: Iterable[str], depth: Depth, workloads: Mapping[str, str], prompts: str = ""
) -> MatrixRun:
    """Return the run of a new session, cells by group.

    ``text`` is the config as written, ``cells`` are the names of the cells that the session captures, and ``workloads`` the digests of
    the selected tests' workloads by name. ``prompts`` is the digest of the config's own prompts, empty without any. Groups without any of
    the cells are left out. Nothing is written.
    """
    captured = frozenset(cells)
    cells_by_group = {group.name: tuple(name for name in group.cell_names if name in captured) for group in matrix.groups}
    return MatrixRun(
        config=config,
        config_text=text,
        config_digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        matrix=matrix,
        depth=depth,
        version=__version__,
        workloads=dict(sorted(workloads.items())),
        groups={name: GroupRun(group=name, cells=names) for name, names in cells_by_group.items() if names},
        prompts=prompts,
    )


def write(root: Path, run: MatrixRun, secrets: Secrets = _NONE) -> None:
    """Write ``matrix.json``; from then on ``root`` counts as a run of a matrix.

    The ``secrets`` are masked in the config's text. Raises RunError if the file cannot be written.
    """
    # Names of cells and groups stay: the file could not be read back if a secret were such a word.
    write_document(root / DOCUMENT, _KIND, replace(run, config_text=secrets.mask(run.config_text)))


def read(root: Path) -> MatrixRun:
    """Return what the run of a matrix in ``root`` holds.

    Raises RunError if there is none, or if ``matrix.json`` is invalid, of another release, or names cells that its matrix does not have.
    """
    if not is_matrix_run(root):
        raise _no_matrix_run(root)
    path = root / DOCUMENT
    run = read_document(path, _KIND, MatrixRun)
    for problem, expected in _find_problems(run):
        what, remedy = "the file contradicts itself", "restore the file that the session wrote, or capture again"
        raise RunError(what, where=str(path), found=problem, expected=expected, remedy=remedy)
    return run


def read_or_none(root: Path) -> MatrixRun | None:
    """Return what the run of a matrix in ``root`` holds.

    None if there is none, or if it cannot be read.
    """
    try:
        return read(root)
    except RunError:
        return None


def _no_matrix_run(root: Path) -> RunError:
    """Return the error about a folder without ``matrix.json``.

    It says what is there instead, and names the whole run if the folder is that of one of its groups.
    """
    what, expected = "this is no run of a matrix", f"a folder with {DOCUMENT}, as a session whose config has `matrix:` writes it"
    what_is_there = f"no {DOCUMENT}" if root.is_dir() else "no such folder" if not root.exists() else "a file"
    remedy = "name the run directory of such a session"
    if root.is_dir() and (root / "plan.json").is_file():
        what_is_there = f"an ordinary run, without {DOCUMENT}"
    if is_matrix_run(root.resolve().parent.parent):
        what_is_there, remedy = "the run of one group", f"name the whole run: {root.resolve().parent.parent}"
    return RunError(what, where=str(root), found=what_is_there, expected=expected, remedy=remedy)


def _find_problems(run: MatrixRun) -> Iterator[tuple[str, str]]:
    """Yield each contradiction of a document, and what was expected."""
    cells_of_group = {group.name: group.cell_names for group in run.matrix.groups}
    for directory, group_run in run.groups.items():
        if not _DIRECTORY.fullmatch(directory):
            yield f"a directory called {directory!r}", "the name of a group, maybe with a number after a dot"
        if group_run.group not in cells_of_group:
            yield f"{directory} is of a group {group_run.group!r}", f"one of {', '.join(cells_of_group)}"
        elif stray := next((cell for cell in group_run.cells if cell not in cells_of_group[group_run.group]), ""):
            yield f"{directory} has a cell {stray!r}", f"some of {', '.join(cells_of_group[group_run.group])}"
        if not group_run.cells:
            yield f"{directory} has no cell", "one at least"
    counts = Counter(cell for group_run in run.groups.values() for cell in group_run.cells)
    yield from ((f"the cell {cell} stands {count} times", "once at most") for cell, count in counts.items() if count > 1)


def group_directory(root: Path, name: str) -> Path:
    """Return the run directory of a group of the run in ``root``.

    ``name`` is a key of :attr:`MatrixRun.groups`.
    """
    return root / _GROUPS / name


def runs_folder(root: Path) -> Path:
    """Return the folder in which the run in ``root`` lies beside others.

    It is the parent of ``root``, or further up: the run of an old engine lies inside the run of the new engine, and that of a group
    inside the run of its matrix.
    """
    folder = root.parent
    if folder.name == _GROUPS and is_matrix_run(folder.parent):
        return folder.parent.parent
    return folder.parent if (folder / "plan.json").is_file() else folder


def directories(root: Path, run: MatrixRun) -> dict[str, Path]:
    """Return the run directories of a run's groups, captured or not.

    The run is in ``root``, and the names are the keys of :attr:`MatrixRun.groups`.
    """
    return {name: group_directory(root, name) for name in run.groups}


def list_directories(root: Path) -> list[Path]:
    """Return the run directories of those groups that have a plan.

    Raises RunError like :func:`read`.
    """
    return [folder for folder in directories(root, read(root)).values() if (folder / "plan.json").is_file()]


def group_output(root: Path, name: str) -> Path:
    """Return the file with the output of the session that captured a group beside others."""
    return root / _GROUPS / f"{name}.log"


def is_matrix_run(path: Path) -> bool:
    """Return True if ``path`` is the folder of a run of a matrix."""
    return (path / DOCUMENT).is_file()
