"""Timed boots of the engine in use: their places between those of the new one, and what a capture leaves of them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from pytest_specdec.capture import runner
from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.boot_layout import interleave_old, why_needless
from pytest_specdec.capture.completeness import Completeness
from pytest_specdec.capture.parallel import _create_worker, _Workers, boot_waves
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, add_old_engine, make
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.capture.remaining import reusable_results
from pytest_specdec.capture.scoring import Continuations, PromptLogprobs
from pytest_specdec.capture.server_recipes import ServerRecipes
from pytest_specdec.config.config import Overlay
from pytest_specdec.errors import BootError, PlanError
from pytest_specdec.files import captured, old_timings, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.pair import OLD_BASELINE
from pytest_specdec.model.plan import Boot, Placement, Role
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def both(config):
    """A config of two engines, told apart by an argument that the fake server ignores."""
    return replace(config, old=replace(config.engine, env={"OLD_BUILD": "1"}))


@pytest.fixture
def plan(both, workload):
    def _plan(*, depth=Depth.STANDARD, boots=1, config=both, timed=True, only=None):
        asked = [workload(), *([workload("timed", timed=True, requests=2, passes=2, concurrency=1, scored=False)] if timed else [])]
        return make(
            config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in asked], depth, only, options=PlanOptions(speed_boots=boots)
        )

    return _plan


def order(made):
    return [boot.arms[-1] for boot in made.boots if "timed" in boot.answers]


def beside(config, servers):
    return replace(config, placement=Placement.SIDE_BY_SIDE, limits=replace(config.limits, servers=servers))


def test_in_turn_the_engines_alternate_so_that_drift_cancels(plan):
    made = plan()
    pairs = ["baseline", "old.baseline", "old.draft-k3", "draft-k3", "ngram-k3", "old.ngram-k3"]
    assert order(made) == [*pairs, "control"]
    assert [boot.index for boot in made.boots] == list(range(len(made.boots)))
    old = [boot for boot in made.boots if boot.role.is_old]
    assert all(boot.answers == ("timed",) and boot.timed and not (boot.probe or boot.scores or boot.attached) for boot in old)
    assert [boot.role for boot in old] == [Role.OLD_BASELINE, Role.OLD_VARIANT, Role.OLD_VARIANT]


def test_at_smoke_depth_the_one_baseline_boot_has_its_counterpart(plan):
    assert order(plan(depth=Depth.SMOKE)) == ["draft-k3", "old.draft-k3", "old.ngram-k3", "ngram-k3", "control", "old.baseline"]


def test_boots_apart_for_speed_alternate_too(plan, both):
    made = plan(config=replace(both, speed=Overlay(args={"x": 1})), only=["draft-k3"])
    timed = [boot.arms[-1] for boot in made.boots if boot.timed]
    assert timed == ["baseline", "old.baseline", "old.draft-k3", "draft-k3", "control"]
    assert order(made) == timed


def test_further_boots_have_counterparts_under_names_of_their_own(plan):
    further = order(plan(boots=2, only=["draft-k3"]))[5:]
    assert further == ["old.draft-k3.boot2", "draft-k3.boot2", "baseline.boot2", "old.baseline.boot2"]


def test_without_timed_workloads_or_without_engines_the_old_one_is_not_booted(plan, config):
    assert not [boot for boot in plan(timed=False).boots if boot.role.is_old]
    assert not [boot for boot in plan(config=config).boots if boot.role.is_old]


def test_the_new_baseline_scores_what_the_old_one_answered_and_no_timed_answers(both, workload):
    workloads = [workload(), workload("timed", timed=True, requests=2, passes=2, concurrency=1, scored=True)]
    made = make(both, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in workloads], Depth.STANDARD)
    scored = {task.workload for boot in made.boots for task in boot.scores if task.arm == OLD_BASELINE}
    own = {task.workload for boot in made.boots for task in boot.scores if task.arm == "baseline"}
    assert scored == own - {"timed"} != set()
    assert "timed" in own


@pytest.fixture
def drawn(workload):
    """A workload that draws tokens at a stated temperature, one that draws by default, and one that draws none."""

    def _drawn(**fields):
        plain = workload(requests=2)
        asks = {"sampled": {"temperature": 0.7}, "default": {}, "greedy": {"temperature": 0.0}}
        return [
            replace(plain, name=name, requests=tuple(replace(r, body={"prompt": name, "max_tokens": 6, **body}) for r in plain.requests))
            for name, body in asks.items()
        ] + [workload("timed", timed=True, requests=2, passes=2, concurrency=1, scored=False, **fields)]

    return _drawn


def make_for(config, workloads, depth=Depth.STANDARD, boots=1):
    return make(
        config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in workloads], depth, options=PlanOptions(speed_boots=boots)
    )


@pytest.mark.parametrize("boots", [1, 2])
@pytest.mark.parametrize("depth", [Depth.SMOKE, Depth.STANDARD])
@pytest.mark.parametrize("servers", [1, 4])
def test_the_last_old_baseline_scores_what_the_new_one_drew_before(both, drawn, depth, servers, boots):
    """Without a boot for it. What is at temperature 0 the other direction has, and what states none the servers' own defaults decide."""
    config = beside(both, servers) if servers > 1 else both
    made = make_for(config, drawn(), depth, boots)
    *_, last = [boot for boot in made.boots if boot.role is Role.OLD_BASELINE]
    (answered,) = [boot.index for boot in made.boots if "baseline" in boot.arms and "sampled" in boot.answers]
    assert {boot.arms[0] for boot in made.boots if boot.role.is_old and boot.scores} == {last.arms[0]}
    assert [(task.arm, task.workload) for task in last.scores] == [("baseline", "sampled")]
    assert (last.under, answered < last.index) == ("old.baseline", True)
    assert last.scores[0] in next(boot for boot in made.boots if boot.scores).scores, "with as many top tokens as the new baseline"
    assert len(made.boots) == len(make_for(config, [w for w in drawn() if w.name != "sampled"], depth, boots).boots)


def test_old_servers_under_settings_for_speed_or_beside_a_scorer_score_nothing(both, drawn):
    for config in (replace(both, speed=Overlay(args={"x": 1})), replace(both, scorer=both.engine)):
        assert not [boot for boot in make_for(config, drawn()).boots if boot.role.is_old and boot.scores]


def test_an_old_server_that_scores_does_not_stay_up(both, drawn):
    waves = boot_waves(make_for(beside(both, 3), drawn()).boots, 3)
    assert [boot.arm for boot in waves.staying] == ["baseline"]
    assert [boot.arm for boot in waves.waves[0]] == ["old.baseline"]


def test_scores_by_the_old_baseline_are_captured_again_and_a_refusal_costs_them_alone(both, drawn, directory):
    config = replace(both, variants=both.variants[:1])
    made = make_for(config, [drawn()[0], drawn()[-1]], Depth.SMOKE)
    runner.record(config, made, directory, deadline_s=None, tell=lambda _: None)
    assert read_new_scores(directory)
    assert not reusable_results(directory, made).remaining(made)
    directory.scores(OLD_BASELINE, "baseline", "sampled").unlink()
    (boot,) = reusable_results(directory, made).remaining(made)
    assert (boot.role, boot.answers, [task.workload for task in boot.scores]) == (Role.OLD_BASELINE, (), ["sampled"])
    refusing = replace(config, old=replace(config.old, args={"no-prompt-logprobs": True}))
    status = runner.resume(refusing, made, directory, deadline_s=None, tell=lambda _: None)
    assert (status.state, status.missing, status.missing_old, read_new_scores(directory)) == (State.COMPLETE, (), (), ())
    (warning,) = status.warnings
    assert warning.startswith("baseline by old.baseline, sampled: 2 of 2 answers are not scored")


def test_an_old_server_that_fails_with_its_scores_undone_ends_no_capture_side_by_side(both, drawn, directory):
    made = make_for(beside(both, 4), drawn(), Depth.SMOKE)
    recipes, record = ServerRecipes(config=both, plan=made, directory=directory), Completeness(made)

    def fail(worker):
        what = "the server did not come up"
        raise BootError(what)

    for boot in (boot for boot in made.boots if boot.scores):
        reporter = Reporter((), 1, None, lambda _: None)
        with nullcontext() if boot.role.is_old else pytest.raises(BootError):
            _Workers(reporter).run([_create_worker(boot, recipes, reporter, record)], fail)


def test_an_old_server_is_scored_by_the_route_that_its_own_run_found(both, drawn, directory):
    made = make_for(both, drawn(), Depth.SMOKE)
    run_documents.write_capabilities(directory, "baseline", Capabilities(support={"prompt_logprobs": FeatureSupport.HONOURED}))
    continued = {"prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.HONOURED}
    run_documents.write_capabilities(RunDirectory(directory.old), "baseline", Capabilities(support=continued))
    recipes = ServerRecipes(config=both, plan=made, directory=directory)
    reporter = Reporter((), 1, None, lambda _: None)
    scorers = {}
    for boot in (boot for boot in made.boots if boot.scores):
        session = BootSession(boot=boot, recipes=recipes, reporter=reporter, completeness=Completeness(made))
        scorers[boot.arms[0]] = type(session.scoring(made.workload("sampled")).scorer())
    assert scorers == {"baseline": PromptLogprobs, OLD_BASELINE: Continuations}


def read_new_scores(directory):
    scores = transcripts.read_scores(directory, OLD_BASELINE, "baseline", "sampled")
    return tuple(score for score in scores if score.positions)


def test_side_by_side_counterparts_are_up_together(plan, both):
    waves = boot_waves(plan(config=beside(both, 3)).boots, 3)
    names = [[boot.arm for boot in wave] for wave in waves.waves]
    assert names == [["old.baseline"], ["draft-k3", "old.draft-k3"], ["ngram-k3", "old.ngram-k3"], ["control"]]
    assert all(len(wave) <= 2 for wave in waves.waves)
    further = boot_waves(plan(config=beside(both, 4), boots=2).boots, 4).further
    assert [[boot.arm for boot in wave] for wave in further] == [
        ["baseline", "old.baseline", "ngram-k3", "old.ngram-k3"],
        ["baseline", "old.baseline", "draft-k3", "old.draft-k3"],
    ]
    assert [len(wave) for wave in boot_waves(plan(config=beside(both, 2)).boots, 2).waves] == [1] * 6


def test_further_boots_of_both_that_do_not_fit_side_by_side_are_one_error(plan, both):
    with pytest.raises(PlanError, match="do not fit side by side") as caught:
        plan(config=beside(both, 3), boots=2)
    assert "placement: in-turn" in caught.value.remedy


def test_the_layout_is_a_pure_function_of_the_boots(workload):
    boots = [Boot(index=n, role=Role.VARIANT, arm=f"v{n}", answers=("timed", "chat")) for n in range(3)]
    timed = [workload("timed", timed=True), workload("chat")]
    arms = [boot.arm for boot in interleave_old(boots, timed, placement=Placement.IN_TURN)]
    assert arms == ["v0", "old.v0", "old.v1", "v1", "v2", "old.v2"]
    arms = [boot.arm for boot in interleave_old(boots, timed, placement=Placement.SIDE_BY_SIDE)]
    assert arms == ["v0", "old.v0", "v1", "old.v1", "v2", "old.v2"]


def test_no_old_server_is_booted_for_a_dead_variant_nor_again_for_a_dead_one_of_its_own(plan):
    made = plan(boots=2)
    boots = {boot.arms[-1]: boot for boot in made.boots}
    assert why_needless(boots["old.draft-k3"], made, {"draft-k3"})
    assert not why_needless(boots["old.draft-k3"], made, {"ngram-k3"})
    assert why_needless(boots["old.draft-k3.boot2"], made, {"old.draft-k3"})
    assert not why_needless(boots["draft-k3.boot2"], made, {"old.draft-k3"})


def test_what_the_old_engine_lacks_is_said_apart_and_the_run_is_whole(plan):
    made = plan()
    record = Completeness(made)
    for boot in made.boots:
        if boot.role.is_old:
            record.record_error(boot, BootError("the server did not come up", found="exit code 7"))
        for arm in boot.arms if not boot.role.is_old else ():
            for name in boot.answers:
                record.record_transcript(arm, name, "")
        for task in boot.scores:
            record.record_scores(boot, task, "")
    status = record.status(wall_s=1.0, done_s={})
    assert (status.state, status.missing, status.lasting) == (State.COMPLETE, (), False)
    assert [gap.arm for gap in status.missing_old] == ["old.baseline", "old.draft-k3", "old.ngram-k3"]
    assert status.missing_old[0].reason.startswith("the server did not come up")


def test_another_version_of_the_old_engine_costs_that_boot_alone(plan):
    record = Completeness(plan())
    record.enter_old_version("1")
    assert record.enter_version("2")
    with pytest.raises(BootError, match="another version"):
        record.enter_old_version("2")


@pytest.mark.examples(1)
@pytest.mark.parametrize("servers", [1, 4])
def test_a_capture_leaves_timed_answers_of_both_and_the_judges_of_pairs_see_one_engine(drawn, both, directory, servers):
    """And the old baseline's scores of what the new one drew, under a name of their own."""
    config = replace(beside(both, servers) if servers > 1 else both, variants=both.variants[:1])
    made = make_for(config, [drawn()[0], drawn()[-1]], Depth.SMOKE)
    status = runner.record(config, made, directory, deadline_s=None, tell=lambda _: None)
    assert (status.state, status.missing_old, status.warnings) == (State.COMPLETE, (), ())
    answers, scores = transcripts.read(directory, "baseline", "sampled").answers, read_new_scores(directory)
    assert [tuple(position.token_id for position in score.positions) for score in scores] == [each.choice.token_ids for each in answers]
    timings = old_timings.read(directory)
    assert {name: {arm: len(boots) for arm, boots in arms.items()} for name, arms in timings.items()} == {
        "timed": {"baseline": 1, "draft-k3": 1}
    }
    (answers,) = timings["timed"]["draft-k3"]
    assert (answers.arm, len(answers.answers)) == ("old.draft-k3", 4)
    seen = {answers.arm for answers in transcripts.read_other_arms(directory, made, "timed", ())}
    assert seen == {"baseline", "control", "draft-k3"}
    judged = captured.read(directory, made, made.judgements[-1], (), captured.read_calibrations(directory, made, "draft-k3"), slo=None)
    assert not judged.speculative.arm.startswith("old.")
    directory.transcript("old.draft-k3", "timed").unlink()
    assert {boot.arm for boot in reusable_results(directory, made).remaining(made)} == {"old.draft-k3"}
    directory.transcript("draft-k3", "timed").unlink()
    remaining = reusable_results(directory, made).remaining(made)
    assert {boot.arm for boot in remaining if "timed" in boot.answers} == {"control", "draft-k3", "old.baseline", "old.draft-k3"}


def test_the_plan_says_what_comes_before_it(plan, both, config):
    made = add_old_engine(plan(), both, plan(config=both.old_engine_config()))
    assert (made.old.build, made.old.new_build, made.old.model, made.old.boots) == ("env OLD_BUILD", "no env OLD_BUILD", "big", 4)
    assert add_old_engine(plan(config=config), config, made).old is None
