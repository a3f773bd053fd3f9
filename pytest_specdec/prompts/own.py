"""Own prompts: those of a config's ``prompts``, sent together with the requests of a workload and under their parameters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import OWN, Request, Route
from pytest_specdec.prompts import schemas
from pytest_specdec.prompts.prompts import reporting_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.workload import JSON, Workload

__all__ = ["OwnPrompt", "digest_of", "with_own_prompts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrompt:
    """A conversation or the beginning of a text, from a config's prompts file."""

    id: str
    content: Mapping[str, JSON]
    """The field of the request's body with the prompt: ``messages`` or ``prompt``."""
    schema: Mapping[str, JSON] | None = None
    """The JSON Schema of its answer, where one is to be enforced."""
    max_tokens: int | None = None
    """Tokens of its answer at most; None for those of the workload."""

    @property
    def route(self) -> Route:
        """The route it is sent to."""
        return Route.CHAT if "messages" in self.content else Route.COMPLETIONS


def digest_of(prompts: Sequence[OwnPrompt]) -> str:
    """Return a digest of prompts in their order, empty without any.

    It has 16 hexadecimal digits.
    """
    if not prompts:
        return ""
    text = json.dumps([[one.id, one.content, one.schema, one.max_tokens] for one in prompts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_own_prompts(workload: Workload, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` with the config's own prompts in front.

    The workload is unchanged unless it has ``takes_prompts`` set. The new requests are sent at every depth that sends any
    request of the workload, with the parameters of its first request on their route, or of its first one if there is
    none. If the workload has groups (``turns``) with and without seeds, each prompt is sent in both. If its answers are
    constrained to a format, only prompts with a schema are sent, each constrained to its own.
    """
    if not (workload.takes_prompts and prompts):
        return workload
    groups = enumerate(workload.turns, 1)
    own_requests = tuple(request for number, group in groups for request in _own_requests(group, prompts, number))
    # A depth that sends no request of the workload sends none of these either.
    take = {depth: count + len(own_requests) if count else 0 for depth, count in workload.take.items()}
    return replace(workload, requests=(*own_requests, *workload.requests), take=take)


def _own_requests(group: Sequence[Request], prompts: Sequence[OwnPrompt], group_number: int) -> Iterator[Request]:
    """Yield a request for each prompt, with a group's parameters.

    The parameters are those of the group's first request on the prompt's route, or of its first one if there is none.
    Seeds continue after the group's highest, so that none is used twice. Prompts without a schema are left out if the
    group's answers are constrained to a format. ``group_number`` counts from 1; ids end with it after the first group.
    """
    suffix = f"#{group_number}" if group_number > 1 else ""
    highest = max((request.seed for request in group if isinstance(request.seed, int)), default=0)
    suitable = [prompt for prompt in prompts if prompt.schema is not None or "response_format" not in group[0].body]
    for number, prompt in enumerate(suitable, 1):
        template = next((request for request in group if request.route is prompt.route), group[0])
        yield Request(id=f"{OWN}{prompt.id}{suffix}", route=prompt.route, body=_own_body(prompt, template, seed=highest + number))


def _own_body(prompt: OwnPrompt, template: Request, *, seed: int) -> Mapping[str, JSON]:
    """Return the body for a prompt, with the parameters of ``template``.

    The prompt's own schema and token limit replace those of ``template``, under either name of the limit, and ``seed`` its
    seed if it has one.
    """
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
    """Return ``body`` with its log-probability fields in the form of ``route``.

    The two routes ask for log-probabilities with different fields, and the body may come from a request of the other
    one. A body that asks for none stays without them.
    """
    logprobs = body.get("top_logprobs") if body.get("logprobs") is True else body.get("logprobs")
    other_fields = {name: value for name, value in body.items() if name not in {"logprobs", "top_logprobs"}}
    if not isinstance(logprobs, int) or logprobs is False:  # False is an int of Python, and asks for none
        return other_fields
    return {**other_fields, **reporting_fields(route, logprobs)}
