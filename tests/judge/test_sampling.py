from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import sampling
from pytest_specdec.judge.sampling.data import gather
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, ServerFailure, SpecCounters, Usage
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import bettors
from tests.judge import toy_speculation

STALE = "state after a rejected draft (KV cache not rolled back)"


@pytest.mark.examples(3)
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("kind", ["model", "greedy", "ngram", "head"])
def test_a_correct_server_passes_and_the_verdict_says_what_would_have_shown(kind, windows):
    verdict = sampling.judge(toy_speculation.captured(kind, windows=windows))
    assert verdict.outcome is Outcome.PASS, verdict.headline
    assert verdict.rules_out.startswith("3,072 sampled tokens")
    assert "99%" in verdict.rules_out
    assert ("lenient acceptance untested" in verdict.rules_out) is (kind == "head")
    assert verdict.figures["tokens"] == 3072
    assert "tokens_to_alarm" not in verdict.figures
    assert verdict.cell.endswith(", lenient acceptance untested") is (kind == "head")


@pytest.mark.examples(8)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fault, named", [
    ("accept-all", "accept-all"),
    ("resample-from-p", "resample from p"),
    ("stale", STALE),
    ("leak", "acceptance leak of 20%"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["model", "greedy", "ngram"])
def test_a_fault_fails_under_its_own_name(kind, fault, named, seed):
    verdict = sampling.judge(toy_speculation.captured(kind, fault, seed=seed, answers=56))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names == named
    assert verdict.figures["tokens_to_alarm"] <= 3000
    assert verdict.figures["log10_wealth"] > 4.2
    assert len(verdict.short) <= 4


def test_a_fault_at_the_bonus_is_told_from_one_at_the_draft():
    assert sampling.judge(toy_speculation.captured("model", "bonus-from-q")).names == "bonus from q"


@pytest.mark.examples(2)
@pytest.mark.parametrize("kind, fault, named", [
    ("model", "accept-all", "verification of draft tokens, most like accept-all"),
    ("greedy", "resample-from-p", "verification of draft tokens, most like resample from p"),
    ("ngram", "accept-all", "accept-all"),  # every draft that prompt lookup implies was emitted
    ("model", "stale", STALE),
    ("head", "accept-all", "temperature or truncation"),
])  # fmt: skip
def test_without_windows_a_family_is_named_where_the_fault_cannot_be(kind, fault, named):
    assert sampling.judge(toy_speculation.captured(kind, fault, windows=False)).names == named


def test_a_name_is_called_a_guess_where_nobody_says_how_the_variant_drafts():
    """An attached accept-all was named a temperature, and nothing said that ``args: {draft: …}`` would have named it."""
    known = toy_speculation.captured("head", "accept-all", windows=False)
    variant = replace(known.pair.variant, draft=replace(known.pair.variant.draft, kind=DraftKind.UNKNOWN))
    unknown = replace(known, pair=replace(known.pair, variant=variant))
    (line,) = [line for line in sampling.judge(unknown).short if "the drafter is unknown here; add `args: {draft:" in line]
    assert line.startswith("name         a guess")
    assert not any("guess" in line for line in sampling.judge(known).short)


def test_full_windows_alone_name_accept_all():
    assert sampling.judge(toy_speculation.captured("head", "accept-all")).names == "accept-all"


def test_a_red_verdict_carries_its_evidence():
    verdict = sampling.judge(toy_speculation.captured("model", "accept-all"))
    assert verdict.headline.startswith("accept-all: ")
    assert f"evidence 10^{verdict.figures['log10_wealth']:.1f}, alarm after {verdict.figures['tokens_to_alarm']} tokens" in verdict.headline
    assert verdict.cell == f"evidence 10^{verdict.figures['log10_wealth']:.1f}"
    assert "accept-all" in verdict.short[1]
    assert "100.0% accepted" in verdict.short[2]
    assert "draft distribution known; windows known" in verdict.evidence
    assert verdict.figures["acceptance_observed"] == 1.0
    assert verdict.figures["acceptance_expected"] < 0.8


@pytest.mark.examples(7)
@pytest.mark.parametrize(
    "asked", [{"temperature": 0.7}, {"temperature": 1.5}, {"top_k": 8}, {"top_p": 0.8}, {"temperature": 0.7, "top_p": 0.9}]
)
@pytest.mark.parametrize("kind", ["model", "ngram"])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_what_a_request_asks_for_is_honoured_without_a_false_alarm(asked, kind, noise):
    """Noise moves legitimate tokens across the nucleus's boundary: a test that took them for impossible would alarm."""
    verdict = sampling.judge(toy_speculation.captured(kind, noise=noise, **asked))
    assert verdict.outcome is Outcome.PASS, verdict.headline
    assert verdict.figures["log10_wealth"] < 2.0


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "asked", [{"temperature": 0.7}, {"temperature": 1.5}, {"top_k": 8}, {"top_p": 0.8}, {"temperature": 0.7, "top_p": 0.9}]
)
def test_what_a_request_asks_for_and_does_not_get_fails(asked):
    ignored = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    verdict = sampling.judge(toy_speculation.captured("model", server=ignored, **asked))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "temperature or truncation")


@pytest.mark.examples(2)
@pytest.mark.parametrize("asked", [{"temperature": 0.7}, {"top_k": 8}, {"top_p": 0.8}])
@pytest.mark.parametrize("fault", ["accept-all", "stale"])
def test_faults_show_under_processing_too(asked, fault):
    assert sampling.judge(toy_speculation.captured("model", fault, **asked)).outcome is Outcome.FAIL


def test_mixed_requests_are_judged_by_their_own_wishes():
    first, second = toy_speculation.captured("ngram", temperature=0.6, seed=3), toy_speculation.captured("ngram", temperature=1.5, seed=4)
    renamed = [replace(one, request_id="k" + one.request_id) for one in second.speculative.answers]
    scores = [replace(one, request_id="k" + one.request_id) for one in second.scores["v"]]
    requests = [replace(one, id="k" + one.id) for one in second.workload.requests]
    both = replace(
        first,
        workload=replace(first.workload, requests=(*first.workload.requests, *requests)),
        speculative=replace(first.speculative, answers=(*first.speculative.answers, *renamed)),
        scores={"v": (*first.scores["v"], *scores)},
    )
    assert sampling.judge(both).outcome is Outcome.PASS
    cooled = tuple(replace(one, body={**one.body, "temperature": 0.6}) for one in both.workload.requests)
    assert sampling.judge(replace(both, workload=replace(both.workload, requests=cooled))).outcome is Outcome.FAIL


def test_the_control_goes_through_the_same_test():
    assert sampling.judge(toy_speculation.control()).outcome in {Outcome.PASS, Outcome.INCONCLUSIVE}
    assert sampling.judge(toy_speculation.control(temperature=0.5)).outcome is Outcome.FAIL


def test_too_few_tokens_are_inconclusive_and_say_how_many_settle_it():
    verdict = sampling.judge(toy_speculation.captured("model", answers=1, tokens=24))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "of 24" in verdict.headline
    needed = int(verdict.settle.removeprefix("about ").split()[0].replace(",", ""))
    assert 24 < needed < 2000
    longer = sampling.judge(toy_speculation.captured("model", answers=1 + needed // 48, tokens=64))
    assert longer.outcome is Outcome.PASS


def test_answers_without_a_choice_in_them_never_settle_anything(monkeypatch):
    peaked = 1e5 * toy_speculation.TARGET
    monkeypatch.setattr(toy_speculation, "TARGET", peaked)
    monkeypatch.setattr(toy_speculation, "DRAFT", peaked)
    one = toy_speculation.captured("model", answers=4)
    busy = SpecCounters(drafts=60, draft_tokens=180, accepted_tokens=90)
    verdict = sampling.judge(replace(one, speculative=replace(one.speculative, counters=busy)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "open text" in verdict.settle


def test_a_server_that_does_not_speculate_is_not_passed():
    one = toy_speculation.captured("model")
    idle = replace(one, speculative=replace(one.speculative, counters=SpecCounters()))
    assert sampling.judge(idle).outcome is Outcome.NOT_SPECULATING


def test_an_alarm_wins_over_not_speculating():
    one = toy_speculation.captured("model", "accept-all")
    assert one.speculative.counters.rejected_tokens == 0
    assert sampling.judge(one).outcome is Outcome.FAIL


def test_a_server_failure_is_told_first():
    one = toy_speculation.captured("model", answers=2)
    dead = ServerFailure(request_id="r000", ending=FailureKind.DIED, recurred=False)
    assert sampling.judge(replace(one, speculative=replace(one.speculative, server_failures=(dead,)))).outcome is Outcome.INVALID


def with_answers(captured, *answers):
    return replace(captured, speculative=replace(captured.speculative, answers=answers))


def test_requests_that_were_not_answered_are_skipped_and_counted():
    one = toy_speculation.captured("model")
    first, *others = one.speculative.answers
    verdict = sampling.judge(with_answers(one, Answer(request_id=first.request_id, status=500), *others))
    assert verdict.outcome is Outcome.PASS
    assert "1 requests left out: no answer with HTTP 200" in verdict.evidence


def test_a_refused_workload_is_refused():
    one = toy_speculation.captured("model", answers=1)
    assert sampling.judge(with_answers(one, Answer(request_id="r000", status=400, error="no"))).outcome is Outcome.REFUSED


@pytest.mark.parametrize("body, reason", [
    ({"temperature": 0}, "temperature 0 leaves nothing to draw"),
    ({"min_tokens": 5}, "min_tokens is not modelled"),
    ({"response_format": {"type": "json_object"}}, "response_format is not modelled"),
    ({"bad_words": ["no"]}, "bad_words is not modelled"),
])  # fmt: skip
def test_distributions_that_cannot_be_computed_are_not_judged(body, reason):
    one = toy_speculation.captured("model", answers=2)
    asked = tuple(replace(request, body={**request.body, **body}) for request in one.workload.requests)
    verdict = sampling.judge(replace(one, workload=replace(one.workload, requests=asked)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert f"2 requests left out: {reason}" in verdict.headline


def test_neutral_fields_change_nothing():
    one = toy_speculation.captured("model")
    body = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "min_p": 0,
        "response_format": {"type": "text"},
        "tools": None,
        "top_k": -1,
    }
    asked = tuple(replace(request, body={**request.body, **body}) for request in one.workload.requests)
    assert sampling.judge(replace(one, workload=replace(one.workload, requests=asked))) == sampling.judge(one)


def test_an_empty_answer_is_no_token_to_judge():
    one = toy_speculation.captured("model", answers=1)
    empty = Answer(request_id="r000", status=200, choices=(Choice(finish_reason="stop"),))
    assert "no token emitted" in sampling.judge(with_answers(one, empty)).headline


@pytest.mark.parametrize("answer", [
    Answer(request_id="r000", status=200, choices=(Choice(text="said", finish_reason="stop"),)),
    Answer(request_id="r000", status=200, usage=Usage(prompt_tokens=1, completion_tokens=5)),
])  # fmt: skip
def test_answers_without_token_ids_invalidate_the_set_up(answer):
    verdict = sampling.judge(with_answers(toy_speculation.captured("model", answers=1), answer))
    assert verdict.outcome is Outcome.INVALID
    assert "r000 has no token ids" in verdict.headline


def test_missing_scores_invalidate_the_set_up():
    one = toy_speculation.captured("model", answers=2)
    verdict = sampling.judge(replace(one, scores={"v": one.scores["v"][:1]}))
    assert verdict.outcome is Outcome.INVALID
    assert "scores of r001 are missing" in verdict.headline


def test_scores_of_other_tokens_invalidate_the_set_up():
    one = toy_speculation.captured("model", answers=1)
    short = replace(one.scores["v"][0], positions=one.scores["v"][0].positions[:-1])
    verdict = sampling.judge(replace(one, scores={"v": (short,)}))
    assert verdict.outcome is Outcome.INVALID
    assert "63 tokens of r000, not the 64" in verdict.headline


def test_without_the_drafts_scores_the_report_says_what_cannot_be_tested():
    verdict = sampling.judge(replace(toy_speculation.captured("model"), draft_scores={}))
    assert verdict.outcome is Outcome.PASS
    assert "untested" in verdict.rules_out
    assert "(the draft model was not served alone)" in verdict.rules_out


@pytest.mark.examples(2)
@pytest.mark.parametrize("kept", [0, 1, 24])
@pytest.mark.parametrize("kind", ["model", "greedy"])
def test_answers_that_the_draft_did_not_score_bet_without_it(kept, kind):
    one = toy_speculation.captured(kind)
    scored = one.draft_scores["v"][:kept] if kept else (replace(one.draft_scores["v"][0], positions=()),)
    verdict = sampling.judge(replace(one, draft_scores={"v": scored}))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures.get("verified_draft_tokens", 0) < 64 * max(kept, 1)


def test_prompt_lookup_needs_the_prompts_tokens():
    one = toy_speculation.captured("ngram")
    bare = [replace(answer, prompt_token_ids=()) for answer in one.speculative.answers]
    verdict = sampling.judge(with_answers(one, *bare))
    assert verdict.outcome is Outcome.PASS
    assert "the prompts' token ids are missing" in verdict.rules_out


def test_the_emitted_token_beyond_the_top_tokens_does_not_become_an_top_token():
    """A server lists the chosen token too; its presence in the list would betray the outcome."""
    one = toy_speculation.captured("head")
    widened = tuple(
        replace(
            score,
            positions=tuple(
                position
                if position.token_id in position.top_ids
                else replace(
                    position,
                    top_ids=(*position.top_ids, position.token_id),
                    top_logprobs=(*position.top_logprobs, position.logprob),
                )
                for position in score.positions
            ),
        )
        for score in one.scores["v"]
    )
    assert widened != one.scores["v"]
    assert sampling.judge(replace(one, scores={"v": widened})) == sampling.judge(one)


def test_heads_are_said_to_be_unknown():
    assert toy_speculation.captured("head").pair.variant.draft.kind is DraftKind.HEAD
    verdict = sampling.judge(toy_speculation.captured("head", "stale"))
    assert verdict.names == STALE
    assert "draft distribution unknown: its drafter cannot be served alone; windows known" in verdict.evidence


def test_judging_twice_says_the_same():
    one = toy_speculation.captured("model", "leak")
    assert sampling.judge(one) == sampling.judge(one)


def with_bodies(one, change):
    """The same, the body of the i-th request changed by ``change(i)``."""
    requests = tuple(replace(request, body={**request.body, **change(i)}) for i, request in enumerate(one.workload.requests))
    return replace(one, workload=replace(one.workload, requests=requests))


def test_an_answer_to_a_seed_that_was_asked_for_before_is_no_draw_of_its_own():
    """A correct server that honours seeds repeats itself, and every bettor would be paid twice for one stroke of luck."""
    one = with_bodies(toy_speculation.captured("head", answers=6), lambda i: {"seed": (0, 1, 0, 2, 1, None)[i], "max_tokens": 64 - i})
    found = gather(one)
    assert found.skipped == ("2 requests left out: seed used before",)
    assert found.answers == 4
    twice = replace(one, speculative=replace(one.speculative, answers=one.speculative.answers[:2] * 2))
    assert gather(twice).answers == 2
    assert gather(with_bodies(one, lambda _: {"seed": None})).answers == 6
    first = replace(one.speculative.answers[0], status=500, choices=())
    unanswered = replace(one, speculative=replace(one.speculative, answers=(first, *one.speculative.answers[1:])))
    assert gather(unanswered).answers == 4


def test_a_position_without_probabilities_invalidates_the_set_up_and_does_not_deafen_the_judge():
    one = toy_speculation.captured("head", "accept-all")
    mine = one.scores["v"]
    for bad in ({"top_ids": (), "top_logprobs": ()}, {"top_logprobs": (*mine[3].positions[5].top_logprobs[:-1], float("nan"))}):
        positions = (*mine[3].positions[:5], replace(mine[3].positions[5], **bad), *mine[3].positions[6:])
        spoilt = (*mine[:3], replace(mine[3], positions=positions), *mine[4:])
        verdict = sampling.judge(replace(one, scores={**one.scores, "v": spoilt}))
        assert verdict.outcome is Outcome.INVALID
        assert "scores of r003" in verdict.headline


def test_a_temperature_at_which_distributions_overflow_is_left_out_and_the_rest_judged():
    one = toy_speculation.captured("head", "accept-all")
    assert sampling.judge(one).outcome is Outcome.FAIL
    cold = with_bodies(one, lambda i: {"temperature": 0.002} if i == 0 else {})
    verdict = sampling.judge(cold)
    assert verdict.outcome is Outcome.FAIL
    assert "1 requests left out: temperature below 0.01, which servers round" in verdict.evidence


def test_evidence_that_is_no_number_is_invalid(monkeypatch):
    def astray(observed):
        first, *others = bettors.bettors(observed)
        return (replace(first, log_payoffs=first.log_payoffs * float("nan")), *others)

    monkeypatch.setattr("pytest_specdec.judge.sampling.verdict.bettors", astray)
    verdict = sampling.judge(toy_speculation.captured("model", "accept-all"))
    assert verdict.outcome is Outcome.INVALID
    assert "token 1 " in verdict.headline
    assert "'accept-all'" in verdict.short[0]
    assert verdict.short[1].startswith("remedy")


def test_who_asks_with_one_seed_is_told_to_ask_with_many():
    one = with_bodies(toy_speculation.captured("head", answers=6), lambda _: {"seed": 7})
    verdict = sampling.judge(one)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "5 requests left out: seed used before" in verdict.evidence
    assert verdict.settle.endswith("sampled tokens like these, each request with a seed of its own")
    few = with_bodies(toy_speculation.captured("head", answers=1), lambda _: {"seed": 7})
    assert sampling.judge(few).settle.endswith("sampled tokens like these")
