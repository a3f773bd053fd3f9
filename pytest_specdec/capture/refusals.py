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


def examine(arm: ArmServer, request: Request, sent: TimedAnswer, resend: Callable[[], TimedAnswer]) -> TimedAnswer:
    """Return the outcome to count as the answer to ``request``.

    ``sent`` is its outcome so far, and ``resend`` sends it once more. Safe to call from several threads.

    An answer or a failure is returned as it is. A refusal is returned as it is if it is repeated while other requests are answered. If
    the second attempt is answered, that answer is returned with the refusal in it, since the engine does not always refuse this request.
    A refusal that a plain request on its route gets too is marked ``on_silent_route`` if nothing was ever answered there. Any other 4xx
    gets a ``denial``, the reason why it is no refusal. If the server answers not even one token any more, ``arm.lost`` gets the reason
    too.
    """
    if not is_rejection(sent.answer.status) or sent.ending is not None:
        if sent.answer.ok and not request.adapter:
            _note_answered(arm, request)
        return sent
    if arm.lost:
        return replace(sent, denial=arm.lost)
    is_refusal = _is_refusal(arm, request, sent)
    if sent.answer.status != _TOO_MANY:  # the client has already sent a 429 again until the time was used up
        time.sleep(0.0 if is_refusal else _PAUSE_S)
        later = resend()
        if later.ending is not None:
            return later
        if later.answer.ok and is_refusal:
            return replace(later, refusal=sent)
        if later.answer.ok:
            return replace(sent, denial=f"{_describe_refusal(request, sent)}, and an answer later")
    return _compare_with_one_token(arm, request, sent, is_refusal=is_refusal)


def _is_refusal(arm: ArmServer, request: Request, sent: TimedAnswer) -> bool:
    """Return True if the status refuses the request itself.

    A 404 or 405 says that there is no such route. If the route has answered before, that is wrong, and the status refuses nothing; only a
    request that chooses its weights is refused by it all the same, since the server may lack them.
    """
    contradicts_answers = sent.answer.status in _NO_ROUTE and request.route in arm.answered and not request.weights
    return sent.answer.refused and not contradicts_answers


def _compare_with_one_token(arm: ArmServer, request: Request, sent: TimedAnswer, *, is_refusal: bool) -> TimedAnswer:
    """Return ``sent``, classified by the reply to the one-token request.

    The server answered the one-token request when it was booted. If it fails it now, the failure is returned. If it rejects it, it answers
    no client any more, and ``sent`` is denied for lost access. If it answers it, ``sent`` is denied unless ``is_refusal``. A refusal stays
    one on the completions route, and is compared with a plain request on any other. A 404 or 405 to a prompt of token ids is compared with
    a prompt of one id before it is denied.
    """
    check = _send_check(arm, ONE_TOKEN, sent)
    if check.ending is not None:
        return check
    if check.answer.ok:
        if is_refusal:
            return sent if request.route is ONE_TOKEN.route else _compare_with_plain(arm, request, sent)
        if sent.answer.refused and (ids := _prompt_of_ids(request)):
            return _compare_with_one_id(arm, request, sent, ids[:1])
        return _deny_among_answers(request, sent)
    return _deny_for_lost_access(arm, request, sent, check)


def _prompt_of_ids(request: Request) -> Sequence[JSON]:
    """Return the token ids of a request's prompt, empty for text."""
    prompt = request.body.get("prompt")
    return prompt if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt) else ()


def _compare_with_one_id(arm: ArmServer, request: Request, sent: TimedAnswer, prompt: Sequence[JSON]) -> TimedAnswer:
    """Return ``sent``, a 404 or 405, classified by a prompt of one id.

    Its route has answered texts. A server that takes text alone may say so with 404, as mlx-lm does: a prompt of one token id then gets the
    same status, and ``sent`` is a refusal. Otherwise it is denied, or the failure of that prompt is returned.
    """
    check = _send_check(arm, replace(ONE_TOKEN, id="one-id", body={**ONE_TOKEN.body, "prompt": prompt}), sent)
    if check.ending is not None:
        return check
    return sent if check.answer.status == sent.answer.status else _deny_among_answers(request, sent)


def _deny_among_answers(request: Request, sent: TimedAnswer) -> TimedAnswer:
    return replace(sent, denial=f"{_describe_refusal(request, sent)}, twice, while other requests are answered")


def _compare_with_plain(arm: ArmServer, request: Request, sent: TimedAnswer) -> TimedAnswer:
    """Return ``sent``, classified by a plain request on its route.

    If the plain request is answered, ``sent`` stays a refusal. If it is refused too, the fields of ``sent`` are not the reason: ``sent`` is
    denied for lost access if the route has answered before, else marked as on a silent route. If the server dies of the plain request, that
    failure is returned. Any other outcome of it shows nothing, and :func:`_check_access` decides.
    """
    check = _send_check(arm, arm.answered.get(request.route, _PLAIN[request.route]), sent)
    if check.ending is FailureKind.DIED:
        return check
    if check.answer.ok:
        arm.answered.setdefault(request.route, _PLAIN[request.route])
        return sent
    if check.ending is not None or not check.answer.refused:
        return _check_access(arm, request, sent)
    if request.route in arm.answered:
        return replace(sent, denial=f"{_describe_refusal(request, sent)}, and so did a plain request on its route, which answered before")
    return replace(sent, on_silent_route=True)


def _check_access(arm: ArmServer, request: Request, sent: TimedAnswer) -> TimedAnswer:
    """Return the refusal ``sent``, as denied if access was lost.

    Called after a plain request on the same route has failed or got a status that is no refusal, so that it shows nothing about ``sent``.
    Access is lost if the one-token request of the boot is rejected as well. If that request fails, its failure is returned.
    """
    check = _send_check(arm, ONE_TOKEN, sent)
    if check.ending is not None:
        return check
    return sent if check.answer.ok else _deny_for_lost_access(arm, request, sent, check)


def _deny_for_lost_access(arm: ArmServer, request: Request, sent: TimedAnswer, check: TimedAnswer) -> TimedAnswer:
    """Return ``sent`` as denied, and note the lost access.

    ``check`` is the reply to the one-token request, which was rejected as well. The reason noted first stays.
    """
    arm.lost = arm.lost or (
        f"access lost: {arm.recipe.setup.url} answers no request any more: {_describe_refusal(request, sent)}, "
        f"and so a prompt of one token that was answered before ({check.answer.status}); "
        "see to key, quota and proxy: --specdec-resume RUN asks again"
    )
    return replace(sent, denial=arm.lost)


def _note_answered(arm: ArmServer, request: Request) -> None:
    """Note the request as its route's plain one, if the shortest.

    The plain request is sent later to see whether the route still answers; the one with the lowest token limit is cheapest.
    """
    shortest = arm.answered.get(request.route)
    if shortest is None or _token_limit(request) < _token_limit(shortest):
        arm.answered[request.route] = replace(request, abort_after=None, stream=None)


def _token_limit(request: Request) -> float:
    return math.inf if request.token_limit is None else request.token_limit


def _send_check(arm: ArmServer, request: Request, sent: TimedAnswer) -> TimedAnswer:
    """Return the outcome of a further request, to check on ``sent``.

    The tokens of its answer are counted apart from the workload's. A failure is returned under the request id and pass of ``sent``.
    """
    check = arm.client.send(request, streamed=False, deadline_s=max(1.0, min(_DEADLINE_S, arm.left_s())))
    if check.ending is not None:
        return replace(check, answer=replace(check.answer, request_id=sent.answer.request_id, pass_index=sent.answer.pass_index))
    if check.answer.ok:
        arm.add_aside(check.answer)
    return check


def _describe_refusal(request: Request, sent: TimedAnswer) -> str:
    return f"request {request.id} got {sent.answer.status} ({sent.answer.error})"
