"""Verdicts on builds of vLLM are held to what the list of faults expects, and so is the stored table."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from benchmarks import vllm_faults
from benchmarks.vllm_faults import FAMILIES, HEALTHY, LANE, PLANTED, ROOT, STOCK, UNEXPANDED, Build, config, surprises
from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

STOCK_BUILD = Build(drafter="draft-k3", fault=STOCK)
SAMPLING = ("sampling", "fail", "sampled tokens do not follow the baseline: evidence 1 : 10^9")
LIVENESS = ("liveness", "fail", "the server dies on a request with top_k=1")
STRUCTURED = ("structured", "not speculating", "no draft token was accepted in the very requests judged")


def run(*verdicts):
    """A run.json of the stock build."""
    return {
        "judgements": [
            {"pair": STOCK_BUILD.name, "family": family, "result": "failed", "verdict": {"outcome": outcome, "headline": text, "names": ""}}
            for family, outcome, text in verdicts
        ]
    }


@pytest.mark.parametrize("verdicts, surprising", [
    ((SAMPLING, LIVENESS), []),
    ((SAMPLING, LIVENESS, STRUCTURED), []),
    ((SAMPLING, LIVENESS, ("logprobs", "not speculating", "no draft token accepted")), []),
    ((SAMPLING,), ["liveness"]),
    ((SAMPLING, ("liveness", "pass", "")), ["liveness"]),
    ((SAMPLING, ("liveness", "fail", "the server dies on a request")), ["liveness"]),
    ((SAMPLING, LIVENESS, ("greedy", "fail", "a wrong token")), ["greedy"]),
])  # fmt: skip
def test_the_stock_build_must_die_of_top_k_and_may_break_grammars(verdicts, surprising):
    lines = surprises(run(*verdicts), STOCK_BUILD)
    assert [line.removeprefix("draft-k3-stock: ").split()[0] for line in lines] == surprising
    assert all("top_k" in line for line in lines if "liveness" in line)


def test_what_a_fault_may_turn_red_on_the_reference_engine_it_may_turn_red_here():
    accepting = Build(drafter="eagle3-k3", fault="accept-all").expected
    assert Family.STATE in accepting.may
    assert not accepting.red.keys() & accepting.may.keys()


def test_a_seed_may_be_lost_where_drafts_are_drawn_and_nowhere_else():
    assert [build.drafter for build in LANE if build.fault == HEALTHY and Family.SEEDS in build.expected.may] == ["draft-prob-k3"]


def test_all_families_are_asked_but_that_of_speed():
    assert sorted({*Family} - {*FAMILIES}) == [Family.SPEED]
    assert all((ROOT / "suites" / family).is_dir() for family in FAMILIES)


@pytest.mark.parametrize("drafters, waived", [(["draft-k3"], []), (["draft-k3", "draft-prob-k3"], ["draft-prob-k3"])])
def test_a_waiver_is_kept_where_its_variant_is(drafters, waived):
    written = config([Build(drafter=drafter) for drafter in drafters], 1)
    assert [waiver["variant"] for waiver in written["waivers"]] == waived


def test_the_lane_has_the_healthy_builds_stock_sampling_and_faults_of_the_list():
    healthy = [build for build in LANE if not build.expected.red]
    (unexpanded,) = (build for build in LANE if build.fault == UNEXPANDED)
    assert len(healthy) == 3
    assert "fix-expand" not in unexpanded.patches
    assert all(build.fault in PLANTED for build in LANE if build not in [*healthy, unexpanded])


def rows():
    """The stored table: fault, drafter, families that caught it, names."""
    lines = (ROOT / "benchmarks/results/vllm_faults.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [(fault, drafter, families.split(", "), names) for fault, drafter, families, names, _ in cells if fault in FAULTS]


@pytest.mark.parametrize("fault, drafter, families, names", rows())
def test_the_stored_table_is_as_expected(fault, drafter, families, names):
    expected = FAULTS[fault].expected[Place.VLLM]
    assert set(families) <= {*expected.red, *Build(drafter=drafter, fault=fault).expected.may}
    assert all(any(word in names for word in expected.red[family].split("|")) for family in families if family in expected.red)


@pytest.mark.parametrize("code, ends", [(0, False), (1, False), (2, True), (4, True)])
def test_what_an_earlier_run_left_is_no_verdict_where_the_suites_did_not_run(monkeypatch, tmp_path, code, ends):
    """``--specdec-resume`` refuses a run of another plan, with code 4: its old verdicts passed for those of now."""
    monkeypatch.setattr(vllm_faults.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    asked = SimpleNamespace(families=["greedy"], servers=1)
    with pytest.raises(SystemExit, match="did not run") if ends else nullcontext():
        vllm_faults._capture(tmp_path, [Build(drafter="draft-k3")], "smoke", asked)
