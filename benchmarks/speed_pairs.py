"""Speed and acceptance of two real pairs, healthy and with planted faults: ``python -m benchmarks.speed_pairs [--configs reference]``.

For each pair the suites of speed and greedy are run healthy ``--runs`` times, the first time without a baseline file; each run joins the
file, whose floors follow, and the next is held against it. Then the suite of speed is run with planted faults: dead drafts and a slow
verify step without a file, as on a new machine, and a drafter that falls behind under concurrency against the file of the healthy runs.
``--write`` writes benchmarks/results/speed_pairs.{md,json} and, unless something is not as expected, moves the files to baselines/, where
every later run of the pair on such a machine finds them. The same command goes on where it was interrupted. Leave the machine alone
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import results
from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "suites" / "configs"
PAIRS = ("reference", "vllm-cpu-padded")
PATCHES = "SPECDEC_VLLM_PATCHES"
NEW_MACHINE = ("dead-drafts", "slow-verify")
"""Faults that a first run has to find."""
STORED = {"reference": ("shorter-drafts-in-company",), "vllm-cpu-padded": ()}
"""Faults that are found against a stored run, by config."""
WORDS = {
    "dead-drafts": "the drafter brings too little|no draft token accepted|hardly any draft token accepted",
    "slow-verify": "the step is too dear",
    "shorter-drafts-in-company": "the drafter got worse",
}
"""What a red verdict says of a fault; alternatives are separated by ``|``."""
HEALTHY = "healthy"
RED = {"fail", "not speculating", "invalid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One judgement of one run."""

    config: str
    run: str
    """``healthy 3``, or the planted fault."""
    variant: str
    workload: str
    outcome: str
    names: str
    """What it is put down to, where it is red."""
    headline: str
    speedup: float | None
    low: float | None
    high: float | None


def main() -> int:
    """Measure, print, and write where asked; 1 when a healthy run is red or a planted fault is not."""
    options = _options()
    folder: Path = options.folder
    found: list[Judged] = []
    for config in options.configs:
        stored = folder / f"{config}-baselines"
        for number in range(1, options.runs + 1):
            update = ("--specdec-update-baselines", str(ROOT / "suites" / "greedy"))  # no baseline of tokens that nobody judged
            found += _run(CONFIGS / f"{config}.yaml", folder / f"{config}-{number}", f"{HEALTHY} {number}", stored, *update)
        for fault in (*NEW_MACHINE, *STORED[config]):
            written = folder / f"{config}-{fault}" / f"{config}.yaml"
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(yaml.dump(planted(config, fault)))
            found += _run(written, written.parent / "run", fault, folder / "none" if fault in NEW_MACHINE else stored)
    print("\n".join(page(found)))
    wrong = surprises(found)
    if options.write:
        _write(found)
        for config in () if wrong else options.configs:
            shutil.copytree(folder / f"{config}-baselines", ROOT / "baselines", dirs_exist_ok=True)
    print("\n".join(wrong) or "all as expected")
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", choices=PAIRS, default=list(PAIRS), metavar="CONFIG")
    parser.add_argument("--runs", type=int, default=10, help="healthy ones")
    parser.add_argument("--folder", type=Path, default=ROOT / ".specdec" / "speed-pairs", help="of the runs")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def planted(config: str, fault: str) -> dict[str, JSON]:
    """Return the config with ``fault`` planted in every variant, relative paths made absolute."""
    path = CONFIGS / f"{config}.yaml"
    read = yaml.load(path.read_text(), str(path)).data
    assert isinstance(read, dict)
    engine = read["engine"]
    for variant in read["variants"].values():
        if engine["kind"] == "reference":
            variant["args"]["fault"] = fault
        else:
            variant["env"] = {PATCHES: f"{engine['env'][PATCHES]},{fault}"}
    absolute = _absolute(read)
    assert isinstance(absolute, dict)
    return absolute


def _absolute(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {key: _absolute(each) for key, each in value.items()}
    return os.path.normpath(CONFIGS / value) if isinstance(value, str) and value.startswith("../") else value


def _run(config: Path, run: Path, name: str, stored: Path, *options: str) -> list[Judged]:
    """Run the suite of speed, unless it was run before, and return what it came to."""
    if not (run / "run.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        asked = (f"--specdec-config={config}", f"--specdec-run-dir={run}", f"--specdec-baselines={stored}", *options)
        environment = {key: value for key, value in os.environ.items() if key not in {"CI", "SPECDEC_FAULT"}}
        subprocess.run(
            [sys.executable, "-m", "pytest", str(ROOT / "suites" / "speed"), *asked, "-q", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env=environment,
            check=False,
        )
    document = json.loads((run / "run.json").read_text())
    return [_judged(config.stem, name, one) for one in document["judgements"] if one["family"] == Family.SPEED]


def _judged(config: str, run: str, judgement: Mapping[str, JSON]) -> Judged:
    verdict = judgement["verdict"] or {"outcome": judgement["result"], "names": "", "headline": "", "figures": {}}
    assert isinstance(verdict, dict)
    figures = verdict["figures"]
    return Judged(
        config=config,
        run=run,
        variant=str(judgement["pair"]),
        workload=str(judgement["workload"]),
        outcome=str(verdict["outcome"]),
        names=str(verdict["names"]),
        headline=str(verdict["headline"]),
        speedup=figures.get("speedup"),
        low=figures.get("speedup_low"),
        high=figures.get("speedup_high"),
    )


def surprises(found: Iterable[Judged]) -> list[str]:
    """Return a line per healthy judgement that is red, and per planted fault that none is red of by the words of its row."""
    lines: list[str] = []
    said: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if not one.run.startswith(HEALTHY):
            said.setdefault((one.config, one.run), []).extend([f"{one.names} {one.headline}"] * (one.outcome in RED))
        elif one.outcome in RED:
            lines.append(f"{one.config}, {one.run}, {one.variant}, {one.workload}: {one.headline}")
    unnamed = {planted: red for planted, red in said.items() if not _named(planted[1], red)}
    return lines + [f"{config}, {fault}: not red by name: {'; '.join(red) or 'nothing red'}" for (config, fault), red in unnamed.items()]


def _named(fault: str, red: Sequence[str]) -> bool:
    return any(words in each for words in WORDS[fault].split("|") for each in red)


def page(found: Sequence[Judged]) -> list[str]:
    """Return a table of the healthy runs and one of the planted faults."""
    lines = [
        "| config | variant | workload | healthy runs | speedup, median [least, most] | least lower bound |",
        "|---|---|---|---|--:|--:|",
    ]
    healthy = [one for one in found if one.run.startswith(HEALTHY)]
    for cell in dict.fromkeys((one.config, one.variant, one.workload) for one in healthy):
        mine = [one for one in healthy if (one.config, one.variant, one.workload) == cell]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(one.outcome for one in mine).items())
        ratios = [one.speedup for one in mine if one.speedup is not None]
        bounds = [one.low for one in mine if one.low is not None]
        speed = f"{median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]" if ratios else "-"
        lines.append(f"| {' | '.join(cell)} | {outcomes} | {speed} | {f'{min(bounds):.2f}x' if bounds else '-'} |")
    lines += ["", "| config | planted | variant | workload | verdict | it says |", "|---|---|---|---|---|---|"]
    for one in found:
        if one not in healthy and one.outcome != "pass":
            said = one.headline if one.names in one.headline else f"{one.names}: {one.headline}"
            lines.append(f"| {one.config} | {one.run} | {one.variant} | {one.workload} | {one.outcome} | {said} |")
    return lines


def _write(found: Sequence[Judged]) -> None:
    """Write the results; those of a pair that was not measured now stay, with the day that they are of."""
    path = results.FOLDER / "speed_pairs.json"
    written = json.loads(path.read_text()) if path.exists() else {"measured": {}, "judged": []}
    now = {one.config for one in found}
    measured = {**written["measured"], **dict.fromkeys(sorted(now), results.environment())}
    kept = [Judged(**one) for one in written["judged"] if one["config"] not in now]
    judged = sorted([*kept, *found], key=lambda one: PAIRS.index(one.config))
    where = "\n".join(f"- {config}: {of['date']}, {of['machine']}, {of['versions']}" for config, of in sorted(measured.items()))
    head = f"# Two real pairs, healthy and with planted faults\n\nWritten by `python -m benchmarks.speed_pairs --write`.\n\n{where}\n"
    first = "The first healthy run of each pair had no baseline file; the others were held against the file of those before them.\n"
    path.with_suffix(".md").write_text("\n".join([head, first, *page(judged), ""]), encoding="utf-8")
    document = {"measured": measured, "judged": [asdict(one) for one in judged]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
