"""Refusals: a 4xx counts as the engine's only if the same request, sent again, gets it too, and plain ones are answered.

An expired key, a used-up quota, a proxy that times out and an unloaded model all look like refusals, but are not.
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

    An answer or a failure is returned as it is; the shortest answered request without an adapter is noted as its route's plain one. A
    refusal is returned as it is if it is repeated while other requests are answered. If the second attempt fails, that failure is returned.
    If it is answered, that answer is returned with the refusal in it, since the engine does not always refuse this request. A refusal that
    a plain request on its route gets too is marked ``on_silent_route`` if nothing was ever answered there. Any other 4xx gets a ``denial``,
    the reason why it is no refusal. If the server answers not even one token any more, ``server.lost`` gets the reason too.
    """
    if not is_rejection(outcome.answer.status) or outcome.ending is not None:
        if outcome.answer.ok and not request.adapter:
            _note_answered(server, request)
        return outcome
    if server.lost:
        return replace(outcome, denial=server.lost)
    is_refusal = _is_refusal(server, request, outcome)
    if outcome.answer.status != _TOO_MANY:  # the client has already sent a 429 again until the time was used up
        time.sleep(0.0 if is_refusal else _PAUSE_S)
        later = resend()
        if later.ending is not None:
            return later
        if later.answer.ok and is_refusal:
            return replace(later, refusal=outcome)
        if later.answer.ok:
            return replace(outcome, denial=f"{_describe_refusal(request, outcome)}, and an answer later")
    return _compare_with_one_token(server, request, outcome, is_refusal=is_refusal)


def _is_refusal(server: ArmServer, request: Request, outcome: TimedAnswer) -> bool:
    """Return True if the status refuses the request itself.

    A 404 or 405 says that there is no such route. If the route has answered before, that is wrong, and the status refuses nothing; only a
    request that chooses its weights is refused by it all the same, since the server may lack them.
    """
    contradicts_answers = outcome.answer.status in _NO_ROUTE and request.route in server.answered and not request.weights
    return outcome.answer.refused and not contradicts_answers


def _compare_with_one_token(server: ArmServer, request: Request, outcome: TimedAnswer, *, is_refusal: bool) -> TimedAnswer:
    """Return ``outcome``, classified by the reply to the one-token request.

    The server answered that request when it was booted. If the request fails now, its failure is returned. If it is rejected, the server
    answers no client any more, and ``outcome`` is denied for lost access. If it is answered, ``outcome`` is denied unless ``is_refusal``. A
    refusal stays one on the completions route, and is compared with a plain request on any other. A 404 or 405 to a prompt of token ids is
    compared with a prompt of one id before it is denied.
    """
    check = _send_check(server, ONE_TOKEN, outcome)
    if check.ending is not None:
        return check
    if check.answer.ok:
        if is_refusal:
            return outcome if request.route is ONE_TOKEN.route else _compare_with_plain(server, request, outcome)
        if outcome.answer.refused and (ids := _prompt_of_ids(request)):
            return _compare_with_one_id(server, request, outcome, ids[:1])
        return _deny_among_answers(request, outcome)
    return _deny_for_lost_access(server, request, outcome, check)


def _prompt_of_ids(request: Request) -> Sequence[JSON]:
    """Return the token ids of a request's prompt, empty for text."""
    prompt = request.body.get("prompt")
    return prompt if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt) else ()


def _compare_with_one_id(server: ArmServer, request: Request, outcome: TimedAnswer, prompt: Sequence[JSON]) -> TimedAnswer:
    """Return a 404 or 405, classified by a prompt of one id.

    Its route has answered texts. ``prompt`` is one token id of the request. A server that takes text alone may say so with 404, as mlx-lm
    does: the one id then gets the same status, and ``outcome`` is a refusal. Otherwise ``outcome`` is denied, or, if the server fails the
    one id, that failure is returned.
    """
    check = _send_check(server, replace(ONE_TOKEN, id="one-id", body={**ONE_TOKEN.body, "prompt": prompt}), outcome)
    if check.ending is not None:
        return check
    return outcome if check.answer.status == outcome.answer.status else _deny_among_answers(request, outcome)


def _deny_among_answers(request: Request, outcome: TimedAnswer) -> TimedAnswer:
    return replace(outcome, denial=f"{_describe_refusal(request, outcome)}, twice, while other requests are answered")


def _compare_with_plain(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return ``outcome``, classified by a plain request on its route.

    If the plain request is answered, ``outcome`` stays a refusal. If it is refused too, the fields of ``request`` are not the reason:
    ``outcome`` is denied if the route has answered before, else marked as on a silent route. If the server dies of the plain request, that
    failure is returned. Whatever else the plain request gets shows nothing, and :func:`_check_access` decides.
    """
    check = _send_check(server, server.answered.get(request.route, _PLAIN[request.route]), outcome)
    if check.ending is FailureKind.DIED:
        return check
    if check.answer.ok:
        server.answered.setdefault(request.route, _PLAIN[request.route])
        return outcome
    if check.ending is not None or not check.answer.refused:
        return _check_access(server, request, outcome)
    if request.route in server.answered:
        reason = f"{_describe_refusal(request, outcome)}, and so did a plain request on its route, which answered before"
        return replace(outcome, denial=reason)
    return replace(outcome, on_silent_route=True)


def _check_access(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return the refusal ``outcome``, as denied if access was lost.

    Called after a plain request on the same route has failed or got a status that is no refusal, so that it shows nothing about
    ``outcome``. Access is lost if the one-token request of the boot is rejected as well. If that request fails, its failure is returned.
    """
    check = _send_check(server, ONE_TOKEN, outcome)
    if check.ending is not None:
        return check
    return outcome if check.answer.ok else _deny_for_lost_access(server, request, outcome, check)


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
        server.answered[request.route] = replace(request, abort_after=None, stream=None)


def _token_limit(request: Request) -> float:
    return math.inf if request.token_limit is None else request.token_limit


def _send_check(server: ArmServer, request: Request, outcome: TimedAnswer) -> TimedAnswer:
    """Return the outcome of a further request, to check on ``outcome``.

    The tokens of its answer are counted apart from the workload's. A failure is returned under the request id and pass of ``outcome``.
    """
    check = server.client.send(request, streamed=False, deadline_s=max(1.0, min(_DEADLINE_S, server.left_s())))
    if check.ending is not None:
        return replace(check, answer=replace(check.answer, request_id=outcome.answer.request_id, pass_index=outcome.answer.pass_index))
    if check.answer.ok:
        server.add_aside(check.answer)
    return check


def _describe_refusal(request: Request, outcome: TimedAnswer) -> str:
    return f"request {request.id} got {outcome.answer.status} ({outcome.answer.error})"
