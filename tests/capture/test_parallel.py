"""Parallel placement: as many boots, the same answers and scores."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import alternation, locks, parallel, scoring_queue
from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.remaining import reusable_results
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.scoring import TranscriptScorer
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.errors import BootError
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.model.plan import Boot, Placement, Role, ScoringTask
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def beside(config):
    """The config with its servers side by side."""

    def _beside(servers=4, config=config):
        return replace(config, placement=Placement.SIDE_BY_SIDE, limits=replace(config.limits, servers=servers))

    return _beside


@pytest.fixture
def run(directory):
    def _run(config, *workloads, depth=Depth.SMOKE, only=None, deadline_s=None):
        plan = make(config, [SelectedWorkload(workload=w, family=Family.GREEDY) for w in workloads], depth, only)
        _run.plan = plan
        return record(config, plan, directory, deadline_s=deadline_s, tell=lambda _: None)

    yield _run
    assert list((directory.root / "servers").glob("*.json")) == []


def answered_and_scored(directory, arms, name="greedy"):
    for arm in arms:
        transcript = transcripts.read(directory, arm, name)
        scored = transcripts.read_scores(directory, "baseline", arm, name)
        assert [[p.token_id for p in score.positions] for score in scored] == [list(a.choice.token_ids) for a in transcript.answers]
        assert scored


@pytest.mark.examples(1)
@pytest.mark.parametrize(
    "depth, servers, boots", [(Depth.SMOKE, 4, 4), (Depth.SMOKE, 2, 4), (Depth.STANDARD, 4, 5), (Depth.STANDARD, 5, 5)]
)
def test_as_many_boots_as_in_turn_give_the_same_answers_and_scores(run, beside, workload, directory, depth, servers, boots):
    status = run(beside(servers), workload(draft_scored=True), workload("speed", timed=True, passes=2, scored=False), depth=depth)
    assert (status.state, status.missing, status.boots, status.restarts) == (State.COMPLETE, (), boots, 0)
    answered_and_scored(directory, ("baseline", "control", "draft-k3", "ngram-k3"))
    for arm in ("draft-k3", "control"):
        assert {score.under for score in transcripts.read_scores(directory, "small", arm, "greedy")} == {"small"}
    logs = sorted((directory.root / "servers").glob("*.log"))
    assert len(logs) == boots
    assert all(log.read_text().count("\nready\n") == 1 for log in logs)
    assert set(run_documents.read_capabilities(directory)) == {"baseline", "draft-k3", "ngram-k3"}


def test_timed_requests_go_there_and_back_again_and_nothing_runs_beside_them(run, beside, workload, directory):
    run(beside(), workload(), workload("speed", requests=2, timed=True, passes=3, concurrency=1, scored=False))
    sent = []
    for arm in ("baseline", "control", "draft-k3", "ngram-k3"):
        answers = transcripts.read(directory, arm, "speed").answers
        sent += [(answer.timing.sent_s, answer.timing.done_s, arm, answer.pass_index) for answer in answers]
    sent.sort()
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(sent))
    there = ["baseline", "control", "draft-k3", "ngram-k3"]
    back = there[::-1]
    assert [arm for _, _, arm, _ in sent] == there + back + back + there + there + back, "request by request, pass by pass the other way"
    others = [a.timing for arm in there for a in transcripts.read(directory, arm, "greedy").answers]
    assert min(timing.sent_s for timing in others) >= sent[-1][1]


@pytest.mark.examples(2)
@pytest.mark.parametrize("depth, deadline_s, passes", [(Depth.STANDARD, None, 4), (Depth.SMOKE, None, 2), (Depth.STANDARD, 100.0, 2)])
def test_unsteady_passes_are_repeated_in_every_arm_unless_time_is_short(
    run, beside, workload, directory, monkeypatch, depth, deadline_s, passes
):
    monkeypatch.setattr(alternation, "is_steady", lambda *_: False)
    speed = workload("speed", requests=2, timed=True, passes=2, concurrency=1, scored=False)
    assert run(beside(), speed, depth=depth, deadline_s=deadline_s, only=["draft-k3"]).state is State.COMPLETE
    for arm in ("baseline", "control", "draft-k3"):
        found = transcripts.read(directory, arm, "speed")
        assert [answer.key for answer in found.answers] == [(f"p{i}", number) for number in range(passes) for i in range(2)]
        assert all(answer.ok for answer in found.answers)
    whole = reusable_results(directory, run.plan).answers if depth is Depth.STANDARD else None
    assert whole is None or whole == {(arm, "speed") for arm in ("baseline", "control", "draft-k3")}


def test_answers_are_scored_while_their_arm_goes_on_answering(run, beside, workload, directory, with_args):
    scored_at = []
    config = with_args(beside(), "draft-k3", slow=0.3)
    with pytest.MonkeyPatch.context() as patched:
        real = TranscriptScorer.prefetch
        patched.setattr(TranscriptScorer, "prefetch", lambda self, asked: (real(self, asked), scored_at.append(time.monotonic())))
        run(config, workload(requests=8, concurrency=1), only=["draft-k3"])
    last = transcripts.read(directory, "draft-k3", "greedy").answers[-1].timing
    assert sum(at < last.sent_s for at in scored_at) >= 5
    answered_and_scored(directory, ("baseline", "control", "draft-k3"))


def test_what_cannot_be_scored_ahead_is_scored_in_its_turn(run, beside, workload, directory, monkeypatch):
    monkeypatch.setattr(scoring_queue.ScoringQueue, "start", lambda _: None)
    monkeypatch.setattr(scoring_queue, "_MAX_WAITING", 1)
    monkeypatch.setattr(scoring_queue.ScoringQueue, "_put", lambda *_: None)
    assert run(beside(), workload()).state is State.COMPLETE
    answered_and_scored(directory, ("baseline", "control", "draft-k3", "ngram-k3"))


def test_a_bug_in_the_scoring_queue_leaves_scores_to_their_turn(run, beside, workload, directory, monkeypatch):
    """The threads of the queue go on, so that nothing waits for them for ever."""
    monkeypatch.setattr(TranscriptScorer, "prefetch", lambda *_: 1 / 0)
    assert run(beside(), workload(), only=["draft-k3"], deadline_s=60.0).state is State.COMPLETE
    answered_and_scored(directory, ("baseline", "control", "draft-k3"))


def test_a_capture_that_waits_to_measure_speed_stops_no_scoring_that_arms_wait_for(run, beside, workload, directory, monkeypatch):
    """It waits until no arm holds the machine, and an arm may hold it until there is room for its answers to be scored."""
    measures, waits, put = [], threading.Event(), scoring_queue.ScoringQueue._put

    def measure():
        with locks.exclusive(60.0, waits.set):
            pass

    def put_and_have_another_wait(queue, job):
        if queue._session.probed and not measures:
            measures.append(threading.Thread(target=measure))
            measures[0].start()
            assert waits.wait(20.0)
        put(queue, job)

    monkeypatch.setattr(scoring_queue, "_MAX_WAITING", 1)
    monkeypatch.setattr(scoring_queue.ScoringQueue, "_put", put_and_have_another_wait)
    status = run(beside(), workload(requests=24, concurrency=2), deadline_s=60.0)
    measures[0].join(20.0)
    assert (status.state, status.missing, measures[0].is_alive()) == (State.COMPLETE, (), False)
    answered_and_scored(directory, ("baseline", "control", "draft-k3", "ngram-k3"))


def test_a_variant_that_does_not_boot_does_not_lose_the_others(run, beside, workload, directory, with_args):
    status = run(with_args(beside(), "draft-k3", boot="die"), workload(), workload("speed", timed=True, scored=False))
    assert (status.state, status.error) == (State.INCOMPLETE, "")
    assert [(missing.arm, missing.workload) for missing in status.missing] == [("draft-k3", "")]
    answered_and_scored(directory, ("baseline", "control", "ngram-k3"))


def test_a_variant_that_does_not_boot_spares_the_later_boots_that_only_it_needs(run, beside, workload, directory, with_args):
    """With two servers at once the baseline stays, and the draft model would come in the last wave."""
    status = run(with_args(beside(2), "draft-k3", boot="die"), workload(draft_scored=True))
    assert next(missing.reason for missing in status.missing if missing.arm == "draft-k3").startswith("the server died at boot")
    logs = {path.stem.partition("-")[2] for path in (directory.root / "servers").glob("*.log")}
    assert logs == {"control", "draft-k3", "ngram-k3"}
    answered_and_scored(directory, ("baseline", "control", "ngram-k3"))


def test_without_a_variant_that_boots_a_later_control_is_spared(run, beside, workload, directory, with_args):
    status = run(with_args(beside(2), "ngram-k3", boot="die"), workload(), depth=Depth.STANDARD, only=["ngram-k3"])
    assert any(missing.reason.endswith("nothing else needs the control") for missing in status.missing)
    assert {path.stem.partition("-")[2] for path in (directory.root / "servers").glob("*.log")} == {"baseline", "ngram-k3"}


def test_a_variant_that_fails_after_its_timed_answers_does_not_lose_the_others(run, beside, workload, directory, monkeypatch):
    """As when another process has taken its port: found when the answers are to be written, in the thread that times all arms."""
    check_identity = ArmServer.check_identity

    def check(arm):
        if "draft-k3" in arm.recipe.log.name:
            what = "port 8000 is answered by another process than the server"
            raise BootError(what)
        check_identity(arm)

    monkeypatch.setattr(ArmServer, "check_identity", check)
    status = run(beside(), workload(), workload("speed", requests=2, timed=True, scored=False))
    assert (status.state, status.error) == (State.INCOMPLETE, "")
    assert [(missing.arm, missing.reason.splitlines()[0]) for missing in status.missing] == [
        ("draft-k3", "port 8000 is answered by another process than the server")
    ]
    assert transcripts.read(directory, "draft-k3", "greedy") is None, "it is sent nothing more"
    answered_and_scored(directory, ("baseline", "control", "ngram-k3"))
    assert all(transcripts.read(directory, arm, "speed") for arm in ("baseline", "control", "ngram-k3"))


def test_without_the_scoring_baseline_the_capture_ends(run, beside, workload, with_args):
    status = run(with_args(beside(), "baseline", boot="die"), workload())
    assert status.state is State.INCOMPLETE
    assert "died at boot" in status.error
    assert {missing.arm for missing in status.missing} >= {"baseline", "control"}


def test_a_death_is_found_and_replayed_beside_others(run, beside, workload, directory, with_args):
    status = run(with_args(beside(), "draft-k3", die_on="p2 of greedy"), workload())
    assert status.state is State.COMPLETE
    assert status.restarts in {1, 2}, "a second fresh server only for what had no answer when it died"
    assert [c.request_id for c in transcripts.read(directory, "draft-k3", "greedy").server_failures if c.recurred] == ["p2"]
    assert transcripts.read(directory, "ngram-k3", "greedy").server_failures == ()


def test_a_bug_in_one_worker_is_raised_and_leaves_no_server(run, beside, workload, directory, monkeypatch):
    from pytest_specdec.capture.boot import BootSession

    def probe(self):
        raise ZeroDivisionError(os.getpid())

    monkeypatch.setattr(BootSession, "probe", probe)
    with pytest.raises(ZeroDivisionError):
        run(beside(), workload())
    assert run_documents.read_status(directory).state is State.INCOMPLETE


def test_no_server_is_started_after_the_deadline(run, beside, workload):
    status = run(beside(), workload(), deadline_s=-1.0)
    assert (status.boots, status.state) == (0, State.INCOMPLETE)
    assert "used up" in status.error


def test_every_boot_says_how_busy_its_server_was(run, beside, workload, directory):
    status = run(beside(), workload(), depth=Depth.STANDARD)
    assert [(one.boot, one.arm) for one in status.served] == [(0, "baseline"), (1, "draft-k3"), (2, "ngram-k3"), (3, "control")]
    assert all(0 < one.busy <= 1 and one.readiness_s > 0 and one.wall_s > 0 for one in status.served)
    assert run_documents.read_status(directory).served == status.served


def scorer_queue(*, probed):
    """The queue of a server that scores, without a deadline; nothing takes answers out of it."""
    plan = SimpleNamespace(workload=lambda name: name)
    reporter = SimpleNamespace(left_s=math.inf, end=lambda _: None, drop=lambda _: None)
    session = SimpleNamespace(
        boot=replace(boot("small", scores=True), role=Role.DRAFT),
        reporter=reporter,
        probed=probed,
        recipes=SimpleNamespace(plan=plan),
        scoring=lambda name: name,
        completeness=SimpleNamespace(record_error=lambda *_: None),
    )
    return session, scoring_queue.ScoringQueue(session)


def hand_on(waiting, seconds=5.0):
    """Hand on one answer more than may wait; the thread that does it."""
    taker = waiting.taker("w", 5)
    arm = threading.Thread(target=lambda: [taker(None) for _ in range(scoring_queue._MAX_WAITING + 1)], daemon=True)
    arm.start()
    arm.join(seconds)
    return arm


def test_no_arm_waits_for_a_baseline_that_is_never_probed():
    """The baseline did not boot, or lost its access, while another server scores: nothing else would end the wait."""
    _, waiting = scorer_queue(probed=False)
    assert not hand_on(waiting).is_alive()


def test_no_arm_waits_for_a_scoring_server_that_did_not_come_up():
    session, waiting = scorer_queue(probed=True)
    worker = parallel._Worker(session, waiting)

    def start(_):
        msg = "died at boot"
        raise BootError(msg)

    parallel._Workers(session.reporter).run([worker], start)
    assert not hand_on(waiting).is_alive()


def test_an_arm_waits_for_a_server_that_is_to_score_its_answers():
    _, waiting = scorer_queue(probed=True)
    arm = hand_on(waiting, 0.2)
    assert arm.is_alive()
    waiting.close()
    arm.join(5.0)
    assert not arm.is_alive()


def boot(arm, *, scores=False):
    asked = (ScoringTask(arm="v", workload="w", top_tokens=5),) if scores else ()
    return Boot(index=0, role=Role.VARIANT, arm=arm, scores=asked)


def test_what_scores_stays_while_there_is_room_for_one_more():
    base, draft, other = boot("base", scores=True), boot("draft", scores=True), boot("other", scores=True)
    one, two, control = boot("one"), boot("two"), boot("control")
    everything = (base, draft, one, two, control)
    assert parallel.boot_waves(everything, 5) == parallel.BootWaves(staying=(base, draft), waves=((one, two, control),))
    assert parallel.boot_waves(everything, 4) == parallel.BootWaves(staying=(base, draft), waves=((one, two), (control,)))
    assert parallel.boot_waves(everything, 3) == parallel.BootWaves(staying=(base, draft), waves=((one,), (two,), (control,)))
    assert parallel.boot_waves(everything, 2) == parallel.BootWaves(staying=(base,), waves=((one,), (two,), (control,), (draft,)))
    assert parallel.boot_waves((base, draft, other), 2) == parallel.BootWaves(staying=(base,), waves=((draft,), (other,)))
    assert parallel.boot_waves((base,), 2) == parallel.BootWaves(staying=(base,), waves=((),))


def test_who_answers_before_the_baseline_is_probed_is_scored_by_the_route_that_the_probe_finds(
    run, beside, workload, directory, with_args, config, monkeypatch
):
    real = CapabilityProbe.run

    def late(probe):
        time.sleep(2.0)
        return real(probe)

    monkeypatch.setattr(CapabilityProbe, "run", late)
    config = with_args(config, top_logprobs=True, no_prompt_logprobs=True)
    status = run(beside(config=config), workload(draft_scored=True), only=["draft-k3"])
    assert (status.state, status.missing) == (State.COMPLETE, ())
    answered_and_scored(directory, ("baseline", "control", "draft-k3"))


def test_without_a_probe_scoring_waits_for_its_turn_only(run, beside, workload, directory, monkeypatch):
    monkeypatch.setattr(BootSession, "probe", lambda _: None)
    status = run(beside(), workload(), only=["draft-k3"], deadline_s=60.0)
    assert (status.state, status.missing) == (State.COMPLETE, ())
    answered_and_scored(directory, ("baseline", "control", "draft-k3"))
