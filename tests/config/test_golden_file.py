"""Golden files of both projects, read."""

from __future__ import annotations

import pytest

from pytest_specdec.config import golden_file
from pytest_specdec.errors import ConfigError
from pytest_specdec.files import yaml
from pytest_specdec.model.golden import GoldenForm, Thinking

INFERENCEX = """\
# Acceptance Length (AL) reference values measured with SPEED-Bench.
_metadata:
  draft-model: acme/M1-EAGLE3
m1:
  thinking_on:
    1: 1.78
    3: 2.83
  thinking_off:
    3: 2.93
"""
TENSORRT_LLM = """\
TestM1::test_eagle3[linear]:
  ref_al: 2.02809899228679
  min_al: 1.9266940426724504
TestM1::test_mtp:
  ref_al: null
  min_al: null
"""


def read(text, name="m1_eagle3.yaml"):
    return golden_file.parse(yaml.load(text, f"/golden/{name}"))


def test_a_file_of_inferencex_has_a_mean_by_model_thinking_and_draft_tokens():
    file = read(INFERENCEX)
    assert (file.name, file.form, file.method, file.draft_model) == (
        "m1_eagle3.yaml",
        GoldenForm.BY_MODEL,
        "eagle3",
        "acme/M1-EAGLE3",
    )
    values = [(each.model, each.thinking, each.draft_tokens, each.length, each.line) for each in file.lengths]
    assert values == [("m1", Thinking.ON, 1, 1.78, 6), ("m1", Thinking.ON, 3, 2.83, 7), ("m1", Thinking.OFF, 3, 2.93, 9)]
    assert [each.at_least for each in file.lengths] == pytest.approx([0.95 * 1.78, 0.95 * 2.83, 0.95 * 2.93], abs=1e-4)


def test_a_file_of_tensorrt_llm_has_a_mean_and_a_floor_by_test():
    file = read(TENSORRT_LLM, "acceptance_length.yaml")
    assert (file.form, file.method) == (GoldenForm.BY_TEST, "")
    entry, unmeasured = file.lengths
    assert (entry.name, entry.length, entry.at_least) == ("TestM1::test_eagle3[linear]", 2.02809899228679, 1.9266940426724504)
    assert (unmeasured.length, unmeasured.at_least, unmeasured.line) == (None, None, 4)


@pytest.mark.parametrize(
    "name, method",
    [
        ("qwen3.8_mtp.yaml", "mtp"),
        ("minimaxm3_eagle3_gqa.yaml", "eagle3"),
        ("dsv4-pro-0813-dspark.yaml", "dspark"),
        ("kimik3_dspark_probabilistic_sample_method_block_rejection_sample_method.yaml", "dspark"),
        ("qwen3.8.yaml", ""),
    ],
)
def test_the_name_of_a_file_tells_its_way_of_drafting(name, method):
    assert read(INFERENCEX, name).method == method


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "found no length, expected lengths by model, model: {thinking_on: {3: 2.51}}"),
        ("- 1\n", "found no length"),
        ("m1: 2.5\n", "f.yaml:1  m1: found 2.5, expected lengths by model, model: {thinking_on: {3: 2.51}}, or by test, TestA::test_b"),
        ("m1:\n  thinking: {3: 2.5}\n", "f.yaml:2  m1.thinking: found an unknown mode, expected thinking_on or thinking_off"),
        ("m1:\n  thinking_on: {}\n", "f.yaml:2  m1.thinking_on: found an empty mapping"),
        ("m1:\n  thinking_on:\n    k3: 2.5\n", "f.yaml:3  m1.thinking_on.k3: found this key, expected the draft tokens per step"),
        (
            "m1:\n  thinking_on:\n    3: 4.1\n",
            "f.yaml:3  m1.thinking_on.3: found 4.1, expected a number from 1 to 4: 3 draft tokens, and one",
        ),
        ("m1:\n  thinking_on:\n    3: 0.9\n", "found 0.9, expected a number from 1 to 4"),
        ("m1:\n  thinking_on:\n    3: .nan\n", "found nan, expected a number from 1 to 4"),
        ("m1:\n  thinking_on:\n    3: true\n", "found True, expected a number from 1 to 4"),
        ("m1:\n  thinking_on:\n    3: '2.5'\n", "found '2.5', expected a number from 1 to 4"),
        ("A::b: {ref_al: 2.5}\n", "f.yaml:1  A::b: found no min_al, expected ref_al and min_al"),
        ("A::b: 2.5\n", "f.yaml:1  A::b: found 2.5, expected ref_al and min_al"),
        ("A::b:\n  ref_al: 2\n  min_al: 2.5\n", "f.yaml:3  A::b.min_al: found 2.5, expected at most ref_al, 2"),
        ("A::b:\n  ref_al: much\n  min_al: 2.5\n", "f.yaml:2  A::b.ref_al: found 'much', expected a number from 1 on, or null"),
    ],
)
def test_every_problem_has_its_line_and_what_was_expected(text, words):
    with pytest.raises(ConfigError, match="the golden file has a problem") as caught:
        read(text, "f.yaml")
    assert words in str(caught.value)


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError, match="the golden file has 2 problems"):
        read("m1:\n  thinking_on: {3: 9, 4: 2.5, five: 2}\n")
