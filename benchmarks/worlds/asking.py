"""Asking: what the body of a request does to a made-up model's logits and to the length of its answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.worlds import documents
from benchmarks.worlds.language import END, VOCABULARY
from pytest_specdec.prompts.context import fitted, is_open

if TYPE_CHECKING:
    import numpy.typing as npt

    from benchmarks.worlds.language import Ids, Logits
    from pytest_specdec.model.workload import JSON, Request, Workload

    Floats = npt.NDArray[np.float64]

__all__ = ["Asking", "Batch", "askings", "cut", "masked", "processed", "simulable"]

PROMPT_TOKENS, _MOST, _CONTEXT = 8, 64, 1024
_UNKNOWN = ("bad_words", "repetition_penalty", "stop")
"""Fields that act on words: there are none here."""
_GREEDY = 1e-5
_NOWHERE = np.float32(-1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One answer that a request asks for."""

    request: Request
    choice: int = 0
    alone: bool = False
    """Whether nothing else is in flight: its kernels then compute the same numbers every time."""
    prompt: int = 0
    """A hash of the prompt."""

    @property
    def temperature(self) -> float:
        """Of the draw; 0 for the best token."""
        return _number(self.request.body.get("temperature"), 1.0)

    @property
    def most(self) -> int:
        """Tokens at most."""
        return int(_number(self.request.body.get("max_tokens"), _MOST))

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Made-up ids, other ones for every prompt."""
        return tuple(int(each) for each in np.random.default_rng(self.prompt).integers(2, VOCABULARY, PROMPT_TOKENS))

    @property
    def stream(self) -> tuple[int, int, int]:
        """What a seeded answer's random numbers hang on."""
        return (int(_number(self.request.seed, 0.0)), self.choice, 7)


def _number(value: JSON, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def askings(workload: Workload) -> tuple[Asking, ...]:
    """Return the answers that ``workload`` asks for, in the order of its requests."""
    alone = {request.id for turn in workload.turns if len(turn) == 1 for request in turn}
    return tuple(
        Asking(request=request, choice=index, alone=request.id in alone or workload.concurrency == 1, prompt=_hash(request.prompt_key))
        for request in workload.requests
        for index in range(int(_number(request.body.get("n"), 1.0)))
    )


def simulable(workload: Workload) -> Workload:
    """Return ``workload`` for a context of 1,024 tokens, without requests on words or for documents that are unknown."""
    requests = fitted(workload, _CONTEXT).requests if is_open(workload) else workload.requests
    known = (r for r in requests if not any(name in r.body for name in _UNKNOWN) and (not r.grammar or documents.text(r)))
    return replace(workload, requests=tuple(known))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The fields of A answers as arrays."""

    asked: tuple[Asking, ...]
    temperature: Floats
    """[A], 0 for the best token."""
    most: Ids
    """[A], tokens at most."""
    ignores_end: npt.NDArray[np.bool_]
    added: Logits | None
    """[A, V], nats that requests add to tokens."""
    bound: npt.NDArray[np.bool_]
    """[A], whether a grammar binds the answer."""
    presence: Floats
    frequency: Floats
    top_p: Floats
    top_k: Ids
    min_p: Floats
    penalises: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalises", bool(self.presence.any() or self.frequency.any()))

    @classmethod
    def of(cls, asked: tuple[Asking, ...]) -> Batch:
        """Return the batch of ``asked``."""

        def column(name: str, otherwise: float) -> Floats:
            return np.array([_number(one.request.body.get(name), otherwise) for one in asked])

        added = [_added(one) for one in asked]
        return cls(
            asked=asked,
            temperature=np.array([one.temperature for one in asked]),
            most=np.array([one.most for one in asked], dtype=np.int64),
            ignores_end=np.array([one.request.body.get("ignore_eos") is True for one in asked]),
            added=None if all(each is None for each in added) else np.stack([_zeros() if each is None else each for each in added]),
            bound=np.array([one.request.grammar is not None for one in asked]),
            presence=column("presence_penalty", 0.0),
            frequency=column("frequency_penalty", 0.0),
            top_p=column("top_p", 1.0),
            top_k=column("top_k", 0.0).astype(np.int64),
            min_p=column("min_p", 0.0),
        )


def _zeros() -> Logits:
    return np.zeros(VOCABULARY, dtype=np.float32)


def _added(one: Asking) -> Logits | None:
    body = one.request.body
    bias, allowed = body.get("logit_bias"), body.get("allowed_token_ids")
    if not bias and not allowed:
        return None
    added = _zeros()
    if isinstance(bias, dict):
        for token, nats in bias.items():
            if int(token) < VOCABULARY:
                added[int(token)] += _number(nats, 0.0)
    if isinstance(allowed, list):
        permitted = np.zeros(VOCABULARY, dtype=np.bool_)
        permitted[[token for token in allowed if token < VOCABULARY]] = True
        added[~permitted] = _NOWHERE
    return added


def masked(logits: Logits, batch: Batch, rows: Ids, contexts: Ids, step: int) -> Logits:
    """Return ``logits`` [N, V] of the answers ``rows`` [N] at token ``step`` with what grammars forbid behind ``contexts`` [N]."""
    bound = batch.bound[rows]
    if not bound.any():
        return logits
    permits = np.arange(VOCABULARY)[None, :] == END if step == documents.TOKENS - 1 else documents.allowed()[contexts]
    return np.where(bound[:, None] & ~permits, _NOWHERE, logits)


def processed(logits: Logits, batch: Batch, rows: Ids, counts: Logits | None) -> Logits:
    """Return ``logits`` [N, V] of the answers ``rows`` [N] with biases and penalties of the tokens so far, ``counts`` [N, V]."""
    changed = logits
    if batch.added is not None:
        changed = changed + batch.added[rows]
    if counts is not None and batch.penalises:
        more = batch.presence[rows, None] * (counts > 0) + batch.frequency[rows, None] * counts
        changed = changed - more.astype(np.float32)
    return changed


def cut(logits: Logits, batch: Batch, rows: Ids) -> Logits:
    """Return ``logits`` at each answer's temperature, cut by min-p, top-k and top-p; not normalised."""
    heat = np.maximum(batch.temperature[rows], _GREEDY)[:, None]
    logits = (logits / heat).astype(np.float32)
    tops, most, least = batch.top_p[rows], batch.top_k[rows], batch.min_p[rows]
    some = np.flatnonzero((tops < 1.0) | (most > 0) | (least > 0.0))
    if len(some):
        logits[some] = _cut(logits[some], tops[some, None], most[some, None], least[some, None])
    return logits


def _cut(logits: Logits, top_p: Floats, top_k: Ids, min_p: Floats) -> Logits:
    order = np.argsort(-logits, axis=1, kind="stable")
    ranked = np.take_along_axis(logits, order, axis=1)
    mass = np.exp((ranked - ranked[:, :1]).astype(np.float64))
    keeps = (mass >= min_p) & ((top_k <= 0) | (np.arange(VOCABULARY) < top_k))
    mass = np.where(keeps, mass, 0.0)
    keeps &= np.cumsum(mass, axis=1) - mass < top_p * mass.sum(axis=1, keepdims=True)
    cut_off = np.empty_like(logits)
    np.put_along_axis(cut_off, order, np.where(keeps, ranked, _NOWHERE), axis=1)
    return cut_off
