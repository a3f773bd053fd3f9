"""SIGKILL on a real vLLM in mid-capture: the process is named with its requests, nothing survives, and the run is taken up again.

Minutes a case, so only asked for by name: SPECDEC_REAL_ENGINE=1 pytest tests/engines/test_vllm_deaths.py
"""

from __future__ import annotations

import os

import pytest

from pytest_specdec.model.pair import CONTROL
from pytest_specdec.model.transcript import FailureKind
from tests.engines.real_run import ROOT, RealRun

pytestmark = [
    pytest.mark.skipif(not os.environ.get("SPECDEC_REAL_ENGINE"), reason="takes minutes: SPECDEC_REAL_ENGINE=1 asks for it"),
    pytest.mark.skipif(not (ROOT / ".venv-vllm" / "bin" / "vllm").exists(), reason="vLLM is not here: make vllm-env"),
    pytest.mark.timeout(1800),
]

CONFIG = ROOT / "suites" / "configs" / "vllm-cpu.yaml"
SELECT = "draft-k3 and (documents or liveness)"
VARIANT, STRUCK, OTHER = "draft-k3", "json-structured", "all-liveness"
REPLAYS = 2
"""Fresh servers after a death of several requests in flight: one for each of them alone and then all together, and one for all together
from its start. None fails, so that no more are needed.
"""
MOMENT_S = 10.0
"""What a watchdog gets until everything has to be dead."""


@pytest.fixture
def run(tmp_path):
    """The shipped config with a worker of its own, as vLLM is released."""
    config = tmp_path / "vllm-cpu.yaml"
    text = CONFIG.read_text().replace("placement: side-by-side", "placement: in-turn")
    config.write_text(text.replace(",two-processes", "").replace("../..", str(ROOT)))
    real_run = RealRun(tmp_path / "run", str(config), SELECT)
    yield real_run
    real_run.end()


@pytest.mark.parametrize(
    "title, process",
    [
        ("", "server, killed by SIGKILL, exit code -9"),
        ("VLLM::EngineCore", "VLLM::EngineCore (process {pid})"),
        ("VLLM::Worker", "VLLM::Worker (process {pid})"),
    ],
    ids=["api-server", "engine-core", "worker"],
)
def test_a_killed_process_is_named_with_its_requests_and_the_run_goes_on_without_it(run, title, process):
    first, pid = run.strike(session := run.begin(), VARIANT, STRUCK, title)
    assert run.ended(session) == pytest.ExitCode.TESTS_FAILED, run.output()
    assert run.survivors() == []

    struck, other = run.transcript(VARIANT, STRUCK), run.transcript(VARIANT, OTHER)
    assert struck.server_failures
    assert {server_failure.ending for server_failure in struck.server_failures} == {FailureKind.DIED}
    assert {server_failure.recurred for server_failure in struck.server_failures} == {False}, "every suspect lives alone on a fresh server"
    assert all(server_failure.process.startswith(process.format(pid=pid)) for server_failure in struck.server_failures), (
        struck.server_failures[0].process
    )
    assert all(answer.ok for answer in struck.answers)
    assert other.server_failures == ()
    assert run.boots() == [(VARIANT, 1 + REPLAYS), (CONTROL, 1)]
    assert run.status.restarts == REPLAYS

    verdicts, request = run.verdicts(), struck.server_failures[0].request_id
    assert verdicts[OTHER]["outcome"] == "pass"
    assert verdicts[STRUCK]["outcome"] == "invalid"
    assert verdicts[STRUCK]["headline"].startswith(f"infrastructure: the server dies on request {request} ")
    assert f"died: {process.format(pid=pid)}" in verdicts[STRUCK]["short"][0]
    for said in (verdicts[STRUCK]["headline"], verdicts[STRUCK]["short"][0]):
        assert said in run.output()

    whole = run.bytes(but=[(VARIANT, STRUCK)])
    assert run.ended(run.resume()) == pytest.ExitCode.OK, run.output()
    assert run.survivors() == []
    assert run.bytes(but=[(VARIANT, STRUCK)]) == whole
    assert run.boots() == [(VARIANT, 2 + REPLAYS), (CONTROL, 1)]
    assert run.transcript(VARIANT, STRUCK).server_failures == ()
    assert {name: verdict["outcome"] for name, verdict in run.verdicts().items()} == {STRUCK: "pass", OTHER: "pass"}
    assert first.survivors() == []


def test_a_killed_capture_leaves_no_process_and_is_taken_up_where_it_was(run):
    server, _ = run.strike(session := run.begin(), CONTROL, STRUCK, "pytest")
    parts = {"vllm serve": 1, "resource_tracker": 1, "VLLM::EngineCore": 1, "VLLM::Worker": 1}
    assert {part: sum(part in line for line in run.struck) for part in parts} == parts, run.struck
    assert run.ended(session) == -9
    assert run.survivors(within_s=MOMENT_S) == []
    assert run.status.state == "running"

    whole = {key: text for key, text in run.bytes().items() if key[0] == VARIANT}
    assert whole.keys() == {(VARIANT, STRUCK), (VARIANT, OTHER)}
    assert run.ended(run.resume()) == pytest.ExitCode.OK, run.output()
    assert run.survivors() == []
    assert {key: text for key, text in run.bytes().items() if key in whole} == whole
    assert run.boots() == [(VARIANT, 1), (CONTROL, 2)]
    assert run.status.state == "complete"
    assert {name: verdict["outcome"] for name, verdict in run.verdicts().items()} == {STRUCK: "pass", OTHER: "pass"}
    assert server.survivors() == []
