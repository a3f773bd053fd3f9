"""A replay comes to the verdicts of the capture: the same judgements in run.json, the same table on the terminal."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.judge import greedy, sampling

LOADED = (greedy, sampling)
"""Once for all sessions in this process: numpy cannot be imported a second time."""

TESTS = """
import pytest
from sample import *

DEEP = workload("deep", body={"temperature": 1.0}, take={Depth.SMOKE: 0})
DRAWN = workload("drawn", requests=8, body={"temperature": 1.0}, take={Depth.SMOKE: 2, Depth.STANDARD: 3})


@pytest.mark.specdec(CHAT, family="greedy")
def test_chat(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured, CHAT_OUTCOME))


@pytest.mark.specdec(DEEP, family="sampling")
def test_deep(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))


@pytest.mark.specdec(DRAWN, family="sampling")
def test_drawn(specdec_captured, specdec_check):
    answers = len(specdec_captured.speculative.answers)
    specdec_check(say(specdec_captured, Outcome.PASS if answers >= 4 else Outcome.INCONCLUSIVE, cell=f"{answers} answers"))


@pytest.mark.specdec(CODE, family="liveness")
def test_code(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""


def written(outcome):
    return TESTS.replace("CHAT_OUTCOME", f"Outcome.{outcome}")


def table(result):
    """Return the printed table: from the header to the line with the counts."""
    lines = result.stdout.str().splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("CORRECTNESS: "))
    last = next(index for index, line in enumerate(lines) if index > first and " judgement" in line)
    return lines[first : last + 1]


def judged(folder):
    run = json.loads((folder / "run.json").read_text())
    return {name: run[name] for name in ("red", "judged", "counts", "judgements", "notes")}


def assert_replayed(project, captured, *args):
    """Replay the run without a selection or a config and hold everything against what was said at its capture."""
    (run,) = project.runs
    replay = project.run(f"--specdec-replay={run}", "--specdec-run-dir=again", *args, config=None)
    assert replay.ret == captured.ret
    assert table(replay) == table(captured)
    assert judged(project.path / "again") == judged(run)


@pytest.mark.examples(2)
@pytest.mark.parametrize("outcome", ["PASS", "FAIL", "INCONCLUSIVE", "INVALID", "REFUSED"])
@pytest.mark.parametrize("depth", ["smoke", "standard"])
def test_a_replay_has_the_verdicts_of_its_capture(project, depth, outcome):
    captured = project.tests(written(outcome)).run(f"--specdec-depth={depth}")
    assert_replayed(project, captured)


@pytest.mark.nightly
def test_under_xdist_too(project):
    captured = project.tests(written("FAIL")).run("--specdec-depth=smoke", "-n2", subprocess=True)
    assert_replayed(project, captured, "-n0")


def test_a_resumed_run_has_one_verdict(project, monkeypatch, begun_here):
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    captured = project.tests(written("FAIL")).run("--specdec-depth=smoke")
    assert_replayed(project, captured)
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    resumed = project.run(f"--specdec-resume={run}")
    (project.path / "again").rename(project.path / "first")
    assert_replayed(project, resumed)


@pytest.mark.parametrize("depth", ["smoke", "standard"])
def test_a_continued_run_has_one_verdict(project, begun_here, depth):
    project.tests(written("PASS")).run(f"--specdec-depth={depth}")
    (run,) = project.runs
    begun_here(run)
    continued = project.run(f"--specdec-continue={run}")
    continued.assert_outcomes(passed=6 if depth == "smoke" else 8, skipped=2 if depth == "smoke" else 0)
    assert_replayed(project, continued)


def test_what_was_not_selected_at_the_capture_is_left_out_and_named(project):
    captured = project.tests(written("PASS")).run("-k", "chat or code")
    (run,) = project.runs
    replay = project.run(f"--specdec-replay={run}", config=None)
    replay.assert_outcomes(passed=4, skipped=4)
    assert replay.ret == captured.ret == 0
    assert table(replay) == table(captured)
    replay.stdout.fnmatch_lines(["note: *: sampling of deep, sampling of drawn"])


def test_a_replay_that_finds_nothing_of_its_own_is_no_success(project):
    project.tests(written("PASS")).run("-k", "chat")
    (run,) = project.runs
    replay = project.run(f"--specdec-replay={run}", "-k", "code", config=None)
    assert replay.ret == 1
    replay.stdout.fnmatch_lines(["*nothing could be judged*"])


def test_what_a_depth_leaves_out_is_counted_beside_the_judgements_and_named(project):
    result = project.tests(written("PASS")).run("--specdec-depth=smoke")
    result.stdout.fnmatch_lines(
        [
            "  2 pairs (draft-k3, ngram-k3)*= 6 judgements",
            "tiny (*), smoke: 6 judgements: *",
            "note: *smoke*: sampling of deep",
        ]
    )


def test_a_depth_on_the_command_line_of_a_replay_is_said_to_hold_nothing(project):
    project.tests(written("PASS")).run("--specdec-depth=smoke")
    (run,) = project.runs
    replay = project.run(f"--specdec-replay={run}", "--specdec-depth=deep", config=None)
    replay.stdout.fnmatch_lines(["note: *--specdec-depth=deep*smoke*"])
