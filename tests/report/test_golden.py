"""The wording of every report stands in one golden file per format; write them anew with ``python -m tests.report.test_golden``."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from pytest_specdec import __version__
from pytest_specdec.model.status import Progress
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.plugin.options import REPORT_FORMATS
from pytest_specdec.report import (
    benchmark_json,
    failure,
    html,
    junit,
    markdown,
    matrix_documents,
    matrix_terminal,
    plan,
    progress,
    run,
    terminal,
    trend_markdown,
    trend_page,
)
from tests.report.histories import history, night, read
from tests.report.matrices import MATRIX_REPORT
from tests.report.runs import GREEN, HOSTILE, MIXED, PLAN

GOLDEN = Path(__file__).parent / "golden"
NOW = Progress(
    at_s=80.0, boot=1, boots=5, arm="draft-k3", doing="answering", workload="chat", done=17, of=24, tokens=1000, remaining_s=3725.0
)
TRENDS = replace(read([*history(count=24, step=16), replace(MIXED, made_at=night(24).made_at)]), unread=(f"nights/7/run.json: {HOSTILE}",))


def text_of(lines):
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def terminal_text(shown):
    return text_of((*terminal.FORMAT.render(shown), *terminal.next_steps(shown)))


def benchmark_text(shown):
    rows = [
        {"name": b.name, "group": b.group, "seconds": b.seconds, "extra_info": b.extra_info} for b in benchmark_json.FORMAT.render(shown)
    ]
    return json.dumps(rows, indent=1) + "\n"


def failure_text(shown):
    verdicts = [judgement.verdict for judgement in shown.judgements if judgement.verdict and judgement.verdict.red]
    return "\n".join(f"{failure.short(verdict, 'pytest --specdec-replay RUN')}\n{failure.section(verdict)}\n" for verdict in verdicts)


FORMATS = {
    "terminal.txt": terminal_text,
    "md": markdown.FORMAT.render,
    "html": html.FORMAT.render,
    "json": lambda shown: run.FORMAT.render(shown).replace(f'"version": "{__version__}"', '"version": "VERSION"'),
    "junit.xml": junit.FORMAT.render,
    "benchmark.json": benchmark_text,
}


def matrix_texts():
    pages = matrix_documents.documents(MATRIX_REPORT, ["md", "html"])
    pages["matrix-report.json"] = pages["matrix-report.json"].replace(f'"version": "{__version__}"', '"version": "VERSION"')
    return {"matrix.terminal.txt": text_of((*matrix_terminal.lines(MATRIX_REPORT), matrix_terminal.result(MATRIX_REPORT))), **pages}


def rendered():
    """Return every golden text by its file's name."""
    return {
        **matrix_texts(),
        **{f"{name}.{kind}": made(shown) for name, shown in (("green", GREEN), ("mixed", MIXED)) for kind, made in FORMATS.items()},
        "mixed.failure.txt": failure_text(MIXED),
        "trend.md": trend_markdown.render(TRENDS),
        "trend.html": trend_page.render(TRENDS),
        "plan.txt": "\n".join(plan.lines(PLAN, origin=".specdec/run", replayed=False)) + "\n",
        "progress.txt": progress.line(NOW, Progress(at_s=70.0, boot=1, boots=5, arm="draft-k3", doing="answering", workload="chat")) + "\n",
    }


@pytest.mark.parametrize("name", sorted(rendered()))
def test_a_report_reads_as_its_golden_file(name):
    """After a change that is meant: ``python -m tests.report.test_golden``, and read the difference as a user would."""
    assert rendered()[name] == (GOLDEN / name).read_bytes().decode("utf-8")


def test_every_format_of_ours_has_a_golden_file_and_none_is_left_over():
    ours = {point.name for point in metadata.entry_points(group=REPORT_FORMATS) if point.value.startswith("pytest_specdec.")}
    assert ours == {kind.partition(".")[0] for kind in FORMATS}
    assert {path.name for path in GOLDEN.iterdir()} == set(rendered())


def test_the_mixed_run_holds_every_outcome():
    assert {judgement.verdict.outcome for judgement in MIXED.judgements if judgement.verdict} == set(Outcome)
    assert {judgement.result for judgement in MIXED.judgements} == set(run.PytestOutcome)


@pytest.mark.parametrize("name", sorted(rendered()))
def test_hostile_text_is_escaped_in_every_format(name):
    text = rendered()[name]
    assert not set("\x1b\r") & set(text)
    if not name.endswith("json"):
        assert "\u202e" not in text
        assert not [line for line in text.splitlines() if line.startswith("::")]
    if name.endswith(".md"):
        assert not [line for line in text.splitlines() if "<script>" in line and not line.startswith("    ")]


def test_the_tables_of_seven_variants_keep_to_their_width():
    text = terminal_text(MIXED)
    tables = text[text.index("\n\n") : text.index(" judgements: ")].splitlines()
    assert sum(line.startswith("T=0") for line in tables) > 1
    assert max(map(len, tables)) <= terminal.WIDTH


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.iterdir():
        stale.unlink()
    for name, text in rendered().items():
        (GOLDEN / name).write_bytes(text.encode("utf-8"))
