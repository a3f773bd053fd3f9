"""The same faults in a real vLLM and in the reference engine, side by side: ``python -m benchmarks.side_by_side``.

Plants in the reference engine the faults that ``benchmarks.vllm_faults`` plants in vLLM, judges the same sampling workloads, and prints
tokens to the alarm and names beside those of the vLLM run (``--vllm``, a run.json). Both serve the same target and draft model. vLLM's own
prompts, seeds and random numbers differ, so single counts scatter by a factor of two. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Expected, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".specdec" / "side-by-side"
VLLM = ROOT / ".specdec" / "vllm-faults" / "run" / "run.json"
BOTH = [
    fault.id
    for fault in FAULTS.values()
    if all(Family.SAMPLING in fault.expected.get(at, Expected()).red for at in (Place.VLLM, Place.REFERENCE))
]
NEAREST = dict(zip(BOTH, BOTH, strict=True)) | {"kv-stale": "kv-off-by-one"}
"""By fault of vLLM that sampling must see: the nearest one of the reference engine."""
DRAFTERS = {"draft-k3": "greedy", "draft-prob-k3": "probabilistic"}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, default=VLLM, help="of benchmarks.vllm_faults")
    parser.add_argument("--results", type=Path, help="where to write the table as Markdown")
    asked = parser.parse_args()
    if not asked.vllm.exists():
        print(f"no {asked.vllm}: run benchmarks.vllm_faults first", file=sys.stderr)
        return 2
    ours, theirs = json.loads(_captured().read_text()), json.loads(asked.vllm.read_text())
    lines = table(theirs, ours)
    print("\n".join(lines))
    if asked.results:
        asked.results.write_text("\n".join(["# The same faults in vLLM and in the reference engine", "", *lines]) + "\n")
    return 0


def _captured() -> Path:
    """Return the run.json of the reference engine's faults, captured now unless it is there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    written, run = FOLDER / "side-by-side.yaml", FOLDER / "run"
    written.write_text(yaml.dump(config()))
    where = ["--specdec-resume" if (run / "plan.json").exists() else "--specdec-run-dir", str(run)]
    options = ["--specdec-config", str(written), *where, "-q", "-p", "no:cacheprovider"]
    subprocess.run([sys.executable, "-m", "pytest", str(ROOT / "suites" / "sampling"), *options], cwd=ROOT, check=False)
    return run / "run.json"


def config() -> dict[str, JSON]:
    """Return a config with a variant of the reference engine for each fault and way of drafting."""
    variants: dict[str, JSON] = {}
    for fault, name in NEAREST.items():
        for drafter, drawn in DRAFTERS.items():
            setting = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3, "draft_sample_method": drawn}
            variants[f"{drafter}-{fault}"] = {"args": {"speculative-config": setting, "fault": name}}
    return {"engine": {"kind": "reference", "model": "target", "args": {"max-num-seqs": 32, "max-model-len": 1024}}, "variants": variants}


def table(vllm: Mapping[str, JSON], reference: Mapping[str, JSON]) -> list[str]:
    """Return the table, a row for each fault, drafter and workload."""
    captured = [f"captured {run['made_at']} on {_of(run, 'processor')}, {_of(run, 'cores')} cores" for run in (vllm, reference)]
    lines = [
        f"vLLM {_of(vllm, 'engine_version')}, {captured[0]}; the reference engine, {captured[1]}. Tokens until the evidence",
        "sufficed, of all sampled; - where it did not. `kv-stale` differs: in vLLM the recovered token never writes its own",
        "entry, in the reference engine the rejected one stays and positions shift.",
        "",
        "| fault | drafts | workload | vLLM | reference engine | named on vLLM | named on the reference engine |",
        "|---|---|---|---|---|---|---|",
    ]
    verdicts = [_judged(run) for run in (vllm, reference)]
    for fault in NEAREST:
        for drafter, drawn in DRAFTERS.items():
            name = f"{drafter}-{fault}"
            for workload in sorted({workload for pair, workload in verdicts[1] if pair == name}):
                both = [of_run.get((name, workload)) for of_run in verdicts]
                cells = [*map(_tokens, both), *map(_named, both)]
                lines.append(f"| {fault} | {drawn} | {workload} | {' | '.join(cells)} |")
    return lines


def _of(run: Mapping[str, JSON], key: str) -> JSON:
    environment = run["environment"]
    assert isinstance(environment, dict)
    return environment[key]


def _judged(run: Mapping[str, JSON]) -> dict[tuple[str, str], Mapping[str, JSON]]:
    judgements = run["judgements"]
    assert isinstance(judgements, list)
    return {
        (str(one["pair"]), str(one["workload"])): one["verdict"]
        for one in judgements
        if one["family"] == "sampling" and isinstance(one["verdict"], dict)
    }


def _tokens(verdict: Mapping[str, JSON] | None) -> str:
    if verdict is None:
        return "not judged"
    figures = verdict["figures"]
    assert isinstance(figures, dict)
    alarm = figures.get("tokens_to_alarm")
    return f"{'-' if alarm is None else f'{alarm:,.0f}'} of {figures['tokens']:,.0f}"


def _named(verdict: Mapping[str, JSON] | None) -> str:
    return "" if verdict is None else str(verdict["names"] or "")


if __name__ == "__main__":
    sys.exit(main())
