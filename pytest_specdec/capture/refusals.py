"""Refusals: a 4xx counts as the engine's only if the same request, sent again, gets it too, and plain ones are answered.

An expired key, a used-up quota, a proxy that times out and an unloaded model all look like refusals, but are not. Such an outcome is
denied: its ``denial`` has the reason. Of a server, ``answered`` has the shortest answered request of each route, which is sent again as a
plain one, and ``lost`` the reason why it answers no client any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.readiness import ONE_TOKEN
from pytest_specdec.model.transcript import FailureKind, is_rejection
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.workload import JSON

_PAUSE_S = 0.5
"""Seconds before a request is sent again that got a status of keys, quotas and proxies."""
_DEADLINE_S = 60.0
"""Seconds that a request sent as a check may take."""
_PLAIN = {
    Route.CHAT: Request(
        id="plain", route=Route.CHAT, body={"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0.0}
    ),
    Route.RESPONSES: Request(
        id="plain", route=Route.RESPONSES, body={"input": "Hello", "max_output_tokens": 16, "temperature": 0.0, "store": False}
    ),
}
"""By route, a request that every server with the route answers; sent if the route has answered nothing yet."""
_NO_ROUTE = {404, 405}
_TOO_MANY = 429


def examine(server: ArmServer, request: Request, outcome: TimedAnswer, resend: Callable[[], TimedAnswer]) -> TimedAnswer:
    """Return the outcome to count as the answer to ``request``.

    ``outcome`` is its outcome so far, and ``resend`` sends it once more. Safe to call from several threads.

    An answer or a failure of the server is returned as it is. A request that got a 4xx is sent again. If it gets a 4xx again, further
    requests show whether the engine refuses it, or the server has denied access.
    """
    if not is_rejection(outcome.answer.status) or outcome.ending is not None:
        if outcome.answer.ok and not request.adapter:
            _note_answered(server, request)
        return outcome
    if server.lost:  # it answers nothing any more
        return replace(outcome, denial=server.lost)
    is_refusal = _is_refusal(server, request, outcome)  # else a status of keys, quotas and proxies
    if outcome.answer.status != _TOO_MANY:  # the client has already sent a 429 again until the time was used up
        time.sleep(0.0 if is_refusal else _PAUSE_S)  # a quota or a proxy may recover meanwhile
        later = resend()
        if later.ending is not None:
            return later
        if later.answer.ok and is_refusal:
            return replace(later, refusal=outcome)  # the engine refuses this request only at times
        if later.answer.ok:  # access was denied for a while
            return replace(outcome, denial=f"{_describe_refusal(request, outcome)}, and an answer later")
    return _compare_with_one_token(server, request, outcome, is_refusal=is_refusal)


def _is_refusal(server: ArmServer, request: Request, outcome: TimedAnswer) -> bool:
    """Return True if the status refuses the request itself.

    A 404 or 405 says that there is no such route. If the route has answered before, that is wrong, and the status refuses nothing. A
    request that chooses its weights, such as an adapter, is refused by it all the same, since the server may lack them.
    """
    contradicts_answers = outcome.answer.status in _NO_ROUTE and request.route in server.answered and not request.weights
    return outcome.answer.refused and not contradicts_answers


def _compare_with_one_token(server: ArmServer, request: Request, outcome: TimedAnswer, *, is_refusal: bool) -> TimedAnswer:
    """Return ``outcome``, classified by the reply to the one-token request.

    ``outcome`` is a 4xx that the request got repeatedly; ``is_refusal`` says that its status is that of an unsupported request, not of a
    key, a quota or a proxy. The one-token request is a completion that the server answered when it was booted. If the server fails it now,
    that failure is returned.
    """
    check = _send_check(server, ONE_TOKEN, outcome)
    if check.ending is not None:
        return check
    if not check.answer.ok:
        return _deny_for_lost_access(server, request, outcome, check)
    if is_refusal and request.route is ONE_TOKEN.route:
        return outcome
    if is_refusal:  # that the completions route answers shows nothing about another route
        return _compare_with_plain(server, request, outcome)
    # A 404 or 405 on a route that has answered: it may refuse prompts of token ids alone.
    if outcome.answer.refused and (ids := _prompt_of_ids(request)):
        return _compare_with_one_id(server, request, outcome, ids[:1])
    return _deny_among_answers(request, outcome)


def _prompt_of_ids(request: Request) -> Sequence[JSON]:
    """Return the token ids of a request's prompt, empty for text."""
    prompt = request.body.get("prompt")
    return prompt if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt) else ()


def _compare_with_one_id(server: ArmServer, request: Request, outcome: TimedAnswer, prompt: Sequence[JSON]) -> TimedAnswer:
    """Return a 404 or 405, classified by a prompt of one token id.

    The route of ``request`` has answered prompts of text. A server that takes text alone may refuse ids with 404, as mlx-lm does.
    ``prompt`` is one token id of the request. If the server fails it, that failure is returned, with the id of ``request``.
    """
    one_id = replace(ONE_TOKEN, id="one-id", body={**ONE_TOKEN.body, "prompt": prompt})
    check = _send_check(server, one_id, outcome)
    if check.ending is not None:
        return check
    if check.answer.status == outcome.answer.status:
        return outcome  # the server refuses all token ids
    return _deny_among_answers(request, outcome)


def _deny_among_answers(request: Request, outcome: TimedAnswer) -> TimedAnswer:
    return replace(outcome, denial=f"{_describe_refusal(request, outcome)}, twice, while other requests are answered")


def _compare_with_plain(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return the refusal ``outcome``, classified by a plain request on its route.

    The plain one is the shortest answered there, or a greeting. If it is answered, ``outcome`` stays a refusal. If it is refused too, the
    fields of ``request`` are not the reason. If the server dies of it, that failure is returned.
    """
    greeting = _PLAIN[request.route]
    check = _send_check(server, server.answered.get(request.route, greeting), outcome)
    if check.ending is FailureKind.DIED:
        return check
    if check.answer.ok:
        server.answered.setdefault(request.route, greeting)  # the route has answered
        return outcome
    if check.ending is not None or not check.answer.refused:  # a timeout or a denial shows nothing about ``outcome``
        return _deny_if_access_lost(server, request, outcome)
    if request.route in server.answered:
        reason = f"{_describe_refusal(request, outcome)}, and so did a plain request on its route, which answered before"
        return replace(outcome, denial=reason)
    return replace(outcome, on_silent_route=True)  # the engine lacks the route, or it is down


def _deny_if_access_lost(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return the refusal ``outcome``, as denied if access was lost.

    Access is lost if a request that was answered at boot is rejected. If the server fails it, that failure is returned.
    """
    check = _send_check(server, ONE_TOKEN, outcome)
    if check.ending is not None:
        return check
    if check.answer.ok:
        return outcome
    return _deny_for_lost_access(server, request, outcome, check)


def _deny_for_lost_access(server: ArmServer, request: Request, outcome: TimedAnswer, check: TimedAnswer) -> TimedAnswer:
    """Return ``outcome`` as denied, and note the lost access.

    ``check`` is the reply to the one-token request, which was rejected as well. The reason noted first stays.
    """
    server.lost = server.lost or (
        f"access lost: {server.recipe.setup.url} answers no request any more: {_describe_refusal(request, outcome)}, "
        f"and so a prompt of one token that was answered before ({check.answer.status}); "
        "see to key, quota and proxy: --specdec-resume RUN asks again"
    )
    return replace(outcome, denial=server.lost)


def _note_answered(server: ArmServer, request: Request) -> None:
    """Note the request as its route's plain one, if the shortest.

    The plain request is sent later to see whether the route still answers; the one with the lowest token limit is cheapest.
    """
    shortest = server.answered.get(request.route)
    if shortest is None or _token_limit(request) < _token_limit(shortest):
        # As a check it is read to its end, and not streamed.
        server.answered[request.route] = replace(request, abort_after=None, stream=None)


def _token_limit(request: Request) -> float:
    return math.inf if request.token_limit is None else request.token_limit


def _send_check(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return the outcome of a further request, to check on ``outcome``.

    The tokens of its answer are counted apart from the workload's. A failure is returned under the checked request's id.
    """
    check = server.client.send(request, streamed=False, deadline_s=max(1.0, min(_DEADLINE_S, server.left_s())))
    if check.ending is not None:
        return replace(check, answer=replace(check.answer, request_id=outcome.answer.request_id, pass_index=outcome.answer.pass_index))
    if check.answer.ok:
        server.add_aside(check.answer)
    return check


def _describe_refusal(request: Request, outcome: TimedAnswer) -> str:
    return f"request {request.id} got {outcome.answer.status} ({outcome.answer.error})"
