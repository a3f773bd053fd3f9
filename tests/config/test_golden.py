"""What a golden file asks of the variants of a config, and what it cannot ask."""

from __future__ import annotations

import pytest

from pytest_specdec.config import golden, load
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from tests.config.test_golden_file import INFERENCEX, TENSORRT_LLM

CONFIG = """\
engine: {{kind: vllm, model: {model}}}
variants:
  eagle3-k3: {{args: {{speculative-config: {{method: eagle3, model: {draft}, num_speculative_tokens: 3}}}}}}
  ngram-k3: {{args: {{speculative-config: {{method: ngram, num_speculative_tokens: 3}}}}}}
{reasoning}
gates:
  acceptance_length:
    golden: {golden}
"""
OFF = "reasoning: {template: {enable_thinking: false}}"
DRAFTS = {"eagle3-k3": (DraftKind.HEAD, 3), "ngram-k3": (DraftKind.NGRAM, 3)}


def a_pair(name, kind, tokens):
    return Pair(config="mine", engine="vllm", model="M1", variant=Variant(name=name, draft=Draft(kind=kind, tokens=tokens)))


@pytest.fixture
def floors(tmp_path):
    """The floors of a config in a folder with golden files of both forms."""
    for name, text in (
        ("m1_eagle3.yaml", INFERENCEX),
        ("m1_mtp.yaml", INFERENCEX),
        ("m1.yaml", INFERENCEX),
        ("lengths.yaml", TENSORRT_LLM),
    ):
        (tmp_path / name).write_text(text)

    def floors(stated="m1_eagle3.yaml", *, model="acme/M1", draft="acme/M1-EAGLE3", reasoning=OFF, checked=True, **drafts):
        path = tmp_path / "mine.yaml"
        path.write_text(CONFIG.format(model=model, draft=draft, reasoning=reasoning, golden=stated))
        config = load.load(path)
        pairs = [a_pair(name, *drafts.get(name.replace("-", "_"), draft)) for name, draft in DRAFTS.items()]
        golden_floors = golden.floors(config, pairs)
        if checked:
            golden.check(config, golden_floors)
        return {floor.pair: floor for floor in golden_floors}

    return floors


def test_a_variant_that_agrees_has_a_floor_and_the_other_a_reason(floors):
    read = floors()
    floor = read["eagle3-k3"]
    assert (floor.at_least, floor.length, floor.origin) == (2.7835, 2.93, "95% of 2.93")
    assert floor.source == "m1_eagle3.yaml:9 m1.thinking_off.3"
    assert floor.uncompared == ("prompts", "temperature", "precision")
    assert read["ngram-k3"].at_least is None
    assert read["ngram-k3"].reason == "it drafts by prompt lookup, and the file is of eagle3"
    assert str(read["ngram-k3"]) == f"NO GOLDEN FLOOR for ngram-k3 (m1_eagle3.yaml): {read['ngram-k3'].reason}"


@pytest.mark.parametrize(
    "reasoning, line",
    [
        (OFF, 9),
        ("reasoning: {template: {enable_thinking: true}}", 7),
        ("reasoning: {template: {thinking_mode: enabled}}", 7),
        ("reasoning: {template: {thinking: false}, effort: high}", 9),
        ("reasoning: {effort: none}", 9),
    ],
)
def test_the_thinking_mode_is_what_chat_requests_ask_for(floors, reasoning, line):
    assert f"m1_eagle3.yaml:{line} " in floors(reasoning=reasoning)["eagle3-k3"].source


@pytest.mark.parametrize("mode, line", [("on", 7), ("off", 9)])
def test_a_config_may_state_the_thinking_mode_itself(floors, mode, line):
    read = floors(f"{{file: m1_eagle3.yaml, thinking: {mode}}}", reasoning="")
    assert f"m1_eagle3.yaml:{line} " in read["eagle3-k3"].source


def test_a_mode_that_nothing_states_is_not_compared(floors, tmp_path):
    (tmp_path / "m1_eagle3.yaml").write_text("m1:\n  thinking_on: {3: 2.5}\n")
    assert "thinking (on there)" in floors(reasoning="")["eagle3-k3"].uncompared


@pytest.mark.parametrize(
    "asked, uncompared",
    [
        ({}, ()),
        ({"draft": "/models/head"}, ("draft weights (acme/M1-EAGLE3 there)",)),
        ({"stated": "m1.yaml"}, ("way of drafting",)),
    ],
)
def test_the_drafter_is_compared_by_name(floors, asked, uncompared):
    assert floors(**asked)["eagle3-k3"].uncompared == (*uncompared, "prompts", "temperature", "precision")


def test_a_test_of_tensorrt_llm_is_named_by_variant(floors):
    floor = floors('{file: lengths.yaml, tests: {eagle3-k3: "TestM1::test_eagle3[linear]"}}')["eagle3-k3"]
    assert (floor.at_least, floor.length) == (1.9266940426724504, 2.02809899228679)
    assert floor.source == "lengths.yaml:1 TestM1::test_eagle3[linear]"
    assert floor.uncompared[:4] == ("model", "way of drafting", "draft tokens", "thinking")


@pytest.mark.parametrize(
    "drafts, golden_words, reason",
    [
        ({"eagle3_k3": (DraftKind.HEAD, 2)}, {}, "it drafts 2 tokens a step, and the file has 3"),
        ({"eagle3_k3": (DraftKind.HEAD, 0)}, {}, "its draft tokens per step are unknown, and the file has its lengths by them"),
        ({"eagle3_k3": (DraftKind.MODEL, 3)}, {}, "it drafts with a draft model, and the file is of eagle3"),
        (
            {"eagle3_k3": (DraftKind.NGRAM, 3)},
            {"stated": "m1.yaml"},
            "it drafts by prompt lookup, and the file is of heads or draft layers",
        ),
        ({}, {"stated": "m1_mtp.yaml"}, "it drafts by eagle3, and the file is of mtp"),
        (
            {},
            {"reasoning": "reasoning: {template: [{enable_thinking: true}, {enable_thinking: false}]}"},
            "chat requests ask with thinking on and off, and the file has each alone",
        ),
    ],
)
def test_a_file_that_asks_nothing_of_any_variant_is_refused(floors, drafts, golden_words, reason):
    assert floors(checked=False, **drafts, **golden_words)["eagle3-k3"].reason.startswith(reason)
    with pytest.raises(ConfigError, match="the golden file has no length for any variant") as caught:
        floors(**drafts, **golden_words)
    assert f"eagle3-k3: {reason}" in str(caught.value)
    assert "mine.yaml:8  gates.acceptance_length.golden" in str(caught.value)


@pytest.mark.parametrize(
    "least, reason",
    [
        ("0.95", "found 0.95, expected a number from 1 on"),
        ("1.0", "min_al of 2 is 1, and every step brings a token"),
        ("4.5", "min_al of 5 is 4.5, and 3 draft tokens give at most 4"),
    ],
)
def test_a_floor_that_no_run_could_miss_or_reach_is_none(floors, tmp_path, least, reason):
    (tmp_path / "lengths.yaml").write_text(f"A::b: {{ref_al: {'5' if least > '4' else '2'}, min_al: {least}}}\n")
    with pytest.raises(ConfigError) as caught:
        floors("{file: lengths.yaml, tests: {eagle3-k3: 'A::b'}}")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "stated, words",
    [
        ("m1_eagle.yaml", "the golden file cannot be read; did you mean 'm1_eagle3.yaml'?"),
        ("{file: m1_eagle3.yaml, model: m2}", "golden.model: found 'm2', expected a model of m1_eagle3.yaml: m1"),
        ("{file: m1_eagle3.yaml, thinking: on}", "golden.thinking: found on, expected off, which `reasoning` makes chat requests ask for"),
        ("{file: m1_eagle3.yaml, thinking: 1}", "golden.thinking: found 1, expected on or off"),
        ("{file: m1_eagle3.yaml, tests: {eagle3-k3: a}}", "golden.tests: found tests, expected none: m1_eagle3.yaml has lengths by model"),
        ("{model: m1}", "golden.file: found nothing, expected a value"),
        (
            "lengths.yaml",
            "golden.tests: found nothing, expected the test of each variant: lengths.yaml has its lengths by test; golden: {file",
        ),
        ("{file: lengths.yaml, thinking: on, tests: {eagle3-k3: a}}", "golden.thinking: found thinking, expected none"),
        (
            "{file: lengths.yaml, tests: {eagle3-k3: 'TestM1::test_eagle3'}}",
            "found 'TestM1::test_eagle3', expected one of the 2 tests in lengths.yaml; did you mean 'TestM1::test_eagle3[linear]'?",
        ),
        ("{file: lengths.yaml, tests: {eagle3: 'TestM1::test_mtp'}}", "golden.tests.eagle3: found no such variant"),
        ("{file: lengths.yaml, tests: {eagle3-k3: 'TestM1::test_mtp'}}", "expected a number at lengths.yaml:4: it is not measured yet"),
    ],
)
def test_settings_that_fit_no_file_are_refused_with_their_line(floors, stated, words):
    with pytest.raises(ConfigError) as caught:
        floors(stated)
    assert words in str(caught.value)
    assert "mine.yaml:8" in str(caught.value)


def test_a_file_of_another_model_is_refused_unless_the_config_calls_it_the_same(floors):
    with pytest.raises(ConfigError) as caught:
        floors(model="/models/mine")
    words = "found a file of m1, expected one of /models/mine, which the config serves; if it is the same model: golden: {file: "
    assert words + "m1_eagle3.yaml, model: m1}" in str(caught.value)
    assert floors("{file: m1_eagle3.yaml, model: m1}", model="/models/mine")["eagle3-k3"].at_least == 2.7835


def test_both_modes_in_a_file_and_none_in_the_config_are_refused(floors):
    with pytest.raises(ConfigError, match="found lengths with thinking on and off") as caught:
        floors(reasoning="")
    assert "golden.thinking: on or off" in str(caught.value)


def test_a_misspelt_gate_names_the_nearest(floors, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        CONFIG.format(model="m", draft="d", reasoning="", golden="f").replace("acceptance_length", "acceptance")
    )
    with pytest.raises(ConfigError, match="did you mean 'acceptance_length'"):
        load.load(tmp_path / "mine.yaml")


def test_a_floor_of_ones_own_may_stand_beside_it(floors, tmp_path):
    floors()
    path = tmp_path / "mine.yaml"
    path.write_text(path.read_text() + "    at_least: 1.5\n")
    gates = [gate for gate in load.load(path).gates if gate.figure == "acceptance_length"]
    assert [gate.at_least for gate in gates] == [1.5]


def test_a_folder_in_the_place_of_the_file_is_named_by_the_configs_key(floors, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError) as error:
        floors("folder.yaml")
    assert str(error.value).startswith("the golden file cannot be read\n")
    assert "gates.acceptance_length.golden" in error.value.where
