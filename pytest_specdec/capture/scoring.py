"""Scoring: a transcript's tokens under one server, by either route to their conditional distribution.

A score is a server's next-token distribution at each token of an answer, after the prompt and the tokens before it: the token's
log-probability and the top tokens. By one route the answer is sent as part of a prompt, whose log-probabilities are returned; by the other
each prefix of the answer is continued by one token. A :class:`ScoredSequence` without positions holds the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.capture.transport import MAX_BYTES
from pytest_specdec.errors import RequestError
from pytest_specdec.model.transcript import REFUSALS, Position, Score, ScoringRoute, is_rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.progress import Reporter
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.engines.protocol import ApiRequest
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.workload import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequest:
    """A token sequence to be scored."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    top_tokens: int
    weights: str = "{}"
    """The fields that choose the weights, as JSON: those of the request that the tokens answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSequence:
    """The distribution at each token of a sequence, or an error."""

    positions: tuple[Position, ...] = ()
    error: str = ""
    failed: bool = False
    """Whether the server failed, rather than refused."""
    refused: bool = False
    """Whether the engine has no such request, or refused it."""
    denied: bool = False
    """Whether it got a 4xx that refuses no request, as without a key."""


class Scorer(Protocol):
    """A route to a server's distribution at given tokens."""

    def distribution(self, request: ScoringRequest) -> ScoredSequence:
        """Return the distribution at every token.

        Safe to call from several threads.
        """


class PromptLogprobs:
    """The route through prompt log-probabilities: one completion per answer.

    A completion has one new token at least, for which a sequence that fills the server's context leaves no room. The server refuses it, and
    its last token is then scored by continuing the others.
    """

    def __init__(self, server: ArmServer, deadline_s: float) -> None:
        self._server = server
        self._deadline_s = deadline_s

    def distribution(self, request: ScoringRequest) -> ScoredSequence:
        """Return the distribution at every token, by one completion request.

        If the server refuses that, the sequence may fill its context. A request for all tokens but the last is then sent, and a
        continuation of these for the last. The first refusal is returned if the sequence has one token, or if the request without the last
        one fails too. If only the continuation fails, its reason is returned.
        """
        whole = self._score_prompt(request)
        if not whole.refused or len(request.token_ids) == 1:
            return whole
        head = self._score_prompt(replace(request, token_ids=request.token_ids[:-1]))
        if not head.positions:
            return whole
        end = self._continue_prompt(request)
        return replace(end, positions=head.positions + end.positions) if end.positions else end

    def _continue_prompt(self, request: ScoringRequest) -> ScoredSequence:
        """Return the distribution at the last token of ``request``.

        The prompt and the tokens before it are sent as a prefix to be continued by one token. The server lists the likeliest tokens there.
        """
        dialect = self._server.recipe.dialect
        *earlier_ids, last_id = request.token_ids
        api_request = dialect.continuations([[*request.prompt_token_ids, *earlier_ids]], request.top_tokens)
        return _request_distribution(
            self._server,
            _add_weight_fields(api_request, request.weights),  # so that the weights are those of the answer, such as a LoRA adapter's
            self._deadline_s,
            listed_tokens=request.top_tokens + 1,  # with the token of the continuation itself
            read_positions=lambda reply: dialect.continued(reply, [last_id], request.top_tokens),
        )

    def _score_prompt(self, request: ScoringRequest) -> ScoredSequence:
        """Return the distribution at every token, scored as a prompt."""
        dialect = self._server.recipe.dialect
        api_request = dialect.scoring(request.prompt_token_ids, request.token_ids, request.top_tokens)
        sequence_tokens = len(request.prompt_token_ids) + len(request.token_ids)
        return _request_distribution(
            self._server,
            _add_weight_fields(api_request, request.weights),  # so that the weights are those of the answer, such as a LoRA adapter's
            self._deadline_s,
            listed_tokens=sequence_tokens * (request.top_tokens + 1),  # each token and its top ones: they limit the reply's bytes
            read_positions=lambda reply: dialect.positions(reply, request.token_ids, request.top_tokens),
        )


class Continuations:
    """The route through one-token continuations of every prefix of an answer.

    The log-probability of a token outside the top tokens stays unknown. The prefixes of one answer are sent in order, as many to a
    request as the engine takes, so that the server finds all but the last token of each in its prefix cache. Answers are scored
    concurrently.
    """

    def __init__(self, server: ArmServer, deadline_s: float, is_over: Callable[[], bool]) -> None:
        """Take the server, a request's seconds, and a condition for the end.

        Nothing further is asked once ``is_over`` holds.
        """
        self._server = server
        self._deadline_s = deadline_s
        self._is_over = is_over

    def distribution(self, request: ScoringRequest) -> ScoredSequence:
        """Return the distribution at every token, each continued from its prefix.

        As many prefixes go into one request as the engine takes. Ends with the first that brings none, and returns its reason.
        """
        positions: list[Position] = []
        ids, prefixes_per_request = request.token_ids, self._server.recipe.dialect.prefixes_per_request
        for start in range(0, len(ids), prefixes_per_request):
            if self._is_over():
                return ScoredSequence(error="not scored before the capture ended")
            distribution = self._continue_prefixes(request, ids[:start], ids[start : start + prefixes_per_request])
            if not distribution.positions:
                return distribution
            positions += distribution.positions
        return ScoredSequence(positions=tuple(positions))

    def _continue_prefixes(self, request: ScoringRequest, before: Sequence[int], token_ids: Sequence[int]) -> ScoredSequence:
        """Return the distribution at each of ``token_ids``, by one request.

        They follow the prompt and the answer's ids ``before``. The request has a prefix for each: the prompt, ``before`` and the tokens of
        ``token_ids`` that come before the one to be scored.
        """
        dialect, prefix, top_tokens = self._server.recipe.dialect, [*request.prompt_token_ids, *before], request.top_tokens
        api_request = dialect.continuations([[*prefix, *token_ids[:count]] for count in range(len(token_ids))], top_tokens)
        return _request_distribution(
            self._server,
            _add_weight_fields(api_request, request.weights),
            self._deadline_s,
            listed_tokens=len(token_ids) * (top_tokens + 1),  # for each prefix its top tokens and the new one: they limit the reply's bytes
            read_positions=lambda reply: dialect.continued(reply, token_ids, top_tokens),
        )


def scorer(route: ScoringRoute, server: ArmServer, deadline_s: float, is_over: Callable[[], bool] = lambda: False) -> Scorer:
    """Return the scorer for one route to a server's distribution.

    Each of its requests gets ``deadline_s`` seconds. The route by continuations sends none once ``is_over`` holds.
    """
    return Continuations(server, deadline_s, is_over) if route is ScoringRoute.CONTINUATIONS else PromptLogprobs(server, deadline_s)


def _add_weight_fields(api_request: ApiRequest | None, weights: str) -> ApiRequest | None:
    """Return the request with the fields choosing the weights.

    ``weights`` are these fields, such as a LoRA adapter's name, as JSON. None stays None.
    """
    return api_request and replace(api_request, body={**api_request.body, **json.loads(weights)})


_LISTED_BYTES = 256
"""Bytes of one token in a list of log-probabilities, generously."""


def _request_distribution(
    server: ArmServer,
    api_request: ApiRequest | None,
    deadline_s: float,
    *,
    listed_tokens: int,
    read_positions: Callable[[Mapping[str, JSON]], tuple[Position, ...]],
) -> ScoredSequence:
    """Send a scoring request and return the distribution in its reply.

    ``read_positions`` reads it from the reply's JSON. The reply lists about ``listed_tokens`` tokens, and may have as many bytes as these
    take. ``api_request`` is None if the engine has no such request. Without a distribution the result holds the reason.
    """
    if api_request is None:
        return ScoredSequence(error="400: the engine has no such request", refused=True)
    left_s = server.left_s()
    if left_s <= 0:
        return ScoredSequence(error="not scored before the capture ended")
    max_bytes = max(MAX_BYTES, listed_tokens * _LISTED_BYTES)
    exchange = server.client.exchange(api_request.path, api_request.body, deadline_s=min(deadline_s, left_s), max_bytes=max_bytes)
    if exchange.received is None:
        refused = exchange.status in REFUSALS
        return ScoredSequence(
            error=f"{exchange.status or 'no answer'}: {exchange.error}",
            failed=exchange.ending is not None,
            refused=refused,
            denied=is_rejection(exchange.status) and not refused,
        )
    try:
        return ScoredSequence(positions=read_positions(exchange.received.json()))
    except (RequestError, ValueError, RecursionError) as error:
        return ScoredSequence(error=str(error))


_CONCURRENCY = 8
"""More did not score faster on a real server, less did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTranscript:
    """The scores of one transcript, and why some are not there."""

    scores: tuple[Score, ...]
    missing: str = ""


@dataclass(slots=True, kw_only=True)
class TranscriptScorer:
    """Scores transcripts under one boot's server, equal sequences only once.

    The distribution at equal sequences is the same under the same weights.
    """

    server: ArmServer
    under: str
    scorer: Callable[[], Scorer]
    """Called once, when the first distribution is wanted: by then the capability probe has found the route."""
    prompt_token_ids: Callable[[str], tuple[int, ...]]
    """Returns the ids of a request's prompt, by its id: called if the answer does not hold them."""
    reporter: Reporter
    weights: Callable[[str], Mapping[str, JSON]] = lambda _: {}
    """Returns the fields that choose the weights of a request, by its id."""
    scored_to: int | None = None
    """Tokens of the longest sequence that is scored; None to score all."""
    _scored: dict[ScoringRequest, ScoredSequence] = field(default_factory=dict)
    """Results so far, failures included; equal sequences share one."""
    _route: Scorer | None = None
    """What ``scorer`` has returned; None before the first distribution."""

    def score(self, transcript: Transcript, top_tokens: int) -> ScoredTranscript:
        """Return one score per answer of status 200, in order.

        A score has no positions if no distribution could be obtained; the result then has the reason. Answers of sequences longer than
        ``scored_to`` have no score, and none is missing.
        """
        answers = [answer for answer in transcript.answers if answer.ok and not answer.is_longer_than(self.scored_to)]
        requests = [self.request(answer, top_tokens) for answer in answers]
        # A request without token ids is none that can be sent: its answer gets no distribution.
        self._score_requests([request for request in dict.fromkeys(requests) if request.token_ids and request not in self._scored])
        distributions = [self._scored.get(request, ScoredSequence()) if request.token_ids else ScoredSequence() for request in requests]
        scores = tuple(
            Score(
                request_id=answer.request_id,
                pass_index=answer.pass_index,
                arm=transcript.arm,
                under=self.under,
                positions=distribution.positions,
                prompt_token_ids=() if answer.prompt_token_ids else request.prompt_token_ids,
            )
            for answer, request, distribution in zip(answers, requests, distributions, strict=True)
        )
        return ScoredTranscript(scores=scores, missing=_describe_gaps(answers, distributions))

    def request(self, answer: Answer, top_tokens: int) -> ScoringRequest:
        """Return the token sequence of an answer, to be scored.

        It has no tokens, and is then not sent, if the answer's or its prompt's token ids are unknown, or if there are more than
        ``scored_to``. Its weights are fields of the answered request, such as the name of a LoRA adapter.
        """
        if answer.is_longer_than(self.scored_to):
            return ScoringRequest(prompt_token_ids=(), token_ids=(), top_tokens=top_tokens)
        prompt = answer.prompt_token_ids or (self.prompt_token_ids(answer.request_id) if answer.choice.token_ids else ())
        token_ids = answer.choice.token_ids if prompt else ()
        weight_fields = json.dumps(self.weights(answer.request_id), sort_keys=True)  # text, since equal requests are found by their hash
        return ScoringRequest(prompt_token_ids=prompt, token_ids=token_ids, top_tokens=top_tokens, weights=weight_fields)

    def prefetch(self, request: ScoringRequest) -> None:
        """Score one sequence before its transcript is whole, from any thread.

        The result is stored for :meth:`score`. A sequence on which the server fails is left to that method, which scores it again and may
        restart the server.
        """
        if not request.token_ids or request in self._scored:
            return
        distribution = self._distribution(request)
        if not distribution.failed:
            self._scored[request] = distribution
        elif not self.server.recipe.setup.attached:
            # A server that dies now gets a moment to end, and its end then counts as that of a failed request. An attached one is not
            # watched here: found gone even once, it would count as gone for good.
            self.server.wait_for_end()

    def _distribution(self, request: ScoringRequest) -> ScoredSequence:
        self._route = self._route or self.scorer()
        return self._route.distribution(request)

    def _score_requests(self, requests: Sequence[ScoringRequest]) -> None:
        """Score all ``requests``, and retry those that the server failed.

        It ends early without a server or time: requests that are not scored by then have no result.
        """
        while self.reporter.left_s > 0 and self.server.ensure_running():
            pending = [request for request in requests if request not in self._scored]
            self._score_concurrently(pending, _CONCURRENCY)  # ends early at a failure: the next turn goes on with the rest
            failed = [request for request in pending if request in self._scored and self._scored[request].failed]
            if not failed:
                return
            self._retry_alone(failed)

    def _retry_alone(self, failed: Sequence[ScoringRequest]) -> None:
        """Score each of ``failed`` once more, alone, on a fresh server.

        One that fails again keeps that result. A fresh server serves further retries until one fails. On an attached server, somebody
        else's, nothing is retried by default (``may_replay``).
        """
        has_server_failed = True
        for request in failed:
            if has_server_failed:
                self.server.terminate()  # nothing is known of its state, so that it is not used again, with or without a retry
            if self.server.may_replay and self.server.ensure_running():
                self._score_concurrently([request], 1)
            has_server_failed = self._scored[request].failed

    def _score_concurrently(self, requests: Sequence[ScoringRequest], concurrency: int) -> None:
        """Score ``requests`` until the server fails one or the time is over.

        No further request is sent then; those already sent are waited for. The progress is reported after every sequence.
        """
        threads = self.server.concurrency(concurrency)
        pool = ThreadPool(
            requests, self._distribution, threads, until=lambda distribution: distribution.failed, is_over=lambda: self.reporter.left_s <= 0
        )
        done = tokens = 0
        for request, distribution in pool:
            self._scored[request] = distribution
            done, tokens = done + 1, tokens + len(distribution.positions)
            self.reporter.update(done, tokens)


def _describe_gaps(answers: Sequence[Answer], distributions: Sequence[ScoredSequence]) -> str:
    """Return how many answers are unscored, and the first reason.

    Unscored are answers with tokens but no distribution. Returns an empty string if there are none.
    """
    reasons = [
        distribution.error or _default_reason(answer)
        for answer, distribution in zip(answers, distributions, strict=True)
        if _is_unscored(answer, distribution)
    ]
    return f"{len(reasons)} of {len(answers)} answers are not scored: {reasons[0]}" if reasons else ""


def _default_reason(answer: Answer) -> str:
    """Return the reason for an unscored answer without an error."""
    if answer.choice.token_ids:
        return "not scored before the capture ended, or the ids of the prompt are unknown"
    return "no token ids came with the answer"


def _is_unscored(answer: Answer, distribution: ScoredSequence) -> bool:
    """Return True if the answer has tokens but no distribution."""
    return not distribution.positions and answer.reported_tokens > 0
