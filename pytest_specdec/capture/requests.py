"""Requests as a config asks them: with its own prompts, arguments of the chat template, and room for reasoning."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.arguments import fill
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.model.workload import Request, Route, Workload
from pytest_specdec.prompts import context, own

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config, Reasoning
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.own import OwnPrompt

_LIMITS = ("max_tokens", "max_completion_tokens")


def apply_config(workload: Workload, config: Config, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` with the prompts and settings of ``config``.

    The plan holds all that is sent, so that judging needs nothing else of the config.

    Where the config states no context, requests up to it stay open: the servers then report the length of theirs.
    """
    context_tokens = _least_value(config, engine_of(config.engine.kind).rules.context) if context.is_open(workload) else None
    if context_tokens is not None:
        workload = context.fitted(workload, context_tokens)
    extended = own.with_own_prompts(workload, prompts)
    turns: dict[str, int] = {}
    request_turns = [
        turns.setdefault(_conversation_key(request), len(turns)) if request.route is Route.CHAT else 0 for request in extended.requests
    ]
    requests = [with_reasoning(request, config.reasoning, turn) for request, turn in zip(extended.requests, request_turns, strict=True)]
    return replace(extended, requests=tuple(requests))


def admission_limit(config: Config) -> int | None:
    """Return the lowest limit on concurrently computed requests of all servers.

    None where the arguments of one of them do not state it.
    """
    return _least_value(config, engine_of(config.engine.kind).rules.admitted)


def _least_value(config: Config, names: Sequence[str]) -> int | None:
    """Return the least value of an argument in any server.

    ``names`` are the names of the argument. None where one of the servers has no such argument.
    """
    arms = [fill(config, config.baseline, os.environ), *(fill(config, variant, os.environ) for variant in config.variants)]
    plain_args = [{plain(name): value for name, value in args.items()} for args in arms]
    values = [next((args[name] for name in names if name in args), None) for args in plain_args]
    numbers = [int(number) for number in values if str(number).isdigit() and isinstance(number, int | str)]
    return min(numbers) if len(numbers) == len(values) else None


def _conversation_key(request: Request) -> str:
    """Return the first user message, as the key of a conversation.

    Requests that agree in it are compared with each other, or continue each other.
    """
    messages = request.body.get("messages")
    entries = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, Sequence) else []
    return repr(next((message.get("content") for message in entries if message.get("role") == "user"), entries))


def with_reasoning(request: Request, reasoning: Reasoning, turn: int = 0) -> Request:
    """Return a chat request asking for reasoning as configured.

    What the request itself asks for stays. Of several ways to ask, it gets the one whose ``turn`` it is. Where a
    grammar binds its answer, the document comes after the reasoning and would be cut by the limit, so that the limit
    is raised.
    """
    if request.route is not Route.CHAT:
        return request
    body: dict[str, JSON] = dict(request.body)
    if reasoning.template:
        request_kwargs = body.get("chat_template_kwargs")
        template = reasoning.template[turn % len(reasoning.template)]
        body["chat_template_kwargs"] = {**template, **(request_kwargs if isinstance(request_kwargs, Mapping) else {})}
    if reasoning.effort:
        body.setdefault("reasoning_effort", reasoning.effort[turn % len(reasoning.effort)])
    limits = {name: value for name in _LIMITS if isinstance(value := body.get(name), int)}
    return replace(request, body={**body, **{name: value + reasoning.tokens for name, value in limits.items() if request.grammar}})
