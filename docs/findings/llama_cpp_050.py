"""The bugs of llama.cpp 0.5.0 under speculation: run it with any Python beside the server that `make llama-env` builds.

    python3 docs/findings/llama_cpp_050.py .llama-server

Exit 1 while one of them is there.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = {"prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0.0, "logprobs": 1}
NAMES = ("add", "read", "find", "sort", "open", "parse", "write", "close", "split", "join", "merge", "count")
CLIENTS = (1, 4)


@contextmanager
def server(folder: Path, *args: str) -> Iterator[str]:
    """Serve the target with these arguments; yield its address, as soon as it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [folder / "llama-server", "-m", folder / "target.gguf", "--port", str(port), "-t", "1", *args]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(400):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60)
                break
            except OSError:
                time.sleep(0.05)
        else:
            sys.exit("llama-server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def post(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the reply."""
    request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return dict(json.load(reply))


def reported(address: str) -> list[tuple[str, float]]:
    """Return the tokens of one answer with the log-probabilities that come with them."""
    content = post(address, "/v1/completions", ASKED)["choices"][0]["logprobs"]["content"]
    return [(entry["token"], entry["logprob"]) for entry in content]


def zeros(folder: Path) -> bool:
    """Print the tokens and both servers' log-probabilities side by side; return whether drafting made some of them 0."""
    with server(folder, "-c", "2048", "-np", "1") as address:
        plain = reported(address)
    with server(folder, "-c", "2048", "-np", "1", "-md", str(folder / "draft.gguf"), "--spec-type", "draft-simple") as address:
        drafted = reported(address)
    for (token, before), (other, after) in zip(plain, drafted, strict=True):
        print(f"{token!r:>12} {before:9.4f}   {other!r:>12} {after:9.4f}")
    before, after = (sum(logprob == 0.0 for _, logprob in tokens) for tokens in (plain, drafted))
    print(f"log-probability exactly 0.0: {before} of {len(plain)} plain, {after} of {len(drafted)} drafted")
    return after > 0


def acceptance(folder: Path, clients: int, *args: str) -> float:
    """Return the share of draft tokens accepted over the same greedy answers, ``clients`` of them at a time."""
    eagle3 = ("-md", str(folder / "eagle3.gguf"), "--spec-type", "draft-eagle3")
    bodies = [{"prompt": f"def {name}(a, b):", "n_predict": 64, "temperature": 0.0, "cache_prompt": False} for name in NAMES]
    with server(folder, "-c", "4096", "-np", "4", *eagle3, *args) as address, ThreadPoolExecutor(clients) as pool:
        timings = [reply["timings"] for reply in pool.map(lambda body: post(address, "/completion", body), bodies)]
    drafted, accepted = (sum(timing.get(name, 0) for timing in timings) for name in ("draft_n", "draft_n_accepted"))
    return accepted / drafted


def falls(folder: Path) -> bool:
    """Print how many EAGLE-3 drafts are accepted, alone and together; return whether fewer are where slots have caches of their own."""
    shares = {cache: [acceptance(folder, count, cache) for count in CLIENTS] for cache in ("--no-kv-unified", "--kv-unified")}
    for cache, (alone, together) in shares.items():
        print(f"draft-eagle3 {cache:15}: {alone:.3f} of the drafts accepted with {CLIENTS[0]} client, {together:.3f} with {CLIENTS[1]}")
    alone, together = shares["--no-kv-unified"]
    return together < 0.8 * alone


def main(folder: Path) -> int:
    """Show both; 1 while one of them is there."""
    return int(any([zeros(folder), falls(folder)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
