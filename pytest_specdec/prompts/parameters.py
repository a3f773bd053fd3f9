"""Requests with sampling parameters: doses of one each, and a covering array of pairs of them.

A dose is one value of a parameter, with the prompts that it is sent with. A factor of the covering array is a parameter with its values;
a row of the array has a level, the index of a value, for each factor. The value None leaves the parameter out.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_specdec.model.workload import Request, Route, Workload
from pytest_specdec.prompts import CODE, COPY, REPEAT, STORY
from pytest_specdec.prompts.covering import pairwise
from pytest_specdec.prompts.prompts import Prompts, make_workload, reporting_fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from pytest_specdec.model.workload import JSON, Depth
    from pytest_specdec.prompts.prompts import Prompt, TrafficFields

__all__ = ["DOSES", "FACTORS", "doses", "pairs"]

COMMON: Final = (6, 8, 10, 11, 12, 13, 198, 220, *range(256, 512))
"""Token ids of bytes, punctuation and the first merges, which byte-level vocabularies number alike: frequent in any text."""
_WORDS: Final = ("the", "self", "return", "import", "name", "state", "item", ",", ".", "=", "(", "|")
_PHRASES: Final = ("the old stone", "self.name", "import os", "red paint", "unexpected token", "state=up", "read the manual", "return a")
_BANS: Final[Mapping[str, JSON]] = {str(token): -100 for token in COMMON[::2]}
_FORCED: Final[Mapping[str, JSON]] = {"300": 100}

_TEXTS: Final = Prompts.interleaved("texts", (CODE, REPEAT, COPY))
_FREE: Final = Prompts.interleaved("free", (CODE, STORY))
_PAIRED: Final = Prompts.interleaved("paired", (COPY, REPEAT, CODE))
_LOOPS: Final = Prompts.interleaved("loops", (REPEAT, CODE))
"""Answers to these repeat tokens early, so that penalties on tokens of the answer change the choice."""


class Dose(NamedTuple):
    """Requests with one value of a sampling parameter."""

    parameter: str
    prompt_count: int
    """How many of the first of ``prompts`` are sent."""
    prompts: Prompts
    fields: Mapping[str, JSON]
    """Of each request's body: the parameter, mostly with a temperature at which it shows."""


DOSES: Final[tuple[Dose, ...]] = (
    Dose("min_p", 1, _TEXTS, {"temperature": 1.0, "min_p": 1.0}),
    Dose("top_k", 1, _TEXTS, {"top_k": 1}),
    Dose("allowed_token_ids", 1, _TEXTS, {"temperature": 0.0, "allowed_token_ids": list(COMMON)}),
    Dose("bad_words", 1, _TEXTS, {"temperature": 0.0, "bad_words": list(_WORDS)}),
    Dose("logit_bias", 1, _TEXTS, {"temperature": 0.0, "logit_bias": _BANS}),
    Dose("frequency_penalty", 1, _LOOPS, {"temperature": 0.0, "frequency_penalty": 2.0}),
    Dose("logit_bias", 2, _TEXTS, {"temperature": 0.0, "logit_bias": _BANS}),
    Dose("logit_bias", 1, _TEXTS, {"temperature": 0.0, "logit_bias": _FORCED}),
    Dose("allowed_token_ids", 2, _TEXTS, {"temperature": 0.0, "allowed_token_ids": list(COMMON)}),
    Dose("bad_words", 6, _TEXTS, {"temperature": 0.0, "bad_words": list(_WORDS)}),
    Dose("bad_words", 3, _TEXTS, {"temperature": 0.0, "bad_words": list(_PHRASES)}),
    Dose("frequency_penalty", 6, _LOOPS, {"temperature": 0.0, "frequency_penalty": 2.0}),
    Dose("frequency_penalty", 2, _LOOPS, {"temperature": 0.0, "frequency_penalty": 0.7}),
    Dose("presence_penalty", 6, _LOOPS, {"temperature": 0.0, "presence_penalty": 2.0}),
    Dose("min_p", 5, _FREE, {"temperature": 2.0, "min_p": 0.3}),
    Dose("top_k", 1, _TEXTS, {"temperature": 1.0, "top_k": 1}),
    Dose("top_k", 3, _FREE, {"temperature": 1.5, "top_k": 3}),
    Dose("top_p", 2, _FREE, {"temperature": 1.0, "top_p": 0.0001}),
    Dose("top_p", 8, _FREE, {"temperature": 0.5, "top_p": 0.4}),
    Dose("temperature", 2, _FREE, {"temperature": 0.01}),
    Dose("repetition_penalty", 18, _TEXTS, {"temperature": 0.0, "repetition_penalty": 2.0}),
)
"""Each value forbids something in the answer without it. The first six, of a parameter each, are those of smoke depth."""

FACTORS: Final[Mapping[str, tuple[JSON, ...]]] = {
    "temperature": (None, 0.0, 0.5, 1.2),
    "top_p": (None, 0.9, 0.3),
    "top_k": (None, 1, 8),
    "min_p": (None, 0.1),
    "presence_penalty": (None, 0.8, -0.5),
    "frequency_penalty": (None, 0.6),
    "repetition_penalty": (None, 1.3),
    "logit_bias": (None, _BANS),
    "bad_words": (None, list(_WORDS)),
    "allowed_token_ids": (None, [*COMMON, *range(512, 1800)]),
    "seed": (None, 7),
    "logprobs": (None, 2),
    "stop": (None, ["\n\n\n"]),
    "n": (None, 2),
    "max_tokens": (8, 24),
}
"""Values of every parameter; None leaves it out."""


def doses(*, take: Mapping[Depth, int] | None = None, **traffic: Unpack[TrafficFields]) -> Workload:
    """Return requests with one sampling parameter each.

    The value is one that the answer without the parameter would violate, so a server that ignores the parameter shows it. Ids are
    ``min_p#1.code-01`` and so on. A prompt with the fields of an earlier dose is not sent again. ``take`` has the number of requests
    sent at each depth.
    """
    requests: list[Request] = []
    seen: set[tuple[str, str]] = set()
    for dose in DOSES:
        for prompt in dose.prompts.items[: dose.prompt_count]:
            prompt_and_fields = prompt.id, str(dose.fields)
            if prompt_and_fields in seen:
                continue
            seen.add(prompt_and_fields)
            name = f"{dose.parameter}#{len(requests) + 1}.{prompt.id}"
            requests.append(_parameter_request(name, prompt, {"max_tokens": 24, **dose.fields}))
    return make_workload("parameter-doses", requests, take, {"version": 3, "passes": 1, **traffic})


def pairs(count: int, *, take: Mapping[Depth, int] | None = None, **traffic: Unpack[TrafficFields]) -> Workload:
    """Return requests with every allowed pair of values of two parameters.

    There are ``count`` requests, or more if not all pairs of values meet in so many; spare ones go through the combinations
    again. ``n`` above 1 at temperature 0 is the pair that is not allowed.
    """
    rows = pairwise({factor: len(values) for factor, values in FACTORS.items()}, _is_allowed)
    requests: list[Request] = []
    prompts = cycle(_PAIRED.items)
    for index in range(max(count, len(rows))):
        row, prompt = rows[index % len(rows)], next(prompts)
        fields = {factor: FACTORS[factor][level] for factor, level in row.items() if FACTORS[factor][level] is not None}
        requests.append(_parameter_request(f"pairs#{index + 1}.{prompt.id}", prompt, fields))
    return make_workload("parameter-pairs", requests, take, {"version": 2, "passes": 1, **traffic})


def _is_allowed(row: Mapping[str, int]) -> bool:
    """Return True unless a row asks for several greedy answers.

    ``row`` has a level for each factor; a factor that it lacks asks for nothing. Engines refuse ``n`` above 1 at
    temperature 0.
    """
    several = FACTORS["n"][row.get("n", 0)] is not None
    is_greedy = "temperature" in row and FACTORS["temperature"][row["temperature"]] == 0.0
    return not (several and is_greedy)


def _parameter_request(name: str, prompt: Prompt, fields: Mapping[str, JSON]) -> Request:
    """Return a request with ``fields``, log-probabilities in its route's form."""
    body = dict(fields)
    logprobs = body.pop("logprobs", None)
    logprob_fields = reporting_fields(prompt.route, logprobs) if isinstance(logprobs, int) else {}
    return Request(id=name, route=Route(prompt.route), body={**prompt.content, **body, **logprob_fields})
