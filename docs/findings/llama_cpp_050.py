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
import urllib.error
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
                time.sleep(0.05)  # until it answers
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


def eagle3(folder: Path) -> tuple[str, ...]:
    """Return the arguments of a server with four slots and the EAGLE-3 head."""
    return ("-c", "4096", "-np", "4", "-md", str(folder / "eagle3.gguf"), "--spec-type", "draft-eagle3")


def accepted(folder: Path, clients: int) -> dict[int, float]:
    """Return the share of draft tokens accepted by slot, over the same greedy answers, ``clients`` of them at a time."""
    bodies = [{"prompt": f"def {name}(a, b):", "n_predict": 64, "temperature": 0.0, "cache_prompt": False} for name in NAMES]
    with server(folder, *eagle3(folder)) as address, ThreadPoolExecutor(clients) as pool:
        replies = list(pool.map(lambda body: post(address, "/completion", body), bodies))
    shares = {}
    for slot in sorted({reply["id_slot"] for reply in replies}):
        timings = [reply["timings"] for reply in replies if reply["id_slot"] == slot]
        drafted, kept = (sum(timing.get(name, 0) for timing in timings) for name in ("draft_n", "draft_n_accepted"))
        shares[slot] = kept / max(drafted, 1)
    return shares


def falls(folder: Path) -> bool:
    """Print how many EAGLE-3 drafts are accepted, alone and together; return whether some slot has less than half of what it has alone."""
    shares = {clients: accepted(folder, clients) for clients in CLIENTS}
    for clients, by_slot in shares.items():
        listed = ", ".join(f"slot {slot} {share:.3f}" for slot, share in by_slot.items())
        print(f"draft-eagle3, drafts accepted with {clients} at a time: {listed}")
    return min(shares[CLIENTS[-1]].values()) < 0.5 * min(shares[1].values())


def two_choices(folder: Path) -> bool:
    """Ask for two answers to one prompt; return whether that is an error with the EAGLE-3 head alone."""
    statuses = []
    for args in (("-c", "4096", "-np", "4"), eagle3(folder)):
        with server(folder, *args) as address:
            try:
                post(address, "/v1/completions", {**ASKED, "n": 2})
                statuses.append("200")
            except urllib.error.HTTPError as error:
                statuses.append(f"{error.code} {json.load(error)['error']['message']}")
    print(f"n: 2: {statuses[0]} plain, {statuses[1]!r} with draft-eagle3")
    return statuses[0] == "200" != statuses[1]


def main(folder: Path) -> int:
    """Show each; 1 while one of them is there."""
    return int(any([zeros(folder), falls(folder), two_choices(folder)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
