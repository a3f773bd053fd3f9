"""Texts by regular expression, choice and grammar: whole ones, beginnings, and what stands after or instead of them."""

from __future__ import annotations

import pytest

from pytest_specdec.judge.structured import text_grammars
from pytest_specdec.judge.structured.documents import Flaw
from pytest_specdec.judge.structured.text_grammars import Choices, GrammarText, Regex

PLATE = Regex(pattern="[A-Z]{2}-[0-9]{3}")
CITIES = Choices(texts=("New York", "New Delhi", "Newcastle"))
SUM = GrammarText(grammar='root ::= digit ("+" digit)* "=" digit\ndigit ::= [0-9]\n')
FLAWS = [
    (PLATE, "AB-123", None),
    (PLATE, "AB-1234", Flaw.BEHIND),
    (PLATE, "plate AB-123", Flaw.REGEX),
    (PLATE, "AB-12", Flaw.REGEX),
    (PLATE, "", Flaw.REGEX),
    (CITIES, "New Delhi", None),
    (CITIES, "New Delhi, I think", Flaw.BEHIND),
    (CITIES, "New", Flaw.CHOICE),
    (CITIES, "", Flaw.CHOICE),
    (SUM, "1+2=3", None),
    (SUM, "1+2=3!", Flaw.GRAMMAR),
    (SUM, "1+2", Flaw.CUT_OFF),
    (SUM, "ü", Flaw.GRAMMAR),
    (SUM, "", Flaw.CUT_OFF),
]


@pytest.mark.parametrize("wanted, text, flaw", FLAWS)
def test_a_whole_answer_is_of_its_grammar_or_has_a_flaw_with_its_place(wanted, text, flaw):
    reading = wanted.read(text, cut=False)
    assert (reading.flaw, bool(reading.fault)) == (flaw, flaw is not None)


@pytest.mark.parametrize("wanted, text, flaw", [
    (PLATE, "AB-", None),
    (PLATE, "", None),
    (PLATE, "AB-x", Flaw.REGEX),
    (CITIES, "New", None),
    (CITIES, "Newcastle upon", Flaw.BEHIND),
    (CITIES, "Old", Flaw.CHOICE),
    (SUM, "1+", None),
    (SUM, "1++", Flaw.GRAMMAR),
])  # fmt: skip
def test_a_cut_answer_is_judged_as_a_beginning(wanted, text, flaw):
    reading = wanted.read(text, cut=True)
    assert (reading.flaw, reading.complete) == (flaw, False)


def test_a_cut_answer_that_is_whole_all_the_same_is_complete():
    assert PLATE.read("AB-123", cut=True).complete
    assert CITIES.read("New York", cut=True).complete


def test_the_place_is_counted_in_characters():
    assert "character 2:" in GrammarText(grammar='root ::= "üü" "a"\n').read("üüb", cut=False).fault


def test_without_llguidance_only_an_empty_answer_to_a_grammar_is_wrong(monkeypatch):
    monkeypatch.setattr(text_grammars, "find_spec", lambda _: None)
    text_grammars._read.cache_clear()
    assert not SUM.read("nonsense", cut=False).fault
    assert SUM.read("", cut=False).fault
    assert not PLATE.read("AB-x", cut=True).fault
    text_grammars._read.cache_clear()


@pytest.mark.parametrize("grammar", ["root ::= (", "start: /(/"])
def test_a_grammar_that_cannot_be_compiled_judges_nothing(grammar):
    assert not GrammarText(grammar=grammar).read("anything", cut=False).fault
