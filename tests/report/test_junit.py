"""A run as JUnit, and a case of pytest's own file once it is known that its tokens are wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import junit
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.upgrade import UpgradeWord
from tests.report.runs import GREEN, HOSTILE, MIXED, run_of, upgraded_by

WHY = "not counted: tokens are wrong"


def case(verdict, skipped=""):
    """The element that pytest makes of a verdict's properties."""
    element = ET.Element("testcase")
    properties = ET.SubElement(element, "properties")
    for name, value in junit.properties(verdict):
        ET.SubElement(properties, "property", name=name, value=value)
    if skipped:
        ET.SubElement(element, "skipped", message=skipped).text = f"test_speed.py:3: {skipped}"
    return element


@pytest.mark.parametrize(
    "fields, withheld",
    [
        ({}, True),
        ({"outcome": Outcome.INCONCLUSIVE}, True),
        ({"outcome": Outcome.FAIL}, False),
        ({"pair": "draft-k3"}, False),
        ({"family": Family.GREEDY}, False),
    ],
)
def test_only_a_speed_of_wrong_tokens_that_is_not_red_is_withheld(verdicts, fields, withheld):
    verdict = replace(verdicts["speed"], **{"outcome": Outcome.PASS, "pair": "ngram-k3", "headline": "2.16x", **fields})
    element = case(verdict, skipped="2.16x, skipped")
    junit.withhold_speed(element, ("ngram-k3",))
    assert ("2.16x" in ET.tostring(element, encoding="unicode")) is not withheld
    assert [p.get("value") for p in element.iter("property") if p.get("name") == "specdec.not_comparable"] == [WHY] * withheld


def test_a_case_without_properties_is_left_alone():
    element = ET.Element("testcase")
    junit.withhold_speed(element, ("ngram-k3",))
    assert ET.tostring(element) == b"<testcase />"


RESULT = {"message", "type"}
SCHEMA = {
    "testsuites": (set(), {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "timestamp"}, {"properties", "testcase"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "testcase": ({"classname", "name"}, {"failure", "error", "skipped", "system-out"}),
    **dict.fromkeys(("failure", "error", "skipped"), (RESULT, set())),
    "system-out": (set(), set()),
}
"""Attributes and children that the schema of Jenkins' xUnit plugin, junit-10.xsd of 2025-11, allows and we use."""


@pytest.fixture(params=[GREEN, MIXED, replace(GREEN, upgrade=upgraded_by(UpgradeWord.WORSE))], ids=["green", "mixed", "worse"])
def sample(request):
    return request.param


def lines_of(case):
    return dict(line.split(": ", 1) for line in case.findtext("system-out", "").splitlines() if line.startswith("specdec."))


def test_a_file_is_what_the_strictest_reader_takes(sample):
    root = ET.fromstring(junit.render(sample))
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = SCHEMA[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= children
        assert all(element.get(name) is not None for name in attributes - {"timestamp"})


def test_a_suite_counts_its_cases(sample):
    (suite,) = ET.fromstring(junit.render(sample))
    cases = suite.findall("testcase")
    counts = {"tests": len(cases), **{f"{name}s": len(suite.findall(f"testcase/{name}")) for name in ("failure", "error")}}
    assert {name: int(suite.get(name)) for name in counts} == counts
    assert counts["tests"] == len(sample.judgements) + (sample.upgrade is not None)
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))


def test_a_case_has_the_name_that_pytest_gives_it_and_the_properties_as_lines(judged, verdicts):
    nodeid = "suites/greedy/test_greedy.py::TestTokens::test_x[draft-k3]"
    case = ET.fromstring(junit.render(run_of(judged(verdicts["greedy"], nodeid=nodeid)))).find(".//testcase")
    assert (case.get("classname"), case.get("name")) == ("suites.greedy.test_greedy.TestTokens", "test_x[draft-k3]")
    assert lines_of(case) == dict(junit.properties(verdicts["greedy"]))


@pytest.mark.parametrize("prefix, classname", [("", "suites.a.test_it"), ("ci", "ci.suites.a.test_it")])
def test_a_pointer_is_in_the_case_of_its_own_module_alone(judged, verdicts, prefix, classname):
    """A test of the same name, pair, family and workload in another module is no follower."""
    name = "test_x[draft-k3-a::b]"
    nodeids = (f"suites/{module}::{name}" for module in ("test_0.py", "a/test_it.py"))
    failed = [judged(verdicts["failed"], PytestOutcome.FAILED, nodeid=nodeid) for nodeid in nodeids]
    by_case = junit.pointers(run_of(*failed), prefix)
    cases = [ET.Element("testcase", classname=where, name=name) for where in (classname, "suites.b.test_it", "a.test_it")]
    for element in cases:
        junit.add_pointer(element, by_case)
    assert [element.findtext("system-out", "") for element in cases] == [f"follows from suites/test_0.py::{name}: accept-all", "", ""]


def test_a_follower_names_its_leader_and_has_no_evidence_of_its_own(judged, verdicts):
    failed = [judged(replace(verdicts["failed"], workload=f"w{n}"), PytestOutcome.FAILED, nodeid=f"test_x.py::test_{n}") for n in range(2)]
    leader, follower = ET.fromstring(junit.render(run_of(*failed))).iter("testcase")
    assert "line one" in leader.findtext("failure")
    assert "--specdec-replay" in leader.findtext("failure").splitlines()[-1]
    assert follower.findtext("failure") == follower.findtext("system-out").splitlines()[0]
    assert "test_0" in follower.findtext("failure")


def test_a_speed_of_wrong_tokens_is_in_no_case(judged, verdicts):
    speed = judged(replace(verdicts["speed"], pair="ngram-k3", headline="2.16x"), nodeid="test_x.py::test_speed")
    text = junit.render(run_of(speed, judged(verdicts["failed"], PytestOutcome.FAILED, nodeid="test_x.py::test_tokens")))
    assert "2.16x" not in text
    assert lines_of(next(ET.fromstring(text).iter("testcase")))["specdec.not_comparable"] == WHY


def test_a_waiver_is_a_skip_with_its_bug(judged, verdicts):
    waived = judged(verdicts["failed"], PytestOutcome.WAIVED, waiver="https://example.com/bug/7")
    case = ET.fromstring(junit.render(run_of(waived))).find(".//testcase")
    assert case.find("skipped").get("type") == "fail"
    assert lines_of(case)["specdec.waiver"] == "https://example.com/bug/7"


def test_the_suite_has_the_environment_and_what_differs_from_a_baseline_files():
    values = {one.get("name"): one.get("value") for one in ET.fromstring(junit.render(MIXED)).iterfind("testsuite/properties/property")}
    assert values["specdec.class"] == "finding"
    assert values["specdec.environment.driver"] == "580.95.05"
    assert values["specdec.baseline.Python"] == "3.12.3 -> 3.11.7"
    assert "5 differences" in values["specdec.baseline"]


@pytest.mark.parametrize("word, error, element", [
    (UpgradeWord.FINE, "", None),
    (UpgradeWord.UNKNOWN, "", "skipped"),
    (UpgradeWord.UNKNOWN, "the old engine's session left no run.json", "error"),
    (UpgradeWord.WORSE, "", "failure"),
])  # fmt: skip
def test_an_upgrade_is_a_case_that_fails_where_it_fails_the_run(word, error, element):
    run = replace(GREEN, upgrade=upgraded_by(word, f"CHANGED {HOSTILE}"), status=replace(GREEN.status, error=error))
    (suite,) = ET.fromstring(junit.render(run))
    case = suite.findall("testcase")[-1]
    assert (case.get("classname"), case.get("name")) == ("specdec", "upgrade")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == len(run.judgements) + 1
    for name, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.get(count)) == len(suite.findall(f"testcase/{name}")) == (name == element)
    if element is not None:
        result = case.find(element)
        assert set(result.attrib) == RESULT
        assert result.get("message").startswith("CHANGED ␛[2J")
        assert ("of 6 answers" in (result.text or "")) == (element != "skipped")
