"""However a session is spread and ordered, servers boot once."""

from __future__ import annotations

import pytest


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "args",
    [
        (),
        ("-n0",),
        ("-n2",),
        pytest.param(("-n2", "--dist=loadfile"), marks=pytest.mark.nightly),
        pytest.param(("-n2", "--dist=worksteal"), marks=pytest.mark.nightly),
        pytest.param(("-n2", "--dist=each", "--tx=2*popen"), marks=pytest.mark.nightly),
        ("-p", "no:xdist"),
        ("-p", "randomly", "-p", "no:xdist"),
        pytest.param(("-p", "randomly", "-n2"), marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_a_session_captures_once(project, args):
    result = project.tests().run(*args, subprocess="-n2" in args or "randomly" in args)
    result.assert_outcomes(passed=8 if "--dist=each" in args else 4)
    assert len(project.captures) == 1
    assert project.captures[0]["workloads"] == ["chat", "code"]
    assert len(project.runs) == 1


def test_only_what_selected_tests_want_is_captured(project):
    project.tests().run("-k", "code and draft").assert_outcomes(passed=1, deselected=3)
    (capture,) = project.captures
    assert capture["workloads"] == ["code"]
    assert capture["pairs"] == ["draft-k3"]


def test_tests_are_sorted_by_pair(project):
    result = project.tests().run("-v", "-p", "randomly", subprocess=True)
    order = [line.split("[")[1].split("]")[0] for line in result.outlines if "::test_" in line and "PASSED" in line]
    assert order == ["draft-k3", "draft-k3", "ngram-k3", "ngram-k3"]


def test_a_workers_death_hands_the_capture_on(project, monkeypatch):
    """The test that xdist had already given to the worker dies with it, and is said to; every other one is judged."""
    monkeypatch.setenv("FAKE_CAPTURE", "dies")
    result = project.tests().run("-n2", subprocess=True)
    lost = [line for line in result.outlines if line.startswith("FAILED")]
    assert len(lost) <= 1
    assert all("crashed while running" in line for line in lost)
    assert result.parseoutcomes()["passed"] == 4 - len(lost)
    assert len(project.captures) == 2
    assert len({capture["pid"] for capture in project.captures}) == 2


def test_the_capture_is_no_tests_time(project, monkeypatch):
    """A timeout shorter than the capture, or a pass under pytest-timeout would mean nothing."""
    monkeypatch.setenv("FAKE_CAPTURE", "slow")
    monkeypatch.setenv("FAKE_SECONDS", "2")
    project.tests().run("--timeout=1", subprocess=True).assert_outcomes(passed=4)


def test_a_collection_error_captures_nothing(project):
    project.tests().pytester.makepyfile(test_broken="import nowhere_to_be_found")
    assert project.run().ret == pytest.ExitCode.INTERRUPTED
    assert not project.captures
    assert not project.runs
