from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec
from pytest_specdec.model.baseline import Environment, Gate
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.status import Progress, Status
from pytest_specdec.model.transcript import Score, Transcript
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Request

VALUES = [Plan, Transcript, Score, Status, Progress, Environment, Capabilities, Verdict, Gate]

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s), max_leaves=5
)


INTEGERS = st.integers(1 - 2**63, 2**63 - 1)
FLOATS = st.floats(-1e39, 1e39) | st.sampled_from((float("inf"), float("-inf")))


def values_of(hint):
    """Values of any annotation that the model uses."""
    plain = {str: st.text(), int: INTEGERS, float: FLOATS, bool: st.booleans(), object: JSON_VALUES}
    if hint in plain:
        return plain[hint]
    if is_dataclass(hint):
        hints = get_type_hints(hint, localns={"JSON": object})
        return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return values_of_generic(get_origin(hint), get_args(hint))


def values_of_generic(origin, args):
    if origin is tuple and args[1:] == (...,):
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, args))
    if origin is Mapping:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(args)
    return st.none() | st.one_of(*(values_of(arg) for arg in args if arg is not type(None)))


@pytest.mark.examples(2)
@pytest.mark.parametrize("cls", VALUES)
def test_every_value_survives_the_way_to_json_and_back(cls):
    @settings(deadline=None, derandomize=True)
    @given(values_of(cls))
    def check(value):
        text = json.dumps(codec.encode(value), allow_nan=False)
        assert codec.decode(cls, json.loads(text)) == value

    check()


@pytest.mark.parametrize(
    "promise, expected",
    [
        ({"tokens": 3}, "one of speedup, accepted length, "),
        ({"kind": ["checked tokens"]}, "one of speedup, "),
        ({"kind": "checked tokens", "tokens": 3, "prompts": 2}, "one of kind, tokens"),
        (["checked tokens"], "an object with a kind"),
    ],
)
def test_one_of_several_values_is_told_by_its_kind(promise, expected):
    verdict = {"outcome": "pass", "family": "speed", "pair": "p", "workload": "w", "headline": "", "promise": promise}
    with pytest.raises(RunError) as error:
        codec.decode(Verdict, verdict)
    assert error.value.where == "promise"
    assert error.value.expected.startswith(expected)


def test_a_whole_number_is_a_number():
    found = codec.decode(Status, {"state": "complete", "wall_s": 3})
    assert found.wall_s == 3.0
    assert isinstance(found.wall_s, float)


def test_what_is_not_finite_is_a_word():
    gate = Gate(figure="speedup", log_ratios=(float("inf"), float("-inf")))
    assert codec.encode(gate)["log_ratios"] == ["inf", "-inf"]


@pytest.mark.parametrize("levels, fine", [(99, True), (101, False), (5_000, False)])
def test_free_json_is_nested_as_deep_as_requests_have_it(levels, fine):
    deep = 0
    for _ in range(levels):
        deep = [deep]
    data = {"id": "a", "route": "completions", "body": {"x": deep}}
    if fine:
        codec.decode(Request, data)
    else:
        with pytest.raises(RunError, match="this is no Request"):
            codec.decode(Request, data)


WRONG = [
    ({"state": "complete", "wall_s": 1e308}, "wall_s", "1e+308", "a number of at most 1e+39"),
    ({"state": "complete", "boots": 10**400}, "boots", "a longer number", "a whole number of at most 9.223372e+18"),
    ({"state": "complete", "wall_s": 10**400}, "wall_s", f"1{'0' * 199}", "a number of at most 1e+39"),
    ({}, "state", "nothing", "a value"),
    ({"state": "done"}, "state", "'done'", "one of running, complete, incomplete"),
    ({"state": "complete", "boots": True}, "boots", "True", "a whole number"),
    ({"state": "complete", "boots": 1.5}, "boots", "1.5", "a whole number"),
    ({"state": "complete", "wall_s": "long"}, "wall_s", "'long'", "a number"),
    ({"state": "complete", "error": None}, "error", "None", "a string"),
    ({"state": "complete", "missing": {}}, "missing", "{}", "a list"),
    ({"state": "complete", "missing": [{"arm": "a", "workload": "w"}]}, "missing[0].reason", "nothing", "a value"),
    ({"state": "complete", "missing": [7]}, "missing[0]", "7", "the fields of a MissingAnswers"),
    ([], "", "[]", "the fields of a Status"),
]


@pytest.mark.parametrize("data, where, found, expected", WRONG)
def test_what_does_not_fit_is_told_with_its_path(data, where, found, expected):
    with pytest.raises(RunError) as caught:
        codec.decode(Status, data)
    assert (caught.value.where, caught.value.found, caught.value.expected) == (where, found, expected)


def test_an_unknown_field_is_told():
    with pytest.raises(RunError, match="an unknown field 'colour'"):
        codec.decode(Status, {"state": "complete", "colour": "red"})


@dataclass(frozen=True)
class Pairs:
    scores: tuple[tuple[str, str], ...]


@pytest.mark.parametrize("pair, where", [(["a"], "scores[0]"), (["a", 1], "scores[0][1]")])
def test_pairs_are_checked_item_by_item(pair, where):
    with pytest.raises(RunError) as caught:
        codec.decode(Pairs, {"scores": [pair]})
    assert caught.value.where == where


def test_a_mapping_of_another_type_is_told():
    with pytest.raises(RunError, match=r"support\.seed"):
        codec.decode(Capabilities, {"support": {"seed": "maybe"}})


def test_what_has_no_json_is_a_programming_error():
    with pytest.raises(TypeError, match="no JSON for"):
        codec.encode({1, 2})


@dataclass
class Odd:
    items: set[str]


def test_an_annotation_that_the_codec_does_not_know_is_a_programming_error():
    with pytest.raises(TypeError, match="the codec knows no"):
        codec.decode(Odd, {"items": []})
