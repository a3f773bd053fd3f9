"""Own prompts: those of a config's ``prompts``, sent together with the requests of a workload and under their parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import OWN, Request, Route
from pytest_specdec.prompts import schemas
from pytest_specdec.prompts.prompts import reporting_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.workload import JSON, Workload

__all__ = ["OwnPrompt", "with_own_prompts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrompt:
    """A conversation or the beginning of a text, as a line of the file has it."""

    id: str
    content: Mapping[str, JSON]
    """The part of the request's body that asks: ``messages`` or ``prompt``."""
    schema: Mapping[str, JSON] | None = None
    """The JSON Schema of its answer, where one is to be enforced."""
    max_tokens: int | None = None
    """Tokens of its answer at most; None for those of the workload."""

    @property
    def route(self) -> Route:
        """The route it is sent to."""
        return Route.CHAT if "messages" in self.content else Route.COMPLETIONS


def with_own_prompts(workload: Workload, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` with a request for each prompt in front.

    They are sent at every depth that sends anything of the workload. A request has the parameters of the
    workload's first one. If a part of the workload has seeds and a part has none, each prompt is asked both
    ways. If answers are bound to a format, only prompts with a schema are asked, each bound to its own. Other
    requests stay as they are.
    """
    if not workload.takes_prompts:
        return workload
    own_requests = tuple(request for number, turn in enumerate(workload.turns, 1) for request in _requests_of_turn(turn, prompts, number))
    take = {depth: count and count + len(own_requests) for depth, count in workload.take.items()}
    return replace(workload, requests=(*own_requests, *workload.requests), take=take)


def _requests_of_turn(turn: Sequence[Request], prompts: Sequence[OwnPrompt], turn_number: int) -> Iterator[Request]:
    """Yield the requests of one turn.

    Seeds go on from the highest there.
    """
    suffix = f"#{turn_number}" if turn_number > 1 else ""
    highest = max((request.seed for request in turn if isinstance(request.seed, int)), default=0)
    suitable = [prompt for prompt in prompts if prompt.schema is not None or "response_format" not in turn[0].body]
    for number, prompt in enumerate(suitable, 1):
        template = next((request for request in turn if request.route is prompt.route), turn[0])
        yield Request(id=f"{OWN}{prompt.id}{suffix}", route=prompt.route, body=_own_body(prompt, template, seed=highest + number))


def _own_body(prompt: OwnPrompt, template: Request, *, seed: int) -> Mapping[str, JSON]:
    """Return the body for a prompt, under the parameters of ``template``."""
    body = {name: value for name, value in template.body.items() if name not in {"prompt", "messages"}}
    if "seed" in body:
        body["seed"] = seed
    if "response_format" in body and prompt.schema is not None:
        body["response_format"] = schemas.bound(prompt.schema)
    if prompt.max_tokens is not None:
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = prompt.max_tokens
    return {**prompt.content, **_with_route_logprobs(body, prompt.route)}


def _with_route_logprobs(body: Mapping[str, JSON], route: Route) -> Mapping[str, JSON]:
    """Return ``body`` with log-probabilities asked in the way of ``route``.

    It asks for them only if ``body`` does.
    """
    logprobs = body.get("top_logprobs") if body.get("logprobs") is True else body.get("logprobs")
    other_fields = {name: value for name, value in body.items() if name not in {"logprobs", "top_logprobs"}}
    # False is an int of Python, and asks for no log-probabilities.
    return {**other_fields, **reporting_fields(route, logprobs)} if isinstance(logprobs, int) and logprobs is not False else other_fields
