"""Whole runs of every suite through the doubles of engines that need a GPU: ``python -m benchmarks.doubles``.

A double is a server that behaves as we read an engine, with the reference engine's model underneath (``tests/engines/doubles``). What
passes here shows that the adapter and the judges fit our reading of the engine, nothing about the engine itself.

One run per double, depth and colour: green with a healthy variant, red with a variant for each planted fault. Each run ends with a table of
the families that turned red and their headlines; ``--write`` puts it into benchmarks/results/doubles.md. Exit 1 when a variant is not as
``specdec_reference/faults/`` expects. A run that was interrupted is resumed, a finished one is judged again from its files; remove
its folder to capture it anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place
from tests.engines.doubles.configs import CONFIGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[1]
PLANTED = ("accept-all", "report-draft-logprobs", "cut-short")
DEPTHS = ("smoke", "standard")
COLOURS = ("green", "red")
WITHOUT_STEPS = {"sglang", "tensorrt_llm"}
"""Doubles that report no verify steps: verdicts find the fault there and cannot name its place within a step."""
COARSER = {
    Family.GREEDY: "wrong tokens, cause not identified",
    Family.PARAMETERS: "wrong tokens, cause not identified",
    Family.LOGPROBS: "reported log-probabilities",
}
"""Words that such a verdict may use instead."""
GOOD = {"pass", "speed not decided", "refused"}
BAD = {"fail", "not speculating", "invalid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of all suites."""

    engine: str
    depth: str
    colour: str
    root: Path

    @property
    def faults(self) -> tuple[str, ...]:
        """The planted faults, a variant each; a healthy one for none."""
        return PLANTED if self.colour == "red" else ("",)

    @property
    def folder(self) -> Path:
        """Holds the program, the config, the run and how long it took."""
        return self.root / f"{self.engine}-{self.depth}-{self.colour}"

    @property
    def document(self) -> Mapping[str, JSON] | None:
        """The judged run; None where there is none."""
        path = self.folder / "run" / "run.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def seconds(self) -> float:
        """Of all sessions of this run together."""
        path = self.folder / "seconds.txt"
        return sum(map(float, path.read_text().split())) if path.exists() else 0.0

    def config(self) -> dict[str, JSON]:
        """Return the double's pair with a variant per fault."""
        double = CONFIGS[self.engine](self.folder)
        args = double["variants"]["draft-k3"]["args"]
        planted = {fault: {"env": {"SPECDEC_FAULT": fault}} if fault else {} for fault in self.faults}
        variants = {name_of(fault): {"args": args, **planted[fault]} for fault in self.faults}
        return {"engine": double["engine"], "variants": variants}

    def capture(self) -> int:
        """Run the suites and return pytest's exit code."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config, run = self.folder / "double.yaml", self.folder / "run"
        config.write_text(yaml.dump(self.config()))
        where = ["--specdec-resume" if (run / "plan.json").exists() else "--specdec-run-dir", str(run)]
        is_captured = self.document is not None
        options = [f"--specdec-config={config}", f"--specdec-depth={self.depth}", *where, "-p", "no:cacheprovider"]
        began_s = time.monotonic()
        code = subprocess.run([sys.executable, "-m", "pytest", "suites/", *options], cwd=ROOT, check=False).returncode
        if not is_captured:
            with (self.folder / "seconds.txt").open("a") as file:
                file.write(f"{time.monotonic() - began_s:.0f}\n")
        return code


def name_of(fault: str) -> str:
    """Return the name of the variant with a fault, empty for the healthy one."""
    return f"draft-k3-{fault}" if fault else "draft-k3"


def main() -> int:
    """Run what was asked for; 1 when anything is not as expected."""
    options = _options()
    rows, wrong = [], []
    for engine in options.engines:
        for depth in options.depths:
            for colour in options.colours:
                run = Run(engine=engine, depth=depth, colour=colour, root=options.folder)
                code = None if options.read else run.capture()
                if run.document is None:
                    wrong += [] if options.read else [f"{run.folder.name}: no verdicts, pytest exited {code}"]
                    continue
                rows += table(run)
                wrong += surprises(run)
    for row in rows:
        print("  ".join(str(value) for value in row.values()))
    if options.write:
        command = "python -m benchmarks.doubles --write"
        results.write("doubles", rows, command=command, seconds=sum(float(str(row["seconds"])) for row in rows if row["seconds"]))
    print("\n".join(wrong) or "all as expected")
    return int(bool(wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=CONFIGS, default=list(CONFIGS), metavar="ENGINE")
    parser.add_argument("--depths", nargs="+", choices=DEPTHS, default=list(DEPTHS), metavar="DEPTH")
    parser.add_argument("--colours", nargs="+", choices=COLOURS, default=list(COLOURS), metavar="COLOUR")
    parser.add_argument("--folder", type=Path, default=ROOT / ".specdec" / "doubles", help="of the configs and the runs")
    parser.add_argument("--read", action="store_true", help="capture nothing: read the runs that are there")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/results/")
    return parser.parse_args()


def table(run: Run) -> list[dict[str, object]]:
    """Return a row per variant and red verdict, one for a variant without any."""
    rows: list[dict[str, object]] = []
    for fault in run.faults:
        judged = _of(run, fault)
        counts = _counts(judged)
        for i, one in enumerate([each for each in judged if _is_red(each)] or [None]):
            rows.append(
                {
                    "table": f"{run.engine}, {run.depth}",
                    "form": fault or "healthy",
                    "verdicts": counts if i == 0 else "",
                    "family": one["family"] if one else "",
                    "headline": _headline(one) if one else "",
                    "seconds": round(run.seconds) if i == 0 and fault == run.faults[0] else "",
                }
            )
    return rows


def surprises(run: Run) -> list[str]:
    """Return a line for each family with an unexpected verdict."""
    lines = []
    for fault in run.faults:
        judged = _of(run, fault)
        words: dict[str, str] = {}
        for one in judged:
            if _is_red(one) or not (fault or _is_good(one)):
                words[str(one["family"])] = f"{words.get(str(one['family']), '')} {_headline(one)}".strip()
        where = f"{run.engine}, {run.depth}, {fault or 'healthy'}"
        if not judged:
            lines.append(f"{where}: nothing was judged")
        elif not fault:
            lines += [f"{where}: {family} is red: {text}" for family, text in words.items()]
        else:
            families = {Family(str(one["family"])) for one in judged}
            expected = FAULTS[fault].expected[Place.REFERENCE]
            if run.engine in WITHOUT_STEPS:
                expected = replace(expected, red={family: f"{said}|{COARSER.get(family, said)}" for family, said in expected.red.items()})
            words.pop(Family.SPEED, None)  # of a server that answers wrongly, which says nothing
            lines += [f"{where}: {line}" for line in expected.surprises(words) if line.split()[0] in families]
    return lines


def _of(run: Run, fault: str) -> list[Mapping[str, JSON]]:
    assert run.document is not None
    judgements = run.document["judgements"]
    assert isinstance(judgements, list)
    return [one for one in judgements if one["pair"] == name_of(fault)]


def _counts(judged: Sequence[Mapping[str, JSON]]) -> str:
    outcomes = [str(one["verdict"]["outcome"]) if isinstance(one["verdict"], dict) else str(one["result"]) for one in judged]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))


def _is_good(judgement: Mapping[str, JSON]) -> bool:
    """Whether a healthy variant may come to it; of speed, a busy machine may leave nothing to say."""
    verdict = judgement["verdict"]
    return isinstance(verdict, dict) and verdict["outcome"] in (GOOD | {"inconclusive"} if judgement["family"] == Family.SPEED else GOOD)


def _is_red(judgement: Mapping[str, JSON]) -> bool:
    verdict = judgement["verdict"]
    return verdict["outcome"] in BAD if isinstance(verdict, dict) else judgement["result"] not in {"passed", "skipped"}


def _headline(judgement: Mapping[str, JSON]) -> str:
    verdict = judgement["verdict"]
    if not isinstance(verdict, dict):
        return f"no verdict: {judgement['result']}"
    names, headline = str(verdict["names"]), str(verdict["headline"])
    return headline if headline.startswith(names) else f"{names}: {headline}"


if __name__ == "__main__":
    sys.exit(main())
