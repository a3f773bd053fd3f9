"""Spans go to the endpoint that the environment names, once, at the end of the session."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pytest_specdec.files.secrets import Secrets
from pytest_specdec.plugin import traces
from pytest_specdec.report.spans import Period, Span

assert trace_exporter  # imported before pytester takes its snapshot of modules, or each session would load half of the packages anew
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def sink(monkeypatch):
    """Serve OTLP over HTTP, and name it in the environment; the bodies of requests, and the status of every answer."""

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.requests.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.server.status)
            for _ in range(self.server.drops):
                self.flush_headers()
                self.server.over.wait(0.05)
                self.send_header("a", "b")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    server.requests, server.status, server.drops, server.over = [], 200, 0, threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def exported(sink):
    """Return the resource's attributes and the spans of the one request."""
    ((path, body),) = sink.requests
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (scope,) = resource.scope_spans
    return attributes(resource.resource), list(scope.spans)


def attributes(message):
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in message.attributes}


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_boots_workloads_and_judgements_are_spans_under_the_jobs_own(project, sink, monkeypatch, workers):
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{PARENT}-01")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=nightly")
    result = project.tests().run(*workers, subprocess=bool(workers))
    assert result.ret == 0
    resource, spans = exported(sink)
    result.stdout.fnmatch_lines([f"specdec: {len(spans)} spans sent, trace {TRACE}"])
    assert {name: resource[name] for name in ("service.name", "specdec.engine", "deployment.environment.name")} == {
        "service.name": "pytest-specdec",
        "specdec.engine": "reference",
        "deployment.environment.name": "nightly",
    }
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    by_id = {span.span_id: span for span in spans}
    (root,) = [span for span in spans if span.parent_span_id.hex() == PARENT]
    parents = {(span.name, by_id[span.parent_span_id].name) for span in spans if span is not root}
    boots = [f"boot {arm}" for arm in ("baseline", "draft-k3", "ngram-k3", "control")]
    assert root.name == "specdec run"
    assert parents == {
        *((boot, root.name) for boot in boots),
        *((f"answering {workload}", boot) for workload in ("chat", "code") for boot in boots),
        *((f"judge {family}", root.name) for family in ("greedy", "liveness")),
    }
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    judged = [attributes(span) for span in spans if span.name.startswith("judge")]
    assert {(one["specdec.arm"], one["specdec.family"], one["specdec.outcome"]) for one in judged} == {
        (arm, family, "pass") for arm in ("draft-k3", "ngram-k3") for family in ("greedy", "liveness")
    }


def test_a_failure_is_the_status_of_its_span(project, sink):
    project.outcome("Outcome.FAIL").run()
    _, spans = exported(sink)
    assert {span.name for span in spans if span.status.code} == {"specdec run", "judge greedy"}


def test_a_replay_sends_its_judgements_and_no_boots(project, sink):
    project.tests().run()
    sink.requests.clear()
    (run,) = project.runs
    project.run(f"--specdec-replay={run}", config=None)
    assert {span.name for span in exported(sink)[1]} == {"specdec run", "judge greedy", "judge liveness"}


URL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    "environ, enabled",
    [
        ({}, False),
        (URL, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({**URL, "OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "false"}, True),
        ({**URL, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**URL, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**URL, "OTEL_TRACES_EXPORTER": ""}, True),
    ],
    ids=str,
)
def test_the_environment_decides_on_traces(environ, enabled):
    assert traces.is_enabled(environ) is enabled


def test_without_an_endpoint_the_packages_are_not_imported(project):
    args = ["-q", "--specdec-config=tiny", "--rootdir=."]
    code = f"import sys, pytest; print(pytest.main({args!r}), [name for name in sys.modules if name.startswith('opentelemetry')])"
    project.tests()
    result = subprocess.run([sys.executable, "-c", code], cwd=project.path, check=True, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "0 []"


def test_without_the_packages_a_session_says_nothing(project, sink, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    result = project.tests().run()
    assert result.ret == 0
    assert not sink.requests
    assert "trace" not in result.stdout.str()


@pytest.mark.parametrize(
    "environ, line",
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "specdec: no traces sent: *; see OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({**URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "specdec: no traces sent: found grpc in *, expected http/protobuf"),
        ({**URL, "OTEL_ATTRIBUTE_COUNT_LIMIT": "abc"}, "specdec: no traces sent: *OTEL_ATTRIBUTE_COUNT_LIMIT*"),
    ],
    ids=["down", "grpc", "a wrong limit"],
)
def test_traces_that_cannot_be_sent_are_one_line_and_no_failure(project, monkeypatch, environ, line):
    monkeypatch.setattr(traces, "_MOST_S", 0.5)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    result = project.tests().run()
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines([line])


ROOT = Span(name="run", period=Period(start_s=1.0, end_s=2.0), attributes={"model": "hf_tinytarget12345"})


def convert(environ=os.environ):
    return traces.convert(ROOT, {"service.name": "s"}, environ, Secrets.of({"HF_TOKEN": "hf_tinytarget12345"}))


def test_an_endpoint_that_refuses_is_named_with_its_status(sink):
    sink.status = 401
    assert "401" in traces.export(convert())


def test_an_endpoint_whose_answer_never_ends_is_left_after_a_limit(sink, monkeypatch):
    """A header every twentieth of a second, for two seconds: no limit on a single read ends that."""
    monkeypatch.setattr(traces, "_MOST_S", 0.3)
    sink.drops = 40
    assert traces.export(convert()) == "no answer within 0.3 s"


def test_no_secret_is_in_a_span():
    (span,) = convert()
    assert dict(span.attributes) == {"model": "***"}
    assert (span.start_time, span.end_time) == (1_000_000_000, 2_000_000_000)


@pytest.mark.parametrize("variable, value", [("OTEL_TRACES_SAMPLER", "always_off"), ("TRACEPARENT", f"00-{TRACE}-{PARENT}-00")])
def test_what_is_not_sampled_is_not_sent(monkeypatch, variable, value):
    """A job may have decided so for all that runs in it."""
    monkeypatch.setenv(variable, value)
    assert not convert()
