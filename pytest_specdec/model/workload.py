"""A workload: a named, versioned, digested set of requests plus their traffic."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import TypeAlias, cast

from pytest_specdec.model.event import Event
from pytest_specdec.model.grammar import Grammar, read_grammar

__all__ = ["GATED_CLIENTS", "JSON", "OUTSIDE_FAMILY", "OWN", "Depth", "Family", "Need", "Request", "Route", "Workload"]

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"


class Depth(StrEnum):
    """How many requests every arm is sent."""

    SMOKE = "smoke"
    STANDARD = "standard"
    DEEP = "deep"


OUTSIDE_FAMILY = r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)+"
"""The form of a name that another package gives its family: ``acme.tone``. Names without a dot are this package's."""


class Family(StrEnum):
    """The name of a probe family, in the order of the report; ``model/families.py`` has its row.

    Those without a dot are this package's own, by the probe that catches a real bug first. Dotted names are other packages' and are no
    members here.
    """

    GREEDY = "greedy"
    SAMPLING = "sampling"
    PARAMETERS = "parameters"
    LOGPROBS = "logprobs"
    STRUCTURED = "structured"
    LIVENESS = "liveness"
    SEEDS = "seeds"
    LENGTHS = "lengths"
    INVARIANTS = "invariants"
    TOOLS = "tools"
    RESPONSES = "responses"
    STATE = "state"
    BETWEEN = "between"
    CONCURRENCY = "concurrency"
    CONTEXT = "context"
    LONG = "long"
    PRESSURE = "pressure"
    ADAPTERS = "adapters"
    IMAGES = "images"
    OFFLOAD = "offload"
    ENDURANCE = "endurance"
    SPEED = "speed"

    @classmethod
    def _missing_(cls, value: object) -> Family | None:
        """Return the family of another package for a dotted name.

        The same name always gives the same object, as :class:`enum.Flag` does for unnamed values, so that ``is`` works.
        Returns None for any other value, which makes it invalid.
        """
        if not isinstance(value, str) or not re.fullmatch(OUTSIDE_FAMILY, value):
            return None
        outside = str.__new__(cls, value)
        outside._name_ = outside._value_ = value
        return cast("Family", cls._value2member_map_.setdefault(value, outside))


class Route(StrEnum):
    """The OpenAI endpoint that a request goes to."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"
    """The Responses API: a body in its own form, ``input`` instead of ``messages``."""


_PROMPTING = {"prompt", "messages", "input", "instructions", "tools", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt"}
"""Fields that make the prompt, together with the route."""
_PREFIXED = {"prompt", "messages", "input"}
_NEUTRAL = {
    *("prompt", "messages", "chat_template_kwargs", "reasoning_effort", "max_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "seed", "logprobs", "top_logprobs"),
}
"""Fields that leave the distribution alone, those of the prompt and values apart."""
_ENDING = {"stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"}
"""Fields that decide where an answer ends and leave the distribution alone."""
_WEIGHTS = ("model", "lora_path", "lora", "lora_request")
"""Fields that choose the weights, in the words of OpenAI and vLLM, SGLang, llama.cpp and TensorRT-LLM."""
CALIBRATION = ".calibration"
"""The ending of names of workloads that measure the servers themselves: the noise of a run, and their defaults."""
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
OWN = "own:"
"""The beginning of ids of requests that come from the prompts of a config."""
GATED_CLIENTS = 8
"""The one number of clients at which a timed workload of several is gated; the others are reported."""


class Need(StrEnum):
    """What a workload needs of a config's servers besides OpenAI's routes; without it the workload is sent to no arm."""

    ADAPTERS = "adapters"
    """At least two LoRA adapters, by the names that requests give."""
    ENDURANCE = "endurance"
    """Minutes of the same traffic, which the config states."""
    EVENTS = "events"
    """An event that the engine has an endpoint for or the config names, on servers started here."""
    IMAGES = "images"
    """A model that takes images in the content parts of a message."""
    LONG_CONTEXT = "long-context"
    """Sequences longer than those that the family ``context`` covers anyway."""
    OFFLOAD = "offload"
    """A second tier for the key-value cache, such as the memory of the host."""
    THINKING_BUDGET = "thinking-budget"
    """A model that reasons, on an engine that knows ``thinking_token_budget``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as a client would write it."""

    id: str
    """Unique in its workload, stable over versions: ``chat-07``."""
    route: Route
    """The endpoint, whose form ``body`` has."""
    body: Mapping[str, JSON]
    """The OpenAI body with its prompt; without ``model``, ``stream`` and what capture adds to learn token ids."""
    abort_after: int | None = None
    """Chunks of a stream after which the client leaves; None to read it to its end."""
    stream: bool | None = None
    """Whether its answer is streamed; None where its workload says."""
    server_defaults: bool = False
    """Whether the server's own sampling parameters are to show: no dialect states others in their place."""
    adapter: str = ""
    """Name of the LoRA adapter that its body asks for; empty for the model without one."""

    @property
    def weights(self) -> Mapping[str, JSON]:
        """The fields of its body that choose the weights; empty for the server's own model.

        The tokens of its answer are scored with the same fields.
        """
        return {name: self.body[name] for name in _WEIGHTS if name in self.body}

    @property
    def digest(self) -> str:
        """A digest of route and body, 8 hexadecimal digits.

        Two runs of different versions or depths sent the same request if both id and digest are equal.
        """
        content = json.dumps([self.route, self.body], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    @property
    def prompt_key(self) -> str:
        """A text of the route and the prompt's fields, equal for equal prompts.

        Fields that a chat template reads, such as ``tools``, belong to the prompt.
        """
        return json.dumps([self.route, {name: value for name, value in self.body.items() if name in _PROMPTING}], sort_keys=True)

    @property
    def unprocessed(self) -> bool:
        """True if its tokens are drawn from the model's unprocessed distribution.

        This needs temperature 1, top_p 1, and no field but those known to leave the distribution alone: an unknown one might change it.
        """
        return self.body.keys() <= _NEUTRAL and self.body.get("temperature") == 1.0 and self.body.get("top_p", 1.0) == 1.0

    @property
    def draws_by_default(self) -> bool:
        """True if it states no sampling parameter, so that the server's own defaults apply, and its client reads to the end."""
        return self.abort_after is None and self.body.keys() <= _NEUTRAL - {"temperature", "top_p"}

    @property
    def draws_as_asked(self) -> bool:
        """True if it asks for a temperature above 0; without one a server's default applies, which may be unknown."""
        return "temperature" in self.body and not self.greedy

    @property
    def takes_likeliest(self) -> bool:
        """True if each of its tokens is the likeliest of the model's unprocessed distribution, and its client reads to the end."""
        return self.greedy and self.abort_after is None and self.body.keys() <= _NEUTRAL | _ENDING

    @property
    def grammar(self) -> Grammar | None:
        """The grammar that constrains its answer; None without one.

        It is read from ``response_format``, on the responses route ``text.format``, from ``structured_outputs`` or, for vLLM before 0.12,
        a ``guided_`` field. A constraint of another form, such as tools, gives a grammar without kind and text.
        """
        return read_grammar(self.body, self._response_format)

    @property
    def _response_format(self) -> JSON:
        """The response format in the chat route's form; the Responses API has it under ``text.format``, one level flatter."""
        text = self.body.get("text")
        text_format = text.get("format") if isinstance(text, Mapping) else None
        if not (isinstance(text_format, Mapping) and text_format):
            return self.body.get("response_format")
        return {"type": text_format.get("type"), "json_schema": text_format}

    @property
    def token_limit(self) -> int | None:
        """Most tokens of its answer; None without a limit."""
        for name in _LIMITS:
            if isinstance(limit := self.body.get(name), int):
                return limit
        return None

    @property
    def seed(self) -> JSON:
        """Its seed; None without one."""
        return self.body.get("seed")

    @property
    def greedy(self) -> bool:
        """True if its temperature is 0, so that nothing is drawn.

        A request without a temperature is not greedy: the server's default applies, which is 1 by the protocol.
        """
        return self.body.get("temperature") == 0

    @property
    def draws_unseeded(self) -> bool:
        """True if its tokens are sampled without a seed."""
        return self.seed is None and not self.greedy

    @property
    def asks(self) -> str:
        """A text of the route and the body without its seed: equal texts draw from one distribution."""
        return self._text_without("seed")

    @property
    def asks_without_limit(self) -> str:
        """A text of the route and the body without seed and token limit: equal texts have one distribution after equal tokens."""
        return self._text_without("seed", *_LIMITS)

    def _text_without(self, *names: str) -> str:
        return json.dumps([self.route, {name: value for name, value in self.body.items() if name not in names}], sort_keys=True)

    def with_prefix(self, number: int) -> Request:
        """Return the same request with a prefix before its prompt.

        It is sent if a count of wrong tokens left a verdict open, to count more. The same request again would show nothing new: with
        deterministic kernels a harmless difference recurs as surely as a fault does. So each ``number``, from 1, makes another prompt.
        Token ids cannot take a line of text; the first id is repeated instead, ``number`` times.
        """
        prefixed = {name: _with_prefix(value, number) for name, value in self.body.items() if name in _PREFIXED}
        return replace(self, body={**self.body, **prefixed})


def _with_prefix(prompt: JSON, number: int) -> JSON:
    """Return ``prompt`` with a prefix of its own for each ``number``.

    ``prompt`` is a text, token ids, a batch of these, a list of messages or one message. Of messages, and of the parts of one, only the
    first changes; of a batch each prompt does. Anything else is returned unchanged.
    """
    if isinstance(prompt, str):
        return f"Part {number}.\n\n{prompt}"
    if isinstance(prompt, Mapping):
        return {**prompt, **{name: _with_prefix(value, number) for name, value in prompt.items() if name in {"content", "text"}}}
    if not isinstance(prompt, Sequence) or not prompt:
        return prompt
    first, *others = prompt  # of token ids, messages, parts of a message or prompts
    if isinstance(first, int):
        return [*[first] * number, *prompt]  # token ids, to which no line of text can be added
    rest = others if isinstance(first, Mapping) else [_with_prefix(other, number) for other in others]
    return [_with_prefix(first, number), *rest]


def _split_unseeded(requests: tuple[Request, ...]) -> tuple[tuple[Request, ...], ...]:
    """Return the requests in two groups, sampling without a seed in the second.

    The groups are never in flight together: engines leave their fast sampler as soon as one request of the batch has a
    seed, and the unseeded requests would then not test it. An empty group is left out.
    """
    unseeded = tuple(request for request in requests if request.draws_unseeded)
    others = tuple(request for request in requests if not request.draws_unseeded)
    return tuple(group for group in (others, unseeded) if group)


def _with_room(request: Request, factor: int) -> Request:
    limits = {name: factor * limit for name in _LIMITS if isinstance(limit := request.body.get(name), int)}
    return replace(request, body={**request.body, **limits})


def _draws_seeded(request: Request) -> bool:
    return request.seed is not None and not request.greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A set of requests and how they are sent.

    ``requests`` is the list at the deepest depth; :meth:`at` gives the part that a shallower depth sends. Requests are sent in order,
    ``concurrency`` at a time, in the ``turns`` that they fall into; ``passes`` repeats the whole list.
    """

    name: str
    """Of its files and in reports: letters, digits and ``._+-``, one workload of that name in a run."""
    version: int
    """Raised whenever the requests change."""
    requests: tuple[Request, ...]
    """All of them, those of the deepest depth."""
    take: Mapping[Depth, int] = field(default_factory=dict)
    """Requests sent at each depth; all of them where a depth is missing."""
    concurrency: int = 8
    """Requests in flight at once."""
    waves: tuple[int, ...] = ()
    """Sizes of the groups that the requests are sent in, in order: a group at once, when the one before has been answered.

    Requests after the last group form one more. Empty to keep ``concurrency`` requests in flight throughout.
    """
    passes: int = 1
    """Times that the whole list is sent; up to twice as often where it is timed side by side, without waves, and passes vary too much."""
    stream: bool = False
    """Whether answers are streamed: then the windows of a speculative server can be read off its chunks."""
    timed: bool = False
    """Whether seconds matter: captured under the machine-wide timing lease, alone, after one warm-up pass that is dropped."""
    scored: bool = True
    """Whether the baseline scores the tokens of the variants and of the control."""
    draft_scored: bool = False
    """Whether the draft model's distribution at the emitted tokens is wanted, where a draft model can be served alone."""
    top_tokens: int = 20
    """Most probable tokens reported per scored position."""
    scored_to: int | None = None
    """Tokens of the longest sequence that is scored, prompt and answer; None to score all."""
    may_kill: bool = False
    """Whether it may take the server down: captured last in a boot."""
    deadline_s: float = 120.0
    """Seconds after which an unanswered request counts as hung."""
    small_cache: bool = False
    """Whether baseline and variants answer it from servers of their own with a small key-value cache; the control's is the usual one."""
    takes_prompts: bool = False
    """Whether the prompts of the config are sent as well, under the parameters of these requests."""
    needs: Need | None = None
    """What it needs of the config's servers besides OpenAI's routes; None for nothing."""
    soak_s: float = 0.0
    """Seconds for which its requests are sent again and again after the first pass, their answers kept as sums; 0 for none."""
    events: tuple[Event, ...] = ()
    """What is done to the server between requests, each right before one; the server is then started anew for whatever comes later."""

    def at(self, depth: Depth) -> Workload:
        """Return the workload with the requests sent at ``depth``.

        They are the first ``take[depth]`` ones, or all of them if ``take`` has no such depth.
        """
        return replace(self, requests=self.requests[: self.take.get(depth, len(self.requests))], take={})

    def with_room(self, times: int) -> Workload:
        """Return the workload with every token limit multiplied by ``times``."""
        return self if times == 1 else replace(self, requests=tuple(_with_room(request, times) for request in self.requests))

    @property
    def token_limit(self) -> int:
        """Most tokens of all answers over all passes, by the requests' token limits.

        Requests without a limit count as 0.
        """
        return self.passes * sum(request.token_limit or 0 for request in self.requests)

    @property
    def by_id(self) -> dict[str, Request]:
        """The requests by id, in the order they are sent."""
        return {request.id: request for request in self.requests}

    @property
    def calibrates(self) -> bool:
        """True if this workload measures the servers themselves and gets no verdict."""
        return self.name.endswith(CALIBRATION)

    @property
    def own_requests(self) -> int:
        """Number of requests that come from the config's prompts."""
        return sum(request.id.startswith(OWN) for request in self.requests)

    @property
    def turns(self) -> tuple[tuple[Request, ...], ...]:
        """Groups of requests that may be in flight together.

        Without ``waves`` there are two groups at most, and requests that sample without a seed are in the second. With ``waves``, each wave
        is a group, or two if it samples both with and without a seed.
        """
        if not self.waves:
            return _split_unseeded(self.requests)
        # Engines leave their fast sampler while a request in flight draws with a seed: the unseeded ones beside it would not test it.
        # A wave without such a request stays whole, greedy and unseeded ones together.
        groups = (_split_unseeded(wave) if any(map(_draws_seeded, wave)) else (wave,) for wave in self.in_waves)
        return tuple(group for wave_groups in groups for group in wave_groups)

    @property
    def in_waves(self) -> tuple[tuple[Request, ...], ...]:
        """The requests of each wave, in order.

        Requests after the last wave form one more. Without ``waves`` all requests are one wave.
        """
        ends = [*accumulate(self.waves), len(self.requests)]
        cuts = (self.requests[start:end] for start, end in pairwise([0, *ends]))
        return tuple(wave for wave in cuts if wave)

    @property
    def gated_requests(self) -> tuple[Request, ...]:
        """The requests whose speed is gated.

        A wave is a group of requests sent at once, each by a client. Only waves of GATED_CLIENTS clients are gated or, without such, of
        the largest number below it. All requests are gated without waves, or if every wave is larger.
        """
        sizes = [size for size in map(len, self.in_waves) if size <= GATED_CLIENTS]
        if not self.waves or not sizes:
            return self.requests
        return tuple(request for wave in self.in_waves if len(wave) == max(sizes) for request in wave)

    @property
    def traffic_digest(self) -> str:
        """A digest of how the requests are sent, 16 hexadecimal digits.

        Requests, waves and events do not enter it, so that it is the same at every depth.
        """
        return replace(self, requests=(), waves=(), events=()).digest

    @property
    def digest(self) -> str:
        """A digest of the requests and how they are sent, 16 hexadecimal digits.

        ``abort_after``, ``stream`` of a request, ``waves``, ``soak_s`` and ``events`` enter it only if they are set: workloads without them
        keep the digest that stored runs have.
        """
        request_contents = [
            [r.id, r.route, r.body, *([] if r.abort_after is None else [r.abort_after]), *([] if r.stream is None else [str(r.stream)])]
            for r in self.requests
        ]
        traffic = [self.name, self.version, self.concurrency, self.passes, self.stream, self.timed, self.top_tokens]
        traffic += [list(self.waves)] if self.waves else []
        traffic += [["soak", self.soak_s]] if self.soak_s else []
        traffic += [[[e.name, e.before, [[s.path, s.body, *s.command] for s in e.steps]] for e in self.events]] if self.events else []
        text = json.dumps([traffic, request_contents], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<Workload {self.name} v{self.version}: {len(self.requests)} requests, {self.digest}>"
