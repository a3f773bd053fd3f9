"""Events: POSTs and commands done between requests, refused by a 4xx, tried again on a fresh server where they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.boot import BootSession
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.deadlines import Deadlines
from pytest_specdec.capture.events import EventSender, events_of
from pytest_specdec.capture.sender import Sender, Unavailable
from pytest_specdec.capture.server.event_gate import EventGate
from pytest_specdec.capture.withheld import withheld_workloads
from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.event import Event, EventName, EventOutcome, EventStep
from pytest_specdec.model.plan import Role
from pytest_specdec.model.server_failure import FailureKind
from pytest_specdec.model.status import StepKind
from pytest_specdec.model.workload import Family
from pytest_specdec.prompts.between import around_events, with_events

STATUS = {"/ok": 200, "/missing": 404, "/unknown": 501, "/broken": 500}


class Handler(BaseHTTPRequestHandler):
    posts = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}")
        self.posts.append((self.path, body))
        self.send_response(STATUS[self.path.partition("?")[0]])
        text = b'{"error": {"message": "no such thing"}}'
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def arm():
    Handler.posts = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    setup = ServerSetup(model="m", port=server.server_address[1], secrets=Secrets.of({"REFIT_KEY": "hush-hush-hush"}))
    client = Client(setup, PlainDialect(), model="m")
    yield SimpleNamespace(
        client=client,
        recipe=SimpleNamespace(setup=setup),
        model="m",
        event_gate=EventGate(),
        left_s=lambda: 60.0,
        wait_for_end=lambda: "",
    )
    client.close()
    server.shutdown()
    server.server_close()


def send(arm, *steps, limit_s=20.0):
    return EventSender(server=arm, name="draft-k3", limit_s=limit_s).send(Event(name="refit", steps=steps))


def test_posts_are_sent_in_order_with_their_bodies_and_variables(arm, monkeypatch):
    monkeypatch.setenv("STEP", "7")
    outcome = send(arm, EventStep(path="/ok?level=1", body={"step": "${STEP}"}), EventStep(path="/ok"))
    assert Handler.posts == [("/ok?level=1", {"step": "7"}), ("/ok", {})]
    assert (outcome.name, outcome.is_done, outcome.steps) == ("refit", True, ("POST /ok?level=1: 200", "POST /ok: 200"))
    assert arm.event_gate.had_events


def test_each_arm_of_each_session_has_files_of_its_own(arm):
    steps = (EventStep(path="/ok", body={"filename": "slot-{arm}.bin", "other": "{host}"}),)
    for name in ("draft-k3", "old/baseline"):
        EventSender(server=arm, name=name, limit_s=20.0).send(Event(name="slot", steps=steps))
    assert [body for _, body in Handler.posts] == [
        {"filename": f"slot-draft-k3-{os.getpid()}.bin", "other": "{host}"},
        {"filename": f"slot-old-baseline-{os.getpid()}.bin", "other": "{host}"},
    ]


@pytest.mark.parametrize("path", ["/missing", "/unknown"])
def test_a_4xx_or_501_is_a_refusal_and_ends_the_event(arm, path):
    outcome = send(arm, EventStep(path=path), EventStep(path="/ok"))
    assert (outcome.refused, outcome.status, outcome.error, outcome.ending) == (True, STATUS[path], "no such thing", None)
    assert len(Handler.posts) == 1


def test_a_5xx_is_a_failure(arm):
    outcome = send(arm, EventStep(path="/broken"))
    assert (outcome.ending, outcome.refused, outcome.is_done) == (FailureKind.ERROR, False, False)


def run_python(text):
    return EventStep(command=(sys.executable, "-c", text))


def test_a_command_finds_the_server_in_its_environment(arm, tmp_path):
    names = ("SPECDEC_URL", "SPECDEC_ARM", "SPECDEC_MODEL", "SPECDEC_EVENT")
    script = f"import os, pathlib; pathlib.Path(os.environ['OUT']).write_text(' '.join(os.environ[name] for name in {names}))"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUT", str(tmp_path / "out"))
        outcome = send(arm, run_python(script))
    assert outcome.is_done
    assert (tmp_path / "out").read_text() == f"{arm.client.url} draft-k3 m refit"


def test_a_command_that_fails_hangs_or_is_not_there_is_a_failure(arm):
    failed = send(arm, run_python("import sys; print('key hush-hush-hush'); sys.exit(3)"))
    assert (failed.ending, failed.error) == (FailureKind.ERROR, "exit code 3: key ***")
    missing = send(arm, EventStep(command=("no-such-program",)))
    assert (missing.ending, missing.steps) == (FailureKind.ERROR, ("command no-such-program: not started",))
    hung = send(arm, run_python("import time; time.sleep(60)"), limit_s=1.0)
    assert hung.ending is FailureKind.HUNG


def test_a_command_that_leaves_a_daemon_has_ended(arm):
    daemon = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(1.5)'])"
    assert send(arm, run_python(daemon), limit_s=1.0).is_done


def test_a_command_is_killed_if_its_wait_is_interrupted(arm, monkeypatch):
    waits, wait = [], subprocess.Popen.wait

    def interrupt(process, timeout=None):
        waits.append(process)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        send(arm, run_python("import time; time.sleep(60)"), limit_s=1.0)
    assert waits[0].returncode == -signal.SIGKILL


class Arm:
    """An arm whose server is started again at will."""

    lost, slowest_s, may_replay, may_restart, model = "", 0.0, True, True, "m"

    def __init__(self):
        self.running, self.restarts, self.ended = True, 0, 0
        self.recipe = SimpleNamespace(dialect=SimpleNamespace(counters_late=False))
        self.left_s = lambda: 60.0

    def terminate(self):
        self.running = False
        self.ended += 1

    def ensure_running(self):
        self.restarts += not self.running
        self.running = True
        return True


@pytest.fixture
def sender(monkeypatch):
    """A sender whose events have the endings of ``endings`` in turn; ``sent`` has their names."""
    reporter = SimpleNamespace(left_s=60.0, say=lambda _: None)
    workload = with_events(around_events(), {"sleep-1": (EventStep(path="/x"),), "refit": (EventStep(path="/y"),)})
    deadlines = Deadlines(20.0, None, paced=False)
    made = Sender(Arm(), workload, name="v", deadlines=deadlines, reporter=reporter, on_answer=None)
    made.endings, made.sent_events = [], []

    def send(_, event):
        made.sent_events.append(event.name)
        ending = made.endings.pop(0) if made.endings else None
        return EventOutcome(name=event.name, steps=("x",), seconds=0.5, error="x" if ending else "", ending=ending)

    monkeypatch.setattr(EventSender, "send", send)
    return made


def test_a_fresh_server_gets_the_last_event_before_the_requests_that_come_after_it(sender):
    for event in sender.workload.events:
        sender.send_event(event)
    assert sender.restart()
    assert sender.sent_events == ["sleep-1", "refit", "refit"]
    sender.ensure_running()
    assert len(sender.sent_events) == 3, "it runs"


def test_an_event_that_fails_is_tried_again_on_a_fresh_server(sender):
    sender.endings[:] = [FailureKind.DIED]
    sender.send_event(sender.workload.events[0])
    (once,) = sender.event_outcomes
    assert (once.is_done, once.recurred, sender.server.restarts, sender.server.running) == (True, False, 1, True)


def test_an_event_that_fails_again_leaves_its_server_to_nobody(sender):
    sender.endings[:] = [FailureKind.ERROR, FailureKind.ERROR]
    sender.send_event(sender.workload.events[0])
    (twice,) = sender.event_outcomes
    assert (twice.ending, twice.recurred, twice.seconds, sender.server.running) == (FailureKind.ERROR, True, 1.0, False)
    sender.ensure_running()
    assert sender.sent_events == ["sleep-1", "sleep-1"], "an event that did not happen is not done to another server"


def test_an_event_that_fails_is_recorded_though_no_fresh_server_comes_up(sender, monkeypatch):
    sender.endings[:] = [FailureKind.DIED]
    monkeypatch.setattr(sender.server, "ensure_running", lambda: sender.server.running)
    monkeypatch.setattr(sender.server, "log_tail", lambda: (), raising=False)
    with pytest.raises(Unavailable, match="has no restart left"):
        sender.send_event(sender.workload.events[0])
    (once,) = sender.event_outcomes
    assert (once.ending, once.recurred) == (FailureKind.DIED, None)


def test_an_event_that_is_not_done_again_leaves_no_server_for_its_requests(sender):
    sender.send_event(sender.workload.events[0])
    sender.endings[:] = [FailureKind.ERROR]
    with pytest.raises(Unavailable, match=r"the event sleep-1 was not done again to a fresh server: x in 0.50 s; x"):
        sender.restart()
    assert not sender.server.running


def test_a_server_that_ends_unseen_gets_the_last_event_too(sender):
    sender.send_event(sender.workload.events[0])
    start = sender.server.ensure_running

    def ensure_running():
        sender.server.running = False  # it has ended since it was looked at
        return start()

    sender.server.ensure_running = ensure_running
    sender.ensure_running()
    assert sender.sent_events == ["sleep-1", "sleep-1"]


def test_a_server_that_was_ended_here_has_not_ended_silently(sender):
    """Its event failed twice; the requests that were answered before are no sign of a death."""
    sender.server.has_ended_silently = sender.server.running = False
    sender.outcomes["r", 0] = SimpleNamespace(answer=SimpleNamespace(key=("r", 0), timing=SimpleNamespace(done_s=2.0)))
    sender.record_silent_end()
    assert sender.server_failures == []


@pytest.mark.parametrize("endings, recorded", [([FailureKind.HUNG], []), ([FailureKind.DIED, FailureKind.HUNG], [FailureKind.DIED])])
def test_an_event_that_is_cut_off_by_the_captures_end_is_no_failure(sender, monkeypatch, endings, recorded):
    do = EventSender.send

    def send(events, event):
        outcome = do(events, event)
        sender.reporter.left_s = 60.0 if outcome.ending is FailureKind.DIED else 0.0
        return outcome

    sender.endings[:] = endings
    monkeypatch.setattr(EventSender, "send", send)
    with pytest.raises(Unavailable, match="the time given to the capture is used up"):
        sender.send_event(sender.workload.events[0])
    assert [(outcome.ending, outcome.recurred) for outcome in sender.event_outcomes] == [(ending, None) for ending in recorded]


def test_a_server_is_probed_as_it_was_before_its_events(tmp_path):
    steps = []
    arm = SimpleNamespace(running=True, renew=lambda: steps.append("renew"))
    recipes = SimpleNamespace(server=lambda *_: arm, directory=RunDirectory.create(tmp_path / "run"), config_of=lambda _: 1 / 0)
    reporter = SimpleNamespace(step=lambda _, kind, arm: steps.append(kind))
    boot = SimpleNamespace(arms=("v",), probe=True, role=Role.VARIANT)
    session = BootSession(boot=boot, recipes=recipes, reporter=reporter, completeness=None)
    with pytest.raises(ZeroDivisionError):
        session.probe()
    assert steps == ["renew", StepKind.PROBING]


def config(kind="reference", between=None, **fields):
    variants = (VariantSettings(name="v"),)
    return Config(
        name="c",
        path=Path("c.yaml"),
        text="",
        engine=EngineSettings(kind=kind, model="m", **fields),
        variants=variants,
        between=between or {},
    )


def why(config):
    asked = [(around_events(), Family.BETWEEN)]
    return withheld_workloads(config, engine_of(config.engine.kind), asked).get("around-events", "")


def test_the_configs_events_come_after_the_engines_and_may_take_one_out():
    step = EventStep(path="/x")
    events = events_of(config(between={EventName.SLEEP_2: (), "refit": (step,), EventName.RESET: (step,)}), engine_of("reference"))
    assert [*events] == ["pause-resume", "reset-prefix-cache", "slot-save-restore", "reload-weights", "sleep-1", "refit"]
    assert events[EventName.RESET] == (step,)


def test_a_workload_of_events_is_withheld_without_one_and_from_attached_servers():
    assert why(config()) == ""
    assert "set VLLM_SERVER_DEV_MODE: 1 under `env`" in why(config("vllm"))
    assert why(config("vllm", {"refit": (EventStep(path="/x"),)})) == ""
    assert "name one of your own under `between:`" in why(config("transformers"))
    assert "belongs to somebody else" in why(config(url="http://127.0.0.1:1"))


def test_events_wait_for_other_threads_and_keep_them_away_afterwards():
    gate, begun = EventGate(), threading.Event()
    with gate.use() as is_free:
        assert is_free
        thread = threading.Thread(target=lambda: (gate.begin_events(), begun.set()))
        thread.start()
        assert not begun.wait(0.05)
    thread.join(5)
    assert begun.is_set()
    with gate.use() as is_free:
        assert not is_free
    gate.reset()
    assert not gate.had_events
