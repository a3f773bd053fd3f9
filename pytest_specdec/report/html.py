"""A run as one HTML page: opens from disk, runs no script, asks no network, reads in light, dark and print.

A judgement is one test's result on one variant, a server with speculation, against the baseline, one without. A finding is one fault with
all the failures that it explains, of which one leads. An upgrade is the comparison with an earlier run. Variants with wrong tokens are
"not counted": their speed and acceptance mean nothing. Functions named after a part of the page yield its lines.
"""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING

from pytest_specdec.model.promise import DraftedTraffic, SampledTokens, Speedup
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, environment, failure, parameter_table, speed_table, svg, table
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.html_page import Cells, page
from pytest_specdec.report.html_page import table as _table
from pytest_specdec.report.html_page import text as _text
from pytest_specdec.report.next_steps import list_next_steps
from pytest_specdec.report.page_style import STYLE
from pytest_specdec.report.run import RunClass, count_outcomes
from pytest_specdec.report.table import Tone, reasons
from pytest_specdec.report.upgrade import UpgradeWord
from pytest_specdec.stats.proportions import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.causes import SharedCause
    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.upgrade import Upgrade

TITLES = {
    RunClass.CLEAN: "Nothing wrong found",
    RunClass.FINDING: "Finding",
    RunClass.SETUP_INVALID: "Setup invalid: no verdict on the variant",
    RunClass.INFRASTRUCTURE: "Infrastructure: run it again",
    RunClass.UNDECIDED: "Undecided",
}
CLASS_TONES = {RunClass.CLEAN: Tone.GOOD, RunClass.FINDING: Tone.BAD, RunClass.SETUP_INVALID: Tone.BAD}
_EVIDENCE_LINES = 60
"""Lines of evidence shown of a failure; run.json has all."""


def render(run: Run) -> str:
    """Return the HTML page of a run; equal runs give equal pages."""
    return page(f"specdec: {run.plan.config}: {run.run_class.value}", STYLE, (line for part in _parts(run) for line in part))


def render_upgrade(upgrade: Upgrade) -> str:
    """Return the HTML page for a comparison of two stored runs."""
    return page(f"specdec: upgrade from {upgrade.earlier}: {upgrade.word.value}", STYLE, _upgrade(upgrade, level=1))


def _parts(run: Run) -> Iterator[Iterable[str]]:
    """Yield the lines of each part of the page, in order."""
    yield _head(run)
    yield _upgrade(run.upgrade) if run.upgrade else ()
    yield _findings(run)
    yield _overview(run)
    yield _evidence(run)
    yield _speeds(run)
    yield _acceptance(run)
    yield _latencies(run)
    yield _detectable(run)
    yield _capabilities(run)
    yield _environment(run)
    yield _notes(run)


def _head(run: Run) -> Iterator[str]:
    """Yield the page's header: class, answers, counts and next steps.

    The class of a clean run has another title if it has waived failures, those that the config expects. The upgrade's headline comes before
    the other answers. Waived failures and undecided speeds come before the next steps.
    """
    plan, run_class = run.plan, run.run_class
    yield "<header>"
    has_waived = run_class is RunClass.CLEAN and any(answer.waived_lines(run))
    tone, title = (Tone.UNSURE, "Nothing new found") if has_waived else (CLASS_TONES.get(run_class, Tone.UNSURE), TITLES[run_class])
    yield f'<p class="class {tone.value}">{_text(title)}</p>'
    yield f"<h1>{_text(f'{plan.config}: {environment.describe_served(run)}')}</h1>"
    if run.upgrade is not None:
        yield f'<p class="answer {_UPGRADE_TONES[run.upgrade.word].value}">{_text(f"UPGRADE: {run.upgrade.headline}")}</p>'
    if run.judgements:
        for part in (answer.correctness(run), answer.speed(run)):
            yield f'<p class="answer {part.tone.value}">{_text(part.text)}</p>'
    counts = ", ".join(f"{count} {name}" for name, count in count_outcomes(run.judgements).items()) or "no verdict"
    how = "judged again from stored answers" if run.replayed else "judged"
    yield f'<p class="aside">{_text(f"{plan.depth.value} depth, {how} {run.made_at}: {counts}")}</p>'
    yield '<p class="aside">The baseline is the same server without speculation.</p>'
    yield from (f'<p class="unsure">{_text(line.text)}</p>' for line in (*answer.waived_lines(run), *answer.undecided_speed_lines(run)))
    for step in list_next_steps(run):
        command = f": <code>{_text(step.command)}</code>" if step.command else ""
        yield f'<p class="aside">Next: {_text(step.what)}{command}</p>'
    yield "</header>"


_UPGRADE_TONES = {UpgradeWord.FINE: Tone.GOOD, UpgradeWord.WORSE: Tone.BAD, UpgradeWord.UNKNOWN: Tone.UNSURE}


def _upgrade(upgrade: Upgrade, *, level: int = 2) -> Iterator[str]:
    """Yield the comparison with an earlier run, section by section.

    The headline and the corners, a table of both runs by arm, come first. ``level`` is the level of the HTML heading.
    """
    yield f"<h{level}>{_text(f'Upgrade from {upgrade.earlier}')}</h{level}>"
    yield f'<p class="answer {_UPGRADE_TONES[upgrade.word].value}">{_text(upgrade.headline)}</p>'
    if upgrade.corners:
        rows = [[whole_line(_text(row.arm)), *map(_text, (row.old, row.new, row.change))] for row in upgrade.corners]
        yield from _table(rows, "Old and new run by baseline and variant", Cells.PROSE)
    for section in upgrade.sections:
        yield f"<details open><summary>{_text(section.title)}</summary>{_pre(section.lines)}</details>"


def _findings(run: Run) -> Iterator[str]:
    """Yield a section per finding, and one for the judgements that failed without a fault: not made or not decided."""
    findings = run.findings
    if findings:
        yield f"<h2>{len(findings)} finding{'s' * (len(findings) != 1)}</h2>"
    for finding in findings:
        yield from _finding(finding)
    undecided = run.undecided
    if undecided:
        yield f"<h2>{len(undecided)} judgement{'s' * (len(undecided) != 1)} not made or not decided</h2>"
        yield from (line for judgement in undecided for line in _failure(judgement))


def _finding(finding: SharedCause) -> Iterator[str]:
    """Yield one finding: its leading failure, then its other failures, folded."""
    leader, variants = finding.leader, ", ".join(finding.by_pair)
    yield f'<section class="finding"><h3>{_text(f"{variants}: {finding.name}")}</h3>'
    if leader.verdict is not None:
        yield f"<p>{_text(leader.verdict.headline)}</p>"
        yield _pre(leader.verdict.short)
        if leader.verdict.settle:
            yield f"<p>{_text(f'To settle it: {leader.verdict.settle}')}</p>"
    yield f'<p class="aside">{_text(f"seen by {finding.tests}")}</p>'
    yield from _failure(leader, "Its evidence, and the command that judges the same answers again" if leader.verdict else "")
    yield from (line for judgement in finding.failures[1:] for line in _failure(judgement))
    yield "</section>"


def _failure(judgement: JudgementResult, title: str = "") -> Iterator[str]:
    """Yield a folded failure: its evidence and its replay command.

    The fold has the failure's headline as its title if ``title`` is empty. The evidence is cut after :data:`_EVIDENCE_LINES` lines.
    """
    verdict = judgement.verdict
    lines = (failure.evidence(verdict) if verdict else judgement.error).split("\n")
    more = [f"… and {len(lines) - _EVIDENCE_LINES} lines more in run.json"] if len(lines) > _EVIDENCE_LINES else []
    yield f"<details><summary>{_text(title or failure.title(judgement))}</summary>"
    yield f"<p><code>{_text(judgement.nodeid)}</code></p>"
    yield _pre([*lines[:_EVIDENCE_LINES], *more])
    yield f"<p>Judge the same answers again: <code>{_text(judgement.replay)}</code></p></details>"


def _pre(lines: Sequence[str]) -> str:
    text = "\n".join(map(_text, lines))
    return f"<pre>{text}</pre>" if lines else ""


def _overview(run: Run) -> Iterator[str]:
    """Yield the table of promises, a row per family of tests; missing judgements; untested families."""
    if not run.judgements:
        return
    yield "<h2>Promises</h2>"
    rows = [[f'<span class="{cell.tone.value}">{_text(cell.text.strip())}</span>' for cell in row] for row in table.table(run)]
    rows[0][0] = "promise"  # empty on the terminal
    yield from _table(rows, "Each promise of each variant")
    lines = reasons(run)
    if lines:
        yield f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"
    untested = answer.not_tested(run)
    if untested:
        yield f'<p class="aside">{_text(untested)}</p>'


def _detectable(run: Run) -> Iterator[str]:
    """Yield a folded table of the faults ruled out by passing judgements."""
    rows = answer.detectable(run)
    if rows:
        yield f"<h2>What would have been caught</h2><details><summary>What each of {len(rows)} passing judgements rules out</summary>"
        yield from _table(
            [["where", "what"], *([_text(where), _text(what)] for where, what in rows)], "By variant and workload", Cells.PROSE
        )
        yield "</details>"


def _speeds(run: Run) -> Iterator[str]:
    """Yield a table of speedups with intervals, and their folded figures.

    A speedup is drawn, and has its verdict's sentence beside it. The figures are the speeds of both arms, baseline and variant.
    """
    speeds = speed_table.speeds(run)
    if not speeds:
        return
    yield "<h2>Speed</h2>"
    rows = [
        [_text(f"{verdict.pair}, {verdict.workload}"), svg.speedup(speedup), _text(speed_table.sentence(run, verdict))]
        for verdict, speedup in speeds
    ]
    yield from _table(
        [["workload", "speedup", "verdict"], *rows],
        "Speedup by workload, on a logarithmic axis from 0.25 to 4 with 1 marked, and its 95 % interval",
    )
    figures = [
        [_text(f"{verdict.pair}, {verdict.workload}"), *map(_text, row)] for verdict, speedup in speeds for row in speed_table.rows(speedup)
    ]
    yield "<details><summary>Tokens per second and seconds of both arms</summary>"
    yield from _table([["workload", *map(_text, speed_table.HEADER)], *figures], "Speed by workload", Cells.NUMBERS)
    yield "</details>"


def _evidence(run: Run) -> Iterator[str]:
    """Yield a figure per variant: the evidence against its sampler.

    Evidence is the winnings of bets against a correct sampler, in powers of ten over the sampled tokens. Of each variant the workload with
    the highest is drawn. The alarm is at 1 over ``alpha``, the judgement's share of the false-alarm budget.
    """
    alarms = {(p.pair, p.workload): -log10(p.alpha) for p in run.plan.judgements if p.family is Family.SAMPLING and p.alpha}
    highest: dict[str, tuple[Verdict, SampledTokens]] = {}
    for verdict in (judgement.verdict for judgement in run.judgements if judgement.verdict):
        promise = verdict.promise
        if isinstance(promise, SampledTokens) and promise.curve:
            highest_before = highest.get(verdict.pair)
            if highest_before is None or promise.log10_wealth > highest_before[1].log10_wealth:
                highest[verdict.pair] = verdict, promise
    if highest:
        yield "<h2>Evidence against the sampler</h2>"
        yield '<p class="aside">Powers of ten over the sampled tokens; above the dashed line the variant fails.</p><div class="figures">'
    for pair, (verdict, promise) in highest.items():
        alarm = alarms.get((pair, verdict.workload))
        at = f", alarm at 10^{alarm:.1f}" if alarm is not None else ""
        caption = f"{pair}, {verdict.workload}: 10^{promise.log10_wealth:.1f} at its highest of {promise.tokens:,} tokens{at}"
        best_bet = f"; most of it on: {promise.best_bettor}" if alarm is not None and promise.log10_wealth >= alarm else ""
        yield f"<figure>{svg.curve(promise.curve, alarm)}<figcaption>{_text(caption + best_bet)}</figcaption></figure>"
    if highest:
        yield "</div>"


def _acceptance(run: Run) -> Iterator[str]:
    """Yield a table of the acceptance rate at each draft position.

    A rate is the share of verify steps with an accepted draft token there. Its 95 % interval assumes independent steps. Rows of variants
    that draft fewer tokens are filled up with ``-``.
    """
    rows, most_positions = [], 0
    for verdict in _counted_verdicts(run):
        promise = verdict.promise
        if isinstance(promise, DraftedTraffic) and promise.accepted_by_position:
            shares = [_share(part, promise.steps) for part in promise.accepted_by_position]
            rows.append([whole_line(_text(verdict.pair)), f"{promise.steps:,}", *shares])
            most_positions = max(most_positions, len(shares))
    if rows:
        header = ["variant", "verify steps", *(f"position {position}" for position in range(1, most_positions + 1))]
        yield "<h2>Acceptance by draft position</h2>"
        yield from _table(
            [header, *([*row, *["-"] * (len(header) - len(row))] for row in rows)],
            "Part of the verify steps that accept each draft position, with 95 % limits as if steps were independent",
        )


def _share(part: float, steps: int) -> str:
    """Return the cell of a share: a bar, and percentages with 95 % limits.

    ``part`` is the share of ``steps`` verify steps, in 0..1.
    """
    interval = limits(round(part * steps), steps)
    words = f"{part:.1%} [{interval.low:.1%}, {interval.high:.1%}]"
    return whole_line(f"{svg.share(part, interval.low, interval.high)} {_text(words)}")


def whole_line(cell: str) -> str:
    """Return HTML that is not broken into lines."""
    return f'<span class="whole-line">{cell}</span>'


def _latencies(run: Run) -> Iterator[str]:
    """Yield a folded table of both arms' latency quantiles in milliseconds."""
    rows = [
        [
            _text(f"{verdict.pair}, {verdict.workload}"),
            _text(latency.what),
            _text(latency.arm),
            *map(_milliseconds, (latency.p50_s, latency.p90_s, latency.p99_s)),
            f"{latency.count:,}",
        ]
        for verdict in _counted_verdicts(run)
        if isinstance(verdict.promise, Speedup)
        for latency in verdict.promise.latencies
    ]
    if rows:
        yield "<h2>Latency</h2><details><summary>Milliseconds that clients waited, by quantile</summary>"
        yield from _table([["workload", "what", "arm", "p50", "p90", "p99", "of"], *rows], "Milliseconds", Cells.NUMBERS)
        yield "</details>"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.1f}"


def _counted_verdicts(run: Run) -> Iterator[Verdict]:
    """Yield the verdicts of all families whose figures of speed or acceptance, if any, count.

    Left out are invalid verdicts and those of variants with wrong tokens.
    """
    for judgement in run.judgements:
        verdict = judgement.verdict
        if verdict and verdict.outcome is not Outcome.INVALID and verdict.pair not in run.not_counted:
            yield verdict


def _capabilities(run: Run) -> Iterator[str]:
    """Yield the tables of probed features and judged sampling parameters, by arm."""
    features = [[_text(cell.text) for cell in row] for row in table.capability_rows(run)]
    parameters = [[_text(cell) for cell in row] for row in parameter_table.rows(run)]
    if features or parameters:
        yield "<h2>Capabilities</h2>"
    if features:
        yield from _table(features, "What each server does with each feature")
    if parameters:
        yield from _table(parameters, "What each server does with each sampling parameter")


def _environment(run: Run) -> Iterator[str]:
    """Yield the run's environment, and each baseline file's differences from it."""
    if run.environment is None:
        return
    yield "<h2>Environment</h2>"
    rows = environment.conditions(run.environment).items()
    yield from _table(
        [["what", "value"], *([_text(name), _text(value)] for name, value in rows)], "Where the run was captured", Cells.PROSE
    )
    for difference in environment.baseline_differences(run):
        if difference.changes:
            changed = [[_text(change.what), _text(change.old), _text(change.new)] for change in difference.changes]
            yield from _table([["what", "then", "now"], *changed], difference.headline, Cells.PROSE)
        else:
            yield f"<p>{_text(difference.headline)}</p>"
    if note := environment.missing_baseline_note(run):
        yield f'<p class="aside">{_text(note)}</p>'


def _notes(run: Run) -> Iterator[str]:
    """Yield the run's notes, its directory and the commands to go on."""
    if run.notes:
        yield f"<h2>Notes</h2><ul>{''.join(f'<li>{_text(note)}</li>' for note in run.notes)}</ul>"
    yield f"<footer><p>Run directory <code>{_text(run.directory)}</code></p>"
    for label, command in (("Judge the same answers again", run.commands.replay), ("Capture what is missing", run.commands.resume)):
        yield f"<p>{label}: <code>{_text(command)}</code></p>"
    yield "</footer>"


FORMAT = ReportFormat(name="html", target="report.html", when=When.FILES, render=render)
