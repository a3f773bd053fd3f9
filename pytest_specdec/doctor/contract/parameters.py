"""The parameters that a server honours, refuses or ignores, by effect: facts for the capability matrix, no claims of an adapter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.doctor.contract.visit import CONVERSATION, GREEDY, NoAnswerError
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.doctor.contract.visit import Visit
    from pytest_specdec.model.captured import Capabilities
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import JSON

_HOT = 2.0
_DEPTHS = (1, 5, 20)
_OFTEN = 3
"""Times that a token has to come for a penalty on it to show."""
_CHOICES = ("specdec-yes", "specdec-no")
_DIGITS = re.compile(r"[0-9]{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one server was found to do with requests."""

    support: Mapping[str, FeatureSupport]
    depths: Mapping[str, int]
    """By route, the most tokens listed at a position, of 1, 5 and 20 that were asked for; 0 where none are."""
    raw_logprobs: bool
    deadly: tuple[str, ...] = ()
    """Parameters that the server died or failed of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameter:
    body: Callable[[Answer], Mapping[str, JSON] | None]
    """What is asked, by the plain greedy answer; None where that gives nothing to ask by."""
    effect: Callable[[Answer, Answer], bool | None]
    """Whether the answer shows it, by the plain one; None where neither way shows."""
    route: Route = Route.COMPLETIONS


def _always(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON]]:
    return lambda _: {**GREEDY, **fields}


def _structured_probe(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON]]:
    return lambda _: {**CONVERSATION, "structured_outputs": fields}


def _of_middle_id(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON] | None]:
    """Return a maker of bodies with the plain answer's middle id.

    Each of the fields is given an id from the middle of the plain answer.
    """

    def body(plain: Answer) -> Mapping[str, JSON] | None:
        ids = plain.choice.token_ids
        return {**GREEDY, **{name: [ids[len(ids) // 2]] for name in fields}} if ids else None

    return body


def _bias_probe(plain: Answer) -> Mapping[str, JSON] | None:
    ids = plain.choice.token_ids
    return {**GREEDY, "max_tokens": 4, "logit_bias": {str(ids[len(ids) // 2]): 100}} if ids else None


def _same(answer: Answer, plain: Answer) -> bool:
    return answer.choice.text == plain.choice.text


def _differs(answer: Answer, plain: Answer) -> bool | None:
    """Return True if a penalty shows.

    None where nothing came often enough to be penalised.
    """
    repeated = Counter(plain.choice.token_ids or plain.choice.text.split())
    if answer.choice.text != plain.choice.text:
        return True
    return False if max(repeated.values(), default=0) >= _OFTEN else None


def _ends_at(answer: Answer, plain: Answer) -> bool:
    ids = plain.choice.token_ids
    where = ids.index(ids[len(ids) // 2])
    return len(answer.choice.token_ids) <= where + 1 and answer.choice.finish_reason == "stop"


def _repeats_one(answer: Answer, plain: Answer) -> bool:
    ids = plain.choice.token_ids
    return set(answer.choice.token_ids) == {ids[len(ids) // 2]}


def _goes_on(answer: Answer, plain: Answer) -> bool | None:
    return answer.choice.finish_reason == "length" if plain.choice.finish_reason == "stop" else None


def _is_choice(answer: Answer, _: Answer) -> bool:
    return answer.choice.text.strip() in _CHOICES


def _digits(answer: Answer, _: Answer) -> bool:
    return _DIGITS.fullmatch(answer.choice.text.strip()) is not None


PARAMETERS: Mapping[str, _Parameter] = {
    "temperature": _Parameter(body=_always(temperature=_HOT, seed=1), effect=lambda answer, plain: not _same(answer, plain)),
    "min_p": _Parameter(body=_always(temperature=_HOT, seed=1, min_p=1.0), effect=_same),
    "n": _Parameter(body=_always(temperature=1.0, n=2), effect=lambda answer, _: len(answer.choices) == 2),  # noqa: PLR2004
    "presence_penalty": _Parameter(body=_always(presence_penalty=2.0), effect=lambda a, plain: True if not _same(a, plain) else None),
    "frequency_penalty": _Parameter(body=_always(frequency_penalty=2.0), effect=_differs),
    "repetition_penalty": _Parameter(body=_always(repetition_penalty=2.0), effect=_differs),
    "logit_bias": _Parameter(body=_bias_probe, effect=_repeats_one),
    "stop_token_ids": _Parameter(body=_of_middle_id(stop_token_ids=None), effect=_ends_at),
    "ignore_eos": _Parameter(body=lambda _: {**CONVERSATION, "max_tokens": 256, "ignore_eos": True}, effect=_goes_on, route=Route.CHAT),
    "structured choice": _Parameter(body=_structured_probe(choice=list(_CHOICES)), effect=_is_choice, route=Route.CHAT),
    "structured regex": _Parameter(body=_structured_probe(regex="[0-9]{4}"), effect=_digits, route=Route.CHAT),
    "structured grammar": _Parameter(
        body=_structured_probe(grammar='root ::= "specdec-yes" | "specdec-no"'), effect=_is_choice, route=Route.CHAT
    ),
}
"""In addition to those of the capability probe; asked one by one, since some have killed servers."""


def survey(visit: Visit) -> Survey:
    """Ask for all parameters, the doubtful ones last.

    A server that one of them ends is started again if it is ours.
    """
    depths = {route.value: _depth(visit, route) for route in Route}
    probed: Capabilities = CapabilityProbe(visit.arm, visit.engine.vocabulary(visit.config), visit.config.reasoning).run()
    support, deadly = dict(probed.support), [] if visit.arm.running else ["the capability probe"]
    for name, parameter in PARAMETERS.items():
        if visit.arm.ensure_running():
            support[name], failed = _support(visit, parameter)
            deadly += [name] if failed else []
    return Survey(support=support, depths=depths, raw_logprobs=probed.raw_logprobs, deadly=tuple(deadly))


def _support(visit: Visit, parameter: _Parameter) -> tuple[FeatureSupport, bool]:
    """Return a parameter's support, and True if the server failed.

    It is honoured, refused or ignored, or unknown.
    """
    try:
        plain = (visit.greedy if parameter.route is Route.COMPLETIONS else _long_chat(visit)).answer
        body = parameter.body(plain)
        timed = visit.sent(body, parameter.route) if body is not None else None
    except NoAnswerError:
        return FeatureSupport.UNKNOWN, False
    if timed is None or timed.ending is not None:
        return FeatureSupport.UNKNOWN, timed is not None
    if not timed.answer.ok:
        return FeatureSupport.REFUSED, False
    shows = parameter.effect(timed.answer, plain)
    return (FeatureSupport.UNKNOWN if shows is None else FeatureSupport.HONOURED if shows else FeatureSupport.IGNORED), False


def _long_chat(visit: Visit) -> TimedAnswer:
    return visit.asked({**CONVERSATION, "max_tokens": 256}, Route.CHAT)


def _depth(visit: Visit, route: Route) -> int:
    most = 0
    for depth in _DEPTHS:
        of_chat: Mapping[str, JSON] = {**CONVERSATION, "logprobs": True, "top_logprobs": depth}
        body = of_chat if route is Route.CHAT else {**GREEDY, "logprobs": depth}
        request = Request(id="contract", route=route, body={**body, "max_tokens": 4})
        try:
            reply = visit.reply(visit.dialect.path(request), visit.dialect.sent(request, stream=False))
        except (NoAnswerError, ValueError):
            break
        most = max(most, min(depth, _listed_depth(reply)))
    return most


def _listed_depth(value: JSON) -> int:
    """Return the most tokens listed at a position of a reply.

    The reply is in the completions form, lists of objects by name, or in that of chats.
    """
    if isinstance(value, Mapping):
        top = value.get("top_logprobs")
        entries = [entry for entry in top if isinstance(entry, Mapping)] if isinstance(top, Sequence) else []
        own = len(entries) if any("logprob" in entry for entry in entries) else max(map(len, entries), default=0)
        return max([own, *map(_listed_depth, value.values())])
    return max(map(_listed_depth, value), default=0) if isinstance(value, Sequence) and not isinstance(value, str) else 0
