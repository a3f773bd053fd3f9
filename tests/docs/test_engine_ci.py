"""The blocks of docs/engine-ci.md: fields that the engines' own CI reads, and configs that load."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import check_jsonschema
import jsonschema
import pytest

from pytest_specdec.capture import environment
from pytest_specdec.capture.planner import PlanOptions, make
from pytest_specdec.config import load
from pytest_specdec.engines.vllm import Vllm
from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Depth
from tests.test_suites import wanted

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/engine-ci.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- block: ([\w -]+) -->\n)?```yaml\n(.*?)```", re.DOTALL)
BLOCKS = dict(BLOCK.findall(PAGE))

# vllm-project/vllm, .buildkite/test_areas/spec_decode.yaml at 029bdec72fcae0178f7f15b77871ce4ad15cf1b8
GROUP = {"group", "depends_on", "steps"}
STEP = {
    *("label", "key", "device", "num_devices", "timeout_in_minutes", "parallelism", "optional"),
    *("source_file_dependencies", "commands", "mirror"),
}
DEVICES = {"h200_18gb": 18, "h200_35gb": 35}
SLOWER = {"h200_18gb": "NVIDIA L4", "h200_35gb": "NVIDIA L40S"}
"""Whole cards of 300 and 864 GB/s, for an eighth and a quarter of the 4,800 GB/s of an H200."""
# vllm-project/ci-infra, buildkite/pipeline_generator/step.py at 3e4cfe4bf1f2fb4af37124cd83b1c6ee6bf73284: read, though not in that file
PARSED = {"mount_buildkite_agent"}
# Fields of a step that Buildkite has by the same name and meaning
BUILDKITE = {"label", "key", "timeout_in_minutes", "commands", "parallelism"}

# vllm-project/perf-eval, lib/parse_workload.py and .buildkite/generate_pipeline.py at bbd3fc711b8dcf94d5aa8886f04e73130e05c1f2
WORKLOAD = {"name", "gpu", "num_gpus", "nightly", "timeout_in_minutes", "vllm", "lm_eval", "vllm_bench", "bfcl"}
BENCH = {"name", "backend", "dataset", "input_len", "output_len", "num_prompts", "max_concurrency", "repetitions", "args"}

# NVIDIA/TensorRT-LLM, tests/integration/test_lists/test-db/l0_h100.yml at 004299a849e830d87b05ad8750763b63933de5cc
CONDITION = {"ranges", "wildcards", "terms"}


def block(name):
    return yaml.load(BLOCKS[name], name).data


def options(step):
    """The variables that a step exports, and its command of the script."""
    (export,) = [line for line in step["commands"] if line.startswith("export ")]
    return dict(word.split("=", 1) for word in shlex.split(export)[1:])


def minutes(step):
    return int(re.search(r"--specdec-deadline=(\d+)m", options(step)["PYTEST_ADDOPTS"])[1])


def buildkite_errors(pipeline):
    schema = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/buildkite.json"
    return list(jsonschema.Draft7Validator(json.loads(schema.read_text(encoding="utf-8"))).iter_errors(pipeline))


def test_every_yaml_block_has_a_name_and_is_parsed():
    assert set(BLOCKS) == {"vllm", "perf-eval", "perf-eval step", "config", "tensorrt-llm"}
    assert all(isinstance(block(name), dict) for name in BLOCKS)
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```yaml") == len(BLOCKS)


def test_the_steps_for_vllm_have_the_fields_that_its_generator_reads():
    group = block("vllm")
    assert set(group) == GROUP
    for step in group["steps"]:
        assert set(step) <= STEP | PARSED, step["key"]
        assert step["device"] in DEVICES
    assert len({step["key"] for step in group["steps"]}) == len(group["steps"])


@pytest.mark.parametrize("name", ["vllm", "perf-eval step"])
def test_what_reaches_buildkite_is_valid_there(name):
    steps = block(name)["steps"]
    fields = BUILDKITE if name == "vllm" else {key for step in steps for key in step}
    assert buildkite_errors({"steps": [{key: step[key] for key in step if key in fields} for step in steps]}) == []


def test_every_variant_of_both_configs_has_one_step_on_a_device_of_its_size():
    wanted = {}
    for step in block("vllm")["steps"]:
        name, words = options(step)["SPECDEC_CONFIG"], shlex.split(options(step)["PYTEST_ADDOPTS"])
        assert name == f"vllm-ci-{DEVICES[step['device']]}gb"
        wanted.setdefault(name, []).append(words[words.index("-k") + 1])
    for name, chosen in wanted.items():
        variants = [variant.name for variant in load.load(ROOT / f"suites/configs/{name}.yaml").variants]
        assert sorted(chosen) == sorted(variants)
        assert [one for one in chosen for other in variants if one != other and one in other] == [], "-k would take both"


@pytest.mark.parametrize("name", ["vllm", "perf-eval step"])
def test_a_deadline_and_the_one_that_the_script_asks_again_end_before_the_step(name):
    for step in block(name)["steps"]:
        assert step["timeout_in_minutes"] >= 2 * minutes(step) + 10


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_is_planned_within_its_deadline(device, monkeypatch):
    monkeypatch.setattr(environment, "has_accelerator", lambda: True)
    monkeypatch.setattr(environment, "devices", lambda: (SLOWER[device],))
    monkeypatch.setattr(Vllm, "_is_cpu_build", lambda *_: False)
    config = load.load(ROOT / f"suites/configs/vllm-ci-{DEVICES[device]}gb.yaml")
    for step in block("vllm")["steps"]:
        if step["device"] == device:
            depth = Depth(re.search(r"sh specdec-ci.sh (\w+)", step["commands"][-1])[1])
            deadline_s = 60 * minutes(step)
            assert make(config, wanted(), depth, options=PlanOptions(deadline_s=deadline_s)).estimate_s < deadline_s, step["key"]


def test_the_twin_of_a_workload_has_the_fields_that_perf_eval_reads_and_does_not_speculate():
    workload = block("perf-eval")
    assert set(workload) <= WORKLOAD
    assert set(workload["vllm"]) <= {"model", "image", "env", "serve_args"}
    assert set(workload["vllm_bench"]) <= {"configs", "metadata"}
    assert set(workload["vllm_bench"]["metadata"]) <= {"device", "tp", "precision"}
    assert all(set(config) <= BENCH for config in workload["vllm_bench"]["configs"])
    assert "speculative" not in workload["vllm"]["serve_args"]


def test_the_config_beside_a_workload_loads_and_serves_what_the_workload_serves(tmp_path):
    path = tmp_path / "glm_5_1-h200.yaml"
    path.write_text(BLOCKS["config"])
    config, served = load.load(path), block("perf-eval")["vllm"]
    assert config.engine.model == served["model"]
    words = re.findall(r"--([\w-]+)", served["serve_args"])
    assert set(words) <= set(config.engine.args)
    assert options(block("perf-eval step")["steps"][0])["SPECDEC_CONFIG"] == path.stem


def test_the_list_for_tensorrt_llm_has_the_form_of_its_lists():
    (entry,) = block("tensorrt-llm")["l0_h100"]
    assert set(entry) == {"condition", "tests"}
    assert set(entry["condition"]) <= CONDITION
    assert all(re.fullmatch(r"[\w/]+\.py::\w+(\[\S+\])?( TIMEOUT \(\d+\))?", test) for test in entry["tests"])


def test_named_configs_are_shipped_and_named_variables_are_the_scripts():
    script = (ROOT / "pytest_specdec/config/ci/specdec-ci.sh").read_text(encoding="utf-8")
    assert set(re.findall(r"`(SPECDEC_\w+)`", PAGE)) == set(re.findall(r"\$\{(SPECDEC_\w+)", script))
    names = re.findall(r"`((?:vllm-ci|sglang|trtllm)-[\w.-]+?)(?:\.yaml)?`", PAGE)
    assert len(set(names)) == 4
    assert [name for name in names if not (ROOT / f"suites/configs/{name}.yaml").is_file()] == []


def test_the_floors_that_the_page_names_are_those_of_the_project():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"tried together by `make oldest`:([^`]+?)\.\s", PAGE)
    named = re.findall(r"([\w-]+)\s+([\d.]+)", sentence)
    assert len(named) == 5
    for name, version in named:
        (floor,) = re.findall(rf'"{name}>=([\d.]+)"', pyproject)
        assert version.removesuffix(".0") in {floor, floor.removesuffix(".0")}, name
