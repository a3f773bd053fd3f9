"""What a nightly of 500 pairs costs on H100s: ``python -m benchmarks.fleet_cost [--write]``.

It lays out the plans of a Qwen3-8B in bfloat16 with one, two and four variants over one baseline, as on a machine with one H100, and adds
up their steps: boots, answers, scores, and how much of it the baseline's answers of an earlier run would save. Nothing is run. Rates are
those of a plan before any run (weights read at the device's bandwidth).
``--write`` writes benchmarks/results/fleet_cost.json and .md, which docs/scale.md quotes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import results
from benchmarks.collection import collect_suites
from pytest_specdec.capture import environment, estimate
from pytest_specdec.capture.remaining import ReusableResults
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.status import StepKind
from pytest_specdec.plugin import collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.plan import Plan

_PAIRS = 500
_DEVICE = "NVIDIA H100 80GB HBM3"
_VARIANTS = ("eagle3-k3", "ngram-k4", "eagle3-k5", "ngram-k2")
_CONFIG = """
engine:
  kind: vllm
  model: Qwen/Qwen3-8B
  args: {max-model-len: 4096, max-num-seqs: 32, max-logprobs: 20, seed: 0, generation-config: vllm, async-scheduling: false}
variants:
"""
_DRAFTS = {
    "eagle3": "{method: eagle3, model: RedHatAI/Qwen3-8B-speculator.eagle3, num_speculative_tokens: %s}",
    "ngram": "{method: ngram, num_speculative_tokens: %s, prompt_lookup_max: 4}",
}
_HOUR_S = 3600.0


def main() -> int:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {results.FOLDER}/fleet_cost.json and .md")
    options, began = parser.parse_args(), time.monotonic()
    rows = [_row(depth, cells) for depth in ("smoke", "standard") for cells in (1, 2, 4)]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.write:
        results.write("fleet_cost", rows, command="python -m benchmarks.fleet_cost --write", seconds=time.monotonic() - began)
    return 0


def _row(depth: str, cells: int) -> dict[str, Any]:
    """Return the seconds of a group's steps, and the GPU hours of all groups of the nightly."""
    plan = _plan(depth, _VARIANTS[:cells])
    steps: Counter[StepKind] = Counter()
    for step in estimate.steps(plan.boots, plan.workloads, plan.rates, route=plan.route):
        steps[step.kind] += step.seconds
    capture_s = plan.estimate_s - estimate.judging_s(len(plan.judgements))
    return {
        "table": "cost",
        "form": f"{depth}, {cells} cells to a baseline",
        "boots": len(plan.boots),
        "booting s": round(steps[StepKind.BOOTING]),
        "answering s": round(steps[StepKind.ANSWERING]),
        "scoring s": round(steps[StepKind.SCORING]),
        "group s": round(capture_s),
        "GPU hours of 500 pairs": round(_PAIRS / cells * capture_s / _HOUR_S),
        "of them booting": f"{steps[StepKind.BOOTING] / capture_s:.0%}",
        "a cache of baseline answers would save": f"{1.0 - _seconds_with_cache(plan) / sum(steps.values()):.0%}",
    }


def _seconds_with_cache(plan: Plan) -> float:
    """Return the seconds that are left if the answers of the baseline's own boots, and their scores, are there from an earlier run.

    Boots that have nothing else to do are left out. Timed answers and probes are never taken from another run.
    """
    arms = (BASELINE, CONTROL)
    cached = ReusableResults(
        answers=frozenset((arm, workload.name) for arm in arms for workload in plan.workloads if not workload.timed),
        scores=frozenset((boot.under, task.arm, task.workload) for boot in plan.boots for task in boot.scores if task.arm in arms),
        probes=frozenset(),
    )
    return sum(step.seconds for step in estimate.steps(cached.remaining(plan), plan.workloads, plan.rates, route=plan.route))


def _plan(depth: str, variants: Sequence[str]) -> Plan:
    """Return the plan of the packaged suites without speed, which a matrix of settings does not ask for, as on a machine with an H100."""
    plans: list[Plan] = []
    make = collection._make_plan  # noqa: SLF001 - a plan of the packaged suites has no other way out of a collection

    def make_and_keep(*arguments: Any) -> Plan:  # noqa: ANN401 - passed on
        plans.append(make(*arguments))
        return plans[-1]

    with tempfile.TemporaryDirectory(prefix="specdec-cost-") as folder, pytest.MonkeyPatch.context() as patched:
        path = Path(folder) / "fleet.yaml"
        lines = (f"  {name}: {{args: {{speculative-config: {_DRAFTS[name[:-3]] % name[-1]}}}}}\n" for name in variants)
        path.write_text(_CONFIG + "".join(lines), encoding="utf-8")
        patched.setattr(environment, "devices", lambda: (_DEVICE,))
        patched.setattr(environment, "has_accelerator", lambda: True)
        patched.setattr(collection, "_make_plan", make_and_keep)
        collect_suites(path, "--ignore=suites/speed", f"--specdec-depth={depth}")
    return plans[0]


if __name__ == "__main__":
    sys.exit(main())
