"""Structured fields of the reference engine: each spelling binds the answer, with and without drafts, and wrong ones are refused."""

from __future__ import annotations

import json
import re

import pytest

from pytest_specdec.judge.structured.text_grammars import GrammarText
from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served

PATTERN = "[A-Z]{2}-[0-9]{3}(, [A-Z]{2}-[0-9]{3}){2,4}"
GBNF = 'root ::= move ("; " move){2,4} "."\nmove ::= ("left" | "right") " " [1-9]\n'
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
CHOICES = ["Newcastle upon Tyne", "New Delhi", "für"]
ASKED = [
    ({"structured_outputs": {"regex": PATTERN}}, lambda text: re.fullmatch(PATTERN, text)),
    ({"guided_regex": PATTERN}, lambda text: re.fullmatch(PATTERN, text)),
    ({"structured_outputs": {"choice": CHOICES}}, lambda text: text in CHOICES),
    ({"guided_choice": CHOICES}, lambda text: text in CHOICES),
    ({"structured_outputs": {"grammar": GBNF}}, lambda text: not GrammarText(grammar=GBNF).read(text, cut=False).fault),
    ({"guided_grammar": GBNF}, lambda text: not GrammarText(grammar=GBNF).read(text, cut=False).fault),
    ({"structured_outputs": {"json": SCHEMA}}, lambda text: json.loads(text).keys() == {"a"}),
    ({"guided_json": json.dumps(SCHEMA)}, lambda text: json.loads(text).keys() == {"a"}),
]


@pytest.fixture(scope="module", params=[None, PROBABILISTIC, NGRAM], ids=["baseline", "draft", "ngram"])
def client(request):
    with served(request.param) as client:
        yield client


@pytest.mark.examples(2)
@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("body, holds", ASKED, ids=[str(body)[:34] for body, _ in ASKED])
def test_each_spelling_binds_the_answer_at_every_position_of_a_window(client, body, holds, temperature):
    for seed in range(1, 4):
        answer = client.chat("Explain your answer first.", **body, temperature=temperature, seed=seed, max_tokens=96)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert holds(choice["message"]["content"]), choice


def test_any_object_is_an_object(client):
    for body in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}, {"guided_json_object": True}):
        assert client.chat("Name a city.", **body, temperature=0, max_tokens=8)["choices"][0]["message"]["content"].startswith("{")


REFUSED = [
    ({"structured_outputs": {"regex": "([a-z"}}, "structured_outputs", "invalid regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one kind"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs", "one kind"),
    ({"structured_outputs": {"choice": "yes"}}, "structured_outputs", "of a type"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs", "of a type"),
    ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs", "compiled"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "did you mean regex"),
    ({"guided_json": "{"}, "guided_json", "no JSON"),
    ({"guided_regex": 7}, "guided_regex", "of a type"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "must be an object"),
    ({"response_format": {"type": "xml"}}, "response_format", "must be text"),
]


@pytest.mark.parametrize("body, param, said", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_its_name(client, body, param, said):
    status, error = client.refused({"prompt": "x", **body})
    assert (status, error["param"]) == (400, param)
    assert said in error["message"]


@pytest.mark.parametrize("body", [{"structured_outputs": {}}, {"structured_outputs": None}, {"response_format": {"type": "text"}}])
def test_no_kind_binds_nothing(client, body):
    assert client.complete({"prompt": "x", "max_tokens": 2, **body})["choices"][0]["text"]
