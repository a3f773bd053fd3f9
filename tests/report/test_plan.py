from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.plan import Placement, ScoringTask
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.report.plan import lines


def test_a_plan_says_what_it_judges_and_what_that_costs(plan):
    assert lines(plan, origin=".specdec/run", replayed=False) == (
        "specdec: reference · reference target · standard · capture into .specdec/run",
        "  2 pairs (draft-k3, ngram-k3) x 1 workload = 2 judgements",
        "  4 boots (baseline, draft-k3, control, draft model draft alone), at most 64 tokens an arm, about 3:05",
        "  false-alarm share of each: greedy 2e-05",
    )


def test_a_replay_costs_nothing(plan):
    text = "\n".join(lines(plan, origin="RUN", replayed=True))
    assert "replay of RUN" in text
    assert "boot" not in text


def test_the_last_boot_at_smoke_depth_is_both_baselines(plan):
    boots = (replace(plan.boots[2], also_baseline=True),)
    text = "\n".join(lines(replace(plan, boots=boots, judgements=()), origin="RUN", replayed=False))
    assert "1 boot (baseline and control)" in text
    assert "none, all judges are exact" in text


def test_a_plan_shouts_where_every_token_takes_a_request(plan):
    scores = tuple(ScoringTask(arm=arm, workload="chat", top_tokens=20) for arm in ("draft-k3", "control", "baseline"))
    boots = (*plan.boots[:2], replace(plan.boots[2], scores=scores))
    dear = replace(plan, boots=boots, route=ScoringRoute.CONTINUATIONS)
    said = lines(dear, origin="RUN", replayed=False)
    assert said[3] == "  SCORES BY ONE-TOKEN CONTINUATIONS: a request per token, at most 192 requests besides the answers"
    assert len(said) == len(lines(plan, origin="RUN", replayed=False)) + 1
    assert len(lines(dear, origin="RUN", replayed=True)) == len(lines(plan, origin="RUN", replayed=True))
    assert len(lines(replace(dear, boots=plan.boots), origin="RUN", replayed=False)) == len(said) - 1


def test_a_plan_says_which_placement_it_came_to_and_why(plan):
    beside = replace(plan, placement=Placement.SIDE_BY_SIDE, servers=3)
    assert "alone) side by side, 3 servers at once, at most" in lines(beside, origin="RUN", replayed=False)[2]
    because = replace(beside, placement_reason="one server takes 0.45 of the device")
    assert "3 servers at once (one server takes 0.45 of the device), at" in lines(because, origin="RUN", replayed=False)[2]
    assert "alone) in turn (too big), at" in lines(replace(plan, placement_reason="too big"), origin="RUN", replayed=False)[2]
