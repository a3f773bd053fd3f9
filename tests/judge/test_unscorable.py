"""An engine that gives no log-probabilities of given tokens: no judge of tokens says anything of it, in favour or against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy, logprobs, parameters, sampling, structured
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge.captured_values import a_workload, answer, captured

REFUSED = {"token_ids": FeatureSupport.HONOURED, "prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.REFUSED}
WHY = "(prompt_logprobs refused, continuations refused)"
OPTION = "leave out no-prompt-logprobs, or no-token-prompts"
FORMAT = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}
JUDGES = {
    "greedy": greedy.judge,
    "sampling": sampling.judge,
    "logprobs": logprobs.judge,
    "parameters": parameters.judge,
    "structured": structured.judge,
}


def seen(family, *, parted=3, temperature=None, ids=True, support=None, scored_with=OPTION, **fields):
    """Ten answers of twenty tokens, the first ``parted`` of which are not the baseline's; ``ids``: whether token ids came with them."""

    def said(*words):
        return [answer(f"chat-{i:02}", tuple(map(ord, word * 20)) if ids else (), text=word) for i, word in enumerate(words)]

    temperature = float(family == "sampling") if temperature is None else temperature
    body = {"temperature": temperature, "max_tokens": 200, **({"response_format": FORMAT} if family == "structured" else {})}
    asked = [Request(id=f"chat-{i:02}", route=Route.CHAT, body=body) for i in range(10)]
    known = Capabilities(support={**REFUSED, **(support or {})}, scored_with=scored_with)
    mine, theirs = said(*"2" * parted, *"1" * (10 - parted)), said(*"1" * 10)
    return captured(family, mine, theirs, theirs, workload=a_workload(asked), capabilities={"baseline": known}, **fields)


@pytest.mark.parametrize("family", JUDGES)
@pytest.mark.parametrize("ids", [True, False])
def test_no_judge_of_tokens_decides_and_each_says_what_would_let_it(family, ids):
    verdict = JUDGES[family](seen(family, ids=ids))
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.headline
    assert WHY in verdict.headline
    assert verdict.settle == OPTION
    assert verdict.cell == "not scored"
    assert not verdict.names
    assert not verdict.rules_out


@pytest.mark.parametrize("parted", [0, 3])
def test_greedy_answers_are_counted_as_strings_and_nothing_is_concluded_from_that(parted):
    verdict = greedy.judge(seen("greedy", parted=parted))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.headline.startswith(f"{10 - parted} of 10 answers equal the baseline's; ")
    assert (verdict.figures["answers"], verdict.figures["answers_equal"]) == (10, 10 - parted)
    assert verdict.evidence[0].startswith("10 of 10")


def test_drawn_answers_are_not_held_against_each_other():
    verdict = sampling.judge(seen("sampling"))
    assert verdict.headline.startswith("no token can be scored")
    assert not verdict.figures


def test_documents_are_judged_by_validity_where_no_score_is_needed():
    assert structured.judge(seen("structured", parted=0)).outcome is Outcome.PASS
    assert structured.judge(seen("structured", temperature=1.0)).outcome is Outcome.PASS
    invalid = seen("structured", temperature=1.0)
    bad = [replace(one, choices=(replace(one.choice, text="no"),)) for one in invalid.speculative.answers]
    broken = replace(invalid, speculative=replace(invalid.speculative, answers=tuple(bad)))
    assert structured.judge(broken).outcome is Outcome.FAIL


@pytest.mark.parametrize("found, judged", [
    ({"prompt_logprobs": FeatureSupport.IGNORED}, False),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN, "token_ids": FeatureSupport.IGNORED}, False),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN, "token_ids": FeatureSupport.REFUSED}, False),
    ({"prompt_logprobs": FeatureSupport.HONOURED}, True),
    ({"continuations": FeatureSupport.HONOURED}, True),
    ({"continuations": FeatureSupport.UNKNOWN}, True),
    ({"prompt_logprobs": FeatureSupport.UNKNOWN}, True),
])  # fmt: skip
@pytest.mark.parametrize("family", ["greedy", "sampling"])
def test_missing_scores_of_an_engine_that_gives_them_are_invalid(family, found, judged):
    """The baseline's capability probe alone decides; of what it did not try nothing is said."""
    verdict = JUDGES[family](seen(family, support=found))
    assert verdict.outcome is (Outcome.INVALID if judged else Outcome.INCONCLUSIVE)


@pytest.mark.parametrize("family", ["greedy", "sampling"])
def test_without_a_probe_missing_scores_are_invalid(family):
    assert JUDGES[family](replace(seen(family), capabilities={})).outcome is Outcome.INVALID


def test_an_engine_without_a_known_option_is_told_the_routes():
    assert "prompt log-probabilities" in greedy.judge(seen("greedy", scored_with="")).settle


@pytest.mark.parametrize("family", JUDGES)
def test_an_arm_that_drafts_nothing_is_red_all_the_same(family):
    assert JUDGES[family](seen(family, counters=SpecCounters())).outcome is Outcome.NOT_SPECULATING


@pytest.mark.parametrize("family", JUDGES)
def test_the_control_is_as_little_judged(family):
    """It says what the baseline says here, which is enough for documents."""
    verdict = JUDGES[family](seen(family).as_control())
    assert verdict.outcome is (Outcome.PASS if family == "structured" else Outcome.INCONCLUSIVE)
