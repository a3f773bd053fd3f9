"""What each client measures of a server whose times are known: ``python -m benchmarks.timing [--repeats 5] [--write]``.

All clients in one run, one after the other and again, each in a process of its own. The server has the first core for itself, clients the
others: left to the scheduler, a client that sleeps wakes on the core of the server that wrote to it, and waits there until the server has
written to everybody. Three shapes: 16 staggered streams for processor time, time to first token and time between steps; 256 streams in
lock step for the lag of a stamp; and 256 streams of 1 token in 25 ms against 2 tokens in 27.6 ms, a true speedup of 1.81.
``--write`` writes benchmarks/results/timing.md and timing.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.timing.clients import CLIENTS, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.timing.clients import Seen

FEW = Shape(streams=16, ttft_ms=50.0, step_ms=10.0, chunks=200)
BASELINE = Shape(streams=256, ttft_ms=400.0, step_ms=25.0, chunks=110, common=True)
SPECULATIVE = Shape(streams=256, ttft_ms=400.0, step_ms=27.6, chunks=100, tokens=2, common=True)
TRUE = 2 * BASELINE.step_ms / SPECULATIVE.step_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one client came to in one repetition."""

    client: str
    cpu_us: float
    """Per chunk, at 16 streams."""
    ttft_error_ms: float
    """Median over streams of measured minus true time to first token."""
    gap_error_ms: float
    """Largest error of a stream's mean time between steps."""
    lag_ms: float
    """Median, at 256 streams in lock step."""
    speedup: float
    """Measured; the true one is TRUE."""
    true_speedup: float
    """By the server's own stamps."""
    limited: str
    """What its guard says at 256 streams."""


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = []
    with server() as port:
        for repeat in range(options.repeats):
            for name in CLIENTS:
                found.append(measured(name, port))
                print(f"{repeat + 1}: {found[-1]}", flush=True)
    text = "\n".join(page(found))
    print(text)
    if options.write:
        now = results.environment()
        where = f"{now['date']}, {now['machine']}, {now['versions']}"
        head = f"# What clients measure of known times\n\nWritten by `python -m benchmarks.timing --write`. {where}.\n"
        (results.FOLDER / "timing.md").write_text(f"{head}\n{text}\n", encoding="utf-8")
        document = {**now, "measured": [asdict(one) for one in found]}
        (results.FOLDER / "timing.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


@contextmanager
def server() -> Iterator[int]:
    """Run the server in a process of its own and yield its port."""
    argv = (sys.executable, "-m", "benchmarks.timing.truth_server")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _part_cores(process.pid)
        yield int(process.stdout.readline())
        process.communicate("")


def _part_cores(server: int) -> None:
    """Give the first core to the process ``server``, the others to this one and all that it starts; where the system knows of cores."""
    if hasattr(os, "sched_setaffinity") and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(server, cores[:1])
        os.sched_setaffinity(0, cores[1:])


def measured(name: str, port: int) -> Measured:
    """Return what one client measures of each shape, each in a fresh process."""
    few, slow, fast = (_alone(name, port, shape) for shape in (FEW, BASELINE, SPECULATIVE))
    chunks = sum(len(chunks) for _, chunks in few.streams)
    late = median(
        (chunks[0][0] - sent_s) * 1e3 - float(FEW.metadata(number)["ttft_ms"]) for number, (sent_s, chunks) in enumerate(few.streams)
    )
    return Measured(
        client=name,
        cpu_us=few.cpu_s / chunks * 1e6,
        ttft_error_ms=late,
        gap_error_ms=max(abs(_gap(chunks, 0) - _gap(chunks, 1)) for _, chunks in few.streams) * 1e3,
        lag_ms=median(seen - said for _, chunks in slow.streams for seen, said in chunks) * 1e3,
        speedup=_speedup(slow, fast, 0),
        true_speedup=_speedup(slow, fast, 1),
        limited=slow.load.limited,
    )


def _alone(name: str, port: int, shape: Shape) -> Seen:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(CLIENTS[name], (port, shape))


def _gap(chunks: tuple[tuple[float, float], ...], clock: int) -> float:
    return (chunks[-1][clock] - chunks[0][clock]) / (len(chunks) - 1)


def _speedup(slow: Seen, fast: Seen, clock: int) -> float:
    """Return tokens per second of a stream, speculative over baseline, median over streams; ``clock`` 0 is the client's, 1 the server's."""
    steps = [median(_gap(chunks, clock) for _, chunks in seen.streams) for seen in (slow, fast)]
    return SPECULATIVE.tokens * steps[0] / steps[1]


def page(found: list[Measured]) -> list[str]:
    """Return a table: medians over the repetitions, and the range."""
    columns = (
        "client",
        "processor time a chunk, µs (16 streams)",
        "TTFT, error in ms",
        "time between steps, greatest error in ms",
        "lag at 256 streams, ms",
        "a true speedup, read as (the server's stamps)",
        "guard at 256 streams",
    )
    lines = [f"| {' | '.join(columns)} |", "|---|--:|--:|--:|--:|--:|---|"]
    for name in CLIENTS:
        mine = [one for one in found if one.client == name]
        figures = [[getattr(one, what) for one in mine] for what in ("cpu_us", "ttft_error_ms", "gap_error_ms", "lag_ms", "speedup")]
        cells = [f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]" for values in figures]
        cells[-1] += f" ({median(one.true_speedup for one in mine):.3f})"
        fired = sum(bool(one.limited) for one in mine)
        lines.append(f"| {name} | {' | '.join(cells)} | fired in {fired} of {len(mine)} |")
    ours, typed = (median(one.cpu_us for one in found if one.client == name) for name in ("stamper", "openai, typed"))
    share = f"A chunk costs the stamper 1/{typed / ours:.1f} of what it costs openai's typed client."
    return [*lines, "", f"{share} The true speedup is {TRUE:.4f}. Medians over the repetitions, and their range."]


if __name__ == "__main__":
    sys.exit(main())
