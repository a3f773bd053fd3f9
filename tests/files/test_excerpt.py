"""An excerpt of a run: what one judgement reads of it, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from pytest_specdec.errors import RunError
from pytest_specdec.files import captured, excerpt, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory, atomic_write
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.plan import Boot, Judgement, Role, ScoringTask
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.workload import Family, Request, Route, Workload

ARMS = ("baseline", "control", "v", "w")
NAMES = ("greedy-mixed", "drawn", "drawn.more1", "other", "noise.calibration")
PLAIN = Request(id="chat-00", route=Route.CHAT, body={"messages": [], "temperature": 1.0, "logprobs": True})


@pytest.fixture
def whole(plan):
    """The plan of a run with two variants, five workloads, a draft model and an old baseline."""
    (pair,), (chat,) = plan.pairs, plan.workloads
    others = [replace(chat, name=name) for name in NAMES[1:4]]
    calibration = Workload(name=NAMES[4], version=1, requests=(PLAIN,))
    judgements = [
        *plan.judgements,
        Judgement(pair="v", workload="drawn", family=Family.SAMPLING, alpha=1e-5),
        Judgement(pair="v", workload="greedy-mixed", family=Family.INVARIANTS, alpha=0.0),
        Judgement(pair="w", workload="other", family=Family.GREEDY, alpha=1e-5),
    ]
    tasks = tuple(ScoringTask(arm=arm, workload=name, top_tokens=2) for name in NAMES for arm in ARMS)
    roles = (Role.BASELINE, Role.CONTROL, Role.VARIANT, Role.VARIANT)
    boots = [Boot(index=index, role=roles[index], arm=arm, answers=NAMES) for index, arm in enumerate(ARMS)]
    boots[1] = replace(boots[1], scores=tasks)
    draft = Boot(index=4, role=Role.DRAFT, arm="org/d", scores=tasks)
    old = Boot(index=5, role=Role.OLD_BASELINE, arm="old.baseline", scores=tasks)
    second = replace(pair, variant=replace(pair.variant, name="w"))
    return replace(
        plan,
        pairs=(pair, second),
        workloads=(chat, *others, calibration),
        judgements=tuple(judgements),
        boots=(*boots, draft, old),
        extensions={"drawn": ("drawn.more1",)},
    )


@pytest.fixture
def run(directory, whole, transcript, scores, environment):
    """Its files, with nothing left out."""
    run_documents.write_plan(directory, whole)
    run_documents.write_environment(directory, environment)
    run_documents.write_status(directory, Status(state=State.COMPLETE))
    atomic_write(directory.config, "engine: {kind: reference}\n")
    atomic_write(directory.baselines / "c/machine.yaml", "gates: []\n")
    atomic_write(directory.server_log(0, "baseline"), "# python -m server\n")
    atomic_write(directory.variables, "{}")
    for arm in ARMS:
        run_documents.write_capabilities(directory, arm, Capabilities(vocabulary=7))
        for workload in whole.workloads:
            answers = transcript(arm, workload=workload.name, digest=workload.digest, server_failures=())
            transcripts.write(directory, replace(answers, answers=answers.answers[: len(workload.requests)]))
            for under in ("baseline", "org/d", "old.baseline"):
                transcripts.write_scores(directory, under, arm, workload.name, three(scores(arm, under)))
    return directory


def three(scores):
    """Return the scores with a position for each of the three tokens of an answer."""
    first, *others = scores
    return (replace(first, positions=(*first.positions, first.positions[0])), *others)


def excerpt_of(run, plan, judgement, tmp_path):
    """Write the excerpt, put the run away, and return the excerpt as a stranger has it."""
    excerpt.write(run, plan, judgement, RunDirectory(tmp_path / "repro/run"))
    shutil.move(run.root, tmp_path / "away")
    return RunDirectory.open(tmp_path / "repro/run")


def read(directory, plan, judgement):
    calibrations = captured.read_calibrations(directory, plan, judgement.pair)
    return captured.read(directory, plan, judgement, (), calibrations)


@pytest.mark.parametrize("index", [0, 1], ids=["greedy", "sampling"])
def test_a_judge_gets_what_it_got_of_the_run(run, whole, tmp_path, index):
    judgement = whole.judgements[index]
    before = read(run, whole, judgement)
    smaller = excerpt_of(run, whole, judgement, tmp_path)
    plan = run_documents.read_plan(smaller)
    assert read(smaller, plan, judgement) == before
    assert before.calibration
    assert before.draft_scores
    assert (plan.pairs, plan.judgements) == (whole.pairs[:1], (judgement,))


def test_a_judge_of_a_whole_run_gets_all_of_it_and_needs_no_scores(run, whole, tmp_path):
    judgement = whole.judgements[2]
    before = captured.read_run(run, whole, judgement)
    smaller = excerpt_of(run, whole, judgement, tmp_path)
    assert captured.read_run(smaller, run_documents.read_plan(smaller), judgement) == before
    assert len(before.parts) == len(NAMES)
    assert not (smaller.root / "scores").exists()


def test_other_variants_workloads_logs_and_digests_of_secrets_are_left_out(run, whole, tmp_path):
    smaller = excerpt_of(run, whole, whole.judgements[0], tmp_path)
    files = {path.relative_to(smaller.root).as_posix() for path in smaller.root.rglob("*") if path.is_file()}
    names = ("greedy-mixed", "noise.calibration")
    assert files == {
        *("plan.json", "config.yaml", "environment.json", "status.json", "baselines/c/machine.yaml"),
        *(f"capabilities/{arm}.json" for arm in ARMS),
        *(f"transcripts/{arm}/{name}.jsonl" for arm in ARMS[:3] for name in names),
        *(
            f"scores/{under.name}/{arm}/{name}.jsonl"
            for under in (tmp_path / "away/scores").iterdir()
            if under.name != "old.baseline"
            for arm in ARMS[:3]
            for name in names
        ),
    }


def test_a_run_without_a_calibration_keeps_every_workload_that_may_calibrate(run, whole, tmp_path):
    draws = replace(whole.workload("other"), requests=(PLAIN,))
    bare = replace(whole, workloads=tuple(draws if workload.name == "other" else workload for workload in whole.workloads[:4]))
    before = read(run, bare, bare.judgements[0])
    smaller = excerpt_of(run, bare, bare.judgements[0], tmp_path)
    assert read(smaller, run_documents.read_plan(smaller), bare.judgements[0]) == before
    assert before.calibration


def test_failures_count_over_the_whole_run(run, whole, transcript, tmp_path):
    """With those of an answer that was captured anew."""
    failing = transcript("v", workload="other", digest=whole.workload("other").digest)
    failing = replace(failing, server_failures=(replace(failing.server_failures[0], recurred=False),))
    transcripts.write(run, failing)
    transcripts.write(run, replace(failing, workload="other.earlier1"))
    before = read(run, whole, whole.judgements[0])
    smaller = excerpt_of(run, whole, whole.judgements[0], tmp_path)
    assert read(smaller, run_documents.read_plan(smaller), whole.judgements[0]) == before
    assert len(before.failures["v"].unexplained) == 2


def test_a_silent_route_brings_the_answers_of_the_other_arms(run, whole, transcript, tmp_path):
    silent = transcript("v", digest=whole.workload("greedy-mixed").digest, server_failures=(), silent_routes=(Route.CHAT,))
    transcripts.write(run, silent)
    before = read(run, whole, whole.judgements[0])
    smaller = excerpt_of(run, whole, whole.judgements[0], tmp_path)
    assert read(smaller, run_documents.read_plan(smaller), whole.judgements[0]) == before
    assert [each.arm for each in before.beside] == ["w"]


def test_a_torn_excerpt_is_no_run(run, whole, tmp_path):
    """The plan comes last: what a full disk left would else be replayed."""
    (tmp_path / "torn/status.json").mkdir(parents=True)
    with pytest.raises(RunError, match="cannot be written"):
        excerpt.write(run, whole, whole.judgements[0], RunDirectory(tmp_path / "torn"))
    with pytest.raises(RunError, match="no run directory"):
        RunDirectory.open(tmp_path / "torn")
