"""Twenty top tokens where a distribution is truncated or drafted from, five for one-hot drafts, one where only the best is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.model.workload import Depth, Family

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
