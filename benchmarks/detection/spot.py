"""A spot check over HTTP: the same faults planted in a real server of the reference engine, captured and judged as by the suites."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner, runner
from pytest_specdec.config import load
from pytest_specdec.files import captured as stored
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import sampling
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NEAREST", "spot"]

NEAREST = {"accept-all": "accept-all", "resample-from-p": "resample-from-p", "kv-off-by-one": "flattened-after-rejection"}
"""By fault of the reference engine: the nearest simulated one."""
REQUESTS = 72
CONFIG = """
engine: {{kind: reference, model: target, args: {{max-num-seqs: 32, max-model-len: 1024}}}}
variants:
  draft-k3:
    args:
      speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}}
      fault: {fault}
"""


def spot() -> Iterator[dict[str, object]]:
    """Yield, fault by fault, after how many tokens the judge of a real capture alarmed and what it named."""
    for fault, simulated in NEAREST.items():
        with tempfile.TemporaryDirectory() as folder:
            verdict = _judged(Path(folder), fault)
        yield {
            "fault": fault,
            "simulated": simulated,
            "outcome": verdict.outcome.value,
            "named": verdict.names,
            "tokens": verdict.figures.get("tokens"),
            "alarm": verdict.figures.get("tokens_to_alarm"),
        }


def _judged(folder: Path, fault: str) -> sampling.Verdict:
    (folder / "pair.yaml").write_text(CONFIG.format(fault=fault))
    config = load.load(folder / "pair.yaml")
    workload = ALL.sampled(temperature=1.0, max_tokens=64, requests=REQUESTS, concurrency=32)
    plan = planner.make(config, [planner.SelectedWorkload(workload=workload, family=Family.SAMPLING)], Depth.SMOKE)
    directory = RunDirectory.create(folder / "run")
    status = runner.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert not status.missing, status.missing
    return sampling.judge(stored.read(directory, plan, plan.judgements[0], ()))
