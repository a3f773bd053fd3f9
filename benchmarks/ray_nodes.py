"""A matrix on simulated nodes of Ray: ``python -m benchmarks.ray_nodes [--write]``, where Ray is installed.

*A node is killed*: two variants under three values of a setting on three nodes, one of which is killed while its group has answers; what
had arrived must not be asked for again, and answers and verdicts are those of a session without a cluster. *The session is killed*: no
process of it is left on any node. Both ``--repetitions`` times, 10 by default. *Nodes*: four groups whose servers sleep before they boot,
on 1, 2 and 4 nodes: the part of the ideal speedup that is reached, and what the cluster adds to an arm. Exits with 1 for another answer, a
request asked again, a process left, or less than 90 % of ideal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import results
from pytest_specdec.files import matrix_run, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT = Path(__file__).parents[1]
_CONFIG = """
engine: {{kind: reference, model: target{executable}, args: {{max-model-len: 512}}}}
variants:
  ngram-k3: {{args: {{speculative-config: {{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}}}}}}
{more}
cluster: {{cpus: 0.5, resources: {{box: 1}}}}
matrix:
  axes:
    engine.args.max-num-seqs: [{values}]
"""
_DRAFT = "  draft-k3: {args: {speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3}}}"
_SLEEPS_S = 60
"""Seconds that a server sleeps before it boots: so many that the nodes and not the processors of this machine decide."""
_GROUPS = 4
_NODES = (1, 2, 4)
_IDEAL = 0.9
_END_S = 30.0
"""Seconds in which a killed session's processes have to be gone."""
_MEMORY = 100 << 20


def main() -> int:
    """Measure and print; 1 if anything is not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {results.FOLDER}/ray_nodes.json and .md")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs="*", default=_NODES, help="for the last table; none leaves it out")
    options, began = parser.parse_args(), time.monotonic()
    rows = []
    for row in measure(options.repetitions, options.nodes):
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.write:
        results.write("ray_nodes", rows, command="python -m benchmarks.ray_nodes --write", seconds=time.monotonic() - began)
    return int(not all(row["as it has to be"] for row in rows))


def measure(repetitions: int, nodes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all three tables, as they are measured."""
    with tempfile.TemporaryDirectory(prefix="specdec-ray-") as name:
        folder = Path(name)
        _write_config(folder, "plain", executable="", more=_DRAFT, values="8, 16, 32")
        _session(folder, "plain", "alone").wait()
        expected = _answers(folder / "alone"), _verdicts(folder / "alone")
        for number in range(repetitions):
            yield _lose_node(folder, f"lost-{number}", expected)
        for number in range(repetitions):
            yield _kill_session(folder, f"killed-{number}")
        slow = folder / "late"
        # The engine is asked for its release and its flags too, and these answers are not late; --help comes with a server's own arguments.
        slow.write_text(f'#!/bin/sh\ncase "$*" in *--help*) ;; *--port*) sleep {_SLEEPS_S} ;; esac\nexec {sys.executable} "$@"\n')
        slow.chmod(0o755)
        _write_config(folder, "slow", executable=f", executable: {slow}", more="", values=", ".join(map(str, range(8, 8 + _GROUPS))))
        yield from _scale(folder, nodes)


def _write_config(folder: Path, name: str, **parts: str) -> None:
    (folder / f"{name}.yaml").write_text(_CONFIG.format(**parts), encoding="utf-8")


@contextmanager
def _cluster(nodes: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a cluster and its nodes: a head without room, and ``nodes`` nodes with room for one group each."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - an extra

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": _MEMORY, "include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(num_cpus=1, resources={"box": 1}, object_store_memory=_MEMORY) for _ in range(nodes)]
    finally:
        cluster.shutdown()


def _session(folder: Path, config: str, run: str, *more: str) -> subprocess.Popen[bytes]:
    """Return a session that captures and judges the greedy suite at smoke depth."""
    suite, depth = str(_ROOT / "suites" / "greedy"), "--specdec-depth=smoke"
    argv = (sys.executable, "-m", "pytest", suite, "--rootdir=.", "-pno:cacheprovider", f"--specdec-config={config}.yaml", depth)
    with (folder / f"{run}.out").open("wb") as output:
        return subprocess.Popen((*argv, f"--specdec-run-dir={run}", *more), cwd=folder, stdout=output, stderr=output, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def _groups(run: Path) -> list[Path]:
    return sorted(path.parent for path in (run / "groups").glob("*/plan.json"))


def _transcripts(run: Path) -> dict[str, str]:
    """Return the digest of each transcript's file, by its path in the run."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in run.glob("groups/*/transcripts/*/*.jsonl")
    }


def _answers(run: Path) -> dict[str, str]:
    """Return a digest of each arm's answers to each judged workload: tokens, texts and ends, no times.

    The calibration's draws have no seed: no two sessions have the same.
    """
    digests = {}
    for group in _groups(run):
        directory = RunDirectory(group)
        plan = run_documents.read_plan(directory)
        judged = {judgement.workload for judgement in plan.judgements}
        for arm, name in {(arm, name) for boot in plan.boots for name in judged.intersection(boot.answers) for arm in boot.arms}:
            transcript = transcripts.read(directory, arm, name)
            answers = [] if transcript is None else [(answer.key, answer.status, answer.choices) for answer in transcript.answers]
            digests[f"{group.name}/{arm}/{name}"] = hashlib.sha256(repr(answers).encode()).hexdigest()
    return digests


def _verdicts(run: Path) -> list[Any]:
    """Return test, outcome and headline of each judgement of a run."""
    documents = [json.loads((group / "run.json").read_text(encoding="utf-8")) for group in _groups(run)]
    judgements = [judgement for document in documents for judgement in document["judgements"]]
    return sorted((one["nodeid"], one["verdict"]["outcome"], one["verdict"]["headline"]) for one in judgements)


def _lose_node(folder: Path, run: str, expected: tuple[Mapping[str, str], Sequence[Any]]) -> dict[str, Any]:
    """Return the row of a session one of whose nodes is killed once a group has the answers of two arms."""
    began = time.monotonic()
    with _cluster(3) as (cluster, nodes):
        session = _session(folder, "plain", run, f"--specdec-cluster={cluster.address}")
        while session.poll() is None and not any(len(list(group.glob("transcripts/*"))) >= 2 for group in _groups(folder / run)):
            time.sleep(0.1)
        arrived = _transcripts(folder / run)
        cluster.remove_node(nodes[0], allow_graceful=False)
        code = session.wait()
        left = _wait_for_end()
    now = _transcripts(folder / run)
    again = sum(now.get(path) != digest for path, digest in arrived.items())
    is_lost = "lost its node" in (folder / f"{run}.out").read_text(errors="replace")
    other = sum(_answers(folder / run).get(name) != digest for name, digest in expected[0].items())
    verdicts = "the same" if _verdicts(folder / run) == expected[1] else "others"
    return {
        "table": "A node is killed",
        "form": run,
        "seconds": round(time.monotonic() - began, 1),
        "transcripts that had arrived": len(arrived),
        "asked again": again,
        "of all": len(expected[0]),
        "other answers": other,
        "verdicts": verdicts,
        "processes left": len(left),
        "as it has to be": code == 0 and is_lost and not again and not other and verdicts == "the same" and not left,
    }


def _kill_session(folder: Path, run: str) -> dict[str, Any]:
    """Return the row of a session that is killed while servers run on its nodes."""
    with _cluster(3) as (cluster, _):
        session = _session(folder, "plain", run, f"--specdec-cluster={cluster.address}")
        while session.poll() is None and not any(list(group.glob("transcripts/*")) for group in _groups(folder / run)):
            time.sleep(0.1)
        at_work = len(_processes())
        session.send_signal(signal.SIGKILL)
        session.wait()
        began = time.monotonic()
        left = _wait_for_end()
        gone_s = time.monotonic() - began
    return {
        "table": "The session is killed",
        "form": run,
        "processes before": at_work,
        "processes left": len(left),
        "gone after, s": round(gone_s, 1),
        "as it has to be": at_work > 0 and not left,
    }


def _processes() -> list[str]:
    """Return the command lines of captures on nodes, and of servers of the reference engine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "pytest_specdec.plugin.cluster_node" in line or "-m specdec_reference" in line:
            lines.append(line)
    return lines


def _wait_for_end() -> list[str]:
    """Return the processes that are left after ``_END_S`` seconds."""
    end_s = time.monotonic() + _END_S
    while (left := _processes()) and time.monotonic() < end_s:
        time.sleep(0.2)
    return left


def _scale(folder: Path, nodes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the row of each number of nodes.

    Ideal is the time of a session without a cluster: what its servers sleep, divided by the number of nodes, and the rest, which is
    computing, by no more than the processors of the machine that all the nodes are on.
    """
    if nodes:
        _session(folder, "slow", "alone-slow").wait()
        alone_s = _captured_s(folder / "alone-slow")
    for count in nodes:
        run = f"nodes-{count}"
        with _cluster(count) as (cluster, _):
            began = time.time()
            code = _session(folder, "slow", run, f"--specdec-cluster={cluster.address}").wait()
        groups = _groups(folder / run)
        statuses = [run_documents.read_status(RunDirectory(group)) for group in groups]
        boots = sum(status.boots for status in statuses)
        sleeping_s = boots * _SLEEPS_S
        ideal_s = sleeping_s / count + (alone_s - sleeping_s) / min(count, os.cpu_count() or 1)
        capture_s = _captured_s(folder / run)
        yield {
            "table": "Nodes",
            "form": str(count),
            "groups": len(groups),
            "boots": boots,
            "without a cluster, s": round(alone_s, 1),
            "ideal, s": round(ideal_s, 1),
            "all captured after, s": round(capture_s, 1),
            "of ideal": f"{ideal_s / capture_s:.0%}",
            "added per arm, s": round((capture_s - ideal_s) * count / boots, 2),
            "session, s": round(time.time() - began, 1),
            "as it has to be": code == 0 and len(groups) == _GROUPS and ideal_s / capture_s >= _IDEAL,
        }


def _captured_s(run: Path) -> float:
    """Return the seconds from the begin of a session's captures to their end."""
    ends = [(group / "status.json").stat().st_mtime for group in _groups(run)]
    return max(ends) - (run / matrix_run.DOCUMENT).stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())
