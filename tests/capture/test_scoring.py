"""The two routes to a distribution, each against a server of known replies."""

from __future__ import annotations

import json
import math
import threading
from types import SimpleNamespace

import pytest

from pytest_specdec.capture.client import Exchange
from pytest_specdec.capture.scoring import Continuations, PromptLogprobs, ScoredSequence, ScoringRequest, TranscriptScorer, scorer
from pytest_specdec.capture.transport import MAX_BYTES
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.errors import RequestError
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, ScoringRoute, Transcript

TOP = {"token_id:5": -0.1, "token_id:6": -2.5}
ASKED = ScoringRequest(prompt_token_ids=(1, 2), token_ids=(10, 11, 12), top_tokens=2)


class Server:
    """Answers every request with what ``reply`` makes of its prompt, and remembers the bodies."""

    def __init__(self, reply):
        self.bodies, self._reply = [], reply
        self.recipe, self.client = SimpleNamespace(dialect=VllmDialect()), self
        self.left_s = lambda: 1e6

    def exchange(self, path, body, *, deadline_s, max_bytes):
        self.bodies.append(body)
        self.max_bytes = max_bytes
        found = self._reply(body["prompt"])
        if isinstance(found, Exchange):
            return found
        return Exchange(sent_s=0.0, done_s=1.0, status=200, received=SimpleNamespace(json=lambda: json.loads(json.dumps(found))))


def listed(prompt):
    """The next token is the length plus 8 with probability a half, the one after it with a quarter."""
    best = len(prompt) + 8
    return {"choices": [{"logprobs": {"top_logprobs": [{f"token_id:{best}": math.log(0.5), f"token_id:{best + 1}": math.log(0.25)}]}}]}


def refused(_):
    return Exchange(sent_s=0.0, done_s=1.0, status=400, error="no such field")


def continued(server, is_over=lambda: False):
    return Continuations(server, 1.0, is_over).distribution(ASKED)


def test_every_prefix_is_continued_by_one_token_in_order():
    server = Server(listed)
    distribution = continued(server)
    assert [body["prompt"] for body in server.bodies] == [[1, 2], [1, 2, 10], [1, 2, 10, 11]]
    assert {body["max_tokens"] for body in server.bodies} == {1}
    assert [position.token_id for position in distribution.positions] == [10, 11, 12]
    assert [position.top_ids for position in distribution.positions] == [(10, 11), (11, 12), (12, 13)]
    assert [position.logprob for position in distribution.positions] == [math.log(0.5)] * 3


def test_what_is_asked_for_is_the_distribution_as_it_is():
    """At another temperature, log-probabilities after processing would be of another distribution."""
    body = VllmDialect().continuations([(1, 2)], 20).body
    assert (body["temperature"], body["top_p"], body["logprobs"]) == (1.0, 1.0, 20)
    assert body["return_tokens_as_token_ids"] is True


def test_a_prefix_without_a_distribution_leaves_the_answer_without_one():
    server = Server(lambda prompt: refused(prompt) if len(prompt) == 3 else listed(prompt))
    distribution = continued(server)
    assert (distribution.positions, distribution.error, distribution.failed) == ((), "400: no such field", False)
    assert len(server.bodies) == 2


def test_a_server_that_dies_between_prefixes_has_failed():
    died = Exchange(sent_s=0.0, done_s=1.0, status=None, error="connection lost", ending=FailureKind.DIED)
    distribution = continued(Server(lambda prompt: died if len(prompt) == 4 else listed(prompt)))
    assert (distribution.positions, distribution.failed) == ((), True)


def test_nothing_more_is_asked_once_the_time_is_up():
    server = Server(listed)
    distribution = continued(server, lambda: len(server.bodies) == 2)
    assert (distribution.positions, distribution.error) == ((), "not scored before the capture ended")
    assert len(server.bodies) == 2


def test_a_reply_without_a_list_says_what_was_missing():
    assert "listed no log-probabilities" in continued(Server(lambda _: {"choices": []})).error


def test_prompt_logprobs_take_one_request_for_all_tokens():
    told = [None, None, *({str(token): {"logprob": -0.5, "rank": 1}} for token in ASKED.token_ids)]
    server = Server(lambda _: {"choices": [{"prompt_logprobs": told}]})
    distribution = PromptLogprobs(server, 1.0).distribution(ASKED)
    assert [body["prompt"] for body in server.bodies] == [[1, 2, 10, 11, 12]]
    assert [position.token_id for position in distribution.positions] == [10, 11, 12]


def with_context(tokens, *, refuse_last=False):
    """A server that refuses prompts of ``tokens`` tokens, which leave no room for a new one."""

    def reply(prompt):
        if len(prompt) >= tokens or (refuse_last and len(server.bodies) == 3):
            return refused(prompt)
        scored = {"prompt_logprobs": [None, *({str(token): {"logprob": -0.5, "rank": 1}} for token in prompt[1:])]}
        return {"choices": [{**listed(prompt)["choices"][0], **scored}]}

    server = Server(reply)
    return server


def test_the_last_token_of_a_sequence_that_fills_the_context_is_continued_from_the_others():
    server = with_context(5)
    distribution = PromptLogprobs(server, 1.0).distribution(ASKED)
    assert [body["prompt"] for body in server.bodies] == [[1, 2, 10, 11, 12], [1, 2, 10, 11], [1, 2, 10, 11]]
    assert ["prompt_logprobs" in body for body in server.bodies] == [True, True, False]
    assert [position.token_id for position in distribution.positions] == [10, 11, 12]
    assert [position.logprob for position in distribution.positions] == [-0.5, -0.5, math.log(0.5)]


@pytest.mark.parametrize("tokens, refuse_last, requests", [(4, False, 2), (5, True, 3)])
def test_a_sequence_of_which_a_part_is_refused_has_no_distribution(tokens, refuse_last, requests):
    server = with_context(tokens, refuse_last=refuse_last)
    distribution = PromptLogprobs(server, 1.0).distribution(ASKED)
    assert (distribution.positions, distribution.error, distribution.refused) == ((), "400: no such field", True)
    assert len(server.bodies) == requests


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": ["token_id:7"], "token_logprobs": [-3.0], "top_logprobs": [{"token_id:7": -3.0, **TOP}]},
        {"content": [{"token": "token_id:7", "top_logprobs": [{"token": name, "logprob": logprob} for name, logprob in TOP.items()]}]},
    ],
)
def test_a_list_is_read_in_the_completions_form_and_in_chats(logprobs):
    (found,) = VllmDialect().continued({"choices": [{"logprobs": logprobs}]}, [6], 2)
    assert (found.top_ids, found.top_logprobs, found.logprob) == ((5, 6), (-0.1, -2.5), -2.5)


@pytest.mark.parametrize("logprobs", [None, [], {}, {"top_logprobs": []}, {"top_logprobs": [None]}, {"content": [{}]}, {"content": []}])
def test_a_reply_without_a_list_is_no_distribution(logprobs):
    with pytest.raises(RequestError, match="listed no"):
        VllmDialect().continued({"choices": [{"logprobs": logprobs}]}, [6], 2)


def test_tokens_named_by_text_are_no_ids():
    """A text may look like one."""
    with pytest.raises(RequestError, match="by text alone"):
        VllmDialect().continued({"choices": [{"logprobs": {"top_logprobs": [{"token_id:x": -0.1}]}}]}, [6], 2)


NO, IGNORED, YES, UNKNOWN = FeatureSupport.REFUSED, FeatureSupport.IGNORED, FeatureSupport.HONOURED, FeatureSupport.UNKNOWN


@pytest.mark.parametrize(
    "prompt_logprobs,continuations,route",
    [
        (YES, YES, ScoringRoute.PROMPT_LOGPROBS),
        (NO, YES, ScoringRoute.CONTINUATIONS),
        (IGNORED, YES, ScoringRoute.CONTINUATIONS),
        (NO, IGNORED, ScoringRoute.PROMPT_LOGPROBS),
        (NO, UNKNOWN, ScoringRoute.PROMPT_LOGPROBS),
        (UNKNOWN, YES, ScoringRoute.PROMPT_LOGPROBS),
    ],
)
def test_the_dearer_route_is_taken_where_it_is_the_only_one(prompt_logprobs, continuations, route):
    assert Capabilities(support={"prompt_logprobs": prompt_logprobs, "continuations": continuations}).route is route
    assert isinstance(scorer(route, Server(listed), 1.0), Continuations) is (route is ScoringRoute.CONTINUATIONS)


def test_a_run_without_that_question_was_scored_as_all_were():
    assert Capabilities().route is ScoringRoute.PROMPT_LOGPROBS


def test_the_distributions_at_many_tokens_may_take_more_bytes_than_an_answer():
    few, many = (Server(lambda _: {"choices": []}) for _ in range(2))
    PromptLogprobs(few, 1.0).distribution(ASKED)
    PromptLogprobs(many, 1.0).distribution(ScoringRequest(prompt_token_ids=(1,) * 99_998, token_ids=(1, 2), top_tokens=20))
    assert (few.max_bytes, many.max_bytes) == (MAX_BYTES, 100_000 * 21 * 256)


def test_a_score_keeps_the_prompt_that_the_scorer_alone_knows():
    """An engine without token ids of prompts may have penalties that count them."""
    server = Server(listed)
    server.ensure_running, server.concurrency = lambda: True, lambda most: most
    reporter = SimpleNamespace(left_s=1e6, update=lambda *_: None)
    by_continuation = Continuations(server, 1.0, lambda: False)
    asking = TranscriptScorer(
        server=server, under="baseline", scorer=lambda: by_continuation, prompt_token_ids=lambda _: (1, 2), reporter=reporter
    )
    answers = [
        Answer(request_id=name, status=200, prompt_token_ids=ids, choices=(Choice(token_ids=(10, 11)),))
        for name, ids in (("a", ()), ("b", (1, 2)))
    ]
    given = Transcript(arm="v", boot=0, workload="w", digest="0" * 16, answers=tuple(answers))
    assert [score.prompt_token_ids for score in asking.score(given, 2).scores] == [(1, 2), ()]


class DyingArm:
    """A server whose first boot dies of the requests in flight."""

    may_replay = True

    def __init__(self):
        self.boots = 1

    def ensure_running(self):
        return True

    def terminate(self):
        self.boots += 1

    def concurrency(self, most):
        return most


class DyingRoute:
    def __init__(self, arm, deadly):
        self._arm, self._deadly, self._together = arm, deadly, threading.Barrier(4)

    def distribution(self, request):
        if self._arm.boots == 1:
            self._together.wait(timeout=5.0)
        return ScoredSequence(failed=self._arm.boots == 1 or request.token_ids[0] in self._deadly)


@pytest.mark.parametrize("deadly, boots", [((), 2), ((1, 2), 4)])
def test_one_death_with_four_in_flight_costs_one_boot_and_another_only_after_a_request_that_kills_again(deadly, boots):
    arm, reporter = DyingArm(), SimpleNamespace(left_s=1e6, update=lambda *_: None)
    route = DyingRoute(arm, deadly)
    under_test = TranscriptScorer(server=arm, under="baseline", scorer=lambda: route, prompt_token_ids=lambda _: (1, 2), reporter=reporter)
    choices = [Choice(token_ids=(token,)) for token in range(4)]
    answers = tuple(Answer(request_id=f"r{i}", status=200, prompt_token_ids=(1, 2), choices=(c,)) for i, c in enumerate(choices))
    under_test.score(Transcript(arm="draft-k3", boot=1, workload="chat", digest="", answers=answers), 2)
    assert arm.boots == boots


@pytest.mark.parametrize("route", ScoringRoute)
def test_tokens_are_scored_under_the_weights_that_gave_them(route):
    """The same tokens under another adapter have another distribution: nothing of the one may stand for the other."""
    server = Server(listed if route is ScoringRoute.CONTINUATIONS else prompt_listed)
    server.concurrency, server.ensure_running, server.may_replay = (lambda most: most), (lambda: True), False
    reporter = SimpleNamespace(left_s=1e6, update=lambda *_: None)
    weights = {"sql": {"model": "sql"}, "tone": {"lora": [{"id": 1, "scale": 1.0}]}, "none": {}}
    choice = Choice(token_ids=(10, 11), finish_reason="length")
    given = tuple(Answer(request_id=name, status=200, prompt_token_ids=(1, 2), choices=(choice,)) for name in (*weights, "sql"))
    scoring = TranscriptScorer(
        server=server,
        under="baseline",
        scorer=lambda: scorer(route, server, 1.0),
        prompt_token_ids=lambda _: (),
        reporter=reporter,
        weights=weights.__getitem__,
    )
    scored = scoring.score(Transcript(arm="v", boot=0, workload="w", digest="0" * 16, answers=given), 2)
    assert all(score.positions for score in scored.scores)
    each = 2 if route is ScoringRoute.CONTINUATIONS else 1
    assert sorted(str({name: body[name] for name in ("model", "lora") if name in body}) for body in server.bodies) == sorted(
        str(fields) for fields in weights.values() for _ in range(each)
    )


def prompt_listed(prompt):
    return {"choices": [{"prompt_logprobs": [None, *({str(token): {"logprob": -0.1, "rank": 1}} for token in prompt[1:])]}]}
