"""What a config's gates may ask, and how they are read."""

from __future__ import annotations

from datetime import date

import pytest

from pytest_specdec.config import gates, load
from pytest_specdec.errors import ConfigError
from pytest_specdec.judge.baseline_change import ChangeKind
from pytest_specdec.judge.compared_speed import SlowPart
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.upgrade_gates import Tolerance, UpgradeGates

LEAST = "engine: {kind: reference, model: target}\nvariants: {v: {}}\n"


def pair(tokens, name="v"):
    variant = Variant(name=name, draft=Draft(kind=DraftKind.HEAD, tokens=tokens))
    return Pair(config="mine", engine="reference", model="target", variant=variant)


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "mine.yaml"
        path.write_text(LEAST + text)
        return load.load(path)

    return read


@pytest.mark.parametrize(
    "text, at_least, boot_sd, source",
    [
        ("", 1.0, None, "mine.yaml: gates.speedup (default)"),
        ("gates: {speedup: {at_least: 2}}\n", 2.0, None, "mine.yaml:3 gates.speedup"),
        ("gates: {speedup: {boot_sd: 0.1}}\n", 1.0, 0.1, "mine.yaml: gates.speedup (default)"),
    ],
)
def test_the_speedup_has_a_floor_and_may_state_how_boots_vary(read, text, at_least, boot_sd, source):
    (gate,) = read(text).gates
    assert (gate.at_least, gate.boot_sd, gate.source) == (at_least, boot_sd, source)


@pytest.mark.parametrize("tokens, asked", [(3, 4), (3, 1.5), (0, 9)])
def test_an_acceptance_length_up_to_a_token_more_than_is_drafted_may_be_asked(read, tokens, asked):
    gates.check(read(f"gates: {{acceptance_length: {{at_least: {asked}}}}}\n"), [pair(tokens)])


def test_one_out_of_reach_of_a_variant_is_refused_with_its_line(read):
    config = read("gates:\n  acceptance_length:\n    at_least: 5.5\n")
    with pytest.raises(ConfigError) as caught:
        gates.check(config, [pair(7), pair(4, "short")])
    found = "found 5.5 tokens a step, expected at most 5: short drafts 4 a step, and one token comes on top; ask for less, such as 3"
    assert f"mine.yaml:5  gates.acceptance_length.at_least: {found}" in str(caught.value)


def test_the_noise_of_the_verify_kernel_may_be_gated_and_is_not_by_default(read):
    assert [gate.figure for gate in read("").gates] == ["speedup"]
    gate = next(gate for gate in read("gates: {verify_noise: {at_most: 3}}\n").gates if gate.figure == "verify_noise")
    assert (gate.at_most, gate.at_least) == (3.0, None)
    assert str(gate) == "verify noise at most 3 (mine.yaml:3 gates.verify_noise)"


@pytest.mark.parametrize("value", ["{}", "3", "{at_most: 0}", "{at_most: .nan}", "{at_least: 3}"])
def test_a_gate_on_noise_is_one_number_above_0(read, value):
    with pytest.raises(ConfigError, match="verify_noise"):
        read(f"gates: {{verify_noise: {value}}}\n")


UPGRADE = """gates:
  upgrade:
    baseline_change: warn
    slower: {baseline: 0.9, acceptance: 1}
    accept:
      - {change: chat-template, reason: the new template is the model's own, owner: ada, expires: 2027-01-31}
"""


def test_an_upgrades_gates_are_read_with_the_line_of_each_accepted_change(read):
    config = read(UPGRADE)
    upgrade = config.upgrade
    assert (upgrade.baseline_change, upgrade.baseline, upgrade.variant, upgrade.acceptance) == (Tolerance.WARN, 0.9, 0.95, 1.0)
    (accepted,) = upgrade.accepted
    assert (accepted.change, accepted.expires, accepted.source) == ("chat-template", date(2027, 1, 31), "mine.yaml:8")
    assert [gate.figure for gate in config.gates] == ["speedup"], "no gate on a figure of one run"
    assert read("").upgrade == UpgradeGates()


@pytest.mark.parametrize("old, new, problem", [
    ("warn", "maybe", "gates.upgrade.baseline_change: found"),
    ("0.9", ".nan", "gates.upgrade.slower.baseline: found nan, expected a number"),
    ("0.9", "95", "gates.upgrade.slower.baseline: found 95"),
    ("chat-template", "chat-templat", 'gates.upgrade.accept[0].change: found "chat-templat", expected the name of a change'),
    ("2027-01-31", "2027-02-30", "gates.upgrade.accept[0].expires: found '2027-02-30', expected a day, such as 2027-01-31"),
    (", owner: ada", "", "gates.upgrade.accept[0].owner: found nothing"),
    ("slower:", "slow:", "did you mean 'slower'?"),
    ("2027-01-31}\n", "2027-01-31}\n      - {change: chat-template, reason: r, owner: o, expires: 2027-01-31}\n", "a second"),
])  # fmt: skip
def test_a_wrong_gate_of_an_upgrade_is_named(read, old, new, problem):
    with pytest.raises(ConfigError) as caught:
        read(UPGRADE.replace(old, new))
    assert problem in str(caught.value)


def test_every_name_of_a_change_can_be_accepted(read):
    kinds = [kind.name.lower().replace("_", "-") for kind in ChangeKind]
    names = [*kinds, *(f"slower-{part.name.lower()}" for part in SlowPart), "refuses-min_p", "ignores-seed", "fails-on-logit_bias"]
    for name in names:
        (accepted,) = read(UPGRADE.replace("chat-template", name)).upgrade.accepted
        assert accepted.change == name
