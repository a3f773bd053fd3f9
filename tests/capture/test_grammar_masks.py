from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from pytest_specdec.capture.grammar_masks import MaskComputer, compute
from pytest_specdec.config import load
from pytest_specdec.engines.llguidance import GrammarBackend
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.files import grammar_masks, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.transcript import Answer, Choice, Position, Score, Transcript
from pytest_specdec.model.workload import GrammarKind, Request, Route, Workload
from specdec_reference.grammar import Grammars

TARGET = Path(str(resources.files("specdec_reference"))) / "checkpoints" / "target"
TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
VOCABULARY = TOKENIZER.get_vocab_size(with_added_tokens=True)
EOS = 2
DRAFTING = "speculative-config: {method: ngram, num_speculative_tokens: 3}"
PLATE = "[A-Z]{2}-[0-9]{3}"
SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
BACKEND = GrammarBackend(checkpoint=TARGET, eos_ids=(EOS,), json_options={"whitespace_flexible": True}, release="0.0.1")


def ids(text, *, ended=True):
    return (*TOKENIZER.encode(text, add_special_tokens=False).ids, *([EOS] if ended else []))


def request(body):
    return Request(id="one", route=Route.CHAT, body={"messages": [], **body})


def computed(body, token_ids, *, backend=BACKEND, positions=(), others=(), **choice):
    workload = Workload(name="w", version=1, requests=(request(body), Request(id="two", route=Route.CHAT, body=body)))
    choices = (Choice(token_ids=tuple(token_ids), finish_reason="stop", **choice),)
    answers = (Answer(request_id="one", status=200, choices=choices), *others)
    transcript = Transcript(arm="v", boot=0, workload="w", digest="", answers=answers)
    scores = (Score(request_id="one", arm="v", under="baseline", positions=tuple(positions)),) if positions else ()
    return MaskComputer(backend).masks(workload, transcript, scores)


REGEX = {"structured_outputs": {"regex": PLATE}}


def may_follow(before, token):
    """Whether a token keeps a text a beginning of a plate, by matching it character by character."""
    if token == EOS:
        return bool(re.fullmatch(PLATE, before))
    text = TOKENIZER.decode([token], skip_special_tokens=False)
    longer = before + text
    classes = ("[A-Z]", "[A-Z]", "-", "[0-9]", "[0-9]", "[0-9]")
    return bool(text) and len(longer) <= len(classes) and all(re.fullmatch(c, x) for c, x in zip(classes, longer, strict=False))


def test_as_many_tokens_are_allowed_as_brute_force_over_the_vocabulary_allows():
    token_ids = ids("AB-123")
    (found,) = computed(REGEX, token_ids).answers
    befores = [TOKENIZER.decode(list(token_ids[:i])) for i in range(len(token_ids))]
    assert found.forbidden is None
    assert found.allowed == tuple(sum(may_follow(before, token) for token in range(VOCABULARY)) for before in befores)


@pytest.mark.parametrize("text, taken", [("AB 123", 2), ("no", 0)])
def test_the_first_forbidden_token_is_found_and_nothing_behind_it_is_followed(text, taken):
    token_ids = [i for character in text for i in ids(character, ended=False)]
    (found,) = computed(REGEX, token_ids).answers
    assert (found.forbidden, len(found.allowed)) == (taken, taken + 1)


def test_an_end_is_allowed_where_the_document_may_end_and_nowhere_else():
    assert computed(REGEX, ids("AB-123")).answers[0].forbidden is None
    early = ids("AB-12")
    assert computed(REGEX, early).answers[0].forbidden == len(early) - 1


def test_the_best_allowed_one_of_the_scored_tokens_is_found():
    token_ids = ids("AB-123", ended=False)
    (good,), (space,) = ids("A", ended=False), ids(" ", ended=False)
    positions = [Position(token_id=t, logprob=-1.0, top_ids=(space, EOS, good), top_logprobs=(-0.1, -0.2, -0.3)) for t in token_ids]
    (found,) = computed(REGEX, token_ids, positions=positions).answers
    assert found.best[0] == 2
    assert found.best[-1] == -1, "a plate's digits"
    assert computed(REGEX, token_ids, positions=positions[:-1]).answers[0].best == (), "scores of other tokens place nothing"


FORMATS = [
    ({"response_format": {"type": "json_object"}}, '{"a": [1]}', GrammarKind.JSON_OBJECT, True),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
        '{"on": true}',
        GrammarKind.JSON,
        SCHEMA,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, '{"on": false}', GrammarKind.JSON, SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"on": false}', GrammarKind.JSON, SCHEMA),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", GrammarKind.CHOICE, ["yes", "no"]),
    ({"guided_choice": ["yes", "no"]}, "yes", GrammarKind.CHOICE, ["yes", "no"]),
    ({"structured_outputs": {"grammar": 'root ::= "a" | "b"\n'}}, "b", GrammarKind.GRAMMAR, 'root ::= "a" | "b"\n'),
    (REGEX, "XY-000", GrammarKind.REGEX, PLATE),
]


@pytest.mark.parametrize("body, text, kind, specification", FORMATS)
def test_masks_are_those_of_the_reference_engine_under_its_own_options(body, text, kind, specification, tmp_path):
    backend = _reference_backend(tmp_path)
    (found,) = computed(body, ids(text), backend=backend).answers
    grammars = Grammars(TARGET / "tokenizer.json", backend.eos_ids)
    grammar = grammars.start(grammars.compiled(kind, specification))
    counts = []
    for token in ids(text):
        counts.append(int(np.count_nonzero(grammar.mask())))
        grammar.advance(token)
    assert (found.forbidden, found.allowed) == (None, tuple(counts))


def _reference_backend(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(f"engine: {{kind: reference, model: target}}\nvariants: {{v: {{args: {{{DRAFTING}}}}}}}\n")
    return engine_of("reference").grammar_backend(load.load(path))


def test_the_white_space_of_documents_is_the_servers():
    body = {"response_format": {"type": "json_object"}}
    spaced = ids('{ "a" : 1 }')
    assert computed(body, spaced).answers[0].forbidden is None
    compact = replace(BACKEND, json_options={"whitespace_flexible": False})
    assert computed(body, spaced, backend=compact).answers[0].forbidden is not None


def test_requests_without_a_grammar_have_none():
    assert computed({"response_format": {"type": "text"}}, ids("hello")).answers == ()
    assert computed({}, ids("hello")).answers == ()


def test_a_grammar_that_llguidance_cannot_compile_leaves_its_answers_unread():
    (found,) = computed({"structured_outputs": {"regex": "([a-z"}}, ids("a")).answers
    assert found.unread.startswith("llguidance cannot compile its grammar")


def test_the_mask_begins_behind_the_reasoning_where_its_end_is_a_token(tmp_path):
    described = json.loads((TARGET / "tokenizer.json").read_text())
    end = next(token for token in described["added_tokens"] if token["content"] == "<tool_call>")
    end["content"] = "</think>"
    del described["model"]["vocab"]["<tool_call>"]
    described["model"]["vocab"]["</think>"] = end["id"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    backend = replace(BACKEND, checkpoint=tmp_path)
    thought = (*ids("so it is", ended=False), end["id"])
    (found,) = computed(REGEX, (*thought, *ids("AB-123")), backend=backend, reasoning="so it is").answers
    assert (found.start, found.forbidden) == (len(thought), None)


def test_an_answer_with_a_reasoning_of_unknown_end_is_left_unread_and_so_are_those_beside_it():
    beside = Answer(request_id="two", status=200, choices=(Choice(token_ids=ids("AB-123")),))
    found = computed(REGEX, ids("well AB-123"), reasoning="well", others=(beside,)).answers
    assert [one.unread for one in found] == ["its reasoning ends at no token that is known"] * 2


def test_an_answer_cut_within_its_reasoning_has_no_token_to_follow(tmp_path):
    text = (TARGET / "tokenizer.json").read_text().replace('"<tool_call>"', '"</think>"')
    (tmp_path / "tokenizer.json").write_text(text)
    workload = Workload(name="w", version=1, requests=(request(REGEX),))
    cut = Choice(token_ids=ids("well", ended=False), reasoning="well", finish_reason="length")
    answers = (Answer(request_id="one", status=200, choices=(cut,)),)
    transcript = Transcript(arm="v", boot=0, workload="w", digest="", answers=answers)
    (found,) = MaskComputer(replace(BACKEND, checkpoint=tmp_path)).masks(workload, transcript, ()).answers
    assert (found.allowed, found.unread) == ((), "")


@pytest.mark.parametrize(
    "changes, said",
    [({"unknown": "an odd option"}, "an odd option"), ({"checkpoint": Path("/nowhere")}, "cannot read the tokenizer")],
)
def test_masks_that_cannot_be_computed_say_why(changes, said):
    found = computed(REGEX, ids("AB-123"), backend=replace(BACKEND, **changes))
    assert said in found.missing
    assert found.answers == ()


def test_without_the_package_nothing_is_computed_and_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr("pytest_specdec.capture.grammar_masks.find_spec", lambda _: None)
    found = computed(REGEX, ids("AB-123"))
    assert (found.release, found.answers) == ("", ())
    assert "pip install 'pytest-specdec[llguidance]'" in found.missing


def test_masks_of_all_arms_are_written_where_the_backend_is_known(tmp_path):
    directory, plan, config = _run(tmp_path, "reference", "")
    compute(config, plan, directory)
    for arm in ("baseline", "v"):
        (found,) = grammar_masks.read(directory, arm, "w").answers
        assert found.forbidden is None
    assert grammar_masks.read(directory, "control", "w") is None, "nothing was answered"
    assert grammar_masks.read(directory, "baseline", "plain") is None, "no grammar binds it"


@pytest.mark.parametrize("kind, engine", [("mlx_lm", ""), ("reference", ", url: 'http://127.0.0.1:1'"), ("reference", ", image: x")])
def test_nothing_is_written_where_the_backend_is_not_known(kind, engine, tmp_path):
    directory, plan, config = _run(tmp_path, kind, engine)
    compute(config, plan, directory)
    assert grammar_masks.read(directory, "v", "w") is None


@dataclass
class _Plan:
    """The parts of a plan that are read."""

    workloads: tuple[Workload, ...]
    pairs: tuple[SimpleNamespace, ...] = (SimpleNamespace(name="v"),)


def _run(tmp_path, kind, engine):
    path = tmp_path / "one.yaml"
    path.write_text(f"engine: {{kind: {kind}, model: target{engine}}}\nvariants: {{v: {{args: {{{DRAFTING}}}}}}}\n")
    directory = RunDirectory.create(tmp_path / "run")
    workloads = tuple(Workload(name=name, version=1, requests=(request(body),)) for name, body in {"w": FORMATS[1][0], "plain": {}}.items())
    for arm in ("baseline", "v"):
        answers = (Answer(request_id="one", status=200, choices=(Choice(token_ids=ids('{"on": true}')),)),)
        for workload in workloads:
            transcripts.write(directory, Transcript(arm=arm, boot=0, workload=workload.name, digest="", answers=answers))
    return directory, _Plan(workloads), load.load(path)
