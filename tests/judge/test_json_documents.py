from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.judge.structured.json_documents import scan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ASCII = st.booleans()


@given(VALUES, ASCII, st.sampled_from([None, 2]))
def test_every_prefix_of_a_document_is_a_prefix(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert all(scan(text[:end]).bad is None for end in range(len(text) + 1))
    assert scan(text).complete


@given(VALUES, st.sampled_from(["}", "]", "x", ":", '"', "{", "\x00"]))
def test_a_document_followed_by_garbage_is_no_prefix(value, garbage):
    text = json.dumps(value) + " "
    assert scan(text + garbage).bad == len(text)


@given(st.lists(st.sampled_from(list('{}[]",:01.eE+-\\u truefalsn\n\x01')), max_size=12).map("".join))
def test_completeness_agrees_with_the_standard_parser(text):
    try:
        json.loads(text)
        whole = True
    except json.JSONDecodeError:
        whole = False
    assert scan(text).complete == whole


@pytest.mark.parametrize(
    "text, bad, wanted",
    [
        ('{{"a": 1}', 1, "a key or }"),
        ("```json\n{}", 0, "a value"),
        ('{"a" 1', 5, "a colon"),
        ("[1 2]", 3, "a comma or the end of its container"),
        ("[1,]", 3, "a value"),
        ('{"a": 1,}', 8, "a key"),
        ('{"a": 1]', 7, "a comma or the end of its container"),
        ('{"a": "x\x01"', 8, "a character or escape that a string may hold"),
        (r'"\x"', 1, "a character or escape that a string may hold"),
        (r'"\u12g4"', 1, "a character or escape that a string may hold"),
        ("-x", 1, "a digit"),
        ("01", 1, "the end"),
        ("[truth", 1, "a value or ]"),
        ("{} {}", 3, "the end"),
        ("NaN", 0, "a value"),
    ],
)
def test_the_first_bad_character_is_found_and_says_what_could_stand_there(text, bad, wanted):
    assert (scan(text).bad, scan(text).wanted) == (bad, wanted)


@pytest.mark.parametrize("text", ["", " ", "-", "1.", "1e", "1E+", '"', r'"\u00', '"\\', "nul", "[", '{"a"', '{"a":', '{"a":1,', "[[[["])
def test_a_document_cut_anywhere_is_a_prefix_and_not_complete(text):
    assert scan(text).bad is None
    assert not scan(text).complete


def test_hostile_nesting_is_read_without_recursion():
    assert scan("[" * 100_000).depth == 100_000
