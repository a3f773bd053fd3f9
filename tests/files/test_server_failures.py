"""What befell an arm over a whole run: a death counts once, however many requests were in flight, and is not undone by another occasion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.files import server_failures, transcripts
from pytest_specdec.model.transcript import FailureKind, ServerFailure


def dead(*ids, failure=0, recurred=False):
    return tuple(ServerFailure(request_id=id_, ending=FailureKind.DIED, recurred=recurred, failure=failure) for id_ in ids)


@pytest.fixture
def written(directory, plan, transcript):
    """Write a transcript of every arm to every planned workload; the variant's first one has the server failures given."""
    name, first = plan.pairs[0].name, plan.boots[0].answers[0]
    for boot in plan.boots:
        for arm in boot.arms:
            for workload in boot.answers:
                transcripts.write(directory, transcript(arm, workload=workload, server_failures=()))

    def _written(*failures, suffix=""):
        transcripts.write(directory, transcript(name, workload=f"{first}{suffix}", server_failures=failures))
        return server_failures.read(directory, plan, name)

    _written.variant, _written.workload = name, first
    return _written


def test_a_death_with_several_in_flight_counts_once(written):
    found = written(*dead("chat-00", "chat-01"), *dead("chat-02", failure=1))
    assert found[written.variant].unexplained == (
        f"{written.workload}: died on chat-00 and 1 more in flight",
        f"{written.workload}: died on chat-02",
    )
    assert found["baseline"].unexplained == ()
    assert found["baseline"].requests > 0


def test_without_failures_nothing_else_is_read(written):
    assert written() == {}


def test_what_a_request_explains_is_not_counted(written):
    assert written(*dead("chat-00"), *dead("chat-01", recurred=True)) == {}


def test_workloads_that_were_not_answered_to_the_end_count(written):
    assert len(written(*dead("chat-00"), suffix=".partial")[written.variant].unexplained) == 1


def test_a_death_is_remembered_when_its_workload_is_answered_anew(directory, plan, written):
    for _ in range(2):
        written(*dead("chat-00"))
        server_failures.set_aside(directory, written.variant, written.workload)
    found = written()
    assert [line.partition(":")[0] for line in found[written.variant].unexplained] == [f"{written.workload}.earlier{n}" for n in (1, 2)]
    assert not found[written.variant].are_finding([found["baseline"]])
    more = replace(found[written.variant], unexplained=("a", "b", "c"))
    assert more.are_finding([found["baseline"]])


def test_it_is_remembered_under_a_name_that_no_file_can_have(directory, plan, transcript):
    arm, workload = plan.pairs[0].name, "a+b"
    for _ in range(2):
        transcripts.write(directory, transcript(arm, workload=workload, server_failures=dead("chat-00")))
        server_failures.set_aside(directory, arm, workload)
    assert server_failures.stored_names(directory, arm, workload)[2:] == ("a+b.earlier1", "a+b.earlier2")
