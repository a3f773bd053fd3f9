"""The registry: a row per family, a budget that is shared out once, and names of other packages beside it."""

from __future__ import annotations

import ast
import copy
import pickle
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from pytest_specdec.judge import parameters
from pytest_specdec.model.families import CORRECTNESS_ALPHA, FAMILIES, RESERVED, SHORT_BY, SPEED_ALPHA, Budget, FamilyRow, with_outside
from pytest_specdec.model.workload import Depth, Family

OUTSIDE = FamilyRow(name="acme.tone", budget=Budget.CORRECTNESS, part=RESERVED, workloads=3)
SUITES = Path(__file__).parents[2] / "suites"


def marks():
    for path in sorted(path for family in Family for path in (SUITES / family).glob("test_*.py")):
        loader = SourceFileLoader(path.stem, str(path))
        module = module_from_spec(spec_from_loader(path.stem, loader))
        loader.exec_module(module)
        for test in vars(module).values():
            yield from getattr(test, "pytestmark", ())


def test_every_name_has_a_row_in_the_order_of_the_report():
    assert list(FAMILIES) == list(Family)
    assert [row.name for row in FAMILIES.values()] == list(FAMILIES)


def test_a_family_with_a_judge_is_one_with_a_suite_and_a_promise():
    judged = {row.name for row in FAMILIES.values() if row.judge}
    assert judged == {path.name for path in SUITES.iterdir() if any(path.glob("test_*.py"))} - {"contract"}
    assert judged == {row.name for row in FAMILIES.values() if row.promise}


def test_a_row_takes_a_part_of_its_budget_or_has_none():
    assert {row.name for row in FAMILIES.values() if (row.budget is Budget.NONE) != (row.part == 0)} == set()
    assert FAMILIES[Family.LIVENESS].alpha(1) == 0.0


def test_the_correctness_budget_is_shared_out_exactly_once():
    parts = [row.part for row in FAMILIES.values() if row.budget is Budget.CORRECTNESS]
    assert sum(parts) + RESERVED == pytest.approx(1.0)


@pytest.mark.parametrize("depth", list(Depth))
@pytest.mark.parametrize("variants", [1, 2, 5])
def test_everything_that_turns_a_run_red_by_chance_is_the_budget(variants, depth):
    """Each test of each variant and of the control, and suspicion, by the union bound."""
    rows = with_outside([OUTSIDE])
    each = {name: row.alpha(variants, depth) * row.workloads_at(depth) * row.chances(variants) for name, row in rows.items()}
    assert each.pop(Family.SPEED) == pytest.approx(SPEED_ALPHA)
    assert sum(each.values()) == pytest.approx(CORRECTNESS_ALPHA)


def test_a_bet_is_paid_for_as_often_as_its_suspicion_may_be_red():
    sampling, state = FAMILIES[Family.SAMPLING], FAMILIES[Family.STATE]
    assert (sampling.chances(2), state.chances(2)) == (2 * SHORT_BY + 1, 4 * (2 + 1))
    assert FAMILIES[Family.SPEED].chances(2) == 2, "its control is not judged first"


@pytest.mark.parametrize("depth", [Depth.SMOKE, Depth.STANDARD])
@pytest.mark.parametrize("parts", [(7,), (1,) * 7, (3, 3, 1), (2, 1, 4)])
def test_no_cut_of_a_matrix_raises_the_chance_of_a_false_alarm_above_the_budget(parts, depth):
    """Each part, a group or a shard's piece of one, has a baseline of its own, whose control is judged too."""
    for budget in (Budget.CORRECTNESS, Budget.SPEED):
        rows = [row for row in FAMILIES.values() if row.budget is budget]
        for more in (0, 9):
            workloads = {row.name: max(row.workloads_at(depth), more) for row in rows}
            shares = {row.name: row.alpha(sum(parts), depth, more, baselines=sum(parts)) for row in rows}
            total = sum(shares[row.name] * workloads[row.name] * row.chances(part) for row in rows for part in parts)
            assert total <= budget.alpha * (1 + 1e-12)


ALARMS = {
    # A gate that the config asks for takes half a share, and leaves half of its own to each of the two.
    "greedy": {"_check_near_ties": ["near-ties"], "_judge_wrong_tokens": ["wrong tokens"], "_pass_greedy": [], "judge_scores": []},
    "sampling": {name: ["evidence"] for name in ("_analyse", "_judge_noisy", "_say_suspicious", "_fail_sampling", "_pass_sampling")},
    "parameter_effects": {"_test_level": ["near-ties", "wrong tokens"]},
    "logprobs": {"_compare_logprobs": ["noise", "jumps"]},  # of all tokens and of parts of them, at an equal part of the share each
    "baseline_logprobs": {"_beyond_chance": ["jumps"]},
    "structured": {
        "_fail_documents": ["invalid documents"],
        "_check_endless": ["endless documents"],
        "_compare_choices": ["worse tokens"],
        "_say_open": [],
        "_pass_documents": [],
    },
    "seeds": {
        "_check_repeats": ["repeats alone", "repeats under concurrency"],
        **{name: ["equal draws"] for name in ("_max_logprob", "_has_more_copies")},
        "_would_show": [],
    },
    "tools": {"_is_frequent": ["wrong calls"], "_check_streams": ["streams unlike whole answers"]},
    "responses": {"_exceeds_boots": ["counts unlike the chat's"]},
    "state": {"_check_drafts": ["acceptance of a prompt asked again", "acceptance after a long prompt"]},
    "between": {"_check_drafts": ["acceptance after an event"]},
    "concurrency": {
        "_check_foreign": ["words of other requests"],
        "_check_wrong_tokens": ["wrong tokens"],
        "_say_suspicious": [],
        "_pass_concurrency": [],
    },
    "adapters": {"_check_acceptance": ["acceptance with an adapter"]},
    "images": {"_check_drafts": ["drafts after an image"]},
    "endurance": {
        "_check_same_answers": ["acceptance of the same answers"],
        **{name: ["acceptance over time"] for name in ("_check_drafts", "_falling_ranks")},  # half of the share each
        "_check_memory": ["memory over time"],
    },
    "context": {"_wrong_tokens": ["wrong tokens"]},
    "depths": {"check_drafts_by_depth": ["acceptance by depth"]},
    "long": {
        **{name: ["wrong tokens"] for name in ("_check_tokens", "_say_open")},
        "_check_later_drafts": ["acceptance after long requests"],
    },
}
"""By judge and function that reads its share: the tests that are made there. A new reader is a new test, to be named in a row too."""
PARTS = {
    "logprobs": ("baseline_logprobs",),
    "parameters": ("parameter_effects",),
    "state": ("greedy",),
    "between": ("greedy",),
    "pressure": ("greedy", "structured"),
    "images": ("greedy",),
    "adapters": ("greedy", "sampling"),
    "offload": ("greedy", "state"),
    "endurance": ("greedy",),
    "long": ("depths",),
}
"""Judges whose tests a judgement makes beside its own."""
UNASKED = {"offload": {"acceptance after a long prompt"}}
"""Of these, tests of requests that the suite does not send."""


def test_every_test_that_a_judge_makes_is_named_in_its_row_and_paid_for():
    for name, row in FAMILIES.items():
        if row.budget is Budget.CORRECTNESS:
            made = [test for part in (name, *PARTS.get(name, ())) for tests in ALARMS.get(part, {}).values() for test in tests]
            assert set(made) - UNASKED.get(name, set()) == set(row.tests), name
            assert len(row.tests) == len(set(row.tests))


def test_no_judge_reads_its_share_elsewhere():
    folder, speed = Path(parameters.__file__).parent, {"acceptance", "drafting", "speed"}
    paths = [path for path in sorted(folder.rglob("*.py")) if path.parent.name not in speed]
    names = {path: path.parent.name if path.stem == "verdict" else path.stem for path in paths}
    readers = {name: _readers(ast.parse(path.read_text(encoding="utf-8"))) for path, name in names.items()}
    assert {name: found for name, found in readers.items() if found} == {name: set(tests) for name, tests in ALARMS.items()}


def _readers(tree):
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "alpha" and isinstance(node.value, ast.Name) and node.value.id == "captured"
    }


@pytest.mark.parametrize("row", [FAMILIES[Family.SAMPLING], OUTSIDE], ids=lambda row: row.name)
@pytest.mark.parametrize("workloads", range(1, 12))
def test_a_family_never_exceeds_its_part_and_fewer_tests_raise_no_share(row, workloads):
    share = row.alpha(1, Depth.STANDARD, workloads)
    assert share * workloads * row.chances(1) <= CORRECTNESS_ALPHA * row.part * (1 + 1e-12)
    assert share <= row.alpha(1, Depth.STANDARD, workloads - 1)


@pytest.mark.parametrize("depth", list(Depth))
def test_the_budget_is_written_for_as_many_workloads_as_the_suites_send(depth):
    """All folders together: who runs one of them has the share that the whole suite would have."""
    rows = {name: row for name, row in FAMILIES.items() if row.budget is not Budget.NONE}
    sent = {name: set() for name in rows}
    for mark in marks():
        family, workload = mark.kwargs["family"], mark.args[0]
        if family in rows and workload.take.get(depth) != 0:
            sent[family].add(workload.name)
    assert {name: max(len(names), 1) for name, names in sent.items()} == {name: row.workloads_at(depth) for name, row in rows.items()}


def test_families_of_other_packages_stand_before_speed():
    assert list(with_outside([OUTSIDE]))[-2:] == ["acme.tone", "speed"]


def test_a_dotted_name_is_one_object_and_no_member():
    name = Family("acme.tone")
    assert (name, name.value, f"{name}") == ("acme.tone", "acme.tone", "acme.tone")
    assert all(one is name for one in (Family("acme.tone"), pickle.loads(pickle.dumps(name)), copy.deepcopy(name)))
    assert name not in list(Family)


@pytest.mark.parametrize("name", ["gredy", "Acme.tone", "acme.", ".tone", "acme.to ne", "acme.tone\n", "", None, 5])
def test_another_name_is_no_family(name):
    with pytest.raises(ValueError, match="is not a valid Family"):
        Family(name)
