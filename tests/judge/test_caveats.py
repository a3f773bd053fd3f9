"""Caveats: the same on every verdict, from the captured answers alone."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.judge.caveats import read_caveats
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import answer, captured, transcript


def a_capture(**fields):
    answers = [answer(tokens=(1,))]
    return captured("greedy", answers, fields.pop("baseline", answers), answers, **fields)


def test_ordinary_answers_have_none():
    caveats = read_caveats(a_capture())
    assert (caveats.limits, caveats.evidence) == ((), ())


def test_each_condition_is_one_line():
    shared = transcript("baseline", [answer(tokens=(1,))], foreign="7 tokens", limited=2, concurrency=4)
    scorer = {"baseline": Capabilities(), "scorer": Capabilities(server="a server")}
    caveats = read_caveats(a_capture(baseline=shared, within_one_boot=True, capabilities=scorer, scores={"draft-k3": ()}))
    assert len(caveats.evidence) == 5
    assert caveats.limits == ("within one boot",)


def test_fewer_requests_in_flight_are_said_once_of_the_control_under_judgement_or_not():
    judged = a_capture()
    slowed = replace(judged, control=replace(judged.control, concurrency=2))
    for each in (slowed, slowed.as_control()):
        assert [line.split()[0] for line in read_caveats(each).evidence] == ["control"]


def test_a_verdict_ends_with_them():
    judged = a_capture(within_one_boot=True)
    verdict = say(judged, Outcome.PASS, "equal", evidence=("a line",), rules_out="a rate")
    assert verdict.evidence == ("a line", *read_caveats(judged).evidence)
    assert verdict.rules_out == "a rate; within one boot"
