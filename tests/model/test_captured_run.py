"""A captured run: its parts as one, by names that keep them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import SPECULATING, answer, requests, transcript

CHAT = Workload(name="chat", version=1, requests=requests(1))
CODE = replace(CHAT, name="code")


def parts(**fields):
    return [
        a_part(workload, [answer(tokens=(1, 2))], [answer(tokens=(1, 3))], [answer(tokens=(1, 4))], **fields) for workload in (CHAT, CODE)
    ]


def test_answers_of_all_workloads_stand_together_under_the_workloads_name():
    run = a_run(*parts())
    names = ["chat/chat-00", "code/chat-00"]
    assert [request.id for request in run.whole.workload.requests] == names
    for arm in (run.whole.baseline, run.whole.control, run.whole.speculative):
        assert [each.request_id for each in arm.answers] == names
    assert run.whole.workload.name == "chat"
    assert run.whole.speculative.counters == SPECULATING + SPECULATING


def test_counters_of_some_workloads_are_no_counters_of_the_run():
    first, second = parts()
    assert a_run(first, replace(second, speculative=replace(second.speculative, counters=None))).whole.speculative.counters is None


def test_the_control_takes_the_variants_place_in_every_part():
    run = a_run(*parts()).as_control()
    assert run.whole.is_control
    assert [part.speculative.answers[0].choice.token_ids for part in run.parts] == [(1, 4), (1, 4)]
    assert run.whole.speculative.arm == "control"


def test_a_run_has_a_control_where_every_part_has_one():
    first, second = parts()
    run = a_run(first, replace(second, control=None))
    assert run.whole.control is None
    with pytest.raises(ValueError, match="has no control"):
        run.as_control()


def test_counters_add_up_from_nothing():
    run = a_run(*parts(counters=None), speculative=transcript("v", []))
    assert run.whole.speculative.counters is None
    assert sum([SpecCounters()], SpecCounters()) == SpecCounters()


def test_other_arms_of_every_part_stand_beside_the_run():
    first, second = (replace(part, beside=(replace(part.speculative, arm=arm),)) for part, arm in zip(parts(), "xy", strict=True))
    assert [each.arm for each in a_run(first, second).whole.beside] == ["x", "y"]
