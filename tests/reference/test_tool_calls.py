"""Tool calls read out of text: the same however the text is cut, and only what is a call is taken for one."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_reference.tool_calls import CallPiece, ToolCallReader

CALL = '<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def written(name, arguments):
    return CALL.format(name=json.dumps(name), arguments=json.dumps(arguments, ensure_ascii=False))


def read(parts, **options):
    """Return content and calls of a text that comes in parts."""
    reader, content, calls = ToolCallReader(**options), "", {}
    for number, part in enumerate(parts):
        reading = reader.take(part, ended=number == len(parts) - 1)
        content += reading.content
        for piece in reading.pieces:
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + piece.name, arguments + piece.arguments)
    return content, list(calls.values())


def by_whole_text(text):
    """Another way to read the same: all at once, by a regular expression and a JSON parser."""
    calls = [json.loads(found) for found in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)]
    return re.split("<tool_call>", text)[0], [(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls]


ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3))
)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["a", "get_weather", 'x"y']), ARGUMENTS), max_size=3),
    before=st.sampled_from(["", "Let me see.", "a < b", "<tool"]),
    cuts=st.lists(st.integers(1, 300), max_size=12),
)
def test_calls_are_the_same_however_the_text_is_cut(calls, before, cuts):
    text = before + "\n".join(written(name, arguments) for name, arguments in calls)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(places)] or [text]
    assert read(parts) == read([text]) == by_whole_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "no call <tool_cal",
        "<tool_call>\nnothing\n</tool_call>",
        '<tool_call>\n{"name": "a"}\n</tool_call> and more',
        '<tool_call>\n{"name": "a", "arguments": [1]}',
        "a </tool_call> alone",
        '<tool_call>\n{"name": "a\\q", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "a\nb", "arguments": {}}\n</tool_call>',
    ],
)
def test_what_only_looks_like_a_call_is_content(text):
    assert read([text]) == read(list(text)) == (text, [])


def test_a_tag_within_a_text_of_the_arguments_ends_nothing():
    text = written("a", {"text": "} </tool_call> {"}) + " done"
    assert read(list(text)) == ("done", [("a", '{"text": "} </tool_call> {"}')])


def test_a_call_that_a_limit_cut_keeps_what_came():
    assert read(['<tool_call>\n{"name": "a", "argu', 'ments": {"b": "c']) == ("", [("a", '{"b": "c')])


def test_only_one_of_several_calls_comes_where_they_may_not_be_parallel():
    text = written("a", {"n": 1}) + "\n" + written("b", {"n": 2})
    assert read(list(text), parallel=False) == ("", [("a", '{"n": 1}')])


def test_the_name_comes_first_and_once():
    reader = ToolCallReader()
    pieces = [piece for character in written("a", {"n": 1}) for piece in reader.take(character).pieces]
    assert pieces[0] == CallPiece(index=0, name="a", arguments="{")
    assert [piece.arguments for piece in pieces[1:]] == list('"n": 1}')
