"""Budgets for reasoning: overruns, early ends and wrong tokens over toy answers, and what a baseline may do with a budget."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from pytest_specdec.judge import greedy, parameters
from pytest_specdec.model.transcript import Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, score

PROMPTS, BUDGETS, END, FREE = 9, (3, 5), 99, 12


def asked():
    for prompt in range(PROMPTS):
        body = {"messages": [{"role": "user", "content": f"{prompt}"}], "max_tokens": 20}
        for budget in (None, *BUDGETS):
            limit = {} if budget is None else {"thinking_token_budget": budget}
            yield Request(id=f"{prompt}-{budget}", route=Route.CHAT, body={**body, "temperature": 0, **limit})
        yield Request(id=f"{prompt}-3-drawn", route=Route.CHAT, body={**body, "temperature": 1.0, "seed": 1, "thinking_token_budget": 3})


REQUESTS = tuple(asked())


def answers(over=None, *, uncounted=False, ignoring=False, words=()):
    """What an arm answers: reasoning up to its budget, the end, four tokens of text; ``over`` are tokens beyond the budget by request."""
    given = []
    for request in REQUESTS:
        budget = None if ignoring else request.body.get("thinking_token_budget")
        reasoned = FREE if budget is None else budget + (over or {}).get(request.id, 0)
        prompt = int(request.id.partition("-")[0])
        closing = () if budget is None else words
        ids = (*(100 * prompt + index for index in range(reasoned)), *closing, END, 7, 7, 7, 7)
        counted = None if uncounted else reasoned + len(closing) + 1
        usage = Usage(prompt_tokens=3, completion_tokens=len(ids), reasoning_tokens=counted)
        given.append(answer(request.id, ids, usage=usage, text="" if END not in ids else "text", reasoning="because"))
    return given


def scores(arm, given):
    """The end is likely after the free reasoning and unlikely before; so are closing words."""
    bodies = {request.id: request.body for request in REQUESTS}
    scored = []
    for each in given:
        ids = each.choice.token_ids
        end = ids.index(END)
        forced = [end, *(index for index in range(end) if ids[index] in {55, 56})] if bodies[each.request_id]["temperature"] == 0 else []
        gaps = dict.fromkeys(forced, 9.0) if end != FREE else {}
        scored.append(score(arm, each, gaps))
    return tuple(scored)


def shortened(each):
    """The answer without its last two tokens of text."""
    ids = each.choice.token_ids[:-2]
    return replace(each, choices=(replace(each.choice, token_ids=ids),), usage=replace(each.usage, completion_tokens=len(ids)))


def unlisted(scored):
    """The same scores from a route that lists the top tokens only."""
    return tuple(
        replace(each, positions=tuple(replace(at, logprob=at.logprob if at.token_id in at.top_ids else nan) for at in each.positions))
        for each in scored
    )


def judged(over=None, *, baseline=None, variant=None, scores=scores, **fields):
    base = answers() if baseline is None else baseline
    said = answers(over) if variant is None else variant
    return parameters.judge(
        captured(
            "parameters",
            said,
            base,
            base,
            workload=a_workload(REQUESTS),
            scores={"baseline": scores("baseline", base), "control": scores("control", base), VARIANT: scores(VARIANT, said)},
            **fields,
        )
    )


def test_the_baselines_ends_are_no_wrong_tokens():
    verdict = judged()
    assert verdict.outcome is Outcome.PASS, verdict.headline
    assert verdict.headline.startswith("18 of 27 budgets end the reasoning")
    assert verdict.parameters[VARIANT] == {"thinking_token_budget": "honoured"}


def test_forced_words_before_the_end_belong_to_it():
    closing = answers(words=(55, 56))
    assert judged(baseline=closing, variant=closing).outcome is Outcome.PASS


def test_a_forced_token_that_no_score_lists_is_forced_too():
    verdict = judged(scores=lambda arm, given: unlisted(scores(arm, given)))
    assert verdict.outcome is Outcome.PASS, verdict.headline


@pytest.mark.parametrize("request_id", ["4-3", "4-3-drawn"])
def test_one_token_beyond_a_budget_is_an_overrun(request_id):
    verdict = judged({request_id: 1})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "thinking_token_budget is overrun")
    assert verdict.figures["most_tokens_over"] == 1.0
    assert verdict.example.request_id == request_id


def test_an_end_before_the_budget_is_early():
    verdict = judged({f"{prompt}-5": -2 for prompt in range(PROMPTS)})
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "thinking_token_budget ends the reasoning early")


def test_another_failure_than_by_tokens_keeps_its_name_beside_an_early_end():
    said = [shortened(each) if each.request_id.endswith("None") else each for each in answers({"4-5": -2})]
    verdict = judged(
        variant=said, scores=lambda arm, given: tuple(score(arm, each) for each in given) if arm == VARIANT else scores(arm, given)
    )
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names == greedy.UNEXPLAINED


def test_a_wrong_token_elsewhere_has_greedys_own_name():
    said = answers()
    wrong = {VARIANT: tuple(score(VARIANT, each, {len(each.choice.token_ids) - 1: 9.0}) for each in said)}
    case = captured("parameters", said, said, said, workload=a_workload(REQUESTS))
    healthy = {arm: scores(arm, said) for arm in ("baseline", "control")}
    verdict = parameters.judge(replace(case, scores={**healthy, **wrong}))
    assert verdict.outcome is Outcome.FAIL
    assert "thinking" not in verdict.names


def counting(given, tokens):
    """The same answers with another count of reasoning tokens."""
    return [replace(each, usage=replace(each.usage, reasoning_tokens=tokens)) for each in given]


@pytest.mark.parametrize("tokens", [None, 0])
@pytest.mark.parametrize("baseline", [answers(), answers(uncounted=True, words=(55, 56))])
def test_ignored_budgets_fail_where_no_reasoning_is_counted(baseline, tokens):
    verdict = judged(baseline=baseline, variant=counting(answers(ignoring=True), tokens))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "thinking_token_budget is overrun")
    assert verdict.figures["overruns"] == 2.0 * PROMPTS
    assert verdict.parameters[VARIANT] == {"thinking_token_budget": "ignored"}


def test_no_count_redeems_the_tokens_of_an_answer_without_a_budget():
    ignoring = [counting([each], 4)[0] if each.request_id == "4-3" else each for each in answers(ignoring=True)]
    said = [ignored if ignored.request_id == "4-3" else each for ignored, each in zip(ignoring, answers(), strict=True)]
    assert judged(variant=said).names == "thinking_token_budget is overrun"


def test_one_ignored_budget_fails_too():
    ignoring = counting(answers(ignoring=True), None)
    said = [ignored if ignored.request_id == "4-3" else each for ignored, each in zip(ignoring, answers(), strict=True)]
    verdict = judged(variant=said)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "thinking_token_budget is overrun")
    assert verdict.example.request_id == "4-3"


def test_reasoning_that_ends_by_itself_within_its_budget_ignores_none():
    """The variant's model takes the other side of a tie before the budget, and ends there with and without it."""
    ids = (400, 401, 98, 7, 7)
    usage = Usage(prompt_tokens=3, completion_tokens=len(ids))
    early = {f"4-{budget}": answer(f"4-{budget}", ids, usage=usage, text="text", reasoning="because") for budget in (None, *BUDGETS)}
    said = [early.get(each.request_id, each) for each in answers(uncounted=True, words=(55, 56))]

    def tied(arm, given):
        return tuple(score(arm, each) for each in given) if arm == VARIANT else scores(arm, given)

    verdict = judged(baseline=answers(uncounted=True, words=(55, 56)), variant=said, scores=tied)
    assert verdict.outcome is Outcome.PASS, verdict.headline


def test_budgets_that_shorten_nothing_countable_are_not_known_to_be_honoured():
    verdict = judged(variant=answers(uncounted=True))
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "no effect")
    assert verdict.parameters == {
        "baseline": {"thinking_token_budget": "honoured"},
        VARIANT: {"thinking_token_budget": "did not bind"},
    }


def test_a_request_in_which_the_baseline_overruns_judges_nobody():
    late = {"4-3-drawn": 2}
    assert judged(late, baseline=answers(late)).outcome is Outcome.PASS


def test_a_budget_that_the_baseline_ignores_has_no_effect():
    ignoring = answers(ignoring=True)
    verdict = judged(baseline=ignoring, variant=ignoring)
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "no effect")
    assert verdict.parameters["baseline"] == {"thinking_token_budget": "ignored"}


def test_a_baseline_that_ignores_budgets_and_once_reasons_for_less_judges_nobody():
    """Another side of a tie made one answer's reasoning shorter: no budget did."""
    ignoring = answers(ignoring=True)
    ids = (*range(400, 408), 498, END, 7, 7, 7, 7)
    usage = Usage(prompt_tokens=3, completion_tokens=len(ids), reasoning_tokens=10)
    noisy = [answer("4-5", ids, usage=usage, text="text", reasoning="b") if each.request_id == "4-5" else each for each in ignoring]
    verdict = judged(baseline=noisy, variant=ignoring)
    assert (verdict.outcome, verdict.cell) == (Outcome.INCONCLUSIVE, "no effect")


@pytest.mark.parametrize("words", [(), (55, 56)])
def test_reasoning_that_is_not_counted_ends_where_the_baselines_does(words):
    uncounted = answers(uncounted=True, words=words)
    assert judged(baseline=uncounted, variant=uncounted).outcome is Outcome.PASS
    late = answers({"4-3": 2}, uncounted=True, words=words)
    verdict = judged(baseline=uncounted, variant=late)
    assert (verdict.names, verdict.figures["most_tokens_over"]) == ("thinking_token_budget is overrun", 2.0)


@pytest.mark.parametrize("end", [55, END])
def test_a_drawn_answer_with_the_end_as_a_word_of_its_text_overruns_nothing(end):
    uncounted = answers(uncounted=True, words=(55, 56))
    ids = (400, 98, 7, 7, 7, 7, 7, 7, end, END, 7)
    drawn = [
        answer("4-3-drawn", ids, usage=Usage(prompt_tokens=3, completion_tokens=len(ids)), text="text", reasoning="b")
        if each.request_id == "4-3-drawn"
        else each
        for each in uncounted
    ]
    assert judged(baseline=uncounted, variant=drawn).outcome is Outcome.PASS


def test_a_drawn_answer_that_reasons_to_its_last_token_overruns():
    uncounted = answers(uncounted=True)
    ids = tuple(range(400, 420))
    drawn = [
        answer("4-3-drawn", ids, usage=Usage(prompt_tokens=3, completion_tokens=len(ids)), finish="length", reasoning="b")
        if each.request_id == "4-3-drawn"
        else each
        for each in uncounted
    ]
    verdict = judged(
        baseline=uncounted, variant=drawn, scores=lambda arm, given: scores(arm, [e for e in given if END in e.choice.token_ids])
    )
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "thinking_token_budget is overrun")


def test_an_end_that_neither_counts_nor_tokens_show_decides_nothing():
    ignoring = answers(uncounted=True, ignoring=True)
    assert judged(baseline=ignoring, variant=ignoring).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("ignoring, effect", [(False, "honoured"), (True, "did not bind")])
def test_budgets_refused_by_the_variant_alone_are_refused(ignoring, effect):
    base = answers(ignoring=ignoring)
    said = [
        answer(each.request_id, status=400, error="no thinking_token_budget") if "None" not in each.request_id else each for each in base
    ]
    case = captured("parameters", said, base, base, workload=a_workload(REQUESTS))
    verdict = parameters.judge(case)
    assert verdict.outcome is Outcome.REFUSED
    assert verdict.parameters["baseline"] == {"thinking_token_budget": effect}
