"""Throughput, scoring and speedup of the reference engine: ``python -m benchmarks.reference``.

Throughput: tokens per second over HTTP, 32 streams at temperature 1. Scoring: answers sent back as prompts for their log-probabilities, 8
streams. Speedup: one greedy stream, passes of baseline and variant in turn, as the median ratio with its range over passes, and the ratio
of the servers' processor seconds, which a busy neighbour does not change. Boot: seconds from exec to the first answer of /health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROMPTS: Final = (
    "def main():\n",
    "class Reader:\n    def __init__(self, path):\n",
    "import os\nimport sys\n\ndef walk(top):\n",
    "    try:\n        return self.read()\n    except",
    "<|im_start|>user\nWrite JSON for a user.<|im_end|>\n<|im_start|>assistant\n",
    "def parse(text):\n    for line in text.splitlines():\n",
    "if __name__ == '__main__':\n",
    "class Error(Exception):\n",
)
DRAFT: Final = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}
SAMPLED_DRAFT: Final = DRAFT | {"draft_sample_method": "probabilistic"}
NGRAM: Final = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    port: int
    boot_s: float
    process: int

    @property
    def cpu_s(self) -> float:
        """Processor seconds it has used: what a busy neighbour takes is not in them."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(layers: int, speculation: Mapping[str, object] | None) -> Iterator[Server]:
    """Run a server for as long as the context is open."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "specdec_reference", "target", "--port", str(port), "--padded-layers", str(layers)]
    command += ["--speculative-config", json.dumps(speculation)] if speculation else []
    began_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not healthy(port):
            if process.poll() is not None:
                msg = f"{' '.join(command)} ended with {process.returncode}"
                raise SystemExit(msg)
            time.sleep(0.01)
        yield Server(port=port, boot_s=time.perf_counter() - began_s, process=process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def healthy(port: int) -> bool:
    """Say whether /health answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


async def ask(port: int, body: Mapping[str, object]) -> int:
    """Send one completion and return how many tokens came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body | {"stream_options": {"include_usage": True}} if body.get("stream") else body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    answer = await reader.read()
    writer.close()
    usage = answer[answer.rindex(b'"completion_tokens":') :]
    return int(usage.split(b":", 1)[1].split(b",", 1)[0].split(b"}", 1)[0])


async def many(port: int, *, streams: int, requests: int, tokens: int, stream: bool) -> float:
    """Return tokens per second of ``streams`` clients that send ``requests`` between them."""
    waiting = iter(range(requests))

    async def client() -> int:
        got = 0
        for index in waiting:
            prompt = PROMPTS[index % len(PROMPTS)]
            got += await ask(port, {"prompt": prompt, "seed": index, "max_tokens": tokens, "ignore_eos": True, "stream": stream})
        return got

    began_s = time.perf_counter()
    return sum(await asyncio.gather(*(client() for _ in range(streams)))) / (time.perf_counter() - began_s)


def throughput(layers: Sequence[int]) -> None:
    """Print tokens per second of 32 streams."""
    for depth in layers:
        for name, speculation in (("baseline", None), ("draft-k3", SAMPLED_DRAFT), ("ngram-k3", NGRAM)):
            with server(depth, speculation) as running:
                for stream in (False, True):
                    asyncio.run(many(running.port, streams=32, requests=32, tokens=32, stream=stream))
                    rates = [asyncio.run(many(running.port, streams=32, requests=96, tokens=96, stream=stream)) for _ in range(3)]
                    kind = "streamed" if stream else "whole"
                    spread = f"[{min(rates):.0f}, {max(rates):.0f}]"
                    print(
                        f"throughput  {depth:2d} layers  {name:9s} {kind:9s} {statistics.median(rates):6.0f} tokens/s {spread}"
                        f"  boot {running.boot_s:.2f} s",
                        flush=True,
                    )


async def scored(port: int, *, streams: int, requests: int) -> float:
    """Return scored tokens per second: prompts of 30 tokens with answers of 80, as prompts with log-probabilities."""
    random = Random(requests)
    waiting = iter(range(requests))

    async def client() -> None:
        for _ in waiting:
            prompt = [random.randrange(5, 4000) for _ in range(110)]
            await ask(port, {"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 20})

    began_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(streams)))
    return 80 * requests / (time.perf_counter() - began_s)


def scoring(layers: Sequence[int]) -> None:
    """Print scored answer tokens per second of 8 streams."""
    for depth in layers:
        with server(depth, None) as running:
            asyncio.run(scored(running.port, streams=8, requests=16))
            rates = [asyncio.run(scored(running.port, streams=8, requests=64)) for _ in range(5)]
            spread = f"[{min(rates):.0f}, {max(rates):.0f}]"
            print(f"scoring     {depth:2d} layers  {statistics.median(rates):6.0f} answer tokens/s {spread}", flush=True)


def speedup(layers: Sequence[int], passes: int) -> None:
    """Print the ratio of variant to baseline, one greedy stream."""
    for depth in layers:
        with ExitStack() as stack:
            servers = {n: stack.enter_context(server(depth, s)) for n, s in (("baseline", None), ("draft-k3", DRAFT), ("ngram-k3", NGRAM))}
            rates: dict[str, list[float]] = {name: [] for name in servers}
            spent: dict[str, float] = dict.fromkeys(servers, 0.0)
            for index in range(passes + 1):
                for name, running in servers.items():
                    before_s = running.cpu_s
                    rate = asyncio.run(one(running.port))
                    if index:
                        rates[name].append(rate)
                        spent[name] += running.cpu_s - before_s
        for name in list(servers)[1:]:
            ratios = [fast / slow for fast, slow in zip(rates[name], rates["baseline"], strict=True)]
            print(
                f"speedup     {depth:2d} layers  {name:9s} {statistics.median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]"
                f" over {passes} passes"
                f"  ({statistics.median(rates['baseline']):.0f} -> {statistics.median(rates[name]):.0f} tokens/s;"
                f" {spent['baseline'] / spent[name]:.2f}x in processor seconds)",
                flush=True,
            )


async def one(port: int) -> float:
    """Return tokens per second of one greedy client over all prompts."""
    began_s = time.perf_counter()
    got = 0
    for prompt in PROMPTS:
        got += await ask(port, {"prompt": prompt, "max_tokens": 96, "temperature": 0, "ignore_eos": True, "stream": True})
    return got / (time.perf_counter() - began_s)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("throughput", "scoring", "speedup", "all"), default="all")
    parser.add_argument("--layers", type=int, nargs="*", help="default: 4 and 24 for throughput and scoring, 24 and 48 for speedup")
    parser.add_argument("--passes", type=int, default=7)
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
    if asked.what in {"all", "throughput"}:
        throughput(asked.layers or (4, 24))
    if asked.what in {"all", "scoring"}:
        scoring(asked.layers or (4, 24))
    if asked.what in {"all", "speedup"}:
        speedup(asked.layers or (24, 48), asked.passes)


if __name__ == "__main__":
    main()
