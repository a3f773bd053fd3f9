"""Traces: the spans of a run, sent once at the end of the session to the endpoint that the environment names."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from pytest_specdec import __version__
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.report.spans import Period, run_span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.plugin.summary import SummaryPlugin
    from pytest_specdec.report.run import Run
    from pytest_specdec.report.spans import Span

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"
_MOST_S = 5.0
"""Seconds that a session may wait for the endpoint at its end."""
_NS_PER_S = 1e9


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Return True if the environment asks for traces over OTLP."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or (environ.get("OTEL_TRACES_EXPORTER") or "otlp") != "otlp"
    return not is_off and any(environ.get(name) for name in _ENDPOINTS)


class TracesPlugin:
    """Registered beside the summary if the environment asks for traces."""

    def __init__(self, summary: SummaryPlugin, environ: Mapping[str, str]) -> None:
        self._summary = summary
        self._environ = environ
        self._began_s = time.time()
        self._judged: dict[str, Period] = {}
        """By test id: from the start of its setup to the end of its call."""
        self._lines: list[str] = []
        """One per run: the trace's id, or why nothing was sent."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record when a test judged: from the start of its setup to the end of its call."""
        if report.when != "teardown":
            earlier = self._judged.get(report.nodeid)
            self._judged[report.nodeid] = Period(start_s=earlier.start_s if earlier else report.start, end_s=report.stop)

    def pytest_sessionfinish(self) -> None:
        """Send the spans of the runs that the summary has gathered; nothing without a run."""
        self._lines = [line for root, run in self._summary.runs.items() if (line := self._send(root, run))]

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the trace's id, or why nothing was sent."""
        for line in self._lines:
            terminalreporter.write_line(f"specdec: {line}")

    def _send(self, directory: Path, run: Run) -> str:
        """Send the spans of a run and return a line about it.

        The line has the trace's id, that of its root span (the last one), or why nothing was sent. It is empty if the sampler left out
        every span, or if OpenTelemetry is not installed. Progress of earlier sessions, as in a run that is resumed, gets no spans.
        """
        protocol = next(filter(None, map(self._environ.get, _PROTOCOLS)), _HTTP)
        if protocol != _HTTP:
            return f"no traces sent: found {protocol} in OTEL_EXPORTER_OTLP_PROTOCOL, expected {_HTTP}"
        progress = [line for line in run_documents.read_progress(RunDirectory(directory)) if line.began_at_s >= self._began_s]
        root = run_span(run, Period(start_s=self._began_s, end_s=time.time()), progress, self._judged)
        try:
            spans = convert(root, resource_attributes(run), self._environ, self._summary.secrets())
        except ImportError:
            return ""
        except Exception as error:  # noqa: BLE001 - a variable that the SDK cannot read is no reason to lose a run's summary
            return f"no traces sent: {self._summary.secrets().mask(f'{type(error).__name__}: {error}')}"
        if not spans:
            return ""
        problem = export(spans)
        if problem:
            return f"no traces sent: {self._summary.secrets().mask(problem)}; see OTEL_EXPORTER_OTLP_ENDPOINT"
        return f"{len(spans)} spans sent, trace {spans[-1].context.trace_id:032x}"


def resource_attributes(run: Run) -> dict[str, str]:
    """Return the attributes of the process that a trace comes from."""
    version = run.environment.engine_version if run.environment else ""
    engine = {"specdec.engine": run.plan.engine, "specdec.engine_version": version}
    return {"service.name": "pytest-specdec", "service.version": __version__, **engine}


def convert(root: Span, resource: Mapping[str, str], environ: Mapping[str, str], secrets: Secrets) -> Sequence[ReadableSpan]:
    """Return ``root`` and its children as OpenTelemetry's spans, children first.

    The parent of ``root`` is that of ``TRACEPARENT``, as CI systems set it. ``resource`` has the attributes of this process; those of the
    environment are added and replace them. ``secrets`` are masked in the attributes of spans. Spans that the environment's sampler drops
    are left out. Raises ImportError if OpenTelemetry is not installed.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - only a traced session pays for it
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - as above
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - as above

    memory = InMemorySpanExporter()
    described = Resource.create(dict(resource)).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=described, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    carrier = {name: environ[name.upper()] for name in ("traceparent", "tracestate") if environ.get(name.upper())}
    context = TraceContextTextMapPropagator().extract(carrier)
    _add(provider.get_tracer("pytest_specdec", __version__), root, context, secrets)
    return memory.get_finished_spans()


def _add(tracer: Tracer, span: Span, context: Context, secrets: Secrets) -> None:
    """Record a span and its children with their own times.

    ``context`` holds the parent. Secrets in text attributes are masked.
    """
    from opentelemetry.trace import StatusCode, set_span_in_context  # noqa: PLC0415 - only a traced session pays for it

    attributes = {name: secrets.mask(value) if isinstance(value, str) else value for name, value in span.attributes.items()}
    otel_span = tracer.start_span(span.name, context, attributes=attributes, start_time=int(span.period.start_s * _NS_PER_S))
    for child in span.children:
        _add(tracer, child, set_span_in_context(otel_span, context), secrets)
    if span.is_failed:
        otel_span.set_status(StatusCode.ERROR)
    otel_span.end(int(span.period.end_s * _NS_PER_S))


def export(spans: Sequence[ReadableSpan]) -> str:
    """Send ``spans`` to the environment's endpoint; return why it failed, or an empty string.

    It takes at most :data:`_MOST_S` seconds, whatever the endpoint does: the exporter's own limit does not hold for the
    look-up of a name, nor for an answer that comes byte by byte.
    """
    problems: list[str] = [f"no answer within {_MOST_S:g} s"]  # the last counts: a thread, which returns nothing, adds its own in time
    thread = threading.Thread(target=lambda: problems.append(_export(spans)), name="specdec-traces", daemon=True)
    thread.start()
    thread.join(_MOST_S)
    return problems[-1]


def _export(spans: Sequence[ReadableSpan]) -> str:
    """Send ``spans``; return why it failed, or an empty string.

    The exporter only logs why it failed, so its log is read.
    """
    logger, log = logging.getLogger("opentelemetry.exporter"), _LastMessage()
    logger.addHandler(log)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - only a traced session pays
        from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult  # noqa: PLC0415 - as above

        exporter: SpanExporter = OTLPSpanExporter(timeout=_MOST_S)
        result = exporter.export(spans)
        exporter.shutdown()
        problem = "" if result is SpanExportResult.SUCCESS else log.text
    except Exception as error:  # noqa: BLE001 - a trace that is not sent is no reason to fail a run
        problem = f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(log)
    return problem


class _LastMessage(logging.Handler):
    """Stores the text of the last record."""

    def __init__(self) -> None:
        super().__init__()
        self.text = "the export failed"

    def emit(self, record: logging.LogRecord) -> None:
        """Store the record's text."""
        self.text = record.getMessage()
