"""``--benchmark-json`` of pytest-benchmark: the timed answers of a run, one benchmark per arm."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

TIMED = """
import pytest
from sample import *

TIMED = workload("timed", timed=True)


@pytest.mark.specdec(TIMED, family="speed")
def test_speed(specdec_captured, specdec_check): specdec_check(say(specdec_captured))
"""


@pytest.fixture
def benchmarking(project):
    conftest = project.path / "conftest.py"
    text = conftest.read_text().replace(
        "Answer(request_id=request.id,", "Answer(request_id=request.id, timing=Timing(sent_s=1.0, first_s=1.1, done_s=1.5),"
    )
    imported = "from pytest_specdec.model.transcript import"
    conftest.write_text(text.replace(imported, f"from pytest_specdec.model.timing import Timing\n{imported}", 1))
    project.pytester.makeini("[pytest]\naddopts = -p no:randomly\nfilterwarnings = error\n")
    return project


@pytest.mark.parametrize("args", [(), ("-n2",), pytest.param(("-n2", "--benchmark-disable"), marks=pytest.mark.nightly)], ids=" ".join)
def test_the_json_has_the_timings_of_the_run(benchmarking, args):
    if args == ("-n2",):
        pytest.skip("pytest-benchmark warns of xdist whatever is benchmarked, which this project has made an error")
    result = benchmarking.tests(TIMED).run("--benchmark-json=x.json", *args, subprocess=True)
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    found = {one["name"]: one for one in json.loads((benchmarking.path / "x.json").read_text())["benchmarks"]}
    assert list(found) == ["timed[baseline]", "timed[draft-k3]", "timed[ngram-k3]", "capture"]
    assert found["timed[draft-k3]"]["stats"]["data"] == pytest.approx([0.5 / 3] * 3)
    assert found["capture"]["stats"]["data"] == [2.0]
    assert found["timed[draft-k3]"]["group"] == "timed"
    assert found["timed[draft-k3]"]["extra_info"] == {
        "config": "tiny",
        "depth": "standard",
        "unit": "seconds per token",
        "tokens_per_s": 6.0,
    }


@pytest.fixture
def compared(benchmarking, monkeypatch):
    """Run ``pytest-benchmark compare`` on the JSON of two runs."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # where it is set, pytest-benchmark is off
    for name in "ab":
        benchmarking.tests(TIMED).run(f"--benchmark-json={name}.json", subprocess=True).assert_outcomes(passed=2)

    benchmarking.pytester.makeini("[pytest]\n")  # the command reads it, and a warning of its own start-up must not end it

    def compare(*options):
        return benchmarking.pytester.run(sys.executable, "-m", "pytest_benchmark", "compare", "a.json", "b.json", *options)

    return compare


@pytest.mark.nightly
def test_pytest_benchmark_compares_and_draws_two_runs(compared, benchmarking):
    drawn = importlib.util.find_spec("pygal") is not None  # imported here, it would put a finder of metadata into this process
    result = compared("--columns=mean,rounds", "--csv=both.csv", *(["--histogram=drawn"] if drawn else []))
    assert result.ret == 0
    for name in ("timed[[]baseline]", "timed[[]draft-k3]", "timed[[]ngram-k3]", "capture"):
        result.stdout.fnmatch_lines([f"*{name}*"])
    assert bool(list(benchmarking.path.glob("drawn*.svg"))) == drawn, "pygal and pygaljs are of the dev extra"


def test_a_run_without_timed_answers_does_not_crash(benchmarking):
    result = benchmarking.tests().run("--benchmark-json=x.json", subprocess=True)
    result.assert_outcomes(passed=4)
    assert result.ret == 0


def test_the_json_has_no_speed_of_wrong_tokens_and_says_why(benchmarking):
    wrong = TIMED + (
        "\n\n@pytest.mark.specdec(workload('chat'), family='greedy')\ndef test_tokens(specdec_captured, specdec_check):\n"
        "    specdec_check(say(specdec_captured, Outcome.FAIL if specdec_captured.pair.name == 'ngram-k3' else Outcome.PASS))\n"
    )
    benchmarking.tests(wrong).run("--benchmark-json=x.json", subprocess=True).assert_outcomes(passed=3, failed=1)
    found = {one["name"]: one for one in json.loads((benchmarking.path / "x.json").read_text())["benchmarks"]}
    assert list(found) == ["timed[baseline]", "timed[draft-k3]", "capture"]
    why = {"ngram-k3": "not counted: tokens are wrong"}
    assert [one["extra_info"]["not_comparable"] for one in found.values()] == [why] * 3
