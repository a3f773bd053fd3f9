"""Runs of real pairs: a healthy run that is red is reported, and so is a planted fault that no verdict names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import results
from benchmarks.speed_pairs import NEW_MACHINE, PAIRS, PATCHES, STORED, Judged, _write, page, planted, surprises
from benchmarks.vllm_faults import ROOT
from pytest_specdec.gates import baseline_file
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.faults.planted import Place

CELL = {"config": "reference", "variant": "draft-k3", "workload": "vacation-timed", "low": 1.5, "high": 2.5}


FEW, DEAR = "the drafter brings too little", "the step is too dear"


def judged(run, outcome="pass", names="", speedup=2.0):
    return Judged(run=run, outcome=outcome, names=names, headline=f"{speedup:.2f}x", speedup=speedup, **CELL)


@pytest.mark.parametrize("found, surprising", [
    ([judged("healthy 1"), judged("healthy 2", "speed not decided")], []),
    ([judged("healthy 1"), judged("healthy 2", "fail")], ["reference, healthy 2, draft-k3, vacation-timed: 2.00x"]),
    ([judged("slow-verify", "fail", DEAR)], []),
    ([judged("slow-verify", "fail", FEW)], [f"reference, slow-verify: not red by name: {FEW} 2.00x"]),
    ([judged("slow-verify", "speed not decided", DEAR)], ["reference, slow-verify: not red by name: nothing red"]),
])  # fmt: skip
def test_what_is_not_as_expected_is_told(found, surprising):
    assert surprises(found) == surprising


def test_the_page_has_medians_of_the_healthy_runs_and_every_red_verdict():
    text = "\n".join(page([judged("healthy 1"), judged("healthy 2", speedup=3.0), judged("dead-drafts", "fail", FEW)]))
    assert "| reference | draft-k3 | vacation-timed | 2 pass | 2.50x [2.00, 3.00] | 1.50x |" in text
    assert "| reference | dead-drafts | draft-k3 | vacation-timed | fail | the drafter brings too little: 2.00x |" in text


def test_what_was_measured_of_another_pair_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    other = replace(judged("healthy 1"), config="vllm-cpu-padded")
    for found in ([other], [judged("healthy 1", speedup=1.5)], [judged("healthy 1")]):
        _write(found)
    document = json.loads((tmp_path / "speed_pairs.json").read_text())
    assert [Judged(**one) for one in document["judged"]] == [judged("healthy 1"), other]
    assert sorted(document["measured"]) == sorted(PAIRS)


@pytest.mark.parametrize("config", PAIRS)
def test_a_planted_fault_is_in_every_variant_and_in_no_baseline(config):
    found = planted(config, "dead-drafts")
    for variant in found["variants"].values():
        assert "dead-drafts" in (variant["args"].get("fault") or variant["env"][PATCHES])
    assert "dead-drafts" not in json.dumps(found["engine"])
    assert "../" not in json.dumps(found)


@pytest.mark.parametrize("config, place", [("reference", Place.REFERENCE), ("vllm-cpu-padded", Place.VLLM)])
def test_the_faults_can_be_planted_there(config, place):
    assert all(place in FAULTS[fault].expected for fault in (*NEW_MACHINE, *STORED[config]))


def test_the_repositorys_baseline_files_can_be_used():
    for folder in sorted((ROOT / "baselines").iterdir()):
        baseline_file.check(ROOT / "baselines", folder.name)
