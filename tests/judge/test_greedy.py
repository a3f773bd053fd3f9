from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_diagnosis import ACCEPTED_UNVERIFIED, BONUS, NOT_ROLLED_BACK, RECOVERED, UNNAMED, fault_name
from pytest_specdec.judge.greedy_gap import DifferenceKind, answer_lengths, classify_difference, distinct_gaps, scored_answers
from pytest_specdec.judge.greedy_tally import greedy_tokens
from pytest_specdec.model.captured import Capabilities, FeatureSupport, ReportedDraws
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.plan import ROUNDS
from pytest_specdec.model.transcript import FailureKind, Score, ServerFailure, SpecCounters
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.model.workload import Family
from tests.judge import toy_server
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, calibration, captured, position, requests, score, transcript

TOKENS = tuple(range(100, 160))


def ten(**changes):
    """Ten answers of sixty tokens; ``changes`` replaces some by index, as ``at_3=(…)``."""
    return [answer(f"chat-{i:02}", changes.get(f"at_{i}", TOKENS), text="one two three") for i in range(10)]


def scored(arm, answers, gaps=None):
    """``gaps``: by answer index, then by token index."""
    return tuple(score(arm, each, (gaps or {}).get(i, {}).items()) for i, each in enumerate(answers))


def seen(gaps=None, *, control=None, baseline=None, mine=None, alpha=1e-3, **fields):
    """A whole capture: the variant's gaps, the control's, the first baseline's."""
    mine = ten() if mine is None else mine
    scores = {
        VARIANT: scored(VARIANT, mine, gaps),
        "control": scored("control", ten(), control),
        "baseline": scored("baseline", ten(), baseline),
    }
    return captured("greedy", mine, ten(), ten(), scores=scores, alpha=alpha, **fields)


def of(fault, *, with_draft=True, with_windows=True, agreement=0.7):
    """What the toy server's answers look like to the judge."""
    mine, theirs = toy_server.serve(fault, agreement=agreement), toy_server.serve()
    if not with_windows:
        mine = [replace(a, choices=(replace(a.choice, windows=None),)) for a in mine]
    mine = [replace(a, prompt_token_ids=tuple(toy_server.prompt(i))) for i, a in enumerate(mine)]
    drafts = {VARIANT: toy_server.opinions(mine, under="draft", agreement=agreement)} if with_draft else {}
    rejected = 0 if fault == "accept-all" else 100
    counters = SpecCounters(drafts=100, draft_tokens=300, accepted_tokens=300 - rejected)
    return captured("greedy", mine, theirs, theirs, scores={VARIANT: toy_server.opinions(mine)}, draft_scores=drafts, counters=counters)


def test_a_faithful_server_passes_and_says_which_rate_it_rules_out():
    verdict = greedy.judge(seen())
    assert verdict.outcome is Outcome.PASS
    assert "0 of 600 tokens wrong" in verdict.headline
    rate = 1 - 0.01 ** (1 / 600)
    assert f"{rate:.2%}" in verdict.rules_out
    assert "0.25 nats" in verdict.rules_out
    assert verdict.figures["wrong_rate_ruled_out"] == pytest.approx(rate)
    assert verdict.figures["tolerance_nats"] == 0.25


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_share_of_answers_wrong_throughout_as_large_as_printed_fails(noise):
    """At the rate of evenly spread tokens that the same line has, gathered so, most runs would pass."""
    known = {"calibration": calibration(2000, noise=noise)}
    given = seen(alpha=1e-5, **known)
    rules_out = greedy.judge(given).rules_out
    share = float(re.search(r", or ([\d.]+)% of the answers wrong throughout, would", rules_out)[1]) / 100
    rate = float(re.search(r"a rate above ([\d.]+)%", rules_out)[1]) / 100
    rng = np.random.default_rng(4)
    right, wrong = scored(VARIANT, ten()), scored(VARIANT, ten(), dict.fromkeys(range(10), dict.fromkeys(range(60), 0.5)))

    def fails(chance):
        scores = tuple(bad if rng.random() < chance else good for good, bad in zip(right, wrong, strict=True))
        return greedy.judge(replace(given, scores=given.scores | {VARIANT: scores})).outcome is Outcome.FAIL

    assert sum(fails(share) for _ in range(70)) >= 67
    assert sum(fails(rate) for _ in range(20)) <= 10


def test_answers_that_ask_the_same_are_one_in_the_share_of_wrong_ones():
    twice = [*ten(), *(answer(f"chat-{i:02}", TOKENS, pass_index=1) for i in range(10))]
    once, again = (greedy.judge(seen(mine=answers)).rules_out for answers in (ten(), twice))
    assert f"{1 - 0.01 ** (1 / 10):.1%} of the answers" in once
    assert f"{1 - 0.01 ** (1 / 10):.1%} of the answers" in again


def test_one_token_above_the_tolerance_fails():
    verdict = greedy.judge(seen({4: {17: 0.26}}))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.example == Example(symptom=Symptom.TEXT, request_id="chat-04", token=17, limit_nats=0.25)
    assert "1 of 600 tokens" in verdict.headline
    assert "request chat-04, token 18 of 60" in verdict.headline
    assert "0.26 nats below the best token, 0.25 allowed (fixed minimum)" in verdict.short[2]
    assert verdict.names == ""


def test_one_token_at_the_tolerance_does_not_fail():
    assert greedy.judge(seen({4: {17: 0.2499}}, alpha=1e-4)).outcome is Outcome.PASS


def test_the_widest_gap_is_shown_and_not_the_earliest_which_is_the_most_doubtful():
    verdict = greedy.judge(seen({2: {40: 3.0}, 7: {5: 0.3}, 8: {6: 3.0}}))
    assert "3 of 600 tokens wrong, 2 by more than 1 nat" in verdict.headline
    assert "widest: request chat-08, token 7 of 60; earliest: request chat-07, token 6" in verdict.headline
    assert verdict.short[0].endswith("101 102 103 104 105")
    assert "id 800 p=0.6" in verdict.short[1]
    assert "id 106 p=0.0299" in verdict.short[2]
    assert len(verdict.short) <= 4


def test_the_texts_are_shown_where_they_part_with_the_tokens():
    mine = ten()
    mine[3] = answer("chat-03", (*TOKENS[:10], 7, *TOKENS[11:]), text="The capital of France is Lyon\x1b[31m, of course")
    base = ten()
    base[3] = answer("chat-03", TOKENS, text="The capital of France is Paris, of course")
    given = seen({3: {10: 1.0}}, mine=mine)
    verdict = greedy.judge(replace(given, baseline=transcript("baseline", base)))
    assert '"The capital of France is"' in verdict.short[0]
    assert '" Paris' in verdict.short[1]
    assert r'" Lyon\x1b' in verdict.short[2]


def test_texts_that_do_not_part_with_the_tokens_are_not_shown():
    mine = ten(at_3=(*TOKENS[:10], 7, *TOKENS[11:]))
    verdict = greedy.judge(seen({3: {10: 1.0}}, mine=mine))
    assert verdict.short[0].startswith("shared       its own tokens ids …")


def test_texts_that_parted_at_an_earlier_tie_are_not_shown():
    mine = ten(at_3=(*TOKENS[:4], 7, *TOKENS[5:]))
    assert greedy.judge(seen({3: {10: 1.0}}, mine=mine)).short[0].startswith("shared       its own tokens ids … 102 103 7 105")


def test_strings_that_differ_at_ties_are_reported_and_pass():
    other = (*TOKENS[:30], 7, *TOKENS[31:])
    mine = ten(at_1=other, at_2=other)
    verdict = greedy.judge(seen({2: {30: 0.1}}, mine=mine))
    assert verdict.outcome is Outcome.PASS
    assert "2 of 10 answers differ as text (1 tie, 1 near-tie)" in verdict.headline
    assert "differs: chat-02, pass 0, from token 31: near-tie" in verdict.evidence


def by_continuations(token, unlisted_at):
    """The scores of one answer by one-token continuations: at ``unlisted_at`` the token lies outside the top tokens."""
    return [
        replace(position(token, 0.0 if i != unlisted_at else 4.0), token_id=token, logprob=math.nan if i == unlisted_at else math.log(0.6))
        for i, token in enumerate(token)
    ]


@pytest.mark.parametrize("unlisted_at, outcome", [(None, Outcome.PASS), (17, Outcome.FAIL)])
def test_a_token_that_is_not_listed_is_wrong_by_the_gap_to_the_last_one_that_is(unlisted_at, outcome):
    base = seen()
    scores = {
        arm: tuple(
            replace(one, positions=tuple(by_continuations(TOKENS, unlisted_at if arm == VARIANT and i == 3 else None)))
            for i, one in enumerate(distribution)
        )
        for arm, distribution in base.scores.items()
    }
    support = {"prompt_logprobs": FeatureSupport.REFUSED, "continuations": FeatureSupport.HONOURED}
    verdict = greedy.judge(replace(base, scores=scores, capabilities={"baseline": Capabilities(support=support)}))
    assert verdict.outcome is outcome
    assert verdict.evidence[-1].startswith("scored by one-token continuations")
    assert "nan" not in " ".join((*verdict.short, *verdict.evidence, verdict.headline))
    if outcome is Outcome.FAIL:
        assert "id 117 p<0.05" in verdict.short[2]


def test_how_tokens_were_scored_is_said_where_it_tells_less():
    assert not any("scored by" in line for line in greedy.judge(seen()).evidence)


NOISY = calibration(2000, noise=0.02)
"""What the servers of a GPU report: nothing says that they do not jump."""


def beyond(count, gap=0.5):
    """So many tokens below the best one by ``gap``, spread over the answers."""
    return {i: dict.fromkeys(range(10, 10 + count // 10 + (i < count % 10)), gap) for i in range(10)}


@pytest.mark.parametrize(
    "wrong, baseline, control, outcome",
    [
        (1, 0, 0, Outcome.PASS),
        (4, 0, 0, Outcome.SUSPICIOUS),
        (9, 0, 0, Outcome.FAIL),
        (9, 2, 1, Outcome.SUSPICIOUS),
        (2, 1, 1, Outcome.PASS),
    ],
)
def test_wrong_tokens_are_counted_against_the_baselines_own_where_servers_may_jump(wrong, baseline, control, outcome):
    given = seen(beyond(wrong), baseline=beyond(baseline, 0.6), control=beyond(control, 0.7), alpha=5.4e-5)
    verdict = greedy.judge(replace(given, calibration=NOISY))
    assert verdict.outcome is outcome
    if outcome is Outcome.PASS:
        theirs = f"{baseline + control} of {2600 + baseline:,} of the baseline's"
        assert f"({wrong} beyond the noise, too few for an alarm: {theirs})" in verdict.headline
    if outcome is Outcome.SUSPICIOUS:
        assert verdict.settle
        assert not verdict.red


@pytest.mark.parametrize(
    "rounds, outcome",
    [
        ((), Outcome.SUSPICIOUS),
        ((8,), Outcome.FAIL),
        ((1,), Outcome.SUSPICIOUS),
        ((1, 0, 1, 0)[:ROUNDS], Outcome.PASS),
        ((0,), Outcome.PASS),
    ],
)
def test_a_fault_comes_back_when_the_same_is_asked_again_and_a_jump_does_not(rounds, outcome):
    first = replace(seen(beyond(5), alpha=5.4e-5), calibration=NOISY)
    again = tuple(replace(seen(beyond(count)), calibration=NOISY) for count in rounds)
    verdict = greedy.judge(replace(first, repeats=again))
    assert verdict.outcome is outcome
    assert sum("asked again" in line for line in verdict.evidence) == len(rounds)
    clause = f"; {sum(rounds)} of {600 * len(rounds):,} asked again, 0 of {600 * len(rounds):,} of the baseline's; evidence of all 10^"
    assert (clause in verdict.headline) is (outcome is Outcome.PASS), verdict.headline


@pytest.mark.parametrize("family", ["greedy", "images", "endurance"])
def test_what_no_round_of_a_run_asks_again_is_not_said_to_be_continued(family):
    verdict = greedy.judge(replace(seen(beyond(4), alpha=5.4e-5), calibration=NOISY, family=Family(family)))
    assert verdict.outcome is Outcome.SUSPICIOUS
    assert ("--specdec-continue" in verdict.settle) is (family in COUNTED)
    assert ("rounds within a run send no" in verdict.settle) is (family not in COUNTED)


@pytest.mark.parametrize("wrong, outcome", [(1, Outcome.PASS), (2, Outcome.SUSPICIOUS), (9, Outcome.FAIL)])
def test_a_run_that_can_ask_again_leaves_a_count_open_sooner(wrong, outcome):
    given = replace(seen(beyond(wrong), alpha=5.4e-5), calibration=NOISY)
    assert greedy.judge(replace(given, repeatable=True)).outcome is outcome
    assert greedy.judge(given).outcome is (Outcome.FAIL if outcome is Outcome.FAIL else Outcome.PASS)


def test_a_pass_rules_out_no_more_than_so_many_tokens_could_show():
    exact, noisy = (greedy.judge(replace(seen(), calibration=known)).figures["wrong_rate_ruled_out"] for known in (calibration(), NOISY))
    assert 2.0 * exact < noisy < 0.03


def test_a_pass_says_how_noisy_the_run_is():
    assert greedy.judge(seen()).rules_out.endswith("; numbers are exact")
    verdict = greedy.judge(replace(seen(), calibration=NOISY))
    assert verdict.rules_out.endswith("; noise 0.029 nats, at most 1 jump in 565 tokens")


@pytest.mark.parametrize("control, outcome", [({}, Outcome.FAIL), ({1: {3: 0.1}}, Outcome.PASS)])
def test_one_token_is_proof_only_where_no_boot_of_the_baseline_shows_a_gap(control, outcome):
    verdict = greedy.judge(seen({4: {17: 0.5}}, control=control))
    assert verdict.outcome is outcome
    proof = "one token beyond the tolerance is proof"
    assert any(proof in line for line in verdict.evidence) == (outcome is Outcome.FAIL)


def test_the_same_wrong_token_again_is_no_more_evidence():
    asked = tuple(replace(request, body={**request.body, "messages": []}) for request in requests(10))
    again = {i: {10: 0.5} for i in range(10)}
    given = replace(seen(again, alpha=5.4e-5), calibration=NOISY, workload=a_workload(asked))
    assert greedy.judge(given).outcome is Outcome.PASS
    assert greedy.judge(replace(given, workload=a_workload(requests(10)))).outcome is Outcome.FAIL


def test_the_logit_noise_raises_the_tolerance():
    control = [answer(a.request_id, TOKENS, logprobs=tuple(math.log(0.6) + (-1) ** i * 0.03 for i in range(60))) for a in ten()]
    noisy = replace(seen({4: {17: 0.5}}), control=transcript("control", control), calibration=ReportedDraws())
    verdict = greedy.judge(noisy)
    assert verdict.outcome is Outcome.PASS
    assert any("8 x logit noise" in line for line in verdict.evidence)
    processed = replace(noisy, capabilities={"baseline": Capabilities(raw_logprobs=False)})
    assert greedy.judge(processed).figures["tolerance_nats"] == 1.0, "nothing shows the noise of half precision"
    single = replace(noisy, capabilities={"baseline": Capabilities(raw_logprobs=False, single_precision=True)})
    assert greedy.judge(single).outcome is Outcome.FAIL


def test_a_verify_kernel_is_granted_its_own_noise_up_to_a_bounded_factor():
    given = replace(seen(beyond(4, 0.3), alpha=5.4e-5), calibration=NOISY)
    assert greedy.judge(given).outcome is Outcome.SUSPICIOUS
    verdict = greedy.judge(replace(given, verify_calibration=calibration(2000, noise=0.06, seed=2)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["verify_noise_factor"] == pytest.approx(3.0, rel=0.1)
    assert any("the verify kernel is 3.0 times as noisy as decode" in line for line in verdict.evidence)
    far = greedy.judge(replace(given, verify_calibration=calibration(2000, noise=0.5, seed=2)))
    decode = greedy.judge(given).figures["noise_nats"]
    assert far.figures["tolerance_nats"] == pytest.approx(8.0 * 5.0 * decode), "five times the noise of decoding"


def test_a_baseline_that_does_not_repeat_itself_cannot_judge():
    assert greedy.judge(seen(control={1: {3: 2.0}})).outcome is Outcome.PASS, "one jump"
    verdict = greedy.judge(seen(control=beyond(20, 2.0)))
    assert (verdict.outcome, verdict.headline.partition(":")[0]) == (
        Outcome.INVALID,
        "the baseline repeats itself, but its greedy tokens are not its scores' best ones",
    )
    far_off = [answer(a.request_id, TOKENS, logprobs=(math.log(0.6) - 0.5,) * 60) for a in ten()]
    verdict = greedy.judge(replace(seen(), control=transcript("control", far_off), calibration=ReportedDraws()))
    assert (verdict.outcome, verdict.headline.partition(":")[0]) == (Outcome.INVALID, "the baseline does not repeat itself")


def test_the_control_is_counted_as_the_variants_are():
    assert greedy.judge(seen(control=beyond(1, 2.0)).as_control()).outcome is Outcome.PASS
    assert greedy.judge(seen(control=beyond(20, 2.0)).as_control()).outcome is Outcome.FAIL


def test_the_control_is_not_asked_to_speculate():
    assert greedy.judge(replace(seen(), speculative=replace(seen().control, counters=None), is_control=True)).outcome is Outcome.PASS


def test_an_answer_that_differs_and_was_not_scored_makes_the_rest_worth_nothing():
    mine = ten(at_3=(7, *TOKENS[1:]))
    given = seen(mine=mine)
    assert greedy.judge(given).outcome is Outcome.PASS
    unscored = replace(given, scores={**given.scores, VARIANT: tuple(one for one in given.scores[VARIANT] if one.request_id != "chat-03")})
    assert greedy.judge(unscored).outcome is Outcome.INVALID


def near_ties(count):
    return {i: dict.fromkeys(range(count), 0.1) for i in range(10)}


@pytest.mark.parametrize(
    "mine, control, outcome",
    [(2, 0, Outcome.FAIL), (2, 2, Outcome.INVALID), (0, 2, Outcome.PASS), (0, 0, Outcome.PASS)],
)
def test_near_ties_that_no_noise_explains_fail_unless_the_baselines_own_do(mine, control, outcome):
    verdict = greedy.judge(seen(near_ties(mine), control=near_ties(control), baseline=near_ties(control)))
    assert verdict.outcome is outcome
    if outcome is Outcome.FAIL:
        assert verdict.names == greedy.NEAR_TIES
        assert "(alarm at 1,000)" in verdict.headline
        assert "0.05 nats between two candidates (minimum for half precision)" in verdict.short[1]


def test_near_ties_that_the_tolerated_noise_explains_pass_even_where_the_control_has_none():
    mine = ten()
    close = [Score(request_id=a.request_id, arm=VARIANT, under="baseline", positions=tuple(split(i) for i in range(60))) for a in mine]
    verdict = greedy.judge(replace(seen(), scores={VARIANT: tuple(close), "control": scored("control", ten())}))
    assert verdict.figures["near_ties"] == 20
    assert verdict.outcome is Outcome.PASS


def split(i):
    """A token whose runner-up is 0.01 nats away; two in sixty fell on that side."""
    lost, near = i < 2, 0.4 * math.exp(-0.01)
    best, other = (800, TOKENS[i]) if lost else (TOKENS[i], 901)
    return position(TOKENS[i], 0.01 if lost else 0.0, best=best, p_best=0.4, others=((other, near),))


def test_without_a_control_the_noise_alone_tells():
    given = seen(near_ties(2))
    alone = replace(given, control=None, scores={VARIANT: given.scores[VARIANT]})
    assert greedy.judge(alone).outcome is Outcome.FAIL
    assert greedy.judge(replace(alone, alpha=0.0)).outcome is Outcome.PASS


def test_an_engine_that_computes_in_float32_is_granted_less_noise():
    given = seen({i: {0: 0.09} for i in range(3)}, alpha=1e-4)
    assert greedy.judge(given).outcome is Outcome.PASS
    single = replace(given, capabilities={"baseline": Capabilities(single_precision=True)})
    verdict = greedy.judge(single)
    assert verdict.outcome is Outcome.FAIL
    assert "0.02 nats between two candidates (minimum for float32)" in verdict.short[1]


def test_a_prefix_that_comes_again_is_bet_on_once():
    mine = [answer("chat-00", TOKENS, pass_index=i) for i in range(5)]
    again = tuple(score(VARIANT, each, {0: 0.1, 1: 0.1}.items()) for each in mine)
    given = captured("greedy", mine, mine, scores={VARIANT: again}, workload=a_workload(requests(1), passes=5), alpha=1e-9)
    assert greedy.judge(given).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "theirs, index, kind",
    [
        ((1, 2, 3), None, None),
        ((1, 9, 3), 1, DifferenceKind.NEAR_TIE),
        ((9, 2, 3), 0, DifferenceKind.TIE),
        ((1, 2, 9), 2, DifferenceKind.REAL),
        ((1, 2), 2, DifferenceKind.REAL),
        ((1,), 1, DifferenceKind.END),
    ],
)
def test_the_first_difference_is_classed_by_its_gap(theirs, index, kind):
    each = answer("chat-00", (1, 2, 3))
    (mine,) = scored_answers(transcript(VARIANT, [each]), [score(VARIANT, each, {1: 0.2, 2: 0.4}.items())])
    found = classify_difference(mine, answer("chat-00", theirs), 0.25)
    assert (found and (found.index, found.kind)) == (kind and (index, kind))


def test_a_difference_in_length_is_classed_by_what_the_baseline_could_have_done():
    each, longer = answer("chat-00", (1, 2)), answer("chat-00", (1, 2, 3))
    (mine,) = scored_answers(transcript(VARIANT, [each]), [score(VARIANT, each)])
    contested = [position(3, p_best=0.5, others=((900, 0.45),))]
    assert classify_difference(mine, longer, 0.25).kind is DifferenceKind.LENGTH
    assert classify_difference(mine, longer, 0.25, [position(token) for token in (1, 2, 3)]).kind is DifferenceKind.LENGTH
    assert classify_difference(mine, longer, 0.25, [position(1), position(2), *contested]).kind is DifferenceKind.END
    (went_on,) = scored_answers(transcript(VARIANT, [longer]), [score(VARIANT, longer)])
    assert classify_difference(went_on, answer("chat-00", (1, 2), finish="length"), 0.25).kind is DifferenceKind.LENGTH


FAULTS = [
    ("accept-all", ACCEPTED_UNVERIFIED),
    ("kv-off-by-one", NOT_ROLLED_BACK),
    ("recovered", RECOVERED),
    ("bonus", BONUS),
    ("anywhere", ""),
]


@pytest.mark.parametrize("with_draft", [True, False])
@pytest.mark.parametrize("agreement", [0.4, 0.7, 0.9])
@pytest.mark.parametrize("fault, name", FAULTS)
def test_a_fault_is_named_from_where_its_wrong_tokens_stand(fault, name, agreement, with_draft):
    verdict = greedy.judge(of(fault, with_draft=with_draft, agreement=agreement))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names == name
    assert verdict.headline.startswith(name or "wrong tokens, cause not identified")


def test_a_name_is_called_a_guess_where_nobody_says_how_the_variant_drafts():
    known = of("accept-all")
    variant = replace(known.pair.variant, draft=replace(known.pair.variant.draft, kind=DraftKind.UNKNOWN))
    assert "a guess: the drafter is unknown here" in greedy.judge(replace(known, pair=replace(known.pair, variant=variant))).short[-1]
    assert not any("guess" in line for line in greedy.judge(known).short)


def test_a_toy_server_without_a_fault_passes():
    assert greedy.judge(of("")).outcome is Outcome.PASS


def test_without_windows_the_draft_distribution_still_names_unverified_drafts_and_nothing_else():
    assert greedy.judge(of("accept-all", with_windows=False)).names == ACCEPTED_UNVERIFIED
    assert greedy.judge(of("accept-all", with_windows=False, with_draft=False)).names == ""
    assert greedy.judge(of("bonus", with_windows=False)).names == ""
    assert greedy.judge(of("kv-off-by-one", with_windows=False)).names == ""


def test_prompt_lookup_names_unverified_drafts_from_the_tokens_alone():
    """The draft repeats what followed (7, 8) in the prompt; the target would have ended it."""
    prompt, tokens = (7, 8, 30, 31, 32, 7), (8, 30, 31, 32, 50)
    mine = [replace(answer(f"chat-{i:02}", tokens, windows=(1, 4)), prompt_token_ids=prompt) for i in range(10)]
    given = captured(
        "greedy",
        mine,
        mine,
        scores={VARIANT: scored(VARIANT, mine, {i: {1: 3.0, 3: 2.0} for i in range(10)})},
        pair=a_pair(DraftKind.NGRAM),
    )
    verdict = greedy.judge(given)
    assert verdict.names == ACCEPTED_UNVERIFIED
    unknown = replace(given, speculative=transcript(VARIANT, [replace(a, prompt_token_ids=()) for a in mine]))
    assert greedy.judge(unknown).names == ACCEPTED_UNVERIFIED
    few = replace(given, scores={VARIANT: scored(VARIANT, mine, {0: {4: 3.0}})})
    assert greedy.judge(few).names == ""


def test_naming_needs_more_than_an_accident():
    """One wrong token after a rejection may be anything."""
    given = of("")
    mine = given.speculative.answers
    late = next(i for i, w in enumerate(mine[0].choice.windows[1:-2], 1) if w < 4)
    place = sum(mine[0].choice.windows[: late + 1])
    scores = (score(VARIANT, mine[0], {place: 3.0}.items()), *given.scores[VARIANT][1:])
    one = scored_answers(given.speculative, scores)
    assert fault_name(given, one, 0.25) == UNNAMED


def test_a_wrong_token_in_place_of_a_rejected_one_is_no_lasting_state():
    """Recovered tokens come after a rejection more often than others do, so they are held against each other only."""
    mine = [answer(f"chat-{i:02}", range(20), windows=(1, 4, 4, 4, 4, 1, 1, 1)) for i in range(3)]
    scores = {VARIANT: scored(VARIANT, mine, {i: {18: 3.0} for i in range(3)})}
    assert greedy.judge(captured("greedy", mine, mine, scores=scores)).names == RECOVERED


def test_too_few_tokens_are_inconclusive_and_say_how_many_settle_it():
    mine = [answer("chat-00", TOKENS)]
    verdict = greedy.judge(captured("greedy", mine, mine, scores={VARIANT: scored(VARIANT, mine)}))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.settle == "140 more tokens"


def test_a_pass_needs_speculation_and_a_failure_does_not():
    idle = SpecCounters()
    assert greedy.judge(seen(counters=idle)).outcome is Outcome.NOT_SPECULATING
    assert greedy.judge(seen({4: {17: 1.0}}, counters=idle)).outcome is Outcome.FAIL


def test_unscored_tokens_are_invalid():
    verdict = greedy.judge(captured("greedy", ten(), ten()))
    assert verdict.outcome is Outcome.INVALID
    assert "no token of draft-k3 was scored" in verdict.headline


def test_scores_of_other_tokens_are_invalid():
    wrong = scored(VARIANT, ten(at_0=(1, 2, 3)))
    verdict = greedy.judge(captured("greedy", ten(), ten(), scores={VARIANT: wrong}))
    assert verdict.outcome is Outcome.INVALID
    assert "chat-00" in verdict.headline


def test_a_refused_workload_is_refused_and_a_refused_request_is_said():
    no = [answer(f"chat-{i:02}", status=400, error="no greedy here") for i in range(10)]
    assert greedy.judge(captured("greedy", no, ten())).outcome is Outcome.REFUSED
    some = [*ten()[:8], no[8], answer("chat-09", status=503)]
    verdict = greedy.judge(captured("greedy", some, ten(), scores={VARIANT: scored(VARIANT, some[:8])}))
    assert verdict.outcome is Outcome.PASS
    assert '; 1 request not answered (see liveness); 1 request refused with a 4xx, first chat-08: "no greedy here"' in verdict.headline


def test_a_deadly_request_fails_before_tokens_are_looked_at():
    dead = ServerFailure(request_id="chat-03", ending=FailureKind.DIED, recurred=True)
    assert greedy.judge(seen(server_failures=[dead])).outcome is Outcome.FAIL


def test_many_wrong_tokens_are_counted_and_not_all_listed():
    verdict = greedy.judge(seen({i: dict.fromkeys(range(60), 1.0) for i in range(10)}))
    assert verdict.evidence[-1] == "and 550 more wrong tokens"


def test_every_request_of_the_workload_may_be_answered_in_several_passes():
    mine = [answer("chat-00", TOKENS, pass_index=i) for i in range(5)]
    verdict = greedy.judge(
        captured("greedy", mine, mine, scores={VARIANT: scored(VARIANT, mine)}, workload=a_workload(requests(1), passes=5))
    )
    assert verdict.figures["tokens"] == 300


def test_the_example_comes_after_the_baselines_own_tokens_where_one_does():
    """Texts differ from the first near-tie on, so that a token after another prefix shows in no text."""
    gaps = {4: {17: 1.0}, 5: {20: 9.0}}
    parted = [replace(one, choices=(replace(one.choice, token_ids=(7, *one.choice.token_ids[1:])),)) for one in ten()[5:6]]
    assert greedy.judge(seen(gaps)).example.request_id == "chat-05"
    assert greedy.judge(seen(gaps, mine=[*ten()[:5], *parted, *ten()[6:]])).example.request_id == "chat-04"


def test_tokens_count_prompt_by_prompt_and_once_where_only_the_limit_differs():
    """The first and the third request have one prompt; the longer answer goes on with what the shorter one began."""
    first, other = requests(2)
    longer = replace(first, id="late-00", body={**first.body, "max_tokens": 512})
    workload = a_workload((first, other, longer))
    mine = [answer("chat-00", TOKENS[:20]), answer("chat-01", TOKENS[:7]), answer("late-00", TOKENS)]
    scores = {VARIANT: scored(VARIANT, mine), "baseline": scored("baseline", mine)}
    one = captured("greedy", mine, mine, scores=scores, workload=workload)
    answers = scored_answers(one.speculative, one.scores[VARIANT])
    assert greedy_tokens(one, answers).prompts.tolist() == [0] * 60 + [1] * 7
    assert len(distinct_gaps(workload, answers)) == 67
    assert answer_lengths(workload, answers) == (20, 7)
