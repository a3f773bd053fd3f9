"""Shrinking at full size: ``python -m benchmarks.shrinking [--write]``.

A request of a 1,000-token prompt and eight parameters, with 15 neighbours in flight, goes wrong on the reference engine with a planted
fault. What is left of it on live servers is what the fault needs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.repros import serve
from pytest_specdec.live_shrinking import LiveLimits, shrink_on
from pytest_specdec.model.baseline import Environment
from pytest_specdec.model.verdict import Example, Outcome, Symptom, Verdict
from pytest_specdec.model.workload import Family, Request, Route
from pytest_specdec.prompts.prompts import load_bundled
from pytest_specdec.report import repro

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON

LIMITS = LiveLimits(requests=20_000, seconds=300.0)
SERVER = "python -m specdec_reference target --host 127.0.0.1 --max-num-seqs 32 --max-model-len 2048"
SPECULATION = (
    """--speculative-config '{"method":"draft_model","model":"draft","num_speculative_tokens":3,"draft_sample_method":"probabilistic"}'"""
)
PARAMETERS = {"top_p": 1.0, "n": 1, "user": "someone", "logprobs": 1, "min_tokens": 1, "top_k": 50, "stop": ["\x07"], "ignore_eos": True}
WORDS = 640
"""Of the prompt: 1,000 tokens and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fault, and what it needs."""

    fault: str
    neighbour: Mapping[str, JSON]
    """Parameters of one of the neighbours."""
    needs: str


CASES = (
    Case(fault="kv-off-by-one", neighbour={}, needs="nothing but a rejected draft token"),
    Case(fault="penalties-for-all", neighbour={"presence_penalty": 1.5}, needs="a neighbour with a penalty"),
    Case(fault="drafts-see-ahead", neighbour={}, needs="nothing but a draft"),
)


def main() -> int:
    """Print a line for each case; return 1 if more than what is needed is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the results under benchmarks/results")
    arguments = parser.parse_args()
    began_s, rows = time.monotonic(), []
    with serve(f"{SERVER} --port 8001"):
        for case in CASES:
            with serve(f"{SERVER} --port 8002 {SPECULATION} --fault {case.fault}"):
                rows.append(row := run(case))
            sys.stdout.write("  ".join(f"{name}: {value}" for name, value in row.items() if name != "table") + "\n")
            sys.stdout.flush()
    if arguments.write:
        results.write("shrinking", rows, command="python -m benchmarks.shrinking --write", seconds=time.monotonic() - began_s)
    return int(any(int(str(row["seconds"])) > LIMITS.seconds + 10.0 for row in rows))


def run(case: Case) -> dict[str, object]:
    """Return what is left of a case, and what it took."""
    words = " ".join(prompt for prompt in _texts()).split()
    drawn = random.Random(case.fault).sample(range(len(words) - WORDS), 16)
    prompts = [" ".join(words[start : start + WORDS]) for start in drawn]
    own = _request("own", prompts[0], {**PARAMETERS})
    others = [
        _request(f"other-{i}", " ".join(prompt.split()[:40]), case.neighbour if i == 7 else {}) for i, prompt in enumerate(prompts[1:])
    ]
    made = _made((*others[:9], own, *others[9:]), own)
    began_s = time.monotonic()
    shrunk = shrink_on(made, "http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1", LIMITS)
    (group,) = shrunk.groups
    body = shrunk.request.body
    return {
        "table": "shrinking",
        "form": case.fault,
        "needs": case.needs,
        "words": f"{WORDS} -> {len(str(body['prompt']).split())}",
        "parameters": f"{len(PARAMETERS)} -> {len(body.keys() & PARAMETERS.keys())}",
        "neighbours": f"15 -> {len(group) - 1}",
        "tokens": f"48 -> {body['max_tokens']}",
        "seconds": round(time.monotonic() - began_s),
        "requests": shrunk.shrunk.partition("after ")[2].partition(" ")[0],
    }


def _texts() -> list[str]:
    return [prompt.text for prompt in load_bundled()]


def _request(name: str, prompt: str, fields: Mapping[str, JSON]) -> Request:
    return Request(id=name, route=Route.COMPLETIONS, body={"prompt": prompt, "temperature": 0.0, "max_tokens": 48, **fields})


def _made(group: tuple[Request, ...], own: Request) -> repro.Repro:
    example = Example(symptom=Symptom.TEXT, request_id=own.id)
    verdict = Verdict(outcome=Outcome.FAIL, family=Family.CONCURRENCY, pair="draft-k3", workload="w", headline="wrong", example=example)
    environment = Environment(engine="reference", engine_version="", model="target", processor="", cores=2, memory_gib=8.0)
    arm = repro.ArmRecord(command="", answer=None)
    return repro.Repro(
        verdict=verdict,
        example=example,
        request=own,
        groups=(group,),
        concurrency=len(group),
        streamed=False,
        deadline_s=60.0,
        body={},
        baseline=arm,
        speculative=arm,
        environment=environment,
        replay="",
        release="",
    )


if __name__ == "__main__":
    sys.exit(main())
