"""The planner: boots, placement, shares, and the top tokens that are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.capture import environment, planner
from pytest_specdec.capture import placement as machine_placement
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.capture.server_recipes import ServerRecipes
from pytest_specdec.capture.workloads import apply_config
from pytest_specdec.config.config import Overlay
from pytest_specdec.errors import EngineError, PlanError
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.families import CORRECTNESS_ALPHA, FAMILIES, Budget
from pytest_specdec.model.pair import OLD_BASELINE, DraftKind
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Depth, Family, Need
from pytest_specdec.prompts import ALL, load
from pytest_specdec.prompts.context import prompt_length
from pytest_specdec.prompts.long import LONG_CONTEXTS


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


@pytest.mark.parametrize("placement, depth, scoring", [
    (Placement.IN_TURN, Depth.STANDARD, "control"),
    (Placement.IN_TURN, Depth.SMOKE, "control"),
    (Placement.SIDE_BY_SIDE, Depth.STANDARD, "baseline"),
])  # fmt: skip
def test_the_scoring_baseline_scores_the_old_answers_last_with_as_many_top_tokens_as_its_own(config, workload, placement, depth, scoring):
    selected = [SelectedWorkload(workload=workload(name), family=Family.GREEDY) for name in ("greedy", "other")]
    planned = make(replace(config, placement=placement), selected, depth, options=PlanOptions(old_answers=("greedy", "elsewhere")))
    (boot,) = [boot for boot in planned.boots if any(task.arm == OLD_BASELINE for task in boot.scores)]
    own = next(task for task in boot.scores if (task.arm, task.workload) == ("baseline", "greedy"))
    assert (boot.arm, boot.scores[-1]) == (scoring, replace(own, arm=OLD_BASELINE))
    alone = make(replace(config, placement=placement), selected, depth)
    assert [replace(boot, scores=tuple(task for task in boot.scores if task.arm != OLD_BASELINE)) for boot in planned.boots] == list(
        alone.boots
    )
    assert planned.estimate_s >= alone.estimate_s


def test_a_scorer_of_another_engine_scores_no_old_answers(config, workload):
    selected = [SelectedWorkload(workload=workload("greedy"), family=Family.GREEDY)]
    planned = make(replace(config, scorer=config.engine), selected, Depth.STANDARD, options=PlanOptions(old_answers=("greedy",)))
    assert not [task for boot in planned.boots for task in boot.scores if task.arm == OLD_BASELINE]


@pytest.fixture
def small_cache(config, monkeypatch):
    monkeypatch.setattr(type(planner.engine_of(config.engine.kind)), "small_cache", lambda *_: {"blocks": 8}, raising=False)


@pytest.mark.usefixtures("small_cache")
def test_a_small_cache_takes_further_boots_of_baseline_and_variants_and_none_of_the_control(plan, workload):
    crowded = replace(workload("crowded"), small_cache=True)
    made = plan(workload(), crowded)
    assert [(b.arm, b.answers, b.small_cache) for b in made.boots] == [
        ("baseline", ("greedy",), False),
        ("baseline", ("crowded",), True),
        ("draft-k3", ("greedy",), False),
        ("draft-k3", ("crowded",), True),
        ("ngram-k3", ("greedy",), False),
        ("ngram-k3", ("crowded",), True),
        ("control", ("crowded", "greedy"), False),
    ]
    assert [boot.probe for boot in made.boots] == [True, False, True, False, True, False, False]
    assert ("draft-k3", "crowded") in scored(made.boots[-1])
    alone = plan(crowded)
    assert [(b.arm, b.small_cache, b.probe) for b in alone.boots] == [
        ("baseline", True, True),
        ("draft-k3", True, True),
        ("ngram-k3", True, True),
        ("control", False, False),
    ]


@pytest.mark.usefixtures("small_cache")
def test_side_by_side_the_usual_baseline_stays_and_scores(plan, workload, config):
    crowded = replace(workload("crowded"), small_cache=True)
    boots = plan(crowded, config=replace(config, placement=Placement.SIDE_BY_SIDE)).boots
    assert [(b.arm, b.answers, b.small_cache, bool(b.scores)) for b in boots[:2]] == [
        ("baseline", (), False, True),
        ("baseline", ("crowded",), True, False),
    ]


def test_an_engine_without_a_small_cache_is_not_sent_what_needs_one(plan, workload, config, monkeypatch):
    monkeypatch.setattr(type(planner.engine_of(config.engine.kind)), "small_cache", lambda *_: None, raising=False)
    made = plan(workload(), replace(workload("crowded"), small_cache=True))
    assert made.withheld == {"crowded": "needs a small key-value cache, for which this engine has no setting"}
    assert not any(boot.small_cache for boot in made.boots)


def limited(config, limit):
    return replace(config, engine=replace(config.engine, args={**config.engine.args, "max-model-len": limit}))


def test_long_contexts_are_not_asked_of_servers_of_a_short_one(plan, workload, config):
    made = plan(workload(), LONG_CONTEXTS, config=limited(config, 2048))
    words = "needs sequences of more than 2,048 tokens, and the servers admit 2,048, which the family context fills"
    assert made.withheld == {"long-contexts": words}
    assert plan(workload(), LONG_CONTEXTS, config=limited(config, 4096)).withheld == {}
    with pytest.raises(PlanError, match="long-contexts needs sequences of more than 2,048 tokens"):
        plan(LONG_CONTEXTS, config=limited(config, 2048))


def test_long_prompts_are_read_and_scored_in_the_estimate(plan, config):
    """An eighth of 262,144 tokens is scored, and nothing longer."""
    config = limited(config, 262_144)
    filled = apply_config(LONG_CONTEXTS, config, ())
    read = sum(map(prompt_length, filled.at(Depth.STANDARD).requests)) - 8
    with_prompts, without = plan(filled, config=config), plan(LONG_CONTEXTS, config=config)
    arms = len(with_prompts.pairs) + 2
    tokens = arms * (read + 6 * (32_768 - 96))
    assert with_prompts.estimate_s - without.estimate_s == pytest.approx(tokens / with_prompts.rates.scored_tokens_per_s)


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


SPEED = Overlay(args={"idle": 24}, env={"QUICK": "1"})


def test_where_seconds_count_under_settings_of_their_own_timed_workloads_have_boots_of_their_own(plan, workload, config):
    of_both = (workload(draft_scored=True), workload("timed", timed=True, scored=False))
    boots = plan(*of_both, config=replace(config, speed=SPEED)).boots
    assert [(boot.arm, boot.answers, boot.timed) for boot in boots] == [
        *((arm, ("greedy",), False) for arm in ("baseline", "draft-k3", "ngram-k3", "control")),
        ("small", (), False),
        *((arm, ("timed",), True) for arm in ("baseline", "draft-k3", "ngram-k3", "control")),
    ]
    assert [boot.index for boot in boots] == list(range(9))
    assert not any(boot.probe or boot.scores for boot in boots[5:])
    assert [boot.arm for boot in plan(*of_both).boots if "timed" in boot.answers] == ["baseline", "draft-k3", "ngram-k3", "control"]


def test_speed_alone_takes_no_boots_but_those_that_are_timed(plan, workload, config):
    boots = plan(workload("timed", timed=True, scored=False), depth=Depth.SMOKE, config=replace(config, speed=SPEED)).boots
    assert [(boot.arm, boot.also_baseline, boot.probe, boot.timed) for boot in boots] == [
        ("draft-k3", False, True, True),
        ("ngram-k3", False, True, True),
        ("control", True, True, True),
    ]


def test_settings_for_speed_are_laid_over_the_engine_and_under_the_variant(plan, workload, config, tmp_path):
    own = replace(config, speed=SPEED, engine=replace(config.engine, args={"idle": 1, "port": 8000}))
    laid = plan(workload(), workload("timed", timed=True, scored=False), config=own)
    recipes = ServerRecipes(config=own, plan=laid, directory=RunDirectory(tmp_path))
    args = {(boot.arm, boot.timed): recipes._setup(boot) for boot in laid.boots}
    assert (args["baseline", False].args["idle"], args["baseline", True].args["idle"]) == (1, 24)
    assert (args["baseline", False].env.get("QUICK"), args["ngram-k3", True].env["QUICK"]) == (None, "1")


def test_an_attached_server_has_no_settings_for_speed(plan, workload, config):
    attached = replace(config, speed=SPEED, engine=replace(config.engine, url="http://127.0.0.1:9"))
    with pytest.raises(PlanError, match="settings that it was started with"):
        plan(workload("timed", timed=True, scored=False), config=attached)


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
    with pytest.raises(PlanError, match="nothing to capture") as caught:
        plan(workload(take={Depth.SMOKE: 0}), depth=Depth.SMOKE)
    assert caught.value.remedy.startswith("select a test with a workload")


def test_workloads_that_are_all_withheld_are_refused_with_their_needs(plan, workload):
    with pytest.raises(PlanError, match="nothing to capture") as caught:
        plan(workload(needs=Need.OFFLOAD))
    assert "needs a second tier" in caught.value.found
    assert caught.value.remedy.startswith("meet one of these needs")


def test_more_workloads_than_the_budget_is_written_for_have_smaller_shares(plan, workload):
    many, row = plan(*(workload(f"greedy-{i}") for i in range(5))), FAMILIES[Family.GREEDY]
    assert [judgement.alpha for judgement in many.judgements] == pytest.approx([row.alpha(2) * row.workloads / 5] * len(many.judgements))
    assert plan(*(workload(f"free-{i}") for i in range(5)), family=Family.LIVENESS).judgements[0].alpha == 0.0


def test_deselected_tests_count_for_the_shares(plan, workload):
    left_out = [SelectedWorkload(workload=workload(f"greedy-{i}"), family=Family.GREEDY) for i in range(5)]
    shares, row = [judgement.alpha for judgement in plan(workload("greedy-0"), collected=left_out).judgements], FAMILIES[Family.GREEDY]
    assert shares == pytest.approx([row.alpha(2) * row.workloads / 5] * len(shares))


def test_a_plan_knows_how_often_a_correct_server_turns_it_red(plan, workload):
    """The whole part of its family, spent by two variants and the control; and less where fewer workloads are sent than the row says."""
    greedy = plan(workload("one"), workload("other"))
    assert greedy.red_by_chance == {Budget.CORRECTNESS: pytest.approx(CORRECTNESS_ALPHA * FAMILIES[Family.GREEDY].part)}
    sampling = FAMILIES[Family.SAMPLING]
    drawn = plan(workload(), family=Family.SAMPLING)
    assert drawn.red_by_chance == {Budget.CORRECTNESS: pytest.approx(CORRECTNESS_ALPHA * sampling.part / sampling.workloads)}
    assert plan(workload(), family=Family.LIVENESS).red_by_chance == {}


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


@pytest.mark.parametrize("most, waves", [(None, (1, 4, 8, 12, 32, 128)), (16, (1, 4, 8, 12, 16)), (4, (1, 4))])
def test_where_seconds_count_no_more_are_sent_at_once_than_every_server_admits(plan, with_args, config, most, waves):
    for arm in (None, "draft-k3") if most else (None,):
        others = with_args(config, max_num_seqs=64) if arm else config
        settings = config if most is None else with_args(others, arm, **{"max-num-seqs": most})
        (sent,) = plan(load.levels(ALL), family=Family.SPEED, config=settings).workloads
        assert sent.waves == waves


@given(orders=st.permutations(range(4)))
def test_the_estimate_does_not_depend_on_the_order_of_tests(orders):
    from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
    from pytest_specdec.model.workload import Request, Route, Workload

    setting = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}
    config = Config(
        name="c",
        path=Path("/nowhere/c.yaml"),
        text="",
        engine=EngineSettings(kind="vllm", model="m"),
        variants=(VariantSettings(name="v", args=setting),),
    )
    asked = [Request(id="a", route=Route.CHAT, body={"max_tokens": 100})]
    wanted = [
        SelectedWorkload(workload=Workload(name=f"w{i}", version=1, requests=tuple(asked * (i + 1)), timed=i == 2), family=Family.GREEDY)
        for i in range(4)
    ]
    estimates = {round(make(config, order, Depth.STANDARD).estimate_s, 6) for order in (wanted, [wanted[i] for i in orders])}
    assert len(estimates) == 1
    assert estimates.pop() > 3 * 25


def test_a_workload_that_takes_nothing_at_a_depth_is_left_out_there(plan, workload):
    sent, deep = workload("a"), replace(workload("b"), take={Depth.SMOKE: 0})
    assert [one.name for one in plan(sent, deep, depth=Depth.SMOKE).workloads] == ["a"]
    assert [one.name for one in plan(sent, deep).workloads] == ["a", "b"]


GREEDY = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}


DRAWN = {**GREEDY, "draft_sample_method": "probabilistic"}


HEAD = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}


def asking(workload, **body):
    return replace(workload, requests=tuple(replace(r, body={**r.body, **body}) for r in workload.requests))


@pytest.fixture
def top_tokens(config, workload):
    """Top tokens by (server, arm) for one workload under the variants given."""

    def _top_tokens(*settings, body, **fields):
        variants = tuple(replace(config.variants[0], name=f"v{i}", args={"speculative-config": one}) for i, one in enumerate(settings))
        one = asking(workload(draft_scored=True, **fields), **body)
        plan = make(replace(config, variants=variants), [SelectedWorkload(workload=one, family=Family.SAMPLING)], Depth.SMOKE)
        return {(boot.under, tokens.arm): tokens.top_tokens for boot in plan.boots for tokens in boot.scores if tokens.workload == one.name}

    return _top_tokens


@pytest.mark.parametrize(
    "setting, body, wanted",
    [
        (GREEDY, {"temperature": 0.0}, 5),
        (HEAD, {"temperature": 1.0, "top_p": 1.0}, 5),
        (GREEDY, {"temperature": 1.0, "top_k": -1}, 5),
        (GREEDY, {"temperature": 1.0, "top_p": 0.9}, 20),
        (GREEDY, {"temperature": 1.0, "top_k": 10}, 20),
        (GREEDY, {"temperature": 1.0, "min_p": 0.1}, 20),
        (GREEDY, {"temperature": 0.7}, 20),
        (DRAWN, {"temperature": 1.0}, 20),
    ],
)
def test_a_variant_is_scored_with_as_many_top_tokens_as_its_judges_use(top_tokens, setting, body, wanted):
    assert top_tokens(setting, body=body)["baseline", "v0"] == wanted


def test_the_control_is_judged_for_all_pairs_and_needs_the_most(top_tokens):
    found = top_tokens(HEAD, DRAWN, body={"temperature": 1.0})
    assert {arm: n for (under, arm), n in found.items() if under == "baseline"} == {"v0": 5, "v1": 20, "control": 20, "baseline": 20}


def test_a_greedy_drafters_server_is_asked_for_its_best_token_only(top_tokens):
    assert top_tokens(GREEDY, body={"temperature": 1.0})["small", "v0"] == 1
    assert top_tokens(DRAWN, body={"temperature": 1.0})["small", "v0"] == 20
    assert top_tokens(GREEDY, DRAWN, body={"temperature": 1.0})["small", "control"] == 20


def test_the_workloads_own_number_is_never_exceeded(top_tokens):
    assert set(top_tokens(HEAD, DRAWN, body={"temperature": 1.0}, top_tokens=3).values()) == {3}
    assert set(top_tokens(GREEDY, body={"temperature": 1.0}, top_tokens=0).values()) == {0}


@pytest.fixture
def beside(config):
    """The config with its servers side by side."""

    def _beside(servers=4, config=config):
        return replace(config, placement=Placement.SIDE_BY_SIDE, limits=replace(config.limits, servers=servers))

    return _beside


@pytest.mark.parametrize(
    "total, one, placement, servers",
    [(64.0, 2.0, Placement.SIDE_BY_SIDE, 4), (8.0, 2.5, Placement.SIDE_BY_SIDE, 2), (8.0, 4.0, Placement.IN_TURN, 1)],
)
def test_auto_goes_by_the_size_of_the_machine_and_of_a_server(config, workload, monkeypatch, total, one, placement, servers):
    from pytest_specdec.engines import registry
    from pytest_specdec.engines.protocol import Footprint

    monkeypatch.setattr(environment, "memory_gib", lambda: total)
    monkeypatch.setattr(type(registry.engine_of("fake")), "footprint", lambda *_, **__: Footprint(memory_gib=one))
    plan = make(replace(config, placement=Placement.AUTO), [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.SMOKE)
    assert (plan.placement, plan.servers) == (placement, servers)
    assert plan.placement_reason == f"one server takes about {one:.1f} GiB of {total:.0f}"


@pytest.mark.parametrize("share, placement", [(0.45, Placement.SIDE_BY_SIDE), (0.92, Placement.IN_TURN)])
def test_on_a_device_auto_goes_by_the_share_that_a_server_takes(config, monkeypatch, share, placement):
    from pytest_specdec.engines.vllm import Vllm

    monkeypatch.setattr(environment, "has_accelerator", lambda: True)
    args = {} if share == 0.92 else {"gpu-memory-utilization": share}
    config = replace(config, placement=Placement.AUTO, engine=replace(config.engine, kind="vllm", args=args))
    assert machine_placement.resolve(config, Vllm()).placement is placement


def test_a_size_that_is_not_known_means_in_turn(config):
    from pytest_specdec.engines.vllm import Vllm

    config = replace(config, placement=Placement.AUTO, engine=replace(config.engine, kind="vllm", model="org/model"))
    found = machine_placement.resolve(config, Vllm())
    assert (found.placement, found.reason) == (Placement.IN_TURN, "the memory that a server takes is unknown before it starts")


def test_servers_side_by_side_cannot_share_a_port(beside, config, workload, with_args):
    with pytest.raises(PlanError, match="cannot share a port"):
        make(with_args(beside(), port=8000), [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.SMOKE)
    assert machine_placement.resolve(with_args(replace(config, placement=Placement.AUTO), port=8000), None).placement is Placement.IN_TURN


def test_a_scorer_scores_in_the_baselines_place(plan, workload, config):
    scored_elsewhere = replace(config, scorer=replace(config.engine, model="twin"))
    for placement in (Placement.IN_TURN, Placement.SIDE_BY_SIDE):
        plain = plan(workload(draft_scored=True), config=replace(config, placement=placement))
        boots = plan(workload(draft_scored=True), config=replace(scored_elsewhere, placement=placement)).boots
        assert [boot.index for boot in boots] == list(range(len(plain.boots) + 1))
        (scorer,) = (boot for boot in boots if boot.role is Role.SCORER)
        (scoring,) = (boot for boot in plain.boots if boot.scores and boot.role is not Role.DRAFT)
        assert (scorer.arm, scorer.probe, scorer.answers, scorer.under) == ("scorer", True, (), "baseline")
        assert scorer.scores == scoring.scores
        assert [boot.arm for boot in boots if boot.scores and boot is not scorer] == ["small"]


def test_the_route_to_scores_is_the_scorers(plan, workload, config, with_args):
    assert plan(workload()).route is ScoringRoute.PROMPT_LOGPROBS
    assert (
        plan(workload(), config=replace(config, scorer=with_args(config, top_logprobs=True, no_prompt_logprobs=True).engine)).route
        is ScoringRoute.CONTINUATIONS
    )
