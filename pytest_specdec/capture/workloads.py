"""Every copy of a workload on its way to the servers: as the config, the depth, the machine and a further round need it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from pytest_specdec.capture.events import events_of
from pytest_specdec.capture.server import context_limit
from pytest_specdec.capture.stated_limits import admission_limit, admitted_tokens
from pytest_specdec.capture.unmet_needs import shared_adapters
from pytest_specdec.config.config import Reasoning
from pytest_specdec.config.shipped import DOCS
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import BootError
from pytest_specdec.files import run_documents
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.workload import Family, Need, Request, Route, Workload
from pytest_specdec.prompts import adapters, between, context, load, long, own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.config.config import Config
    from pytest_specdec.files.run_directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.own import OwnPrompt

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def apply_config(workload: Workload, config: Config, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` with all that the config adds to it.

    These are LoRA adapters, a context length, events between requests, a soak's minutes, the user's own ``prompts``, and reasoning, which
    applies to those too. The plan then holds all that is sent, so that judging needs nothing else of the config.
    """
    engine = engine_of(config.engine.kind)
    if workload.needs is Need.ADAPTERS:
        workload = adapters.fill(workload, shared_adapters(config, engine))
    # An open workload has prompts given as lengths up to the context limit. If the config does not state that, a server fills them later.
    context_tokens = admitted_tokens(config) if context.is_open(workload) else None
    if context_tokens is not None:
        workload = context.fitted(workload, context_tokens)
    if workload.needs is Need.EVENTS:
        workload = between.with_events(workload, events_of(config, engine))
    if workload.needs is Need.ENDURANCE:
        workload = replace(workload, soak_s=60.0 * config.endurance.minutes)
    extended = own.with_own_prompts(workload, prompts)
    if config.reasoning == Reasoning():
        return extended
    # If several ways to ask for reasoning are configured, conversations take them in turn, by their numbers.
    numbered_requests = zip(extended.requests, _number_conversations(extended.requests), strict=True)
    return replace(extended, requests=tuple(add_reasoning(request, config.reasoning, number) for request, number in numbered_requests))


def _number_conversations(requests: Sequence[Request]) -> list[int]:
    """Return the number of each request's conversation, from 0.

    Conversations are numbered in the order of their first request. A completion belongs to none and has 0, which is not used.
    """
    numbers: dict[str, int] = {}
    return [
        0 if request.route is Route.COMPLETIONS else numbers.setdefault(_conversation_key(request), len(numbers)) for request in requests
    ]


def _conversation_key(request: Request) -> str:
    """Return the first user message of a request, as a key.

    Requests with the same key are compared with each other, or continue each other, and so have to ask for the same reasoning.
    """
    messages = request.body.get("messages", request.body.get("input"))
    if isinstance(messages, str):
        return repr(messages)
    entries = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, Sequence) else []
    return repr(next((message.get("content") for message in entries if message.get("role") == "user"), entries))


def add_reasoning(request: Request, reasoning: Reasoning, conversation: int = 0) -> Request:
    """Return a request that asks for reasoning as configured.

    What the request itself asks for stays. ``conversation`` is the number of its conversation: if several ways to ask are configured,
    conversations take them in turn. If a grammar binds the answer, the token limit is raised by the tokens of the reasoning: the document
    comes after it and would be cut off. A completion is unchanged.
    """
    if request.route is Route.COMPLETIONS:
        return request
    body: dict[str, JSON] = dict(request.body)
    if reasoning.template:
        request_kwargs = body.get("chat_template_kwargs")
        template = reasoning.template[conversation % len(reasoning.template)]
        body["chat_template_kwargs"] = {**template, **(request_kwargs if isinstance(request_kwargs, Mapping) else {})}
    if reasoning.effort:
        effort = reasoning.effort[conversation % len(reasoning.effort)]
        if request.route is Route.RESPONSES:
            body.setdefault("reasoning", {"effort": effort})
        else:
            body.setdefault("reasoning_effort", effort)
    limits = {name: value for name in _LIMITS if isinstance(value := body.get(name), int)}
    raised_limits = {name: value + reasoning.tokens for name, value in limits.items()} if request.grammar else {}
    return replace(request, body={**body, **raised_limits})


def drop_unread_scores(workload: Workload, families: set[Family]) -> Workload:
    """Return ``workload``, unscored if only its speed is judged.

    ``families`` judge it. If speed is the only one, no judge reads a distribution, and no draft model has to be booted.
    """
    return replace(workload, scored=False, draft_scored=False) if families == {Family.SPEED} else workload


def limit_concurrency(workload: Workload, config: Config, *, attached: bool) -> Workload:
    """Return the workload within the concurrency allowed by all arms.

    All arms get the same number of requests in flight. ``attached`` is True if one has an attached server, somebody else's, which is spared
    by default. The waves of a timed workload, groups of requests sent at once, get no larger than the servers admit: a request that waits
    for a free slot shows nothing about the speed of speculation.
    """
    limit = config.concurrency(attached=attached)
    if workload.timed and workload.waves:
        wave_limits = [bound for bound in (limit, admission_limit(config)) if bound is not None]
        return load.cut(workload, min(wave_limits)) if wave_limits else workload
    return workload if limit is None else replace(workload, concurrency=min(workload.concurrency, limit))


def enlarge(workloads: Sequence[Workload], deepest: Mapping[str, Workload], requests: Mapping[str, int]) -> tuple[Workload, ...]:
    """Return the workloads with other numbers of requests.

    ``requests`` has these numbers, by workload. They are taken from the ``deepest`` workloads, the whole lists. A workload without a number
    there is unchanged.
    """
    return tuple(
        replace(workload, requests=deepest[workload.name].requests[: requests[workload.name]]) if workload.name in requests else workload
        for workload in workloads
    )


_FILLING = threading.Lock()
"""Held so that servers side by side fill a workload only once."""


def fill_prompts(workload: Workload, directory: RunDirectory, plan: Plan, server: ArmServer) -> Workload:
    """Return ``workload`` with its open prompts filled to the limit.

    Open prompts are given as lengths. They become token ids, or text of this package's documentation, of which ``server`` makes token ids.
    The filled workload is written into the run, so that all later servers get the same prompts, and judges see them. Raises BootError if
    the server is gone for good: its silence must not decide how all arms are asked.
    """
    if not context.is_open(workload):
        return workload
    with _FILLING:
        written_workload = run_documents.read_workload(directory, plan, workload.name)
        if not context.is_open(written_workload):
            return written_workload  # another server, maybe one side by side with this, has filled it
        _require_server(server)
        baseline_limit = run_documents.read_capabilities(directory).get(BASELINE, Capabilities()).context_tokens
        limit = baseline_limit or context_limit.of(server)  # 0 if unknown
        fitted_workload = context.fitted(workload, limit or None)  # without a limit, prompts that depend on it are left out
        filled = long.write_prompts(fitted_workload, _documentation(), partial(_token_ids, server))
        if limit:  # else a later server may know it
            run_documents.write_workload(directory, filled)
        return filled


@cache
def _documentation() -> str:
    """Return the pages of the documentation, one after the other."""
    return "\n\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))


def _require_server(server: ArmServer) -> None:
    """Start the server again if it is dead.

    Raises BootError if no restart is left, or if it denies all access.
    """
    if server.lost or not server.ensure_running():
        what, reason = "no server is left that can fill the prompts", server.lost or "\n".join(server.log_tail()[-3:])
        raise BootError(what, where=_place(server), found=reason, expected="a server that answers", remedy="read the end of its log")


def _place(server: ArmServer) -> str:
    """Return the address of an attached server, else a server's log."""
    return server.recipe.setup.attached or str(server.recipe.log)


def _token_ids(server: ArmServer, request: Request) -> tuple[int, ...]:
    """Return a prompt's token ids on the server, empty without any.

    One that dies meanwhile is asked once more on a fresh start. Raises BootError if it dies again, or if no restart is left.
    """
    ids = server.client.prompt_token_ids(request)
    if ids or not server.wait_for_end():
        return ids
    _require_server(server)
    ids = server.client.prompt_token_ids(request)
    if not ids and (ending := server.wait_for_end()):
        what, expected = "the server died while it made the token ids of a prompt, twice", "ids, or a refusal"
        raise BootError(what, where=_place(server), found=ending, expected=expected, remedy="read the end of its log")
    return ids


def repeat(workload: Workload, round_: int) -> Workload:
    """Return ``workload`` as it is sent again in a further round.

    Further rounds settle whether wrong tokens recur. Prompts have another prefix in each: at an equal one, deterministic kernels repeat a
    harmless difference as faithfully as a fault.
    """
    requests = tuple(request.with_prefix(round_) for request in workload.requests)
    return replace(workload, name=f"{workload.name}.more{round_}", requests=requests)


def extend_requests(sent: Sequence[Workload], deepest: Workload, round_: int) -> Workload:
    """Return a workload with as many further requests as sent already.

    ``sent`` is the workload with its extensions so far, whose verdict is open. The requests come from ``deepest``, its whole list.
    ``round_`` is the number of the extension, from 1.
    """
    sent_requests = [request for workload in sent for request in workload.requests]
    source = _unsent_requests(deepest, {request.id for request in sent_requests}, round_)
    requests = tuple(request for request, _ in zip(source, sent_requests, strict=False))
    return replace(sent[0], name=f"{sent[0].name}.more{round_}", requests=requests)


def _unsent_requests(whole: Workload, sent_ids: set[str], round_: int) -> Iterator[Request]:
    """Yield the unsent requests of a list, then all again without end.

    Repeated requests get ids of their own, from the round and the repetition. One with a seed gets another seed, derived from its new id,
    so that it draws anew.
    """
    yield from (request for request in whole.requests if request.id not in sent_ids)
    lap = 0
    while True:
        lap += 1
        for request in whole.requests:
            new_id = f"{request.id}@{round_}.{lap}"
            seed = {"seed": _derive_seed(new_id)} if request.seed is not None else {}
            yield replace(request, id=new_id, body={**request.body, **seed})


def _derive_seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
