"""A JUnit case of a speed, once it is known that its tokens are wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import junit

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
