"""The made-up servers of benchmarks/worlds: correct ones are noisy as stated, and a planted fault is red."""

from __future__ import annotations

import math

import pytest

from benchmarks.worlds.judging import asked
from benchmarks.worlds.numerics import WORLDS
from benchmarks.worlds.pool import GUMBEL, NORMAL, SIZE
from benchmarks.worlds.results import Cells, page
from benchmarks.worlds.run import CELLS, Run, simulate_run
from benchmarks.worlds.server import Fault
from pytest_specdec import judge
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.logprob_noise import calibrate


def test_an_exact_world_repeats_itself_and_speculates_as_the_baseline_answers():
    state = simulate_run("exact", 1, cells=["state"])["state"]
    texts = [[answer.choice.token_ids for answer in arm.answers] for arm in (state.baseline, state.control, state.speculative)]
    assert texts[0] == texts[1] == texts[2]
    finished = [answer.choice for answer in state.speculative.answers if not answer.request_id.startswith("left/")]
    assert all(sum(choice.windows) == len(choice.token_ids) for choice in finished)
    assert 0 < state.speculative.counters.rejected_tokens < state.speculative.counters.accepted_tokens
    assert judge.state.judge(state).outcome is Outcome.PASS


@pytest.mark.parametrize("world, scale", [("exact", 0.0), ("g.03", 0.03), ("bf16.06", 0.0703)])
def test_what_is_reported_lies_about_scores_as_the_world_says(world, scale):
    measured = calibrate(Run(WORLDS[world], 1).calibration).noise
    assert measured == pytest.approx(math.sqrt(2.0) * scale, rel=0.15, abs=1e-6)


def test_verify_and_decode_kernels_have_noise_of_their_own():
    run = Run(WORLDS["ver3x"], 1)
    squared = {arm: calibrate(pairs, unprocessed=False).noise ** 2 for arm, pairs in run.reported("greedy").items()}
    assert squared["baseline"] == pytest.approx(2 * 0.02**2, rel=0.3)
    assert squared["draft-k3"] == pytest.approx(0.02**2 + 0.06**2, rel=0.3)


def test_a_run_hangs_on_world_and_number_alone():
    alone = simulate_run("mt3.03", 3, cells=["state"])["state"]
    beside = simulate_run("mt3.03", 3, cells=["greedy", "state"])["state"]
    other = simulate_run("mt3.03", 4, cells=["state"])["state"]
    assert alone == beside
    assert alone.speculative != other.speculative


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", ["unverified:0.3", "wrong:0.02", "near:0.3"])
def test_a_planted_fault_is_red_where_numbers_are_exact(fault):
    greedy = simulate_run("exact", 1, cells=["greedy"], fault=Fault.parse(fault))["greedy"]
    assert judge.greedy.judge(greedy).outcome is Outcome.FAIL


def test_documents_part_where_noise_says_and_a_wrong_token_in_one_is_red():
    noisy = simulate_run("g.1", 1, cells=["documents"])["documents"]
    ids = [[answer.choice.token_ids for answer in arm.answers] for arm in (noisy.baseline, noisy.speculative)]
    assert ids[0] != ids[1]
    assert judge.structured.judge(noisy).outcome is Outcome.PASS
    faulty = simulate_run("exact", 1, cells=["documents"], fault=Fault.parse("wrong:0.1"))["documents"]
    assert judge.structured.judge(faulty).outcome is Outcome.FAIL


@pytest.mark.parametrize("fault, letter, rounds", [("wrong:0.0033", "F", 2), ("", "p", 0)])
def test_what_is_open_is_asked_again_of_the_same_boots(fault, letter, rounds):
    run = Run(WORLDS["g.03"], 1, fault=Fault.parse(fault))
    assert asked(run, "greedy")[0] == letter
    assert len(run.captured("greedy", rounds=rounds).repeats) == rounds
    first, *others = (each.speculative for each in (run.captured("greedy", rounds=rounds), *run.captured("greedy", rounds=rounds).repeats))
    assert all(each.boot == first.boot and each.answers != first.answers for each in others)


def test_every_cell_is_judged_at_the_share_of_one_variant():
    assert {cell.family for cell in CELLS.values()} <= set(FAMILIES)
    assert simulate_run("exact", 1, cells=["state"])["state"].alpha == FAMILIES["state"].alpha(1)


def test_outcomes_are_found_again_and_whole_runs_counted(tmp_path):
    cells = Cells(tmp_path / "worlds.json")
    for run, letter in enumerate("ppF"):
        cells.of("exact", "healthy", "greedy").add(run, letter, "wrong")
        cells.of("exact", "healthy", "state").add(run, "p" if run else "C", "few")
    cells.write()
    again = Cells(tmp_path / "worlds.json")
    assert again.of("exact", "healthy", "greedy").letters == "ppF"
    assert not again.of("exact", "healthy", "greedy").has(3)
    assert again.of("exact", "healthy", "state").examples == {"0": "C few"}
    assert any("any of 2" in line and "| 3 | 1 | 2 red" in line for line in again.rows(["exact"], "healthy", ["greedy", "state"]))


def test_the_page_counts_the_whole_runs_of_all_worlds_together(tmp_path):
    cells = Cells(tmp_path / "worlds.json")
    for world, letters in {"exact": "ppF", "g.03": "pa"}.items():
        for run, letter in enumerate(letters):
            cells.of(world, "healthy", "greedy").add(run, letter, "wrong")
            cells.of(world, "healthy", "state").add(run, "p", "")
    cells.of("exact", "wrong:0.01", "greedy").add(0, "F", "wrong")
    lines = page(cells.cells).splitlines()
    assert "| **2 worlds** | **whole runs** | 5 | 4 | 1 red, at most 77.793% | | | | | | |" in lines
    assert sum("whole runs" in line for line in lines) == 1


def test_no_number_that_tokens_are_drawn_with_is_one_that_chance_does_not_bring():
    """Of so many Gumbel variables the largest lies 14 above ln N once in a million pools; one of 69 draws impossible tokens."""
    centre = math.log(SIZE)
    assert centre - 3.0 < GUMBEL.largest < centre + 14.0
    assert NORMAL.largest < 8.0
