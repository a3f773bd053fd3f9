"""The bug of llama.cpp 0.5.0 under speculation: run it with any Python beside the server that `make llama-env` builds.

    python3 docs/findings/llama_cpp_050.py .llama-server

Exit 1 while it is there.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = {"prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0.0, "logprobs": 1}


@contextmanager
def server(folder: Path, *speculative: str) -> Iterator[str]:
    """Serve the target with these arguments; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [folder / "llama-server", "-m", folder / "target.gguf", "--port", str(port), "-c", "2048", "-np", "1", "-t", "1", *speculative]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def reported(address: str) -> list[tuple[str, float]]:
    """Return the tokens of one answer with the log-probabilities that come with them, as soon as the server answers."""
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(ASKED).encode(), {"Content-Type": "application/json"})
    for _ in range(200):
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                content = json.load(reply)["choices"][0]["logprobs"]["content"]
                return [(entry["token"], entry["logprob"]) for entry in content]
        except OSError:
            time.sleep(0.05)
    sys.exit("llama-server did not start")


def main(folder: Path) -> int:
    """Print the tokens and both servers' log-probabilities side by side; 1 when they differ."""
    with server(folder) as address:
        plain = reported(address)
    with server(folder, "-md", str(folder / "draft.gguf"), "--spec-type", "draft-simple") as address:
        drafted = reported(address)
    for (token, before), (other, after) in zip(plain, drafted, strict=True):
        print(f"{token!r:>12} {before:9.4f}   {other!r:>12} {after:9.4f}")
    before, after = (sum(logprob == 0.0 for _, logprob in tokens) for tokens in (plain, drafted))
    print(f"log-probability exactly 0.0: {before} of {len(plain)} plain, {after} of {len(drafted)} drafted")
    return int(after > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
