"""The parameters that a server honours, refuses or ignores, by effect: facts for the capability matrix, no claims of an adapter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.workload import Request, Route

from .visit import CONVERSATION, GREEDY, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.model.captured import Capabilities
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.workload import JSON

    from .visit import Visit

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


def _fixed_body(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON]]:
    return lambda _: {**GREEDY, **fields}


def _structured_body(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON]]:
    return lambda _: {**CONVERSATION, "structured_outputs": fields}


def _body_with_middle_id(**fields: JSON) -> Callable[[Answer], Mapping[str, JSON] | None]:
    """Return a maker of bodies with the plain answer's middle id.

    Each of the fields is given an id from the middle of the plain answer.
    """

    def body(plain: Answer) -> Mapping[str, JSON] | None:
        ids = plain.choice.token_ids
        return {**GREEDY, **{name: [ids[len(ids) // 2]] for name in fields}} if ids else None

    return body


def _body_with_bias(plain: Answer) -> Mapping[str, JSON] | None:
    """Return a body with a bias towards one token.

    None without token ids in the plain answer.
    """
    ids = plain.choice.token_ids
    return {**GREEDY, "max_tokens": 4, "logit_bias": {str(ids[len(ids) // 2]): 100}} if ids else None


def _is_same_text(answer: Answer, plain: Answer) -> bool:
    return answer.choice.text == plain.choice.text


def _shows_penalty(answer: Answer, plain: Answer) -> bool | None:
    """Return True if a penalty shows.

    None where nothing came often enough to be penalised.
    """
    repeated = Counter(plain.choice.token_ids or plain.choice.text.split())
    if answer.choice.text != plain.choice.text:
        return True
    return False if max(repeated.values(), default=0) >= _OFTEN else None


def _ends_at_middle_id(answer: Answer, plain: Answer) -> bool:
    """Return True if the answer stops at the plain answer's middle id, or before."""
    ids = plain.choice.token_ids
    where = ids.index(ids[len(ids) // 2])
    return len(answer.choice.token_ids) <= where + 1 and answer.choice.finish_reason == "stop"


def _repeats_middle_id(answer: Answer, plain: Answer) -> bool:
    """Return True if the answer is the plain one's middle id again and again."""
    ids = plain.choice.token_ids
    return set(answer.choice.token_ids) == {ids[len(ids) // 2]}


def _goes_past_end(answer: Answer, plain: Answer) -> bool | None:
    """Return True if the answer ignored its end.

    None where the plain one did not end by itself.
    """
    return answer.choice.finish_reason == "length" if plain.choice.finish_reason == "stop" else None


def _is_choice(answer: Answer, _: Answer) -> bool:
    return answer.choice.text.strip() in _CHOICES


def _is_four_digits(answer: Answer, _: Answer) -> bool:
    return _DIGITS.fullmatch(answer.choice.text.strip()) is not None


PARAMETERS: Mapping[str, _Parameter] = {
    "temperature": _Parameter(body=_fixed_body(temperature=_HOT, seed=1), effect=lambda answer, plain: not _is_same_text(answer, plain)),
    "min_p": _Parameter(body=_fixed_body(temperature=_HOT, seed=1, min_p=1.0), effect=_is_same_text),
    "n": _Parameter(body=_fixed_body(temperature=1.0, n=2), effect=lambda answer, _: len(answer.choices) == 2),  # noqa: PLR2004
    "presence_penalty": _Parameter(
        body=_fixed_body(presence_penalty=2.0), effect=lambda a, plain: True if not _is_same_text(a, plain) else None
    ),
    "frequency_penalty": _Parameter(body=_fixed_body(frequency_penalty=2.0), effect=_shows_penalty),
    "repetition_penalty": _Parameter(body=_fixed_body(repetition_penalty=2.0), effect=_shows_penalty),
    "logit_bias": _Parameter(body=_body_with_bias, effect=_repeats_middle_id),
    "stop_token_ids": _Parameter(body=_body_with_middle_id(stop_token_ids=None), effect=_ends_at_middle_id),
    "ignore_eos": _Parameter(
        body=lambda _: {**CONVERSATION, "max_tokens": 256, "ignore_eos": True}, effect=_goes_past_end, route=Route.CHAT
    ),
    "structured choice": _Parameter(body=_structured_body(choice=list(_CHOICES)), effect=_is_choice, route=Route.CHAT),
    "structured regex": _Parameter(body=_structured_body(regex="[0-9]{4}"), effect=_is_four_digits, route=Route.CHAT),
    "structured grammar": _Parameter(
        body=_structured_body(grammar='root ::= "specdec-yes" | "specdec-no"'), effect=_is_choice, route=Route.CHAT
    ),
}
"""In addition to those of the capability probe; asked one by one, since some have killed servers."""


def survey(visit: Visit) -> Survey:
    """Return what a server does with each parameter, the doubtful ones asked last.

    A server that one of them ends is started again if it is ours.
    """
    depths = {route.value: _probe_depth(visit, route) for route in (Route.COMPLETIONS, Route.CHAT)}
    probed: Capabilities = CapabilityProbe(visit.arm, visit.engine.vocabulary(visit.config), visit.config.reasoning).run()
    support, deadly = dict(probed.support), [] if visit.arm.running else ["the capability probe"]
    for name, parameter in PARAMETERS.items():
        if visit.arm.ensure_running():
            support[name], failed = _probe_support(visit, parameter)
            deadly += [name] if failed else []
    return Survey(support=support, depths=depths, raw_logprobs=probed.raw_logprobs, deadly=tuple(deadly))


def _probe_support(visit: Visit, parameter: _Parameter) -> tuple[FeatureSupport, bool]:
    """Return a parameter's support, and True if the server failed.

    It is honoured, refused or ignored; unknown if the server failed, or where nothing shows it.
    """
    try:
        plain = (visit.greedy if parameter.route is Route.COMPLETIONS else _long_chat(visit)).answer
        body = parameter.body(plain)
        timed = visit.send(body, parameter.route) if body is not None else None
    except NoAnswerError:
        return FeatureSupport.UNKNOWN, False
    if timed is None or timed.ending is not None:
        return FeatureSupport.UNKNOWN, timed is not None
    if not timed.answer.ok:
        return FeatureSupport.REFUSED, False
    has_effect = parameter.effect(timed.answer, plain)
    return (FeatureSupport.UNKNOWN if has_effect is None else FeatureSupport.HONOURED if has_effect else FeatureSupport.IGNORED), False


def _long_chat(visit: Visit) -> TimedAnswer:
    return visit.ask({**CONVERSATION, "max_tokens": 256}, Route.CHAT)


def _probe_depth(visit: Visit, route: Route) -> int:
    """Return the most tokens listed at a position on a route."""
    most_listed = 0
    for depth in _DEPTHS:
        chat_body: Mapping[str, JSON] = {**CONVERSATION, "logprobs": True, "top_logprobs": depth}
        body = chat_body if route is Route.CHAT else {**GREEDY, "logprobs": depth}
        request = Request(id="contract", route=route, body={**body, "max_tokens": 4})
        try:
            reply = visit.reply(visit.dialect.path(request), visit.dialect.sent(request, stream=False))
        except (NoAnswerError, ValueError):
            break
        most_listed = max(most_listed, min(depth, _listed_depth(reply)))
    return most_listed


def _listed_depth(value: JSON) -> int:
    """Return the most tokens listed at a position of a reply.

    The reply is in the completions form, lists of objects by name, or in that of chats.
    """
    if isinstance(value, Mapping):
        top_logprobs = value.get("top_logprobs")
        entries = [entry for entry in top_logprobs if isinstance(entry, Mapping)] if isinstance(top_logprobs, Sequence) else []
        own_depth = len(entries) if any("logprob" in entry for entry in entries) else max(map(len, entries), default=0)
        return max([own_depth, *map(_listed_depth, value.values())])
    return max(map(_listed_depth, value), default=0) if isinstance(value, Sequence) and not isinstance(value, str) else 0
