"""Answers of the reference engine, right and with each fault, to the same few requests in this process."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from dataclasses import replace
from typing import TYPE_CHECKING

from specdec_reference.faults.catalogue import FAULTS, planted_in
from specdec_reference.faults.planted import Place
from tests.reference.asgi_client import GREEDY, NGRAM, PROBABILISTIC, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.queues import SimpleQueue
    from pathlib import Path

    from pytest_specdec.model.workload import JSON

__all__ = ["items"]

_LONGEST_S = 30.0
"""A hundred times what all requests to one server take."""
_PROMPT = "The river was calm, and the boat"
_COMPLETIONS: tuple[dict[str, JSON], ...] = (
    {"temperature": 0, "max_tokens": 24, "logprobs": 3},
    {"temperature": 1, "seed": 7, "max_tokens": 24},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": 3, "max_tokens": 16, "n": 2},
    {"temperature": 0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"40": 2.0}, "max_tokens": 16},
    {"temperature": 0, "max_tokens": 40, "stop": [" the"], "return_token_ids": True},
    {"temperature": 0, "max_tokens": 24, "response_format": {"type": "json_object"}},
)
_CHAT: tuple[dict[str, JSON], ...] = (
    {"temperature": 0, "max_tokens": 24, "logprobs": True, "top_logprobs": 2},
    {"seed": 5, "max_tokens": 16},
)


def items(_: Path) -> Iterator[tuple[str, JSON]]:
    """Yield a hash of the answers of each server: without speculation, with each way of drafting, and with each fault."""
    for name, speculation in {"alone": None, "probabilistic": PROBABILISTIC, "greedy": GREEDY, "ngram": NGRAM}.items():
        yield name, _hashes(speculation)
    context = multiprocessing.get_context("fork")
    for fault in planted_in(Place.REFERENCE):
        drafting = {key.replace("-", "_"): value for key, value in FAULTS[fault].drafting.items()}
        fields = {"num_speculative_tokens": "tokens", "prompt_lookup_min": "n_min", "prompt_lookup_max": "n_max"}
        changes = {fields.get(key, key): value for key, value in drafting.items()}
        speculation = replace(PROBABILISTIC, **{key: value for key, value in changes.items() if hasattr(PROBABILISTIC, key)})
        answers = context.SimpleQueue()
        settings = {"fault": fault, "reasoning_end": '":' if FAULTS[fault].reasons else ""}
        process = context.Process(target=_put, args=(answers, speculation, settings))  # some faults end it, or keep it waiting
        process.start()
        process.join(_LONGEST_S)
        waits = process.is_alive()
        if waits:
            process.kill()
            process.join()
        yield fault, "waits" if waits else f"ended by {process.exitcode}" if process.exitcode else answers.get()


def _put(answers: SimpleQueue[JSON], speculation: object, settings: dict[str, object]) -> None:
    answers.put(_hashes(speculation, **settings))


def _hashes(speculation: object, **settings: object) -> JSON:
    """Return a hash for every request, or what went wrong: some faults end or hang up."""
    hashes: dict[str, JSON] = {}
    with served(speculation, spec_decode_metrics="detailed", **settings) as server:
        for number, body in enumerate(_COMPLETIONS):
            hashes[f"completion {number}"] = _answer(server, "/v1/completions", {"prompt": _PROMPT, **body})
        for number, body in enumerate(_CHAT):
            hashes[f"chat {number}"] = _answer(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": _PROMPT}], **body})
    return hashes


def _answer(server: object, path: str, body: dict[str, JSON]) -> str:
    try:
        status, raw = server.ask(path, body)  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - how a faulty server fails is its answer
        return type(error).__name__
    reply = json.loads(raw) if raw[:1] == b"{" else raw.decode(errors="replace")
    if isinstance(reply, dict):
        reply = {key: value for key, value in reply.items() if key not in {"id", "created"}}
    return f"{status} {hashlib.sha256(json.dumps(reply, sort_keys=True).encode()).hexdigest()}"
