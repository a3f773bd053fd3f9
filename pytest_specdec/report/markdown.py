"""A run as GitHub-flavoured Markdown, small enough for a comment on a pull request.

A judgement is one test's result on one variant, a server with speculation, against the baseline, one without. A finding is one fault with
all the failures that it explains, of which one leads. A red run is one that fails. An upgrade is the comparison with an earlier run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import answer, environment, failure, parameter_table, speed_table, table
from pytest_specdec.report.escape import escape, printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.next_steps import list_next_steps
from pytest_specdec.report.progress import plural
from pytest_specdec.report.run import RunClass, count_outcomes
from pytest_specdec.report.table import Tone, reasons
from pytest_specdec.report.upgrade import UpgradeWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.report.causes import SharedCause
    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.upgrade import Upgrade

LIMIT_BYTES = 62 * 1024
"""GitHub refuses a comment of more than 65,536 characters, and drops a step summary above 1,024 KiB whole."""

EVIDENCE_BYTES = 8 * 1024
"""Most evidence of one failure."""
COLUMNS = 4
"""Of a table: more do not fit a comment's width."""

SIGNS = {Tone.GOOD: "✅ ", Tone.BAD: "❌ ", Tone.UNSURE: "⚠️ ", Tone.PLAIN: ""}


def render(run: Run) -> str:
    """Return the run's report, cut to :data:`LIMIT_BYTES` by whole sections.

    From the first section that does not fit, the sections are counted instead of shown.
    """
    head = "\n".join(_head_lines(run))
    speed, tail = fold_section("Speed", _speed_lines(run)), fold_section("Capabilities and environment", _tail_lines(run))
    upgrade = [render_upgrade(run.upgrade)] if run.upgrade else []
    sections = [
        *upgrade,
        *map(_finding_section, run.findings),
        *map(_failure_section, run.undecided),
        *speed,
        *tail,
        "\n".join(_last_lines(run)),
    ]
    return fit_sections(head, sections)


_WORD_SIGNS = {UpgradeWord.FINE: "✅", UpgradeWord.WORSE: "❌", UpgradeWord.UNKNOWN: "⚠️"}


def render_upgrade(upgrade: Upgrade) -> str:
    """Return the comparison with an earlier run as Markdown.

    The headline comes first, then the corners, a table of both runs by arm, then one folded section for each kind of difference.
    """
    return "\n".join(_upgrade_lines(upgrade)) + "\n"


def _upgrade_lines(upgrade: Upgrade) -> Iterator[str]:
    """Yield the Markdown lines of the comparison with an earlier run."""
    yield f"\n### Upgrade from {escape(upgrade.earlier)}\n"
    yield f"{_WORD_SIGNS[upgrade.word]} **{escape(upgrade.headline)}**\n"
    # Baseline and variants in the old run and in the new one; the first row is the header.
    table = [[escape(cell) for cell in (row.arm, row.old, row.new, row.change)] for row in upgrade.corners]
    if table:
        yield from table_lines(table)
    for section in upgrade.sections:
        lines = "\n".join(f"    {printable(line)}" for line in section.lines)
        yield f"\n<details><summary>{escape(section.title)}</summary>\n\n{lines}\n\n</details>"


def fit_sections(head: str, sections: Sequence[str], whole: str = "run.json") -> str:
    """Return the head and the first sections within :data:`LIMIT_BYTES`.

    A last line counts the sections left out, and names ``whole``, the file that has all of them. ``head`` is never left out.
    """
    fitting, size = [head], len(head.encode())
    for section in sections:
        size += len(section.encode()) + 1
        if size > LIMIT_BYTES:
            break
        fitting.append(section)
    left_out = len(sections) - len(fitting[1:])  # the first is the head
    note = [f"\n_{plural(left_out, 'section')} left out for size; {whole} has everything._"] if left_out else []
    return "\n".join([*fitting, *note]) + "\n"


def fold_section(title: str, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines as a section to unfold; () without lines."""
    text = "\n".join(lines)
    return (f"\n<details><summary>{title}</summary>\n{text}\n\n</details>",) if text else ()


def _head_lines(run: Run) -> Iterator[str]:
    """Yield the head: title, answers, faults, next steps and promises.

    Waived failures, suspicious verdicts and undecided speeds follow the faults. The table of promises is last, with reasons for gaps below.
    """
    plan = run.plan
    counts = ", ".join(f"{count} {name}" for name, count in count_outcomes(run.judgements).items()) or "no verdict"
    yield f"## {_title_sign(run)} specdec: {escape(plan.config)}"
    yield ""
    how = f"{plan.depth.value} depth{', judged again from stored answers' if run.replayed else ''}"
    yield f"{escape(environment.describe_served(run))}; {how}. {counts}. The baseline is the same server without speculation."
    if run.upgrade is not None:
        yield f"\n{_WORD_SIGNS[run.upgrade.word]} **UPGRADE: {escape(run.upgrade.headline)}**"
    if run.judgements:
        yield f"\n**{escape(answer.correctness(run).text)}** · **{escape(answer.speed(run).text)}**"
    yield from (f"\n❌ **{escape(fault.text)}**" for fault in answer.fault_lines(run))
    yield from (f"\n⚠️ **{escape(line.text)}**" for line in answer.waived_lines(run))
    for verdict in run.suspicious:
        yield f"\n**⚠️ Suspicious: {escape(f'{verdict.pair} {verdict.family.value}')}** {escape(verdict.headline)}."
    yield from (f"\n⚠️ **{escape(line.text)}**" for line in answer.undecided_speed_lines(run))
    for step in list_next_steps(run):
        command = f": `{_escape_code(step.command)}`" if step.command else ""
        yield f"\nNext: {escape(step.what)}{command}"
    yield ""
    yield from _narrow_tables([[f"{SIGNS[cell.tone]}{escape(cell.text.strip())}" for cell in row] for row in table.table(run)])
    reason_lines = reasons(run)
    if reason_lines:
        yield ""
        yield from (f"- {escape(line)}" for line in reason_lines)


def _title_sign(run: Run) -> str:
    """Return the sign of the title.

    It is good only for a clean run without an undecided verdict; a clean run may have some, on speed or drafting. It is bad wherever the
    session exits with a failure: for a red run, and for a capture that was ended by an error.
    """
    if run.red or (run.status is not None and run.status.error):
        return "❌"
    has_undecided = any(j.verdict is not None and j.verdict.outcome is Outcome.NOT_DECIDED for j in run.judgements)
    return "✅" if run.run_class is RunClass.CLEAN and not has_undecided else "⚠️"


def _narrow_tables(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a wide table as several tables of :data:`COLUMNS` columns, one below the other.

    ``rows`` begin with the header. Each table repeats the first column, and leaves out rows with nothing but ``-`` in its other columns.
    """
    for first_column in range(1, max(2, len(rows[0])), COLUMNS - 1):  # once at least: the first column alone is a table too
        if first_column > 1:
            yield ""
        header, *body = ((row[0], *row[first_column : first_column + COLUMNS - 1]) for row in rows)
        yield from table_lines([header, *(row for row in body if set(row[1:]) != {"-"})])


def table_lines(rows: Sequence[Sequence[str]], align: str = ":--") -> Iterator[str]:
    """Yield the lines of a Markdown table, its header first."""
    header, *body = rows
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join([':--'] + [align] * (len(header) - 1))} |"
    yield from (f"| {' | '.join(row)} |" for row in body)


def _speed_lines(run: Run) -> Iterator[str]:
    """Yield a sentence and a table for each speedup."""
    for verdict, speedup in speed_table.speeds(run):
        yield f"\n**Speed of {escape(f'{verdict.pair}, {verdict.workload}')}**: {escape(speed_table.sentence(run, verdict))}\n"
        yield from table_lines([speed_table.HEADER, *speed_table.rows(speedup)], align="--:")


def _finding_section(finding: SharedCause) -> str:
    """Return a folded section on a finding's leading failure, and below it a list of its other ones."""
    _, *others = finding.failures
    lines = "".join(f"\n- `{_escape_code(j.nodeid)}` {escape(j.verdict.headline if j.verdict else j.error)}" for j in others)
    return _failure_section(finding.leader) + (f"\n\nThe same fault in:\n{lines}\n" if lines else "")


def _failure_section(judgement: JudgementResult) -> str:
    """Return a folded section with one failure's evidence."""
    verdict = judgement.verdict
    evidence = failure.evidence(verdict) if verdict else judgement.error
    body = "\n".join(f"    {printable(line)}" for line in _cut_evidence(evidence).split("\n"))
    return (
        f"\n<details><summary>❌ {escape(failure.title(judgement))}</summary>\n\n`{_escape_code(judgement.nodeid)}`\n\n{body}\n\n</details>"
    )


def _cut_evidence(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= EVIDENCE_BYTES else data[:EVIDENCE_BYTES].decode("utf-8", "ignore") + "\n… cut; run.json has the whole"


def _escape_code(text: str) -> str:
    return printable(text).replace("`", "'")


def _tail_lines(run: Run) -> Iterator[str]:
    """Yield detectable faults, capabilities, notes and environment."""
    yield from _detectable_lines(run)
    yield from _capability_lines(run)
    if run.notes:
        yield "\n### Notes\n"
        yield from (f"- {escape(note)}" for note in run.notes)
    if run.environment:
        yield "\n### Environment\n"
        yield from _environment_lines(run)


def _last_lines(run: Run) -> Iterator[str]:
    """Yield the run's directory and, if red, its replay command."""
    yield f"\nRun directory: `{_escape_code(run.directory)}`"
    if run.red:
        yield f"\nJudge the same answers again: `{_escape_code(run.commands.replay)}`"


def _capability_lines(run: Run) -> Iterator[str]:
    """Yield the tables of probed features and judged sampling parameters.

    A column per arm shows how its server handles each. Nothing if there are none.
    """
    features = [[cell.text for cell in row] for row in table.capability_rows(run)]
    for index, rows in enumerate(filter(None, (features, parameter_table.rows(run)))):
        yield "" if index else "\n### Capabilities\n"
        yield from _narrow_tables([[escape(text) for text in row] for row in rows])


def _detectable_lines(run: Run) -> Iterator[str]:
    """Yield a list of the faults ruled out by each passing judgement."""
    rows = answer.detectable(run)
    if rows:
        yield "\n### What would have been caught\n"
        yield from (f"- {escape(where)}: {escape(text)}" for where, text in rows)


def _environment_lines(run: Run) -> Iterator[str]:
    """Yield the run's environment, and each baseline file's differences from it."""
    yield from (f"- {escape(name)}: {escape(value)}" for name, value in environment.conditions(run.environment).items())
    for difference in environment.baseline_differences(run):
        yield f"\n{escape(difference.headline)}\n"
        yield from (f"- {escape(change.what)}: {escape(change.old)} → {escape(change.new)}" for change in difference.changes)
    if note := environment.missing_baseline_note(run):
        yield f"\n{escape(note)}"


FORMAT = ReportFormat(name="md", target="report.md", when=When.FILES, render=render)
