"""An unfinished capture is taken up again: what is whole stays as it is, byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import remaining, runner
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.files import run_documents, server_failures, transcripts
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts.context import EDGES, fitted

ARMS = ("baseline", "control", "draft-k3", "ngram-k3")


@pytest.fixture(params=[Placement.IN_TURN, Placement.SIDE_BY_SIDE])
def run(request, directory):
    """Capture into one directory, again with ``again``; how a server misbehaves is not part of the plan."""

    def _run(config, *workloads, depth=Depth.SMOKE, again=False):
        config = replace(config, placement=request.param)
        plan = make(config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in workloads], depth)
        return (runner.resume if again else runner.record)(config, plan, directory, deadline_s=None, tell=lambda _: None)

    yield _run
    assert not list((directory.root / "servers").glob("*.json"))


def kept(directory, *names):
    return {path: path.read_bytes() for name in names for path in directory.root.rglob(f"{name}.jsonl")}


def booted(directory):
    return {path.name: path.read_text().count("\nready\n") for path in (directory.root / "servers").glob("*.log")}


@pytest.mark.examples(1)
def test_scores_that_nobody_can_have_are_not_asked_for_again(run, config, workload, directory, with_args):
    unscored = with_args(config, "baseline", no_prompt_logprobs=True)
    first = run(with_args(unscored, "ngram-k3", boot="die"), workload(), workload("other"), depth=Depth.STANDARD)
    assert [(missing.arm, missing.workload) for missing in first.missing] == [("ngram-k3", "")]
    boots = booted(directory)
    status = run(unscored, workload(), workload("other"), depth=Depth.STANDARD, again=True)
    assert (status.state, status.missing) == (State.COMPLETE, ())
    after = booted(directory)
    assert {name for name in after if after[name] > boots.get(name, 0)} == {name for name in after if "ngram" in name}


@pytest.mark.examples(1)
def test_only_what_is_missing_is_captured(run, config, workload, directory, with_args):
    asked = (workload(draft_scored=True), workload("other"))
    first = run(with_args(config, "ngram-k3", boot="die"), *asked)
    assert [(missing.arm, missing.workload) for missing in first.missing] == [("ngram-k3", "")]
    before, boots = kept(directory, "greedy", "other"), booted(directory)
    status = run(config, *asked, again=True)
    assert (status.state, status.missing) == (State.COMPLETE, ())
    assert {path: path.read_bytes() for path in before} == before
    assert len(kept(directory, "greedy", "other")) == len(before) + 4
    after = booted(directory)
    assert {name for name in after if after[name] > boots.get(name, 0)} == {n for n in after if "ngram" in n or "control" in n}
    assert status.boots == first.boots + 2
    assert status.wall_s > first.wall_s
    assert {one.arm for one in status.served} == {"draft-k3", "ngram-k3", "control", "small"}


@pytest.mark.parametrize("answers, stays", [((), False), ((("baseline", "edges"),), True)])
def test_a_filled_workload_stays_as_long_as_answers_to_it_do(config, directory, answers, stays):
    """A server that is started again may have another context."""
    plan = make(config, [SelectedWorkload(workload=EDGES, family=Family.CONTEXT)], Depth.SMOKE)
    run_documents.write_workload(directory, fitted(EDGES, 256))
    reusable = remaining.ReusableResults(answers=frozenset(answers), scores=frozenset(), probes=frozenset())
    remaining.discard(directory, plan, reusable)
    assert (run_documents.read_workload(directory, plan, "edges") == fitted(EDGES, 256)) is stays


@pytest.mark.examples(2)
@pytest.mark.parametrize("struck", ["draft-k3", "baseline"])
def test_answers_beside_a_death_that_did_not_recur_are_captured_again(run, config, workload, directory, with_args, struck):
    """They are no finding and never a pass: another occasion may do without a death. Of two baselines either may be the one that dies."""
    fatal = with_args(config, struck, die_on="p1 of greedy", only_once=str(directory.root / "once"))
    asked = (workload(), workload("other"))
    assert run(fatal, *asked, depth=Depth.STANDARD).state is State.COMPLETE
    (arm,) = (each for each in ARMS if transcripts.read(directory, each, "greedy").server_failures)
    harmed, unharmed, boots = kept(directory, "greedy"), kept(directory, "other"), booted(directory)
    assert run(config, *asked, depth=Depth.STANDARD, again=True).state is State.COMPLETE
    assert transcripts.read(directory, arm, "greedy").server_failures == ()
    assert {path.parent.name for path, before in harmed.items() if "transcripts" in path.parts and path.read_bytes() != before} == {arm}
    assert {path: path.read_bytes() for path in unharmed} == unharmed
    again = {name.partition("-")[2] for name, count in booted(directory).items() if count > boots[name]}
    assert f"{arm}.log" in again
    assert "ngram-k3.log" not in again


@pytest.mark.examples(1)
def test_a_death_that_recurred_is_a_finding_and_stays(run, config, workload, directory, with_args):
    fatal = with_args(config, "draft-k3", die_on="p1 of greedy")
    run(fatal, workload(concurrency=1))
    boots = booted(directory)
    plan = run_documents.read_plan(directory)
    assert not remaining.has_answers_to_renew(directory, plan)
    run(config, workload(concurrency=1), again=True)
    assert booted(directory) == boots


def test_what_is_whole_boots_nothing(run, config, workload, directory):
    run(config, workload(), depth=Depth.STANDARD)
    boots = booted(directory)
    assert run(config, workload(), depth=Depth.STANDARD, again=True).state is State.COMPLETE
    assert booted(directory) == boots


def test_answers_too_long_to_be_scored_lack_no_scores(run, config, workload, directory):
    asked = workload(scored_to=1)
    run(config, asked)
    assert transcripts.read_scores(directory, "baseline", "draft-k3", "greedy") == ()
    boots = booted(directory)
    run(config, asked, again=True)
    assert booted(directory) == boots


@pytest.mark.examples(1)
def test_a_timed_workload_that_one_arm_lacks_is_answered_again_by_all(run, config, workload, directory, with_args):
    asked = (workload(), workload("speed", timed=True, passes=2, scored=False))
    run(with_args(config, "ngram-k3", boot="die"), *asked)
    greedy, speed = kept(directory, "greedy"), kept(directory, "speed")
    assert run(config, *asked, again=True).state is State.COMPLETE
    assert {path: path.read_bytes() for path in greedy} == greedy
    assert all(path.read_bytes() != before for path, before in speed.items())
    assert len(kept(directory, "speed")) == len(ARMS)


@pytest.mark.examples(2)
@pytest.mark.parametrize("broken", ["transcript", "scores"])
def test_a_torn_file_is_as_good_as_none(run, config, workload, directory, broken):
    run(config, workload())
    path = directory.transcript("draft-k3", "greedy") if broken == "transcript" else directory.scores("baseline", "draft-k3", "greedy")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert run(config, workload(), again=True).state is State.COMPLETE
    transcript, distribution = (
        transcripts.read(directory, "draft-k3", "greedy"),
        transcripts.read_scores(directory, "baseline", "draft-k3", "greedy"),
    )
    assert [tuple(p.token_id for p in score.positions) for score in distribution] == [
        answer.choice.token_ids for answer in transcript.answers
    ]


def test_scores_of_answers_that_are_gone_go_too(run, config, workload, directory):
    run(config, workload())
    plan = run_documents.read_plan(directory)
    directory.transcript("draft-k3", "greedy").unlink()
    found = remaining.reusable_results(directory, plan)
    assert ("draft-k3", "greedy") not in found.answers
    remaining.discard(directory, plan, found)
    assert not directory.scores("baseline", "draft-k3", "greedy").exists()
    assert directory.scores("baseline", "ngram-k3", "greedy").exists()


def test_servers_of_another_build_end_it_and_change_nothing(run, config, workload, directory, with_args):
    run(with_args(config, "ngram-k3", boot="die"), workload())
    environment = replace(run_documents.read_environment(directory), engine_version="1.2.2")
    run_documents.write_environment(directory, environment)
    before = kept(directory, "greedy")
    status = run(config, workload(), again=True)
    assert status.state is State.INCOMPLETE
    assert "another version" in status.error
    assert "1.2.2" in status.error
    assert kept(directory, "greedy") == before
    assert run_documents.read_environment(directory) == environment


KILLED = textwrap.dedent("""
    import sys
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from tests.capture import conftest
    from pytest_specdec.engines import registry as engines
    from pytest_specdec.capture.runner import record
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.files import codec
    from tests.capture import test_remaining

    engines.LOADED["fake"] = conftest.FakeEngine()
    root = Path({root!r})
    config, plan = test_remaining.planned(root, slow=60)

    def tell(progress):
        if progress.arm == "ngram-k3" and progress.doing == "answering":
            print("answering", flush=True)

    record(config, plan, RunDirectory.create(root / "runs" / "killed"), deadline_s=None, tell=tell)
""")


def planned(root, **args):
    from pytest_specdec.config.config import Config, EngineSettings, Limits, VariantSettings
    from pytest_specdec.model.workload import Request, Route, Workload
    from tests.capture import conftest

    variants = (
        VariantSettings(name="draft-k3", args={"speculative-config": conftest.DRAFT}),
        VariantSettings(name="ngram-k3", args={"speculative-config": conftest.NGRAM, **args}),
    )
    engine = EngineSettings(kind="fake", model="big")
    config = Config(name="fake", path=root / "fake.yaml", text="", engine=engine, variants=variants, limits=Limits(boot_s=20.0, stop_s=1.0))
    asked = tuple(Request(id=f"p{i}", route=Route.COMPLETIONS, body={"prompt": "p", "max_tokens": 2}) for i in range(4))
    return config, make(
        config, [SelectedWorkload(workload=Workload(name="w", version=1, requests=asked), family=Family.GREEDY)], Depth.SMOKE
    )


def test_a_capture_that_was_killed_is_taken_up_again(tmp_path):
    script = KILLED.format(here=str(Path(__file__).parent), root=str(tmp_path))
    capture = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert capture.stdout.readline() == "answering\n", capture.communicate()
    capture.send_signal(signal.SIGKILL)
    capture.communicate(timeout=30)
    from pytest_specdec.files.run_directory import RunDirectory

    directory = RunDirectory.open(tmp_path / "runs" / "killed")
    assert run_documents.read_status(directory).state is State.RUNNING
    first = directory.transcript("draft-k3", "w").read_bytes()
    config, plan = planned(tmp_path)
    status = runner.resume(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert (status.state, status.boots) == (State.COMPLETE, 2)
    assert directory.transcript("draft-k3", "w").read_bytes() == first


@pytest.mark.examples(1)
def test_a_death_is_not_undone_by_another_occasion(run, config, workload, directory, with_args):
    """The workload is whole after the second one; what befell the variant in the first is still counted."""
    fatal = with_args(config, "draft-k3", die_on="p1 of greedy", only_once=str(directory.root / "once"))
    run(fatal, workload(concurrency=1))
    run(config, workload(concurrency=1), again=True)
    assert transcripts.read(directory, "draft-k3", "greedy").server_failures == ()
    found = server_failures.read(directory, run_documents.read_plan(directory), "draft-k3")["draft-k3"]
    assert (found.unexplained, found.requests) == (("greedy.earlier1: died on p1",), 10)


@pytest.mark.examples(1)
def test_scattered_failures_that_are_a_finding_stay(run, config, workload, directory, with_args):
    broken = with_args(config, "draft-k3", break_on=" of ", numbers="2,6,10", tally=str(directory.root / "tally"))
    asked = [workload(name, requests=3, concurrency=1) for name in ("a", "b", "c")]
    run(broken, *asked)
    assert len(server_failures.read(directory, run_documents.read_plan(directory), "draft-k3")["draft-k3"].unexplained) == 3
    boots = booted(directory)
    run(config, *asked, again=True)
    assert booted(directory) == boots
