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
from typing import TYPE_CHECKING

from benchmarks.worlds.numerics import WORLDS
from benchmarks.worlds.results import CONTROL, ERROR, HEALTHY, LETTERS, Cells
from benchmarks.worlds.run import CELLS, Run
from benchmarks.worlds.server import Fault
from pytest_specdec.judge.registry import judge_of
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.captured import Captured

_EVERY_S = 60.0
_NO_CONTROL = frozenset({Outcome.FAIL, Outcome.INVALID})


def judged(captured: Captured) -> tuple[str, str]:
    """Return the letter of the outcome and the headline, the control being judged first as a run does."""
    judge = judge_of(FAMILIES[captured.family])
    try:
        control = judge(captured.as_control()) if captured.workload.scored else None
        verdict = judge(captured)
    except Exception as error:  # noqa: BLE001 - a judge that raises is a result
        return ERROR, f"{type(error).__name__}: {error}"
    if control is not None and control.outcome in _NO_CONTROL:
        return CONTROL, f"{control.outcome}: {control.headline} (variant: {verdict.outcome})"
    return LETTERS[verdict.outcome], verdict.headline


def main(arguments: Sequence[str]) -> int:
    """Simulate what is asked for and print the table."""
    options = _options(arguments)
    cells, begun = Cells(), time.monotonic()
    for world in options.worlds:
        for run in range(options.first, options.first + options.runs):
            _one_run(cells, world, run, options)
            if options.write and time.monotonic() - begun > _EVERY_S:
                cells.write()
                begun = time.monotonic()
    if options.write:
        cells.write()
    print("\n".join(cells.rows(options.worlds, options.fault or HEALTHY, options.cells)))
    return 0


def _one_run(cells: Cells, world: str, run: int, options: argparse.Namespace) -> None:
    fault = options.fault or HEALTHY
    missing = [cell for cell in options.cells if not cells.of(world, fault, cell).has(run)]
    if not missing:
        return
    simulated = Run(WORLDS[world], run, fault=Fault.parse(options.fault))
    for cell in missing:
        letter, headline = judged(simulated.captured(cell))
        cells.of(world, fault, cell).add(run, letter, headline)
        if options.verbose and letter != LETTERS[Outcome.PASS]:
            print(f"{world} {cell} run {run}: {letter} {headline[:160]}", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worlds", type=_among(WORLDS), default=list(WORLDS), help="by name, with commas; all by default")
    parser.add_argument("--cells", "--families", type=_among(CELLS), default=list(CELLS), help="judgements by name, with commas")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--fault", default="", help="unverified:0.01, wrong:0.01, near:0.2, lenient:1.5; best:1 is none")
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
