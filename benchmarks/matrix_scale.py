"""A matrix of 1,000 pairs: ``python -m benchmarks.matrix_scale [--write]``.

It prints the seconds to read its config, to lay out the plans of all groups for the packaged suites at standard depth, to divide it into
16 shards, and to merge 1,000 stored runs of one cell and 1,000 answers each, with the peak memory of the merge beside that of ten runs.
Exits with 1 if a plan takes over 5 seconds, or a merge over 30. pytest's own collection of the tests, 34,000 of them, is shown and not
judged.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import results
from benchmarks.collection import collect_suites
from pytest_specdec.capture import shards
from pytest_specdec.config import matrix
from pytest_specdec.files import matrix_run, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.transcript import Answer, Choice, Transcript
from pytest_specdec.model.workload import Depth
from pytest_specdec.plugin import collection
from pytest_specdec.plugin.report_files import read_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.matrix import MatrixConfig

_STORED = Path("docs/releases/runs/vllm-0.32.0-draft-k3.json")
"""A run of one pair, of a real engine."""
_GROUPS, _CELLS = 250, 4
_ANSWERS = 1000
"""Of each run that is merged."""
_PLAN_S, _MERGE_S = 5.0, 30.0
_CONFIG = """
engine: {{kind: reference, model: target}}
variants:
  draft-k3: {{args: {{speculative-config: {{method: draft_model, model: draft, num_speculative_tokens: 3}}}}}}
matrix:
  axes:
    engine.args.max-num-seqs: [{groups}]
    variants.args.speculative-config.num_speculative_tokens: [{cells}]
"""


def main() -> int:
    """Measure and print; 1 if a plan or a merge takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {results.FOLDER}/matrix_scale.json and .md")
    options, began = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="specdec-matrix-") as folder:
        rows = [*_plan_rows(Path(folder)), *_merge_rows(Path(folder))]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.write:
        results.write("matrix_scale", rows, command="python -m benchmarks.matrix_scale --write", seconds=time.monotonic() - began)
    return int(not all(row["kept"] for row in rows))


def _write_config(path: Path, groups: int, cells: int) -> MatrixConfig:
    groups_text, cells_text = (", ".join(str(value + 1) for value in range(count)) for count in (groups, cells))
    path.write_text(_CONFIG.format(groups=groups_text, cells=cells_text), encoding="utf-8")
    return matrix.load_matrix(path)


def _collect(config: Path) -> tuple[float, float]:
    """Collect the packaged suites; return the seconds of it all, and those of sorting the tests and laying out their plans."""
    laid_out, plan = [], collection.plan

    def plan_and_time(*arguments: object) -> None:
        began = time.monotonic()
        plan(*arguments)
        laid_out.append(time.monotonic() - began)

    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collection, "plan", plan_and_time)
        collect_suites(config)
    return time.monotonic() - began, laid_out[0]


def _plan_rows(folder: Path) -> Sequence[dict[str, Any]]:
    began = time.monotonic()
    config = _write_config(folder / "scale.yaml", _GROUPS, _CELLS)
    read_s, pairs = time.monotonic() - began, len(config.matrix.cells)
    began = time.monotonic()
    shards.part(config, config.matrix, 1, 16)
    divided_s = time.monotonic() - began
    collected_s, planned_s = _collect(folder / "scale.yaml")
    return [
        {"table": "plan", "form": "config", "pairs": pairs, "seconds": round(read_s, 1), "kept": True},
        {"table": "plan", "form": "shards", "pairs": pairs, "seconds": round(divided_s, 1), "kept": True},
        {"table": "plan", "form": "plans", "pairs": pairs, "seconds": round(planned_s, 1), "kept": planned_s <= _PLAN_S},
        {"table": "plan", "form": "whole collection", "pairs": pairs, "seconds": round(collected_s, 1), "kept": True},
    ]


def _merge_rows(folder: Path) -> Sequence[dict[str, Any]]:
    rows = []
    for count in (10, 1000):
        config = _write_config(folder / "merged.yaml", count, 1)
        parts = _write_parts(folder / f"parts-{count}", config)
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        command = [sys.executable, "-m", "pytest_specdec", "merge", *map(str, parts), "--out", str(folder / f"whole-{count}")]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        seconds, peak = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        assert ended in {0, 1}, f"merge ended with {ended}"
        merged = sum(1 for _ in (folder / f"whole-{count}").glob("groups/*/transcripts/*/*.jsonl"))
        assert merged == count, f"{merged} transcripts in the whole"
        mib = f"{peak / 1024:.0f}" if peak > before else f"at most {before / 1024:.0f}"
        rows.append(
            {
                "table": "merge",
                "form": f"{count}",
                "runs": count,
                "answers": count * _ANSWERS,
                "seconds": round(seconds, 1),
                "MiB": mib,
                "kept": seconds <= _MERGE_S,
            }
        )
    return rows


def _write_parts(folder: Path, config: MatrixConfig) -> Sequence[Path]:
    """Write a run of each cell by itself, as jobs of a fleet leave them, with the results of the stored run and a thousand answers."""
    text, stored = _STORED.read_text(encoding="utf-8"), read_run(_STORED)
    assert stored.environment is not None
    (pair,) = stored.plan.pairs
    for number, cell in enumerate(config.matrix.cells):
        run = matrix_run.new_run(
            config=config.name, text=config.text, matrix=config.matrix, cells=[cell.name], depth=Depth(stored.plan.depth), workloads={}
        )
        root = folder / f"part-{number}"
        (name,) = run.groups
        directory = RunDirectory(matrix_run.group_directory(root, name))
        directory.root.mkdir(parents=True)
        matrix_run.write(root, run)
        run_documents.write_session(directory, f"session-{number}")
        run_documents.write_environment(directory, stored.environment)
        transcripts.write(directory, _transcript(cell.name))
        directory.run.write_text(text.replace(json.dumps(pair.name), json.dumps(cell.name)), encoding="utf-8")
    return sorted(folder.iterdir())


@cache
def _answers() -> tuple[Answer, ...]:
    tokens = tuple(range(24))
    choices = (Choice(text="two dozen tokens of an answer", token_ids=tokens, finish_reason="length"),)
    return tuple(Answer(request_id=f"request-{number}", status=200, choices=choices) for number in range(_ANSWERS))


def _transcript(arm: str) -> Transcript:
    return Transcript(arm=arm, boot=1, workload="many", digest="0", answers=_answers())


if __name__ == "__main__":
    sys.exit(main())
