"""The rates of an estimate: those of earlier runs, else from the model's size and the device."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import environment, estimate, rates
from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload, make
from pytest_specdec.config import load
from pytest_specdec.config.config import Config, EngineSettings, Overlay
from pytest_specdec.engines.vllm import Vllm
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Placement, Rates
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.plugin.report_files import read_run
from tests.test_suites import wanted

pytestmark = pytest.mark.usefixtures("calibrating")
CONFIGS = Path(__file__).parents[2] / "suites" / "configs"
PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


@pytest.fixture
def on(monkeypatch):
    """Put the test on a machine with devices of this name."""

    def _on(device):
        monkeypatch.setattr(environment, "has_accelerator", lambda: True)
        monkeypatch.setattr(environment, "devices", lambda: (device,))
        monkeypatch.setattr(Vllm, "_is_cpu_build", lambda *_: False)

    return _on


def serving(model, **args):
    return Config(name="c", path=Path("/nowhere/c.yaml"), text="", engine=EngineSettings(kind="vllm", model=model, args=args), variants=())


@pytest.mark.parametrize(
    "device, model, published",
    [
        (PRO_6000, "Qwen/Qwen3-32B", 22.96),
        ("NVIDIA H200", "Llama-3.3-70B-FP8", 51.14),
        ("NVIDIA H100 80GB HBM3", "meta-llama/Llama-3.1-8B-Instruct", 158.3),
        ("NVIDIA A100-SXM4-40GB", "meta-llama/Llama-3.1-8B-Instruct", 75.0),
    ],
)
def test_the_tokens_of_one_stream_are_near_published_ones(on, device, model, published):
    on(device)
    assert rates.scale_to_size(serving(model)).tokens_per_s == pytest.approx(published, rel=0.3)


@pytest.mark.parametrize("name, minutes", [("qwen3-eagle3", (15, 35)), ("llama3.3-70b-draft", (20, 41))])
def test_a_run_of_the_whole_suites_on_one_gpu_of_96_gb_takes_minutes(on, name, minutes):
    on(PRO_6000)
    config = load.load(CONFIGS / f"{name}.yaml")
    for enlarged in (None, {}):
        assert minutes[0] * 60 < make(config, wanted(), Depth.STANDARD, options=PlanOptions(enlarged=enlarged)).estimate_s < minutes[1] * 60


def test_the_pair_that_ships_is_planned_with_less_time_side_by_side():
    """It took 9:00 in turn and 6:51 side by side on two quiet cores."""
    in_turn, beside = (
        make(reference_config(placement), wanted(), Depth.STANDARD).estimate_s for placement in (Placement.IN_TURN, Placement.AUTO)
    )
    assert in_turn == pytest.approx(540, rel=0.25)
    assert beside == pytest.approx(411, rel=0.15)
    assert beside < 0.9 * in_turn


def reference_config(placement):
    return replace(load.load(CONFIGS / "reference.yaml"), placement=placement)


SMOKE_S = {"booting": 3.4, "answering": 29.9, "answering timed": 17.8, "probing": 0.8, "scoring": 10.5, "judging": 8.0}
"""Processor seconds of a run of all suites on the reference pair at smoke depth: what each phase takes where nothing else runs.

Two cores were shared with other programs then; by the clock the capture took 82 and 103 s. Timed answers, which wait for each other, are
by the clock of a run on quiet cores.
"""


def test_each_phase_of_the_pair_that_ships_is_near_a_recorded_run():
    one = make(reference_config(Placement.IN_TURN), wanted(), Depth.SMOKE)
    timed = {workload.name for workload in one.workloads if workload.timed}
    planned = Counter({"judging": estimate.judging_s(len(one.judgements))})
    for step in estimate.steps(one.boots, one.workloads, one.rates, route=one.route):
        planned[step.kind + " timed" * (step.workload in timed)] += step.seconds
    assert {phase: planned[phase] for phase in SMOKE_S} == pytest.approx(SMOKE_S, rel=0.35, abs=0.6)
    assert one.estimate_s == pytest.approx(sum(SMOKE_S.values()), rel=0.2)


@pytest.mark.parametrize(
    "name, devices, depth, placement",
    [
        ("vllm-cpu", (), Depth.STANDARD, Placement.IN_TURN),
        ("vllm-gpu", ("NVIDIA H200",), Depth.SMOKE, Placement.SIDE_BY_SIDE),
    ],
    ids=["cpu", "gpu"],
)
def test_the_estimate_of_a_real_engine_is_within_half_of_a_recorded_run(name, devices, depth, placement, monkeypatch):
    """Both runs are the examples of docs/, of the families that they asked: twelve boots on two cores, two side by side on one device."""
    recorded = read_run(CONFIGS.parents[1] / "docs" / "examples" / name)
    assert (recorded.environment.devices, recorded.plan.depth) == (devices, depth)
    monkeypatch.setattr(environment, "has_accelerator", lambda: bool(devices))
    monkeypatch.setattr(environment, "devices", lambda: devices)
    monkeypatch.setattr(Vllm, "_is_cpu_build", lambda *_: not devices)
    asked = [selected for selected in wanted() if selected.family in recorded.families]
    config = replace(load.load(CONFIGS / f"{name}.yaml"), placement=placement)
    one = make(config, asked, depth, only=[pair.name for pair in recorded.plan.pairs])
    assert len(one.boots) == recorded.plan.boots
    assert 1 / 1.5 < one.estimate_s / recorded.status.wall_s < 1.5


def test_nothing_is_known_of_a_server_whose_device_is_missing_or_elsewhere(on, monkeypatch, config):
    """A model without a size in its name runs on the processor as fast as its engine does."""
    on("NVIDIA H200")
    large, unsized = serving("org/m-32b"), serving("org/m")
    assert [rates.scale_to_size(one).known for one in (large, unsized)] == [True, False]
    assert not rates.scale_to_size(replace(large, baseline=Overlay(url="http://a:1"))).known
    monkeypatch.setattr(environment, "has_accelerator", lambda: False)
    assert not rates.scale_to_size(large).known
    monkeypatch.setattr(Vllm, "_is_cpu_build", lambda *_: True)
    assert [rates.scale_to_size(one).known for one in (large, unsized, config)] == [True, True, True]


def test_a_larger_model_boots_longer_and_answers_more_slowly(on):
    on("NVIDIA H100 80GB HBM3")
    small, large = (rates.scale_to_size(serving(f"org/model-{size}b")) for size in (8, 32))
    assert (large.boot_s - small.boot_s, small.tokens_per_s / large.tokens_per_s) == pytest.approx((24.0, 4.0))
    assert small.source == "from the model's size, roughly, on a quiet machine"


def test_attached_servers_are_not_taken_to_run_on_the_devices_of_this_machine():
    here = serving("org/m-32b")
    elsewhere = replace(here, baseline=Overlay(url="http://a:1"))
    pace = Vllm.pace.tokens_per_s
    assert rates.scale_to_size(here).tokens_per_s < pace == rates.scale_to_size(elsewhere).tokens_per_s
    assert rates.scale_to_size(elsewhere).source == "roughly, on a quiet machine"


def test_an_unknown_device_is_a_middling_one_and_several_share_the_weights(on):
    on("Some Accelerator 9")
    one, four = rates.scale_to_size(serving("org/m-32b")), rates.scale_to_size(serving("org/m-32b", **{"tensor-parallel-size": 4}))
    assert four.tokens_per_s == pytest.approx(4 * one.tokens_per_s)
    on("NVIDIA L4")
    assert rates.scale_to_size(serving("org/m-32b")).tokens_per_s < one.tokens_per_s
    on("NVIDIA L40S")
    assert rates.scale_to_size(serving("org/m-32b")).tokens_per_s == pytest.approx(one.tokens_per_s * 0.864)


def test_without_a_device_nothing_is_compiled_and_the_cpu_reads_the_weights(on, monkeypatch):
    on(PRO_6000)
    monkeypatch.setattr(environment, "has_accelerator", lambda: False)
    slow = rates.scale_to_size(serving("org/m-3b"))
    assert (slow.boot_s, slow.tokens_per_s, slow.scaling) == pytest.approx((28.0, 5.0, 0.12))
    monkeypatch.setattr(environment, "has_accelerator", lambda: True)
    monkeypatch.setattr(Vllm, "_is_cpu_build", lambda *_: True)
    assert rates.scale_to_size(serving("org/m-3b")) == replace(slow, known=True)


def test_a_model_of_unknown_size_runs_at_the_engines_own_rates(config):
    found = rates.scale_to_size(config)
    assert (found.boot_s, found.tokens_per_s, found.scored_tokens_per_s, found.scaling) == (1.0, 100.0, 1000.0, 0.5)


@pytest.fixture
def ran(tmp_path, config, workload):
    """Write a run that ended as told."""
    plan = make(config, [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.STANDARD)
    clock = iter(range(1_000_000, 2_000_000))

    def _ran(name, measured, *, at=None, **changes):
        directory = RunDirectory(tmp_path / ".specdec" / name)
        here = environment.environment(config, "1")
        run_documents.write_plan(directory, replace(plan, config=changes.pop("config", plan.config)))
        run_documents.write_environment(directory, replace(here, **changes))
        run_documents.write_status(directory, Status(state=State.COMPLETE, rates=measured))
        os.utime(directory.root / "status.json", (at or next(clock),) * 2)

    return _ran


def measured(boot_s, tokens_per_s=10.0, scored=500.0):
    return Rates(boot_s=boot_s, tokens_per_s=tokens_per_s, scored_tokens_per_s=scored, scaling=0.5, source="from the capture itself")


def test_earlier_runs_of_the_same_config_on_this_machine_give_their_medians(ran, config, tmp_path):
    for index, boot_s in enumerate((70.0, 80.0, 300.0)):
        ran(f"run-{index}", measured(boot_s, tokens_per_s=boot_s / 10, scored=boot_s * 10))
    found = rates.expected_rates(config, tmp_path / ".specdec")
    assert (found.boot_s, found.tokens_per_s, found.scored_tokens_per_s) == (80.0, 8.0, 800.0)
    assert found.source == "from 3 earlier runs on this machine"


def test_the_newest_five_count(ran, config, tmp_path):
    for boot_s in range(10, 90, 10):
        ran(f"run-{boot_s}", measured(float(boot_s)))
    ran("oldest", measured(1000.0), at=5)
    assert rates.expected_rates(config, tmp_path / ".specdec").boot_s == 60.0


@pytest.mark.parametrize(
    "other", [{"config": "another"}, {"model": "another"}, {"engine": "another"}, {"cores": 999}, {"devices": ("H200",)}]
)
def test_what_ran_otherwise_tells_nothing(ran, config, tmp_path, other):
    ran("other", measured(300.0), **other)
    assert rates.expected_rates(config, tmp_path / ".specdec") == rates.scale_to_size(config)
    ran("alike", measured(70.0))
    assert rates.expected_rates(config, tmp_path / ".specdec").source == "from 1 earlier run on this machine"


def test_runs_that_were_cut_short_or_cannot_be_read_tell_nothing(ran, config, tmp_path):
    ran("cut", None)
    for name, text in (("torn", "{"), ("older", '{"schema": "urn:pytest-specdec:status:0"}')):
        ran(name, measured(300.0))
        (tmp_path / ".specdec" / name / "status.json").write_text(text)
    ran("planless", measured(300.0))
    (tmp_path / ".specdec" / "planless" / "plan.json").write_text("{}")
    assert rates.expected_rates(config, tmp_path / ".specdec") == rates.scale_to_size(config)
    assert rates.expected_rates(config, tmp_path / "nowhere") == rates.scale_to_size(config)
