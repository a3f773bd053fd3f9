"""A run as a JUnit file, and what pytest's own JUnit file gets of it: properties of its test cases and of the run.

A judgement is one test's result on one variant, a server with speculation; its verdict may be missing. A follower is a failure that another
failure explains; its pointer is the line that names that one. A waiver expects a known failure. An upgrade is the comparison with an
earlier run. The speed of a variant with wrong tokens is withheld: it shows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import environment, failure
from pytest_specdec.report.escape import printable
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.run import NOT_COUNTED, PytestOutcome
from pytest_specdec.report.upgrade import UpgradeWord
from pytest_specdec.report.upgrade import lines as upgrade_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.report.run import JudgementResult, Run
    from pytest_specdec.report.upgrade import Upgrade

_RESULTS = {
    PytestOutcome.FAILED: "failure",
    PytestOutcome.ERROR: "error",
    PytestOutcome.SKIPPED: "skipped",
    PytestOutcome.WAIVED: "skipped",
}
"""The element of a test case that did not pass; JUnit has no expected failure, so that pytest writes one as skipped too."""
_WITHHELD = "specdec.not_comparable"
"""Property of a test case whose speed does not count, since its variant has wrong tokens."""


def render(run: Run) -> str:
    """Return the run as a JUnit file, valid under Jenkins' strict schema.

    The schema of Jenkins' xUnit plugin allows no properties of test cases, and the plugin refuses whole files for one. So a case's
    properties are lines of its ``<system-out>``, under the names that they have in pytest's own JUnit file. The comparison with an earlier
    run is a case of its own, ``specdec.upgrade``, since it can fail a run whose tests all pass.
    """
    pointer_by_test = run.pointers
    made_at = {"timestamp": printable(run.made_at)} if run.made_at else {}
    suite = Element("testsuite", {"name": printable(f"specdec {run.plan.config}"), **_count_results(run), **made_at})
    _add_properties(suite, suite_properties(run))
    for judgement in run.judgements:
        suite.append(_case(judgement, pointer_by_test.get(judgement.nodeid, ""), run.not_counted))
    if run.upgrade is not None:
        suite.append(_upgrade_case(run.upgrade, _upgrade_result(run)))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suites, encoding="unicode")}\n'


def _count_results(run: Run) -> dict[str, str]:
    """Return the numbers of cases by result, the upgrade among them, as attributes of the suite."""
    elements = [_RESULTS.get(judgement.result) for judgement in run.judgements]
    elements += [_upgrade_result(run)] if run.upgrade is not None else []
    counts = {f"{name}s": elements.count(name) for name in ("failure", "error")}
    return {name: str(count) for name, count in {"tests": len(elements), **counts, "skipped": elements.count("skipped")}.items()}


def _upgrade_result(run: Run) -> str | None:
    """Return the name of the element in the upgrade's test case; None if it passes, or if there is no upgrade.

    A worse upgrade is a failure. An unknown one is skipped, since it fails no run; it is an error if an error ended the capture, since
    that does fail the run.
    """
    if run.upgrade is None or run.upgrade.word is UpgradeWord.FINE:
        return None
    if run.is_worse:
        return "failure"
    return "error" if run.status is not None and run.status.error else "skipped"


def _upgrade_case(upgrade: Upgrade, element: str | None) -> Element:
    """Return the ``testcase`` element of an upgrade, with its result inside.

    ``element`` is the name of the element for the result: failure, error or skipped; None for a pass, which has none. The headline is its
    message. A failure or an error also has the comparison's lines as text, a skipped case has its message alone.
    """
    case = Element("testcase", {"classname": "specdec", "name": "upgrade"})
    if element is not None:
        result = SubElement(case, element, {"message": printable(upgrade.headline), "type": upgrade.word.value})
        result.text = "\n".join(map(printable, upgrade_lines(upgrade))) if element != "skipped" else None
    return case


def suite_properties(run: Run) -> tuple[tuple[str, str], ...]:
    """Return the properties of the whole run as names and values.

    They are its class, its comparison with an earlier run, its environment, and what differs from that by baseline file. Names may recur.
    """
    return tuple((printable(name), printable(value)) for name, value in _suite_properties(run))


def _suite_properties(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the properties of the whole run before they are made printable."""
    yield "specdec.class", run.run_class.value
    if run.upgrade is not None:
        yield from _upgrade_properties(run.upgrade)
    for name, value in environment.conditions(run.environment).items():
        yield f"specdec.environment.{name.replace(' ', '.')}", value
    for difference in environment.baseline_differences(run):
        yield "specdec.baseline", difference.headline
        for change in difference.changes:
            yield f"specdec.baseline.{change.what.replace(' ', '.')}", f"{change.old} -> {change.new}"
    if note := environment.missing_baseline_note(run):
        yield "specdec.baseline", note


def _upgrade_properties(upgrade: Upgrade) -> Iterator[tuple[str, str]]:
    """Yield the properties of an upgrade, with its corners arm by arm.

    The corners are a table of both runs by arm; its first row is the header.
    """
    yield "specdec.upgrade", upgrade.word.value
    yield "specdec.upgrade.earlier", upgrade.earlier
    yield "specdec.upgrade.headline", upgrade.headline
    yield from (("specdec.upgrade.change", name) for name in upgrade.changes)
    for row in upgrade.corners[1:]:
        arm = row.arm.replace(" ", ".")
        yield from ((f"specdec.upgrade.{arm}.{corner}", getattr(row, corner)) for corner in ("old", "new", "change"))


def _add_properties(suite: Element, values: tuple[tuple[str, str], ...]) -> None:
    """Add properties, as names and values, to the suite's element."""
    properties_element = SubElement(suite, "properties")
    for name, value in values:
        SubElement(properties_element, "property", {"name": name, "value": value})


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseName:
    """What tells one test case from all others."""

    classname: str
    """The dotted module, and the classes in it."""
    name: str
    """The test with its parameters."""


def _case_name(nodeid: str, prefix: str = "") -> CaseName:
    """Return a test's name as pytest writes it, with ``prefix`` before the module.

    Parameters begin at the first bracket and may hold ``::``.
    """
    test, bracket, parameters = nodeid.partition("[")
    path, *names = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    classname = ".".join([*([prefix] if prefix else []), module, *names[:-1]])
    return CaseName(classname=classname, name=(names[-1] if names else path) + bracket + parameters)


def _case(judgement: JudgementResult, pointer: str, not_counted: Collection[str]) -> Element:
    """Return the ``testcase`` element of a judgement, named as by pytest.

    ``pointer`` is a follower's, shown in place of its evidence; empty for other judgements. ``not_counted`` are the variants with wrong
    tokens. The pointer comes again in ``<system-out>``, as in pytest's own file, and the properties as lines below it.
    """
    case_name = _case_name(judgement.nodeid)
    case = Element("testcase", {"classname": printable(case_name.classname), "name": printable(case_name.name)})
    properties_by_name = _case_properties(judgement, not_counted)
    element = _RESULTS.get(judgement.result)
    if element is not None:
        # Without a verdict there is neither property: then the error's first line, and pytest's word, stand in.
        message = properties_by_name.get("specdec.headline") or printable(judgement.error.partition("\n")[0])
        result = SubElement(case, element, {"message": message, "type": properties_by_name.get("specdec.outcome", judgement.result.value)})
        result.text = _explain(judgement, pointer) if element != "skipped" else None
    lines = [*([printable(pointer)] if pointer else []), *(f"{name}: {value}" for name, value in properties_by_name.items())]
    if lines:
        SubElement(case, "system-out").text = "\n".join(lines)
    return case


def _case_properties(judgement: JudgementResult, not_counted: Collection[str]) -> dict[str, str]:
    """Return the properties of a judgement's case by name, a withheld speed replaced by the reason."""
    by_name = dict(properties(judgement.verdict)) if judgement.verdict else {}
    if judgement.waiver:
        by_name["specdec.waiver"] = printable(judgement.waiver)
    if _is_withheld(by_name, not_counted):
        by_name |= {"specdec.headline": NOT_COUNTED, _WITHHELD: NOT_COUNTED}
    return by_name


def _explain(judgement: JudgementResult, pointer: str) -> str:
    """Return the text inside a ``failure`` or ``error`` element.

    It is the evidence with the command that judges the same answers again. A follower has its ``pointer`` alone.
    """
    if pointer:
        return printable(pointer)
    error = "\n".join(map(printable, judgement.error.split("\n")))
    text = failure.section(judgement.verdict) if judgement.verdict else error
    return f"{text}\nreplay: {printable(judgement.replay)}" if judgement.replay else text


def properties(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return a test case's properties, as names and values, from its verdict.

    JUnit readers show them as text, so nothing nested is among them.
    """
    return (
        ("specdec.outcome", verdict.outcome.value),
        ("specdec.family", verdict.family.value),
        ("specdec.pair", printable(verdict.pair)),
        ("specdec.workload", printable(verdict.workload)),
        ("specdec.headline", printable(verdict.headline)),
    )


def pointers(run: Run, prefix: str = "") -> dict[CaseName, str]:
    """Return each follower's pointer, by the name of its test case.

    Cases are in pytest's own file. ``prefix`` is that of its class names, by ``--junit-prefix``.
    """
    return {_case_name(nodeid, prefix): pointer for nodeid, pointer in run.pointers.items()}


def add_pointer(case: Element, by_case: Mapping[CaseName, str]) -> None:
    """Add a follower's pointer to its test case, as ``<system-out>``.

    ``by_case`` is the result of :func:`pointers`. Any other case stays as it is.
    """
    pointer = by_case.get(CaseName(classname=case.get("classname", ""), name=case.get("name", "")))
    if pointer is not None:
        output = case.makeelement("system-out", {})
        output.text = printable(pointer)
        case.append(output)


def withhold_speed(case: Element, pairs: Collection[str]) -> None:
    """Replace the speed in a test case of ``pairs`` by a reason.

    ``case`` is one of pytest's own file, and ``pairs`` are the variants with wrong tokens. This is done after the last test, since only
    then all wrong tokens are known. Cases of other families stay as they are, and so do failed verdicts on speed, which show no good speed.
    The reason replaces the headline, and the text of a skipped case, which may state the speed.
    """
    property_elements = case.find("properties")
    by_name = {} if property_elements is None else {element.get("name", ""): element for element in property_elements}
    values = {name: element.get("value", "") for name, element in by_name.items()}
    if property_elements is None or not _is_withheld(values, pairs):
        return
    by_name["specdec.headline"].set("value", NOT_COUNTED)
    property_elements.append(property_elements.makeelement("property", {"name": _WITHHELD, "value": NOT_COUNTED}))
    for skipped in case.findall("skipped"):
        skipped.set("message", NOT_COUNTED)
        skipped.text = None


def _is_withheld(values: Mapping[str, str], pairs: Collection[str]) -> bool:
    """Return True if a case's speed is to be withheld.

    ``values`` are the case's properties by name. True for verdicts on the speed of ``pairs``, unless the verdict is a failure.
    """
    is_speed = values.get("specdec.family") == Family.SPEED.value and values.get("specdec.pair") in set(map(printable, pairs))
    return is_speed and values.get("specdec.outcome") != Outcome.FAIL.value


FORMAT = ReportFormat(name="junit", target="junit.xml", when=When.FILES, render=render)
