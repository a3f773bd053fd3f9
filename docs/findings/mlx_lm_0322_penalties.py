"""Penalties of mlx-lm 0.32.2 under speculation: run it with any Python beside the environment that `make mlx-env` makes.

    python3 docs/findings/mlx_lm_0322_penalties.py .venv-mlx-lm specdec_reference/checkpoints

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

PLAIN = {"prompt": "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return", "max_tokens": 16, "temperature": 0.0}
PENALISED = {**PLAIN, "presence_penalty": 2.0, "presence_context_size": 1000}


@contextmanager
def server(program: Path, *args: str) -> Iterator[str]:
    """Serve with these arguments; yield the address, as soon as it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [program, "--host", "127.0.0.1", "--port", str(port), *args]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60)
                break
            except OSError:
                time.sleep(0.1)  # until it answers
        else:
            sys.exit("mlx_lm.server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def text(address: str, body: dict[str, object]) -> str:
    """Return the text of one answer."""
    data = json.dumps({"model": "default_model", **body}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return str(json.load(reply)["choices"][0]["text"])


def main(program: Path, checkpoints: Path) -> int:
    """Print the answers without and with a draft model; 1 where the penalised ones differ and the plain ones do not."""
    target, draft = ("--model", str(checkpoints / "target")), ("--draft-model", str(checkpoints / "draft"))
    answers = []
    for args in (target, (*target, *draft)):
        with server(program, *args) as address:
            answers.append((text(address, PLAIN), text(address, PENALISED)))
    (plain, penalised), (drafted, drafted_penalised) = answers
    print(f"no penalty:       {plain!r}\n with a draft:    {drafted!r}")
    print(f"presence penalty: {penalised!r}\n with a draft:    {drafted_penalised!r}")
    return int(plain == drafted and penalised != drafted_penalised)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) / "bin" / "mlx_lm.server", Path(sys.argv[2])))
