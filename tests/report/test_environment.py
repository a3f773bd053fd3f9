"""The environment in every report, and what differs from it where a floor was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import environment, html, markdown, run
from pytest_specdec.report.environment import Change, baseline_differences, conditions, missing_baseline_note
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import BASELINE, ENVIRONMENT, GREEDY, SPEED, judgement, run_of
from tests.report.test_golden import terminal_text

NOW = replace(
    ENVIRONMENT,
    devices=("NVIDIA H200",) * 2,
    driver="580.95.05",
    variants={"draft-k3": {"draft": "model b, 3 tokens", "flags": "0123"}, "ngram-k3": {"draft": "ngram", "flags": "4567"}},
    packages={"openai": "3.57.0"},
    served={"baseline": "org/m", "draft-k3": "org/m"},
)
GATE = replace(BASELINE.gates[0], key=NOW.key("draft-k3"))


def stored(**fields):
    return replace(BASELINE, **{"environment": NOW, "gates": (GATE,), **fields})


def differences_of(*baselines):
    return baseline_differences(run_of(environment=NOW, baselines=baselines))


def test_every_part_of_an_environment_has_its_name():
    assert conditions(NOW) == {
        "engine": "reference 0.1.0",
        "model": "target",
        "served by baseline, draft-k3": "org/m",
        "accelerators": "2 x NVIDIA H200",
        "driver": "580.95.05",
        "processor": "Xeon|5",
        "cores": "2",
        "memory": "8 GiB",
        "system": "Linux",
        "Python": "3.11.7",
        "draft-k3 draft": "model b, 3 tokens",
        "draft-k3 flags (digest)": "0123",
        "ngram-k3 draft": "ngram",
        "ngram-k3 flags (digest)": "4567",
        "openai": "3.57.0",
    }
    assert conditions(replace(NOW, driver=""))["driver"] == "not stored"
    assert conditions(None) == {}


def test_a_floor_measured_under_the_same_conditions_has_no_difference():
    (same,) = differences_of(stored())
    assert same.headline == f"Baseline file {BASELINE.source}, 1 gate: nothing differs from the environment of its measurements"
    assert not same.changes


@pytest.mark.parametrize("fields, changes", [
    ({"driver": "575.1"}, [("driver", "575.1", "580.95.05")]),
    ({"driver": ""}, [("driver", "not stored", "580.95.05")]),
    ({"python": "3.12.3", "packages": {"openai": "3.0"}}, [("Python", "3.12.3", "3.11.7"), ("openai", "3.0", "3.57.0")]),
    ({"devices": ("NVIDIA H200",)}, [("accelerators", "NVIDIA H200", "2 x NVIDIA H200")]),
    ({"memory_gib": 7.8}, []),
    ({"variants": {}, "engine_version": "0.0.1"}, []),
])  # fmt: skip
def test_the_machine_and_the_client_are_those_of_the_file(fields, changes):
    """The engine and the variant are those of each gate: the run that changed the file last may have measured others."""
    (difference,) = differences_of(stored(environment=replace(NOW, **fields)))
    assert [(change.what, change.old, change.new) for change in difference.changes] == changes


def test_engine_and_variant_are_those_that_each_gate_was_measured_with():
    key = {"engine": "reference 0.0.9", "draft": "model a, 3 tokens", "flags": "0123", "dtype": "auto"}
    both = (replace(GATE, key=key), replace(GATE, workload="chat", key={**key, "flags": "89ab"}))
    gone = replace(GATE, pair="gone-k9", key={"draft": "no variant of this run"})
    (difference,) = differences_of(stored(gates=(*both, gone)))
    assert difference.changes == (
        Change(what="engine", old="reference 0.0.9", new="reference 0.1.0"),
        Change(what="draft-k3 draft", old="model a, 3 tokens", new="model b, 3 tokens"),
        Change(what="draft-k3 flags (digest) (chat)", old="89ab", new="0123"),
    )
    assert difference.headline.endswith("3 gates: 3 differences from the environment of its measurements")


def test_files_of_other_machines_gate_nothing_and_say_what_is_other():
    elsewhere = [replace(NOW, cores=64, devices=()), replace(NOW, processor="AMD", devices=())]
    here = replace(NOW, devices=())
    found = baseline_differences(run_of(environment=here, baselines=tuple(stored(environment=one) for one in elsewhere)))
    assert all(", of another machine, so that it gates nothing here: 1 difference from" in one.headline for one in found)
    assert [str(change) for one in found for change in one.changes] == ["cores: 64 -> 2", "processor: AMD -> Xeon|5"]


def test_what_was_not_stored_is_not_called_the_same():
    (unknown,) = differences_of(stored(environment=None, gates=(replace(GATE, key={}),)))
    assert unknown.headline.endswith(": the environment of its measurements is not stored")
    assert missing_baseline_note(run_of()) == "Baseline file: not stored in this run."
    assert missing_baseline_note(run_of(baselines=())).startswith("Baseline file: none for this config")
    assert missing_baseline_note(run_of(baselines=(BASELINE,))) == ""
    assert baseline_differences(run_of(environment=None, baselines=(BASELINE,))) == ()


def test_a_run_of_an_older_release_is_read_and_has_nothing_invented():
    text = run.render(run_of(judgement(GREEDY), environment=NOW, baselines=(BASELINE,)))
    older = run.document(run.read(text, "run.json"))
    del older["baselines"], older["environment"]["driver"]
    again = run.read(json.dumps(older), "run.json")
    assert (again.baselines, again.environment.driver) == (None, "")
    for render in (html.render, markdown.render):
        assert "Baseline file: not stored in this run." in render(again)
        assert "580.95.05" not in render(again)


@pytest.mark.parametrize("outcome, shown", [(Outcome.FAIL, True), (Outcome.PASS, False)])
def test_the_terminal_shows_differences_beside_a_broken_promise_of_speed_alone(outcome, shown):
    result = PytestOutcome.FAILED if shown else PytestOutcome.PASSED
    text = terminal_text(run_of(judgement(replace(SPEED, outcome=outcome), result), environment=NOW, baselines=(stored(),)))
    assert (f"Baseline file {BASELINE.source}, 1 gate: nothing differs" in text) is shown
    assert environment.NOT_STORED not in text
