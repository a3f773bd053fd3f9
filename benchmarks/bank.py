"""A bank: known distributions of a baseline and a draft at many positions, to draw emitted tokens from.

``python -m benchmarks.bank [FOLDER]`` captures one from the reference engine. The target answers sampled requests with prompt lookup as its
drafter; target and draft model then score every emitted token with their 20 most probable tokens. Kept are the distributions, not the
tokens: ``bank.npz``, some ten megabytes, and not committed.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.model.transcript import Position
from pytest_specdec.stats.draft_distribution import Lookup, index_of, map_draft, one_hot
from pytest_specdec.stats.raw_distribution import SLACK, RawDistribution, raw_distribution
from pytest_specdec.stats.token_distribution import Processing, TokenDistribution, requested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

FOLDER = Path(".specdec/bank")
FILE = "bank.npz"
TOP_TOKENS = 20
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every request asks to be done to the raw distribution."""

    temperature: float = 1.0
    top_k: int = 0
    """0 for all tokens."""
    top_p: float = 1.0

    def of(self, tokens: int) -> Processing:
        """Return the same for so many tokens."""
        return Processing(
            temperature=np.full(tokens, self.temperature),
            top_k=np.full(tokens, self.top_k, dtype=np.int64),
            top_p=np.full(tokens, self.top_p),
        )


PLAIN = Asked()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bank:
    """Positions to draw from: B distributions of a baseline with the draft's."""

    ids: Ints
    """[B, K]."""
    p: Floats
    """[B, K+1], as asked; the remainder last, at least 1e-6 at temperature 1."""
    q: Floats
    """[B, K+1], as asked."""
    drafted: Bools
    """[B], where a window that begins here has a draft."""
    vocabulary: int
    asked: Asked = PLAIN
    raw: Floats | None = None
    """[B, K+1], the baseline's distribution with nothing asked of it; None where ``p`` is that."""
    raw_q: Floats | None = None
    """[B, K+1], the draft's; None where ``q`` is that."""

    @property
    def unasked(self) -> Floats:
        """The baseline's distribution at temperature 1, nothing truncated, [B, K+1]."""
        return self.p if self.raw is None else self.raw

    @property
    def unasked_q(self) -> Floats:
        """The draft's distribution at temperature 1, nothing truncated, [B, K+1]."""
        return self.q if self.raw_q is None else self.raw_q

    def __len__(self) -> int:
        return len(self.p)


def asking(bank: Bank, asked: Asked) -> Bank:
    """Return ``bank`` as ``asked`` makes both its distributions; of a bank that nothing was asked of.

    The remainder is taken for equally probable tokens, as many as the vocabulary has beyond the top tokens, so the distributions are known
    whole.
    """
    p, q = (
        distribution if (distribution.max(axis=1) == 1.0).all() else _asked(distribution, asked, bank.vocabulary - bank.ids.shape[1])
        for distribution in (bank.p, bank.q)
    )
    return replace(bank, p=p, q=q, asked=asked, raw=bank.p, raw_q=bank.q)


def _asked(distribution: Floats, asked: Asked, beyond: int) -> Floats:
    """Return ``distribution`` cooled and cut to its nucleus; of a remainder that it ends in, the part inside. Top-k is not simulated."""
    assert not asked.top_k
    count = np.concatenate([np.ones(distribution.shape[1] - 1), [beyond]])
    each = (distribution / count) ** (1.0 / asked.temperature)
    order = np.argsort(-each, axis=1, kind="stable")
    mass = np.take_along_axis(each * count, order, axis=1)
    mass /= mass.sum(axis=1, keepdims=True)
    room = np.maximum(asked.top_p - (mass.cumsum(axis=1) - mass), 0.0)
    kept = np.where(count[order] > 1, np.minimum(mass, room), np.where(room > 0, mass, 0.0))
    cut = np.empty_like(distribution)
    np.put_along_axis(cut, order, kept, axis=1)
    return np.asarray(cut / cut.sum(axis=1, keepdims=True))


def zipf(random: np.random.Generator, *, positions: int, vocabulary: int, top_tokens: int, certain: bool = False) -> Bank:
    """Return made-up distributions: Zipf logits at many temperatures with noise, and a draft that is a noisy, cooler copy.

    A ``certain`` draft proposes its best token, and none at every fourth position.
    """
    rank = np.arange(1, vocabulary + 1)
    sharpness = random.uniform(0.3, 3.0, size=(positions, 1))
    logits = -sharpness * np.log(rank) + 0.7 * random.normal(size=(positions, vocabulary))
    guess = 0.95 * logits + random.normal(size=logits.shape)
    order = np.argsort(-logits, axis=1)[:, :top_tokens]
    target, draft = _softmax(logits), _softmax(guess)
    p = _coarse(target, order)
    q = _coarse(draft, order)
    if certain:
        q = one_hot(index_of(guess.argmax(axis=1).astype(np.int64), order.astype(np.int64)), top_tokens + 1)
    drafted = random.integers(4, size=positions) > 0 if certain else np.ones(positions, dtype=np.bool_)
    return Bank(ids=order.astype(np.int64), p=p, q=q, drafted=drafted, vocabulary=vocabulary)


def _softmax(logits: Floats) -> Floats:
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _coarse(distribution: Floats, order: npt.NDArray[np.intp]) -> Floats:
    top_tokens = np.take_along_axis(distribution, order, axis=1)
    remainder = np.maximum(1.0 - top_tokens.sum(axis=1, keepdims=True), SLACK)
    coarse = np.concatenate([top_tokens, remainder], axis=1)
    return np.asarray(coarse / coarse.sum(axis=1, keepdims=True))


@contextmanager
def server(model: str, *options: str) -> Iterator[Callable[[Mapping[str, object]], Mapping[str, object]]]:
    """Run a reference server for as long as the context is open; yields what sends a body to its completions route."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "specdec_reference", model, "--port", str(port), *options])
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
        top_ids=tuple(int(word) for word, _ in best[:TOP_TOKENS]),
        top_logprobs=tuple(one["logprob"] for _, one in best[:TOP_TOKENS]),
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
    bodies = [{"prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": TOP_TOKENS} for prompt, ids in said]
    replies = pool.map(ask, bodies)
    return [position for (prompt, ids), reply in zip(said, replies, strict=True) for position in _scored(reply, len(prompt), ids)]


def _arrays(
    said: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], scored: Sequence[Position], drafted: Sequence[Position]
) -> dict[str, np.ndarray]:
    target, draft = raw_distribution(scored, TOP_TOKENS), raw_distribution(drafted, TOP_TOKENS)
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
    """Return the bank with the draft distribution of ``kind``: ``model``, ``greedy`` or ``ngram``."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    distribution, draft = (
        _distribution(arrays[ids].astype(np.int64), arrays[logprobs].astype(float))
        for ids, logprobs in (("ids", "logprobs"), ("draft_ids", "draft_logprobs"))
    )
    ids, draft_ids = arrays["ids"].astype(np.int64), arrays["draft_ids"].astype(np.int64)
    everywhere = np.ones(len(ids), dtype=bool)
    q, drafted = {
        "model": lambda: (map_draft(draft.p, draft_ids, ids, distribution.p), everywhere),
        "greedy": lambda: (one_hot(index_of(draft_ids[:, 0], ids), ids.shape[1] + 1), everywhere),
        "ngram": lambda: (one_hot(index_of(arrays["proposed"].astype(np.int64), ids), ids.shape[1] + 1), arrays["proposed"] >= 0),
    }[kind]()
    return Bank(ids=ids, p=distribution.p, q=q, drafted=drafted, vocabulary=int(arrays["vocabulary"]))


def _distribution(ids: np.ndarray, logprobs: np.ndarray) -> TokenDistribution:
    n = len(ids)
    plain = Processing(temperature=np.ones(n), top_k=np.zeros(n, dtype=np.int64), top_p=np.ones(n))
    return requested(RawDistribution(ids=ids, logprobs=logprobs, chosen=ids[:, 0], chosen_logprobs=logprobs[:, 0]), plain)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--positions", type=int, default=20_160)
    asked = parser.parse_args()
    print(capture(asked.folder, asked.positions))
