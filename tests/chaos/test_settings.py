"""Configs that would kill a boot, or judge something else than was meant: told before anything starts, with file and line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TEST = """
import pytest
from pytest_specdec.prompts import ALL


@pytest.mark.specdec(ALL.greedy(max_tokens=8), family="greedy")
def test_it(specdec_captured):
    raise AssertionError("nothing may be captured")
"""
HEAD = "engine: {kind: reference, model: target}\nvariants:\n  v:\n    args:\n      speculative-config: "
GOOD = HEAD + "{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}\n"


def rows():
    """Faults with the config that has them, the words that tell of them, and the line that they stand on."""
    yield "k = 0", HEAD + "{method: ngram, num_speculative_tokens: 0}\n", "found 0, expected the number of draft tokens", 5
    yield 'k = "three"', HEAD + "{method: ngram, num_speculative_tokens: three}\n", 'found "three", expected the number of draft tokens', 5
    yield "no k", HEAD + "{method: ngram}\n", "found no num_speculative_tokens", 4
    yield "misspelt method", HEAD + "{method: ngramm, num_speculative_tokens: 3}\n", "did you mean 'ngram'?", 5
    yield "broken JSON in a setting", HEAD + '"{method: x"\n', "a string that holds no JSON mapping", 5
    yield "require: [json_shema]", GOOD + "require: [json_shema]\n", "did you mean 'json_schema'?", 6
    yield "unquoted ${X} in { }", "engine: {kind: reference, model: ${X}}\n", 'put ${VAR} in quotes: "${VAR}"', 1
    yield "model: ${X}, unset", GOOD.replace("model: target", "model: '${X_UNSET}'"), "X_UNSET is not set", None


@pytest.mark.chaos("a config that no server boots with, eight ways", expected="8 of 8 told before anything starts, exit 4", quick=True)
def test_a_config_that_cannot_run_is_told_before_anything_starts(tmp_path, seen):
    (tmp_path / "test_it.py").write_text(TEST)
    told = 0
    for index, (fault, text, words, line) in enumerate(rows()):
        (tmp_path / f"c{index}.yaml").write_text(text)
        ran = started(tmp_path, f"--specdec-config=c{index}.yaml")
        where = "" if line is None else f"c{index}.yaml:{line}"
        assert words in ran.stderr + ran.stdout, (fault, ran.stdout, ran.stderr)
        assert where in ran.stderr + ran.stdout, (fault, ran.stdout, ran.stderr)
        assert "Traceback" not in ran.stderr + ran.stdout
        told += ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert not (tmp_path / ".specdec").exists()
    seen(f"{told} of {index + 1} told before anything starts, exit 4")


@pytest.mark.chaos("${VAR} in model and in a draft's settings", expected="the plan names what they stand for", quick=True)
def test_variables_in_every_string_are_filled_in(tmp_path, seen):
    (tmp_path / "test_it.py").write_text(TEST)
    setting = "{method: draft_model, model: '${A_DRAFT}', num_speculative_tokens: '${A_COUNT}'}\n"
    (tmp_path / "c.yaml").write_text(HEAD.replace("model: target", "model: '${A_MODEL}'") + setting)
    ran = started(tmp_path, "--specdec-config=c.yaml", "--co", A_MODEL="target", A_DRAFT="draft", A_COUNT="3")
    named = "target" in ran.stdout and "${" not in ran.stdout and ran.returncode == 0
    seen("the plan names what they stand for" if named else ran.stdout + ran.stderr)


def started(folder, *options, **variables):
    """Run pytest in ``folder`` as a user would."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env={**kept, **variables})
