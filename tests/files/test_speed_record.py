"""What a run directory tells of its servers' speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.files import run_documents, speed_record, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.pair import Draft, DraftKind, Variant
from pytest_specdec.model.plan import Boot, Role
from tests.files.conftest import PAIR, WORKLOAD

TIMED = replace(WORKLOAD, name="vacation-timed", timed=True, concurrency=1, scored=False)
LOAD = replace(TIMED, name="load", waves=(1, 2), concurrency=8)


def boot(index, role, arm, *answers, **fields):
    return Boot(index=index, role=role, arm=arm, answers=answers, **fields)


@pytest.fixture
def planned(directory, plan, transcript, environment):
    """Return a function that writes a run of these boots."""
    run = directory

    def write(*boots, pair=PAIR, directory=run):
        run_documents.write_plan(directory, replace(plan, boots=boots, pairs=(pair,), workloads=(WORKLOAD, TIMED, LOAD)))
        run_documents.write_environment(directory, environment)
        for one in boots:
            for workload in (each for each in (WORKLOAD, TIMED, LOAD) if each.name in one.answers):
                for arm in one.arms:
                    transcripts.write(directory, transcript(arm, boot=one.index, workload=workload.name, digest=workload.digest))
        return speed_record.read(directory)

    return write


def test_the_boots_of_an_arm_count_each_once_and_the_control_is_the_baselines(planned):
    record = planned(
        boot(0, Role.BASELINE, "baseline", WORKLOAD.name, TIMED.name),
        boot(1, Role.VARIANT, "v", WORKLOAD.name, TIMED.name),
        boot(2, Role.CONTROL, "control", WORKLOAD.name, TIMED.name),
        boot(3, Role.VARIANT, "v", TIMED.name, number=2),
    )
    boots = record.timed[TIMED.name].boots
    assert {arm: [one.boot for one in of_arm] for arm, of_arm in boots.items()} == {"baseline": [0, 2], "v": [1, 3]}
    assert [(arm, [one.workload.name for one in drafted]) for arm, drafted in record.drafted.items()] == [("v", [WORKLOAD.name])]
    assert record.machine


def test_one_boot_that_answers_as_baseline_and_control_is_one(planned):
    record = planned(boot(0, Role.BASELINE, "baseline", TIMED.name, also_baseline=True), boot(1, Role.VARIANT, "v", TIMED.name))
    assert [one.arm for one in record.timed[TIMED.name].boots["baseline"]] == ["baseline"]


def test_of_several_numbers_of_clients_the_gated_one_counts(planned):
    record = planned(boot(0, Role.BASELINE, "baseline", LOAD.name), boot(1, Role.VARIANT, "v", LOAD.name))
    gated = {request.id for request in LOAD.gated_requests}
    (baseline,) = record.timed[LOAD.name].boots["baseline"]
    assert {answer.request_id for answer in baseline.answers} == gated != {request.id for request in LOAD.requests}


def test_drafts_that_depend_on_load_and_attached_servers_are_not_compared(planned):
    draft = Draft(kind=DraftKind.NGRAM, tokens=3, most_requests=2)
    pair = replace(PAIR, variant=Variant(name="v", draft=draft))
    record = planned(boot(0, Role.VARIANT, "v", WORKLOAD.name, attached=True), pair=pair)
    assert (record.drafted, record.machine) == ({"v": ()}, "")


@pytest.mark.parametrize("place, sessions, of_the_old_engine", [
    ("run/old", (), True),
    ("copy", ("night", "night"), True),
    ("last-year", ("another", "night"), False),
    ("last-year", ("", "night"), False),
    ("last-year", ("", ""), False),
    ("last-year", ("another",), False),
])  # fmt: skip
def test_boots_of_the_old_engine_in_turn_with_the_new_ones_are_its_speed(planned, directory, tmp_path, place, sessions, of_the_old_engine):
    """They take the place of what the old engine's run timed alone, and of no other run, and are no boots of the new engine."""
    old, theirs = RunDirectory(tmp_path / place), RunDirectory(directory.old)
    for run, session in zip((old, theirs), sessions, strict=False):
        if session:
            run.root.mkdir(parents=True, exist_ok=True)
            run_documents.write_session(run, session)
    planned(boot(7, Role.BASELINE, "baseline", TIMED.name), boot(8, Role.VARIANT, "v", TIMED.name), directory=old)
    record = planned(
        boot(0, Role.OLD_BASELINE, "old.baseline", TIMED.name),
        boot(1, Role.BASELINE, "baseline", WORKLOAD.name, TIMED.name),
        boot(2, Role.VARIANT, "v", TIMED.name),
        boot(3, Role.OLD_VARIANT, "old.v", TIMED.name),
    )
    assert record.timed[TIMED.name].boots.keys() == {"baseline", "v"}
    before = speed_record.read_predecessor(old, directory).timed[TIMED.name]
    expected = {"baseline": [0], "v": [3]} if of_the_old_engine else {"baseline": [7], "v": [8]}
    assert {arm: [one.boot for one in of_arm] for arm, of_arm in before.boots.items()} == expected
    assert (before.alternated, record.timed[TIMED.name].alternated) == (of_the_old_engine, False)
