"""What runs bring into a baseline file: floors that follow the typical run, and what is not taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.gates import baseline_file, update
from pytest_specdec.gates.update import Results
from pytest_specdec.model.baseline import Environment
from pytest_specdec.model.promise import SpeedFigure, SpeedLimits, Speedup
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.boot_spread import boot_spread

HERE = Environment(engine="reference", engine_version="0", model="target", processor="p", cores=2, memory_gib=8.0)


def speed(ratio, outcome=Outcome.PASS, **fields):
    promise = Speedup(response=SpeedFigure(baseline=1.0, speculative=ratio, speedup=ratio), **fields)
    return Verdict(outcome=outcome, family=Family.SPEED, pair="draft-k3", workload="chat", headline="", promise=promise)


def updated(folder, *ratios, **fields):
    for ratio in ratios:
        found = update.update(folder, "tiny", HERE, Results(verdicts=(speed(ratio, **fields),)))
    return found, baseline_file.read(found.path)[0]


def test_runs_add_up_with_what_their_boots_showed(tmp_path):
    _, gate = updated(tmp_path, 2.0, 2.2, 1.9, 2.1, boot_log_ratio=0.02, tokens_per_step=2.5)
    assert gate.log_ratios == pytest.approx([math.log(ratio) for ratio in (2.0, 2.2, 1.9, 2.1)], abs=1e-5)
    assert gate.boot_log_ratios == (0.02,) * 4
    assert gate.log_tokens_per_step == pytest.approx([math.log(2.5)] * 4, abs=1e-5)


SIX = (1.67, 1.27, 1.25, 1.29, 1.26, 1.28)


def test_the_floor_follows_the_typical_run_and_not_the_luckiest(tmp_path):
    found, gate = updated(tmp_path, *reversed(SIX), boot_log_ratio=0.01)
    assert 1.05 < gate.at_least < 1.2
    (move,) = found.moves
    for figure in ("speedup draft-k3 chat", "at_least 1.14", "median 1.27x over 6 runs, less"):
        assert figure in move
    assert gate.reason in move
    assert updated(tmp_path / "lucky-first", *SIX, boot_log_ratio=0.01)[1].at_least == gate.at_least


def test_the_floor_of_a_lucky_first_run_comes_down_and_the_file_says_why(tmp_path):
    figures = {"boot_log_ratio": 0.01}
    first = updated(tmp_path, 2.3, **figures)[1]
    assert "over 1 run: add more, less" in first.reason
    _, gate = updated(tmp_path, *(2.0,) * 5, **figures)
    higher = gate.at_least
    assert len(gate.log_ratios) == 6
    _, gate = updated(tmp_path, 1.7, 1.7, 1.7, 1.7, 1.7, **figures)
    assert (gate.at_least < higher, gate.accepted_regression) == (True, "")
    assert "down from" in gate.reason
    assert (len(gate.log_ratios), len(gate.boot_log_ratios)) == (10, 10)
    assert gate.log_ratios[0] == pytest.approx(math.log(2.0), abs=1e-5), "the lucky one has left"


@pytest.mark.parametrize("ratios, why", [
    ((2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0), "as the typical run went from"),
    ((2.0, 2.0, 2.0, 1.7, 2.3, 1.6, 2.4), "runs show more spread than was reckoned with"),
])  # fmt: skip
def test_a_floor_that_comes_down_says_whether_runs_got_slower_or_only_vary_more(tmp_path, ratios, why):
    reasons = []
    for ratio in ratios:
        found, gate = updated(tmp_path, ratio, boot_log_ratio=0.01)
        reasons.append(gate.reason)
        assert gate.reason in found.moves[0]
    down = [reason for reason in reasons if "; down from" in reason]
    assert down
    assert all(why in reason for reason in down[-1:])


@pytest.mark.parametrize("apart", [0.0, -0.142])
def test_a_first_run_leaves_a_low_floor_and_a_lower_one_where_its_boots_lay_far_apart(tmp_path, apart):
    _, gate = updated(tmp_path, 1.61, boot_log_ratio=apart)
    spread = boot_spread((apart,))
    below = 1.645 * math.sqrt(1.5 * (1 + math.pi / 2)) * spread.sd + spread.half_width(0.0075, 1.5)
    assert gate.at_least == pytest.approx(1.61 * max(math.exp(-below), 0.55), abs=0.001)
    assert (gate.at_least < 1.0) is (apart != 0.0)
    assert f"where boots vary by {spread.sd:.1%}" in gate.reason


def test_a_floor_begun_anew_keeps_the_reason_of_the_regression(tmp_path):
    updated(tmp_path, 2.0, 2.1, boot_log_ratio=0.01)
    slow = speed(1.2, Outcome.FAIL, boot_log_ratio=0.01)
    found = update.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,), accepted="a new driver"))
    assert found.moves[0].endswith("; accepted: a new driver")
    assert "as the typical run went from 2.05x to 1.20x" in found.moves[0]
    found, later = updated(tmp_path, 1.26, boot_log_ratio=0.01)
    assert later.accepted_regression == "a new driver"


def test_what_failed_is_taken_only_with_a_reason_and_begins_anew(tmp_path):
    updated(tmp_path, 2.0, 2.1)
    slow = speed(1.2, Outcome.FAIL)
    assert update.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,))) is None
    assert update.refusal_lines(Results(verdicts=(slow, speed(2.0)))) == (
        'draft-k3 chat failed and is not taken; if it is meant: --specdec-update-baselines --specdec-accept-regression "why"',
    )
    found = update.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,), accepted="another draft model"))
    (gate,) = baseline_file.read(found.path)
    assert (gate.log_ratios, gate.accepted_regression) == ((0.182322,), "another draft model")
    assert gate.at_least < 1.2


@pytest.mark.parametrize("fields, why", [
    ({"limits": SpeedLimits(low=0.8, high=3.1)}, "1.60x [0.80, 3.10] is too wide for a floor"),
    ({"over_passes": SpeedLimits(low=1.2, high=2.1)}, "1.60x [1.20, 2.10] over the passes alone is too wide for a floor"),
    ({"unfit": "the client could not keep up"}, "the client could not keep up"),
])  # fmt: skip
def test_no_floor_is_made_of_a_wide_interval_nor_of_times_that_are_not_the_servers(tmp_path, fields, why):
    unfit = speed(1.6, Outcome.NOT_DECIDED, **fields)
    assert update.update(tmp_path, "tiny", HERE, Results(verdicts=(unfit,))) is None
    assert update.write_candidate(tmp_path, HERE, Results(verdicts=(unfit,))) is None
    assert update.refusal_lines(Results(verdicts=(unfit,), accepted="whatever else was accepted")) == (
        f"draft-k3 chat is not taken: {why}",
    )


def test_an_accepted_regression_without_a_usable_interval_is_not_dropped_in_silence(tmp_path):
    slow = Results(verdicts=(speed(0.5, Outcome.FAIL, unfit="the client could not keep up"),), accepted="another draft model")
    assert update.update(tmp_path, "tiny", HERE, slow) is None
    assert update.refusal_lines(slow) == ("draft-k3 chat is not taken: the client could not keep up",)


def test_floors_that_runs_bring_about_can_fail(tmp_path):
    for count in (1, 2, 6, 20):
        updated(tmp_path / str(count), *[2.0, 1.6] * count)
        baseline_file.check(tmp_path / str(count), "tiny")


def test_a_floor_of_another_draft_is_not_used_and_that_is_said(tmp_path):
    then = replace(HERE, variants={"draft-k3": {"model": "m", "draft": "model a, 3 tokens", "dtype": "auto", "flags": "1"}})
    now = replace(then, variants={"draft-k3": {**then.variants["draft-k3"], "draft": "model b, 3 tokens"}})
    upgraded = replace(then, engine_version="1")
    results = Results(verdicts=(speed(2.0),))
    update.update(tmp_path, "tiny", then, results)
    assert [gate.changes for gate in baseline_file.gates(tmp_path, "tiny", upgraded)] == [("engine reference 0 -> reference 1",)]
    assert baseline_file.notes(tmp_path, "tiny", upgraded) == ()
    assert baseline_file.gates(tmp_path, "tiny", now) == ()
    (note,) = baseline_file.notes(tmp_path, "tiny", now)
    assert "floor not used: speedup at least 1.14 (tiny/p-" in note
    assert "another draft model a, 3 tokens -> model b, 3 tokens" in note
    update.update(tmp_path, "tiny", now, results)
    assert [len(gate.log_ratios) for gate in baseline_file.gates(tmp_path, "tiny", now)] == [1]


def test_a_floor_comes_closer_as_runs_agree(tmp_path):
    floors = [updated(tmp_path / str(count), *[2.0] * count)[1].at_least for count in (1, 4, 12)]
    assert floors == sorted(floors)
    assert floors[-1] == pytest.approx(2.0 * math.exp(-0.1), abs=0.01)


def test_one_slow_run_moves_a_floor_of_many_little(tmp_path):
    before = updated(tmp_path / "a", *[2.0] * 9)[1].at_least
    after = updated(tmp_path / "b", *[2.0] * 9, 1.9)[1].at_least
    assert after == pytest.approx(before, rel=0.01)


WHOLE = speed(2.0, unfit="answers came in one burst")


@pytest.mark.parametrize("verdicts", [[], [speed(0.5, Outcome.FAIL)], [WHOLE]], ids=["nothing", "failed", "whole requests"])
def test_what_was_not_timed_or_failed_is_not_taken(tmp_path, verdicts):
    assert update.update(tmp_path, "tiny", HERE, Results(verdicts=tuple(verdicts))) is None
    assert update.write_candidate(tmp_path, HERE, Results(verdicts=tuple(verdicts))) is None
    assert not list(tmp_path.iterdir())


def test_a_speed_of_whole_requests_is_not_taken_and_that_is_said():
    (line,) = update.refusal_lines(Results(verdicts=(WHOLE,)))
    assert line.startswith("draft-k3 chat is not taken: answers came in one burst")
