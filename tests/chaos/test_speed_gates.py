"""Gates that could not fail, speeds that nobody gated, and baseline files that follow luck."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pytest_specdec.capture import environment
from pytest_specdec.config import load
from pytest_specdec.gates import baseline_file, update
from pytest_specdec.gates.update import Results
from pytest_specdec.judge import speed
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.promise import SpeedFigure, Speedup
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family
from tests.judge.captured_values import a_workload, captured, requests, timed
from tests.judge.test_acceptance import drawn
from tests.judge.test_acceptance import seen as accepted

REPOSITORY = Path(__file__).parent.parent.parent
REFERENCE = REPOSITORY / "suites/configs/reference.yaml"
WOBBLE = (1.00, 1.03, 0.98, 1.01)


def config(folder, **changes):
    """Write reference.yaml with other gates and policies and only one variant; lists and mappings as given."""
    data = yaml.safe_load(REFERENCE.read_text())
    data["variants"] = {"draft-k3": data["variants"]["draft-k3"]}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}))
    return path


def run(folder, path, *args, suite="speed"):
    command = [sys.executable, "-m", "pytest", str(REPOSITORY / "suites" / suite), "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    asked = [f"--specdec-config={path}", f"--specdec-run-dir={folder / 'run'}", f"--specdec-baselines={folder / 'baselines'}", *args]
    found = subprocess.run([*command, *asked], cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)
    return found.returncode, found.stdout + found.stderr


def measured(*, times, at_least):
    """What a first run of a pair that is ``times`` as fast as its baseline holds; the control is 2 % faster than the baseline."""
    arms = [[timed(per_s=per_s * wobble, pass_index=i) for i, wobble in enumerate(WOBBLE)] for per_s in (100.0 * times, 100.0, 102.0)]
    gate = Gate(figure="speedup", at_least=at_least, source="mine.yaml:3 gates.speedup")
    given = captured("speed", *arms, workload=a_workload(requests(1), passes=4, stream=True, timed=True, concurrency=1), gates=(gate,))
    return speed.judge(replace(given, alpha=1.25e-3, control=replace(given.control, boot=2)))


@pytest.mark.chaos(
    "gates.speedup.at_least: 100, measured 1.67x on a first run", expected="fail: gate missed, speedup at least 100", quick=True
)
def test_a_gate_that_is_far_away_fails_on_a_first_run(seen):
    verdict = measured(times=1.67, at_least=100)
    seen(f"{verdict.outcome}: {verdict.headline.partition('; ')[2].partition(' (')[0].replace(':', ',')}")


@pytest.mark.chaos("gates.speedup.at_least: 1.0, measured 1.67x on a first run", expected="pass: gate met, speedup at least 1", quick=True)
def test_a_clear_speedup_is_proven_on_a_first_run(seen):
    verdict = measured(times=1.67, at_least=1.0)
    seen(f"{verdict.outcome}: {verdict.headline.partition('; ')[2].partition(' (')[0].replace(':', ',')}")


@pytest.mark.chaos(
    "gates.acceptance_length.at_least: 9 with k = 3",
    expected="exit 4, nothing captured: at its line, found 9 tokens a step, expected at most 4",
    quick=True,
)
def test_an_acceptance_length_out_of_reach_is_a_config_error(tmp_path, seen):
    path = config(tmp_path, gates={"acceptance_length": {"at_least": 9}})
    code, text = run(tmp_path, path, "--specdec-depth=smoke")
    (line,) = [line for line in text.splitlines() if "gates.acceptance_length.at_least:" in line]
    where, _, what = line.strip().removeprefix(str(tmp_path) + "/").partition("  gates.acceptance_length.at_least: ")
    number = int(where.partition(":")[2])
    captures = "nothing captured" if not (tmp_path / "run").exists() else "a run directory"
    at = "at its line" if path.read_text().splitlines()[number - 1].split() == ["at_least:", "9"] else f"at line {number}"
    seen(f"exit {code}, {captures}: {at}, {what.partition(':')[0]}")


@pytest.mark.chaos(
    "gates.acceptance_length.at_least: 3.9, about 2.6 over 20 prompts",
    expected="fail: gate missed, acceptance length at least 3.9",
    quick=True,
)
def test_an_acceptance_length_that_is_not_reached_fails(seen):
    verdict = speed.judge(accepted(drawn(), 3.9))
    seen(f"{verdict.outcome}: {verdict.headline.partition('; ')[2].partition(' (')[0].replace(':', ',')}")


@pytest.mark.chaos(
    "--specdec-update-baselines six times, the first of them lucky",
    expected="the floor follows the typical run, and says why; 3 to 15 % under it",
    quick=True,
)
def test_six_updates_follow_the_typical_run(tmp_path, seen):
    here = replace(environment.environment(load.load(REFERENCE), ""), engine_version="0")
    moves = []
    for ratio in (1.67, 1.27, 1.25, 1.29, 1.26, 1.28):
        about = {"family": Family.SPEED, "pair": "draft-k3", "workload": "vacation-timed", "headline": ""}
        promise = Speedup(response=SpeedFigure(baseline=1.0, speculative=ratio, speedup=ratio), boot_log_ratio=0.01)
        verdict = Verdict(outcome=Outcome.PASS, promise=promise, **about)
        found = update.update(tmp_path, "mine", here, Results(verdicts=(verdict,)))
        moves.append(found.moves[0])
    (gate,) = baseline_file.read(baseline_file.path(tmp_path, "mine", here))
    near = "3 to 15 % under it" if 0.85 < gate.at_least / 1.27 < 0.97 else f"{gate.at_least} of a typical 1.27"
    why = [part for move in moves for part in move.split("; ") if part.startswith(("up from", "down from"))]
    follows = "the floor follows the typical run, and says why" if why and gate.reason in moves[-1] else moves[-1]
    seen(f"{follows}; {near}")


@pytest.mark.chaos("a baseline file with at_least: .nan", expected="exit 4, nothing captured: invalid gate", quick=True)
def test_a_bad_baseline_file_is_found_before_anything_boots(tmp_path, seen):
    folder = tmp_path / "baselines/mine"
    folder.mkdir(parents=True)
    (folder / "some-machine.yaml").write_text(
        f"schema: {baseline_file.SCHEMA}\nmachine: some-machine\ngates:\n- {{figure: speedup, at_least: .nan}}\n"
    )
    code, text = run(tmp_path, config(tmp_path), "--specdec-depth=smoke")
    assert f"{folder / 'some-machine.yaml'}:4  at_least" in text
    captures = "nothing captured" if not (tmp_path / "run").exists() else "a run directory"
    seen(f"exit {code}, {captures}: {'invalid gate' if 'invalid gate' in text else text[-300:]}")


@pytest.mark.chaos("speedup 100x, acceptance 3.9, on the reference pair's first run", expected="exit 1: draft-k3 fail, fail; 1 run")
def test_gates_that_are_out_of_reach_are_red_in_a_real_first_run(tmp_path, seen):
    code, text = run(tmp_path, config(tmp_path, gates={"speedup": {"at_least": 100}, "acceptance_length": {"at_least": 3.9}}))
    judged = json.loads((tmp_path / "run/run.json").read_text())["judgements"]
    assert "gate missed: speedup at least 100 (mine.yaml:" in text
    assert "gate missed: acceptance length at least 3.9 (mine.yaml:" in text
    outcomes = {one["workload"]: one["verdict"]["outcome"] for one in judged}
    seen(f"exit {code}: draft-k3 {outcomes['vacation-timed']}, {outcomes['all-greedy']}; 1 run")


@pytest.mark.chaos(
    "a speed that no gate decides on, with and without require: [speed]",
    expected="exit 0: SPEED: NOT GATED on the first line, a warning sign in report.md; replayed under require: [speed] exit 1",
)
def test_a_speed_that_was_not_gated_says_so_and_fails_where_speed_is_required(tmp_path, seen):
    undecided = {"gates": {"speedup": {"at_least": 1.0, "boot_sd": 3.0}}}
    code, text = run(tmp_path, config(tmp_path, **undecided), "-k", "sooner", "--specdec-depth=smoke")
    first = text.partition(" specdec ---")[2].splitlines()[1]
    line = "SPEED: NOT GATED on the first line" if "SPEED: NOT GATED (draft-k3)" in first else first
    sign = "a warning sign in report.md" if "## ⚠️ specdec" in (tmp_path / "run/report.md").read_text() else "none in report.md"
    required = config(tmp_path, **undecided, require=["speed"])
    again = [sys.executable, "-m", "pytest", str(REPOSITORY / "suites/speed"), "-q", "-p", "no:cacheprovider", "-k", "sooner"]
    asked = [f"--specdec-config={required}", f"--specdec-replay={tmp_path / 'run'}"]
    replayed = subprocess.run([*again, *asked], cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    seen(f"exit {code}: {line}, {sign}; replayed under require: [speed] exit {replayed.returncode}")
