"""Concurrency: wrong tokens by the company they were in, and everything that is no fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import concurrency
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.transcript import FailureKind, ServerFailure
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, captured, position, requests, score

WAVES = (1, 1, 4, 8)


def company(*, wrong=(), waves=WAVES, tokens=40, change=None, ask=lambda number, request: request, **fields):
    """Fourteen requests in waves; those in ``wrong`` have a wrong token."""
    asked = a_workload([ask(number, request) for number, request in enumerate(requests(14))], waves=waves)
    theirs = [answer(request.id, range(tokens), text=f"answer to {request.id}", finish="length") for request in asked.requests]
    mine = [each if change is None else change(number, each) for number, each in enumerate(theirs)]
    scores = {
        "baseline": tuple(score("baseline", each) for each in theirs),
        VARIANT: tuple(score(VARIANT, each, [(5, 3.0)] if n in wrong else []) for n, each in enumerate(mine) if each.ok),
    }
    return captured("concurrency", mine, theirs, workload=asked, **{"scores": scores, "alpha": 1e-5, **fields})


def cut(request):
    return replace(request, body={**request.body, "max_tokens": 40})


def judged(**given):
    return concurrency.judge(company(**{"ask": lambda _, request: cut(request), **given}))


def test_right_tokens_in_every_company_pass():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS
    assert "with 4 and 8 in flight" in verdict.headline
    assert "480 tokens under concurrency" in verdict.rules_out
    assert f"or {1 - 0.01 ** (1 / 12):.1%} of the answers wrong throughout" in verdict.rules_out, "the two alone are not among them"


def test_tokens_that_are_wrong_in_company_fail_by_their_size():
    verdict = judged(wrong=(6, 9))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "answers go wrong only under concurrency")
    assert verdict.example == Example(symptom=Symptom.TEXT, request_id="chat-06", token=5, limit_nats=0.25)
    assert "2 of 560 tokens wrong with 8 in flight, 0 of 80 alone" in verdict.headline


def test_tokens_that_are_wrong_alone_too_are_no_matter_of_company():
    assert judged(wrong=(0, 9)).names == "tokens are wrong alone and under concurrency"


def test_few_tokens_are_not_enough():
    assert (
        judged(tokens=10, ask=lambda _, request: replace(request, body={**request.body, "max_tokens": 10})).outcome is Outcome.INCONCLUSIVE
    )


def test_a_client_that_left_is_counted_and_is_no_missing_answer():
    def leaving(number, each):
        return replace(each, status=None, choices=(), aborted=True) if number == 7 else each

    verdict = judged(change=leaving, ask=lambda n, request: replace(cut(request), abort_after=2 if n == 7 else None))
    assert verdict.outcome is Outcome.PASS
    assert "1 clients left" in verdict.headline


def test_a_missing_answer_is_invalid_and_a_refused_one_is_said():
    lost = judged(change=lambda n, each: replace(each, status=None, choices=()) if n == 7 else each)
    assert (lost.outcome, "1 of 14 requests have no answer" in lost.headline) == (Outcome.INVALID, True)
    refused = judged(change=lambda n, each: replace(each, status=400, error="no", choices=()) if n == 7 else each)
    assert (refused.outcome, "1 requests refused" in refused.headline) == (Outcome.PASS, True)


def test_swapped_answers_fail_before_their_tokens_are_looked_at():
    texts = {8: "x" * 40, 9: "y" * 40}
    theirs = company(ask=lambda _, request: cut(request), change=lambda n, each: with_text(each, texts.get(n, each.choice.text)))
    own = replace(theirs.baseline, answers=theirs.speculative.answers)
    mine = [with_text(each, texts[17 - n]) if n in texts else each for n, each in enumerate(own.answers)]
    verdict = concurrency.judge(replace(theirs, baseline=own, speculative=replace(theirs.speculative, answers=tuple(mine))))
    assert verdict.names == "answers are swapped between requests"
    assert "request chat-08 is answered as chat-09" in verdict.headline


def with_text(each, text):
    """Other text of other tokens, as many."""
    tokens = tuple(token + 1000 + sum(map(ord, text)) for token in each.choice.token_ids)
    return replace(each, choices=(replace(each.choice, text=text, token_ids=tokens),))


def test_foreign_text_that_the_baseline_has_not_fails():
    verdict = judged(change=lambda _, each: with_text(each, each.choice.text + " <|im_end|>"))
    assert verdict.names == "special tokens or foreign scripts appear under concurrency"


def test_a_few_foreign_answers_are_chance():
    assert judged(change=lambda n, each: with_text(each, "<pad>") if n < 3 else each).outcome is Outcome.PASS


def documents(mine, theirs):
    seen = company(
        ask=lambda n, request: cut(
            replace(request, body={**request.body, "response_format": {"type": "json_object"}}) if n == 9 else request
        )
    )
    of = {True: mine, False: theirs}

    def answered(arm, ours):
        return replace(arm, answers=tuple(with_text(a, of[ours]) if n == 9 else a for n, a in enumerate(arm.answers)))

    return concurrency.judge(replace(seen, baseline=answered(seen.baseline, False), speculative=answered(seen.speculative, True)))


@pytest.mark.parametrize(
    "mine, theirs, names", [("{]", '{"a": ', "a grammar is not kept under concurrency"), ("{]", "{]", ""), ('{"a"', '{"b"', "")]
)
def test_a_document_fails_where_the_baselines_is_valid(mine, theirs, names):
    assert documents(mine, theirs).names == names


def windows(small, large):
    def step(number, each):
        return replace(each, choices=(replace(each.choice, windows=(1, *[large if number >= 6 else small] * 20)),))

    return step


def test_drafts_that_die_in_large_company_fail():
    verdict = judged(change=windows(3, 1), waves=(1, 1, 1, 1, 1, 1, 8))
    assert verdict.names == "drafts are hardly ever accepted under concurrency"
    assert "with 8 requests in flight or more" in verdict.headline


@pytest.mark.parametrize(
    "small, large, settings", [(3, 3, {}), (1, 1, {}), (3, 1, {"most_requests": 4}), (3, 1, {"depends_on_load": True})]
)
def test_drafts_that_live_or_that_the_config_leaves_out_are_no_fault(small, large, settings):
    pair = a_pair()
    draft = replace(pair.variant.draft, **settings)
    pair = replace(pair, variant=replace(pair.variant, draft=draft))
    verdict = judged(change=windows(small, large), waves=(1, 1, 1, 1, 1, 1, 8), pair=pair)
    assert verdict.outcome is Outcome.PASS


def test_a_baseline_that_does_not_repeat_itself_cannot_judge():
    seen = company(ask=lambda _, request: cut(request))
    noisy = tuple(score("baseline", each, [(5, 3.0)]) for each in seen.baseline.answers)
    assert concurrency.judge(replace(seen, scores={**seen.scores, "baseline": noisy})).outcome is Outcome.INVALID


def test_scores_of_other_tokens_and_none_are_invalid():
    seen = company(ask=lambda _, request: cut(request))
    first, *rest = seen.scores[VARIANT]
    other = replace(first, positions=(position(99), *first.positions[1:]))
    assert concurrency.judge(replace(seen, scores={**seen.scores, VARIANT: (other, *rest)})).outcome is Outcome.INVALID
    assert "no greedy token" in concurrency.judge(replace(seen, scores={})).headline


def test_an_engine_without_scores_is_inconclusive():
    known = Capabilities(support={"token_ids": FeatureSupport.IGNORED})
    verdict = judged(scores={}, capabilities={"baseline": known})
    assert (verdict.outcome, "no token can be scored" in verdict.headline) == (Outcome.INCONCLUSIVE, True)


def test_a_death_in_company_says_that_a_client_left():
    group = ("chat-07", "chat-08")
    failure = ServerFailure(request_id="chat-08", ending=FailureKind.DIED, recurred=True, group=group)

    def harmed(number, each):
        return replace(each, status=None, choices=(), error="lost") if number == 8 else each

    verdict = judged(
        change=harmed, server_failures=[failure], ask=lambda n, request: replace(cut(request), abort_after=2 if n == 7 else None)
    )
    assert verdict.names == "the server dies with several requests in flight, one of which its client leaves"


def test_the_control_is_judged_without_drafts():
    assert concurrency.judge(replace(company(ask=lambda _, r: cut(r)), is_control=True)).outcome is Outcome.PASS
