"""The bug of mlx-lm 0.32.2 under speculation: run it with any Python where `make mlx-env` has been run.

    python3 docs/findings/mlx_lm_0322.py .

Exit 1 while it is there.
"""

from __future__ import annotations

import json
import os
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

PROMPT = "Once upon a time there was a little girl who lived in a small house. One day she"
SAME = 1e-3
"""Nats that two answers of one server to the same request may differ by."""
ASKED = {"model": "default_model", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": True}


@contextmanager
def server(folder: Path, *speculative: str | Path) -> Iterator[str]:
    """Serve the target with these arguments; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, model = folder / ".venv-mlx-lm/bin/mlx_lm.server", folder / ".specdec/checkpoints/target-f32"
    argv = [program, "--model", model, "--host", "127.0.0.1", "--port", str(port), *speculative]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def reported(address: str) -> list[tuple[int, float]]:
    """Return the ids of one answer with the log-probabilities that come with them, as soon as the server answers."""
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(ASKED).encode(), {"Content-Type": "application/json"})
    for _ in range(200):
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                content = json.load(reply)["choices"][0]["logprobs"]["content"]
                return [(entry["id"], entry["logprob"]) for entry in content]
        except OSError:
            time.sleep(0.1)  # until it answers
    sys.exit("mlx_lm.server did not start")


def main(folder: Path) -> int:
    """Ask each server the same twice; 1 when the second answer of the one with a draft model is another one."""
    wrong = 0
    for name, speculative in (("plain", ()), ("drafted", ("--draft-model", folder / ".specdec/checkpoints/draft-f32"))):
        with server(folder, *speculative) as address:
            first, again = reported(address), reported(address)
        print(f"{name:>8}, at first: " + " ".join(f"{token}:{logprob:.3f}" for token, logprob in first))
        print(f"{name:>8}, again:    " + " ".join(f"{token}:{logprob:.3f}" for token, logprob in again))
        wrong = sum(before[0] != after[0] or abs(before[1] - after[1]) > SAME for before, after in zip(first, again, strict=True))
        print(f"{name:>8}: {wrong} of {len(first)} tokens are others, or have another log-probability\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
