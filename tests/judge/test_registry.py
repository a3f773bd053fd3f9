"""The judge of a family, and the rows that other packages declare."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import metadata
from types import SimpleNamespace

import pytest

from pytest_specdec import judge
from pytest_specdec.errors import ConfigError
from pytest_specdec.judge import registry
from pytest_specdec.model.families import FAMILIES, RESERVED, Budget, FamilyRow
from pytest_specdec.model.workload import Family


@pytest.mark.parametrize("name", judge.__all__)
def test_a_family_has_the_judge_of_its_name(name):
    assert registry.judge_of(FAMILIES[name]) is getattr(judge, name).judge


def test_a_family_without_a_judge_is_a_lookup_error():
    with pytest.raises(LookupError, match="seeds has no judge"):
        registry.judge_of(replace(FAMILIES[Family.SEEDS], judge=""))


def test_an_unknown_judge_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'taste'"):
        judge.taste  # noqa: B018 - the access is the test


@pytest.mark.parametrize("module, found", [("json", "no function judge"), ("acme.judge", "No module named 'acme'")])
def test_a_judge_that_is_not_there_is_a_config_error(module, found):
    with pytest.raises(ConfigError, match=found):
        registry.judge_of(FamilyRow(name="acme.tone", judge=module))


def test_judges_load_on_first_use():
    code = (
        "import sys; from pytest_specdec import judge; from pytest_specdec.judge import registry; registry.installed_families();"
        "assert 'numpy' not in sys.modules; judge.sampling; assert 'numpy' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_judge_pays_for_the_slowest_imports_of_scipy():
    code = "import sys; from pytest_specdec import judge; [getattr(judge, name) for name in judge.__all__]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "scipy.special" in loaded
    assert not {"scipy.stats", "scipy.optimize"} & set(loaded)


@pytest.fixture
def declared(monkeypatch):
    """Have packages declare what entry points load to: rows, or an error that loading raises."""

    def _declared(*values):
        def load(value):
            if isinstance(value, Exception):
                raise value
            return value

        entries = [
            SimpleNamespace(name="n", value="m:ROW", dist=SimpleNamespace(name=f"package{index}", version="1"), load=partial(load, value))
            for index, value in enumerate(values)
        ]
        monkeypatch.setattr(metadata, "entry_points", lambda *, group: entries if group == "pytest_specdec.families" else [])

    return _declared


def row(name="acme.tone", **columns):
    return FamilyRow(name=name, **{"judge": "json", "budget": Budget.CORRECTNESS, "part": 0.05, **columns})


def test_rows_come_by_name_one_or_several_to_a_package(declared):
    declared(row("acme.tone"), (row("acme.length", budget=Budget.NONE, part=0.0), row("acme.art")))
    assert [one.name for one in registry.installed_families()] == ["acme.art", "acme.length", "acme.tone"]


def test_the_whole_reserve_may_be_taken(declared):
    declared(*(row(f"acme.f{i}", part=RESERVED / 3) for i in range(3)))
    assert len(registry.installed_families()) == 3


WRONG = {
    "a judge that is not there": ([row(judge="acme.tone")], ["acme.tone", "package0", "no module"]),
    "a judge in no package": ([row(judge="json.tone")], ["'json.tone'", "no module"]),
    "two rows of one name": ([row(), row()], ["2 rows", "'acme.tone'", "package0", "package1"]),
    "parts above the reserve": ([row("a.a", part=0.06), row("a.b", part=0.05)], ["0.11 in total", "at most 0.1", "package0", "package1"]),
    "a name of ours": ([row("greedy")], ["'greedy'", "dotted name"]),
    "the budget of speed": ([row(budget=Budget.SPEED)], ["budget=speed"]),
    "a part of nothing": ([row(budget=Budget.NONE)], ["part=0.05"]),
    "no part of the budget": ([row(part=0.0)], ["part=0"]),
    "no workloads": ([row(workloads=0)], ["workloads=0"]),
    "no row": (["tone"], ["package0", "'tone'", "a FamilyRow"]),
    "a package that cannot be imported": ([ImportError("no acme")], ["package0", "ImportError: no acme"]),
}


@pytest.mark.parametrize("values, words", WRONG.values(), ids=WRONG)
def test_a_wrong_declaration_is_a_config_error_that_names_its_package(declared, values, words):
    declared(*values)
    with pytest.raises(ConfigError) as caught:
        registry.installed_families()
    assert [word for word in words if word not in str(caught.value)] == []
