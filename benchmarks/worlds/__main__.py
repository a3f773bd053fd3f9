"""Correct servers whose numbers are not exact, judged by the shipped judges: ``python -m benchmarks.worlds``.

    python -m benchmarks.worlds --worlds mt3.03,out1e-4 --cells greedy,state --runs 100
    python -m benchmarks.worlds --fault unverified:0.01 --worlds bf16.03 --cells greedy --runs 100

prints how many runs of each world each judge passes. With ``--write`` outcomes are added to benchmarks/results/worlds.json, where those of
the same judges are found again. Every number hangs on world, cell and run alone, so that any part can be made at any time.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

from benchmarks.worlds.judging import Job, outcomes
from benchmarks.worlds.numerics import WORLDS
from benchmarks.worlds.results import HEALTHY, LETTERS, Cells
from benchmarks.worlds.run import CELLS
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EVERY_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Simulate what is asked for and print the table."""
    options = _options(arguments)
    cells, begun = Cells(), time.monotonic()
    fault = options.fault or HEALTHY
    for job, found in _made(list(_jobs(cells, options)), options.jobs):
        for cell, letter, headline in found:
            cells.of(job.world, fault, cell).add(job.run, letter, headline)
            if options.verbose and letter != LETTERS[Outcome.PASS]:
                print(f"{job.world} {cell} run {job.run}: {letter} {headline[:160]}", flush=True)
        if options.write and time.monotonic() - begun > _EVERY_S:
            cells.write()
            begun = time.monotonic()
    if options.write:
        cells.write()
    print("\n".join(cells.rows(options.worlds, fault, options.cells)))
    return 0


def _jobs(cells: Cells, options: argparse.Namespace) -> Iterator[Job]:
    """Yield what is missing, run by run so that all worlds grow alike."""
    for run in range(options.first, options.first + options.runs):
        for world in options.worlds:
            missing = tuple(cell for cell in options.cells if not cells.of(world, options.fault or HEALTHY, cell).has(run))
            if missing:
                yield Job(world=world, run=run, fault=options.fault, cells=missing)


def _made(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, list[tuple[str, str, str]]]]:
    """Yield the outcomes of every job, ``processes`` at a time."""
    if processes == 1:
        yield from ((job, outcomes(job)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from zip(jobs, pool.map(outcomes, jobs, chunksize=4), strict=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=_among(WORLDS), default=list(WORLDS), help="by name, with commas; all by default")
    parser.add_argument("--cells", "--families", type=_among(CELLS), default=list(CELLS), help="judgements by name, with commas")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--fault", default="", help="unverified:0.01, wrong:0.01, near:0.2, lenient:1.5; best:1 is none")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="print every judgement that is no pass")
    return parser.parse_args(arguments)


def _among(known: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]  # type: ignore[operator]
        if unknown:
            msg = f"{', '.join(unknown)} (known: {', '.join(known)})"  # type: ignore[call-overload]
            raise argparse.ArgumentTypeError(msg)
        return chosen

    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
