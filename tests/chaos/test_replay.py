"""Runs of every kind, judged again: a replay comes to the verdicts of its capture, in run.json and in the printed table."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
engine: {kind: reference, model: target, args: {max-num-seqs: 16, max-model-len: 512}}
variants:
  ngram-k3:
    args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4, prompt_lookup_min: 2}FAULT}
allow_inconclusive: [sampling]
"""
TESTS = """
import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import CODE, REPEAT

@pytest.mark.specdec(REPEAT.greedy(max_tokens=48, name="words"), family="greedy")
def test_words(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))


DRAWN = CODE.sampled(requests=16, prompts=8, max_tokens=16, name="drawn", take={Depth.SMOKE: 4, Depth.STANDARD: 6})


@pytest.mark.specdec(DRAWN, family="sampling")
def test_drawn(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))


@pytest.mark.specdec(CODE.sampled(requests=4, max_tokens=8, top_p=0.9, name="deep", take={Depth.SMOKE: 0}), family="sampling")
def test_deep(specdec_captured, specdec_check):
    specdec_check(judge.sampling.judge(specdec_captured))
"""
AGAIN = "the same judgements, the same table, the same exit"


class Suite:
    """A folder with a config and three tests, in which pytest is run as a person would."""

    def __init__(self, folder, fault):
        self.folder = folder
        (folder / "pair.yaml").write_text(CONFIG.replace("FAULT", f", fault: {fault}" if fault else ""))
        (folder / "test_pair.py").write_text(TESTS)
        self.env = {name: value for name, value in os.environ.items() if name not in {"CI", "GITHUB_STEP_SUMMARY", "PYTEST_ADDOPTS"}}
        self.env |= {"PYTHONPATH": str(ROOT)}

    def start(self, *args):
        command = [sys.executable, "-m", "pytest", *args]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *args):
        process = self.start(*args)
        text, _ = process.communicate(timeout=900)
        return process.returncode, text

    def capture(self, *args):
        return self.run("test_pair.py", "-p", "no:cacheprovider", "--specdec-config=pair", "--specdec-run-dir=run", *args)

    def judged(self, folder):
        run = json.loads((self.folder / folder / "run.json").read_text())
        return {name: run[name] for name in ("red", "judged", "counts", "judgements")}

    def replayed(self, captured):
        """Return in words how a replay of the run differs from what was said at its capture."""
        replay = self.run("test_pair.py", "-p", "no:cacheprovider", "--specdec-replay=run", "--specdec-run-dir=again")
        parts = (
            ("judgements", self.judged("again") == self.judged("run")),
            ("table", table(replay[1]) == table(captured[1])),
            ("exit", replay[0] == captured[0]),
        )
        return ", ".join(f"{'the same' if same else 'ANOTHER'} {what}" for what, same in parts)

    @property
    def outcomes(self):
        return {one["workload"]: one["verdict"]["outcome"] for one in self.judged("run")["judgements"]}


def table(text):
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("CORRECTNESS: "))
    last = next(index for index, line in enumerate(lines) if index > first and " judgement" in line)
    return lines[first : last + 1]


@pytest.mark.chaos("replay of a red smoke run, with what smoke leaves out", expected=f"words fail; {AGAIN}", quick=True)
def test_a_red_smoke_run(tmp_path, seen):
    suite = Suite(tmp_path, "accept-all")
    captured = suite.capture("--specdec-depth=smoke")
    seen(f"words {suite.outcomes['words']}; {suite.replayed(captured)}")


@pytest.mark.chaos("replay of a green smoke run", expected=f"words pass; {AGAIN}")
def test_a_green_smoke_run(tmp_path, seen):
    suite = Suite(tmp_path, "")
    captured = suite.capture("--specdec-depth=smoke")
    seen(f"words {suite.outcomes['words']}; {suite.replayed(captured)}")


@pytest.mark.parametrize("fault, outcome", [("", "pass"), ("accept-all", "fail")])
@pytest.mark.chaos("replay of a run at standard depth, green and red", expected=f"as planted; {AGAIN}")
def test_a_run_at_standard_depth(tmp_path, seen, fault, outcome):
    suite = Suite(tmp_path, fault)
    captured = suite.capture()
    seen(f"{'as planted' if suite.outcomes['words'] == outcome else suite.outcomes}; {suite.replayed(captured)}")


@pytest.mark.chaos("Ctrl-C in mid-capture, then the command that the session ended with, then a replay", expected=f"words pass; {AGAIN}")
def test_a_resumed_run(tmp_path, seen):
    suite = Suite(tmp_path, "")
    process = suite.start(
        "test_pair.py", "-p", "no:cacheprovider", "--specdec-config=pair", "--specdec-depth=smoke", "--specdec-run-dir=run"
    )
    while process.poll() is None and not list(tmp_path.glob("run/transcripts/ngram-k3/*.jsonl")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=300)
    (command,) = [line.rpartition("): ")[2] for line in text.splitlines() if line.startswith("Next: ")]
    resumed = suite.run(*shlex.split(command)[1:])
    seen(f"words {suite.outcomes['words']}; {suite.replayed(resumed)}")
