"""Images: held against the baseline's own reports up to the first other token, named by the requests that are wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_specdec.judge import images
from pytest_specdec.judge.reported_distributions import score_by_reports
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.transcript import FailureKind, ListedTokens, ServerFailure, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.prompts.images import conversations
from tests.judge.captured_values import VARIANT, answer, captured

WORKLOAD = conversations()
IDS = [request.id for request in WORKLOAD.requests]
TOKENS = 24
USAGE = Usage(prompt_tokens=80, completion_tokens=TOKENS)
OTHER, UNLISTED = 7, 8
"""The second token of every list of the baseline, and one of none."""


def name(token):
    return f"t{token}"


def answers(gap=3.0, windows=None, dead=(), **tokens):
    """One a request: its own tokens, but those given by id with underscores; the second best lies ``gap`` nats below the best."""
    given = []
    for number, id_ in enumerate(IDS):
        ids = tokens.get(id_.replace("/", "_").replace("-", "_")) or list(range(100 * (1 + number % 9), 100 * (1 + number % 9) + TOKENS))
        best, second = -math.log1p(math.exp(-gap)), -gap - math.log1p(math.exp(-gap))
        listed = tuple(ListedTokens(token=name(i), tokens=(name(i), name(OTHER)), logprobs=(best, second)) for i in ids)
        steps = (1,) * TOKENS if id_ in dead else (1, *(3, 2) * 9, 1)
        drafted = (3,) * (len(steps) - 1)
        one = answer(id_, ids, text=" ".join(map(name, ids)), finish="length", logprobs=(best,) * len(ids), listed=listed)
        given.append(replace(one, choices=(replace(one.choice, windows=steps, drafted=drafted),)))
    return given


def with_token(of, index, token):
    """The tokens of the request ``of`` with another one at ``index``, and others after it."""
    ids = list(next(one for one in answers() if one.request_id == of).choice.token_ids)
    return [*ids[:index], token, *range(5000, 5000 + TOKENS - index - 1)]


def judged(mine, baseline=None, control=None, **fields):
    baseline, control = baseline or answers(), control or answers()
    return images.judge(captured("images", mine, baseline, control, workload=WORKLOAD, alpha=1e-5, **fields))


def test_equal_answers_pass_and_say_how_drafts_were_accepted():
    verdict = judged(answers())
    assert verdict.outcome is Outcome.PASS
    assert "18 requests with images" in verdict.headline
    assert f"0 of {TOKENS * len(IDS)} tokens wrong" in verdict.headline


def test_a_near_tie_by_the_baselines_own_report_is_none_and_what_follows_is_not_judged():
    near, far = (judged(answers(image_disc=with_token("image/disc", 5, OTHER)), answers(gap), answers(gap)) for gap in (0.1, 3.0))
    assert (near.outcome, near.figures["near_ties"]) == (Outcome.PASS, 1.0)
    assert (far.outcome, far.names) == (Outcome.FAIL, images.WRONG)
    assert far.figures["tokens"] == TOKENS * (len(IDS) - 1) + 6


def test_a_token_that_the_baseline_does_not_list_lies_below_all_that_it_lists():
    verdict = judged(answers(two_disc_seven=with_token("two/disc-seven", 0, UNLISTED)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, images.WRONG)
    assert verdict.figures["largest_gap_nats"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    "wrong, expected",
    [
        (["image/disc"], images.WRONG),
        (["beside/copy", "beside/list-2"], images.BESIDE),
        (["beside/copy", "mixed/seven"], images.WRONG),
        (["again/disc", "again/square"], images.AGAIN),
        (["text/copy", "image/disc"], "tokens wrong"),
    ],
)
def test_a_failure_is_named_by_the_requests_that_are_wrong(wrong, expected):
    tokens = {id_.replace("/", "_").replace("-", "_"): with_token(id_, 4, UNLISTED) for id_ in wrong}
    verdict = judged(answers(**tokens))
    assert verdict.outcome is Outcome.FAIL
    assert expected in f"{verdict.names} {verdict.headline}"
    assert (expected == "tokens wrong") == (verdict.names not in {images.WRONG, images.BESIDE, images.AGAIN})


def test_an_answer_that_is_an_earlier_images_is_called_so():
    disc = next(one for one in answers() if one.request_id == "image/disc").choice.token_ids
    verdict = judged(answers(other_square=list(disc)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, images.SWAPPED)


def test_drafts_that_are_accepted_of_texts_alone_are_dead_after_images():
    shown = [request.id for request in WORKLOAD.requests if isinstance(request.body["messages"][-1]["content"], list)]
    verdict = judged(answers(dead=[*shown, "turn/disc"]))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, images.DEAD)
    assert judged(answers(dead=shown[1:])).outcome is Outcome.PASS


def test_nothing_drafted_after_images_is_no_fault():
    mine = [
        replace(one, choices=(replace(one.choice, windows=(1,) * TOKENS, drafted=(0,) * (TOKENS - 1)),))
        if not one.request_id.startswith(("text", "beside"))
        else one
        for one in answers()
    ]
    verdict = judged(mine)
    assert verdict.outcome is Outcome.PASS, verdict
    assert "18 requests with images: 0 of 0 verify steps" in verdict.headline


def refused(one):
    return replace(one, status=400, error="inconsistent positions", choices=())


def test_images_that_are_refused_fail_where_the_baseline_answers_and_are_not_served_where_it_refuses_too():
    mine = [refused(one) if not one.request_id.startswith(("text", "beside")) else one for one in answers()]
    verdict, both = judged(mine), judged(mine, mine, mine)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, images.FAIL_ALONE)
    assert both.outcome is Outcome.REFUSED
    assert "not served here" in both.headline


@pytest.mark.parametrize(
    "ending, group, expected",
    [
        (FailureKind.DIED, (), "an image takes the server down"),
        (FailureKind.HUNG, (), "the server hangs on an image"),
        (FailureKind.ERROR, (), images.FAIL_ALONE),
        (FailureKind.DIED, ("mixed/seven", "mixed/square"), "several images in flight take the server down"),
    ],
)
def test_a_server_that_fails_on_an_image_is_named(ending, group, expected):
    failure = ServerFailure(request_id="mixed/seven", ending=ending, recurred=True, group=group)
    verdict = judged(answers(), server_failures=[failure])
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, expected)
    text = replace(failure, request_id="text/copy", group=())
    assert "an image" not in judged(answers(), server_failures=[text]).names


def test_without_lists_of_the_baseline_nothing_is_decided():
    mute = [replace(one, choices=(replace(one.choice, listed=None),)) for one in answers()]
    verdict = judged(answers(), mute, mute)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert f"{len(IDS)} of {len(IDS)} answers equal" in verdict.headline
    processed = {"baseline": Capabilities(raw_logprobs=False)}
    assert judged(answers(), capabilities=processed).outcome is Outcome.INCONCLUSIVE


def without_lists(one, text=None):
    """An answer as of an engine without token ids that lists none of its tokens, with a text of its own if one is given."""
    text = one.choice.text if text is None else text
    return replace(one, usage=USAGE, choices=(replace(one.choice, text=text, token_ids=(), listed=None),))


def without_ids(given, half=()):
    """Answers as of an engine without token ids; the tokens at the places in ``half`` have the name of half a character."""
    return [
        replace(
            one,
            usage=USAGE,
            choices=(
                replace(
                    one.choice,
                    token_ids=(),
                    listed=tuple(replace(t, token="\ufffd") if index in half else t for index, t in enumerate(one.choice.listed)),
                ),
            ),
        )
        for one in given
    ]


def test_answers_that_list_no_tokens_fail_if_they_are_empty_and_are_not_passed_over_if_unlike():
    ids, peers = [name for name in IDS if name.startswith(("image", "two", "again"))], without_ids(answers())

    def judged_with(text):
        mine = [without_lists(one, text) if one.request_id in ids else one for one in without_ids(answers())]
        return judged(mine, peers, peers)

    empty, garbage, equal = map(judged_with, ("", "disc disc disc", None))
    assert (empty.outcome, empty.names) == (Outcome.FAIL, images.EMPTY)
    assert f"{len(ids)} of {len(IDS)} answers, {len(ids)} of them to images; first: request {ids[0]}" in empty.headline
    assert garbage.outcome is Outcome.INVALID
    assert f"{len(ids)} answers differ from the baseline's and were not scored; first: request {ids[0]}" in garbage.headline
    assert equal.outcome is Outcome.PASS
    assert f"not scored: {len(ids)} answers without a list of tokens, their texts the baseline's" in equal.evidence


def test_an_empty_answer_to_one_prompt_alone_may_be_a_near_tie_and_is_not_judged():
    peers = without_ids(answers())
    verdict = judged([without_lists(one, "") if one.request_id == "image/disc" else one for one in peers], peers, peers)
    assert (verdict.outcome, "were not scored" in verdict.headline) == (Outcome.INVALID, True), verdict


def test_an_answer_that_is_empty_at_a_boot_of_the_baseline_too_is_no_failure():
    peers = without_ids(answers())
    mine = [without_lists(one, "") if one.request_id == "image/disc" else one for one in peers]
    assert judged(mine, peers, mine).outcome is not Outcome.FAIL
    assert judged(mine, mine, mine).outcome is Outcome.PASS


def test_wrong_tokens_come_before_answers_that_were_not_scored():
    peers = without_ids(answers())
    wrong = without_ids(answers(image_disc=with_token("image/disc", 5, UNLISTED)))
    mine = [without_lists(one, "disc") if one.request_id == "image/square" else one for one in wrong]
    assert (judged(mine, peers, peers).outcome, judged(mine, peers, peers).names) == (Outcome.FAIL, images.WRONG)


def test_a_variant_that_lists_no_tokens_is_not_taken_for_the_baseline():
    peers = without_ids(answers())
    verdict = judged([*map(without_lists, peers)], peers, peers)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert f"{VARIANT} lists no tokens with its answers" in verdict.headline
    assert "the baseline lists" not in verdict.headline
    assert judged([without_lists(one, "") for one in peers], peers, peers).names == images.EMPTY


def test_scores_by_reports_end_with_the_first_other_token_and_know_no_ids_of_unheard_names():
    given = captured("images", answers(image_disc=with_token("image/disc", 5, OTHER)), answers(), answers(), workload=WORKLOAD)
    part = score_by_reports(given)
    by_id = {score.request_id: score.positions for score in part.scores[VARIANT]}
    assert (len(by_id["image/disc"]), by_id["image/disc"][-1].token_id) == (6, OTHER)
    assert by_id["image/disc"][-1].top_ids[1] == OTHER
    assert part.speculative.arm == VARIANT
    assert all(answer.choice.logprobs is None for answer in part.baseline.answers)
    mute = score_by_reports(captured("images", answers(), answers(), answers(), workload=WORKLOAD))
    assert mute.scores[VARIANT][0].positions[0].top_ids[1] < 0


def test_where_ids_are_missing_the_names_of_listed_tokens_stand_for_them():
    wrong = answers(image_disc=with_token("image/disc", 5, UNLISTED))
    verdict = judged(without_ids(wrong), without_ids(answers()))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, images.WRONG)
    halves = judged(without_ids(wrong, half={3}), without_ids(answers(), half={3}), without_ids(answers(), half={3}))
    assert halves.outcome is not Outcome.FAIL, "what follows half a character is not judged"
    mute = [replace(one, choices=(replace(one.choice, token_ids=(), listed=None),)) for one in answers()]
    assert judged(mute).outcome is not Outcome.FAIL
