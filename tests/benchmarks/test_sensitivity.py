"""The sensitivity matrix: what a cell comes to, which faults share a run, and that a batch is judged by the shares of an ordinary run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sensitivity import __main__ as command
from benchmarks.sensitivity import batches, cells, green, ordinary, tables
from benchmarks.sensitivity.cells import Found, Measured, Store, cell
from benchmarks.sensitivity.green import GreenRun
from benchmarks.sensitivity.suite_run import DRAFT, Judged, SuiteRun, families
from pytest_specdec.capture import planner
from pytest_specdec.config import load
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Expected, Place
from specdec_reference.lawful import VARIATIONS

FAULT = FAULTS["lenient"]
EXPECTED = Expected(red={Family.GREEDY: "stale|bonus", Family.SAMPLING: "lenient"}, may={Family.LIVENESS: "it may die"})
GREEDY = Judged(family="greedy", workload="w", outcome="fail", name="stale bonus", tokens=40)
SAMPLING = Judged(family="sampling", workload="w", outcome="fail", name="lenient acceptance")
PASSED = Judged(family="logprobs", workload="w", outcome="pass")


def measured(*judged, **fields):
    return Measured(
        **{"fault": "lenient", "seed": 1, "depth": "standard", "judged": judged, "seconds": 12.0, "date": "2026-11-23", **fields}
    )


def made(*judged):
    return cell(measured(*judged), EXPECTED)


@pytest.mark.parametrize("judged, found", [
    ([GREEDY, SAMPLING, PASSED], Found.CAUGHT),
    ([GREEDY, replace(SAMPLING, name="something")], Found.WRONG_NAME),
    ([replace(GREEDY, outcome="not speculating"), SAMPLING], Found.CAUGHT),
    ([replace(GREEDY, outcome="pass"), SAMPLING], Found.MISSED),
    ([replace(GREEDY, outcome="error"), SAMPLING], Found.NOT_JUDGED),
    ([SAMPLING], Found.NOT_JUDGED),
    ([PASSED, replace(GREEDY, outcome="pass"), replace(SAMPLING, outcome="pass")], Found.MISSED),
    ([replace(PASSED, outcome="fail"), replace(GREEDY, outcome="pass"), replace(SAMPLING, outcome="pass")], Found.ELSEWHERE),
    ([], Found.NOT_JUDGED),
    ([replace(GREEDY, outcome="inconclusive"), replace(SAMPLING, outcome="pass")], Found.UNDECIDED),
    ([replace(GREEDY, outcome="inconclusive"), SAMPLING], Found.UNDECIDED),
])  # fmt: skip
def test_a_cell_comes_to_the_worst_of_the_families_that_should_be_red(judged, found):
    assert made(*judged).found is found


def test_a_family_that_the_row_does_not_name_is_a_false_alarm_unless_it_may_be_red():
    one = made(GREEDY, SAMPLING, replace(PASSED, outcome="fail"), Judged(family="liveness", workload="w", outcome="fail"))
    assert [(each.family, each.found) for each in one.findings[2:]] == [("logprobs", Found.ALARM), ("liveness", Found.CONSEQUENCE)]
    assert [each.family for each in one.alarms] == ["logprobs"]


def test_what_was_measured_is_read_back_until_the_fault_is_planted_otherwise(tmp_path):
    store, one = Store(folder=tmp_path), measured(GREEDY, SAMPLING, run="standard-1-lenient-1")
    assert store.read(FAULT, 1, "standard") is None
    store.write(FAULT, one)
    assert store.read(FAULT, 1, "standard") == replace(one, judges=cells.judged_by())
    assert store.read(FAULT, 2, "standard") is None
    assert store.read(replace(FAULT, drafting={"num_speculative_tokens": 5}), 1, "standard") is None


def test_what_a_row_expects_can_change_without_another_run(tmp_path):
    store = Store(folder=tmp_path)
    store.write(FAULT, measured(GREEDY))
    other = replace(FAULT, does="Something else.", expected={Place.REFERENCE: Expected(red={Family.GREEDY: "bonus"})})
    held = store.read(other, 1, "standard")
    assert held is not None
    assert cell(held, other.expected[Place.REFERENCE]).found is Found.CAUGHT


@pytest.mark.parametrize("folders, digest", [(cells._CAPTURED_BY, lambda: cells.captured_by(FAULT)), (cells._JUDGED_BY, cells.judged_by)])
def test_each_digest_is_of_its_own_folders(folders, digest, monkeypatch):
    before = digest()
    stock = cells._sources
    monkeypatch.setattr(cells, "_sources", lambda asked: "others, longer than sixteen" if asked == folders else stock(asked))
    assert digest() != before


def test_faults_share_runs_but_for_those_that_are_alone():
    alone = tuple(fault for fault in batches.every() if FAULTS[fault].alone)
    several = batches.batches(batches.every(), 5)
    assert sorted(fault for batch in several for fault in batch) == sorted(batches.every())
    assert "die-on-json" in alone
    assert {batch for batch in several if set(batch) & set(alone)} == {(fault,) for fault in alone}
    assert max(map(len, several)) == 5


def test_alike_faults_share_a_run_of_their_own_families():
    found = batches.batches(batches.alike(batches.every()))
    asked = [batches.own(batch) for batch in found]
    assert sorted(fault for batch in found for fault in batch) == sorted(batches.every())
    for batch, families_asked in zip(found, asked, strict=True):
        red = {family for fault in batch for family in FAULTS[fault].expected[Place.REFERENCE].red}
        further = (
            set(Family) - {Family.SAMPLING, Family.PRESSURE, Family.BETWEEN, Family.RESPONSES}
            if red & {Family.INVARIANTS, Family.SPEED} or "die-after-requests" in batch
            else set()
        )
        assert set(families_asked) == red | further
    assert batches.own(["lenient"]) == ("sampling",)


def test_cells_of_their_own_families_will_do_only_where_they_are_asked_for(monkeypatch, tmp_path, capsys):
    captured = faked(monkeypatch, [verdict("sampling", "fail", "lenient acceptance")])
    asked = ["sensitivity", "--faults", "lenient", "--seeds", "1", "--folder", str(tmp_path)]
    for options, runs in ((["--own"], 1), (["--own"], 1), ([], 2), (["--own"], 2)):
        monkeypatch.setattr(sys, "argv", [*asked, *options])
        assert command.main() == 0
        assert len(captured) == runs
        said = "(in 1 cells only the families that should were asked)"
        assert (said in capsys.readouterr().out) is (runs == 1)
    assert [run.families for run in captured] == [("sampling",), families()]


def test_the_quick_faults_turn_every_family_of_the_catalogue_red():
    """Of those that ordinary servers show at smoke depth."""

    def red(faults):
        return {family for fault in faults for family in FAULTS[fault].expected[Place.REFERENCE].red}

    ordinary = [fault for fault in batches.every() if not FAULTS[fault].engine and not FAULTS[fault].minutes]
    assert red(batches.quick()) == red(ordinary) - {Family.PRESSURE}
    assert len(batches.quick()) <= len(red(batches.every()))


CONFIG = "engine: {kind: reference, model: target}\nvariants:\n"
VARIANT = "  v%d: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}\n"
WORKLOAD = Workload(name="w", version=1, requests=(Request(id="r", route=Route.CHAT, body={"max_tokens": 8, "seed": 5}),))


def planned(folder: Path, variants: int):
    path = folder / f"c{variants}.yaml"
    path.write_text(CONFIG + "".join(VARIANT % i for i in range(variants)))
    return planner.make(load.load(path), [planner.SelectedWorkload(workload=WORKLOAD, family=Family.GREEDY)], Depth.STANDARD)


@pytest.mark.parametrize("variants", [1, 2, 8])
def test_a_batch_of_any_size_is_judged_by_the_shares_of_two_variants(variants, tmp_path):
    (expected,) = {one.alpha for one in planned(tmp_path, 2).judgements}
    shares = [one.alpha for one in ordinary.ordinary(planned(tmp_path, variants), variants).judgements]
    assert shares == pytest.approx([expected] * variants)


def test_a_run_of_the_suites_plans_by_ordinary_shares_and_other_seeds(monkeypatch, tmp_path):
    from pytest_specdec.plugin.run_state import RunState

    monkeypatch.setattr(planner, "make", planner.make)
    monkeypatch.setattr(RunState, "configure", lambda _, workload: workload)
    monkeypatch.setenv(ordinary.SEED, "2")
    two = planned(tmp_path, 2)
    ordinary.pytest_configure(None)
    assert {one.alpha for one in planned(tmp_path, 8).judgements} == {one.alpha for one in two.judgements}
    assert RunState.configure(None, WORKLOAD).requests[0].body["seed"] == 10_012


@pytest.mark.parametrize("seed, moved", [(5, 20_019), (-1, -1), (2**63, 2**63), (None, None), (True, True)])
def test_seeds_move_together_and_values_under_test_stay(seed, moved):
    workload = replace(WORKLOAD, requests=(replace(WORKLOAD.requests[0], body={"seed": seed}),))
    assert ordinary.reseeded(workload, 1) == workload
    assert ordinary.reseeded(workload, 3).requests[0].body["seed"] == moved


def test_a_run_has_a_variant_per_fault_and_the_seed_in_the_engine():
    run = SuiteRun(name="x", variants={"lenient": {**DRAFT, "fault": "lenient"}}, seed=3)
    document = run.config()
    assert document["engine"]["args"]["seed"] == 3
    assert document["variants"]["lenient"]["args"]["fault"] == "lenient"
    assert {"greedy", "speed"} < {*families()}


def test_a_fault_of_time_is_alone_in_a_run_that_times_answers():
    (fault,) = (fault for fault in FAULTS.values() if fault.timed)
    run = SuiteRun(name="x", variants={fault.id: {**DRAFT, "fault": fault.id}}, timed=True)
    assert fault.alone
    assert run.config()["speed"] == {"args": {"padded-layers": 24}}
    assert "speed" not in replace(run, timed=False).config()


def faked(monkeypatch, judgements):
    """Have runs of the suites come to ``judgements`` at once, and list those that were made."""
    captured = []

    def capture(self, folder):
        captured.append(self)
        found = [{"pair": name, **one} for name in self.variants for one in judgements]
        (folder / self.name).mkdir(parents=True, exist_ok=True)
        (folder / self.name / "run.json").write_text(json.dumps({"judgements": found}))
        (folder / f"{self.name}.seconds").write_text("10\n")
        return folder / self.name

    monkeypatch.setattr(SuiteRun, "capture", capture)
    return captured


def test_kept_runs_are_judged_again_by_other_judges_and_the_rest_is_captured_anew(monkeypatch, tmp_path, capsys):
    captured, again = faked(monkeypatch, [verdict("sampling", "fail", "lenient acceptance")]), []
    monkeypatch.setattr(SuiteRun, "judge_again", lambda self, _: again.append((self.name, [*self.variants])))
    asked = ["sensitivity", "--faults", "lenient,stale-bonus", "--seeds", "1", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*asked, "--keep"])
    command.main()
    (name,) = (run.name for run in captured)
    (tmp_path / "runs" / name / "plan.json").touch()
    monkeypatch.setattr(cells, "judged_by", lambda: "others")
    monkeypatch.setattr(command, "judged_by", lambda: "others")
    command.main()
    command.main()
    assert (again, len(captured)) == ([(name, ["lenient", "stale-bonus"])], 1)
    for judges in ("yet others", "the last"):
        monkeypatch.setattr(cells, "judged_by", lambda judges=judges: judges)
        monkeypatch.setattr(command, "judged_by", lambda judges=judges: judges)
        monkeypatch.setattr(sys, "argv", asked)
        (tmp_path / "runs" / name / "plan.json").unlink(missing_ok=True)
        command.main()
    assert (len(again), len(captured)) == (1, 3)
    assert not (tmp_path / "runs" / name).exists()


def verdict(family, outcome, names=""):
    figures = {"tokens_to_alarm": 9.0}
    return {
        "family": family,
        "workload": "w",
        "result": "failed",
        "verdict": {"outcome": outcome, "names": names, "headline": "", "figures": figures},
    }


def test_the_command_makes_what_is_missing_and_writes_the_table(monkeypatch, tmp_path, capsys):
    captured = faked(monkeypatch, [verdict("sampling", "fail", "lenient acceptance"), {**verdict("greedy", ""), "verdict": None}])
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["sensitivity", "--faults", "lenient,stale-bonus", "--seeds", "1,2", "--folder", str(tmp_path / "s"), "--write"]
    )
    assert command.main() == 1
    assert [run.seed for run in captured] == [1, 2]
    assert command.main() == 1
    assert len(captured) == 2
    printed = capsys.readouterr().out
    assert "2 of 4 cells caught by every family that should, by name (50.0%); 0 false alarms" in printed
    assert "of 4 cells red in a family that should be, whatever it is called" in printed
    page = (tmp_path / "page.md").read_text()
    assert "| `lenient` | Accepts a draft token with probability min(1, 1.5 p/q). | 1, 2 | caught |" in page
    assert "| sampling | 4 | 2 | 2 | 0 | 0 | 0 | 0 |" in page
    assert str(tmp_path) not in page + (tmp_path / "sensitivity.json").read_text()


def test_a_world_has_its_numerics_its_cells_and_its_page(monkeypatch, tmp_path):
    captured = faked(monkeypatch, [verdict("sampling", "fail", "lenient acceptance")])
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["sensitivity", "--faults", "lenient", "--seeds", "1", "--world", "bf16.03", "--write"])
    command.main()
    assert [run.config()["engine"]["args"]["numerics"] for run in captured] == ["normal:0.03,grid:bf16"]
    assert (tmp_path / ".specdec" / "sensitivity-bf16.03" / "cells").exists()
    assert "in the world bf16.03" in (tmp_path / "sensitivity-bf16.03.md").read_text()
    assert not (tmp_path / "page.md").exists()


def test_healthy_and_lawful_servers_are_counted_with_the_exact_limit(monkeypatch, tmp_path, capsys):
    captured = faked(monkeypatch, [verdict("greedy", "pass")])
    monkeypatch.setattr(
        sys, "argv", ["sensitivity", "--faults", "", "--seeds", "1", "--healthy", "2", "--lawful", "--folder", str(tmp_path)]
    )
    assert command.main() == 0
    alone = [one for one in VARIATIONS.values() if one.engine]
    assert len(captured) == 2 + 1 + len(alone)
    out = capsys.readouterr().out
    assert "healthy, draft-k3: 0 of 2 runs with a false alarm; the rate is below 77.64% (95 %, Clopper-Pearson)" in out


def test_a_red_healthy_run_is_an_alarm_with_its_seed(monkeypatch, tmp_path, capsys):
    faked(monkeypatch, [verdict("greedy", "fail", "x")])
    monkeypatch.setattr(sys, "argv", ["sensitivity", "--faults", "", "--healthy", "1", "--folder", str(tmp_path)])
    assert command.main() == 1
    assert "  seed 1: greedy of w: fail:" in capsys.readouterr().out


def test_sixty_runs_without_an_alarm_imply_a_limit():
    runs = [GreenRun(name="healthy", seed=seed, depth="smoke", alarms=()) for seed in range(60)]
    assert tables.green_lines(runs) == ["healthy: 0 of 60 runs with a false alarm; the rate is below 4.87% (95 %, Clopper-Pearson)"]


@pytest.mark.parametrize(
    "options, message", [(["--faults", "lenientt"], "no fault of the reference engine"), (["--seeds", "0"], "begin at 1")]
)
def test_wrong_options_are_refused(options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sensitivity", *options])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err


def test_what_could_not_be_judged_is_no_green_run():
    assert green.alarms([PASSED]) == ()
    assert len(green.alarms([replace(PASSED, outcome="error"), replace(PASSED, outcome="invalid"), GREEDY])) == 3


def test_what_was_written_before_stays_where_nothing_is_newer(tmp_path):
    old, kept = made(GREEDY, SAMPLING), replace(made(GREEDY), seed=2, date="2026-11-01")
    runs = [
        GreenRun(name="healthy", seed=1, depth="smoke", alarms=("greedy of w: fail",)),
        GreenRun(name="healthy", seed=2, depth="smoke", alarms=()),
    ]
    path = tmp_path / "sensitivity.json"
    assert tables.earlier(path) == ([], [])
    path.write_text(json.dumps(tables.document([old, kept, replace(kept, fault="no longer planted")], runs, {"date": "2026-11-01"})))
    cells_before, runs_before = tables.earlier(path)
    assert (cells_before, runs_before) == ([old, kept], runs)
    new = replace(old, found=Found.MISSED)
    assert list(tables.with_earlier([new], cells_before)) == [new, kept]
    assert list(tables.with_earlier([], runs_before)) == runs
