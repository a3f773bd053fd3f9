"""The list of planted faults: each id stands in it once, and each place has exactly the faults that the list says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks import pages, vllm_faults
from benchmarks.detection import faults as simulation
from pytest_specdec.errors import EngineError
from pytest_specdec.model.workload import Family
from specdec_reference.cli import main, parse
from specdec_reference.faults import catalogue, planted
from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Expected, Place
from tests.reference.asgi_client import PROBABILISTIC, served

ROOT = Path(__file__).parents[2]
PLUGIN = sorted((ROOT / "tests/engines/vllm_cpu/plugin/specdec_vllm_patches").glob("*.py"))
SPECULATING = ["target", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']


def patches():
    """The names of the functions that the vLLM plugin registers; vLLM itself is not installed here."""
    functions = [node for path in PLUGIN for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    marked = (function for function in functions if any(ast.unparse(each) == "patch" for each in function.decorator_list))
    return {function.name.replace("_", "-") for function in marked}


def test_each_place_plants_the_faults_that_the_list_says():
    simulated_ids = [fault.id for fault in simulation.ALL]
    of_router = {fault.id for fault in FAULTS.values() if any(name.startswith("router.") for name in fault.wrappers)}
    assert {fault.id for fault in FAULTS.values() if fault.wrappers} - of_router == set(planted_in(Place.REFERENCE))
    of_rank = {fault.id for fault in FAULTS.values() if fault.of_rank in planted_in(Place.REFERENCE)}
    assert of_router | of_rank == set(planted_in(Place.STACK))
    assert patches() - {*vllm_faults.FIXES.split(","), "fix-lora"} == set(planted_in(Place.VLLM))
    assert set(simulated_ids) & set(FAULTS) == set(planted_in(Place.SIMULATION))
    assert len(simulated_ids) == len(set(simulated_ids))


def test_ids_are_kebab_case_and_unique():
    ids = [*FAULTS, *(fault.id for fault in simulation.ALL if fault.id not in FAULTS)]
    assert len(ids) == len(set(ids))
    with pytest.raises(ValueError, match="two faults are called accept-all"):
        planted.plant(FAULTS["accept-all"])
    assert not [each for each in ids if not re.fullmatch(r"[a-z]+(-[a-z0-9.]+)*", each)]


def test_a_row_is_one_sentence():
    assert not [fault.id for fault in FAULTS.values() if not re.fullmatch(r"[A-Z][^.]*(\.\d[^.]*)*\.", fault.does)]


def test_a_row_says_by_place_which_families_name_it():
    assert not [fault.id for fault in FAULTS.values() if not fault.expected or not all(map(names_a_family, fault.expected.values()))]


def names_a_family(expected: Expected) -> bool:
    words = [word for words in expected.red.values() for word in words.split("|")]
    return bool(words) and all(words) and not set(expected.red) & set(expected.may)


def test_no_other_module_that_plants_faults_spells_an_id():
    """Implementations are found by the name of their function."""
    spelt = {
        (path.name, node.value)
        for path in (*(ROOT / "specdec_reference").rglob("*.py"), *PLUGIN)
        if path.parent.name != "faults"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in FAULTS
    }
    assert not spelt


@pytest.mark.parametrize("red, surprises", [
    ({"sampling": "'accept-all' after 9 tokens"}, []),
    ({"sampling": "lenient acceptance", "structured": "by timing"}, []),
    ({}, ["sampling should be red and say 'accept-all|lenient'; it is 'green'"]),
    ({"sampling": "bonus"}, ["sampling should be red and say 'accept-all|lenient'; it is 'bonus'"]),
    ({"sampling": "accept-all", "greedy": "wrong"}, ["greedy is red: wrong"]),
])  # fmt: skip
def test_a_family_that_must_be_red_is_named_and_one_that_may_be_is_let_be(red, surprises):
    expected = Expected(red={Family.SAMPLING: "accept-all|lenient"}, may={Family.STRUCTURED: "wrong tokens break grammars"})
    assert expected.surprises(red) == surprises


def test_help_lists_every_fault_of_the_reference_engine(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  ([a-z-]+)  +[A-Z].*\.$", capsys.readouterr().out, re.MULTILINE)
    assert tuple(listed) == planted_in(Place.REFERENCE)


def test_a_baseline_has_no_faults():
    for fault in planted_in(Place.REFERENCE):
        with pytest.raises(EngineError, match="does not speculate"):
            parse(["target", "--fault", fault])


@pytest.mark.parametrize("fault, remedy", [("accept-al", "did you mean 'accept-all'"), ("zzz", "name one of these")])
def test_an_unknown_fault_is_refused_with_its_neighbour(fault, remedy):
    with pytest.raises(EngineError, match=remedy):
        parse([*SPECULATING, "--fault", fault])
    with pytest.raises(EngineError, match=remedy):
        catalogue.rules(fault, speculating=True)


def test_a_fault_of_vllm_alone_is_none_of_the_reference_engine():
    with pytest.raises(EngineError, match="no such fault"):
        parse([*SPECULATING, "--fault", "kv-stale"])


def test_a_decorated_function_is_a_fault(monkeypatch, capsys):
    """Added from outside: it is planted, listed by --help, and on the page of faults."""

    @planted.fault(instead_of="accept", expected={Place.REFERENCE: Expected()})
    def never_accept(p, q, uniforms):
        """Rejects every draft token."""
        return uniforms < 0

    monkeypatch.setitem(FAULTS, "never-accept", planted.PLANTED.pop("never-accept"))
    with served(PROBABILISTIC, fault="never-accept", spec_decode_metrics="summary") as client:
        answer = client.complete({"prompt": "import os\n", "temperature": 0, "max_tokens": 16})
    assert answer["metrics"]["speculative_decoding"]["draft_acceptance_rate"] == 0
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "never-accept  " in capsys.readouterr().out
    assert "| `never-accept` | Rejects every draft token. | reference engine |" in pages.faults()
