"""Further boots for speed: their order, what they answer, and what a capture leaves of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pytest_specdec.capture import alternation, environment, parallel, runner
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.errors import PlanError
from pytest_specdec.files import server_failures, transcripts
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def plan(config, workload):
    def _plan(boots, *, depth=Depth.STANDARD, only=None, config=config, timed=True):
        asked = [workload(), *([workload("timed", timed=True, requests=2, passes=2, concurrency=1, scored=False)] if timed else [])]
        return make(
            config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in asked], depth, only, options=PlanOptions(speed_boots=boots)
        )

    return _plan


def order(made):
    return [boot.arms[-1] for boot in made.boots if "timed" in boot.answers]


def beside(config, servers):
    return replace(config, placement=Placement.SIDE_BY_SIDE, limits=replace(config.limits, servers=servers))


def test_in_turn_every_variant_boot_stands_between_two_of_the_baseline(plan):
    made = plan(4, only=["draft-k3"])
    assert order(made) == ["baseline", "draft-k3", "control", *(f"{arm}.boot{n}" for n in (2, 3, 4) for arm in ("draft-k3", "baseline"))]
    assert [boot.index for boot in made.boots] == list(range(len(made.boots)))
    further = [boot for boot in made.boots if boot.number > 1]
    assert all(boot.answers == ("timed",) and boot.timed and not (boot.probe or boot.scores) for boot in further)
    assert (made.speed_boots, plan(1).speed_boots) == (4, 1)


def test_two_variants_share_the_baseline_boots_and_turn_round_so_that_drift_cancels(plan):
    assert order(plan(3))[4:] == [
        "ngram-k3.boot2",
        "draft-k3.boot2",
        "baseline.boot2",
        "draft-k3.boot3",
        "ngram-k3.boot3",
        "baseline.boot3",
    ]


def test_of_more_variants_each_has_a_baseline_boot_next_to_it(plan, config):
    several = replace(config, variants=(*config.variants, *(replace(config.variants[1], name=f"ngram-{n}") for n in (4, 5, 6))))
    names = order(plan(3, config=several))[6:]
    assert sum(name.startswith("baseline") for name in names) == 6
    around = {name: (before, after) for before, name, after in zip(["control", *names], names, [*names[1:], ""], strict=False)}
    assert all(any(near.startswith(("baseline", "control")) for near in around[name]) for name in names if not name.startswith("baseline"))


def test_at_smoke_depth_the_one_baseline_boot_has_further_ones_behind_it(plan):
    made = plan(3, depth=Depth.SMOKE, only=["draft-k3"])
    assert order(made) == ["draft-k3", "control", "draft-k3.boot2", "baseline.boot2", "draft-k3.boot3", "baseline.boot3"]


def test_one_boot_is_the_layout_that_it_always_was(plan, config):
    assert not [boot for boot in plan(1).boots if boot.number > 1]
    assert plan(1) == make(config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in plan(1).workloads], Depth.STANDARD)


@pytest.mark.parametrize("servers, waves", [(2, [2, 2, 2, 2]), (3, [3, 3])])
def test_side_by_side_further_boots_come_in_waves_with_a_baseline_each(plan, config, servers, waves):
    made = plan(3, config=beside(config, servers))
    planned = parallel.boot_waves(made.boots, servers)
    assert [len(wave) for wave in planned.further] == waves
    assert all([boot.role for boot in wave] == [Role.BASELINE, *[Role.VARIANT] * (len(wave) - 1)] for wave in planned.further)
    assert not [boot for wave in (planned.staying, *planned.waves) for boot in wave if boot.number > 1]


def test_more_boots_take_longer_and_the_plan_says_so(plan):
    one, four = plan(1, only=["draft-k3"]), plan(4, only=["draft-k3"])
    assert four.estimate_s - one.estimate_s > 6 * one.rates.boot_s


def test_an_attached_server_is_not_booted_again(plan, config):
    with pytest.raises(PlanError, match="--specdec-boots"):
        plan(2, config=replace(config, engine=replace(config.engine, url="http://127.0.0.1:9")))


def test_without_a_timed_workload_there_is_nothing_to_boot_again_for(plan):
    with pytest.raises(PlanError, match="no selected test measures speed"):
        plan(2, timed=False)


@pytest.fixture
def run(directory):
    def _run(config, made, *, again=False):
        return (runner.resume if again else runner.record)(config, made, directory, deadline_s=None, tell=lambda _: None)

    yield _run
    assert not list((directory.root / "servers").glob("*.json"))


FURTHER = ("draft-k3.boot2", "baseline.boot2", "draft-k3.boot3", "baseline.boot3")


@pytest.mark.examples(1)
@pytest.mark.parametrize("depth", [Depth.SMOKE, Depth.STANDARD])
def test_a_capture_leaves_the_answers_of_every_boot(run, plan, config, directory, depth):
    made = plan(3, depth=depth, only=["draft-k3"])
    status = run(config, made)
    assert (status.state, status.missing, status.boots) == (State.COMPLETE, (), len(made.boots))
    boots = {boot.arms[-1]: boot.index for boot in made.boots}
    for name in FURTHER:
        transcript = transcripts.read(directory, name, "timed")
        assert (transcript.arm, transcript.boot, len(transcript.answers)) == (name, boots[name], 4)
        assert transcripts.read(directory, name, "greedy") is None


def test_how_busy_the_machine_was_is_kept_of_what_is_timed(run, plan, config, directory, monkeypatch):
    """Of two passes the worse one."""
    loads = {"draft-k3": [0.5, 2.0], "baseline": [1.0, 0.25], "control": [0.0, 0.0]}
    given = iter(loads["draft-k3"] + loads["baseline"] + loads["control"])
    monkeypatch.setattr(environment, "load_per_core", lambda: next(given))
    run(config, plan(1, depth=Depth.SMOKE, only=["draft-k3"]))
    assert {arm: transcripts.read(directory, arm, "timed").machine_load for arm in loads} == {arm: max(two) for arm, two in loads.items()}
    assert {transcripts.read(directory, arm, "greedy").machine_load for arm in loads} == {None}


def test_side_by_side_the_servers_of_a_further_wave_take_turns(run, plan, config, directory, monkeypatch):
    monkeypatch.setattr(alternation, "is_steady", lambda *_: True)
    here = beside(config, 2)
    assert run(here, plan(2, config=here, only=["draft-k3"])).state is State.COMPLETE
    arms = ("baseline.boot2", "draft-k3.boot2")
    sent = sorted((a.timing.sent_s, arm, a.timing.done_s) for arm in arms for a in transcripts.read(directory, arm, "timed").answers)
    there, back = list(arms), list(reversed(arms))
    assert [arm for _, arm, _ in sent] == there + back + back + there, "request by request, the other way round in the second pass"
    assert all(earlier[2] <= later[0] for earlier, later in pairwise(sent))


def test_a_variant_that_does_not_come_up_is_not_booted_again(run, plan, config, with_args):
    made = plan(3, depth=Depth.SMOKE, only=["draft-k3"])
    status = run(with_args(config, "draft-k3", boot="die"), made)
    assert status.boots == 0
    assert {missing.arm for missing in status.missing} >= set(FURTHER)
    assert all("not booted: draft-k3 did not come up" in missing.reason for missing in status.missing if missing.arm in FURTHER)


def test_of_two_variants_the_one_that_comes_up_has_its_further_boots(run, plan, config, directory, with_args):
    status = run(with_args(config, "draft-k3", boot="die"), plan(2, depth=Depth.SMOKE))
    stored = {path.parent.name for path in (directory.root / "transcripts").glob("*/timed.jsonl")}
    assert stored == {"baseline", "control", "ngram-k3", "ngram-k3.boot2", "baseline.boot2"}
    assert status.boots == 4
    assert next(one.reason for one in status.missing if one.arm == "draft-k3.boot2").startswith("not booted: draft-k3 did not come up")


def test_a_resumed_capture_times_all_boots_anew_when_one_is_missing(run, plan, config, directory):
    """Figures of two occasions are not compared; what is not timed stays as it is."""
    made = plan(2, depth=Depth.SMOKE, only=["draft-k3"])
    run(config, made)
    before = {path: path.read_bytes() for path in (directory.root / "transcripts").rglob("*.jsonl")}
    (directory.root / "transcripts" / "baseline.boot2" / "timed.jsonl").unlink()
    status = run(config, made, again=True)
    assert (status.state, status.missing) == (State.COMPLETE, ())
    after = {path: path.read_bytes() for path in before}
    assert {path.stem for path in before if before[path] == after[path]} == {"greedy"}
    assert {path.stem for path in before if before[path] != after[path]} == {"timed"}


def test_deaths_of_further_boots_count_for_their_arm(run, plan, config, directory):
    made = plan(2, depth=Depth.SMOKE, only=["draft-k3"])
    run(config, made)
    for number in range(3):
        kept = transcripts.read(directory, "draft-k3.boot2", "timed")
        failure = server_failure(number)
        transcripts.write(directory, replace(kept, server_failures=(*kept.server_failures, failure)))
    found = server_failures.read(directory, made, "draft-k3")
    assert len(found["draft-k3"].unexplained) == 3
    assert found["baseline"].unexplained == ()


def server_failure(number):
    from pytest_specdec.model.transcript import FailureKind, ServerFailure

    return ServerFailure(request_id="p0", ending=FailureKind.DIED, recurred=False, failure=number)
