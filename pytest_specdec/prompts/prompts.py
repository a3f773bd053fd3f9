"""Prompts: texts of our own with where they came from, in named collections that make workloads."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from itertools import cycle, zip_longest
from typing import TYPE_CHECKING, TypedDict, Unpack

from pytest_specdec.model.workload import Depth, Request, Route, Workload
from pytest_specdec.prompts import crash_cases, schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.workload import JSON

__all__ = ["PassesFields", "Prompt", "Prompts", "TrafficFields", "load_bundled", "make_workload", "reporting_fields"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation's first message, or the beginning of a text."""

    id: str
    """Stable over versions: ``code-03``."""
    category: str
    route: Route
    text: str
    schema: str = ""
    """Name in :data:`pytest_specdec.prompts.schemas.SCHEMAS` of the schema that an answer fits; empty without one."""
    provenance: str
    """Who wrote it, under which licence."""

    @property
    def content(self) -> dict[str, JSON]:
        """The prompt in the request's body: ``messages`` or ``prompt``."""
        if self.route is Route.CHAT:
            return {"messages": [{"role": "user", "content": self.text}]}
        return {"prompt": self.text}


def load_bundled() -> tuple[Prompt, ...]:
    """Return this package's own prompts, in the order of the file."""
    text = resources.files("pytest_specdec.prompts").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return tuple(_prompt(json.loads(line)) for line in text.splitlines() if line)


def _prompt(fields: dict[str, str]) -> Prompt:
    return Prompt(**{**fields, "route": Route(fields["route"])})  # type: ignore[arg-type]


class TrafficFields(TypedDict, total=False):
    """The fields of a Workload that every method of Prompts passes on."""

    version: int
    concurrency: int
    stream: bool
    timed: bool
    scored: bool
    draft_scored: bool
    top_tokens: int
    may_kill: bool
    deadline_s: float
    takes_prompts: bool


class PassesFields(TrafficFields, total=False):
    """The fields of TrafficFields, and ``passes`` where no parameter has that name."""

    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Some prompts under a name, and the workloads that are made of them.

    The requests of a workload keep their ids over versions. The methods' ``traffic`` are further fields of the Workload.
    """

    name: str
    category: str
    """What the prompts are; ``mixed`` where they are of several kinds."""
    items: tuple[Prompt, ...]

    @classmethod
    def interleaved(cls, name: str, parts: Sequence[Prompts]) -> Prompts:
        """Return the prompts of ``parts``, one of each in turn.

        So the first few, which a shallow depth sends, are of every kind.
        """
        rounds = zip_longest(*(part.items for part in parts))
        return cls(name=name, category="mixed", items=tuple(item for prompts in rounds for item in prompts if item is not None))

    def after(self, count: int) -> Prompts:
        """Return the prompts after the first ``count``."""
        return replace(self, items=self.items[count:])

    def greedy(
        self,
        *,
        max_tokens: int = 128,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        name: str = "",
        take: Mapping[Depth, int] | None = None,
        **traffic: Unpack[PassesFields],
    ) -> Workload:
        """Return one request per prompt at temperature 0.

        ``take`` has the number of requests sent at each depth, the first ones of the list; a depth that is missing in it
        sends all. The prompts of a user's config are sent as well, under these parameters (``takes_prompts``). Penalties
        that are None are left out of the bodies.
        """
        penalty_values = (("presence_penalty", presence_penalty), ("frequency_penalty", frequency_penalty))
        penalties: dict[str, JSON] = {key: value for key, value in penalty_values if value is not None}
        body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, **penalties}
        requests = [_plain_request(prompt, body) for prompt in self.items]
        settings: PassesFields = {"takes_prompts": True, **traffic}
        return make_workload(name or f"{self.name}-{'penalised' if penalties else 'greedy'}", requests, take, settings)

    def sampled(
        self,
        *,
        temperature: float = 1.0,
        max_tokens: int = 64,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        requests: int | None = None,
        prompts: int | None = None,
        logprobs: int | None = None,
        seeded: bool = True,
        name: str = "",
        take: Mapping[Depth, int] | None = None,
        **traffic: Unpack[PassesFields],
    ) -> Workload:
        """Return ``requests`` sampled requests; for None, one per prompt.

        Only the first ``prompts`` prompts are used, all for None. They are sent in turn, again and again. Request i, from 0,
        has the seed i + 1. Without ``seeded`` none has a seed, as in production: engines leave their fast sampler while any
        request of the batch has one.

        Fields that are None are left out of the bodies, except ``top_p``, which is then 1. With ``logprobs`` the answers
        report the log-probability of each token, and of that many most probable ones. ``take`` has the number of requests
        sent at each depth. Unless ``traffic`` says otherwise, the prompts of a user's config are sent as well
        (``takes_prompts``), and the draft model's distribution at the emitted tokens is captured (``draft_scored``).
        """
        truncations: dict[str, JSON] = {key: value for key, value in (("top_k", top_k), ("min_p", min_p)) if value is not None}
        body: dict[str, JSON] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": 1.0 if top_p is None else top_p,
            **truncations,
        }
        items = self.items[:prompts]
        count = len(items) if requests is None else requests
        draws = [_draw(items, index, body, logprobs, seeded=seeded) for index in range(count)]
        settings: PassesFields = {"draft_scored": True, "takes_prompts": True, **traffic}
        return make_workload(name or self._sampled_name(temperature, {"p": top_p, "k": top_k, "m": min_p}), draws, take, settings)

    def structured(
        self,
        *,
        schema: str | Mapping[str, JSON] | None = None,
        max_tokens: int = 128,
        name: str = "",
        take: Mapping[Depth, int] | None = None,
        **traffic: Unpack[PassesFields],
    ) -> Workload:
        """Return two structured requests per chat prompt at temperature 0.

        One answer is constrained to a schema, the other to any JSON object. ``schema`` is the name of one of
        :data:`pytest_specdec.prompts.schemas.SCHEMAS`, or a JSON Schema; by default it is the prompt's own, or for a prompt
        without one the next of SCHEMAS in turn. The answers are scored, so that a wrong token shows even if the grammar
        allows it. Raises ValueError if no prompt is for the chat route.
        """
        chats = self._conversations()
        body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0}
        requests: list[Request] = []
        for index, prompt in enumerate(chats):
            bound_schema = schema or prompt.schema or schemas.in_turn(index)
            requests.append(_plain_request(prompt, {**body, "response_format": schemas.bound(bound_schema)}))
            requests.append(_plain_request(prompt, {**body, "response_format": schemas.ANY_OBJECT}, suffix="#object"))
        return make_workload(name or f"{self.name}-structured", requests, take, {"takes_prompts": True, **traffic})

    def structured_draws(
        self,
        *,
        temperature: float = 1.0,
        max_tokens: int = 48,
        requests: int | None = None,
        name: str = "",
        take: Mapping[Depth, int] | None = None,
        **traffic: Unpack[PassesFields],
    ) -> Workload:
        """Return ``requests`` structured chat requests at a temperature above 0.

        Each chat prompt is sent with each format of :data:`schemas.DRAWN`, with a seed and right after it without one, and all
        again until there are ``requests``; for None each is sent once. The answers are judged by validity alone, so that nothing
        is scored. Raises ValueError if no prompt is for the chat route.
        """
        cases = [(prompt, kind, bound) for prompt in self._conversations() for kind, bound in schemas.DRAWN.items()]
        body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1.0}
        draws: list[Request] = []
        for index in range(2 * len(cases) if requests is None else requests):
            prompt, kind, bound = cases[index // 2 % len(cases)]
            seed = {"seed": index + 1} if index % 2 == 0 else {}
            draws.append(_plain_request(prompt, {**body, **seed, "response_format": bound}, suffix=f"#{kind}-{index + 1}"))
        settings: PassesFields = {"scored": False, "takes_prompts": True, **traffic}
        return make_workload(name or f"{self.name}-structured-t{temperature:g}", draws, take, settings)

    def liveness(self, *, name: str = "", take: Mapping[Depth, int] | None = None, **traffic: Unpack[PassesFields]) -> Workload:
        """Return a workload with one request per crash case.

        The cases are lengths, limits, parameters and formats known to kill servers. The workload is marked as one that
        may kill, so that it is sent last in a boot.
        """
        requests = [case.request(prompt) for case, prompt in zip(crash_cases.CRASH_CASES, cycle(self.items), strict=False)]
        settings: PassesFields = {"scored": False, "may_kill": True, **traffic}
        return make_workload(name or f"{self.name}-liveness", requests, take, settings)

    def speed(
        self,
        *,
        max_tokens: int = 256,
        passes: int = 4,
        name: str = "",
        take: Mapping[Depth, int] | None = None,
        **traffic: Unpack[TrafficFields],
    ) -> Workload:
        """Return one timed, streamed request per prompt at temperature 0.

        They are sent one at a time. Answers ignore the end of sequence, so that every one has ``max_tokens`` tokens.
        """
        body: dict[str, JSON] = {"max_tokens": max_tokens, "temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
        settings: PassesFields = {"passes": passes, "timed": True, "stream": True, "concurrency": 1, "scored": False, **traffic}
        return make_workload(name or f"{self.name}-timed", [_plain_request(prompt, body) for prompt in self.items], take, settings)

    def _conversations(self) -> list[Prompt]:
        """Return the chat route's prompts; raise ValueError without any."""
        chats = [prompt for prompt in self.items if prompt.route is Route.CHAT]
        if not chats:
            msg = f"{self.name} has no prompt for the chat route, which response_format needs"
            raise ValueError(msg)
        return chats

    def __repr__(self) -> str:
        return f"<Prompts {self.name}: {len(self.items)} {self.category}>"

    def _sampled_name(self, temperature: float, truncations: Mapping[str, float | None]) -> str:
        """Return a workload's name with its sampling parameters.

        ``truncations`` has the parameters other than temperature, by letter. Neutral values are left out: temperature 1,
        and None for the others.
        """
        parameters = [("t", temperature if temperature != 1.0 else None), *truncations.items()]
        return "-".join([self.name, "sampled", *(f"{letter}{value:g}" for letter, value in parameters if value is not None)])


def _draw(items: Sequence[Prompt], index: int, body: Mapping[str, JSON], logprobs: int | None, *, seeded: bool) -> Request:
    """Return sampled request number ``index`` + 1.

    The number is also its seed, if it is ``seeded``. Prompts repeat after the last; a repeated prompt's request has the
    number in its id. ``logprobs`` is the number of most probable tokens to report, None for no log-probabilities.
    """
    number, prompt = index + 1, items[index % len(items)]
    seed = {"seed": number} if seeded else {}
    logprob_fields = {} if logprobs is None else reporting_fields(prompt.route, logprobs)
    return _plain_request(prompt, {**body, **seed, **logprob_fields}, suffix=f"#{number}" if number > len(items) else "")


def reporting_fields(route: Route, logprobs: int) -> Mapping[str, JSON]:
    """Return the fields to ask for log-probabilities on ``route``.

    The server then reports the log-probability of each emitted token, and of the ``logprobs`` most probable ones.
    """
    return {"logprobs": logprobs} if route is Route.COMPLETIONS else {"logprobs": True, "top_logprobs": logprobs}


def _plain_request(prompt: Prompt, body: Mapping[str, JSON], *, suffix: str = "") -> Request:
    return Request(id=f"{prompt.id}{suffix}", route=prompt.route, body={**prompt.content, **body})


def make_workload(name: str, requests: Sequence[Request], take: Mapping[Depth, int] | None, traffic: PassesFields) -> Workload:
    """Return a workload of version 1, unless ``traffic`` has another one.

    ``take`` has the number of requests sent at each depth; None sends all.
    """
    settings: PassesFields = {"version": 1, **traffic}
    return Workload(name=name, requests=tuple(requests), take=take or {}, **settings)
