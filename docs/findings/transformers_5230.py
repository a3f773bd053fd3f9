"""Two bugs of `transformers serve` 5.23.0 under speculation: run it with any Python beside the server of `make transformers-env`.

    python3 docs/findings/transformers_5230.py .venv-transformers specdec_reference/checkpoints/target

Exit 1 while one is there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = {"prompt": "Once upon a time there was a", "max_tokens": 12, "temperature": 0.0}


@contextmanager
def server(venv: Path, model: Path) -> Iterator[str]:
    """Serve the model; yield its address when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [venv / "bin" / "transformers", "serve", model.absolute(), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)  # until it answers
        yield address
    finally:
        process.terminate()
        process.wait(20)


def ask(address: str, drafting: dict[str, int], **more: object) -> tuple[int, bytes]:
    """Return status and body of a completion, drafted as ``drafting`` says."""
    body = {**ASKED, **more, "generation_config": json.dumps({"do_sample": False, **drafting})}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def choice(reply: tuple[int, bytes]) -> dict[str, Any]:
    """Return the choice of a whole answer."""
    return json.loads(reply[1])["choices"][0]  # type: ignore[no-any-return]  # JSON is untyped


def main(venv: Path, model: Path) -> int:
    """Print what is asked and answered; 1 when one of the bugs shows."""
    with server(venv, model) as address:
        whole = json.loads(ask(address, {"assistant_early_exit": 2})[1])
        stream = ask(address, {"assistant_early_exit": 2}, stream=True)[1].decode()
        last = json.loads(stream.strip().rpartition("data: ")[2])
        counts = [(reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) for reply in (whole, last)]
        print("whole, drafted:   {} tokens, {!r}\nstreamed, drafted: {} tokens, {!r}".format(*counts[0], *counts[1]))
        before = choice(ask(address, {}))["text"]
        status = ask(address, {"assistant_early_exit": 2}, stop=["used"])[0]
        after = choice(ask(address, {}))["text"]
        print(f"before:            {before!r}\nearly exit, stop:  status {status}\nafter, undrafted:  {after!r}")
    return int(counts[0] != counts[1] or before != after)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
