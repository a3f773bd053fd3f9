"""Released versions of real engines, each judged by the suites: ``python -m benchmarks.releases [--engine vllm] [--version 0.32.0 …]``.

For each release an environment is made by the engine's script in ``pytest_specdec/engines/environments``, the engine's config in
``suites/configs`` is run in it variant by variant, each run.json is stored under docs/releases/runs, the environment is removed, and
docs/releases is written anew. What is stored is not run again: the same command goes on where it stopped. ``--pages`` writes the pages
alone. A release that could not be installed, or came to no verdict, leaves the end of its log in place of a run.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import release_pages
from pytest_specdec.files import yaml
from pytest_specdec.model.workload import Family
from specdec_reference import pad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_specdec.model.workload import JSON

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".specdec" / "releases"
"""Configs, environments and run directories. Two levels below the root as suites/configs is, so that the relative paths of configs hold."""
SCRIPTS = ROOT / "pytest_specdec" / "engines" / "environments"
CONFIGS = ROOT / "suites" / "configs"
LEFT_OUT = frozenset({Family.SPEED, Family.PRESSURE})
"""Of models this small a speed says nothing, and a small cache is a boot of its own for each arm."""
MOST_BYTES = 1 << 19
"""Of a stored run.json."""
_JUDGED = {0, 1}
"""Exit codes of pytest when tests ran: all passed, or some failed."""
_LAST_LINES, _LAST_ERRORS = 12, 4
_ERROR = re.compile(r"\b\w+Error: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(release_pages.ReleasedEngine):
    """An engine, and how a release of it is installed."""

    kind: str
    left_out: frozenset[Family] = LEFT_OUT
    """Families that are not judged."""
    executable: str = ""
    """In the environment, where that is no venv."""

    def environment(self, version: str) -> str:
        """Return the folder of a release's environment, from FOLDER."""
        return f"environments/{self.kind}-{version}"

    def location(self, version: str) -> dict[str, JSON]:
        """Return the keys of the config that say where the release is."""
        folder = self.environment(version)
        return {"executable": f"{folder}/{self.executable}"} if self.executable else {"venv": folder}


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(
        title="vLLM on a CPU",
        kind="vllm",
        config="vllm-cpu-stock",
        releases=("0.32.0", "0.31.0", "0.30.0", "0.29.0", "0.28.0"),
        left_out=LEFT_OUT | {Family.CONCURRENCY, Family.PARAMETERS, Family.STRUCTURED, Family.TOOLS, Family.CONTEXT},
        about="The packages are `vllm-cpu` as released, with torch 2.13.0+cpu and without any patch.\n"
        "A request with `top_k` or a grammar can end such a server, and a boot takes half a minute:\n"
        "liveness sends such ones, and the families that send more are left out.",
        causes={
            "0.30.0": "draft-k3: the engine dies at its first drafting step, `TypeError: Cannot inspect kernel parameters for function`: "
            "`jit_warmup_triton_helper.py` asks for a Triton kernel's arguments where the CPU build has a plain function"
        },
    ),
    "mlx-lm": Engine(
        title="mlx-lm on a CPU",
        kind="mlx_lm",
        config="mlx-lm",
        releases=("0.32.2", "0.32.1", "0.32.0", "0.31.3", "0.30.7", "0.29.1"),
        about="The packages are `mlx-lm` as released with the newest `mlx[cpu]` of its minor version (0.31.3: 0.32.4).",
        causes={
            "0.29.1": "draft-k3: the server dies of requests, `ValueError: Invalid type transformers.tokenization_utils_base.BatchEncoding "
            "received in array initialization`, with the transformers that is installed with it"
        },
    ),
    "transformers": Engine(
        title="transformers serve",
        kind="transformers",
        config="transformers",
        releases=("5.24.0", "5.23.0", "5.22.2", "5.21.1", "5.20.2", "5.19.0"),
        about="The packages are `transformers` as released, with torch 2.13.0+cpu.",
    ),
    "llama-cpp": Engine(
        title="llama.cpp",
        kind="llama_cpp",
        config="llama-cpp",
        executable="llama-server",
        releases=("0.3.36", "0.3.35", "0.3.34", "0.3.33", "0.3.32", "0.3.31"),
        about="`llama-server` is built from the sources in the archives of `llama-cpp-python`, by whose versions the rows are named.",
    ),
}


def main() -> int:
    """Judge what is not stored yet and write the pages; 1 if a release came to no verdict."""
    options = _parse()
    missing = []
    for name in [] if options.pages else options.engine or ENGINES:
        for version in options.version or ENGINES[name].releases:
            missing += judge(name, version, options.variant, options.depth)
    for path, text in release_pages.pages(ENGINES).items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for run in missing:
        print(f"no verdict: {run}")
    return int(bool(missing))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=list(ENGINES), default=[], help="default: all of them")
    parser.add_argument("--version", nargs="+", default=[], metavar="VERSION", help="default: all that the module lists")
    parser.add_argument("--variant", nargs="+", default=[], metavar="VARIANT", help="default: all of the engine's config")
    parser.add_argument("--depth", choices=("smoke", "standard", "deep"), default="smoke")
    parser.add_argument("--pages", action="store_true", help="run nothing")
    return parser.parse_args()


def judge(name: str, version: str, only: Sequence[str], depth: str) -> list[str]:
    """Run the suites on each variant of one release that is not stored. Returns those that came to no verdict.

    The environment is removed once all variants of the config are stored, and where it could not be made.
    """
    engine = ENGINES[name]
    wanted = [variant for variant in only or engine.variants if not release_pages.stored_path(name, version, variant).exists()]
    environment, log = FOLDER / engine.environment(version), FOLDER / f"{name}-{version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    release_pages.RUNS.mkdir(parents=True, exist_ok=True)
    is_there = not wanted or _log(["bash", str(SCRIPTS / f"{engine.kind}.sh"), version, str(environment)], log, {0})
    missing = [variant for variant in wanted if not (is_there and _store(name, version, variant, depth, log))]
    release_pages.reason_path(name, version).unlink(missing_ok=True)
    if missing:
        logs = [
            log,
            *(path for variant in missing for path in sorted((FOLDER / "runs" / f"{name}-{version}-{variant}").glob("servers/*.log"))),
        ]
        release_pages.reason_path(name, version).write_text(without_folders(_describe_failure(logs)), encoding="utf-8")
    if not is_there or all(release_pages.stored_path(name, version, variant).exists() for variant in engine.variants):
        shutil.rmtree(environment, ignore_errors=True)  # a vLLM takes 2.5 GB
    return [f"{name} {version} {variant}" for variant in missing]


def _describe_failure(logs: Iterable[Path]) -> str:
    """Return the last errors of the servers' logs and the end of the first log, that of the command."""
    log, *servers = [path.read_text(encoding="utf-8", errors="replace").splitlines() for path in logs]
    errors = [line for lines in servers for line in [line for line in lines if _ERROR.search(line)][-_LAST_ERRORS:]]
    return "\n".join([*errors, *log[-_LAST_LINES:]]) + "\n"


def _store(name: str, version: str, variant: str, depth: str, log: Path) -> bool:
    """Run the suites on one variant and store their run.json. Returns False if they came to no verdict."""
    if not _run(name, version, variant, depth, log):
        return False
    document = without_folders((FOLDER / "runs" / f"{name}-{version}-{variant}" / "run.json").read_text(encoding="utf-8"))
    assert len(document.encode()) <= MOST_BYTES, f"{name} {version} {variant}: run.json has more than {MOST_BYTES} bytes"
    release_pages.stored_path(name, version, variant).write_text(document, encoding="utf-8")
    return True


def without_folders(text: str) -> str:
    """Return ``text`` without the folders of this machine, which a server's log has."""
    return text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


def _run(name: str, version: str, variant: str, depth: str, log: Path) -> bool:
    """Run the suites, or go on with a run that was cut off; return whether they came to a verdict."""
    config, run = FOLDER / f"{name}-{version}.yaml", FOLDER / "runs" / f"{name}-{version}-{variant}"
    write_checkpoints(FOLDER / "checkpoints")
    config.write_text(yaml.dump(release_config(ENGINES[name], version)), encoding="utf-8")
    where = ["--specdec-resume" if (run / "plan.json").exists() else "--specdec-run-dir", str(run.relative_to(ROOT))]
    suites = [f"suites/{family}" for family in Family if family not in ENGINES[name].left_out]
    options = [f"--specdec-config={config.relative_to(ROOT)}", f"--specdec-depth={depth}", *where, "-k", f"[{variant}]"]
    command = [sys.executable, "-m", "pytest", *suites, *options, "-q", "-p", "no:cacheprovider"]
    return _log(command, log, _JUDGED) and _holds_verdicts(run / "run.json")


def _log(command: Sequence[str], log: Path, accepted: set[int]) -> bool:
    """Run a command with its output at the end of ``log``; return whether its exit code is one of ``accepted``."""
    cache = FOLDER / "hub"
    cache.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "HF_HUB_CACHE": str(cache),
    }  # empty: earlier releases of mlx-lm and transformers list models by it, and fail without one
    with log.open("ab") as output:
        code = subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return code in accepted


def _holds_verdicts(document: Path) -> bool:
    return document.exists() and bool(json.loads(document.read_text(encoding="utf-8"))["judged"])


def write_checkpoints(folder: Path) -> None:
    """Write the models of suites/configs/mlx-lm.yaml, with ``rope_theta`` at the top level too, where mlx-lm before 0.32 looks."""
    for name, model, layers in (("target-f32", "target", 4), ("draft-f32", "draft", 1)):
        if not (folder / name).exists():
            pad.write(model, layers, folder / name, single=True)
            config = folder / name / "config.json"
            read = json.loads(config.read_text(encoding="utf-8"))
            config.write_text(json.dumps({**read, "rope_theta": read["rope_parameters"]["rope_theta"]}, indent=1) + "\n", encoding="utf-8")


def release_config(engine: Engine, version: str) -> dict[str, JSON]:
    """Return the engine's config with the release's environment in place of its own, and the models of :func:`write_checkpoints`."""
    path = CONFIGS / f"{engine.config}.yaml"
    read = yaml.load(path.read_text(encoding="utf-8").replace("../../.specdec/checkpoints/", "checkpoints/"), str(path)).data
    assert isinstance(read, dict)
    assert isinstance(read["engine"], dict)
    settings = {key: value for key, value in read["engine"].items() if key not in {"venv", "executable"}}
    return {**read, "engine": {**settings, **engine.location(version)}}


if __name__ == "__main__":
    sys.exit(main())
