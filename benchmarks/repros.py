"""Repro folders of planted faults, followed as their README says: ``python -m benchmarks.repros [FAULT …] [--write]``.

Each fault is captured by the suite of its family, and its folder is written. A replay of the folder has to come to the verdict of the run.
Then both servers of the README are started and the plain script is run, in an interpreter that imports nothing of this project: it has to
exit with 1, and with 0 beside the same server without the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES = {
    "accept-all": "greedy",
    "kv-off-by-one": "greedy",
    "first-draft-unverified": "greedy",
    "limit-overrun": "lengths",
    "stop-missed-mid-window": "lengths",
    "usage-counts-rejected": "invariants",
    "stop-at-limit": "lengths",
    "die-on-json": "structured",
    "die-in-company": "liveness",
    "seed-ignored": "seeds",
    "prompt-logprobs-shifted": "logprobs",
    "grammar-skipped": "structured",
    "regex-prefix-only": "structured",
    "penalties-ignored": "parameters",
    "penalties-for-all": "concurrency",
    "warm-empty": "state",
    "prefix-partial-block": "state",
    "tool-finish-stop": "tools",
    "tool-arguments-empty": "tools",
    "preempted-token-lost": "pressure",
}
"""The suite that finds each fault."""
_VARIANT = "draft-k3"
_BOOT_S = 30.0
_MOST_MIB = 25.0
"""Of a folder: what may be attached to an issue on GitHub."""
_RUN_S = 300.0


def main() -> int:
    """Print a line for each fault.

    Returns 1 if a script does not show its fault, or shows one without it, or if a folder is large or is judged otherwise than its run.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", choices=[*SUITES, []], help="of these alone")
    parser.add_argument("--times", type=int, default=1, help="times that each script is run (default: 1)")
    parser.add_argument("--write", action="store_true", help="keep the results under benchmarks/results")
    arguments = parser.parse_args()
    began_s, rows = time.monotonic(), []
    for fault in arguments.faults or SUITES:
        with tempfile.TemporaryDirectory() as folder:
            row = {"table": "repros", "form": fault, "suite": SUITES[fault], **follow(fault, Path(folder), arguments.times)}
        sys.stdout.write("  ".join(map(str, list(row.values())[1:])) + "\n")
        sys.stdout.flush()
        rows.append(row)
    if arguments.write:
        results.write("repros", rows, command="python -m benchmarks.repros --write", seconds=time.monotonic() - began_s)
    return int(any(not _is_right(row) for row in rows))


def _is_right(row: dict[str, str]) -> bool:
    outcomes = row["with the fault"], row["without it"], row.get("replayed")
    return outcomes == ("WRONG", "right", "same verdict") and float(row["MiB"]) <= _MOST_MIB


def follow(fault: str, folder: Path, times: int) -> dict[str, str]:
    """Capture ``fault``, write its repro, follow the README; return what the script said with the fault and without it."""
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        f"suites/{SUITES[fault]}",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    options = [f"--specdec-run-dir={folder / 'run'}", "-k", _VARIANT, "--specdec-report=md"]
    environment = {**os.environ, "SPECDEC_FAULT": fault}
    subprocess.run(
        [*pytest, "--specdec-config=reference-faulty", *options], env=environment, capture_output=True, timeout=_RUN_S, check=False
    )
    command = [sys.executable, "-m", "pytest_specdec", "repro", str(folder / "run"), _VARIANT, "--out", str(folder / "repro")]
    written = subprocess.run(command, capture_output=True, text=True, check=False)
    if written.returncode:
        error = written.stderr.partition("\n")[0]
        return {"title": error, "with the fault": "no repro", "without it": "no repro"}
    readme = (folder / "repro/README.md").read_text(encoding="utf-8")
    baseline, speculative = re.findall(r"^# the \w+ server\n(.+)$", readme, re.MULTILINE)
    healthy = speculative.replace(f" --fault {fault}", "")
    subprocess.run(
        [*pytest, f"--specdec-replay={folder / 'repro'}", f"--specdec-run-dir={folder / 'again'}"],
        capture_output=True,
        timeout=_RUN_S,
        check=False,
    )
    size = sum(path.stat().st_size for path in (folder / "repro").rglob("*") if path.is_file())
    row = {
        "title": readme.partition("\n")[0].partition(": ")[2],
        "replayed": _compare_verdicts(folder / "run", folder / "again"),
        "MiB": f"{size / (1 << 20):.1f}",
    }
    with serve(baseline):
        with serve(speculative):
            row["with the fault"] = run_scripts(folder / "repro", times)
        with serve(healthy):
            return {**row, "without it": run_scripts(folder / "repro", times)}


def _compare_verdicts(run: Path, replay: Path) -> str:
    """Return whether a repro's replay came to the verdict of its run."""
    verdicts = [
        {judgement["nodeid"]: judgement["verdict"] for judgement in json.loads((folder / "run.json").read_text())["judgements"]}
        for folder in (run, replay)
    ]
    same = len(verdicts[1]) == 1 and verdicts[1].items() <= verdicts[0].items()
    return "same verdict" if same else "another verdict"


def run_scripts(folder: Path, times: int) -> str:
    """Return the word of all runs of the script, or how many had which."""
    words = Counter(run_script(folder) for _ in range(times))
    return next(iter(words)) if len(words) == 1 else ", ".join(f"{word} {count} of {times}" for word, count in words.items())


@contextmanager
def serve(command: str) -> Iterator[None]:
    """Run a server until the block ends. Raises RuntimeError if it does not answer."""
    argv = shlex.split(command)
    argv[0] = sys.executable
    url = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}/v1/models"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            _wait(url)
            yield
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def _wait(url: str) -> None:
    until_s = time.monotonic() + _BOOT_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=1.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)  # between two looks at a server that boots
    msg = f"no answer from {url} in {_BOOT_S:g} s"
    raise RuntimeError(msg)


def run_script(folder: Path) -> str:
    """Return the word that the script's exit code stands for."""
    addresses = {"BASELINE": "http://127.0.0.1:8001/v1", "SPECULATIVE": "http://127.0.0.1:8002/v1"}
    ran = subprocess.run(
        [sys.executable, "repro.py"],
        cwd=folder,
        env={**os.environ, **addresses},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    words = {0: "right", 1: "WRONG"}
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    return words[ran.returncode] if ran.returncode in words and last.startswith(words[ran.returncode]) else f"failed: {ran.stderr[-200:]}"


if __name__ == "__main__":
    sys.exit(main())
