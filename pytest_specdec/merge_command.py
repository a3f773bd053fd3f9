"""The command ``merge``: runs of parts of one matrix, joined into a run of the whole, with one report.

A cell of a matrix is a variant under one value of each axis. A group is the cells with one baseline, captured together in a run directory
of its own. The run of a part, such as one job's, has the directories of some groups, or of some of a group's cells.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.matrix_expression import select
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import archive, matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory, atomic_write, writable
from pytest_specdec.model.matrix_run import find_difference
from pytest_specdec.plugin.report_files import read_run
from pytest_specdec.report import matrix_terminal
from pytest_specdec.report.escape import printable
from pytest_specdec.report.matrix import build, summarise
from pytest_specdec.report.matrix_documents import FORMATS, documents
from pytest_specdec.report.progress import plural
from pytest_specdec.report_command import print_lines, refuse

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable, Iterator, Mapping

    from pytest_specdec.model.matrix import Matrix
    from pytest_specdec.model.matrix_run import GroupRun, MatrixRun
    from pytest_specdec.report.matrix import GroupResult, MatrixReport

_ABOUT = (
    "Join runs of parts of one matrix into one run, with a report of the whole. The runs are read and left as they are: their groups are "
    "copied, and large files hard-linked where the file system can. Exits with 1 if the run of a group fails or a cell is missing, else "
    "with 0; with 2 where the runs are no parts of one matrix."
)
_LINKED = frozenset({"transcripts", "scores"})
"""Folders with most bytes of a run, whose files are replaced and never appended to: a resumed shard does not change the merged run."""


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``merge``."""
    parser = commands.add_parser("merge", help="join runs of parts of a matrix", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="the run directory of a matrix, or an archive of one")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the run of the whole: a new folder, or an empty one")
    parser.add_argument("--only", metavar="EXPR", default="", help="the cells that the runs are to have, as --specdec-only (default: all)")
    parser.add_argument("--format", metavar="FORMATS", default="md", help="md, html or both with a comma between them (default: md)")
    parser.add_argument(
        "--exit-codes", action="store_true", help="exit by the class of the whole, as pytest does with --specdec-exit-codes"
    )
    parser.set_defaults(run=merge)


def merge(arguments: Namespace) -> int:
    """Join the runs, print and write the report; return the exit code.

    The merged run describes itself as the first run does, and has the groups of all. A cell that ``--only`` selects and no run has is
    missing. The code is that of the report, or 2 if the runs cannot be joined.
    """
    try:
        formats = _read_formats(arguments.format)
        with _new_folder(arguments.out) as folder:
            copied = _copy_runs(arguments.runs, folder, arguments.only)
            merged = replace(copied.first, groups=copied.groups)
            matrix_run.write(folder, merged)
            expected = [cell.name for cell in copied.wanted.cells]
            report = build(merged, _results(folder, merged), directory=str(arguments.out), expected=expected)
            texts = documents(report, formats)
            for name, text in texts.items():
                atomic_write(folder / name, text)
    except SpecdecError as error:
        return refuse(error)
    sys.stdout.writelines(f"{printable(_describe_empty(path))}\n" for path in copied.empty)
    _print_report(report, (arguments.out / name for name in texts))
    return report.exit_code(by_class=arguments.exit_codes)


def _read_formats(text: str) -> tuple[str, ...]:
    """Return the named formats; raise SpecdecError for an unknown one."""
    formats = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in formats if name not in FORMATS]:
        what, remedy = f"the report of a matrix has no format {unknown[0]!r}", "name md, html or md,html"
        raise SpecdecError(what, where="--format", found=text, expected=" or ".join(FORMATS), remedy=remedy)
    return formats


def _print_report(report: MatrixReport, paths: Iterable[Path]) -> None:
    """Print the report's lines, the files and the class."""
    print_lines(matrix_terminal.lines(report))
    sys.stdout.writelines(f"{path}\n" for path in paths)
    print_lines([matrix_terminal.result(report)])


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder beside ``out``, renamed to ``out`` after the block.

    An error in the block removes it. Raises RunError if ``out`` exists and is no empty folder, or if nothing can be written there.
    """
    content = next(iter(sorted(out.iterdir())), None) if out.is_dir() else None
    if content is not None or (out.exists() and not out.is_dir()):
        what, remedy = "the folder of the merged run is in use", "name another folder, or remove this one"
        raise RunError(what, where=str(out), found=content.name if content else "a file", expected="a new or empty folder", remedy=remedy)
    with writable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
        with writable(out):
            folder.chmod(0o755)  # a temporary folder is its owner's alone
            folder.replace(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The run that a cell or an environment was taken from."""

    path: Path
    session: str
    """Empty where it was not stored."""
    build: str = ""
    """The engine with its version."""


@dataclass(slots=True, kw_only=True)
class _CopiedRuns:
    """What was copied from the runs so far."""

    first: MatrixRun
    first_path: Path
    wanted: Matrix
    """The cells that the runs are to have together."""
    empty: list[Path]
    """Folders in which no run was begun."""
    groups: dict[str, GroupRun] = field(default_factory=dict)
    """By the name of the directory."""
    cells: dict[str, _Source] = field(default_factory=dict)
    builds: dict[str, _Source] = field(default_factory=dict)
    """By group, of the first run that stored any."""


def _copy_runs(paths: Iterable[Path], target: Path, only: str) -> _CopiedRuns:
    """Copy the groups of all runs into ``target``, and return what was copied.

    The runs are read one after another. ``only`` selects the cells that they are to have together; empty for all. Raises RunError if one of
    them cannot be read or is of another matrix than those before it, if two have one cell, or one group by different builds, or if all are
    empty folders; ConfigError for a wrong expression.
    """
    copied: _CopiedRuns | None = None
    empty: list[Path] = []
    for path in paths:
        with archive.unpack(path) as folder:
            if _is_empty(folder):
                empty.append(path)
                continue
            stored = matrix_run.read(folder)
            if copied is None:
                wanted = select(stored.matrix, only, option="--only") if only else stored.matrix
                copied = _CopiedRuns(first=stored, first_path=path, wanted=wanted, empty=empty)
            _check_same_matrix(copied, stored, path)
            for name, part in stored.groups.items():
                _copy_group(copied, part, matrix_run.group_directory(folder, name), path, target)
    if copied is None:
        what, remedy = "all of the given runs are empty", "see why their sessions ended, and run them again"
        raise _mismatch(what, empty[0], f"{plural(len(empty), 'empty folder')}", "a run with matrix.json at least", remedy)
    return copied


def _is_empty(folder: Path) -> bool:
    """Return True for a folder without content, as a job leaves it that ends before it writes ``matrix.json``."""
    return folder.is_dir() and next(folder.iterdir(), None) is None


def _describe_empty(path: Path) -> str:
    return f"EMPTY: {path}: its session ended before it wrote {matrix_run.DOCUMENT}; its cells are missing unless another run has them"


def _copy_group(copied: _CopiedRuns, part: GroupRun, folder: Path, path: Path, target: Path) -> None:
    """Copy one group's run below ``target``, under a name of its own.

    ``folder`` is the directory of the group's run, if it was captured, and ``path`` the given run that has it. The group is added to
    ``copied``. Raises RunError if another run has one of its cells, or was captured with another build, the engine with its version.
    """
    directory = RunDirectory(folder)
    source = _Source(path=path, session=run_documents.session(directory), build=_read_build(directory))
    for cell in part.cells:
        if (other := copied.cells.get(cell)) is not None:
            raise _repeated_cell_error(cell, other, source)
    # The first run of the group sets the build for the others. A run that ended before its build was stored has nothing to compare.
    first = copied.builds.setdefault(part.group, source) if source.build else source
    if first.build != source.build:
        what = f"runs of different builds have the group {part.group}"
        raise _mismatch(what, path, source.build, f"{first.build}, as {first.path} has it", "capture both with one build of the engine")
    copied.cells |= dict.fromkeys(part.cells, source)
    name = _free_name(part.group, copied.groups)
    copied.groups[name] = part
    if folder.is_dir():
        _copy_folder(folder, matrix_run.group_directory(target, name))


def _free_name(group: str, groups: Mapping[str, GroupRun]) -> str:
    """Return an unused name for the directory of a group's run.

    It is the group's name, followed by a number from 2 on if another run has cells of the group.
    """
    number = sum(part.group == group for part in groups.values()) + 1
    return group if number == 1 else f"{group}.{number}"


def _read_build(directory: RunDirectory) -> str:
    """Return the engine with its version; empty if the capture did not get so far."""
    if not directory.environment.is_file():
        return ""
    environment = run_documents.read_environment(directory)
    return f"{environment.engine} {environment.engine_version}" if environment.engine_version else ""


def _repeated_cell_error(cell: str, one: _Source, other: _Source) -> RunError:
    """Return the error about a cell that two given runs have.

    It says whether one run is given twice, two are copies of one run, or two runs have captured the cell.
    """
    if one.path.resolve() == other.path.resolve():
        return _mismatch("one run is given twice", other.path, f"{one.path} and {other.path}", "different runs", "name it once")
    if one.session and one.session == other.session:
        what, copies = "two of the given runs are copies of one run", f"{one.path} and {other.path}, with the cell {cell} of one session"
        return _mismatch(what, other.path, copies, "different runs", f"leave out {other.path}")
    remedy = "leave out one of the two runs, such as the one that was tried again"
    return _mismatch("one cell is in two runs", other.path, f"{cell} in {one.path} and in {other.path}", "each cell once", remedy)


def _check_same_matrix(copied: _CopiedRuns, stored: MatrixRun, path: Path) -> None:
    """Raise RunError if a run cannot be joined with the first.

    Both must be of one config, with the same prompts, depth, selection of tests and release.
    """
    difference = find_difference(stored, copied.first)
    if difference is not None:
        remedy = "merge runs of one config, with the same prompts, depth, selection of tests and release"
        raise _mismatch(difference.what, path, difference.here, f"{difference.there}, as {copied.first_path} has it", remedy)


def _mismatch(what: str, path: Path, found: str, expected: str, remedy: str) -> RunError:
    return RunError(what, where=str(path), found=found, expected=expected, remedy=remedy)


def _copy_folder(source: Path, target: Path, *, linked: bool = False) -> None:
    """Copy a folder with its folders and regular files.

    With ``linked`` its files are hard-linked where the file system can. So are those of folders in ``_LINKED``, which have most bytes of a
    run and are never appended to. Raises RunError for anything else in the folder, such as a link.
    """
    with writable(target):
        target.mkdir(parents=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            _copy_folder(source / entry.name, target / entry.name, linked=linked or entry.name in _LINKED)
        elif entry.is_file(follow_symlinks=False):
            with writable(target / entry.name):
                _copy_file(source / entry.name, target / entry.name, linked=linked)
        else:
            what, remedy = "the run holds a link or a device", "remove it, or restore the run that the session wrote"
            raise _mismatch(what, source / entry.name, entry.name, "regular files and folders", remedy)


def _copy_file(source: Path, target: Path, *, linked: bool) -> None:
    """Copy one file; with ``linked`` hard-link it if both are on one file system that has links."""
    if linked:
        try:
            os.link(source, target)
        except OSError:  # another file system, one without links, or too many of them
            pass
        else:
            return
    shutil.copy2(source, target)


def _results(root: Path, merged: MatrixRun) -> Iterator[GroupResult]:
    """Yield the result of each group, read from its run.json.

    If that cannot be read, the result has the error instead. One run.json, which may be large, is in memory at a time.
    """
    for name, part in merged.groups.items():
        try:
            run = read_run(matrix_run.group_directory(root, name))
        except RunError as error:
            yield summarise(name, part, None, f"{error.what}: {error.found}".partition("\n")[0])
        else:
            yield summarise(name, part, run)
