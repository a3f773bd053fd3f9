"""A verdict as properties of its test case in a JUnit file: scalars, one line each. The speed of wrong tokens is taken out at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.run import NOT_COUNTED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from xml.etree.ElementTree import Element

    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import Run


def properties(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return names and values of the properties.

    JUnit readers show them as text, so nothing nested goes in.
    """
    return (
        ("specdec.outcome", verdict.outcome.value),
        ("specdec.family", verdict.family.value),
        ("specdec.pair", printable(verdict.pair)),
        ("specdec.workload", printable(verdict.workload)),
        ("specdec.headline", printable(verdict.headline)),
    )


def pointers(run: Run) -> dict[tuple[str | None, ...], str]:
    """Return the line of each follower, by the name of its test, pair, family and workload: a case knows no other id."""
    by_id = run.pointers
    return {
        (j.nodeid.rpartition("::")[2], *map(printable, (j.pair, j.family.value, j.workload))): by_id[j.nodeid]
        for j in run.judgements
        if j.nodeid in by_id
    }


def add_pointer(case: Element, by_test: Mapping[tuple[str | None, ...], str]) -> None:
    """Add to a follower's test case the failure that causes its own, as ``<system-out>``."""
    values = {one.get("name"): one.get("value") for one in case.iterfind("properties/property")}
    pointer = by_test.get((case.get("name"), *(values.get(f"specdec.{name}") for name in ("pair", "family", "workload"))))
    if pointer is not None:
        output = case.makeelement("system-out", {})
        output.text = printable(pointer)
        case.append(output)


def withhold_speed(case: Element, pairs: Collection[str]) -> None:
    """Remove the speed from a test case of ``pairs``.

    The case gets the reason instead. A red case stays, as it praises nothing.

    The wrong tokens are known only after the last test, and a case is written with its own.
    """
    property_list = case.find("properties")
    by_name = {} if property_list is None else {element.get("name"): element for element in property_list}
    values = {name: element.get("value") for name, element in by_name.items()}
    is_speed = values.get("specdec.family") == Family.SPEED.value and values.get("specdec.pair") in set(map(printable, pairs))
    if property_list is None or not is_speed or values.get("specdec.outcome") == Outcome.FAIL.value:
        return
    by_name["specdec.headline"].set("value", NOT_COUNTED)
    property_list.append(property_list.makeelement("property", {"name": "specdec.not_comparable", "value": NOT_COUNTED}))
    for skipped in case.findall("skipped"):
        skipped.set("message", NOT_COUNTED)
        skipped.text = None


FORMAT = ReportFormat(name="junit", target="--junit-xml", when=When.TEST, render=properties)
