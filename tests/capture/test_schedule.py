from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.errors import EngineError, PlanError
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.plan import Role
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def plan(config):
    def _plan(*workloads, depth=Depth.STANDARD, only=None, family=Family.GREEDY, config=config, collected=()):
        return make(config, [SelectedWorkload(workload=w, family=family) for w in workloads], depth, only, collected)

    return _plan


def scored(boot):
    return [(tokens.arm, tokens.workload) for tokens in boot.scores]


def test_in_turn_n_variants_and_d_drafts_take_n_2_d_boots(plan, workload):
    boots = plan(workload(), workload("sampled", draft_scored=True)).boots
    assert [(b.index, b.role, b.arm) for b in boots] == [
        (0, Role.BASELINE, "baseline"),
        (1, Role.VARIANT, "draft-k3"),
        (2, Role.VARIANT, "ngram-k3"),
        (3, Role.CONTROL, "control"),
        (4, Role.DRAFT, "small"),
    ]
    assert all(boot.answers == ("greedy", "sampled") for boot in boots[:4])
    assert [boot.probe for boot in boots] == [True, True, True, False, False]
    arms = ("draft-k3", "ngram-k3", "control", "baseline")
    assert scored(boots[3]) == [(arm, name) for name in ("greedy", "sampled") for arm in arms]
    assert scored(boots[4]) == [("draft-k3", "sampled"), ("control", "sampled")]


def test_at_smoke_depth_the_last_baseline_boot_is_the_only_one(plan, workload):
    boots = plan(workload(draft_scored=True), depth=Depth.SMOKE).boots
    assert [b.role for b in boots] == [Role.VARIANT, Role.VARIANT, Role.CONTROL, Role.DRAFT]
    assert (boots[2].also_baseline, boots[2].probe) == (True, True)


def test_two_variants_with_one_draft_model_share_its_boot(plan, workload, config):
    twin = replace(config.variants[0], name="draft-twin")
    boots = plan(workload(draft_scored=True), config=replace(config, variants=(*config.variants, twin))).boots
    assert [b.arm for b in boots if b.role is Role.DRAFT] == ["small"]
    assert scored(boots[-1]) == [("draft-k3", "greedy"), ("draft-twin", "greedy"), ("control", "greedy")]


def test_without_a_workload_that_wants_the_draft_there_is_no_draft_boot(plan, workload):
    assert len(plan(workload()).boots) == 4


def test_unscored_workloads_are_not_scored(plan, workload):
    assert plan(workload(scored=False)).boots[-1].scores == ()


def test_what_only_its_speed_is_judged_of_is_not_scored_and_needs_no_draft_boot(config, workload):
    asked = workload(draft_scored=True)
    alone = make(config, [SelectedWorkload(workload=asked, family=Family.SPEED)], Depth.STANDARD)
    assert [boot.role for boot in alone.boots if boot.scores or boot.role is Role.DRAFT] == []
    both = make(config, [SelectedWorkload(workload=asked, family=family) for family in (Family.SPEED, Family.GREEDY)], Depth.STANDARD)
    assert [boot.role for boot in both.boots if boot.scores] == [Role.CONTROL, Role.DRAFT]
    assert alone.workloads[0].digest == both.workloads[0].digest


def test_timed_comes_first_and_what_may_kill_last(plan, workload):
    names = [w.name for w in plan(workload("deadly", may_kill=True), workload("plain"), workload("timed", timed=True)).workloads]
    assert names == ["timed", "plain", "deadly"]


def test_workloads_are_cut_to_the_depth(plan, workload):
    cut = workload(take={Depth.SMOKE: 2})
    assert [len(plan(cut, depth=depth).workload("greedy").requests) for depth in (Depth.SMOKE, Depth.STANDARD)] == [2, 5]


def test_one_workload_of_several_tests_is_asked_once(plan, workload):
    assert len(plan(workload(), workload()).workloads) == 1
    assert len(plan(workload(), workload()).judgements) == 2


def test_the_order_of_tests_does_not_change_the_plan(plan, workload):
    one, other = workload("one"), workload("other")
    assert plan(one, other) == plan(other, one)


def test_two_workloads_of_one_name_are_refused(plan, workload):
    with pytest.raises(PlanError, match="different workloads named greedy"):
        plan(workload(), workload(requests=4))


def test_nothing_to_capture_is_refused(plan, workload):
    with pytest.raises(PlanError, match="nothing to capture"):
        plan(workload(take={Depth.SMOKE: 0}), depth=Depth.SMOKE)


def test_more_workloads_than_the_budget_is_written_for_have_smaller_shares(plan, workload):
    many = plan(*(workload(f"greedy-{i}") for i in range(5)))
    assert {judgement.alpha for judgement in many.judgements} == {FAMILIES[Family.GREEDY].alpha(2) / 5}
    assert plan(*(workload(f"free-{i}") for i in range(5)), family=Family.LIVENESS).judgements[0].alpha == 0.0


def test_deselected_tests_count_for_the_shares(plan, workload):
    left_out = [SelectedWorkload(workload=workload(f"greedy-{i}"), family=Family.GREEDY) for i in range(5)]
    assert {judgement.alpha for judgement in plan(workload("greedy-0"), collected=left_out).judgements} == {
        FAMILIES[Family.GREEDY].alpha(2) / 5
    }


def test_selecting_a_variant_does_not_raise_its_share(plan, workload):
    some = plan(workload(), only=["ngram-k3"])
    assert [pair.name for pair in some.pairs] == ["ngram-k3"]
    assert (
        {judgement.alpha for judgement in some.judgements}
        == {FAMILIES[Family.GREEDY].alpha(2)}
        == {judgement.alpha for judgement in plan(workload()).judgements}
    )


def test_a_misspelt_variant_gets_a_suggestion(plan, workload):
    with pytest.raises(PlanError, match="no variant 'ngram-k4'; did you mean ngram-k3"):
        plan(workload(), only=["ngram-k4"])
    with pytest.raises(PlanError, match="no variant 'medusa'\n"):
        plan(workload(), only=["medusa"])


def test_a_variant_that_does_not_speculate_is_refused(plan, workload, config):
    idle = replace(config.variants[0], args={"max-num-seqs": 4})
    with pytest.raises(PlanError, match="draft-k3 does not speculate"):
        plan(workload(), config=replace(config, variants=(idle,)))


def test_an_unknown_engine_gets_a_suggestion(plan, workload, config):
    with pytest.raises(EngineError, match="no engine 'vlm'; did you mean vllm"):
        plan(workload(), config=replace(config, engine=replace(config.engine, kind="vlm")))


def test_pairs_say_how_their_variant_drafts(plan, workload):
    first, second = plan(workload()).pairs
    assert (first.variant.draft.kind, first.variant.draft.model, first.variant.draft.tokens) == (DraftKind.MODEL, "small", 3)
    assert (second.variant.draft.kind, second.variant.draft.ngram_min, second.variant.draft.ngram_max) == (DraftKind.NGRAM, 4, 4)


def test_a_request_per_token_is_told_and_reckoned_with(plan, workload, with_args, config):
    usual = plan(workload(draft_scored=True))
    dear = plan(workload(draft_scored=True), config=with_args(config, top_logprobs=True, no_prompt_logprobs=True))
    assert (usual.route, dear.route) == (ScoringRoute.PROMPT_LOGPROBS, ScoringRoute.CONTINUATIONS)
    assert dear.estimate_s > usual.estimate_s
    assert dear.scored_tokens == usual.scored_tokens == (4 + 2) * 5 * 6


@given(orders=st.permutations(range(4)))
def test_the_estimate_does_not_depend_on_the_order_of_tests(orders):
    from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
    from pytest_specdec.model.workload import Request, Route, Workload

    setting = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}
    config = Config(
        name="c", path=None, text="", engine=EngineSettings(kind="vllm", model="m"), variants=(VariantSettings(name="v", args=setting),)
    )
    asked = [Request(id="a", route=Route.CHAT, body={"max_tokens": 100})]
    wanted = [
        SelectedWorkload(workload=Workload(name=f"w{i}", version=1, requests=tuple(asked * (i + 1)), timed=i == 2), family=Family.GREEDY)
        for i in range(4)
    ]
    estimates = {round(make(config, order, Depth.STANDARD).estimate_s, 6) for order in (wanted, [wanted[i] for i in orders])}
    assert len(estimates) == 1
    assert estimates.pop() > 3 * 60


def test_a_workload_that_takes_nothing_at_a_depth_is_left_out_there(plan, workload):
    sent, deep = workload("a"), replace(workload("b"), take={Depth.SMOKE: 0})
    assert [one.name for one in plan(sent, deep, depth=Depth.SMOKE).workloads] == ["a"]
    assert [one.name for one in plan(sent, deep).workloads] == ["a", "b"]
