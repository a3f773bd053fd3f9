"""The commands ``report``, ``show``, ``compare`` and ``trend``: what stored runs say, without a server.

A stored run has the judgements of its tests in ``run.json`` (``_DOCUMENT``). A judgement is one test's result for one variant,
mostly with a verdict. A trend follows the figures of many runs over their dates.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import archive
from pytest_specdec.files.run_directory import RunDirectory, atomic_write, writable
from pytest_specdec.plugin import against
from pytest_specdec.plugin.report_files import FileFormat, load_format, read_document, read_run
from pytest_specdec.report import (
    comparison,
    failure,
    github_annotations,
    html,
    markdown,
    terminal,
    trend,
    trend_markdown,
    trend_page,
    upgrade,
)
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.table import CellText

_DOCUMENT = "run.json"
_TERMINAL, _ANNOTATIONS = "terminal", "annotations"
_ABOUT_REPORT = "Render stored runs again, from run.json alone. Exits with 0 whatever the runs hold, with 2 where one cannot be read."
_ABOUT_COMPARE = (
    "Say what changed between two stored runs: the baseline's answers, which the upgrade changed, findings, which are speculation's, "
    "speed, and what the servers offer. Baselines and speeds are compared where both are run directories with their transcripts and "
    "scores; gates are those of the new run's config, gates.upgrade. Exits with 1 if the new run is worse than they tolerate: a finding "
    "that the old one has not, other answers of the baseline, slower, or offering less; with 2 where a run cannot be read."
)
_MOST_IDS = 12
"""Test ids that an error lists."""
_ABOUT_TREND = (
    "Draw the figures of many stored runs over their dates, and mark the steps in them. Exits with 0 whatever they hold, and with 2 where "
    "no run can be read."
)
_COMPARED = {
    "text": lambda compared: "".join(f"{line}\n" for line in upgrade.lines(compared)),
    "md": markdown.render_upgrade,
    "html": html.render_upgrade,
    "json": upgrade.render,
}
"""Of each format of a comparison what renders it."""
_PAGES = {"md": ("trend.md", trend_markdown.render), "html": ("trend.html", trend_page.render)}
"""Of each format of a trend the file and what renders it."""
_ABOUT_SHOW = "Print the judgements of a stored run whose test id holds TEST, with all of their evidence. Exits with 2 if none does."


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the commands ``report``, ``show``, ``compare`` and ``trend``."""
    about = "a run directory, an archive of one, or its run.json"
    parser = commands.add_parser("report", help="render stored runs again", description=_ABOUT_REPORT, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help=about)
    parser.add_argument(
        "--format",
        metavar="FORMATS",
        default=_TERMINAL,
        help="terminal, annotations of GitHub, or files with commas between them: md,html,junit (default: terminal)",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where files are written (default: beside run.json)")
    parser.set_defaults(run=report)
    parser = commands.add_parser("show", help="print one judgement in full", description=_ABOUT_SHOW, allow_abbrev=False)
    parser.add_argument("run_path", metavar="RUN", type=Path, help=about)
    parser.add_argument("test", metavar="TEST", help="a part of the test's id: test_greedy, or [draft-k3]")
    parser.set_defaults(run=show)
    parser = commands.add_parser("compare", help="say what changed between two runs", description=_ABOUT_COMPARE, allow_abbrev=False)
    parser.add_argument("old", metavar="OLD", type=Path, help=about)
    parser.add_argument("new", metavar="NEW", type=Path, help=about)
    parser.add_argument("--format", choices=[*_COMPARED], default="text", help="how it is printed (default: text)")
    parser.set_defaults(run=compare)
    parser = commands.add_parser("trend", help="follow the figures of many runs", description=_ABOUT_TREND, allow_abbrev=False)
    where = "a run directory or an archive of one, a folder with run directories at any depth, or a run.json under any name"
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help=where)
    formats = "md, html or both with a comma between them (default: md)"
    parser.add_argument("--format", metavar="FORMATS", default="md", help=formats)
    parser.add_argument("--out", metavar="DIR", type=Path, help="where trend.md and trend.html are written (default: md is printed)")
    parser.set_defaults(run=follow)


def report(arguments: Namespace) -> int:
    """Render each stored run in each format; return the exit code.

    The formats ``_TERMINAL`` and ``_ANNOTATIONS`` are printed. The others are written to files beside run.json or in
    ``--out``, and their paths are printed. The code is 0, or 2 if a run cannot be read or a format cannot be written.
    """
    names = tuple(dict.fromkeys(arguments.format.split(",")))
    try:
        formats = _load_formats(names, arguments)
        for path in arguments.runs:
            with archive.unpack(path) as folder:
                stored = read_run(folder)
            if _TERMINAL in names:
                print_lines(terminal.FORMAT.render(stored))
                sys.stdout.writelines(f"{line}\n" for line in terminal.upgrade_lines(stored))
                print_lines((*terminal.next_steps(stored), terminal.result(stored)))
            if _ANNOTATIONS in names:
                sys.stdout.write(github_annotations.render(stored))
            for form in formats:
                target = (arguments.out or _document(path).parent) / form.target
                with writable(target.parent):
                    target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(target, form.render(stored))
                sys.stdout.write(f"{target}\n")
    except SpecdecError as error:
        return refuse(error)
    return 0


def _load_formats(names: Sequence[str], arguments: Namespace) -> list[FileFormat]:
    """Return the named formats that are written to files.

    Raises SpecdecError for an unknown format, and for files that would overwrite the run or one another, or would
    have no folder.
    """
    formats = [load_format(name) for name in names if name not in {_TERMINAL, _ANNOTATIONS}]
    if any(form.target == _DOCUMENT for form in formats):
        what, remedy = "a report would write over the run", "name another format: run.json is what reports are made from"
        raise SpecdecError(what, where="--format", found=arguments.format, expected="formats other than json", remedy=remedy)
    if formats and arguments.out and len(arguments.runs) > 1:
        what, remedy = "the reports of several runs would write over each other", "name one run, or leave --out away"
        raise SpecdecError(what, where="--out", found=f"{len(arguments.runs)} runs", expected="one", remedy=remedy)
    packed = next(filter(archive.is_archive, arguments.runs), None)
    if formats and packed is not None and not arguments.out:
        what, remedy = "the reports of an archive need a folder", "name one: --out DIR"
        raise SpecdecError(what, where="--out", found=f"{packed}, and no --out", expected="a folder for the files", remedy=remedy)
    return formats


def show(arguments: Namespace) -> int:
    """Print the judgements of a matching test; return the exit code.

    The code is 0, or 2 if no test matches or the run cannot be read.
    """
    try:
        with archive.unpack(arguments.run_path) as folder:
            stored = read_run(folder)
        matching = judgements_matching(stored, arguments.test, arguments.run_path)
    except RunError as error:
        return refuse(error)
    sys.stdout.write("\n\n".join(_describe(stored, judgement) for judgement in matching) + "\n")
    return 0


def compare(arguments: Namespace) -> int:
    """Print what changed between two runs; return the exit code.

    ``_COMPARED`` has what renders each format. The code is 1 if the new run is worse than its gates tolerate, 2 if a run cannot be read,
    else 0.
    """
    try:
        with archive.unpack(arguments.old) as old, archive.unpack(arguments.new) as new:
            changes = against.compare(old, new, read_run(old), read_run(new), day=datetime.now(tz=UTC).date())
    except SpecdecError as error:
        return refuse(error)
    sys.stdout.write(_COMPARED[arguments.format](comparison.upgrade(changes, printable(str(arguments.old)))))
    return 1 if changes.is_worse else 0


def follow(arguments: Namespace) -> int:
    """Render the trends of all runs below the folders; return the exit code.

    ``_PAGES`` has the file and the renderer of each format. Without ``--out`` Markdown is printed. The code is 0, or 2 if no run can be
    read or a format is wrong.
    """
    names = tuple(dict.fromkeys(arguments.format.split(",")))
    try:
        _check_formats(names, arguments)
        trends = _read_trends(arguments.folders)
        for name in names:
            target, render = _PAGES[name]
            if arguments.out is None:
                sys.stdout.write(render(trends))
                continue
            with writable(arguments.out):
                arguments.out.mkdir(parents=True, exist_ok=True)
            atomic_write(arguments.out / target, render(trends))
            sys.stdout.write(f"{arguments.out / target}\n")
    except SpecdecError as error:
        return refuse(error)
    return 0


def _check_formats(names: Sequence[str], arguments: Namespace) -> None:
    """Raise SpecdecError for an unknown format, or for files without a folder.

    Only Markdown alone is printed and needs no ``--out``.
    """
    expected = " or ".join(_PAGES)
    if unknown := [name for name in names if name not in _PAGES]:
        what, remedy = f"a trend has no format {unknown[0]!r}", "name md, html or md,html"
        raise SpecdecError(what, where="--format", found=arguments.format, expected=expected, remedy=remedy)
    if arguments.out is None and names != ("md",):
        what, remedy = "the page of a trend needs a folder", "name one: --out DIR"
        raise SpecdecError(what, where="--format", found=arguments.format, expected="md alone, or a folder for the files", remedy=remedy)


def _read_trends(folders: Iterable[Path]) -> trend.Trends:
    """Return the trends of all runs below ``folders``.

    A line on stderr names each file that cannot be read. Raises RunError if none can be read.
    """
    runs, unread = [], []
    for path in dict.fromkeys(path for folder in folders for path in _documents(folder)):
        try:
            with archive.unpack(path) as run:
                runs.append(trend.read(read_document(_document(run)), str(path)))
        except RunError as error:
            unread.append(printable(f"{path}: {error.what}: {' '.join(error.found.split())}"))
    sys.stderr.writelines(f"not read: {line}\n" for line in unread)
    if not runs:
        files = f"{len(unread)} files, none of them a run of this release" if unread else f"no {_DOCUMENT}"
        what, remedy = "there is no run to follow", "name folders with run directories, as pytest suites/ --specdec-run-dir DIR writes them"
        raise RunError(what, where=", ".join(map(str, folders)), found=files, expected=f"{_DOCUMENT} of one run at least", remedy=remedy)
    return trend.build(runs, unread)


def _documents(folder: Path) -> Iterator[Path]:
    """Yield the path of each run.json below a folder, sorted.

    The run of an upgrade has inside it the run of the old engine. That is left out, since its figures are another engine's, unless it is
    ``folder`` itself. If ``folder`` is no folder but a file or an archive, it is yielded itself.
    """
    if not folder.is_dir():
        yield folder
        return
    for parent, folders, names in os.walk(folder):
        directory = RunDirectory(Path(parent))
        is_run = not {directory.run.name, directory.plan.name}.isdisjoint(names)
        # os.walk descends into the folders of this list alone.
        folders[:] = sorted(name for name in folders if not (is_run and name == directory.old.name))
        if _DOCUMENT in names:
            yield Path(parent) / _DOCUMENT


def judgements_matching(stored: Run, test: str, path: Path) -> list[JudgementResult]:
    """Return the judgements with ``test`` as part of their test id.

    ``path`` is where the run is stored. Raises RunError, with ids that the run has, if there are none.
    """
    matching = [judgement for judgement in stored.judgements if test in judgement.nodeid]
    if matching:
        return matching
    ids = [judgement.nodeid for judgement in stored.judgements]
    more = [f"… and {len(ids) - _MOST_IDS} more"] if len(ids) > _MOST_IDS else []
    text = "\n".join(map(printable, [*ids[:_MOST_IDS], *more])) or "no judgement"
    what, expected, remedy = "the run holds no such test", f"an id with {test!r}", "name a part of one of these ids"
    raise RunError(what, where=str(path), found=text, expected=expected, remedy=remedy)


def _describe(stored: Run, judgement: JudgementResult) -> str:
    """Return one judgement's verdict, evidence and replay command as text.

    A judgement without a verdict has its error or result instead. If it follows from another failure, a line of ``stored.pointers`` names
    that failure.
    """
    verdict = judgement.verdict
    text = f"{failure.headline(verdict)}\n{failure.evidence(verdict)}" if verdict else printable(judgement.error or judgement.result.value)
    replay = f"replay: {judgement.replay}" if judgement.replay else ""
    parts = [printable(judgement.nodeid), text, printable(stored.pointers.get(judgement.nodeid, "")), printable(replay)]
    return "\n".join(filter(None, parts))


def _document(path: Path) -> Path:
    return path / _DOCUMENT if path.is_dir() else path


def print_lines(lines: Iterable[Iterable[CellText]]) -> None:
    """Print lines as plain text, without the colours of their pieces."""
    sys.stdout.writelines("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def refuse(error: SpecdecError) -> int:
    """Print the error, and return the exit code of wrong usage."""
    sys.stderr.write(f"{error}\n")
    return 2
