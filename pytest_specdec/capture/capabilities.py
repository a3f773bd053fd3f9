"""The capability probe: what an arm, a server under test, honours, refuses and ignores, by status and by effect.

A feature of requests is HONOURED if an answer shows its effect, IGNORED if an answer does not, REFUSED by an error status, and UNKNOWN if
it could not be tried. To score is to ask for the distribution at given tokens, by one of two routes: log-probabilities of a prompt's
tokens, or one-token continuations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.capture import refusals
from pytest_specdec.capture.scoring import ScoredSequence, ScoringRequest, scorer
from pytest_specdec.capture.server import context_limit
from pytest_specdec.capture.thread_pool import ThreadPool
from pytest_specdec.capture.workloads import add_reasoning
from pytest_specdec.config.config import Reasoning
from pytest_specdec.engines import checkpoint
from pytest_specdec.engines.protocol import CHAT_COMPLETIONS
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.model.captured import CHAT_ROUTE, Capabilities, FeatureSupport
from pytest_specdec.model.score_flaws import flaw
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.transcript import Answer, Choice, Position
    from pytest_specdec.model.workload import JSON

_HOT = 2.0
"""The highest temperature the protocol allows: at it a filter to one token shows."""
_WARM = 0.7
"""A temperature far enough from 1 to tell raw log-probabilities from processed ones."""
_FAR = 1.0
"""Nats, at most, that one token adds to the distance of reported log-probabilities from a distribution."""
_TOP = 5
"""The top-k of a request and the top tokens of its scores: every token that may be drawn is then among those listed."""
_DEADLINE_S = 60.0
"""Seconds that one request of the probe may take, without reasoning."""
_NO_REASONING = Reasoning()
_SCHEMA: Mapping[str, JSON] = {
    "type": "object",
    "properties": {"specdec": {"const": 7}},
    "required": ["specdec"],
    "additionalProperties": False,
}
_ONLY = '{"specdec":7}'
_FORMATS: Mapping[str, JSON] = {
    "json_object": {"type": "json_object"},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "probe", "schema": _SCHEMA}},
}

_PLAIN: Mapping[str, JSON] = {"prompt": "Once upon a time there was a", "max_tokens": 10, "temperature": 0.0}
_CHAT: Mapping[str, JSON] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 24, "temperature": 0.0}
_SEEDED: Mapping[str, JSON] = {**_PLAIN, "temperature": 1.0}
_HARMLESS: Mapping[str, Mapping[str, JSON]] = {
    "plain": _PLAIN,
    "logprobs": {**_PLAIN, "logprobs": 1},
    "top_p": {**_PLAIN, "temperature": _HOT, "seed": 1, "top_p": 1e-6},
    "seed": {**_SEEDED, "seed": 1},
    "seed again": {**_SEEDED, "seed": 1},
    "other seed": {**_SEEDED, "seed": 2},
}
"""Independent of each other, so that they are sent concurrently."""
_DANGEROUS: Mapping[str, Mapping[str, JSON]] = {
    "top_k": {**_PLAIN, "temperature": _HOT, "seed": 1, "top_k": 1},
    "warm": {**_PLAIN, "temperature": _WARM, "seed": 1, "logprobs": 1, "top_k": _TOP},
}
"""Sent after everything harmless: top-k has killed speculating servers."""


def probe_capabilities(server: ArmServer, config: Config) -> Capabilities:
    """Return the probed capabilities of a server, and what its engine states under ``config``."""
    engine = engine_of(config.engine.kind)
    return replace(
        CapabilityProbe(server, engine.vocabulary(config), config.reasoning, config.limits.request_s).run(),
        single_precision=engine.single_precision(config),
        server=f"{engine.kind} {config.engine.model}",
        scored_with=engine.scored_with,
        penalty_window=server.recipe.dialect.penalty_window,
        context_tokens=context_limit.of(server),
        positions=checkpoint.describe_positions(config),
    )


class CapabilityProbe:
    """Sends a running server a handful of short requests."""

    def __init__(self, server: ArmServer, vocabulary: int, reasoning: Reasoning = _NO_REASONING, deadline_s: float = _DEADLINE_S) -> None:
        """Take the server, its vocabulary's size and the reasoning settings.

        ``reasoning`` states how the config asks a server for reasoning. ``deadline_s`` are the seconds for a request with reasoning, at
        least a minute; one without gets a minute.
        """
        self._server = server
        self._vocabulary = vocabulary
        self._reasoning = reasoning
        self._deadline_s = max(deadline_s, _DEADLINE_S) if reasoning.tokens else _DEADLINE_S

    def run(self) -> Capabilities:
        """Return the capabilities of the arm, tried one by one.

        ``_HARMLESS`` and ``_DANGEROUS`` hold the requests by name: the latter have killed speculating servers, and come after the former.
        ``plain`` is a greedy answer: a filter to one token gives the same text at any temperature. A feature that could not be tried is
        UNKNOWN.
        """
        answers = self._send_concurrently(_HARMLESS)
        plain = answers["plain"]
        support = {
            "token_ids": _support_by_effect(plain, lambda choice: bool(choice.token_ids)),
            "sampled_token_ids": _support_for_sampled_ids(answers["seed"]),
            "logprobs": _support_by_effect(answers["logprobs"], lambda choice: bool(choice.logprobs)),
            "top_p": _support_by_effect(answers["top_p"], lambda choice: _same_text(choice, plain)),
            "seed": _support_for_seeds(answers["seed"], answers["seed again"], answers["other seed"]),
            "prompt_logprobs": self._try_scoring(plain, ScoringRoute.PROMPT_LOGPROBS),
            "continuations": self._try_scoring(plain, ScoringRoute.CONTINUATIONS),
            "stop": self._try_stop(plain),
        }
        answers = self._send_concurrently(_DANGEROUS)
        support["top_k"] = _support_by_effect(answers["top_k"], lambda choice: _same_text(choice, plain))
        scoring_route = Capabilities(support=support).route
        raw = self._reports_raw_logprobs(answers["warm"], scoring_route)  # drawn at a temperature at which raw and processed ones differ
        chat = self._send(Route.CHAT, {**_CHAT, "logprobs": True, "top_logprobs": 1})
        support["chat_logprobs"] = _support_by_effect(chat, lambda choice: bool(choice.logprobs))
        if self._server.recipe.dialect.path(Request(id="probe", route=Route.CHAT, body=_CHAT)) != CHAT_COMPLETIONS:
            support[CHAT_ROUTE] = FeatureSupport.IGNORED  # the dialect sends chats to another route, as token ids
        # Last: grammars have killed speculating servers too.
        support.update({feature: self._try_format(feature) for feature in _FORMATS})
        return Capabilities(support=support, raw_logprobs=raw, vocabulary=self._vocabulary)

    def _send_concurrently(self, bodies: Mapping[str, Mapping[str, JSON]]) -> dict[str, Answer | None]:
        """Return the answers to completions with these ``bodies``, by name."""
        threads = self._server.concurrency(len(bodies))
        pool = ThreadPool(list(bodies), lambda name: self._send(Route.COMPLETIONS, bodies[name]), threads)
        return dict(pool)

    def _send(self, route: Route, body: Mapping[str, JSON]) -> Answer | None:
        """Return the answer to one request of the capability probe.

        Returns None if the server failed, denied access or is gone, or if the capture's time is used up. A refusal that is
        repeated is an answer.
        """
        left_s = self._server.left_s()
        if not self._server.running or left_s <= 0:
            return None
        request = add_reasoning(Request(id="probe", route=route, body=body), self._reasoning)

        def send() -> TimedAnswer:
            return self._server.client.send(request, streamed=False, deadline_s=min(self._deadline_s, left_s))

        outcome = refusals.examine(self._server, request, send(), resend=send)
        if outcome.ending is not None:
            self._server.wait_for_end()
        return None if outcome.ending or outcome.denial else outcome.answer

    def _try_scoring(self, plain: Answer | None, route: ScoringRoute) -> FeatureSupport:
        """Return the support for scoring given tokens by ``route``.

        The server is asked to score ``plain``, its own greedy answer. If it reads the token ids as sent, they are its best tokens, but for
        near-ties. Returns UNKNOWN without an answer to score, or if the server fails or denies access, REFUSED if the engine has no such
        request or refuses it, and IGNORED for a reply without usable scores.
        """
        distribution = self._distribution(plain, route)
        if distribution is None or distribution.failed or distribution.denied:
            return FeatureSupport.UNKNOWN
        if not distribution.positions:
            return FeatureSupport.REFUSED if distribution.refused else FeatureSupport.IGNORED
        if not _have_alternatives(distribution.positions):
            return FeatureSupport.IGNORED  # where only the scored token is listed, any token would pass for the best
        is_best = [position.top_ids[:1] == (position.token_id,) for position in distribution.positions]
        are_mostly_best = 2 * sum(is_best) > len(is_best)
        # The first token of an answer is never drafted: it is the best one even if the server accepts wrong drafts after it.
        return FeatureSupport.HONOURED if is_best[0] or are_mostly_best else FeatureSupport.IGNORED

    def _try_stop(self, plain: Answer | None) -> FeatureSupport:
        """Return the support for stop strings, tried on a known answer.

        The stop string is a piece of ``plain``, the server's own greedy answer. Returns UNKNOWN if that has no text to stop at.
        """
        text = plain.choice.text if plain else ""
        word = text[len(text) // 2 :][:4]
        if not word.strip():
            return FeatureSupport.UNKNOWN
        answer = self._send(Route.COMPLETIONS, {**_PLAIN, "stop": [word]})
        return _support_by_effect(answer, lambda choice: word not in choice.text and choice.finish_reason == "stop")

    def _reports_raw_logprobs(self, warm: Answer | None, route: ScoringRoute) -> bool:
        """Return True if reported log-probabilities lie nearer the raw distribution.

        Raw is before the request's sampling parameters, processed after. ``warm`` is an answer at temperature 0.7 and top-k 5; its
        reported log-probabilities are compared with both forms of the distribution that the server gives when it scores the same tokens.
        The two forms lie tens of percent apart, noise and biased scores only a few. Returns True if the distribution is unknown.
        """
        distribution = self._distribution(warm, route)
        if distribution is None or warm is None:
            return True
        pairs = list(zip(warm.choice.logprobs or (), distribution.positions, strict=False))
        to_raw = math.fsum(_distance(reported, position.logprob) for reported, position in pairs)
        to_processed = math.fsum(_distance(reported, _warm_logprob(position)) for reported, position in pairs)
        return to_raw <= to_processed

    def _distribution(self, answer: Answer | None, route: ScoringRoute) -> ScoredSequence | None:
        """Return the server's distribution at each token of an answer.

        A distribution lists the five top tokens. Returns None without token ids of prompt and answer, or if the server does not run.
        """
        if answer is None or not answer.prompt_token_ids or not answer.choice.token_ids or not self._server.running:
            return None
        request = ScoringRequest(prompt_token_ids=answer.prompt_token_ids, token_ids=answer.choice.token_ids, top_tokens=_TOP)
        return scorer(route, self._server, _DEADLINE_S).distribution(request)

    def _try_format(self, feature: str) -> FeatureSupport:
        """Return the support for a response format, by the answer's text.

        ``feature`` is a key of ``_FORMATS``. Returns UNKNOWN if the token limit cut the answer within its reasoning, before any document.
        """
        answer = self._send(Route.CHAT, {**_CHAT, "response_format": _FORMATS[feature]})
        if answer is not None and answer.choice.cut_in_reasoning:
            return FeatureSupport.UNKNOWN
        return _support_by_effect(answer, _obeys_schema if feature == "json_schema" else _looks_like_object)


def _have_alternatives(positions: Sequence[Position]) -> bool:
    """Return True if the positions are sound and list several tokens.

    At least one position must list more than one token, and :func:`flaw` must find nothing wrong with any.
    """
    return any(len(position.top_ids) > 1 for position in positions) and not any(flaw(entry, top_tokens=_TOP) for entry in positions)


def _warm_logprob(position: Position) -> float:
    """Return the scored token's log-probability at temperature 0.7 and top-k 5.

    It is worked out from the raw log-probabilities of the position's top tokens. Returns NaN if the scored token is not among these.
    """
    logits = {token: logprob / _WARM for token, logprob in zip(position.top_ids, position.top_logprobs, strict=True)}
    if position.token_id not in logits:
        return math.nan
    highest = max(logits.values())
    return logits[position.token_id] - highest - math.log(math.fsum(math.exp(logit - highest) for logit in logits.values()))


def _distance(reported: float, expected: float) -> float:
    """Return the difference in nats, capped; 0 if ``expected`` is unknown (NaN)."""
    return min(abs(reported - expected), _FAR) if math.isfinite(expected) else 0.0


def _support_by_effect(answer: Answer | None, effect: Callable[[Choice], bool]) -> FeatureSupport:
    """Return the support for a feature, judged by its effect.

    ``effect`` tells whether a choice shows the feature. Returns UNKNOWN without an answer, REFUSED for a refusal, and IGNORED for an
    answer without the effect.
    """
    if answer is None:
        return FeatureSupport.UNKNOWN
    if not answer.ok:
        return FeatureSupport.REFUSED
    return FeatureSupport.HONOURED if effect(answer.choice) else FeatureSupport.IGNORED


def _same_text(choice: Choice, plain: Answer | None) -> bool:
    return plain is not None and choice.text == plain.choice.text


def _support_for_seeds(first: Answer | None, repeat: Answer | None, other_seed: Answer | None) -> FeatureSupport:
    """Return the support for seeds, judged by three answers.

    ``first`` and ``repeat`` have the same seed and must have the same text. If another seed gives that text as well, the repetition shows
    nothing, and the support is UNKNOWN, as it is without one of the answers. It is REFUSED if one of them is a refusal.
    """
    if first is None or repeat is None or other_seed is None:
        return FeatureSupport.UNKNOWN
    if not (first.ok and repeat.ok and other_seed.ok):
        return FeatureSupport.REFUSED
    if not _same_text(repeat.choice, first):
        return FeatureSupport.IGNORED
    return FeatureSupport.UNKNOWN if _same_text(other_seed.choice, first) else FeatureSupport.HONOURED


def _support_for_sampled_ids(answer: Answer | None) -> FeatureSupport:
    """Return the support for token ids above temperature 0, by an answer to a request with a seed."""
    if answer is not None and not answer.ok:
        return FeatureSupport.UNKNOWN  # the server may have refused the seed, which shows nothing about ids
    return _support_by_effect(answer, lambda choice: bool(choice.token_ids))


def _obeys_schema(choice: Choice) -> bool:
    """Return True if the text is the only object allowed by ``_SCHEMA``.

    A beginning of that object counts if the token limit cut it short.
    """
    text = "".join(choice.text.split())
    return text == _ONLY or (choice.finish_reason == "length" and _ONLY.startswith(text) and bool(choice.text))


def _looks_like_object(choice: Choice) -> bool:
    """Return True if the text looks like a JSON object.

    A beginning of one counts if the token limit cut it short.
    """
    return choice.text.lstrip().startswith("{") and (choice.finish_reason == "length" or choice.text.rstrip().endswith("}"))
