"""The formats of a job list: text, JSON, and what a CI system or a cluster's scheduler reads.

A job is one process of pytest over some cells of a matrix, each a variant with its settings. A job's need is GPUs, memory and minutes. If
there are several jobs, a last one merges their run directories. No name gets into a shell or a YAML file unquoted. Jobs have a label for
their number of GPUs, ``gpu-2``, where a system chooses machines by labels.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import yaml

from pytest_specdec.errors import SpecdecError
from pytest_specdec.report.ci_jobs import MERGED, RUNS
from pytest_specdec.report.escape import printable
from pytest_specdec.report.progress import plural
from pytest_specdec.report.run import RunClass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.ci_jobs import Job, JobList, Need

__all__ = ["FORMATS", "render"]

_MARGIN = 2
"""Times the minutes that were measured until a job is ended: another machine, a colder cache, questions asked again."""
_MOST_GITHUB = 256
"""Jobs that GitHub makes of one matrix."""
_RETRIED = RunClass.INFRASTRUCTURE.exit_code
"""The one exit code after which the same command may come to a verdict."""
_BUCKET = "SPECDEC_RUNS"
"""The variable by which SkyPilot's tasks are given a bucket for their runs."""
_SKY_NOTE = (
    "# Split this file at its --- lines and launch each task by itself with `sky jobs launch`: SkyPilot runs the tasks of one file one\n"
    "# after another, up to the first that fails.\n"
)


def render(form: str, jobs: JobList, accelerator: str = "") -> str:
    """Return the jobs in one of :data:`FORMATS`.

    ``accelerator`` is the GPU that tasks of SkyPilot ask for. Raises SpecdecError if the format cannot express the jobs.
    """
    return _sky(jobs, accelerator) if form == _SKY else _RENDERERS[form](jobs)


def _text(jobs: JobList) -> str:
    """Return the jobs in words with need, cells and command, then the command to join their runs."""
    axes = "; ".join(f"{axis}: {', '.join(values)}" for axis, values in jobs.matrix.axes.items())
    lines = [f"{plural(len(jobs.jobs), 'job')} for {plural(sum(len(job.cells) for job in jobs.jobs), 'cell')} ({axes})"]
    for job in jobs.jobs:
        lines += ["", f"{job.name}: {_describe(job.need)}", *(f"    {cell}" for cell in job.cells), f"  {job.command()}"]
    if jobs.is_merged:
        lines += ["", "then, whatever their exit codes:", f"  {jobs.merge_command()}"]
    return "".join(f"{printable(line)}\n" for line in lines)


def _describe(need: Need) -> str:
    """Return what a job needs in words, as far as it is known."""
    memory = "" if need.memory_gib is None else f", {need.memory_gib:.1f} GiB for servers"
    minutes = "" if need.minutes is None else f", {plural(need.minutes, 'minute')} when it was measured"
    return f"{plural(need.gpus, 'GPU')}{memory}{minutes}"


def _json(jobs: JobList) -> str:
    """Return the jobs and the command that joins their runs as JSON."""
    document = {
        "axes": jobs.matrix.axes,
        "jobs": [{**_fields(job), "cells": job.cells} for job in jobs.jobs],
        "merge": {"command": jobs.merge_command(), "run": MERGED} if jobs.is_merged else None,
    }
    return json.dumps(document, indent=2) + "\n"


def _fields(job: Job) -> dict[str, JSON]:
    """Return a job's command, run directory and need; what is unknown is null."""
    need = job.need
    return {
        "name": job.name,
        "command": job.command(),
        "run": f"{RUNS}/{job.name}",
        "gpus": need.gpus,
        "memory_gib": None if need.memory_gib is None else round(need.memory_gib, 1),
        "minutes": need.minutes,
        "timeout_minutes": None if need.minutes is None else _limit(need.minutes),
    }


def _github(jobs: JobList) -> str:
    """Return a matrix of GitHub Actions on one line, as step outputs need it; raise SpecdecError for too many jobs."""
    if len(jobs.jobs) > _MOST_GITHUB:
        what, count = "a matrix of GitHub Actions has no room for these jobs", f"{len(jobs.jobs)} jobs"
        remedy = f"divide the cells by --shards {_MOST_GITHUB}, or select fewer by --only"
        raise SpecdecError(what, where="--format github", found=count, expected=f"at most {_MOST_GITHUB}", remedy=remedy)
    include = [{name: value for name, value in _fields(job).items() if value is not None} for job in jobs.jobs]
    return json.dumps({"include": include}) + "\n"


def _limit(minutes: int) -> int:
    """Return the minutes after which a job is ended."""
    return _MARGIN * minutes


def _buildkite(jobs: JobList) -> str:
    """Return a pipeline for ``buildkite-agent pipeline upload``.

    Each step runs one job and uploads its run directory. A step is retried once if the infrastructure failed, which its exit code says. If
    there are several jobs, a last step downloads their runs and joins them, whatever their exit codes.
    """
    # -1 is the status of a job whose agent was lost.
    retry: JSON = {"automatic": [{"exit_status": status, "limit": 1} for status in (-1, _RETRIED)]}
    steps: list[JSON] = [
        {
            "label": f"specdec {job.name}",
            "key": f"specdec-{job.name}",
            "command": _escape_dollars(job.command()),
            **({"agents": {"queue": _label(job)}} if job.need.gpus else {}),
            **({} if job.need.minutes is None else {"timeout_in_minutes": _limit(job.need.minutes)}),
            "retry": retry,
            "artifact_paths": [f"{RUNS}/{job.name}/**/*"],
        }
        for job in jobs.jobs
    ]
    merge: JSON = {
        "label": "specdec",
        "key": "specdec",
        "depends_on": [f"specdec-{job.name}" for job in jobs.jobs],
        "allow_dependency_failure": True,
        "command": [f'buildkite-agent artifact download "{RUNS}/**/*" .', _escape_dollars(jobs.merge_command())],
        "artifact_paths": [f"{MERGED}/**/*"],
    }
    return _dump({"steps": [*steps, merge] if jobs.is_merged else steps})


def _escape_dollars(command: str) -> str:
    """Return a command that a Buildkite agent uploads as it stands.

    The agent replaces ``$NAME`` by a variable, and reads both ``$$`` and a dollar after a backslash as one dollar. So dollars are doubled.
    A backslash before one is parted from it by closing and opening the quotes: a word with either character is in single quotes.
    """
    return command.replace("\\$", "\\''$").replace("$", "$$")


def _gitlab(jobs: JobList) -> str:
    """Return a child pipeline for ``trigger: include: artifact``.

    Each job keeps its run directory as an artifact. If there are several, a last one joins the runs. It stands in a stage of its own
    instead of naming the others under ``needs``, where GitLab allows 50.
    """
    retry: JSON = {"max": 1, "when": "runner_system_failure", "exit_codes": _RETRIED}
    document: dict[str, JSON] = {"stages": ["cells", "merge"]}
    for job in jobs.jobs:
        document[f"specdec {job.name}"] = {
            "stage": "cells",
            **({"tags": [_label(job)]} if job.need.gpus else {}),
            **({} if job.need.minutes is None else {"timeout": f"{_limit(job.need.minutes)} minutes"}),
            "script": [job.command()],
            "retry": retry,
            "artifacts": {"when": "always", "paths": [f"{RUNS}/{job.name}/"]},
        }
    if jobs.is_merged:
        document["specdec"] = {
            "stage": "merge",
            "when": "always",
            "script": [jobs.merge_command()],
            "artifacts": {"when": "always", "paths": [f"{MERGED}/"]},
        }
    return _dump(document)


def _label(job: Job) -> str:
    """Return the label of machines with enough GPUs for a job."""
    return f"gpu-{job.need.gpus}"


def _sky(jobs: JobList, accelerator: str) -> str:
    """Return a task of SkyPilot for each job, in one YAML file.

    A file with several is to be split at its documents, as a note in it says: SkyPilot runs the tasks of one file one after another, up to
    the first that fails. Raises SpecdecError if a job needs a GPU and none is named.
    """
    if jobs.most_gpus and not accelerator:
        what, remedy = "SkyPilot asks for GPUs by name", "name one that `sky gpus list` has: --accelerator H100"
        raise SpecdecError(
            what, where="--format sky", found=f"{plural(jobs.most_gpus, 'GPU')} of no name", expected="a name", remedy=remedy
        )
    documents = [_dump(_sky_task(job, accelerator)) for job in jobs.jobs]
    # Below the first ---, so that a file split there has no part without a task.
    return f"---\n{_SKY_NOTE if jobs.is_merged else ''}" + "---\n".join(documents)


def _sky_task(job: Job, accelerator: str) -> dict[str, JSON]:
    """Return a job as one task of SkyPilot.

    The task runs the job's command in the working directory, copies the run into the mounted bucket and exits with the command's code.
    """
    # SkyPilot takes no name with three hyphens in a row or one at its end.
    name = re.sub("-{3,}", "--", f"specdec-{job.name}").rstrip("-")
    memory = {} if job.need.memory_gib is None else {"memory": f"{_gib_to_request(job.need.memory_gib)}+"}
    gpus = {"accelerators": f"{accelerator}:{job.need.gpus}"} if job.need.gpus else {}
    run = f"code=0\n{job.command()} || code=$?\ncp -r {RUNS}/{job.name} /{RUNS}/\nexit $code\n"
    return {
        "name": name,
        "workdir": ".",
        **({"resources": {**gpus, **memory}} if gpus or memory else {}),
        "envs": {_BUCKET: None},  # null: whoever launches the task has to name the bucket
        "file_mounts": {f"/{RUNS}": {"source": f"${_BUCKET}", "mode": "MOUNT"}},
        "run": run,
    }


def _gib_to_request(servers_gib: float) -> int:
    """Return the memory of a job in whole GiB.

    It is what servers take, and between one and two GiB more for the process of pytest.
    """
    return int(servers_gib) + 2


def _slurm(jobs: JobList) -> str:
    """Return a batch script with one array task per job.

    If there are several jobs, the script has a second use: called with the id of an ended array, it joins the runs of its jobs. All tasks
    of an array get the same resources, the most that a job needs; memory or time is left out if that of any job is unknown.
    """
    memory = [job.need.memory_gib for job in jobs.jobs if job.need.memory_gib is not None]
    minutes = [job.need.minutes for job in jobs.jobs if job.need.minutes is not None]
    directives = [
        "job-name=specdec",
        f"array=0-{len(jobs.jobs) - 1}",
        *([f"gres=gpu:{jobs.most_gpus}"] if jobs.most_gpus else []),
        *([f"mem={_gib_to_request(max(memory))}G"] if len(memory) == len(jobs.jobs) else []),
        *([f"time={_limit(max(minutes))}"] if len(minutes) == len(jobs.jobs) else []),
        "no-requeue",  # its run directory would be in use
        "output=specdec-%A-%a.log",
    ]
    merge = jobs.merge_command(_SLURM_RUNS, f"{_SLURM_RUNS}/merged")
    lines = [
        *(_SLURM_HEAD if jobs.is_merged else _SLURM_HEAD[:1]),  # the further lines explain the join
        *(f"#SBATCH --{directive}" for directive in directives),
        "set -u",
        # The folder of runs is named by the array's id: the argument of the joining call, or what Slurm gives to a task.
        f'runs={RUNS}/"${{1:-${{SLURM_ARRAY_JOB_ID:?submit this file by sbatch}}}}"',
        *(('if [ "$#" -gt 0 ]; then', f"    {merge}", "    exit", "fi") if jobs.is_merged else ()),
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{index}) {job.command(_SLURM_RUNS)} ;;" for index, job in enumerate(jobs.jobs)),
        "esac",
    ]
    return "".join(f"{line}\n" for line in lines)


_SLURM_RUNS = '"$runs"'
_SLURM_HEAD = (
    "#!/bin/bash",
    "#     array=$(sbatch --parsable specdec.sbatch)",
    '#     sbatch --wait --dependency=afterany:"$array" --wrap="bash specdec.sbatch $array"',
    "# The first line submits the jobs. The second submits the job that joins their runs, waits for it and exits with its code.",
)


def _dump(document: Mapping[str, JSON]) -> str:
    """Return a document as YAML, without broken lines and references."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=2**20)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, with scripts as blocks and without anchors, which not every reader of these files has."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the dumper asks for each part
        """Return True, so that a part that occurs twice is written twice."""
        return True


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


_SKY = "sky"
_RENDERERS: dict[str, Callable[[JobList], str]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "buildkite": _buildkite,
    "gitlab": _gitlab,
    "slurm": _slurm,
}
FORMATS: Sequence[str] = (*_RENDERERS, _SKY)
"""The names of the formats."""
