"""Five releases of the reference engine, a fault from the third on: found with real servers, and after an interrupt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """
engine:
  kind: reference
  model: target
  venv: ${SPECDEC_ENVIRONMENT}
  environment: [sh, make.sh, "{version}", "{folder}"]
variants:
  draft-k3:
    args:
      speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3, draft_sample_method: probabilistic}
"""
MAKE = f"""
case $1 in 0.2) echo no wheel; exit 3 ;; 0.[345]) fault="--fault limit-overrun" ;; *) fault= ;; esac
mkdir -p "$2/bin"
cat > "$2/bin/python" <<END
#!/bin/sh
case "\\$*" in *speculative-config*) exec {sys.executable} "\\$@" $fault ;; esac
exec {sys.executable} "\\$@"
END
chmod +x "$2/bin/python"
"""
RELEASES = "0.1,0.1.1,0.2,0.3,0.4,0.5"
"""0.2 has no environment."""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "gate.yaml").write_text(CONFIG)
    (tmp_path / "make.sh").write_text(MAKE)
    tests = str(ROOT / "suites/lengths")
    ends = ("--good", "0.1", "--bad", "0.5", "--releases", RELEASES, "-k", "limit", "--folder", "bisect")
    return [sys.executable, "-m", "pytest_specdec", "bisect", "gate.yaml", tests, *ends]


@pytest.mark.nightly
def test_the_first_bad_release_is_found_and_an_interrupt_loses_one_run_alone(command, tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "bisect/runs/0.1-1").is_dir():
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    output = first.communicate()[0]
    assert first.returncode == 130, output
    assert "the next run is of 0.1. The same command goes on." in output
    second = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert second.returncode == 1, second.stdout + second.stderr
    assert "The first bad release is one of 0.2, 0.3; 0.3 is bad: max_tokens is overrun by part of a window" in second.stdout
    assert "0.2 cannot be tested: no environment for 0.2: exit code 3; no wheel" in second.stdout
    trials = json.loads((tmp_path / "bisect/bisect.json").read_text())["trials"]
    assert [trial["release"] for trial in trials if trial["run"]] == ["0.5", "0.1", "0.3", "0.1.1", "0.1.1"]
    replay = re.search(r"^Replay it: pytest (.*)$", second.stdout, re.MULTILINE)[1]
    again = subprocess.run(
        f"{sys.executable} -m pytest {replay}", shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1, again.stdout
