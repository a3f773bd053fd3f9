"""The comparison with what was frozen: what differs is named, and rounding is no difference."""

from __future__ import annotations

import math

import pytest

from benchmarks.equality import plans
from benchmarks.equality.difference import differences
from pytest_specdec.model.workload import Family


@pytest.mark.parametrize(
    "frozen, now, lines",
    [
        ({"a": {"x": 1.0}}, {"a": {"x": 1.0 + 1e-13}}, []),
        ({"a": {"x": 1.0}}, {"a": {"x": 1.0 + 1e-9}}, ["a.x: '1.0' -> '1.000000001'"]),
        ({"a": {"x": "pass"}}, {"a": {"x": "fail"}}, ["a.x: 'pass' -> 'fail'"]),
        ({"a": ["l", "m"]}, {"a": ["l", "n"]}, ["a[1]: 'm' -> 'n'"]),
        ({"a": ["l"]}, {"a": ["l", "n"]}, ["a: \"['l']\" -> \"['l', 'n']\""]),
        ({"a": 1, "b": 2}, {"b": 2, "c": 3}, ["a: gone", "c: new"]),
        ({"a": {"x": None}}, {"a": {"y": None}}, ["a.x: gone", "a.y: new"]),
        ({"a": math.nan}, {"a": math.nan}, []),
    ],
)
def test_every_difference_but_rounding_is_a_line(frozen, now, lines):
    assert list(differences(frozen, now)) == lines


def test_every_suite_is_in_it():
    assert {selected.family for selected in plans.suites()} == set(Family)
