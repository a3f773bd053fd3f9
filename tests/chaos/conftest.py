"""Faults planted in servers, sockets, signals, files and configs: each test says what should come of one, and what was seen.

``make chaos`` prints the table. A test without ``quick=True`` is left to that command; the others are CI's half.
"""

from __future__ import annotations

import pytest

_FAULT, _EXPECTED, _SEEN = "chaos.fault", "chaos.expected", "chaos.seen"
_WIDEST = 78


def pytest_configure(config):
    config.addinivalue_line(
        "markers", 'chaos(fault, expected="…", quick=False): plants ``fault``; ``expected`` is what should be seen of it; quick: in CI too'
    )


@pytest.fixture(autouse=True)
def seen(request):
    """Return what records the outcome of the planted fault, in words, and asserts that it is the expected one."""
    mark = request.node.get_closest_marker("chaos")
    if mark is None:
        pytest.fail("a test in tests/chaos needs @pytest.mark.chaos(fault, expected=…)")
    expected = mark.kwargs["expected"]
    recorded = []

    def record(outcome):
        recorded.append(outcome)
        request.node.user_properties.append((_SEEN, outcome))
        assert outcome == expected

    request.node.user_properties.extend([(_FAULT, mark.args[0]), (_EXPECTED, expected)])
    yield record
    if not recorded:
        request.node.user_properties.append((_SEEN, "nothing: the test ended before it saw what came of the fault"))
        pytest.fail("the test never called seen(…)")


def pytest_terminal_summary(terminalreporter):
    rows = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            told = dict(getattr(report, "user_properties", ()))
            if _FAULT in told and (report.when == "call" or report.outcome != "passed"):
                rows[report.nodeid] = (told[_FAULT], told[_EXPECTED], told.get(_SEEN, "nothing"), report.passed)
    if not rows:
        return
    terminalreporter.section("fault → expected → seen")
    for fault, expected, outcome, as_expected in rows.values():
        sign = "as expected" if as_expected else "NOT AS EXPECTED"
        terminalreporter.line(f"{_cut(fault)}\n    expected  {expected}\n    seen      {outcome}   [{sign}]")
    good = sum(as_expected for *_, as_expected in rows.values())
    terminalreporter.line(f"{good} of {len(rows)} faults as expected")


def _cut(text):
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
