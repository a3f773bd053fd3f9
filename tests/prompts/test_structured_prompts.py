"""Structured workloads: every schema and grammar asked for, with and without seeds, by prompts that pull away from them."""

from __future__ import annotations

from jsonschema import Draft202012Validator

from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.model.grammar import GrammarKind
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import structured
from pytest_specdec.prompts.graded_schemas import GRADED
from specdec_reference.grammar import Grammars
from tests.prompts.test_graded_schemas import TOKENIZER


def schema_names(requests):
    return {r.body["response_format"].get("json_schema", {}).get("name") for r in requests}


def test_ninety_draws_ask_for_every_graded_schema_and_for_any_object():
    drawn = structured.graded_draws(requests=460, take={Depth.STANDARD: 90}).at(Depth.STANDARD)
    assert schema_names(drawn.requests) == {one.name for one in GRADED} | {None}
    assert sum(request.seed is None for request in drawn.requests) == 45


def test_a_schema_that_is_drawn_again_is_drawn_with_and_without_seed():
    drawn = structured.graded_draws()
    seeds = {}
    for request in drawn.requests:
        name = request.body["response_format"].get("json_schema", {}).get("name", "object")
        seeds.setdefault(name, set()).add(request.seed is None)
    assert all(both == {True, False} for both in seeds.values())
    assert len({request.id for request in drawn.requests}) == len(drawn.requests)


def test_graded_documents_begin_with_those_that_any_drafter_drafts_and_then_the_hardest():
    asked = [request.id for request in structured.graded().requests]
    assert set(asked[:3]) == {"twelve-flags", "grid", "switches"}
    grades = {one.name: one.grade for one in GRADED}
    assert {grades[name] for name in asked[3:10]} == {"hard"}


def test_constrained_answers_are_of_three_kinds_greedy_seeded_and_unseeded():
    asked = structured.constrained(requests=30).requests
    kinds = [next(iter(request.body["structured_outputs"])) for request in asked]
    assert kinds[:6] == ["regex", "choice", "grammar"] * 2
    ways = {(request.body["temperature"], request.seed is None) for request in asked}
    assert ways == {(0.0, True), (1.0, False), (1.0, True)}
    assert all(request.grammar for request in asked)


def test_regexes_choices_and_grammars_compile_and_are_read_by_the_judge():
    grammars = Grammars(TOKENIZER, (0,))
    workload = structured.constrained(requests=60)
    assert len(formats(workload.requests)) == 60
    specifications = {repr(request.body["structured_outputs"]): request.body["structured_outputs"] for request in workload.requests}
    assert len(specifications) == len(structured.REGEXES) + len(structured.CHOICES) + len(structured.GRAMMARS)
    for wanted in specifications.values():
        ((kind, specification),) = wanted.items()
        assert grammars.compile(GrammarKind(kind), specification)


def test_a_grammar_that_cannot_be_compiled_stands_among_sound_ones_and_is_not_judged():
    workload = structured.uncompilable()
    ids = [request.id for request in workload.requests]
    assert "broken-regex" in ids[1:-1]
    assert "broken-regex" not in formats(workload.requests)
    assert (workload.may_kill, workload.concurrency) == (True, 1)
    for request in workload.requests:
        if "response_format" in request.body:
            Draft202012Validator.check_schema(request.body["response_format"]["json_schema"]["schema"])
