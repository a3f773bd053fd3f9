"""The clients that are compared: each sends N streams at once, and says when it saw each chunk and what processor time it took."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import openai

from pytest_specdec.capture import sse
from pytest_specdec.capture.timed import requests
from pytest_specdec.capture.timed.requests import RawRequest
from pytest_specdec.model.timing import ClientLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CLIENTS", "Seen", "Shape"]

PORT_URL = "http://127.0.0.1:{}/v1"
MESSAGES = [{"role": "user", "content": "Say when."}]
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each of N streams is to look like."""

    streams: int
    ttft_ms: float
    step_ms: float
    chunks: int
    tokens: int = 1
    common: bool = False

    def metadata(self, number: int) -> dict[str, str]:
        """Return what a request asks the server for; streams without a common step begin spread over one."""
        ttft_ms = self.ttft_ms if self.common else self.ttft_ms + self.step_ms * number / self.streams
        asked = {"ttft_ms": ttft_ms, "step_ms": self.step_ms, "chunks": self.chunks, "tokens": self.tokens, "common": int(self.common)}
        return {name: str(value) for name, value in asked.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one client saw."""

    streams: tuple[tuple[float, tuple[tuple[float, float], ...]], ...]
    """Per stream: when it was sent, and of each chunk when it was seen and when it was written, all in seconds."""
    cpu_s: float
    """Of the client, parsing included."""
    load: ClientLoad


def typed(port: int, shape: Shape) -> Seen:
    """Iterate openai's AsyncOpenAI chunk by chunk: what most measurements use."""

    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[float, tuple[tuple[float, float], ...]]:
        sent_s, seen = time.monotonic(), []
        stream = await client.chat.completions.create(
            model="truth", messages=MESSAGES, stream=True, metadata=shape.metadata(number), timeout=DEADLINE_S
        )
        async for chunk in stream:
            at_s = time.monotonic()
            if chunk.choices and chunk.choices[0].delta.content:
                seen.append((at_s, int(chunk.choices[0].delta.content) / 1e9))
        return sent_s, tuple(seen)

    async def every() -> tuple[tuple[float, tuple[tuple[float, float], ...]], ...]:
        async with openai.AsyncOpenAI(base_url=PORT_URL.format(port), api_key="none", max_retries=0) as client:
            return tuple(await asyncio.gather(*(one(client, number) for number in range(shape.streams))))

    return _busy(lambda: asyncio.run(every()))


def raw_bytes(port: int, shape: Shape) -> Seen:
    """Read openai's ``with_streaming_response`` and ``iter_bytes``, a thread a stream, parsed behind the run."""
    client = openai.OpenAI(base_url=PORT_URL.format(port), api_key="none", max_retries=0)

    def one(number: int) -> tuple[float, sse.ReceivedResponse]:
        sent_s = time.monotonic()
        asked = {"model": "truth", "messages": MESSAGES, "stream": True, "metadata": shape.metadata(number)}
        with client.chat.completions.with_streaming_response.create(**asked, timeout=DEADLINE_S) as response:
            return sent_s, sse.read(response.iter_bytes())

    def every() -> tuple[tuple[float, tuple[tuple[float, float], ...]], ...]:
        with concurrent.futures.ThreadPoolExecutor(shape.streams) as pool:
            return tuple((sent_s, _parsed(received)) for sent_s, received in pool.map(one, range(shape.streams)))

    return _busy(every)


def stamped(port: int, shape: Shape) -> Seen:
    """Ours: non-blocking sockets in a process of its own, parsed behind the run."""
    asked = ({"model": "truth", "messages": MESSAGES, "stream": True, "metadata": shape.metadata(n)} for n in range(shape.streams))
    several = [RawRequest(content=_request(port, body), deadline_s=DEADLINE_S) for body in asked]
    found = requests.send("127.0.0.1", port, several, concurrency=shape.streams)
    began_s = time.process_time()
    streams = tuple((one.sent_s, _parsed(one.received)) for one in found.responses)
    return Seen(streams=streams, cpu_s=found.samples.cpu_s + time.process_time() - began_s, load=found.samples.load)


CLIENTS: Mapping[str, Callable[[int, Shape], Seen]] = {"openai, typed": typed, "openai, raw bytes": raw_bytes, "stamper": stamped}


def _request(port: int, body: Mapping[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    return head.encode() + b"\r\n\r\n" + content


def _busy(run: Callable[[], Sequence[tuple[float, tuple[tuple[float, float], ...]]]]) -> Seen:
    """Run a client of this process and take its own load: what it cannot say, how long a wake-up took, is 0."""
    began_s, used_s = time.monotonic(), time.process_time()
    streams = tuple(run())
    cpu_s, wall_s = time.process_time() - used_s, time.monotonic() - began_s
    return Seen(streams=streams, cpu_s=cpu_s, load=ClientLoad(cpu_share=cpu_s / wall_s, drain_p99_s=0.0, step_gap_s=0.0, coalesced=0.0))


def _parsed(received: sse.ReceivedResponse) -> tuple[tuple[float, float], ...]:
    found = []
    for at_s, chunk in sse.objects(received.events()):
        content = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if content:
            found.append((at_s, int(content) / 1e9))
    return tuple(found)
