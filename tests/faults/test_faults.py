"""The suite under test: each planted fault turns the families red that its row names, by the words of its row; the others stay green.

The same code as ``python -m benchmarks.sensitivity``. The quick part plants few faults at smoke depth, which together turn every family red
that a fault of the catalogue turns red. Lawful variations, which must stay green, are in the whole lane alone.
"""

from __future__ import annotations

import pytest

from benchmarks.sensitivity import batches, green
from benchmarks.sensitivity.cells import Found, Measured, cell
from benchmarks.sensitivity.suite_run import SuiteRun, planted
from benchmarks.sensitivity.suite_run import families as suite_families
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place
from specdec_reference.lawful import VARIATIONS

QUICK = batches.quick()
BATCHES = [
    *(pytest.param("smoke", batch, id=batch[0], marks=pytest.mark.faults(quick=True)) for batch in batches.batches(QUICK)),
    *(
        pytest.param("standard", batch, id=f"{batch[0]}-standard", marks=pytest.mark.faults(quick=False))
        for batch in batches.batches(batches.every())
    ),
]


@pytest.mark.parametrize("depth, batch", BATCHES)
def test_planted_faults_turn_the_families_of_their_row_red_by_name(depth, batch, tmp_path):
    variants, first = {fault: planted(FAULTS[fault]) for fault in batch}, FAULTS[batch[0]]
    # Minutes of the same traffic are sent at deep depth, and no other family needs them.
    depth = "deep" if first.minutes else depth
    # The quick lane asks the families of a batch's faults; numerics and lawful variations tell whether others raise false alarms.
    families = suite_families() if depth == "standard" else batches.own(batch, whole_runs=False)
    run = SuiteRun(
        name="faulty",
        variants=variants,
        depth=depth,
        families=families,
        engine=first.engine,
        reasons=first.reasons,
        timed=first.timed,
        minutes=first.minutes,
    )
    run.capture(tmp_path)
    for fault, judged in run.judged(tmp_path).items():
        row = FAULTS[fault]
        measured = Measured(fault=fault, seed=1, depth=depth, judged=judged, seconds=0.0, date="")
        found = cell(measured, row.expected[Place.REFERENCE])
        assert (found.found, found.alarms) == (Found.CAUGHT, ()), found


@pytest.mark.faults(quick=False)
def test_lawful_variations_stay_green(tmp_path):
    for run in green.lawful(1, "smoke", tuple(VARIATIONS)):
        for one in green.runs(run, tmp_path):
            assert one.alarms == (), one
