"""The runner: a plan carried out, and a run directory left whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import devices, environment, locks, runner, sequential
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.progress import Reporter
from pytest_specdec.capture.rates import expected_rates
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.server import orphans, readiness, watchdog
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import BootError, CaptureError
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import liveness
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import FailureKind, ScoringRoute, SpecCounters
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.prompts.context import EDGES
from pytest_specdec.prompts.long import LONG_CONTEXTS
from tests.capture.conftest import FakeEngine


@pytest.fixture
def run(directory, monkeypatch):
    """Plan and record; afterwards nothing is left running."""
    mark = f"of-{os.getpid()}-{directory.root}"
    monkeypatch.setenv("MARK_OF_THIS_TEST", mark)
    said = []

    def _run(config, *workloads, depth=Depth.SMOKE, only=("draft-k3",), deadline_s=None):
        plan = make(config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in workloads], depth, only)
        _run.plan = plan
        return record(config, plan, directory, deadline_s=deadline_s, tell=said.append)

    _run.said, _run.directory = said, directory
    yield _run
    assert [pid for pid in processes() if f"MARK_OF_THIS_TEST={mark}" in variables_of(pid)] == []
    assert list((directory.root / "servers").glob("*.json")) == []


def processes():
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def variables_of(pid):
    try:
        return Path("/proc", pid, "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []


def test_a_group_looks_for_servers_left_beside_the_run_of_its_matrix(config, workload, tmp_path, monkeypatch):
    def look(*folders, held):
        msg = f"looked in {[folder.name for folder in folders]} but for {held.name}"
        raise CaptureError(msg)

    monkeypatch.setattr(orphans, "sweep", look)
    plan = make(config, [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.SMOKE, ("draft-k3",))
    directory = RunDirectory.create(tmp_path / "runs/whole/groups/on")
    (tmp_path / "runs/whole/matrix.json").touch()
    status = record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    assert status.error.startswith("looked in ['runs'] but for on")


@pytest.mark.parametrize("limit, lengths", [(200, {"limit-exact": 176, "limit-plus-1": 177}), (None, {})])
def test_prompts_up_to_the_context_are_filled_from_what_the_server_tells(run, config, directory, with_args, limit, lengths):
    told = with_args(config, **({"max_model_len": limit} if limit else {}))
    status = run(told, EDGES)
    assert (status.state, status.missing) == (State.COMPLETE, ())
    for arm in ("baseline", "control", "draft-k3"):
        transcript = transcripts.read(directory, arm, "edges")
        assert transcript.digest == run.plan.workload("edges").digest
        assert {answer.request_id: len(answer.prompt_token_ids) for answer in transcript.answers} == lengths
    assert run_documents.read_capabilities(directory)["baseline"].context_tokens == (limit or 0)
    sent = run_documents.read_workload(directory, run.plan, "edges")
    assert {request.id: len(request.body["prompt"]) for request in sent.requests if limit} == lengths
    assert sent.digest != transcript.digest if limit else sent == run.plan.workload("edges")


@pytest.mark.parametrize("limit, lengths", [(4096, [1248] * 4), (None, [])])
def test_long_prompts_are_texts_where_no_server_makes_ids(run, config, directory, with_args, limit, lengths):
    """An eighth of 4,096 tokens without those of the answer, at three characters a token."""
    status = run(with_args(config, **({"max_model_len": limit} if limit else {})), replace(LONG_CONTEXTS.at(Depth.SMOKE), stream=False))
    assert (status.state, status.missing, status.restarts) == (State.COMPLETE, (), 0)
    sent = run_documents.read_workload(directory, run.plan, "long-contexts")
    assert [len(request.body["prompt"]) for request in sent.requests if isinstance(request.body["prompt"], str)] == lengths
    assert all(answer.ok for answer in transcripts.read(directory, "draft-k3", "long-contexts").answers)


def test_prompts_up_to_the_context_are_the_same_for_arms_of_different_limits(run, config, directory, with_args):
    """The one that answers first decides: at smoke depth in turn it is the variant."""
    unequal = replace(with_args(with_args(config, max_model_len=200), "draft-k3", max_model_len=150), placement=Placement.IN_TURN)
    run(unequal, EDGES)
    judged = captured.read(directory, run.plan, run.plan.judgements[0], ())
    asked = {request.id: len(request.body["prompt"]) for request in judged.workload.requests}
    assert asked == {"limit-exact": 126, "limit-plus-1": 127}
    for answered in (judged.baseline, judged.control, judged.speculative):
        assert {answer.request_id: len(answer.prompt_token_ids) for answer in answered.answers} == asked


def logs(directory):
    return sorted(path.name for path in (directory.root / "servers").glob("*.log"))


def starts(directory, name):
    return (directory.root / "servers" / name).read_text().count("\nready\n")


def test_in_turn_two_variants_and_a_draft_take_five_boots(run, config, workload, directory):
    sampled = workload("sampled", draft_scored=True)
    status = run(config, workload(), sampled, workload("speed", timed=True, passes=2, scored=False), depth=Depth.STANDARD, only=None)
    assert status == run_documents.read_status(directory)
    assert (status.state, status.missing, status.boots, status.restarts) == (State.COMPLETE, (), 5, 0)
    assert logs(directory) == ["0-baseline.log", "1-draft-k3.log", "2-ngram-k3.log", "3-control.log", "4-small.log"]


def test_at_smoke_depth_one_baseline_boot_does_all(run, config, workload, directory):
    status = run(config, workload("sampled", draft_scored=True), only=None)
    assert (status.state, status.boots) == (State.COMPLETE, 4)
    assert logs(directory) == ["0-draft-k3.log", "1-ngram-k3.log", "2-control.log", "3-small.log"]
    assert transcripts.read(directory, "baseline", "sampled").boot == transcripts.read(directory, "control", "sampled").boot == 2


def test_every_answer_is_there_and_scored_token_by_token(run, config, workload, directory):
    run(config, workload(draft_scored=True))
    for arm in ("baseline", "control", "draft-k3"):
        transcript = transcripts.read(directory, arm, "greedy")
        assert transcript.digest == run.plan.workload("greedy").digest
        assert [answer.request_id for answer in transcript.answers] == [f"p{i}" for i in range(5)]
        assert all(answer.ok and len(answer.choice.token_ids) == 6 for answer in transcript.answers)
        scored = transcripts.read_scores(directory, "baseline", arm, "greedy")
        assert [[p.token_id for p in score.positions] for score in scored] == [list(a.choice.token_ids) for a in transcript.answers]
    assert {score.under for arm in ("draft-k3", "control") for score in transcripts.read_scores(directory, "small", arm, "greedy")} == {
        "small"
    }


def test_counters_windows_and_tokens_agree(run, config, workload, directory):
    run(config, workload(), workload("streamed", stream=True))
    for name in ("greedy", "streamed"):
        transcript = transcripts.read(directory, "draft-k3", name)
        windows = [answer.choice.windows for answer in transcript.answers]
        assert transcript.counters.drafts == sum(len(w) - 1 for w in windows)
        assert transcript.counters.accepted_tokens == sum(step - 1 for w in windows for step in w[1:])
        assert [sum(w) for w in windows] == [8] * 5  # 1 3 1 3: six tokens, the last window cut by the limit
    assert transcripts.read(directory, "baseline", "greedy").counters is None


def test_a_timed_workload_keeps_its_passes_and_drops_the_warm_up(run, config, workload, directory):
    run(config, workload("speed", requests=2, timed=True, passes=3, scored=False, concurrency=1))
    transcript = transcripts.read(directory, "draft-k3", "speed")
    assert [answer.key for answer in transcript.answers] == [(f"p{i}", p) for p in range(3) for i in range(2)]
    assert transcript.counters.drafts == 3 * 6
    asked = (directory.root / "servers" / "0-draft-k3.log").read_text().count("\nasked p1 of speed")
    assert asked == 1 + 3
    assert all(answer.timing.sent_s <= answer.timing.first_s <= answer.timing.done_s for answer in transcript.answers)
    assert all(1 <= answer.timing.first_tokens <= answer.usage.completion_tokens for answer in transcript.answers)


def test_what_was_found_of_each_arm_is_written(run, config, workload, directory, monkeypatch):
    monkeypatch.setattr(VllmDialect, "penalty_window", PenaltyWindow(prompt=True, last_tokens=9))
    run(config, workload())
    found = run_documents.read_capabilities(directory)
    assert set(found) == {"baseline", "draft-k3"}
    assert found["baseline"].vocabulary == 40
    assert found["baseline"].penalty_window == PenaltyWindow(prompt=True, last_tokens=9)
    assert found["baseline"].support["token_ids"] is FeatureSupport.HONOURED
    assert found["baseline"].support["top_k"] is FeatureSupport.HONOURED
    assert found["baseline"].support["json_schema"] is FeatureSupport.IGNORED
    assert found["baseline"].support["stop"] is FeatureSupport.IGNORED
    assert found["baseline"].support["seed"] is FeatureSupport.UNKNOWN
    assert run_documents.read_environment(directory).engine_version == "1.2.3"
    assert directory.config.read_text() == config.text


def test_progress_is_told_and_written(run, config, workload, directory):
    run(config, workload(), only=None)
    written = run_documents.read_progress(directory)
    assert [(p.boot, p.doing, p.arm, p.done) for p in written] == [(p.boot, p.doing, p.arm, p.done) for p in run.said]
    assert {p.doing for p in written} == {"booting", "probing", "answering", "scoring", "stopping"}
    assert any(p.done == p.of == 5 and p.tokens == 30 for p in written)
    assert all(p.remaining_s is not None for p in written)


def test_a_capture_leaves_the_rates_that_the_next_estimate_rests_on(run, config, workload, directory, with_args):
    usual = run(config, workload("drawn", draft_scored=True), depth=Depth.STANDARD)
    assert usual.rates.source == "from the capture itself"
    assert 0 < usual.rates.boot_s == round(usual.rates.boot_s, 1)
    readiness = sorted(served.readiness_s for served in usual.served)
    assert readiness[0] <= usual.rates.boot_s + 0.05
    assert usual.rates.tokens_per_s != run.plan.rates.tokens_per_s
    assert usual.rates.scored_tokens_per_s != run.plan.rates.scored_tokens_per_s
    found = expected_rates(config, directory.root.parent)
    assert (found.boot_s, found.source) == (usual.rates.boot_s, "from 1 earlier run on this machine")


def test_a_capture_that_does_not_get_half_way_leaves_none(run, config, workload, with_args):
    assert run(with_args(config, "baseline", boot="die"), workload(), depth=Depth.STANDARD).rates is None


def test_a_variant_that_does_not_boot_does_not_lose_the_others(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", boot="die"), workload(), only=None)
    assert (status.state, status.boots, status.error) == (State.INCOMPLETE, 2, "")
    (missing,) = status.missing
    assert (missing.arm, missing.workload) == ("draft-k3", "")
    assert "died at boot: exit code 3" in missing.reason
    assert "fake_server.py big" in missing.reason
    assert "no such model" in missing.reason
    assert not status.lasting
    assert transcripts.read(directory, "ngram-k3", "greedy") is not None
    assert transcripts.read_scores(directory, "baseline", "ngram-k3", "greedy")


def test_a_variant_that_dies_of_every_request_is_a_finding_from_its_first_on(run, config, workload, directory, with_args):
    """As vLLM 0.30 on a CPU, at its first drafting step: the one-token request of its boot is one like any other."""
    status = run(with_args(config, "draft-k3", die_on="e"), workload(concurrency=1))
    assert (status.state, status.missing, status.boots) == (State.COMPLETE, (), 2)
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    first, *_ = transcript.server_failures
    assert (first.request_id, first.ending, first.recurred) == ("p0", FailureKind.DIED, True)
    assert "ready" not in {failure.request_id for failure in transcript.server_failures}
    verdict = liveness.judge(captured.read(directory, run.plan, run.plan.judgements[0], ()))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the server dies on a request")
    assert verdict.headline == "the server dies on request p0, alone on a fresh server too; the baseline answers it"


@pytest.mark.parametrize("arm, args", [("baseline", {"die_on": "e"}), ("draft-k3", {"die_on": "Hello", "boot": "die"})])
def test_other_deaths_at_a_boot_are_no_finding(run, config, workload, with_args, arm, args):
    """Without a baseline nothing is judged, and a server that never comes up was asked nothing."""
    status = run(with_args(config, arm, **args), workload())
    assert status.state is State.INCOMPLETE
    assert "died at boot" in {missing.arm: missing.reason for missing in status.missing}[arm]


def test_a_command_line_that_a_server_refuses_is_no_matter_of_a_retry(run, config, workload, directory, with_args):
    """argparse ends with 2; the other variants are captured all the same."""
    status = run(with_args(config, "draft-k3", unheard_of="1"), workload(), only=None)
    assert (status.state, status.error, status.lasting) == (State.INCOMPLETE, "", True)
    (missing,) = status.missing
    assert "died at boot: exit code 2" in missing.reason
    assert transcripts.read(directory, "ngram-k3", "greedy") is not None


def test_a_variant_that_does_not_boot_costs_no_boot_that_only_it_needs(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", boot="die"), workload(draft_scored=True), only=None)
    assert logs(directory) == ["0-draft-k3.log", "1-ngram-k3.log", "2-control.log"]
    reasons = {missing.arm: missing.reason for missing in status.missing}
    assert "died at boot" in reasons["draft-k3"]
    assert reasons["control"].endswith("not booted: draft-k3 did not come up, and nothing else needs the draft")


def test_without_a_variant_that_boots_no_control_is_booted(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", boot="die"), workload(draft_scored=True), depth=Depth.STANDARD)
    assert logs(directory) == ["0-baseline.log", "1-draft-k3.log"]
    (control,) = (missing.reason for missing in status.missing if missing.arm == "control")
    assert control == "not booted: draft-k3 did not come up, and nothing else needs the control"


def test_a_variant_that_fails_after_answers_has_come_up_so_that_these_are_scored(run, config, workload, directory, monkeypatch):
    """As when another process takes its port in mid-run: the control scores the answers that are written."""
    check_identity = ArmServer.check_identity

    def check(arm):
        if "draft-k3" in arm.recipe.log.name and transcripts.read(directory, "draft-k3", "greedy") is not None:
            what = "port 8000 is answered by another process than the server"
            raise BootError(what)
        check_identity(arm)

    monkeypatch.setattr(ArmServer, "check_identity", check)
    status = run(config, workload(), workload("next"), depth=Depth.STANDARD)
    assert [(missing.arm, missing.workload) for missing in status.missing] == [("draft-k3", "next")]
    assert status.missing[0].reason.startswith("port 8000 is answered by another process")
    assert transcripts.read_scores(directory, "baseline", "draft-k3", "greedy")


def test_without_a_baseline_everything_is_missing(run, config, workload, with_args):
    status = run(with_args(config, "baseline", boot="die"), workload(), depth=Depth.STANDARD)
    assert {missing.arm for missing in status.missing} == {"baseline", "draft-k3", "control"}
    assert status.boots == 0
    assert "died at boot" in status.error


@pytest.mark.parametrize("reply, reason", [
    (readiness.Reply(status=503, text=""), "GET /health is answered with 503"),
    (readiness.Reply(status=404, text=""), "GET /health is answered with 404"),
    (readiness.Reply(status=None, text="", late=True), "it takes connections, and does not answer GET /health"),
])  # fmt: skip
def test_a_server_that_listens_and_is_not_healthy_says_so(run, config, workload, monkeypatch, reply, reason):
    monkeypatch.setattr(readiness, "look", lambda *_, **__: reply)
    config = replace(config, limits=replace(config.limits, boot_s=0.5))
    assert f"was not ready after 0.5 s ({reason})" in run(config, workload()).missing[0].reason


def test_a_server_that_never_gets_ready_is_ended(run, config, workload, with_args):
    config = replace(with_args(config, "draft-k3", boot="never"), limits=replace(config.limits, boot_s=0.5))
    status = run(with_args(config, "baseline", boot="never"), workload())
    assert "was not ready after 0.5 s (nothing listens yet)" in status.missing[0].reason
    assert "limits.boot_s" in status.missing[0].reason


def test_a_server_that_refuses_a_token_is_not_ready(run, config, workload, with_args):
    config = replace(with_args(config, boot="refuse"), limits=replace(config.limits, boot_s=1.0))
    status = run(config, workload())
    assert "a one-token completion got 400: not supported" in status.missing[0].reason


def test_a_healthy_server_without_its_model_thread_is_not_ready_and_names_the_exception(run, config, workload, with_args):
    """As mlx-lm before 0.32: the thread that loads the model dies, and the access log runs on."""
    thread = "Traceback (most recent call last):\n  File \"server.py\", line 9, in _generate\nKeyError: 'rope_theta'"
    config = replace(with_args(config, hang_on="Hello", say=thread + "\nGET /health" * 30), limits=replace(config.limits, boot_s=0.5))
    status = run(config, workload())
    assert "first exception in its log: KeyError: 'rope_theta' (server.py:9, in _generate)\n" in status.missing[0].reason
    assert "was not ready after 0.5 s (a one-token completion got no answer" in status.missing[0].reason


def test_a_request_that_kills_the_server_again_is_named_and_the_rest_goes_on(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", die_on="p2 of greedy"), workload(), workload("next"))
    assert (status.state, status.boots, status.restarts) == (State.COMPLETE, 2, 2)
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [answer.status for answer in transcript.answers] == [200, 200, None, 200, 200]
    assert "failed again" in transcript.answers[2].error
    named = [server_failure for server_failure in transcript.server_failures if server_failure.recurred]
    assert [(c.request_id, c.ending, c.process) for c in named] == [("p2", FailureKind.DIED, "server, killed by SIGKILL, exit code -9")]
    assert named[0].log_tail[-1] == "something terrible happened"
    after = transcripts.read(directory, "draft-k3", "next")
    assert transcript.restarts + after.restarts == 2, "the second is the next workload's where all others were answered by then"
    assert transcript.counters.drafts == sum(len(a.choice.windows) - 1 for a in transcript.answers if a.ok)
    assert starts(directory, "0-draft-k3.log") == 3
    assert after.server_failures == ()
    assert transcripts.read(directory, "baseline", "greedy").server_failures == ()


def test_a_death_that_does_not_recur_is_a_server_failure_with_an_answer(run, config, workload, directory, with_args):
    once = str(directory.root / "once")
    status = run(with_args(config, "draft-k3", die_on="p2 of greedy", only_once=once), workload(concurrency=1))
    assert (status.state, status.boots, status.restarts) == (State.COMPLETE, 2, 1)
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert all(answer.ok for answer in transcript.answers)
    assert [(c.request_id, c.ending, c.recurred) for c in transcript.server_failures] == [("p2", FailureKind.DIED, False)]


def test_a_request_that_hangs_is_found_by_its_deadline(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", hang_on="p1 of greedy"), workload(concurrency=1, deadline_s=0.7))
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.ending, c.recurred) for c in transcript.server_failures] == [("p1", FailureKind.HUNG, True)]
    assert "no answer within 0.7 s" in transcript.answers[1].error
    assert [answer.status for answer in transcript.answers] == [200, None, 200, 200, 200]
    assert status.restarts == 2


def test_an_internal_error_is_asked_again_alone_and_the_living_server_goes_on(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", break_on="p1 of greedy"), workload(concurrency=1))
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [(c.request_id, c.ending, c.recurred) for c in transcript.server_failures] == [("p1", FailureKind.ERROR, True)]
    assert transcript.server_failures[0].process == "server still running, internal failure"
    assert status.restarts == 1


def test_a_refusal_is_an_answer(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", refuse_on="p1 of greedy"), workload())
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert (transcript.answers[1].status, transcript.answers[1].error) == (400, "not supported")
    assert (status.state, transcript.server_failures) == (State.COMPLETE, ())


def test_a_server_that_dies_of_everything_is_restarted_twice_a_workload_and_no_more(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", die_on="of greedy"), workload(concurrency=1), workload("next"))
    assert (status.boots, status.restarts) == (2, 3)
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert [server_failure.recurred for server_failure in transcript.server_failures] == [True, None]
    assert {answer.status for answer in transcript.answers} == {None}
    assert "no restart left: 2 used, 2 of them by this workload" in transcript.answers[4].error
    assert all(answer.ok for answer in transcripts.read(directory, "draft-k3", "next").answers)
    assert status.missing == ()
    assert run_documents.read_capabilities(directory)["baseline"]


def test_the_deadline_keeps_what_is_there(run, config, workload, directory, monkeypatch):
    """Time is up after the third answer of the variant."""
    over = []
    monkeypatch.setattr(Reporter, "left_s", property(lambda _: 0.0 if over else 1e6))
    monkeypatch.setattr(Reporter, "update", lambda _, done, __, **___: over.append(done) if done == 3 else None)
    status = run(config, workload(requests=30), deadline_s=1e6)
    assert status.state is State.INCOMPLETE
    assert transcripts.read(directory, "draft-k3", "greedy") is None
    partial = transcripts.read(directory, "draft-k3", "greedy.partial")
    assert 3 <= len([answer for answer in partial.answers if answer.ok]) <= 6
    assert "used up" in partial.answers[-1].error
    assert {missing.arm for missing in status.missing} == {"draft-k3", "baseline", "control"}
    assert "the time given to the capture is used up" in status.error


def test_no_server_is_started_after_the_deadline(run, config, workload, directory):
    status = run(config, workload(), deadline_s=-1.0)
    assert (status.boots, logs(directory)) == (0, [])
    assert "used up" in status.missing[0].reason


def test_answers_without_token_ids_leave_scores_missing_with_the_reason(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft-k3", no_token_ids=True), workload())
    assert [(missing.arm, missing.workload) for missing in status.missing] == [("draft-k3", "greedy")]
    assert "no scores under baseline: 5 of 5 answers are not scored: no token ids" in status.missing[0].reason


@pytest.mark.parametrize(
    "how, support", [({"no_prompt_logprobs": True}, FeatureSupport.IGNORED), ({"refuse_fields": "prompt_logprobs"}, FeatureSupport.REFUSED)]
)
def test_a_baseline_without_prompt_logprobs_has_nothing_missing(run, config, workload, directory, with_args, how, support):
    """Its capability probe says that no score is to be had: the capture does not fail on that, and asks for none."""
    status = run(with_args(config, "baseline", **how), workload(draft_scored=True))
    assert (status.state, status.missing) == (State.COMPLETE, ())
    assert (
        transcripts.read_scores(directory, "baseline", "draft-k3", "greedy")
        == transcripts.read_scores(directory, "small", "draft-k3", "greedy")
        == ()
    )
    assert run_documents.read_capabilities(directory)["baseline"].support["prompt_logprobs"] is support


def test_where_the_probe_finds_no_prompt_logprobs_continuations_score(run, config, workload, directory, with_args):
    config = with_args(config, top_logprobs=True)
    status = run(with_args(config, "baseline", no_prompt_logprobs=True), workload(draft_scored=True))
    assert (status.state, status.missing) == (State.COMPLETE, ())
    assert run.plan.route is ScoringRoute.PROMPT_LOGPROBS
    assert any(step.doing.startswith("probed: ") and "one-token continuations" in step.doing for step in run.said)
    assert run_documents.read_capabilities(directory)["baseline"].route is ScoringRoute.CONTINUATIONS
    for under, arm in (("baseline", "draft-k3"), ("baseline", "control"), ("small", "draft-k3")):
        (first, *_) = transcripts.read_scores(directory, under, arm, "greedy")
        assert [(p.top_ids[0], p.logprob) for p in first.positions] == [(p.token_id, -0.1) for p in first.positions]


def test_continuations_of_something_else_are_no_route(run, config, workload, directory, with_args):
    config = with_args(config, top_logprobs=True, ignore_ids=True, no_prompt_logprobs=True)
    status = run(config, workload())
    assert run_documents.read_capabilities(directory)["baseline"].support["continuations"] is FeatureSupport.IGNORED
    assert run_documents.unscorable_reason(directory) == "prompt_logprobs ignored, continuations ignored"
    assert status.missing == ()


@pytest.mark.examples(2)
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("route", ScoringRoute)
def test_what_reported_log_probabilities_are_of_is_found_by_either_route(run, config, workload, directory, with_args, processed, route):
    config = with_args(config, top_logprobs=True, no_prompt_logprobs=route is ScoringRoute.CONTINUATIONS or None)
    run(with_args(config, processed_logprobs=processed or None), workload(requests=1))
    found = run_documents.read_capabilities(directory)["baseline"]
    assert (found.route, found.raw_logprobs) == (route, not processed)


def test_a_server_that_dies_of_scoring_costs_the_scores_only(run, config, workload, directory, with_args):
    status = run(with_args(config, "draft", die_on_scoring=True), workload(draft_scored=True, requests=1))
    assert [missing.workload for missing in status.missing] == ["greedy", "greedy"]
    assert "no scores under small" in status.missing[0].reason
    assert status.restarts <= 3
    assert transcripts.read_scores(directory, "baseline", "draft-k3", "greedy")[0].positions


def test_secrets_reach_no_artifact(run, config, workload, with_args, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sesame-open-now")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    config = with_args(config, print_secrets=True)
    config = replace(config, engine=replace(config.engine, api_key="${MY_KEY}", env={"NOTE": "${HF_TOKEN}"}))
    run(with_args(config, "draft-k3", boot="die"), workload())
    text = "".join(path.read_text() for path in run.directory.root.rglob("*") if path.is_file())
    assert "the key is ***" in text
    assert "sesame-open-now" not in text
    assert "hf_abcdefgh" not in text


def test_a_variable_that_is_not_set_is_named_before_anything_boots(run, config, workload, directory):
    config = replace(config, engine=replace(config.engine, env={"TOKEN": "${NO_SUCH_VARIABLE}"}))
    with pytest.raises(Exception, match="NO_SUCH_VARIABLE"):
        run(config, workload())
    assert logs(directory) == []


INTERRUPTED = textwrap.dedent("""
    import os, signal, sys, threading
    # A shell starts what it puts into the background with SIGINT ignored, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, {here!r})
    from pathlib import Path
    import conftest
    from pytest_specdec.engines import registry as engines
    from pytest_specdec.capture.runner import record
    from pytest_specdec.capture.planner import SelectedWorkload, make
    from pytest_specdec.config.config import Config, EngineSettings, Limits, VariantSettings
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload

    engines.LOADED["fake"] = conftest.FakeEngine()
    root = Path({root!r})
    config = Config(name="fake", path=root / "fake.yaml", text="", engine=EngineSettings(kind="fake", model="big"),
        variants=(VariantSettings(name="v", args={{"speculative-config": conftest.DRAFT, "slow": 60, "grandchild": "own-session"}}),),
        limits=Limits(boot_s=20.0, stop_s=20.0))
    asked = tuple(Request(id=f"p{{i}}", route=Route.COMPLETIONS, body={{"prompt": "p", "max_tokens": 2}}) for i in range(4))
    plan = make(config, [SelectedWorkload(workload=Workload(name="w", version=1, requests=asked), family=Family.GREEDY)], Depth.SMOKE)

    def tell(progress):
        if progress.doing == "answering":
            print("answering", flush=True)

    record(config, plan, RunDirectory.create(root / "runs" / "now"), deadline_s=None, tell=tell)
""")


@pytest.mark.examples(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_do_not_outlive_a_capture_that_is_ended(number, tmp_path):
    """Even SIGKILL: then the watchdog ends them, a grandchild in a session of its own included."""
    script = INTERRUPTED.format(here=str(Path(__file__).parent), root=str(tmp_path))
    capture = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert capture.stdout.readline() == "answering\n"
    note = next((tmp_path / "runs" / "now" / "servers").glob("*.json")).read_text()
    marker = note.partition('"marker": "')[2][:32]
    assert len(watchdog.members(-1, -1, marker)) == 2
    capture.send_signal(number)
    _, errors = capture.communicate(timeout=30)
    assert gone(marker)
    if number == signal.SIGKILL:
        return
    assert capture.returncode == (-signal.SIGINT if number == signal.SIGINT else 143), errors
    status = (tmp_path / "runs" / "now" / "status.json").read_text()
    assert '"state": "incomplete"' in status
    assert ("KeyboardInterrupt" if number == signal.SIGINT else "SystemExit") in status


def test_sigterm_raises_what_the_outermost_block_says():
    """A session ends by pytest.exit also while the runner, which would raise SystemExit, is at work."""
    standing = signal.getsignal(signal.SIGTERM)
    with runner.raise_on_sigterm(KeyError("session")), runner.raise_on_sigterm(), pytest.raises(KeyError, match="session"):
        signal.raise_signal(signal.SIGTERM)
    with runner.raise_on_sigterm(), pytest.raises(SystemExit, match="143"):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is standing


def gone(marker):
    for _ in range(200):
        if not watchdog.members(-1, -1, marker):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "found,visible,names",
    [
        ((), "0", ()),
        (("A", "B"), None, ("0", "1")),
        (("A", "B"), "1, 0", ("0", "1")),
        (("A",), "", ()),
        (("A",), "GPU-7", ("GPU-7",)),
        (("A", "B"), "-1", ()),
        (("A", "B"), "1,-1,0", ("1",)),
    ],
)
def test_the_locked_devices_are_the_visible_ones(config, found, visible, names, monkeypatch):
    held = []

    @contextmanager
    def hold(name, *_):
        held.append(name)
        yield

    monkeypatch.setattr(locks, "device", hold)
    monkeypatch.setattr(environment, "devices", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with devices.hold(config, 0.0, lambda: None):
        assert tuple(held) == names


def test_servers_are_started_on_the_devices_held_and_the_run_names_those_of_the_machine(run, config, directory, monkeypatch):
    """A baseline file is of the machine, whatever devices a capture got."""
    monkeypatch.setattr(environment, "devices", lambda: ("A", "A"))
    monkeypatch.setattr(environment, "uuids", lambda: ("GPU-a", "GPU-b"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(FakeEngine, "footprint", lambda *_, **__: Footprint(device_share=0.5))
    visible = []
    monkeypatch.setattr(sequential, "run", lambda *_: visible.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    with locks.device("GPU-a", 0.0, lambda: None):
        run(config, EDGES)
    assert (visible, run_documents.read_environment(directory).devices) == (["1"], ("A", "A"))


SAID = "INFO [metrics.py:86] SpecDecoding metrics: Mean acceptance length: 2.50, Accepted: 3 tokens, Drafted: 6 tokens, "
SAID += "Per-position acceptance rate: 1.000, 0.500, 0.000"


def test_counters_that_no_page_has_are_read_from_the_log_and_a_silent_one_counts_nothing(
    run, config, workload, directory, with_args, tmp_path, monkeypatch
):
    """A log comes late: a workload during which it says nothing has no counters, which is not the same as none drafted."""
    (tmp_path / "page").write_text("vllm:generation_tokens_total 3\n")
    spoken = with_args(config, "draft-k3", metrics=str(tmp_path / "page"), say=SAID, say_on="of loud")
    monkeypatch.setattr(VllmDialect, "steps", lambda *_: None)
    run(spoken, workload("loud", requests=4), workload("silent"))
    counters = transcripts.read(directory, "draft-k3", "loud").counters
    assert counters == SpecCounters(drafts=8, draft_tokens=24, accepted_tokens=12, accepted_per_position=(8, 4, 0))
    assert transcripts.read(directory, "draft-k3", "silent").counters is None


@pytest.mark.parametrize("late", [True, False])
def test_every_workload_of_a_server_whose_counters_come_late_is_streamed(late, run, config, workload, directory, monkeypatch):
    monkeypatch.setattr(VllmDialect, "counters_late", late)
    run(config, workload())
    for arm in ("baseline", "control", "draft-k3"):
        stamped = [answer.timing.first_s is not None for answer in transcripts.read(directory, arm, "greedy").answers]
        assert stamped == [late] * 5


def test_windows_go_before_a_log_which_may_count_what_came_before(run, config, workload, directory, with_args, tmp_path):
    (tmp_path / "page").write_text("vllm:generation_tokens_total 3\n")
    run(with_args(config, "draft-k3", metrics=str(tmp_path / "page"), say=SAID, say_on="of loud"), workload("loud", requests=4))
    loud = transcripts.read(directory, "draft-k3", "loud")
    assert loud.counters is None
    assert any(answer.choice.windows for answer in loud.answers)


def test_the_counts_of_each_answer_stand_in_for_a_page_that_has_none(run, config, workload, directory, with_args, tmp_path):
    """``llama-server`` before llama-cpp-python 0.3.35 has no series of drafts."""
    (tmp_path / "page").write_text("vllm:generation_tokens_total 3\n")
    run(with_args(config, "draft-k3", metrics=str(tmp_path / "page")), workload())
    transcript = transcripts.read(directory, "draft-k3", "greedy")
    assert transcript.counters.drafts == sum(len(answer.choice.windows) - 1 for answer in transcript.answers)
