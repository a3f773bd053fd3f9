"""A bank of positions for the size of the sampling judge: ``python -m benchmarks.bank [FOLDER]`` captures it from the reference engine.

The target answers sampled requests with prompt lookup as its drafter; target and draft model then score every emitted token with their
20 most probable tokens. Kept are the laws, not the tokens: ``bank.npz``, some ten megabytes, and not committed.
"""

from __future__ import annotations

import argparse
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
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.score import Position
from pytest_specdec.stats.drafts import index_of, mapped, one_hot
from pytest_specdec.stats.laws import Law, Processing, Raw, requested
from pytest_specdec.stats.lookup import Lookup
from pytest_specdec.stats.positions import raw
from pytest_specdec.stats.simulation import Bank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FOLDER = Path(".specdec/bank")
FILE = "bank.npz"
ATOMS = 20
TOKENS = 96
LOOKUP = {"shortest": 2, "longest": 4}
SCENES = (
    "Once upon a time there was a small",
    "def main(argv):\n    parser =",
    "The history of the city begins",
    "import numpy as np\n\nclass Model:",
    "She said that the weather",
    "List of things to pack for a trip:\n-",
    "In the morning the children",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n",
    "Dear Sir, I am writing to",
)


@contextmanager
def server(model: str, *options: str) -> Iterator[Callable[[Mapping[str, object]], Mapping[str, object]]]:
    """Run a reference server for as long as the context is open; yields what sends a body to its completions route."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "pytest_specdec.reference", model, "--port", str(port), *options])
    try:
        _await(url, process)
        yield lambda body: _post(f"{url}/v1/completions", {"model": model, **body})
    finally:
        process.terminate()
        process.wait(timeout=20)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the reference server ended at boot"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)


def _post(url: str, body: Mapping[str, object]) -> Mapping[str, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _answered(reply: Mapping[str, object]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    choice = reply["choices"][0]
    return tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"])


def _scored(reply: Mapping[str, object], prompt: int, emitted: Sequence[int]) -> list[Position]:
    listed = reply["choices"][0]["prompt_logprobs"][prompt : prompt + len(emitted)]
    return [_position(token, entry) for token, entry in zip(emitted, listed, strict=True)]


def _position(token: int, entry: Mapping[str, Mapping[str, float]]) -> Position:
    best = sorted(entry.items(), key=lambda item: item[1]["rank"])
    return Position(
        token_id=token,
        logprob=entry[str(token)]["logprob"],
        atom_ids=tuple(int(word) for word, _ in best[:ATOMS]),
        atom_logprobs=tuple(one["logprob"] for _, one in best[:ATOMS]),
    )


def capture(folder: Path, positions: int) -> Path:
    """Capture at least ``positions`` positions into ``folder``."""
    bodies = [
        {
            "prompt": SCENES[i % len(SCENES)] + " " + SCENES[i // len(SCENES) % len(SCENES)],
            "temperature": 1.0,
            "seed": i + 1,
            "max_tokens": TOKENS,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        for i in range(-(-positions // TOKENS))
    ]
    with ThreadPoolExecutor(16) as pool:
        with server("target") as target:
            said = list(map(_answered, pool.map(target, bodies)))
            scored = _scores(pool, target, said)
        with server("draft") as draft:
            drafted = _scores(pool, draft, said)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, **_arrays(said, scored, drafted))
    return folder / FILE


def _scores(
    pool: ThreadPoolExecutor,
    ask: Callable[[Mapping[str, object]], Mapping[str, object]],
    said: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> list[Position]:
    bodies = [{"prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": ATOMS} for prompt, ids in said]
    replies = pool.map(ask, bodies)
    return [position for (prompt, ids), reply in zip(said, replies, strict=True) for position in _scored(reply, len(prompt), ids)]


def _arrays(
    said: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], scored: Sequence[Position], drafted: Sequence[Position]
) -> dict[str, np.ndarray]:
    target, draft = raw(scored, ATOMS), raw(drafted, ATOMS)
    proposed = np.array([token for prompt, ids in said for token in _proposed(prompt, ids)])
    return {
        "ids": target.ids.astype(np.int32),
        "logprobs": target.logprobs.astype(np.float32),
        "draft_ids": draft.ids.astype(np.int32),
        "draft_logprobs": draft.logprobs.astype(np.float32),
        "proposed": proposed.astype(np.int32),
        "vocabulary": np.array(1 + max(target.ids.max(), draft.ids.max())),
    }


def _proposed(prompt: Sequence[int], ids: Sequence[int]) -> Iterator[int]:
    """Yield what prompt lookup proposes before each emitted token; -1 for nothing."""
    lookup = Lookup(prompt, **LOOKUP)
    for token in ids:
        found = lookup.propose(1)
        yield found[0] if found else -1
        lookup.append(token)


def load(path: Path, kind: str) -> Bank:
    """Return the bank with the draft law of ``kind``: ``model``, ``greedy`` or ``ngram``."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    law, draft = (
        _law(arrays[ids].astype(np.int64), arrays[logprobs].astype(float))
        for ids, logprobs in (("ids", "logprobs"), ("draft_ids", "draft_logprobs"))
    )
    ids, draft_ids = arrays["ids"].astype(np.int64), arrays["draft_ids"].astype(np.int64)
    everywhere = np.ones(len(ids), dtype=bool)
    q, drafted = {
        "model": lambda: (mapped(draft.p, draft_ids, ids, law.p), everywhere),
        "greedy": lambda: (one_hot(index_of(draft_ids[:, 0], ids), ids.shape[1] + 1), everywhere),
        "ngram": lambda: (one_hot(index_of(arrays["proposed"].astype(np.int64), ids), ids.shape[1] + 1), arrays["proposed"] >= 0),
    }[kind]()
    return Bank(ids=ids, p=law.p, q=q, drafted=drafted, vocabulary=int(arrays["vocabulary"]))


def _law(ids: np.ndarray, logprobs: np.ndarray) -> Law:
    n = len(ids)
    plain = Processing(temperature=np.ones(n), top_k=np.zeros(n, dtype=np.int64), top_p=np.ones(n))
    return requested(Raw(ids=ids, logprobs=logprobs, chosen=ids[:, 0], chosen_logprobs=logprobs[:, 0]), plain)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--positions", type=int, default=20_160)
    asked = parser.parse_args()
    print(capture(asked.folder, asked.positions))
