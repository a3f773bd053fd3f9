"""Faults in run directories: shared, torn, full, of another build; each is refused or named, and never judged as if it were whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_specdec.capture import devices, environment, runner
from pytest_specdec.capture import locks as lease
from pytest_specdec.config import load
from pytest_specdec.engines import registry
from pytest_specdec.errors import LeaseError, RunError
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.status import State
from tests.capture.conftest import FakeEngine
from tests.capture.test_remaining import planned
from tests.plugin.conftest import Project


@pytest.fixture
def project(pytester, monkeypatch):
    for name in ("CI", "GITHUB_STEP_SUMMARY", "PYTEST_ADDOPTS", "FAKE_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


def words(result):
    return result.stdout.str() + result.stderr.str()


def begun_here(run):
    """Have a run that the fake captured say that it was captured on this machine."""
    from pytest_specdec.capture import environment
    from pytest_specdec.config import load
    from pytest_specdec.files import codec

    path = run / "environment.json"
    real = codec.encode(environment.environment(load.load(run / "config.yaml"), "0"))
    path.write_text(json.dumps({**real, "schema": json.loads(path.read_text())["schema"]}))


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
@pytest.mark.chaos("two sessions in one run directory", expected="the second is refused and judges nothing", quick=True)
def test_a_run_directory_has_one_session(project, monkeypatch, workers, seen):
    project.tests()
    monkeypatch.setenv("FAKE_CAPTURE", "slow")
    monkeypatch.setenv("FAKE_SECONDS", "5")
    argv = [sys.executable, "-m", "pytest", "--specdec-config=tiny", "--specdec-run-dir=shared"]
    first = subprocess.Popen([*argv], cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    second = subprocess.Popen([*argv, *workers], cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    texts = {process.communicate(timeout=120)[0]: process.returncode for process in (first, second)}
    refused = [text for text, code in texts.items() if "in use" in text and code == pytest.ExitCode.USAGE_ERROR]
    judged = [text for text, code in texts.items() if "4 passed" in text and code == 0]
    assert len(project.captures) == 1
    seen("the second is refused and judges nothing" if len(refused) == len(judged) == 1 else "\n".join(texts))


@pytest.mark.chaos("two sessions that begin in the same second", expected="a folder each", quick=True)
def test_sessions_of_one_second_have_a_folder_each(project, monkeypatch, seen):
    project.tests()
    argv = [sys.executable, "-m", "pytest", "--specdec-config=tiny"]
    for process in [subprocess.Popen(argv, cwd=project.path, stdout=subprocess.DEVNULL) for _ in range(3)]:
        assert process.wait(120) == 0
    seen("a folder each" if len(project.runs) == len(project.captures) == 3 else f"{len(project.runs)} folders")


@pytest.fixture
def stored(project, monkeypatch):
    """An incomplete run whose config names two variables."""
    monkeypatch.setenv("DRAFTER", "one")
    monkeypatch.setenv("MY_PAT", "sesame-open")
    project.config('baseline: {env: {DRAFTER: "${DRAFTER}", LOGIN: "${MY_PAT}"}}\n')
    monkeypatch.setenv("FAKE_CAPTURE", "missing:ngram-k3")
    project.tests().run()
    monkeypatch.delenv("FAKE_CAPTURE")
    (run,) = project.runs
    begun_here(run)
    return run


@pytest.mark.parametrize("name", ["DRAFTER", "MY_PAT"])
@pytest.mark.chaos("a run is resumed with another value of a ${VAR}", expected="refused, the variable named, no value shown", quick=True)
def test_another_value_of_a_variable_is_refused(project, stored, monkeypatch, name, seen):
    monkeypatch.setenv(name, "another-value")
    result = project.run(f"--specdec-resume={stored}")
    named = f"environment variable {name}: another value" in words(result)
    shown = any(value in words(result) for value in ("another-value", "sesame-open"))
    refused = result.ret == pytest.ExitCode.USAGE_ERROR
    seen("refused, the variable named, no value shown" if refused and named and not shown else words(result))


@pytest.mark.chaos("a run is resumed with the same values", expected="taken up", quick=True)
def test_the_same_values_are_taken_up(project, stored, seen):
    seen("taken up" if project.run(f"--specdec-resume={stored}").ret == 0 else "refused")


@pytest.mark.chaos("servers of two builds in one capture", expected="incomplete, both builds named", quick=True)
def test_two_builds_are_not_one_run(tmp_path, monkeypatch, seen):
    monkeypatch.setitem(registry.LOADED, FakeEngine.kind, FakeEngine())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config, plan = planned(tmp_path, **{"served-version": "1.2.4"})
    status = runner.record(config, plan, RunDirectory.create(tmp_path / "runs" / "now"), deadline_s=None, tell=lambda _: None)
    named = all(build in status.error for build in ("1.2.3", "1.2.4"))
    seen(f"{status.state}, both builds named" if named else f"{status.state}: {status.error}")


@pytest.mark.chaos("what a run stores of a secret ${VAR}", expected="a digest", quick=True)
def test_a_run_stores_digests_of_variables(stored, seen):
    texts = "".join(path.read_text() for path in stored.rglob("*") if path.is_file())
    digests = json.loads((stored / "variables.json").read_text())["digests"]
    seen("a digest" if set(digests) == {"DRAFTER", "MY_PAT"} and "sesame" not in texts else texts)


TAKEN_OVER = """
import time

from xdist.scheduler.load import LoadScheduling

schedule = LoadScheduling.schedule


def schedule_and_mark(self):
    schedule(self)
    (HERE / "scheduled").touch()


LoadScheduling.schedule = schedule_and_mark


def wait_for_the_schedule():
    # xdist 3.8 ends in an internal error where a worker dies before its first tests are sent, which waits for all to have collected.
    until_s = time.monotonic() + 30.0
    while not (HERE / "scheduled").exists() and time.monotonic() < until_s:
        time.sleep(0.05)  # between two looks at the file


def dies_after_answers(config, plan, directory, *, deadline_s, tell):
    from pytest_specdec.model.status import State, Status

    about = {"engine": "reference", "engine_version": "0", "model": "target"}
    records.write_environment(directory, Environment(**about, processor="p", cores=2, memory_gib=8.0))
    records.write_status(directory, Status(state=State.RUNNING))
    written(plan, directory, tell)
    records.write_status(directory, Status(state=State.RUNNING))
    directory.transcript("draft-k3", "code").unlink()
    (HERE / "captures.jsonl").write_text("{}\\n")
    wait_for_the_schedule()
    os._exit(9)


def dies_at_boot(config, plan, directory, *, deadline_s, tell):
    from pytest_specdec.capture import remaining as kept
    from pytest_specdec.model.status import Missing, State, Status

    whole = kept.reusable_results(directory, plan)
    kept.discard(directory, plan, whole)
    lacking = [w.name for w in plan.workloads if ("draft-k3", w.name) not in whole.answers]
    missing = [Missing(arm="draft-k3", workload=name, reason="died at boot") for name in lacking]
    status = Status(state=State.INCOMPLETE if missing else State.COMPLETE, missing=tuple(missing))
    records.write_status(directory, status)
    return status


def pytest_configure(config):
    record.record, record.resume = dies_after_answers, dies_at_boot
"""


@pytest.mark.chaos(
    "the capturing xdist worker is killed, and the variant dies at boot for the next one",
    expected="what it had answered is judged, the rest is an error",
    quick=True,
)
def test_a_takeover_judges_nothing_that_is_missing(project, seen):
    conftest = (project.path / "conftest.py").read_text()
    project.pytester.makeconftest(conftest + TAKEN_OVER)
    result = project.tests().run("-n2", subprocess=True)
    # xdist counts a test that it had handed to the killed worker as failed, and runs it no more.
    taken = any("crashed while running 'test_it.py::test_chat[draft-k3]'" in line for line in result.outlines)
    answered = taken or any(line.split()[:6] == [*["T=0:", "the", "baseline's", "tokens", "ok", "3/3"]] for line in result.outlines)
    missing = any(line.startswith("survives unusual requests") and "NOT CAPTURED" in line for line in result.outlines)
    as_expected = result.ret == 1 and answered and missing
    seen("what it had answered is judged, the rest is an error" if as_expected else words(result))


def nothing():
    return None


@pytest.mark.parametrize("place", ["a link for the folder", "a link in it", "others may write to it", "a file for the folder"])
@pytest.mark.chaos("the folder of the locks is not this user's alone", expected="refused, nothing truncated", quick=True)
def test_locks_are_kept_in_a_folder_of_ones_own(tmp_path, monkeypatch, place, seen):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    locks, target = tmp_path / f"pytest-specdec-{os.getuid()}", tmp_path / "precious"
    target.write_text("kept")
    if place == "a link for the folder":
        (tmp_path / "elsewhere").mkdir()
        locks.symlink_to(tmp_path / "elsewhere")
    elif place == "a file for the folder":
        locks.write_text("")
    else:
        locks.mkdir(mode=0o700)
    if place == "a link in it":
        (locks / "device-0.lock").symlink_to(target)
    if place == "others may write to it":
        locks.chmod(0o777)
    with pytest.raises(LeaseError, match="cannot be trusted"), lease.device("0", 0.0, nothing):
        raise AssertionError
    seen("refused, nothing truncated" if target.read_text() == "kept" else "truncated")


@pytest.mark.chaos("a MIG device with slashes in its name; one GPU by number and by UUID", expected="held; one lease", quick=True)
def test_a_device_has_one_lease(tmp_path, monkeypatch, seen):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with lease.device("MIG-GPU-1/2/0", 0.0, nothing):
        pass
    monkeypatch.setattr(environment, "devices", lambda: ("A", "B"))
    monkeypatch.setattr(environment, "uuids", lambda: ("GPU-aa-1", "GPU-bb-2"))
    argument = "{args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}"
    (tmp_path / "config.yaml").write_text(f"engine: {{kind: vllm, model: m}}\nvariants: {{a: {argument}}}\n")
    free = []
    for visible in ("1", "GPU-bb-2", "GPU-bb"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with devices.hold(load.load(tmp_path / "config.yaml"), 0.0, nothing):
            free.append((lease.is_free("GPU-aa-1"), lease.is_free("GPU-bb-2")))
    seen("held; one lease" if set(free) == {(True, False)} else f"held; {free}")


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
@pytest.mark.chaos("the run directory cannot be made", expected="a readable error, no traceback", quick=True)
def test_a_run_directory_that_cannot_be_made(project, workers, seen):
    (project.path / "file").write_text("")
    result = project.tests().run("--specdec-run-dir=file/run", *workers, subprocess=True)
    text = words(result)
    readable = "cannot be written" in text and "Traceback" not in text and "INTERNALERROR" not in text
    seen("a readable error, no traceback" if readable and result.ret != 0 else text)


FULL = """

def full(*_):
    raise OSError(28, "No space left on device")


def fills(config, plan, directory, **_):
    from pytest_specdec.files import run_directory as files
    files._replace_file = full
    records.write_status(directory, Status(state=State.RUNNING))


def pytest_configure(config):
    record.record, record.resume = (fills, fills) if HOW == "full" else (fake, resumed)
"""


@pytest.mark.chaos("the disk is full in mid-capture", expected="a readable error, the table, no traceback", quick=True)
def test_a_full_disk_in_the_capture(project, monkeypatch, seen):
    project.pytester.makeconftest((project.path / "conftest.py").read_text() + FULL)
    monkeypatch.setenv("FAKE_CAPTURE", "full")
    result = project.tests().run(subprocess=True)
    text = words(result)
    readable = "No space left on device" in text and "Traceback" not in text and "INTERNALERROR" not in text
    tabled = any("NOT CAPTURED" in line for line in result.outlines)
    seen("a readable error, the table, no traceback" if readable and tabled and result.ret == 1 else text)


WRITES_FAIL = """
import pytest
from pytest_specdec.files import run_directory as directory

@pytest.fixture(autouse=True, scope="session")
def full_disk():
    yield
    def full(*_):
        raise OSError(28, "No space left on device")
    directory._replace_file = full
"""


@pytest.mark.chaos("the disk is full when the documents are written", expected="the table, then a readable error", quick=True)
def test_a_full_disk_at_the_end(project, seen):
    project.tests()
    (project.path / "test_it.py").write_text((project.path / "test_it.py").read_text() + WRITES_FAIL)
    result = project.run(subprocess=True)
    text = words(result)
    table, error = text.find("CORRECTNESS: "), text.find("reports not written")
    seen("the table, then a readable error" if 0 < table < error and "Traceback" not in text else text)


@pytest.mark.parametrize("torn", ["capabilities", "transcript", "progress"])
@pytest.mark.chaos("torn capabilities, bad UTF-8 in a transcript, torn progress", expected="taken up again", quick=True)
def test_a_torn_run_is_taken_up(tmp_path, monkeypatch, torn, seen):
    monkeypatch.setitem(registry.LOADED, FakeEngine.kind, FakeEngine())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config, plan = planned(tmp_path)
    directory = RunDirectory.create(tmp_path / "runs" / "now")
    runner.record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    path = {
        "capabilities": directory.capabilities_of("baseline"),
        "transcript": directory.transcript("draft-k3", "w"),
        "progress": directory.progress,
    }[torn]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff\n")
    if torn == "transcript":
        with pytest.raises(RunError, match=r"incomplete\n.*w.jsonl:\d"):
            transcripts.read(directory, "draft-k3", "w")
    run_documents.read_progress(directory)
    status = runner.resume(config, plan, directory, deadline_s=None, tell=lambda _: None)
    seen("taken up again" if status.state is State.COMPLETE else f"{status.state}: {status.error}")
