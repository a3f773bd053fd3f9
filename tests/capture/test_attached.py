"""Attached servers: visited and left alone, compared before anything is judged, and never sent again what they died of."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from pytest_specdec.capture import attachment, remaining
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.server import attached, ports, readiness, traffic
from pytest_specdec.config.config import EngineSettings, Overlay, VariantSettings
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import Answer, Usage
from pytest_specdec.model.workload import Depth, Family
from tests.capture.conftest import DRAFT, SERVER

SPECULATING = ("--speculative-config", str(DRAFT))


class Running:
    """A fake server that somebody else runs: started, ended and started anew by the test alone."""

    def __init__(self, folder, *args):
        self.port, self.args, self.log = ports.free(), args, folder / "attached.log"
        self.start()

    def start(self, *args):
        argv = [sys.executable, "-S", str(SERVER), "m", "--port", str(self.port), *(args or self.args)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        setup = ServerSetup(model="m", port=self.port, secrets=Secrets())
        while readiness.look(setup, "/health", seconds=1.0).status is None:
            assert self.process.poll() is None, self.log.read_text()

    def revive(self, *args):
        """Start it anew as soon as it is dead, as its owner's supervisor would."""

        def waits():
            self.process.wait()
            self.start(*args)

        threading.Thread(target=waits, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def asked(self, prompt):
        """How often it was asked ``prompt``; its threads may write into one line."""
        return self.log.read_text().count(prompt)


@pytest.fixture
def running(tmp_path):
    """Start a server of somebody else."""
    started = []

    def _running(*args):
        folder = tmp_path / f"somebody{len(started)}"
        folder.mkdir()
        started.append(Running(folder, *args))
        return started[-1]

    yield _running
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def pair(config):
    """A config of two addresses."""

    def _pair(baseline, variant, **fields):
        return replace(
            config,
            engine=EngineSettings(kind="attach", model="fake-model"),
            baseline=Overlay(url=baseline),
            variants=(VariantSettings(name="mine", url=variant),),
            **fields,
        )

    return _pair


@pytest.fixture
def capture(directory, workload):
    """Capture workloads, by default one of five greedy requests."""

    def _capture(config, *workloads, depth=Depth.STANDARD):
        wanted = [SelectedWorkload(workload=one, family=Family.GREEDY) for one in workloads or (workload(),)]
        plan = make(config, wanted, depth)
        return plan, record(config, plan, directory, deadline_s=None, tell=lambda _: None)

    return _capture


def test_two_servers_are_visited_and_left_as_they_were(running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING)
    plan, status = capture(pair(f"{baseline.url}/v1/", variant.url))
    assert (status.state, status.error, status.boots, status.warnings) == (State.COMPLETE, "", 0, ())
    assert all(boot.attached for boot in plan.boots)
    assert plan.within_one_boot
    assert baseline.process.poll() is None
    assert variant.process.poll() is None
    known = run_documents.read_capabilities(directory)
    assert known["mine"].support["token_ids"] is FeatureSupport.HONOURED, "the dialect is found by its effect"
    assert transcripts.read(directory, "mine", "greedy").counters.drafts > 0
    found = captured.read(directory, plan, plan.judgements[0], ())
    assert found.within_one_boot
    assert found.pair.variant.draft.tokens == 3, "as the windows show, since no setting says it"


def test_an_engines_own_kind_with_addresses_starts_nothing_either(running, pair, capture):
    baseline, variant = running(), running(*SPECULATING)
    config = pair(baseline.url, variant.url)
    started = replace(
        config,
        engine=replace(config.engine, kind="fake"),
        variants=(replace(config.variants[0], args={"speculative-config": DRAFT}),),
    )
    _, status = capture(started)
    assert (status.state, status.boots) == (State.COMPLETE, 0)


@pytest.mark.examples(1)
@pytest.mark.parametrize("depth, rounds", [(Depth.STANDARD, 2), (Depth.SMOKE, 0)])
def test_documents_that_are_cut_off_are_asked_again_where_the_baseline_is_visited_first(running, pair, workload, directory, depth, rounds):
    """A fake server cuts off all of them under any limit; at smoke depth the baseline's one visit comes after the variant's."""
    baseline, variant = running("--max-model-len", "4096"), running(*SPECULATING, "--max-model-len", "4096")
    asked = workload("documents", requests=2, scored=False)
    bound = tuple(replace(r, body={**r.body, "response_format": {"type": "json_object"}}) for r in asked.requests)
    config = pair(baseline.url, variant.url)
    plan = make(config, [SelectedWorkload(workload=replace(asked, requests=bound), family=Family.STRUCTURED)], depth)
    steps = []
    record(config, plan, directory, deadline_s=None, tell=steps.append)
    answered = {arm: transcripts.read(directory, arm, "documents") for arm in ("baseline", "mine", "control")}
    assert sum("times its token limits" in step.doing for step in steps) == rounds
    assert {transcript.room for transcript in answered.values()} == {1}, "no further document ended"
    assert {len(answer.choice.token_ids) for transcript in answered.values() for answer in transcript.answers} == {6}


def test_a_request_that_a_server_died_of_is_not_sent_again(running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING, "--die-on", "p1 of greedy")
    variant.revive(*SPECULATING)
    _, status = capture(pair(baseline.url, variant.url))
    transcript = transcripts.read(directory, "mine", "greedy")
    failed = {failure.request_id for failure in transcript.server_failures}
    assert "p1" in failed
    assert [failure.recurred for failure in transcript.server_failures] == [None] * len(failed)
    assert "nothing answers" in transcript.server_failures[0].process
    assert variant.asked("p1 of greedy") == 1
    assert {answer.request_id for answer in transcript.answers if answer.ok} == {f"p{i}" for i in range(5)} - failed
    assert (transcript.restarts, status.state) == (1, State.COMPLETE)


def test_with_may_kill_it_is_sent_again_when_the_server_is_back(running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING, "--die-on", "p1 of greedy")
    variant.revive(*SPECULATING)
    capture(pair(baseline.url, variant.url, may_kill=True))
    transcript = transcripts.read(directory, "mine", "greedy")
    assert {failure.recurred for failure in transcript.server_failures} == {False}
    assert all(answer.ok for answer in transcript.answers)
    assert variant.asked("p1 of greedy") > 1


def test_a_server_that_is_slow_to_answer_is_not_gone(monkeypatch):
    """A busy server lists its models late; it is gone once nobody listens at its address."""
    monkeypatch.setattr(attached, "_LOOK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = attached.AttachedServer(ServerSetup(model="m", port=silent.getsockname()[1], secrets=Secrets()))
        assert not server.wait(0.1)
        assert (server.ended, server.exit_code) == ("", None)
    assert server.wait(0.1)
    assert server.ended.startswith("nothing answers at")


def test_a_server_that_stays_away_leaves_the_rest_missing(running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING, "--die-on", "p1 of greedy")
    config = pair(baseline.url, variant.url)
    _, status = capture(replace(config, limits=replace(config.limits, boot_s=0.5)))
    assert status.state is State.INCOMPLETE
    assert [missing.arm for missing in status.missing] == ["mine"]


PAGE = 'process_start_time_seconds {start}\nvllm:generation_tokens_total{{engine="0"}} {generated}\nvllm:prompt_tokens_total {prompt}\n'


def page(path, *, start=1000.0, prompt=0, generated=0):
    path.write_text(PAGE.format(start=start, prompt=prompt, generated=generated))


def test_one_server_behind_two_addresses_is_found(running, pair, capture, tmp_path):
    """The test's own page stands in for the counters, and its server moves it with every request."""
    path = tmp_path / "page"
    page(path)
    one = running(*SPECULATING, "--metrics", str(path), "--count-prompts")
    _, status = capture(pair(one.url, f"http://localhost:{one.port}"))
    assert "one server is attached as both arms" in status.error
    assert not one.asked("of greedy"), "no workload was sent"


def test_a_baseline_that_speculates_is_refused(running, pair, capture):
    _, status = capture(pair(running(*SPECULATING).url, running(*SPECULATING).url))
    assert "the server attached as the baseline speculates" in status.error


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "args, found",
    [
        (("--models", "another"), "does not serve fake-model"),
        (("--models", "fake-modle"), "does not serve fake-model; did you mean 'fake-modle'?"),
        (("--models", ",".join(f"m{n}" for n in range(2000))), "m7 and 1,992 more"),
        (("--template", "<user>"), "reads prompts otherwise than the baseline"),
        (("--served-version", "9.9"), "engine version 1.2.3 of the baseline and 9.9 of mine"),
        (("--models", "a,b"), "does not serve fake-model"),
        (("--key", "sesame"), "asks for a key"),
        (("--no-such-endpoint",), "does not complete a prompt"),
    ],
)
def test_servers_that_are_no_pair_are_one_clear_error(args, found, running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING, *args)
    _, status = capture(pair(baseline.url, variant.url))
    assert found in status.error
    assert variant.url in status.error
    assert len(status.error) < 1000
    assert not list(directory.root.glob("transcripts/*"))


@pytest.mark.examples(1)
@pytest.mark.parametrize(
    "args, found", [(("--template", "<user>"), "other reads prompts otherwise than the baseline"), (None, "no server answers at")]
)
def test_of_several_variants_the_one_that_is_no_pair_is_left_out(args, found, running, pair, capture, directory, monkeypatch):
    monkeypatch.setattr(attachment, "_FIRST_S", 0.1)
    url = f"http://127.0.0.1:{ports.free()}" if args is None else running(*SPECULATING, *args).url
    config = pair(running().url, running(*SPECULATING).url)
    _, status = capture(replace(config, variants=(*config.variants, VariantSettings(name="other", url=url))))
    assert (status.state, status.error) == (State.INCOMPLETE, "")
    assert {gap.arm for gap in status.missing} == {"other"}
    assert all(found in gap.reason for gap in status.missing)
    assert all(answer.ok for answer in transcripts.read(directory, "mine", "greedy").answers)


@pytest.mark.parametrize("depth, found", [(200_000, "nested too deeply, 200,000 characters"), (0, "JSON of too many values")])
def test_json_beyond_all_limits_is_one_clear_error(depth, found, running, pair, capture, tmp_path):
    """Every dialect reads replies itself; brackets in /v1/models ended the capture with an internal error."""
    path = tmp_path / "models"
    path.write_text("[" * depth if depth else f"[{'0,' * 2**21}0]")
    _, status = capture(pair(running().url, running("--page-of-models", str(path)).url))
    assert "answers /v1/models with something that no server of a model sends" in status.error
    assert found in status.error


def test_a_model_with_another_name_there_is_one_that_the_config_says(running, pair, capture, directory):
    """A misspelt model was green under the misspelt name: whatever the server listed first was asked."""
    config = pair(running("--models", "big,lora").url, running(*SPECULATING, "--models", "/models/big").url)
    config = replace(config, engine=replace(config.engine, served_as="big"))
    _, refused = capture(config)
    assert "does not serve big" in refused.error
    assert refused.lasting
    _, status = capture(replace(config, variants=(replace(config.variants[0], served_as="/models/big"),)))
    assert (status.state, status.error) == (State.COMPLETE, "")
    environment = run_documents.read_environment(directory)
    assert environment.served == {"baseline": "big", "mine": "/models/big", "control": "big"}
    assert environment.model == "fake-model"


def test_a_model_that_is_renamed_in_mid_run_ends_its_arm(running, pair, capture, directory):
    baseline, variant = running(), running(*SPECULATING, "--models-on", "p3 of greedy", "--models-later", "another")
    _, status = capture(pair(baseline.url, variant.url))
    assert status.state is State.INCOMPLETE
    (reason,) = {gap.reason for gap in status.missing if gap.arm == "mine"}
    assert "serves another model than before" in reason
    assert "models: another" in reason
    assert transcripts.read(directory, "mine", "greedy") is None


def answered(ids=(), prompt_tokens=None, status=200):
    usage = None if prompt_tokens is None else Usage(prompt_tokens=prompt_tokens, completion_tokens=8)
    return Answer(request_id="a", status=status, error="too long" if status == 400 else None, prompt_token_ids=ids, usage=usage)


LONG = tuple(range(20, 32))


@pytest.mark.parametrize(
    "mine, theirs, says",
    [
        (answered((1, 2), 2), answered((1, 2), 2), ""),
        (answered((1, 2), 2), answered((1, 3), 2), "token ids 1, 2 (2) and 1, 3 (2)"),
        (answered(LONG), answered(LONG[:8]), "token ids 20, 21, 22, 23, 24, 25, 26, 27, … (12) and 20, 21, 22, 23, 24, 25, 26, 27 (8)"),
        (answered((1, 2), 2), answered((), 2), ""),
        (answered((), 2), answered((1, 2, 3), 3), "2 and 3 prompt tokens"),
        (answered(), answered((), 3), ""),
        (answered(), answered(status=400), "only one answers; the other: 400, too long"),
        (answered(status=400), answered(), "only one answers; the other: 400, too long"),
        (answered(), answered(status=None), "only one answers; the other: no answer, None"),
        (answered(status=400), answered(status=400), ""),
    ],
)
def test_prompts_are_compared_by_ids_or_else_by_their_count(mine, theirs, says):
    assert attachment._describe_difference(mine, theirs) == says


def test_a_wrong_key_is_told_from_none_and_shown_nowhere(running, pair, capture, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "open-barley")
    baseline, variant = running(), running(*SPECULATING, "--key", "sesame")
    config = pair(baseline.url, variant.url)
    config = replace(config, engine=replace(config.engine, api_key="${THEIR_KEY}"))
    _, status = capture(config)
    assert "refuses the key" in status.error
    assert status.lasting
    assert "open-barley" not in status.error


def test_headers_reach_the_server(running, pair, capture):
    baseline, variant = running("--key", "sesame"), running(*SPECULATING, "--key", "sesame")
    config = pair(baseline.url, variant.url)
    _, status = capture(replace(config, engine=replace(config.engine, headers={"Authorization": "Bearer sesame"})))
    assert status.state is State.COMPLETE


def test_an_address_where_nobody_listens_is_told_of_at_once(running, pair, capture, monkeypatch):
    monkeypatch.setattr(attachment, "_FIRST_S", 0.1)
    _, status = capture(pair(running().url, f"http://127.0.0.1:{ports.free()}"))
    assert "no server answers at" in status.error
    assert not status.lasting, "it may still be loading"


@pytest.mark.parametrize("errno, lasting", [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_an_unknown_host_is_no_matter_of_a_retry_and_a_silent_resolver_is(errno, lasting, running, pair, capture, monkeypatch):
    resolve = socket.getaddrinfo

    def resolve_others(host, *args, **kwargs):
        if host in {"nowhere.test", b"nowhere.test"}:
            raise socket.gaierror(errno, "planted")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_others)
    monkeypatch.setattr(attachment, "_FIRST_S", 0.1)
    _, status = capture(pair(running().url, "http://nowhere.test:8000"))
    assert "no server answers at http://nowhere.test:8000" in status.error
    assert status.lasting is lasting


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".test"])
def test_a_host_that_is_no_name_is_unknown_too(host):
    assert attached._is_unknown_host(f"http://{host}:8000")


@pytest.mark.examples(1)
@pytest.mark.parametrize("change, noticed", [({"start": 2000.0}, "replaced"), ({"prompt": 10_000, "generated": 36}, "foreign")])
def test_others_at_the_server_are_noticed_by_its_counters(
    change, noticed, running, pair, capture, directory, workload, tmp_path, monkeypatch
):
    path = tmp_path / "page"
    page(path)
    baseline, variant = running(), running(*SPECULATING, "--metrics", str(path))
    sends = attached.AttachedArm.client.fget

    def watched(arm):
        if variant.asked("p4 of greedy"):
            page(path, **change)
        return sends(arm)

    monkeypatch.setattr(attached.AttachedArm, "client", property(watched))
    _, status = capture(pair(baseline.url, variant.url), workload(requests=6, concurrency=1, scored=False))
    transcript = transcripts.read(directory, "mine", "greedy")
    assert bool(transcript.replaced) == (noticed == "replaced")
    assert bool(transcript.foreign) == (noticed == "foreign")
    assert status.state is State.COMPLETE
    assert len(status.warnings) == 1


HALF = Traffic(started_s=10.0, prompt_tokens=100, generated_tokens=50)


@pytest.mark.parametrize(
    "before, after, says",
    [
        (None, HALF, ""),
        (HALF, HALF, ""),
        (HALF, replace(HALF, prompt_tokens=120), ""),
        (HALF, replace(HALF, started_s=10.5), ""),
        (HALF, replace(HALF, started_s=99.0, prompt_tokens=120), "it started 89 s later than the one before"),
        (HALF, replace(HALF, prompt_tokens=3), "its counters went back"),
        (replace(HALF, started_s=None), replace(HALF, started_s=None, generated_tokens=3), "its counters went back"),
    ],
)
def test_a_server_started_anew_shows_by_its_start_or_its_counters(before, after, says):
    assert traffic.replacement_evidence(before, after) == says


@pytest.mark.parametrize(
    "prompt, generated, says",
    [
        (20, 10, ""),
        (20, 10 + 16 * 2, ""),
        (21, 10, "1 prompt tokens"),
        (25, 12, "5 prompt tokens and 2 generated tokens"),
        (20, 10 + 16 * 2 + 1, "33 generated tokens"),
    ],
)
def test_what_nobody_here_asked_for_is_foreign(prompt, generated, says):
    after = replace(HALF, prompt_tokens=100 + prompt, generated_tokens=50 + generated)
    assert traffic.foreign_tokens(HALF, after, prompt_tokens=20, generated_tokens=10, answers=2) == says
    assert traffic.foreign_tokens(None, after, prompt_tokens=20, generated_tokens=10, answers=2) == ""


@pytest.mark.parametrize(
    "counted, baseline, says",
    [
        (1000, 0, ("", "")),
        (5000, 0, ("", "")),
        (750, 250, ("", "")),
        (
            500,
            500,
            ("", "its counters grew by 500 generated tokens, and the answers brought 1,000; those of the baseline's server grew by 500"),
        ),
        (
            500,
            400,
            ("", "its counters grew by 500 generated tokens, and the answers brought 1,000; those of the baseline's server grew by 400"),
        ),
        (
            0,
            1000,
            ("", "its counters grew by 0 generated tokens, and the answers brought 1,000; those of the baseline's server grew by 1,000"),
        ),
        (500, 100, ("its counters grew by 500 generated tokens, and the answers brought 1,000", "")),
        (None, 500, ("", "")),
    ],
)
def test_counters_that_lack_answers_show_another_server(counted, baseline, says):
    """As behind a load balancer that sends half of the variant's requests to the baseline."""
    lacking = traffic.uncounted_tokens(
        HALF, replace(HALF, generated_tokens=None if counted is None else 50 + counted), generated_tokens=1000
    )
    found = "" if lacking is None else traffic.baseline_evidence(lacking, HALF, replace(HALF, generated_tokens=50 + baseline))
    assert ("" if found or lacking is None else str(lacking), found.removesuffix(" meanwhile")) == says
    assert lacking is None or traffic.baseline_evidence(lacking, None, HALF) == ""


def test_a_load_balancer_that_sends_half_to_the_baseline_is_found(running, pair, capture, directory, workload, tmp_path, monkeypatch):
    """The test's own pages stand in for the counters: of 6 tokens to an answer each server counts those of every other one."""
    pages = [tmp_path / "baseline", tmp_path / "mine"]
    for path in pages:
        page(path)
    baseline, variant = running("--metrics", str(pages[0])), running(*SPECULATING, "--metrics", str(pages[1]))
    end = traffic.TrafficAccount.end

    def balanced(account, answers):
        if account._server.recipe.peer is not None:
            for path in pages:
                page(path, generated=18, prompt=20)
        return end(account, answers)

    monkeypatch.setattr(traffic.TrafficAccount, "end", balanced)
    monkeypatch.setattr(traffic, "_LATE", 1)
    plan, status = capture(pair(baseline.url, variant.url), workload(requests=6, concurrency=1, scored=False))
    assert (
        "and the answers brought 36; those of the baseline's server grew by 18" in transcripts.read(directory, "mine", "greedy").elsewhere
    )
    assert status.state is State.COMPLETE
    assert any(warning.startswith("mine, greedy: its counters grew by 18") for warning in status.warnings)
    assert remaining.has_answers_to_renew(directory, plan), "a resume asks again"


def test_the_plan_keeps_from_attached_servers_what_may_kill_them_and_the_budget_as_it_is(pair, workload):
    config = pair("http://a:1", "http://b:1", placement=Placement.AUTO)
    asked = [
        SelectedWorkload(workload=workload(concurrency=24), family=Family.GREEDY),
        SelectedWorkload(workload=workload("crash", may_kill=True), family=Family.GREEDY),
    ]
    plan, allowed = make(config, asked, Depth.STANDARD), make(replace(config, may_kill=True), asked, Depth.STANDARD)
    assert list(plan.withheld) == ["crash"]
    assert "may_kill: true" in plan.withheld["crash"]
    assert [w.name for w in plan.workloads] == ["greedy"]
    assert [w.name for w in allowed.workloads] == ["greedy", "crash"]
    assert {j.alpha for j in plan.judgements} == {j.alpha for j in allowed.judgements}
    assert plan.workload("greedy").concurrency == 4
    limited = make(replace(config, limits=replace(config.limits, concurrency=2)), asked, Depth.STANDARD)
    assert limited.workload("greedy").concurrency == 2
    assert (plan.placement, plan.placement_reason) == (Placement.IN_TURN, "attached servers are visited in turn")


def test_a_limit_holds_for_servers_of_our_own_too(config, workload):
    limited = replace(config, limits=replace(config.limits, concurrency=1))
    plan = make(limited, [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.STANDARD)
    assert plan.workload("greedy").concurrency == 1


def test_a_draft_model_is_served_alone_only_at_an_address_of_its_own(pair, workload):
    config = pair("http://a:1", "http://b:1")
    config = replace(config, variants=(replace(config.variants[0], args={"draft": "model", "draft-tokens": 3}),))
    asked = [SelectedWorkload(workload=workload(draft_scored=True), family=Family.GREEDY)]
    assert [boot.arm for boot in make(config, asked, Depth.STANDARD).boots] == ["baseline", "mine", "control"]
    drafted = make(replace(config, draft=Overlay(url="http://c:1")), asked, Depth.STANDARD)
    assert [(boot.arm, boot.attached) for boot in drafted.boots][-1] == ("draft", True)
