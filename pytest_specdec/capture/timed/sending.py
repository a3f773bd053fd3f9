"""Timed answers: a workload's requests built by the openai package and sent by the stamper, read after the last byte of all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_specdec.capture.client import Exchange
from pytest_specdec.capture.deadlines import describe_overdue
from pytest_specdec.capture.timed import requests
from pytest_specdec.capture.timed.requests import NOT_SENT, OVERDUE, TOO_MUCH, RawRequest
from pytest_specdec.capture.transport import MAX_BYTES, retry_after_s
from pytest_specdec.model.transcript import FailureKind, is_rejection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.capture.client import Client, TimedAnswer
    from pytest_specdec.capture.timed.requests import LoadSamples, StampedResponse
    from pytest_specdec.model.workload import Request

_HTTP = 80
_OK, _REDIRECT = 200, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRequest:
    """One request of one pass."""

    request: Request
    pass_index: int
    deadline_s: float


def is_possible(url: str) -> bool:
    """Return True if the stamper can send requests to ``url``.

    The stamper knows no TLS, so that the scheme has to be ``http``.
    """
    return urlsplit(url).scheme == "http"


def answers(
    client: Client, timed_requests: Sequence[TimedRequest], *, concurrency: int, until_s: float = math.inf
) -> tuple[tuple[TimedAnswer | None, ...], LoadSamples]:
    """Send timed requests and return the answers and client load.

    They are sent in their order, ``concurrency`` at a time, by a separate process. The answers come in the same order,
    None for requests that were not tried: none is tried after a failure of the server, or from ``until_s`` on, by the
    monotonic clock. The load shows whether the client or the server set the measured times. Raises CaptureError if the
    process fails.
    """
    raw_requests = [
        RawRequest(content=client.content(job.request, deadline_s=job.deadline_s), deadline_s=job.deadline_s) for job in timed_requests
    ]
    address = urlsplit(client.url)
    stamped = requests.send(address.hostname or "", address.port or _HTTP, raw_requests, concurrency=concurrency, until_s=until_s)
    timed_answers = tuple(_read_answer(client, job, response) for job, response in zip(timed_requests, stamped.responses, strict=True))
    return timed_answers, stamped.samples


def _read_answer(client: Client, job: TimedRequest, response: StampedResponse) -> TimedAnswer | None:
    """Return a stamped response as an answer; None for an untried request."""
    if response.end == NOT_SENT:  # no connection was tried
        return None
    answer = client.read(job.request, _build_exchange(client, job, response), streamed=True, pass_index=job.pass_index)
    return replace(answer, unsent=not response.sent_s)  # True if a connection was tried and failed before the first byte


def _build_exchange(client: Client, job: TimedRequest, response: StampedResponse) -> Exchange:
    """Return a stamped response as an exchange of the client.

    The exchange has a body, a refusal, or the way in which the server failed. ``job`` is the request that it answers.
    """

    def failed_exchange(error: str, ending: FailureKind | None) -> Exchange:
        """Return an exchange without a body; ``ending`` is the kind of failure, None for a refusal."""
        headers = dict(response.headers)
        wait_s = retry_after_s(headers)
        return Exchange(
            sent_s=response.sent_s or response.done_s,  # without a connection it would have been sent then
            done_s=response.done_s,
            status=response.status,
            error=error,
            ending=ending,
            retry_after_s=wait_s,
        )

    if response.end == OVERDUE:
        return failed_exchange(describe_overdue(job.deadline_s, len(response.received.parts), job.request.body), FailureKind.HUNG)
    if response.end == TOO_MUCH:
        return failed_exchange(f"answered outside the protocol: a body of more than {MAX_BYTES:,} bytes", FailureKind.ERROR)
    if response.malformed:
        return failed_exchange(client.error_text(f"answered outside the protocol: {response.malformed}"), FailureKind.ERROR)
    if response.status is None or not response.whole:
        return failed_exchange(f"connection lost: {response.end}", FailureKind.DIED)
    if not _OK <= response.status < _REDIRECT:
        return failed_exchange(_error_reason(client, response), None if is_rejection(response.status) else FailureKind.ERROR)
    return Exchange(sent_s=response.sent_s, done_s=response.done_s, status=response.status, received=response.received)


def _error_reason(client: Client, response: StampedResponse) -> str:
    """Return the error text in a server's reply.

    It names the address of a redirect; else it is the ``error`` field of a JSON reply, or the whole reply.
    """
    if location := dict(response.headers).get("location"):
        return client.error_text(f"redirected to {location}, which is not followed")
    try:
        reply = response.received.json()
    except (ValueError, RecursionError):
        return client.error_text(response.received.body.decode(errors="replace"))
    return client.error_text(reply.get("error", reply))
