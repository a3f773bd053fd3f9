"""What a run of attached servers says: what is not sent, and that no speed of theirs is kept as this machine's."""

from __future__ import annotations

import pytest

ATTACHED = """
engine: {kind: attach, model: m%s}
baseline: {url: 'http://127.0.0.1:1'}
variants:
  mine: {url: 'http://127.0.0.1:2'}
"""
TEST = """
import pytest
from sample import *

CRASH = workload("crash", may_kill=True)


@pytest.mark.specdec(CHAT, family="speed")
def test_chat(specdec_captured, specdec_check):
    assert specdec_captured.within_one_boot
    specdec_check(say(specdec_captured, Outcome.NOT_DECIDED, promise=speedup(2.0)))


@pytest.mark.specdec(CRASH, family="liveness")
def test_crash(specdec_captured, specdec_check):
    specdec_check(say(specdec_captured))
"""


@pytest.fixture
def attached(project):
    def _run(*args, more="", key=""):
        (project.path / "suites/configs/tiny.yaml").write_text(ATTACHED % key + more)
        return project.tests(TEST).run(*args)

    return _run


def test_a_workload_that_may_kill_is_skipped_with_the_key_that_sends_it(attached, project):
    result = attached("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*within one boot*", "*NOT SENT: crash: *may_kill: true*", "note: *may_kill: true*liveness of crash"])
    assert project.captures[0]["workloads"] == ["chat"]


def test_with_the_key_it_is_sent(attached, project):
    attached(more="may_kill: true\n").assert_outcomes(passed=2)
    assert project.captures[0]["workloads"] == ["chat", "crash"]


@pytest.mark.parametrize("option", [(), ("--specdec-update-baselines",)])
def test_no_speed_is_kept_as_that_of_this_machine(option, attached, project):
    result = attached(*option)
    assert ("baseline not updated" in result.stdout.str()) == bool(option)
    assert not list(project.path.rglob("baseline-candidate.yaml"))
    assert not (project.path / "baselines").exists()


def test_one_address_for_both_arms_is_refused_before_anything_runs(project):
    (project.path / "suites/configs/tiny.yaml").write_text(ATTACHED.replace(":2", ":1") % "")
    result = project.tests(TEST).run()
    result.stderr.fnmatch_lines(["*tiny.yaml:5  variants.mine.url: found *the baseline's own address*"])
    assert not project.captures


def test_a_key_written_out_in_the_headers_is_refused(attached, project):
    result = attached(key=", headers: {Authorization: Bearer open-barley}")
    result.stderr.fnmatch_lines(["*tiny.yaml:2  engine.headers.Authorization: found a secret that is written out*"])
    assert not project.captures
