"""The sensitivity matrix as a page and as data: faults by seeds, families, healthy runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.sensitivity.cells import Cell, Finding, Found
from benchmarks.sensitivity.green import GreenRun
from pytest_specdec.stats import proportions
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["document", "earlier", "green_lines", "lines", "page", "with_earlier"]

Shown = TypeVar("Shown", Cell, GreenRun)

_SHOWN = 70
"""Characters of a name."""


def lines(cells: Sequence[Cell]) -> list[str]:
    """Return a line per cell for a terminal, and the sums."""
    return [*(_line(cell) for cell in cells), *_sums(cells)]


def _line(cell: Cell) -> str:
    families = "; ".join(f"{one.family} {one.found}{_named(one)}" for one in cell.findings)
    return f"{cell.fault:<32} seed {cell.seed}  {cell.found:<16} {cell.seconds:5.0f} s  {families}"


def _named(finding: Finding) -> str:
    return f" ({_cut(finding.name)})" if finding.name else ""


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _sums(cells: Sequence[Cell]) -> list[str]:
    caught = sum(cell.found is Found.CAUGHT for cell in cells)
    alarms = sum(len(cell.alarms) for cell in cells)
    share = f"{caught / len(cells):.1%}" if cells else "none"
    part = len(cells) - sum(cell.whole for cell in cells)
    asked = f" (in {part} cells only the families that should were asked)" if part else ""
    red = [cell for cell in cells if any(one.found in {Found.CAUGHT, Found.WRONG_NAME, Found.UNDECIDED} for one in cell.findings)]
    undecided = sum(not any(one.found in {Found.CAUGHT, Found.WRONG_NAME} for one in cell.findings) for cell in red)
    by_name = f"{caught} of {len(cells)} cells caught by every family that should, by name ({share}); {alarms} false alarms{asked}"
    anyhow = f"{len(red)} of {len(cells)} cells red in a family that should be, whatever it is called ({len(red) / max(1, len(cells)):.1%})"
    return [by_name, f"{anyhow}; {undecided} of them undecided"]


def green_lines(runs: Sequence[GreenRun]) -> list[str]:
    """Return what healthy and lawful servers came to: false alarms by kind of server, with the exact upper limit of their rate."""
    found = []
    for name, several in groupby(sorted(runs, key=lambda run: run.name), key=lambda run: run.name):
        every = list(several)
        alarmed = sum(bool(run.alarms) for run in every)
        high = proportions.limits(alarmed, len(every), confidence=0.9).high
        found.append(f"{name}: {alarmed} of {len(every)} runs with a false alarm; the rate is below {high:.2%} (95 %, Clopper-Pearson)")
        found += [f"  seed {run.seed}: {alarm}" for run in every for alarm in run.alarms]
    return found


def document(cells: Sequence[Cell], runs: Sequence[GreenRun], environment: Mapping[str, str]) -> dict[str, object]:
    """Return everything for benchmarks/results/sensitivity.json."""
    return {**environment, "cells": [asdict(cell) for cell in cells], "green": [asdict(run) for run in runs]}


def earlier(path: Path) -> tuple[list[Cell], list[GreenRun]]:
    """Return the cells and the runs of healthy and lawful servers that a results file holds; none without one."""
    if not path.exists():
        return [], []
    held = json.loads(path.read_text(encoding="utf-8"))
    cells = [
        Cell(**{**one, "found": Found(one["found"]), "findings": tuple(_found(finding) for finding in one["findings"])})
        for one in held["cells"]
        if one["fault"] in FAULTS
    ]
    return cells, [GreenRun(**{**one, "alarms": tuple(one["alarms"])}) for one in held["green"]]


def _found(finding: Mapping[str, Any]) -> Finding:
    return Finding(**{**finding, "found": Found(finding["found"])})


def with_earlier(now: Sequence[Shown], before: Sequence[Shown]) -> Iterable[Shown]:
    """Yield all of both, those of ``now`` in place of the same ones before."""
    known = {_which(one): one for one in (*before, *now)}
    return known.values()


def _which(one: Cell | GreenRun) -> tuple[str, int, str]:
    return (one.fault if isinstance(one, Cell) else one.name, one.seed, one.depth)


def page(cells: Sequence[Cell], runs: Sequence[GreenRun], environment: Mapping[str, str], *, world: str = "") -> str:
    """Return docs/sensitivity.md, or the same page of a ``world`` with noisy numerics."""
    head = [
        f"# Sensitivity: which suite finds which fault{f' in the world {world}' if world else ''}",
        "",
        f"Written by `python -m benchmarks.sensitivity{f' --world {world}' if world else ''} --write`; do not edit.",
        "",
        "Each fault of the reference engine is planted in a server of its own and judged at standard depth by the suites without",
        "their timed test, or with it where the fault is one of time, at the false-alarm shares of a config with two variants. Faults",
        "that take minutes of the same traffic are judged at deep depth, which alone sends it.",
        "Where only the families that should find a fault were asked, nothing is known of false alarms of the others. A seed is the",
        "engine's `--seed`, which draws for requests without one, and an offset of all others. *Caught*: every family that should be",
        "red is, and says what the fault's row says.",
        "",
        f"{environment['date']}, {environment['machine']}, {environment['versions']}.",
        "",
        *_sums(cells),
        "",
    ]
    green = ["## Servers that must stay green", "", *(f"- {line.strip()}" for line in green_lines(runs)), ""] if runs else []
    return "\n".join([*head, *_by_family(cells), "", "## Faults", "", *_faults(cells), "", *green])


def _by_family(cells: Sequence[Cell]) -> Iterable[str]:
    yield "| family | cells that should be red | caught | by another name | undecided | missed | not judged | false alarms |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    findings = sorted((one for cell in cells for one in cell.findings), key=lambda one: one.family)
    for family, several in groupby(findings, key=lambda one: one.family):
        found = [one.found for one in several]
        counts = [found.count(kind) for kind in (Found.CAUGHT, Found.WRONG_NAME, Found.UNDECIDED, Found.MISSED, Found.NOT_JUDGED)]
        yield f"| {family} | {sum(counts)} | {' | '.join(map(str, counts))} | {found.count(Found.ALARM)} |"


def _faults(cells: Sequence[Cell]) -> Iterable[str]:
    yield "| fault | a server with it | seeds | found | family: name | tokens | seconds |"
    yield "|---|---|---|---|---|---|--:|"
    for fault, several in groupby(sorted(cells, key=lambda cell: (cell.fault, cell.seed)), key=lambda cell: cell.fault):
        every = list(several)
        found = ", ".join(dict.fromkeys(str(cell.found) for cell in every))
        names = dict.fromkeys(f"{one.family}: {_cut(one.name) or one.found}" for cell in every for one in cell.findings)
        tokens = max((one.tokens for cell in every for one in cell.findings if one.found is Found.CAUGHT), default=0)
        seconds = sum(cell.seconds for cell in every) / len(every)
        seeds = ", ".join(str(cell.seed) for cell in every)
        yield f"| `{fault}` | {_does(fault)} | {seeds} | {found} | {'<br>'.join(map(_escaped, names))} | {tokens or '-'} | {seconds:.0f} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _does(fault: str) -> str:
    return _escaped(FAULTS[fault].does) if fault in FAULTS and Place.REFERENCE in FAULTS[fault].expected else "no longer planted"
