"""The commands ``report RUN``, ``show RUN TEST`` and ``compare OLD NEW``: what stored runs say, from run.json alone."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import RunError
from pytest_specdec.files.run_directory import atomic_write, read_text
from pytest_specdec.report import comparison, failure, run, terminal
from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable

    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.table import CellText

GROUP = "pytest_specdec.report_formats"
_TERMINAL = "terminal"
_ABOUT_REPORT = "Render stored runs again, from run.json alone. Exits with 0 whatever the runs hold, with 2 where one cannot be read."
_ABOUT_COMPARE = (
    "Say what changed between two stored runs. Exits with 0 unless the new run has a finding that the old one has not, which exits with 1, "
    "and with 2 where a run cannot be read."
)
_ABOUT_SHOW = "Print the judgements of a stored run whose test id holds TEST, with all of their evidence. Exits with 2 if none does."


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the three commands."""
    about = "a run directory, or its run.json"
    parser = commands.add_parser("report", help="render stored runs again", description=_ABOUT_REPORT, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help=about)
    parser.add_argument(
        "--format", metavar="FORMATS", default=_TERMINAL, help="terminal, or files with commas between them: md,html (default: terminal)"
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
    parser.set_defaults(run=compare)


def report(arguments: Namespace) -> int:
    """Render each run in each format; return the exit code."""
    try:
        formats = [_find_format(name) for name in dict.fromkeys(arguments.format.split(",")) if name != _TERMINAL]
        for path in arguments.runs:
            stored = _read(path)
            if _TERMINAL in arguments.format.split(","):
                _print_lines((*terminal.FORMAT.render(stored), *terminal.next_steps(stored), terminal.result(stored)))
            for form in formats:
                target = (arguments.out or _document(path).parent) / form.target
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(target, form.render(stored))
                sys.stdout.write(f"{target}\n")
    except RunError as error:
        return _refuse(error)
    return 0


def show(arguments: Namespace) -> int:
    """Print the judgements that match; return the exit code."""
    try:
        stored = _read(arguments.run_path)
        matching = [judgement for judgement in stored.judgements if arguments.test in judgement.nodeid]
    except RunError as error:
        return _refuse(error)
    if not matching:
        ids = "\n".join(judgement.nodeid for judgement in stored.judgements) or "no judgement"
        what, expected = "the run holds no such test", f"an id with {arguments.test!r}"
        return _refuse(RunError(what, where=str(arguments.run_path), found=ids, expected=expected))
    sys.stdout.write("\n\n".join(_describe(stored, judgement) for judgement in matching) + "\n")
    return 0


def compare(arguments: Namespace) -> int:
    """Print what changed; return the exit code."""
    try:
        changes = comparison.compare(_read(arguments.old), _read(arguments.new))
    except RunError as error:
        return _refuse(error)
    sys.stdout.writelines(f"{line}\n" for line in comparison.lines(changes))
    return 1 if changes.found else 0


def _describe(stored: Run, judgement: JudgementResult) -> str:
    """Return everything that is known of one judgement."""
    verdict = judgement.verdict
    text = f"{failure.headline(verdict)}\n{failure.evidence(verdict)}" if verdict else printable(judgement.error or judgement.result.value)
    leader = next(
        (cause.pointer for causes in stored.causes.values() for cause in causes if judgement in cause.followers),
        "",
    )
    replay = f"replay: {stored.commands.replay} {judgement.nodeid!r}"
    return "\n".join(filter(None, [printable(judgement.nodeid), text, printable(leader), printable(replay)]))


def _document(path: Path) -> Path:
    return path / "run.json" if path.is_dir() else path


def _read(path: Path) -> Run:
    """Return the run at ``path``. Raises RunError."""
    document = _document(path)
    try:
        text = read_text(document)
    except (OSError, UnicodeDecodeError) as error:
        what, remedy = "there is no run to report", "name a run directory; a session writes run.json at its end"
        raise RunError(what, where=str(document), found=str(error), expected="run.json", remedy=remedy) from None
    return run.read(text, str(document))


def _find_format(name: str) -> ReportFormat[Run, str]:
    """Return the format that writes a file under this name. Raises RunError."""
    form = next((point.load() for point in metadata.entry_points(group=GROUP, name=name)), None)
    if not isinstance(form, ReportFormat) or form.when is not When.FILES:
        known = ", ".join(sorted({point.name for point in metadata.entry_points(group=GROUP)}))
        what, expected = "no such format for a stored run", f"{_TERMINAL}, or one that writes a file, of: {known}"
        raise RunError(what, where="--format", found=name, expected=expected)
    return form


def _print_lines(lines: Iterable[Iterable[CellText]]) -> None:
    sys.stdout.writelines("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def _refuse(error: RunError) -> int:
    sys.stderr.write(f"{error}\n")
    return 2
