"""What a count leaves open is asked again in the same run, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.captured import Calibrations
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.plan import ROUNDS, Boot, Judgement, Plan, Role
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from pytest_specdec.plugin import repeats
from tests.judge.captured_values import calibration

COMPLETE = Status(state=State.COMPLETE)


WORKLOAD = Workload(name="code", version=1, requests=(Request(id="code-1", route=Route.COMPLETIONS, body={"temperature": 0.0}),))


def cell(family):
    return Judgement(pair="v", workload=WORKLOAD.name, family=family, alpha=1e-5)


def a_plan():
    variant = Variant(name="v", draft=Draft(kind=DraftKind.NGRAM, tokens=3))
    return Plan(
        config="c",
        engine="reference",
        model="target",
        depth=Depth.STANDARD,
        pairs=(Pair(config="c", engine="reference", model="target", variant=variant),),
        workloads=(WORKLOAD,),
        judgements=(cell(Family.GREEDY),),
        boots=(
            Boot(index=0, role=Role.BASELINE, arm="baseline", answers=(WORKLOAD.name,)),
            Boot(index=1, role=Role.VARIANT, arm="v", answers=(WORKLOAD.name,)),
            Boot(index=2, role=Role.CONTROL, arm="control", answers=(WORKLOAD.name,)),
        ),
        estimate_s=1.0,
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with one greedy judgement, whose outcomes are given in turn."""
    directory = RunDirectory.create(tmp_path / "run")
    found = SimpleNamespace(
        plan=a_plan(),
        directory=directory,
        families=FAMILIES,
        settings=SimpleNamespace(deadline_s=None),
        noise=calibration(2000, noise=0.02),
        outcomes=[],
        captured=[],
        gates=("a gate",),
        read=[],
    )
    found.calibrations = lambda pair: Calibrations(decode=found.noise)
    monkeypatch.setattr(repeats.stored, "read", lambda *what, **more: found.read.append(what) or SimpleNamespace())
    monkeypatch.setattr(repeats, "replace", lambda value, **changes: SimpleNamespace(**changes))
    monkeypatch.setattr(repeats.registry, "judge_of", lambda row: judge)

    def judge(what):
        assert what.repeatable
        return SimpleNamespace(outcome=found.outcomes.pop(0))

    return found


def ask(run, *outcomes, status=COMPLETE):
    run.outcomes = list(outcomes)
    return repeats.ask_again(run, status, lambda: run.captured.append(run.plan) or COMPLETE)


@pytest.mark.parametrize(
    "outcomes, rounds",
    [
        ([Outcome.PASS], 0),
        ([Outcome.FAIL], 0),
        ([Outcome.SUSPICIOUS, Outcome.PASS], 1),
        ([Outcome.SUSPICIOUS] * (ROUNDS + 1), ROUNDS),
    ],
)
def test_what_is_open_is_asked_again_until_it_is_not_or_often_enough(run, outcomes, rounds):
    assert ask(run, *outcomes) is COMPLETE
    names = tuple(f"{WORKLOAD.name}.more{number + 1}" for number in range(rounds))
    assert run.plan.extensions == ({WORKLOAD.name: names} if names else {})
    assert len(run.captured) == rounds
    if rounds:
        assert run_documents.read_plan(run.directory) == run.plan


def test_what_is_open_is_judged_by_the_gates_of_the_final_verdict(run):
    """A gate on the noise takes half of the share."""
    ask(run, Outcome.PASS)
    assert [gates for *_, gates, _ in run.read] == [run.gates]


def test_nothing_is_asked_again_where_one_token_is_proof(run):
    run.noise = calibration(2000)
    ask(run)
    assert run.captured == []


@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run, "plan", replace(run.plan, depth=Depth.SMOKE)),
        lambda run: setattr(run.settings, "deadline_s", 60.0),
        lambda run: setattr(run, "plan", replace(run.plan, judgements=(cell(Family.SEEDS),))),
    ],
    ids=["smoke", "deadline", "another family"],
)
def test_nothing_is_asked_again_at_smoke_depth_under_a_deadline_or_of_other_families(run, change):
    change(run)
    ask(run, Outcome.SUSPICIOUS)
    assert run.captured == []


def test_an_incomplete_run_is_resumed_first(run):
    assert ask(run, status=Status(state=State.INCOMPLETE)).state is State.INCOMPLETE
    assert run.captured == []
