"""What prompts chosen for information buy on the reference pairs: ``python -m benchmarks.selector [--laps N] [--write]``.

A pool of 96 prompts is surveyed as a run at standard depth does it, then all of it is sent ``--laps`` times under fixed seeds to the
healthy baseline and to variants that resample from p instead of from the residual. From the one capture: informative tokens per token of
the pool, of its first half and of the chosen half, in answers that the survey did not see; and tokens to an alarm over runs of 56 requests,
as many as standard depth sends, of either half.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.captures import parts
from pytest_specdec.capture import candidates, information, record, schedule
from pytest_specdec.config import load
from pytest_specdec.files import captured as stored
from pytest_specdec.files import scores
from pytest_specdec.files.directory import RunDirectory
from pytest_specdec.judge import sampling
from pytest_specdec.model.selection import first
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import ALL, selector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.plan import Cell, Plan
    from pytest_specdec.model.selection import Selection
    from pytest_specdec.model.workload import Workload

CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
      fault: resample-from-p
  ngram-k3:
    args:
      speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4, prompt_lookup_min: 2}
      fault: resample-from-p
"""
PROMPTS, REQUESTS = 96, 56
"""Of the pool, and of one run at standard depth."""
VOCABULARY = 4096
ARMS = ("baseline", "control")


def main() -> int:
    """Capture, choose, judge, print."""
    options = _options()
    began_s = time.monotonic()
    pool = ALL.sampled(prompts=PROMPTS, requests=PROMPTS * options.laps, concurrency=32)
    with tempfile.TemporaryDirectory() as folder:
        rows = _measured(Path(folder), pool)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.write:
        command = f"python -m benchmarks.selector --laps {options.laps} --write"
        results.write("selector", rows, command=command, seconds=time.monotonic() - began_s)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laps", type=int, default=14, help="times that the pool is sent; default 14, for 12 runs of either half")
    parser.add_argument("--write", action="store_true", help="keep the rows in benchmarks/results")
    return parser.parse_args()


def _measured(folder: Path, pool: Workload) -> list[Mapping[str, object]]:
    survey = candidates.survey(pool, reported=())
    directory, plan = _captured(folder, (pool, survey))
    law = scores.read(directory, "baseline", "baseline", survey.name)
    chosen = selector.selected(pool, information.found(survey, law, VOCABULARY))
    halves = {"first half": first(pool, "to compare with"), "chosen half": chosen}
    print(chosen, flush=True)
    rows = _informative(directory, pool, halves)
    for cell in plan.cells:
        if cell.workload == pool.name:
            rows += _alarms(stored.read(directory, plan, cell, ()), cell, halves)
    return rows


def _captured(folder: Path, workloads: Sequence[Workload]) -> tuple[RunDirectory, Plan]:
    path = folder / "faulty.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    config = load.load(path)
    plan = schedule.make(config, [schedule.Wanted(workload=one, family=Family.SAMPLING) for one in workloads], Depth.SMOKE)
    directory = RunDirectory.create(folder / "run")
    status = record.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert not status.missing, status.missing
    return directory, plan


def _informative(directory: RunDirectory, pool: Workload, halves: Mapping[str, Selection]) -> list[Mapping[str, object]]:
    """Return a row for the pool and for each half: the information in the healthy arms' answers."""
    answered = {
        arm: {one.id: one for one in information.found(pool, scores.read(directory, "baseline", arm, pool.name), VOCABULARY)}
        for arm in ARMS
    }
    lists = {"pool": pool, **{name: half.applied(pool) for name, half in halves.items()}}
    rows: list[Mapping[str, object]] = []
    for name, sent in lists.items():
        found = [answered[arm][request.id] for arm in ARMS for request in sent.requests]
        tokens, informative = sum(one.tokens for one in found), sum(one.information for one in found)
        rows.append(
            {
                "table": "informative tokens in healthy answers",
                "prompts": f"{name} ({len(sent.prompts)})",
                "tokens": tokens,
                "per token": f"{informative / tokens:.3f}",
                "per request": f"{informative / len(found):.1f}",
            }
        )
    return rows


def _alarms(whole: Captured, cell: Cell, halves: Mapping[str, Selection]) -> list[Mapping[str, object]]:
    """Return a row for each half: how soon runs of it alarm on the fault."""
    rows: list[Mapping[str, object]] = []
    for name, half in halves.items():
        sent = half.applied(whole.workload)
        runs = len(sent.requests) // REQUESTS
        figures = [sampling.judge(run).figures for run in parts(replace(whole, workload=sent), runs, REQUESTS)]
        to_alarm = [found["tokens_to_alarm"] for found in figures if "tokens_to_alarm" in found]
        rows.append(
            {
                "table": "resample-from-p, runs of 56 requests",
                "variant": cell.pair,
                "prompts": name,
                "alpha": f"{cell.alpha:.2g}",
                "runs": runs,
                "alarmed": len(to_alarm),
                "median tokens to alarm": f"{median(to_alarm):,.0f}" if len(to_alarm) > runs / 2 else "-",
                "all": " ".join(f"{tokens:.0f}" for tokens in sorted(to_alarm)) or "-",
                "tokens a run": f"{mean(found['tokens'] for found in figures):,.0f}",
                "log10 evidence per 1,000 tokens": _growth(figures),
            }
        )
    return rows


def _growth(figures: Sequence[Mapping[str, float]]) -> str:
    each = [1000 * found["log10_wealth_at_end"] / found["tokens"] for found in figures]
    spread = (sum((one - mean(each)) ** 2 for one in each) / max(len(each) - 1, 1)) ** 0.5 / len(each) ** 0.5
    return f"{mean(each):.2f} ± {spread:.2f}"


if __name__ == "__main__":
    sys.exit(main())
