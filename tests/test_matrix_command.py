"""``python -m pytest_specdec matrix``: cells of a config as jobs, in files that are valid for their systems."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import check_jsonschema
import jsonschema
import pytest
import yaml

from benchmarks.pages import FOLDER
from pytest_specdec import matrix_command
from pytest_specdec.__main__ import main
from pytest_specdec.capture import planner
from pytest_specdec.config import load, matrix
from pytest_specdec.config.matrix_expression import select
from pytest_specdec.files import run_documents
from pytest_specdec.files import yaml as strict_yaml
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Rates
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.workload import Depth
from pytest_specdec.report import ci_formats

CONFIG = """\
engine:
  kind: vllm
  model: Qwen/Qwen3-8B
  env: {HF_TOKEN: "${HF_TOKEN}"}
  args: {tensor-parallel-size: 2}
variants:
  eagle3-k3: {args: {speculative-config: {method: eagle3, model: RedHatAI/Qwen3-8B-speculator.eagle3, num_speculative_tokens: 3}}}
  ngram-k4: {args: {speculative-config: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}}}
matrix:
  axes:
    engine.args.kv-cache-dtype: [auto, fp8]
    size:
      one: {}
      four: {engine: {args: {tensor-parallel-size: 4, pipeline-parallel-size: 2}}}
  exclude:
    - {size: four, variant: ngram-k4, kv-cache-dtype: fp8}
"""
PLAIN = CONFIG.partition("matrix:")[0]
SCHEMAS = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "fleet.yaml").write_text(CONFIG)
    (tmp_path / "plain.yaml").write_text(PLAIN)
    return tmp_path


@pytest.fixture
def printed(capsys):
    """Run the command and return what it prints."""

    def call(*arguments: str) -> str:
        assert main(["matrix", *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call


@pytest.fixture
def jobs(printed):
    """Run the command and return its jobs as JSON has them."""
    return lambda *arguments: json.loads(printed(*arguments, "--format=json"))["jobs"]


def word(job, option: str) -> str:
    return next((word.removeprefix(f"{option}=") for word in shlex.split(job["command"]) if word.startswith(f"{option}=")), "")


def test_a_job_is_a_group_and_asks_for_the_devices_of_its_arguments(jobs):
    assert {job["name"]: (len(job["cells"]), job["gpus"]) for job in jobs("fleet")} == {
        "kv-cache-dtype-auto--one": (2, 2),
        "kv-cache-dtype-auto--four": (2, 8),
        "fp8--one": (2, 2),
        "fp8--four": (1, 8),
    }


@pytest.mark.parametrize("options", [[], ["--only=ngram* or size=one"], ["--by=cell"], ["--by=cell", "--only=eagle3*"]])
def test_a_cell_is_selected_by_the_expression_of_its_job(jobs, here, options):
    whole = matrix.load_matrix(here / "fleet.yaml").matrix
    for job in jobs("fleet", *options):
        assert [cell.name for cell in select(whole, word(job, "--specdec-only")).cells] == job["cells"]


def test_shards_have_every_selected_cell_once(jobs, here):
    shards = jobs("fleet", "--shards=3", "--only=not *--fp8--*")
    assert [word(job, "--specdec-shard") for job in shards] == ["1/3", "2/3", "3/3"]
    assert {word(job, "--specdec-only") for job in shards} == {"not *--fp8--*"}
    expected = [cell.name for cell in select(matrix.load_matrix(here / "fleet.yaml").matrix, "not *--fp8--*").cells]
    assert sorted(name for job in shards for name in job["cells"]) == sorted(expected)


def test_depth_is_passed_on_where_it_is_given_and_a_job_exits_by_the_class_of_its_run(jobs):
    (first, *_) = jobs("fleet", "--depth=smoke")
    assert shlex.split(first["command"])[-4:-2] == ["--specdec-depth=smoke", "--specdec-exit-codes"]
    assert not word(jobs("fleet")[0], "--specdec-depth")


def test_a_config_without_a_matrix_is_one_job_with_nothing_to_join(printed, jobs):
    (job,) = jobs("plain")
    assert (job["cells"], job["gpus"], word(job, "--specdec-only")) == (["eagle3-k3", "ngram-k4"], 2, "")
    assert "pytest_specdec merge" not in printed("plain")


@pytest.mark.parametrize("options, where", [
    (["plain", "--by=cell"], "plain.yaml"),
    (["plain", "--only=eagle3-k3"], "plain.yaml"),
    (["plain", "--shards=2"], "plain.yaml"),
    (["fleet", "--shards=8"], "--shards"),
    (["fleet", "--shards=0"], "--shards"),
    (["fleet", "--gpus=-1"], "--gpus"),
    (["fleet", "--by=cell", "--shards=2"], "--by"),
    (["fleet", "--only=size=two"], "two"),
    (["fleet", "--minutes-from=."], "--minutes-from"),
    (["fleet", "--format=sky"], "--accelerator"),
    (["nowhere"], "no config nowhere"),
])  # fmt: skip
def test_what_cannot_be_used_is_one_error(capsys, options, where):
    assert main(["matrix", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, where in err, "Traceback" in err) == ("", True, False)


def test_gpus_are_stated_where_the_arguments_do_not_say_it(jobs):
    assert {job["gpus"] for job in jobs("fleet", "--gpus=3")} == {3}


@pytest.mark.parametrize("changed, gpus, memory", [
    ({}, 1, None),
    ({"kind": "reference", "model": "target"}, 0, pytest.approx(0.27, abs=0.02)),
    ({"kind": "reference", "model": "target", "placement": "side-by-side"}, 0, pytest.approx(1.06, abs=0.08)),
    ({"url": "http://127.0.0.1:8000"}, 0, None),
    ({"args": {"tensor-parallel-size": 2, "data-parallel-size": 2, "prefill-context-parallel-size": 2}}, 8, None),
    ({"kind": "arctic", "args": {"tensor-parallel-size": 4, "ulysses_sequence_parallel_size": 2}}, 8, None),
    ({"kind": "sglang", "args": {"tp-size": 2, "dp-size": 3}}, 6, None),
    ({"kind": "sglang", "args": {"tp-size": 4, "dp-size": 2, "enable-dp-attention": True}}, 4, None),
    ({"args": {"tensor-parallel-size": "${SIZE}"}}, 4, None),
    ({"args": {"tensor-parallel-size": "${UNSET}"}}, 1, None),
])  # fmt: skip
def test_what_servers_need_is_what_the_config_says_of_them(here, monkeypatch, changed, gpus, memory):
    monkeypatch.setenv("SIZE", "4")
    engine = {"kind": "vllm", "model": "Qwen/Qwen3-8B"} | changed
    top = {"placement": engine.pop("placement")} if "placement" in engine else {}
    variants = {"v": {"args": {"draft-model": "draft"} if engine["kind"] == "reference" else {}}}
    (here / "one.yaml").write_text(yaml.safe_dump({"engine": engine, "variants": variants, **top}))
    assert matrix_command._need(load.load(here / "one.yaml"), None) == matrix_command.Need(gpus=gpus, memory_gib=memory)


def capture(folder: Path, config, depth=Depth.SMOKE, state=State.COMPLETE, wall_s=601.0) -> None:
    """Write the plan and the status of a capture, as a run has them."""
    directory = RunDirectory.create(folder)
    plan = planner.plan_servers(config, RATES, depth)
    run_documents.write_plan(directory, plan)
    run_documents.write_status(directory, Status(state=state, wall_s=wall_s))


RATES = Rates(boot_s=1.0, tokens_per_s=1.0, scored_tokens_per_s=1.0)


def test_minutes_come_from_complete_captures_of_the_same_cells_at_the_same_depth(jobs, here):
    config = matrix.load_matrix(here / "fleet.yaml")
    whole, incomplete, part, deep = config.matrix.groups
    capture(here / "run/groups/whole", config.config(whole))
    capture(here / "run/groups/incomplete", config.config(incomplete), state=State.INCOMPLETE)
    capture(here / "run/groups/part", config.config(replace(part, cells=part.cells[:1])))
    capture(here / "run/groups/deep", config.config(deep), depth=Depth.DEEP)
    measured = {job["name"]: job["minutes"] for job in jobs("fleet", "--depth=smoke", "--minutes-from=run")}
    assert [measured[group.name] for group in (whole, incomplete, part, deep)] == [11, None, None, None]
    assert {job["minutes"] for job in jobs("fleet", "--depth=deep", "--minutes-from=run")} == {11, None}


def test_minutes_of_a_config_without_a_matrix_come_from_its_run(jobs, here):
    capture(here / "run", load.load(here / "plain.yaml"))
    assert jobs("plain", "--depth=smoke", "--minutes-from=run")[0]["minutes"] == 11


@pytest.mark.parametrize("name", ["fleet", "plain"])
def test_minutes_of_another_config_are_one_error(capsys, here, name):
    """Its variants have the same names."""
    (here / "other.yaml").write_text((here / f"{name}.yaml").read_text())
    capture(here / "run/groups/one", replace(load.load(here / "plain.yaml"), name=f"{name}--one"))
    capture(here / "run/groups/two", replace(load.load(here / "plain.yaml"), name=f"{name}--two"))
    assert main(["matrix", "other", "--depth=smoke", "--minutes-from=run"]) == 2
    assert f"found:    {name}--one, {name}--two" in (error := capsys.readouterr().err)
    assert "expected: a run of other" in error


def violations(schema: str, document) -> list[str]:
    definition = json.loads((SCHEMAS / f"{schema}.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(definition)(definition)
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("form, schema, spoil", [
    ("buildkite", "buildkite", lambda document: document["steps"][0]["retry"]["automatic"][0].update(exit_status="x")),
    ("gitlab", "gitlab-ci", lambda document: document["specdec fp8--one"]["retry"].update(max=9)),
])  # fmt: skip
def test_a_pipeline_is_valid_by_the_schema_of_its_system(printed, here, form, schema, spoil):
    capture(here / "run", matrix.load_matrix(here / "fleet.yaml").config(matrix.load_matrix(here / "fleet.yaml").matrix.groups[0]))
    document = yaml.safe_load(printed("fleet", "--depth=smoke", "--minutes-from=run", f"--format={form}"))
    assert violations(schema, document) == []
    spoil(document)
    assert violations(schema, document) != []


def test_every_format_is_printed(printed):
    texts = {form: printed("fleet", f"--format={form}", "--accelerator=H100") for form in ci_formats.FORMATS}
    assert len(set(texts.values())) == len(texts) == 7
    assert all("fp8--four" in text for text in texts.values())


PAGE = (FOLDER / "fleet.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^<!-- block: (\w+) -->\n```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("block, schema", [("github", "github-workflows"), ("buildkite", "buildkite"), ("gitlab", "gitlab-ci")])
def test_a_block_of_the_page_is_valid_by_the_schema_of_its_system(block, schema):
    assert violations(schema, strict_yaml.load(BLOCKS[block], block).data) == []


def test_a_shard_on_kubernetes_that_fails_ends_no_other_and_is_not_started_again():
    job = strict_yaml.load(BLOCKS["kubernetes"], "kubernetes").data["spec"]
    assert (job["completionMode"], job["backoffLimitPerIndex"], job["template"]["spec"]["restartPolicy"]) == ("Indexed", 0, "Never")
    assert not {"backoffLimit", "maxFailedIndexes"} & job.keys(), "either would end the Job with its other pods"


def test_no_artifact_of_the_page_keeps_a_job_from_running_again():
    jobs = strict_yaml.load(BLOCKS["github"], "github").data["jobs"].values()
    uploads = [step["with"] for job in jobs for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert len(uploads) == 2
    assert all(upload["overwrite"] is True for upload in uploads)


def test_the_commands_of_the_page_are_those_of_this_package(printed, here):
    (here / "qwen3-fleet.yaml").write_text(re.search(r"```yaml\n(engine:.*?)```", PAGE, re.DOTALL)[1])
    words = re.findall(r"-m pytest_specdec matrix (qwen3-fleet[^\n|>)`]*)", PAGE)
    assert len(words) > 6
    for arguments in words:
        printed(*shlex.split(arguments))
    assert f"    $ python -m pytest_specdec matrix qwen3-fleet\n    {printed('qwen3-fleet').splitlines()[0]}\n" in PAGE
    merge = json.loads(printed("qwen3-fleet", "--format=json"))["merge"]["command"]
    assert PAGE.count(merge) >= 3
    script = printed("qwen3-fleet", "--format=slurm").splitlines()
    assert [line.removeprefix("#     ") for line in script[1:3]] == re.findall(r"^    ((?:array=|sbatch --wait).*)$", PAGE, re.MULTILINE)


def test_a_workflow_of_github_uses_no_field_that_a_matrix_lacks(printed):
    used = set(re.findall(r"matrix\.(\w+)", BLOCKS["github"]))
    (first, *_) = json.loads(printed("fleet", "--format=github"))["include"]
    assert used - first.keys() == {"timeout_minutes"}, "known from a stored run only, and with a default"
