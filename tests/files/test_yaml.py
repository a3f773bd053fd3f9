from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.errors import ConfigError
from pytest_specdec.files import yaml

SCALARS = [
    ("on", "on"),
    ("no", "no"),
    ("Yes", "Yes"),
    ("y", "y"),
    ("true", True),
    ("False", False),
    ("~", None),
    ("null", None),
    ("''", ""),
    ("1e-3", 0.001),
    ("1.5e+3", 1500.0),
    (".5", 0.5),
    ("1.", 1.0),
    ("-.inf", -math.inf),
    ("12:30:00", "12:30:00"),
    ("2026-11-21", "2026-11-21"),
    ("0o17", 15),
    ("017", 17),
    ("0x1F", 31),
    ("1_000", "1_000"),
    ("-12", -12),
    ("+3", 3),
    ("'1e-3'", "1e-3"),
    ("!!str 12", "12"),
    ("1.2.3", "1.2.3"),
    ("<<", "<<"),
    ("=", "="),
]


@pytest.mark.parametrize("text, value", SCALARS)
def test_scalars_are_read_as_yaml_1_2_says(text, value):
    found = yaml.load(f"key: {text}", "x.yaml").data
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_a_number_that_is_none_is_not_a_number():
    assert math.isnan(yaml.load(".nan", "x.yaml").data)


def test_keys_are_their_text():
    assert yaml.load("1: a\non: b\n~: c\n", "x.yaml").data == {"1": "a", "on": "b", "~": "c"}


def test_an_empty_file_holds_nothing():
    assert yaml.load("# only a comment\n", "x.yaml").data is None


LINES = """\
engine:
  kind: reference
  args:
    - one
    - {two: 2}
variants: {a: {}, b: {}}
"""


@pytest.mark.parametrize(
    "path, line",
    [
        ((), 1),
        (("engine",), 1),
        (("engine", "kind"), 2),
        (("engine", "kind", "below"), 2),
        (("engine", "args", 0), 4),
        (("engine", "args", 1, "two"), 5),
        (("engine", "args", 7), 3),
        (("variants", "b"), 6),
        (("absent", "below"), 1),
    ],
)
def test_a_value_knows_its_line_and_an_absent_one_that_of_its_nearest_ancestor(path, line):
    assert yaml.load(LINES, "x.yaml").line(path) == line


@pytest.mark.parametrize(
    "text, where, found",
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3", "the key 'a' again, first on line 1"),
        ("a: {b: 1, b: 2}\n", "x.yaml:1", "the key 'b' again, first on line 1"),
        ("a: 1\n on: 2\n  - x\n", "x.yaml:2", "mapping values are not allowed here"),
        ("a: [1, 2\n", "x.yaml:2", "expected ',' or ']', but got '<stream end>'"),
        ("? [a, b]\n: 1\n", "x.yaml:1", "a list or mapping as a key"),
        ("a: 1\nb: !!python/object:os.system x\n", "x.yaml:2", "'x' with the tag tag:yaml.org,2002:python/object:os.system"),
        ("a: !!int x\n", "x.yaml:1", "'x' with the tag tag:yaml.org,2002:int"),
        ("a: &x\n  b: *x\n", "x.yaml:1", "an alias inside its own anchor"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2", "but found another document"),
        ("a: 1\nb: \x07\n", "x.yaml:2", "a character that YAML does not allow: U+0007"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text, where, found):
    with pytest.raises(ConfigError) as caught:
        yaml.load(text, "x.yaml")
    assert (caught.value.where, caught.value.found) == (where, found)


def test_an_alias_stands_for_the_same_value_twice():
    assert yaml.load("a: &x {k: 1}\nb: *x\n", "x.yaml").data == {"a": {"k": 1}, "b": {"k": 1}}


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t \x85\u2028"))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.sampled_from([text for text, _ in SCALARS])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20)


@settings(deadline=None, derandomize=True)
@given(TREES)
def test_what_is_dumped_is_loaded_unchanged(data):
    assert yaml.load(yaml.dump(data), "x.yaml").data == data


def test_tuples_and_enums_are_dumped_plainly():
    from pytest_specdec.model.workload import Depth

    assert yaml.load(yaml.dump({"a": (1, 2), "b": Depth.SMOKE}), "x.yaml").data == {"a": [1, 2], "b": "smoke"}


def test_a_variable_that_is_not_quoted_inside_of_braces_brings_its_remedy():
    with pytest.raises(ConfigError, match=r'put \$\{VAR\} in quotes: "\$\{VAR\}"'):
        yaml.load("engine: {kind: vllm, model: ${X}}\n", "c.yaml")
    with pytest.raises(ConfigError) as caught:
        yaml.load("engine: {kind: vllm\n", "c.yaml")
    assert not caught.value.remedy
