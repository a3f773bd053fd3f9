"""Requests as a config asks them: its own prompts beside those of a workload, arguments of the chat template, room for reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Request, Route, Workload
from pytest_specdec.prompts import own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.config import Config, Reasoning
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.own import OwnPrompt

__all__ = ["configured", "reasoned"]

_LIMITS = ("max_tokens", "max_completion_tokens")


def configured(workload: Workload, config: Config, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` as ``config`` asks it; what is sent is in the plan, so that nothing else of the config is needed to judge."""
    extended = own.extended(workload, prompts)
    return replace(extended, requests=tuple(reasoned(request, config.reasoning) for request in extended.requests))


def reasoned(request: Request, reasoning: Reasoning) -> Request:
    """Return a chat request that asks for reasoning as configured, but for what it asks itself.

    Where a grammar binds its answer, the document that is wanted comes behind the reasoning, which its limit would cut.
    """
    if request.route is not Route.CHAT:
        return request
    body: dict[str, JSON] = dict(request.body)
    if reasoning.template:
        asked = body.get("chat_template_kwargs")
        body["chat_template_kwargs"] = {**reasoning.template, **(asked if isinstance(asked, Mapping) else {})}
    if reasoning.effort:
        body.setdefault("reasoning_effort", reasoning.effort)
    limits = {name: value for name in _LIMITS if isinstance(value := body.get(name), int)}
    return replace(request, body={**body, **{name: value + reasoning.tokens for name, value in limits.items() if request.grammar}})
