from __future__ import annotations

import re
from dataclasses import replace

from pytest_specdec.model.plan import Placement, PlannedProcess, Rates, ScoringTask
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Family
from pytest_specdec.report.plan import lines


def test_a_replay_costs_nothing(plan):
    text = "\n".join(lines(plan, origin="RUN", replayed=True))
    assert "replay of RUN" in text
    assert "boot" not in text


def test_the_last_boot_at_smoke_depth_is_both_baselines(plan):
    boots = (replace(plan.boots[2], also_baseline=True),)
    text = "\n".join(lines(replace(plan, boots=boots, judgements=()), origin="RUN", replayed=False))
    assert "1 boot (baseline and control)" in text
    assert "none" in text.splitlines()[-1]


def test_a_plan_shouts_where_every_token_takes_a_request(plan):
    scores = tuple(ScoringTask(arm=arm, workload="chat", top_tokens=20) for arm in ("draft-k3", "control", "baseline"))
    boots = (*plan.boots[:2], replace(plan.boots[2], scores=scores))
    dear = replace(plan, boots=boots, route=ScoringRoute.CONTINUATIONS)
    said = lines(dear, origin="RUN", replayed=False)
    assert "CONTINUATIONS" in said[3]
    assert "192 requests" in said[3]
    assert len(said) == len(lines(plan, origin="RUN", replayed=False)) + 1
    assert len(lines(dear, origin="RUN", replayed=True)) == len(lines(plan, origin="RUN", replayed=True))
    assert len(lines(replace(dear, boots=plan.boots), origin="RUN", replayed=False)) == len(said) - 1


def test_a_plan_names_the_processes_of_a_server(plan):
    processes = (PlannedProcess(name="a", is_counted=True), PlannedProcess(name="b"), PlannedProcess(name="proxy", is_asked=True))
    usual, more = (lines(one, origin="RUN", replayed=False) for one in (plan, replace(plan, processes=processes)))
    assert [line for line in more if line not in usual] == ["  each server of an arm is 3 processes: a (counted), b, proxy (asked)"]


def test_a_plan_says_what_asking_again_may_add_and_adds_it_to_nothing(plan):
    usual, more = (lines(one, origin="RUN", replayed=False) for one in (plan, replace(plan, again_s=754.0)))
    assert [line for line in more if line not in usual] == ["  asking again what a count of wrong tokens leaves open may add up to 12:34"]
    assert len(more) == len(usual) + 1


def test_a_plan_says_which_placement_it_came_to_and_why(plan):
    beside = replace(plan, placement=Placement.SIDE_BY_SIDE, servers=3)
    assert "side by side, 3 servers" in lines(beside, origin="RUN", replayed=False)[2]
    because = replace(beside, placement_reason="one server takes 0.45 of the device")
    assert "(one server takes 0.45 of the device)" in lines(because, origin="RUN", replayed=False)[2]
    assert "in turn (too big)" in lines(replace(plan, placement_reason="too big"), origin="RUN", replayed=False)[2]


def test_a_plan_says_how_many_requests_an_arm_is_sent(plan):
    chat = plan.workload(plan.judgements[0].workload)
    drawn = replace(plan, workloads=(chat, replace(chat, name="drawn", passes=3)))
    other = replace(plan.judgements[0], workload="drawn", family=Family.SAMPLING)
    said = lines(replace(drawn, judgements=(*plan.judgements, other)), origin="RUN", replayed=False)[2]
    assert ", 4 requests (1 of them not for sampling or speed), at most" in said
    assert ", 1 request, at most" in lines(plan, origin="RUN", replayed=False)[2]


def test_a_plan_of_an_unknown_server_names_its_requests_and_no_minutes(plan):
    unknown = replace(plan, estimate_s=327_295.0, again_s=754.0, rates=Rates(known=False, source="roughly"))
    text = "\n".join(lines(unknown, origin="RUN", replayed=False))
    assert "5 boots (" in text
    assert "1 request, at most 64 tokens an arm, minutes unknown before the first boot\n" in text
    assert "leaves open may add up to 4 rounds\n" in text
    assert not re.search(r"\d:\d\d|roughly", text)


def test_a_plan_says_where_its_estimate_comes_from_and_what_long_boots_add(plan):
    slow = replace(plan, rates=Rates(boot_s=180.0, source="from 3 earlier runs on this machine"))
    usual, more = (lines(one, origin="RUN", replayed=False) for one in (slow, replace(slow, enlarged={"chat": 0})))
    assert usual[2].endswith("about 3:05 (from 3 earlier runs on this machine)")
    assert [line for line in more if line not in usual] == ["  a boot takes about 3:00, so each arm is sent 1 sampled request instead of 0"]
