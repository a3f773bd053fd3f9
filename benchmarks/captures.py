"""False alarms over many captures of one healthy booted pair: ``python -m benchmarks.captures``.

Boots the reference engine's draft-model pair once, captures ``--captures`` sampling workloads with distinct seeds, and judges each of
them whole, the variant and the control, at the share of the budget that a run gives it. Exit 1 when one alarms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import record, schedule
from pytest_specdec.config import load
from pytest_specdec.files import captured as stored
from pytest_specdec.files.directory import RunDirectory
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
        whole = _captured(Path(folder), options.captures * options.requests)
    alarms: Counter[str] = Counter()
    for part in _parts(whole, options.captures, options.requests):
        for one in (part, part.as_control()):
            verdict = sampling.judge(one)
            alarms[f"{one.arm}: {verdict.outcome.value}"] += 1
    tokens = whole.speculative.tokens
    print(f"{options.captures} captures of {options.requests} requests, {tokens:,} sampled tokens, alpha {whole.alpha:.3g} each")
    print("\n".join(f"  {name}: {count}" for name, count in sorted(alarms.items())))
    verdict = sampling.judge(whole)
    print(f"judged as one: {verdict.outcome.value}, {verdict.headline}")
    return int(any("fail" in name or "invalid" in name for name in alarms) or verdict.red)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=int, default=100)
    parser.add_argument("--requests", type=int, default=26, help="per capture; default 26, what smoke depth sends")
    return parser.parse_args()


def _captured(folder: Path, requests: int) -> Captured:
    (folder / "pair.yaml").write_text(CONFIG)
    config = load.load(folder / "pair.yaml")
    workload = ALL.sampled(temperature=1.0, max_tokens=64, requests=requests, concurrency=32)
    plan = schedule.make(config, [schedule.Wanted(workload=workload, family=Family.SAMPLING)], Depth.SMOKE)
    directory = RunDirectory.create(folder / "run")
    status = record.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert not status.missing, status.missing
    return stored.read(directory, plan, plan.cells[0], ())


def _parts(whole: Captured, captures: int, requests: int) -> Iterator[Captured]:
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
