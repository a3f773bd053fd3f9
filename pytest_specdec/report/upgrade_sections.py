"""Upgrade sections: what changed between two runs, line by line, below the headline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge import compared_speed
from pytest_specdec.judge.compared_speed import ComparedSpeed
from pytest_specdec.report import baseline_lines
from pytest_specdec.report.escape import printable
from pytest_specdec.report.upgrade import UpgradeSection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.report.comparison import Comparison

__all__ = ["list_sections"]


def list_sections(comparison: Comparison) -> Iterator[UpgradeSection]:
    """Yield all sections of the report, empty ones included, the most important first."""
    compared = comparison.findings
    findings = (
        ("new", compared.found),
        ("known, and new at tests that passed before", compared.spread),
        ("failed before too, by another name", compared.renamed),
        ("not judged before", compared.unjudged),
        ("gone", compared.gone),
        ("as before", compared.kept),
        ("not decided now", compared.open),
        ("waived", compared.waived),
    )
    unlike = f" ({comparison.unlike})" if comparison.unlike else ""  # why speeds cannot be compared, such as two machines
    yield UpgradeSection(title="order of the runs", lines=(comparison.order,) if comparison.order else ())
    yield UpgradeSection(title="findings", lines=tuple(printable(f"{title}: {one}") for title, of_kind in findings for one in of_kind))
    yield UpgradeSection(title="changes", lines=tuple(_change_lines(comparison)))
    yield UpgradeSection(title="accepted changes", lines=comparison.review.lines)
    yield UpgradeSection(title="baseline", lines=tuple(baseline_lines.lines(comparison.baseline)) if comparison.baseline else ())
    yield UpgradeSection(title="judgements", lines=tuple(map(str, comparison.judgements)), is_detail=True)
    yield UpgradeSection(title=f"speed and acceptance{unlike}", lines=tuple(_speed_lines(comparison)))
    yield UpgradeSection(title="capabilities", lines=(*map(str, comparison.capabilities), *comparison.healed))
    yield UpgradeSection(title="environment", lines=tuple(map(str, comparison.environment)))


def _change_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the names of a worse upgrade's unaccepted changes, and how to accept them."""
    names = [name for name in comparison.names if not comparison.review.accepts(name)]
    if names and comparison.is_worse:
        yield ", ".join(names)
        yield "if the upgrade means it, accept it by that name: gates.upgrade.accept, with change, reason, owner and expires"


def _speed_lines(comparison: Comparison) -> Iterator[str]:
    """Yield lines on slowdowns, figures of both runs, and their ratios.

    A gate is the least ratio of new to old that the config allows. A last line says how to decide ratios
    neither surely above their gate nor surely below it.
    """
    speed = comparison.speed or ComparedSpeed()
    yield from (f"slower: {slow.part.value}: {slow.why}" for slow in speed.slower)
    yield from map(str, comparison.measures)
    if speed.not_gated and not comparison.unlike:  # else the section's title says why
        yield printable(f"not gated: {speed.not_gated}")
    for figure in speed.ratios:
        ruling = f"; at least {figure.at_least:g}: {figure.ruling.value}" if figure.at_least is not None else ""
        yield printable(f"{compared_speed.describe(figure)}{ruling}")
    if speed.undecided:
        yield "to decide: judge both builds in one run (engines.old and engines.new), at standard depth, with --specdec-boots 4"
