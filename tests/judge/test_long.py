"""Long contexts: tokens, drafts and the server by depth, each fault by the depth at which it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import long
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.transcript import FailureKind, ServerFailure, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.prompts.context import fitted
from pytest_specdec.prompts.long import LONG_CONTEXTS, copied_text, limit_part, write_prompts
from tests.judge.captured_values import VARIANT, a_pair, answer, calibration, captured, score

TEXT = "".join(chr(97 + index * index % 23) + " ." * (index % 3) for index in range(4000))
WORKLOAD = write_prompts(fitted(LONG_CONTEXTS, 4096), TEXT, lambda request: tuple(map(ord, request.body["prompt"])))
ALIVE, LESS, DEAD = (1, *(4, 3) * 14), (1, *(2,) * 48), (1, *(1,) * 95)


COPIES = {request.id: copied_text(request.body["prompt"], request.token_limit) for request in WORKLOAD.requests}


def answers(windows=lambda _: ALIVE, copies=lambda _: True):
    """One per request, with windows by its id; what does not copy has other tokens."""
    given = []
    for request in WORKLOAD.requests:
        prompt, most = request.body["prompt"], request.token_limit
        tokens = (COPIES[request.id] if copies(request.id) else ()) or tuple(range(2000, 2000 + most))
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=most)
        one = answer(request.id, tokens, finish="length", windows=windows(request.id) if most == 96 else (1,) * most, usage=usage)
        given.append(replace(one, prompt_token_ids=tuple(prompt)))
    return given


USUAL = answers()
SCORES = {arm: {each.key: score(arm, each) for each in USUAL} for arm in (VARIANT, "baseline", "control")}


def scores_of(arm, given, wrong=(), tokens=1):
    """The scores of an arm's answers; those to the ids in ``wrong`` have so many wrong tokens each."""
    usual = {each.key: each.choice.token_ids for each in USUAL}
    return tuple(
        SCORES[arm][each.key]
        if each.request_id not in wrong and each.choice.token_ids == usual[each.key]
        else score(arm, each, dict.fromkeys(range(5, 5 + tokens), 4.0) if each.request_id in wrong else ())
        for each in given
    )


def judged(mine=None, *, wrong=(), peer_wrong=(), tokens=1, baseline=None, scored=lambda _: True, context=0, **fields):
    """The verdict where the ids in ``wrong`` have a wrong token each."""
    mine, baseline = mine or USUAL, baseline or USUAL
    scores = {
        arm: scores_of(arm, [each for each in several if scored(each.request_id)], wrong if arm == VARIANT else peer_wrong, tokens)
        for arm, several in ((VARIANT, mine), ("baseline", baseline), ("control", baseline))
    }
    pair = a_pair()
    pair = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, context=context)))
    fields = {"workload": WORKLOAD, "scores": scores, "alpha": 1e-6, "pair": pair, **fields}
    return long.judge(captured("long", mine, baseline, baseline, **fields))


def at(*depths, windows=DEAD):
    """Windows by depth: ``windows`` at these, as usual elsewhere."""
    return answers(lambda name: windows if limit_part(name) in depths else ALIVE)


def test_a_pass_has_the_acceptance_by_depth():
    verdict = judged(capabilities={"baseline": Capabilities(positions="YaRN x4.0 over 1,024 positions")})
    assert (verdict.outcome, verdict.cell) == (Outcome.PASS, "up to 4,000")
    assert "positions YaRN x4.0 over 1,024 positions" in verdict.evidence
    assert "3.52 after 416, 3.52 after 928, 3.52 after 1,952, 3.52 after 4,000" in verdict.headline
    assert verdict.figures["accepted_length_half_copy"] == pytest.approx(3.5, abs=0.05)
    assert verdict.figures["accepted_half_copy_1"] == 1.0
    assert any(line.startswith("copying   1,952 tokens: 3.5") for line in verdict.evidence)


@pytest.mark.parametrize(
    "wrong, name",
    [
        (["half/continue"], "tokens are wrong after 1,952 tokens of context"),
        (["quarter/copy", "half/copy"], "tokens are wrong after 928 tokens of context"),
        (["whole/copy"], "tokens are wrong after 4,000 tokens of context"),
        (["quarter/copy"], long.WRONG_TOGETHER),
        (["eighth/copy", "half/copy"], long.WRONG_SHALLOW),
    ],
)
def test_wrong_tokens_are_named_by_the_depth_at_which_they_begin(wrong, name):
    verdict = judged(wrong=wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)


@pytest.mark.parametrize("wrong, name", [(["short"], long.WRONG_SHORT), (["short", "half/copy"], long.WRONG_ANY)])
def test_wrong_tokens_of_a_short_prompt_are_no_matter_of_depth(wrong, name):
    verdict = judged(wrong=wrong)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)
    assert "8 tokens: 1 of 1 answers have a wrong token" in verdict.evidence


def test_a_baseline_that_chooses_other_tokens_itself_cannot_judge():
    ids = [each.request_id for each in USUAL]
    assert judged(wrong=ids, peer_wrong=ids, tokens=5).outcome is Outcome.INVALID


@pytest.mark.parametrize("tokens, outcome", [(1, Outcome.PASS), (5, Outcome.SUSPICIOUS), (20, Outcome.FAIL)])
def test_a_few_wrong_tokens_are_open_where_servers_may_jump(tokens, outcome):
    verdict = judged(wrong=["half/copy"], tokens=tokens, calibration=calibration(2000, noise=0.02))
    assert verdict.outcome is outcome, verdict
    if outcome is Outcome.SUSPICIOUS:
        assert f"{tokens} of " in verdict.headline
        assert "no long prompts" in verdict.settle


def test_what_is_drawn_may_lie_below_the_best():
    assert judged(wrong=["half/sampled"]).outcome is Outcome.PASS


def test_what_is_too_long_to_be_scored_is_said():
    verdict = judged(scored=lambda name: not name.startswith("whole"))
    assert verdict.outcome is Outcome.PASS
    assert "tokens after more than 1,952 are not scored" in verdict.headline
    assert verdict.rules_out.endswith("wrong tokens after up to 1,952")


def test_drafts_that_die_at_a_depth_fail_by_that_depth():
    verdict = judged(at("half", "whole"))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "drafts are no longer accepted after 1,952 tokens of context")
    assert any("`draft_context`" in line for line in verdict.short)


def test_long_drafts_that_die_at_a_depth_fail_though_a_step_copies_many_tokens():
    pair = a_pair(k=15)
    verdict = judged(answers(lambda name: DEAD if limit_part(name) == "half" else (1, *(16,) * 5, 15)), pair=pair)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "drafts are no longer accepted after 1,952 tokens of context")
    assert judged(answers(lambda _: (1, *(16,) * 5, 15)), pair=pair).outcome is Outcome.PASS


def test_drafts_that_are_not_made_are_told_from_those_that_are_not_accepted():
    mine = [
        replace(each, choices=(replace(each.choice, drafted=(0,) * 95),)) if limit_part(each.request_id) == "whole" else each
        for each in at("whole")
    ]
    assert judged(mine).names == "drafts are no longer made after 4,000 tokens of context"


@pytest.mark.parametrize(
    "windows, context, outcome",
    [
        (LESS, 0, Outcome.PASS),  # a third of the drafts is left: the drafter's own matter
        (LESS, 8192, Outcome.FAIL),  # the config says that drafts reach that far
        (LESS, 1024, Outcome.PASS),
        (DEAD, 1024, Outcome.PASS),  # the config says that they do not
        (DEAD, 8192, Outcome.FAIL),
    ],
)
def test_what_is_lost_at_a_depth_fails_by_what_the_config_states(windows, context, outcome):
    assert judged(at("half", "whole", windows=windows), context=context).outcome is outcome


def test_an_answer_that_does_not_copy_blames_no_drafter():
    mine = answers(
        lambda name: DEAD if limit_part(name) in {"half", "whole"} else ALIVE, lambda name: limit_part(name) not in {"half", "whole"}
    )
    assert judged(mine, baseline=mine).outcome is Outcome.PASS


def test_drafts_that_are_dead_after_long_requests_fail_by_another_name():
    verdict = judged(answers(lambda name: DEAD if "again" in name or "at-last" in name else ALIVE))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, long.DRAFTS_DIE_LATER)


def test_a_server_that_dies_is_named_with_the_depth():
    failure = ServerFailure(request_id="half/copy", ending=FailureKind.DIED, recurred=True)
    mine = [replace(each, status=None, choices=()) if each.request_id == "half/copy" else each for each in USUAL]
    verdict = judged(mine, server_failures=[failure])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names == "the server dies on a request after 1,952 tokens of context"
    assert verdict.headline.endswith("it fails after 1,952 tokens of context, and answers after 928")


def test_a_refusal_that_is_not_the_baselines_fails():
    mine = [answer(each.request_id, status=400, error="too long") if each.request_id == "half/copy" else each for each in USUAL]
    assert judged(mine).names == "sequences that fit the context are refused"


@pytest.mark.parametrize("workload", [LONG_CONTEXTS, fitted(LONG_CONTEXTS, None)])
def test_without_a_known_limit_nothing_is_judged(workload):
    verdict = judged(workload=workload, capabilities={"baseline": Capabilities()})
    assert (verdict.outcome, verdict.cell) == (Outcome.REFUSED, "limit unknown")


def test_too_few_scored_tokens_decide_nothing():
    assert judged(scored=lambda name: name == "none").outcome is Outcome.INCONCLUSIVE


def test_the_control_is_not_held_to_drafts():
    scores = {arm: scores_of(arm, USUAL) for arm in (VARIANT, "baseline", "control")}
    run = captured("long", at("half"), USUAL, at("half"), workload=WORKLOAD, alpha=1e-6, scores=scores)
    assert long.judge(run.as_control()).outcome is Outcome.PASS
