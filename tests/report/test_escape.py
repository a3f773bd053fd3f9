from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.report.escape import escape, printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain", "plain"),
        ("Zürich 東京 🙂", "Zürich 東京 🙂"),
        ("a\nb\rc\td", "a␊b␍c␉d"),
        ("\x1b[2J", "␛[2J"),
        ("\x7f\x9b31m", "\\u007f\\u009b31m"),
        ("\u202eleft", "\\u202eleft"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
    ],
)
def test_what_moves_a_cursor_or_turns_a_line_becomes_visible(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters(categories=None)))
def test_any_text_becomes_one_encodable_line(text):
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_markdown_shows_a_hostile_text_as_it_stands():
    assert escape("<b>|`*[x](y)") == "&lt;b&gt;\\|\\`\\*\\[x\\](y)"
