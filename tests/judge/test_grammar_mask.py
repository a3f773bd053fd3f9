from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import structured
from pytest_specdec.judge.documents import Flaw
from pytest_specdec.judge.grammar_mask import WORSE
from pytest_specdec.model.grammar_mask import AnswerMask, GrammarMasks
from pytest_specdec.model.transcript import Position, Score
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_workload, answer, captured

OBJECT = {"type": "json_object"}
COUNT = 12
IDS = (7, 8, 9)
TOP = ((7, -0.1), (8, -2.0), (9, -3.0))


def texts(count=COUNT, finish="length"):
    return [answer(f"chat-{i:02}", IDS, text='{"a', finish=finish) for i in range(count)]


def mask(i, *, best=(0, 1, 2), forbidden=None, allowed=(5, 5, 5), grammar="", **fields):
    return AnswerMask(request_id=f"chat-{i:02}", grammar=grammar or f"g{i}", allowed=allowed, best=best, forbidden=forbidden, **fields)


def score(arm, i):
    positions = tuple(
        Position(token_id=token, logprob=dict(TOP)[token], top_ids=tuple(t for t, _ in TOP), top_logprobs=tuple(p for _, p in TOP))
        for token in IDS
    )
    return Score(request_id=f"chat-{i:02}", arm=arm, under="baseline", positions=positions)


def judged(changed=(), *, peers=(), release="1.9.1", server="1.9.1", missing="", temperature=0, alpha=1e-3, scored=True, **body):
    """The verdict where the masks of the variant are ``changed`` and the baseline's and the control's those of ``peers``."""
    asked = [
        Request(id=f"chat-{i:02}", route=Route.CHAT, body={"response_format": OBJECT, "temperature": temperature, **body})
        for i in range(COUNT)
    ]

    def masks(others):
        answers = {i: mask(i) for i in range(COUNT)} | dict(others)
        return GrammarMasks(release=release, server_release=server, missing=missing, answers=() if missing else tuple(answers.values()))

    arms = (VARIANT, "baseline", "control")
    return structured.judge(
        captured(
            "structured",
            texts(),
            texts(),
            texts(),
            workload=a_workload(asked),
            alpha=alpha,
            scores={arm: tuple(score(arm, i) for i in range(COUNT)) for arm in arms} if scored else {},
            grammar_masks={VARIANT: masks(changed), "baseline": masks(peers), "control": masks(peers)},
        )
    )


def test_tokens_that_the_mask_allows_pass_and_are_counted():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS
    assert verdict.rules_out.endswith(f"; the grammar's mask allows all {3 * COUNT} tokens")
    assert (verdict.figures["masked_tokens"], verdict.figures["masked_choices"]) == (3 * COUNT, 3 * COUNT)


def test_one_forbidden_token_fails_where_the_servers_masks_are_of_the_same_release():
    verdict = judged({4: mask(4, forbidden=1, allowed=(5, 5), best=(0, 0))})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, Flaw.FORM.value)
    assert verdict.headline.startswith(f"1 of {COUNT} answers break the grammar's mask: 1 at a forbidden token")
    assert verdict.short[0] == "where        token 1 of chat-04: id 8"


@pytest.mark.parametrize("count, outcome", [(1, Outcome.PASS), (10, Outcome.FAIL)])
def test_another_release_is_held_to_no_single_token(count, outcome):
    wrong = {i: mask(i, forbidden=1, allowed=(5, 5), best=(0, 0)) for i in range(count)}
    assert judged(wrong, server="1.7.6").outcome is outcome
    assert judged(wrong, server="").outcome is outcome


def test_an_allowed_token_far_below_the_best_allowed_one_fails_at_temperature_0():
    verdict = judged({4: mask(4, best=(0, 0, 2))})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, WORSE)
    assert "token 1 of chat-04" in verdict.short[0]
    assert "1.9 nats below the best" in verdict.short[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1},
        {"presence_penalty": 1.0},
        {"scored": False},
    ],
)
def test_choices_are_judged_of_plain_scored_answers_at_temperature_0_alone(fields):
    verdict = judged({4: mask(4, best=(0, 0, 2))}, **fields)
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["masked_choices"] == 0


@pytest.mark.parametrize(
    "own", [mask(4, best=(0, -1, 2)), mask(4, best=(0, -1, 2), allowed=(5, 1, 5)), mask(4, best=(0, 1), allowed=(5, 5))]
)
def test_tokens_that_the_scores_do_not_place_are_no_fault(own):
    assert judged({4: own}).outcome is Outcome.PASS


def test_masks_that_the_baseline_itself_breaks_count_for_nothing():
    wrong = {4: mask(4, forbidden=1, allowed=(5, 5), best=(0, 0), grammar="odd")}
    other = {4: mask(4, grammar="odd"), 5: mask(5, forbidden=0, allowed=(5,), best=(0,), grammar="odd")}
    verdict = judged(wrong, peers=other)
    assert verdict.outcome is Outcome.PASS
    assert any(line.startswith("2 answers left out: the baseline's own disagree") for line in verdict.evidence)


def test_choices_that_the_baseline_does_not_make_itself_count_for_nothing():
    worse = {4: mask(4, best=(0, 0, 2))}
    verdict = judged(worse, peers=worse)
    assert verdict.outcome is Outcome.PASS
    assert any("1 answers left out" in line for line in verdict.evidence)


def test_without_llguidance_the_check_is_left_out_and_said():
    verdict = judged(missing="llguidance is not installed")
    assert verdict.outcome is Outcome.PASS
    assert "untested: how documents end" in verdict.rules_out, "beginnings are held against their schema alone"
    assert "masked_tokens" not in verdict.figures
    whole = [answer(f"chat-{i:02}", IDS, text="{}") for i in range(COUNT)]
    asked = [Request(id=f"chat-{i:02}", route=Route.CHAT, body={"response_format": OBJECT}) for i in range(COUNT)]
    masks = dict.fromkeys((VARIANT, "baseline", "control"), GrammarMasks(missing="llguidance is not installed"))
    verdict = structured.judge(captured("structured", whole, whole, whole, workload=a_workload(asked), grammar_masks=masks))
    assert verdict.outcome is Outcome.PASS
    assert verdict.rules_out.endswith("; tokens are not held against the grammar's mask: llguidance is not installed")
    without = structured.judge(captured("structured", whole, whole, whole, workload=a_workload(asked)))
    assert "mask" not in without.rules_out, "nothing is known of other backends"


def test_answers_without_masks_are_said():
    verdict = judged({4: AnswerMask(request_id="chat-04", grammar="g4", unread="llguidance cannot compile its grammar: no")})
    assert verdict.outcome is Outcome.PASS
    assert "an answer without masks: llguidance cannot compile its grammar: no" in verdict.evidence


def test_the_control_is_held_to_the_masks_beside_the_baseline_alone():
    asked = [Request(id=f"chat-{i:02}", route=Route.CHAT, body={"response_format": OBJECT, "temperature": 0}) for i in range(COUNT)]
    good = GrammarMasks(release="1", server_release="1", answers=tuple(mask(i) for i in range(COUNT)))
    bad = replace(good, answers=(mask(0, forbidden=0, allowed=(5,), best=(0,)), *good.answers[1:]))
    seen = captured(
        "structured", texts(), texts(), texts(), workload=a_workload(asked), grammar_masks={"baseline": good, "control": bad, VARIANT: good}
    )
    assert structured.judge(seen.as_control()).outcome is Outcome.FAIL
    assert structured.judge(seen).outcome is Outcome.PASS


def test_forbidden_white_space_until_the_limit_is_named_as_such():
    endless = [answer(f"chat-{i:02}", (7, 8, 6), text='{"a":' + " " * 40, finish="length") for i in range(2)]
    asked = [Request(id=f"chat-{i:02}", route=Route.CHAT, body={"response_format": OBJECT}) for i in range(2)]
    good = GrammarMasks(release="1", server_release="1", answers=tuple(mask(i) for i in range(2)))
    bad = replace(good, answers=tuple(mask(i, forbidden=2) for i in range(2)))
    seen = captured(
        "structured",
        endless,
        texts(2),
        texts(2),
        workload=a_workload(asked),
        grammar_masks={"baseline": good, "control": good, VARIANT: bad},
    )
    verdict = structured.judge(seen)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the grammar is stuck in white space until the limit")
