"""A job list as each system's own file: what stands in it, and that no name breaks out of its quotes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml

from pytest_specdec.errors import SpecdecError
from pytest_specdec.report import ci_formats
from pytest_specdec.report.ci_jobs import JobList, Need, by_group
from tests.report.test_ci_jobs import matrix, selection

HOSTILE = "a b'; touch x; $(id) ${HOME} \\$PATH `id` # é: *\n- \\n"
"""A config's name that a shell, YAML or an agent would carry out."""


def jobs(*needs: Need, config="two") -> JobList:
    """Return a job for each need, of one group each."""
    names = tuple(f"kernel-{index}" for index in range(len(needs)))
    one = matrix(*names, variants=("eagle3-k3",))
    minutes = {frozenset([f"eagle3-k3--{name}"]): need.minutes for name, need in zip(names, needs, strict=True) if need.minutes is not None}
    chosen = selection(one, needs=dict(zip(names, (replace(need, minutes=None) for need in needs), strict=True)), minutes=minutes)
    return JobList(matrix=one, jobs=by_group(replace(chosen, argv=("pytest", "suites/", f"--specdec-config={config}"))))


TWO = jobs(Need(gpus=2, memory_gib=3.2, minutes=7), Need(gpus=0))
SPACED = HOSTILE.replace("\n", " ")
TWO_ON_CPU = jobs(Need(), Need(), config=SPACED)


def expected_argv(index: int, config="two") -> list[str]:
    name = f"kernel-{index}"
    only, run_dir = f"--specdec-only=group={name}", f"--specdec-run-dir=specdec-runs/{name}"
    return ["pytest", "suites/", f"--specdec-config={config}", only, run_dir]


def load(form: str, job_list: JobList):
    return yaml.safe_load(ci_formats.render(form, job_list))


STUB = """#!/bin/sh
printf '%%s\\0' %s "$@" >> calls; echo >> calls
for word; do case "$word" in --specdec-run-dir=*) mkdir -p "${word#*=}"; : > "${word#*=}/run.json" ;; esac; done
exit %d
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Run a script where ``pytest`` and ``python`` write down their words, and pytest leaves a run and exits with 3."""
    for name, code in (("pytest", 3), ("python", 0)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(STUB % (name, code))
        program.chmod(0o755)

    def run(script: str, *arguments: str, **environment: str):
        (tmp_path / "calls").write_text("")
        (tmp_path / "script").write_text(script)
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **environment}
        done = subprocess.run(["bash", "script", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        lines = (tmp_path / "calls").read_text().splitlines()
        run.stderr = done.stderr
        return done.returncode, [line.split("\0")[:-1] for line in lines]

    return run


def test_text_has_every_cell_every_command_and_what_is_known_of_needs():
    text = ci_formats.render("text", TWO)
    assert text.startswith("2 jobs for 2 cells (kernel: kernel-0, kernel-1; variant: eagle3-k3)\n")
    assert "\nkernel-0: 2 GPUs, 3.2 GiB for servers, 7 minutes when it was measured\n    eagle3-k3--kernel-0\n" in text
    assert "\nkernel-1: 0 GPUs\n" in text
    assert [shlex.split(line) for line in text.splitlines() if line.startswith("  pytest ")] == [expected_argv(0), expected_argv(1)]
    assert text.endswith(f"  {TWO.merge_command()}\n")


def test_text_of_a_hostile_name_is_printable():
    assert "\n- " not in ci_formats.render("text", jobs(Need(), config="a\n- b\x1b[31m"))


def test_json_has_every_job_and_the_last_command():
    document = json.loads(ci_formats.render("json", TWO))
    assert document["merge"] == {"command": TWO.merge_command(), "run": "specdec-run"}
    assert document["axes"] == {"kernel": ["kernel-0", "kernel-1"], "variant": ["eagle3-k3"]}
    assert document["jobs"][0] == {
        "name": "kernel-0",
        "command": shlex.join(expected_argv(0)),
        "run": "specdec-runs/kernel-0",
        "gpus": 2,
        "memory_gib": 3.2,
        "minutes": 7,
        "timeout_minutes": 14,
        "cells": ["eagle3-k3--kernel-0"],
    }
    assert document["jobs"][1] | {"memory_gib": None, "minutes": None, "timeout_minutes": None} == document["jobs"][1]


def test_a_matrix_of_github_is_one_line_without_what_is_unknown():
    text = ci_formats.render("github", jobs(Need(gpus=1, minutes=3), Need(), config=HOSTILE))
    assert text.count("\n") == 1
    first, second = json.loads(text)["include"]
    assert (first["gpus"], first["timeout_minutes"], second.keys() & {"minutes", "timeout_minutes", "memory_gib"}) == (1, 6, set())


def test_more_jobs_than_github_has_room_for_are_refused():
    assert len(json.loads(ci_formats.render("github", jobs(*[Need()] * 256)))["include"]) == 256
    with pytest.raises(SpecdecError, match="at most 256") as caught:
        ci_formats.render("github", jobs(*[Need()] * 257))
    assert (caught.value.found, "--shards 256" in str(caught.value)) == ("257 jobs", True)


@pytest.mark.parametrize("form", ["json", "github", "buildkite", "gitlab", "sky"])
def test_a_hostile_name_stays_one_word(form):
    text = ci_formats.render(form, jobs(Need(), Need(), config=HOSTILE))
    document = next(yaml.safe_load_all(text))
    commands = {
        "json": lambda: document["jobs"][0]["command"],
        "github": lambda: document["include"][0]["command"],
        "buildkite": lambda: re.sub(r"\$\$|\\\$", "$", document["steps"][0]["command"]),
        "gitlab": lambda: document["specdec kernel-0"]["script"][0],
        "sky": lambda: document["run"].removeprefix("code=0\n").partition(" || ")[0],
    }
    assert shlex.split(commands[form]()) == expected_argv(0, HOSTILE)


@pytest.mark.parametrize("form", ["buildkite", "gitlab", "sky"])
def test_no_part_of_a_document_refers_to_another(form):
    tokens = yaml.scan(ci_formats.render(form, TWO_ON_CPU))
    assert not [token for token in tokens if isinstance(token, yaml.AliasToken)]


@pytest.mark.parametrize("form", ["text", "json", "buildkite", "gitlab", "slurm"])
def test_nothing_joins_the_run_of_a_single_job(form):
    assert "pytest_specdec merge" in ci_formats.render(form, TWO)
    assert "pytest_specdec merge" not in ci_formats.render(form, jobs(Need()))


def test_a_pipeline_of_buildkite_retries_infrastructure_alone_and_ends_whatever_failed():
    first, second, last = load("buildkite", TWO)["steps"]
    assert [rule["exit_status"] for rule in first["retry"]["automatic"]] == [-1, 75]
    assert (first["agents"], first["timeout_in_minutes"]) == ({"queue": "gpu-2"}, 14)
    assert not second.keys() & {"agents", "timeout_in_minutes", "soft_fail"}
    assert first["artifact_paths"] == ["specdec-runs/kernel-0/**/*"]
    assert (last["depends_on"], last["allow_dependency_failure"]) == ([first["key"], second["key"]], True)
    assert last["command"] == ['buildkite-agent artifact download "specdec-runs/**/*" .', TWO.merge_command()]


def test_an_expression_with_a_dollar_is_uploaded_to_buildkite_as_it_stands():
    last = load("buildkite", replace(TWO, expression="$HOME*"))["steps"][-1]
    assert "--only='$$HOME*'" in last["command"][1]


def test_a_child_pipeline_of_gitlab_hands_every_run_to_a_last_stage():
    document = load("gitlab", TWO)
    first, last = document["specdec kernel-0"], document["specdec"]
    assert document["stages"] == [first["stage"], last["stage"]]
    assert (first["retry"]["exit_codes"], first["tags"], first["timeout"]) == (75, ["gpu-2"], "14 minutes")
    assert first["artifacts"] == {"when": "always", "paths": ["specdec-runs/kernel-0/"]}
    assert not document["specdec kernel-1"].keys() & {"tags", "timeout"}
    assert (last["when"], last["script"], "needs" in last) == ("always", [TWO.merge_command()], False)


def test_a_task_of_skypilot_asks_for_named_gpus_and_leaves_its_run_in_a_bucket():
    first, second = yaml.safe_load_all(ci_formats.render("sky", TWO, "H100"))
    assert first["resources"] == {"accelerators": "H100:2", "memory": "5+"}
    assert "resources" not in second
    assert first["file_mounts"] == {"/specdec-runs": {"source": "$SPECDEC_RUNS", "mode": "MOUNT"}}
    assert first["envs"] == {"SPECDEC_RUNS": None}
    with pytest.raises(SpecdecError, match="--accelerator"):
        ci_formats.render("sky", TWO)
    assert ci_formats.render("sky", jobs(Need())).startswith("---\nname: specdec-kernel-0\n")


def test_each_part_of_a_split_file_of_skypilot_is_a_task_and_the_first_says_to_split():
    empty, *parts = re.split(r"^---$", ci_formats.render("sky", TWO_ON_CPU), flags=re.MULTILINE)
    assert (empty, [yaml.safe_load(part)["name"] for part in parts]) == ("", ["specdec-kernel-0", "specdec-kernel-1"])
    assert ["# Split this file" in part for part in parts] == [True, False]


def test_a_name_of_skypilot_has_no_three_hyphens_in_a_row():
    one = jobs(Need())
    odd = replace(one, jobs=(replace(one.jobs[0], name="a---b-"),))
    assert load("sky", odd)["name"] == "specdec-a--b"


def test_a_task_of_skypilot_copies_its_run_and_exits_with_its_code(stub, tmp_path):
    script = next(yaml.safe_load_all(ci_formats.render("sky", TWO_ON_CPU)))["run"].replace("/specdec-runs/", f"{tmp_path}/bucket/")
    (tmp_path / "bucket").mkdir()
    code, calls = stub(script)
    assert (code, calls) == (3, [expected_argv(0, SPACED)])
    assert (tmp_path / "bucket/kernel-0/run.json").is_file()


def directives(text: str) -> list[str]:
    return re.findall(r"^#SBATCH --(.*)$", text, re.MULTILINE)


def test_an_array_of_slurm_asks_for_what_its_largest_job_needs_as_far_as_all_are_known():
    both = jobs(Need(gpus=2, memory_gib=3.2, minutes=7), Need(gpus=1, memory_gib=9.9, minutes=90))
    assert directives(ci_formats.render("slurm", both))[1:5] == ["array=0-1", "gres=gpu:2", "mem=11G", "time=180"]
    assert directives(ci_formats.render("slurm", TWO))[1:] == ["array=0-1", "gres=gpu:2", "no-requeue", "output=specdec-%A-%a.log"]
    assert "gres" not in " ".join(directives(ci_formats.render("slurm", jobs(Need()))))


def test_directives_of_slurm_come_before_every_command():
    lines = ci_formats.render("slurm", TWO).splitlines()
    first_command = next(index for index, line in enumerate(lines) if not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.parametrize("index", [0, 1])
def test_the_index_of_a_slurm_array_selects_the_job(stub, index):
    script = ci_formats.render("slurm", TWO_ON_CPU)
    code, calls = stub(script, SLURM_ARRAY_TASK_ID=str(index), SLURM_ARRAY_JOB_ID="77")
    *words, run_dir = expected_argv(index, SPACED)
    assert (code, calls) == (3, [[*words, run_dir.replace("specdec-runs", "specdec-runs/77")]])


def test_a_slurm_script_joins_the_runs_of_the_array_that_it_is_given(stub, tmp_path):
    runs = ["specdec-runs/77/kernel-0", "specdec-runs/77/kernel-1"]
    for run in runs:
        (tmp_path / run).mkdir(parents=True)
    code, calls = stub(ci_formats.render("slurm", TWO_ON_CPU), "77")
    out = ["--out", "specdec-runs/77/merged", "--exit-codes"]
    assert (code, calls) == (0, [["python", "-m", "pytest_specdec", "merge", *runs, *out]])


def test_a_slurm_script_that_is_started_by_hand_says_how_to_submit_it(stub):
    code, calls = stub(ci_formats.render("slurm", TWO_ON_CPU))
    assert (code != 0, calls, "submit this file by sbatch" in stub.stderr) == (True, [], True)
