from __future__ import annotations

import json

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import run_documents
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.status import MissingAnswers, Progress, State, Status

STATUS = Status(state=State.INCOMPLETE, missing=(MissingAnswers(arm="v", workload="w", reason="died\nwith a log"),), boots=2)


def test_a_plan_survives_with_its_digests(directory, plan):
    run_documents.write_plan(directory, plan)
    assert run_documents.read_plan(directory) == plan
    assert run_documents.read_plan(directory).workloads[0].digest == plan.workloads[0].digest


def test_environment_and_status_survive(directory, environment):
    run_documents.write_environment(directory, environment)
    run_documents.write_status(directory, STATUS)
    assert (run_documents.read_environment(directory), run_documents.read_status(directory)) == (environment, STATUS)


def test_capabilities_are_found_by_arm_whatever_its_name(directory):
    window = PenaltyWindow(prompt=True, last_tokens=64)
    found = {"org/model": Capabilities(support={"seed": FeatureSupport.IGNORED}), "v": Capabilities(vocabulary=4096, penalty_window=window)}
    for arm, capabilities in found.items():
        run_documents.write_capabilities(directory, arm, capabilities)
    assert run_documents.read_capabilities(directory) == found


def test_capabilities_of_before_penalty_windows_have_openais(directory):
    run_documents.write_capabilities(directory, "v", Capabilities(vocabulary=7))
    path = directory.capabilities_of("v")
    older = json.loads(path.read_text())
    assert older.pop("penalty_window") == {"prompt": False, "repetition_prompt": True, "last_tokens": None}
    path.write_text(json.dumps(older))
    assert run_documents.read_capabilities(directory)["v"] == Capabilities(vocabulary=7)


def test_no_probe_is_no_error(directory):
    assert run_documents.read_capabilities(directory) == {}


def test_progress_is_read_while_it_is_written(directory):
    steps = tuple(Progress(at_s=float(i), boot=0, boots=3, arm="v", doing="answering", done=i) for i in range(3))
    assert run_documents.read_progress(directory) == ()
    for step in steps:
        run_documents.append_progress(directory, step)
    with directory.progress.open("a") as file:
        file.write('{"at_s":3.0,"bo')
    assert run_documents.read_progress(directory) == steps


@pytest.mark.parametrize(
    "text, what",
    [
        (None, "the run has no status.json"),
        ('{"schema": "urn:pytest-specdec:status:1", "sta', "the file is incomplete"),
        ('{"schema": "urn:pytest-specdec:status:2"}', "a newer release wrote this run"),
        ('{"schema": "urn:pytest-specdec:plan:1"}', "the file is of another kind"),
        ("[]", "the file is of another kind"),
        ('{"schema": "urn:pytest-specdec:status:1", "state": "odd"}', "this is no Status"),
    ],
)
def test_a_record_that_cannot_be_read_is_a_run_error_that_names_the_file(directory, text, what):
    if text is not None:
        directory.status.write_text(text)
    with pytest.raises(RunError) as caught:
        run_documents.read_status(directory)
    assert caught.value.what == what
    assert caught.value.where.startswith(str(directory.status))
