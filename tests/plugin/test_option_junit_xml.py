"""``--junit-xml``: what each test case says of its verdict, and of a speed whose tokens another test finds wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

BOTH = """
import pytest
from sample import *

TIMED, W = workload("timed", timed=True), workload("chat")


@pytest.mark.specdec(TIMED, family="speed")
def test_speed(specdec_captured, specdec_check): specdec_check(say(specdec_captured, headline="2.16x, faster; gate met"))


@pytest.mark.specdec(W, family="greedy")
def test_tokens(specdec_captured, specdec_check):
    wrong = specdec_captured.pair.name == "ngram-k3"
    specdec_check(say(specdec_captured, Outcome.FAIL if wrong else Outcome.PASS))
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_a_speed_whose_tokens_are_wrong_is_no_speed_whichever_test_came_first(project, workers):
    project.tests(BOTH).run("--junit-xml=out.xml", "--specdec-report=junit", *workers, subprocess=bool(workers)).assert_outcomes(
        passed=3, failed=1
    )
    cases = {case.get("name"): case for case in ET.parse(project.path / "out.xml").iter("testcase")}
    properties = {name: {p.get("name"): p.get("value") for p in case.iter("property")} for name, case in cases.items()}
    assert properties["test_speed[draft-k3]"]["specdec.headline"] == "2.16x, faster; gate met"
    assert "specdec.not_comparable" not in properties["test_speed[draft-k3]"]
    void = properties["test_speed[ngram-k3]"]
    assert (void["specdec.headline"], void["specdec.not_comparable"]) == ("not counted: tokens are wrong",) * 2
    assert "2.16" not in ET.tostring(cases["test_speed[ngram-k3]"], encoding="unicode")
    (run,) = project.runs
    ours = ET.parse(run / "junit.xml")
    assert {case.get("name"): case.get("classname") for case in ours.iter("testcase")} == {n: c.get("classname") for n, c in cases.items()}
    assert suite_properties(ours) == suite_properties(ET.parse(project.path / "out.xml"))
    assert "specdec.environment.engine" in suite_properties(ours)


def suite_properties(tree):
    return {one.get("name"): one.get("value") for one in tree.iterfind("testsuite/properties/property")}
