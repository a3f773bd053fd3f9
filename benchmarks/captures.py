"""False alarms over many captures of healthy booted pairs: ``python -m benchmarks.captures``.

Boots the reference engine's draft-model pair once, or every pair of ``--config``, captures ``--captures`` sampling workloads with distinct
seeds from each, and judges each of them whole, the variant and the control, at the share of the budget that a run gives it. Exit 1 when
one alarms. With ``--config vllm-cpu --captures 16`` that is more than 100,000 scored tokens of a real engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import planner, runner
from pytest_specdec.config import load, variables
from pytest_specdec.files import captured as stored
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import sampling
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript

CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 32, max-model-len: 1024}}
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
"""


def main() -> int:
    """Capture, judge, print; return the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        pairs = _captured(Path(folder), options.config, options.captures * options.requests)
    bad = [_judge(whole, options.captures, options.requests) for whole in pairs]
    print(f"{sum(whole.speculative.tokens for whole in pairs):,} sampled tokens of {len(pairs)} variants, scored and judged")
    return int(any(bad))


def _judge(whole: Captured, captures: int, requests: int) -> bool:
    """Print what ``captures`` parts of ``requests`` requests each come to; return whether one alarms."""
    alarms: Counter[str] = Counter()
    for part in parts(whole, captures, requests):
        for one in (part, part.as_control()):
            verdict = sampling.judge(one)
            alarms[f"{one.arm}: {verdict.outcome.value}"] += 1
    tokens = whole.speculative.tokens
    print(f"{whole.arm}: {captures} captures of {requests} requests, {tokens:,} sampled tokens, alpha {whole.alpha:.3g} each")
    print("\n".join(f"  {name}: {count}" for name, count in sorted(alarms.items())))
    verdict = sampling.judge(whole)
    print(f"  judged as one: {verdict.outcome.value}, {verdict.headline}", flush=True)
    return any("fail" in name or "invalid" in name for name in alarms) or verdict.red


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", type=Path, help="a config, or the name of one in suites/configs; default: a pair of the reference engine"
    )
    parser.add_argument("--captures", type=int, default=100)
    parser.add_argument("--requests", type=int, default=26, help="per capture; default 26, what smoke depth sends")
    return parser.parse_args()


def _captured(folder: Path, named: Path | None, requests: int) -> list[Captured]:
    if named is None:
        named = folder / "pair.yaml"
        named.write_text(CONFIG)
    elif not named.exists():
        named = Path(__file__).parents[1] / "suites" / "configs" / f"{named}.yaml"
    config = variables.fill(load.load(named), os.environ)
    workload = ALL.sampled(temperature=1.0, max_tokens=64, requests=requests, concurrency=32)
    plan = planner.make(config, [planner.SelectedWorkload(workload=workload, family=Family.SAMPLING)], Depth.SMOKE)
    directory = RunDirectory.create(folder / "run")
    status = runner.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert not status.missing, status.missing
    calibrations = {pair.name: stored.read_calibrations(directory, plan, pair.name) for pair in plan.pairs}
    return [stored.read(directory, plan, each, (), calibrations[each.pair]) for each in plan.judgements]


def parts(whole: Captured, captures: int, requests: int) -> Iterator[Captured]:
    """Return what ``captures`` captures of so many requests each would have been, one after the other."""
    for index in range(captures):
        asked = whole.workload.requests[index * requests : (index + 1) * requests]
        ids = {request.id for request in asked}

        def kept(transcript: Transcript, ids: set[str] = ids) -> Transcript:
            return replace(transcript, answers=tuple(answer for answer in transcript.answers if answer.request_id in ids))

        assert whole.control is not None
        yield replace(
            whole,
            workload=replace(whole.workload, requests=asked),
            baseline=kept(whole.baseline),
            control=kept(whole.control),
            speculative=kept(whole.speculative),
            scores={arm: tuple(score for score in scores if score.request_id in ids) for arm, scores in whole.scores.items()},
            draft_scores={arm: tuple(score for score in scores if score.request_id in ids) for arm, scores in whole.draft_scores.items()},
        )


if __name__ == "__main__":
    sys.exit(main())
