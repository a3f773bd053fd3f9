from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.errors import ConfigError, RunError
from pytest_specdec.gates import baseline_file
from pytest_specdec.model.baseline import Gate, MeasuredGate, PromptLength, StoredBaseline

GATES = (
    Gate(figure="speedup", at_least=1.7, pair="v", workload="vacation-timed", log_ratios=(0.6, 0.59, 0.61), boot_log_ratios=(0.01,)),
    Gate(figure="acceptance_length", at_least=2.0, pair="v"),
)


@pytest.fixture
def path(tmp_path, environment):
    return tmp_path / "reference" / f"{environment.machine}.yaml"


def test_gates_are_read_as_they_were_written_with_machine_and_line(path, environment):
    baseline_file.write(path, environment, GATES)
    found = baseline_file.read(path)
    assert [replace(gate, source="", machine=None) for gate in found] == list(GATES)
    assert {gate.machine for gate in found} == {environment.machine}
    lines = [int(gate.source.removeprefix(f"reference/{path.name}:")) for gate in found]
    text = path.read_text().splitlines()
    assert all(f"figure: {gate.figure}" in text[line - 1] for gate, line in zip(GATES, lines, strict=True))


def test_an_absent_file_has_no_gates(path):
    assert baseline_file.read(path) == ()


def test_a_run_gets_the_conditions_of_its_machines_file_or_of_all_others(path, environment):
    others = [replace(environment, cores=cores) for cores in (32, 64)]
    for other in others:
        baseline_file.write(path.with_name(f"{other.machine}.yaml"), other, [replace(GATES[0], key=other.key("v"))])
    found = baseline_file.read_conditions(path.parent.parent, "reference", environment)
    assert {stored.environment.cores for stored in found} == {32, 64}
    baseline_file.write(path, environment, [replace(gate, key={"engine": "reference 0.0.9"}) for gate in GATES])
    (own,) = baseline_file.read_conditions(path.parent.parent, "reference", environment)
    assert own == StoredBaseline(
        source=f"reference/{path.name}",
        environment=environment,
        gates=tuple(
            MeasuredGate(figure=gate.figure, pair="v", workload=gate.workload, key={"engine": "reference 0.0.9"}) for gate in GATES
        ),
    )
    assert baseline_file.read_conditions(path.parent.parent, "no-such-config", environment) == ()


@pytest.mark.parametrize("line", ["", "environment: {engine: reference, processors: 2}\n"])
def test_an_environment_that_cannot_be_read_is_none(path, environment, line):
    path.parent.mkdir()
    path.write_text(f"schema: {baseline_file.SCHEMA}\nmachine: {path.stem}\n{line}gates:\n- {{figure: speedup, at_least: 1}}\n")
    (found,) = baseline_file.read_conditions(path.parent.parent, "reference", environment)
    assert (found.environment, len(found.gates)) == (None, 1)


def test_gates_of_other_machines_are_kept_apart(path, environment):
    baseline_file.write(path, environment, GATES[:1])
    other = replace(environment, cores=64)
    baseline_file.write(path.with_name(f"{other.machine}.yaml"), other, GATES[1:])
    (found,) = baseline_file.other_machines(path.parent, environment.machine)
    assert (found.figure, found.machine) == ("acceptance_length", other.machine)


def test_a_baseline_keeps_what_was_not_measured(path, environment):
    baseline_file.write(path, environment, GATES)
    baseline_file.write(path, environment, [replace(GATES[0], at_least=1.8)])
    assert [gate.at_least for gate in baseline_file.read(path)] == [1.8, 2.0]


def test_a_floor_follows_what_was_computed(path, environment):
    baseline_file.write(path, environment, GATES)
    baseline_file.write(path, environment, [replace(GATES[0], at_least=1.5)])
    assert [gate.at_least for gate in baseline_file.read(path)] == [1.5, 2.0]


def test_a_file_under_another_machines_name_is_refused(path, environment):
    baseline_file.write(path, environment, GATES)
    moved = path.rename(path.with_name("elsewhere.yaml"))
    with pytest.raises(RunError, match="has another machine") as caught:
        baseline_file.read(moved)
    assert caught.value.where == f"{moved}:7"
    with pytest.raises(RunError, match="has another machine"):
        baseline_file.write(moved, environment, GATES)


@pytest.mark.parametrize(
    "line, where, found",
    [
        ("- {figure: speedup, at_lest: 1}", ":4", "an unknown key 'at_lest'"),
        ("- {figure: speedup, at_least: fast}", ":4  at_least", "'fast'"),
        ("- {at_least: 1}", ":4  figure", "nothing"),
        ("- speedup", ":4", "an unknown key 'speedup'"),
        ("- {figure: speed, at_least: 1}", ":4  figure", "'speed'"),
        ("- {figure: speedup, at_least: .nan}", ":4  at_least", "nan"),
        ("- {figure: speedup, at_least: -1}", ":4  at_least", "-1"),
        ("- {figure: speedup, log_ratios: [0.1, .inf]}", ":4  log_ratios", "inf"),
        ("- {figure: acceptance_length, lengths: {a: {tokens_per_step: 0.5, steps: 4, request: a}}}", ":4  lengths", "a: 0.5 over 4 steps"),
        (
            "- {figure: acceptance_length, lengths: {a: {tokens_per_step: .nan, steps: 4, request: a}}}",
            ":4  lengths",
            "a: nan over 4 steps",
        ),
        ("  all", ":3", "all"),
    ],
)
def test_a_gate_that_is_none_is_told_with_its_line(path, line, where, found):
    path.parent.mkdir()
    path.write_text(f"schema: {baseline_file.SCHEMA}\nmachine: {path.stem}\ngates:\n{line}\n")
    with pytest.raises(RunError, match="invalid gate") as caught:
        baseline_file.read(path)
    assert (caught.value.where, caught.value.found) == (f"{path}{where}", found)


@pytest.mark.parametrize(
    "text, error", [("- 1\n", RunError), ("schema: urn:pytest-specdec:baseline:3\n", RunError), ("a: 1\na: 2\n", ConfigError)]
)
def test_a_file_of_another_kind_is_refused(path, text, error):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(error):
        baseline_file.read(path)


def test_a_file_that_cannot_be_read_is_an_error_of_ours(path):
    path.mkdir(parents=True)
    with pytest.raises(RunError, match="cannot be read") as caught:
        baseline_file.read(path)
    assert caught.value.where == str(path)
    path.rmdir()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="cannot be read"):
        baseline_file.read(path)


def lengths(count, tokens_per_step=2.5, first=0):
    return {
        f"chat-{i:02}": PromptLength(tokens_per_step=tokens_per_step, steps=40, request="0a1b2c3d") for i in range(first, first + count)
    }


LENGTHS = Gate(
    figure="acceptance_length",
    pair="v",
    workload="greedy",
    digest="a" * 16,
    runs=2,
    lengths=lengths(20),
    key={"model": "m@1", "engine": "e 1"},
)


def test_lengths_are_a_line_a_prompt(path, environment):
    baseline_file.write(path, environment, [LENGTHS])
    (found,) = baseline_file.read(path)
    assert replace(found, source="", machine=None) == LENGTHS
    assert "    chat-07: {tokens_per_step: 2.5, steps: 40, request: 0a1b2c3d}\n" in path.read_text()


def test_lengths_stand_beside_a_floor_and_replace_older_ones(path, environment):
    floor = Gate(figure="acceptance_length", at_least=2.0, pair="v", workload="greedy")
    baseline_file.write(path, environment, [floor, LENGTHS])
    baseline_file.write(path, environment, [replace(LENGTHS, runs=3)])
    assert [(gate.at_least, gate.runs) for gate in baseline_file.read(path)] == [(2.0, 0), (None, 3)]


def test_a_file_of_the_first_schema_is_read(path, environment):
    baseline_file.write(path, environment, GATES)
    path.write_text(path.read_text().replace("baseline:2", "baseline:1").replace("  variants:", "  processors:"))
    assert [gate.at_least for gate in baseline_file.read(path)] == [1.7, 2.0]
    baseline_file.write(path, environment, [LENGTHS])
    assert [gate.figure for gate in baseline_file.read(path)] == ["speedup", "acceptance_length", "acceptance_length"]
    assert "schema: urn:pytest-specdec:baseline:2" in path.read_text()
