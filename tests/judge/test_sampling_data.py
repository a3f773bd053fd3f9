"""The sampling judge where requests ask for penalties, biases and min-p, where scores are noisy or lean, and where prompts come twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import sampling
from pytest_specdec.judge.sampling import control
from pytest_specdec.judge.sampling.control import compare_at_bias, compare_with_control
from pytest_specdec.judge.sampling.data import gather
from pytest_specdec.judge.tolerance import has_exact_kernels, logit_noise
from pytest_specdec.model.captured import Capabilities, ReportedDraws
from pytest_specdec.model.transcript import Choice, Transcript
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.jumps import JUMP_RATE
from pytest_specdec.stats.penalties import Penalties
from pytest_specdec.stats.request_params import sampling_params
from pytest_specdec.stats.token_distribution import NOISE
from tests.judge import toy_speculation
from tests.judge.captured_values import calibration

BIAS = {"3": 2.0, "11": -1.0, "20": 1.0}


def moved(logits, said, prompt, body):
    """What an engine adds to logits."""
    logits = logits.copy()
    for token, value in body.get("logit_bias", {}).items():
        logits[int(token)] += value
    for token in {*prompt, *said} if "repetition_penalty" in body else ():
        logits[token] *= 1 / body["repetition_penalty"] if logits[token] > 0 else body["repetition_penalty"]
    for token in set(said):
        logits[token] -= body.get("presence_penalty", 0.0) + body.get("frequency_penalty", 0.0) * said.count(token)
    return logits


def drawn(prompt, body, random, *, tokens=64, wrong=False):
    """An answer drawn token by token; ``wrong`` forgets what was asked."""
    said = []
    for _ in range(tokens):
        last = (*prompt, *said)[-1]
        logits = toy_speculation.TARGET[last] if wrong else moved(toy_speculation.TARGET[last], said, prompt, body)
        mass = np.exp(logits - logits.max())
        mass = np.where(mass >= (0.0 if wrong else body.get("min_p", 0.0)), mass, 0.0)
        said.append(toy_speculation.draw(random, mass / mass.sum()))
    return said


def asked_for(body, *, answers=48, wrong=False, top_tokens=toy_speculation.TOP_TOKENS, seed=1):
    """A capture whose variant drew plainly what ``body`` asks for; the windows are full, as if every draft had been right."""
    random = np.random.default_rng(seed)
    one = toy_speculation.captured("head", answers=answers, seed=seed)
    said = []
    for answer in one.speculative.answers:
        tokens = drawn(answer.prompt_token_ids, body, random, wrong=wrong)
        said.append(replace(answer, choices=(Choice(token_ids=tuple(tokens), finish_reason="length"),)))
    wished = tuple(replace(request, body={**request.body, **body}) for request in one.workload.requests)
    return replace(
        one,
        workload=replace(one.workload, requests=wished, top_tokens=top_tokens),
        speculative=replace(one.speculative, answers=tuple(said)),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in said)},
    )


ASKED = [
    {"logit_bias": BIAS},
    {"presence_penalty": 1.5},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.5},
    {"min_p": 0.1},
]


@pytest.mark.examples(2)
@pytest.mark.parametrize("body", ASKED)
def test_what_is_asked_for_and_done_does_not_fail(body):
    """A repetition penalty touches all but every token of these prompts: too little is left to bet on, and the verdict says so."""
    verdict = sampling.judge(asked_for(body))
    assert verdict.outcome is (Outcome.INCONCLUSIVE if "repetition_penalty" in body else Outcome.PASS), verdict.headline
    assert verdict.figures["log10_wealth"] < 2.0


@pytest.mark.examples(2)
@pytest.mark.parametrize("body", [ASKED[0], ASKED[1], ASKED[2], ASKED[4]])
def test_what_is_asked_for_and_ignored_fails(body):
    assert sampling.judge(asked_for(body, wrong=True)).outcome is Outcome.FAIL


def test_penalties_that_are_done_twice_are_named():
    once = asked_for({"presence_penalty": 3.0})
    half = tuple(replace(request, body={**request.body, "presence_penalty": 1.5}) for request in once.workload.requests)
    verdict = sampling.judge(replace(once, workload=replace(once.workload, requests=half)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "penalties or biases")


def test_a_repetition_penalty_needs_the_prompts_tokens():
    one = asked_for({"repetition_penalty": 1.5}, answers=2)
    bare = tuple(replace(answer, prompt_token_ids=()) for answer in one.speculative.answers)
    verdict = sampling.judge(replace(one, speculative=replace(one.speculative, answers=bare)))
    assert verdict.outcome is Outcome.INVALID
    assert "its penalties count them" in verdict.headline


def test_wishes_are_read_from_the_body():
    wish = sampling_params({"logit_bias": {"7": 500, "8": -1}, "presence_penalty": 1, "min_p": 0.1})
    assert wish.penalties == Penalties(presence=1.0, bias={7: 100.0, 8: -1.0})
    assert wish.min_p == 0.1
    assert not wish.unmodelled


def with_control(one, *, noise=0.0, reported=True, table=toy_speculation.TARGET, told=toy_speculation.TARGET, seed=9):
    """``one`` with a control whose decoding follows ``table``, scored by TARGET, reporting its own log-probabilities under ``told``."""
    random = np.random.default_rng(seed)
    said, scores = [], []
    for answer in one.speculative.answers:
        tokens = drawn(answer.prompt_token_ids, {}, random, tokens=len(answer.choice.token_ids)) if table is toy_speculation.TARGET else []
        last = answer.prompt_token_ids[-1]
        while len(tokens) < len(answer.choice.token_ids):
            tokens.append(int((table[last] + random.gumbel(size=toy_speculation.VOCABULARY)).argmax()))
            last = tokens[-1]
        bare = replace(answer, choices=(Choice(token_ids=tuple(tokens), finish_reason="length"),))
        score = toy_speculation.score(bare, "control", "baseline", toy_speculation.TARGET)
        distribution = toy_speculation.score(bare, "control", "baseline", told)
        weights = [position.logprob + noise * random.normal() for position in distribution.positions]
        said.append(replace(bare, choices=(replace(bare.choice, logprobs=tuple(weights) if reported else None),)))
        scores.append(score)
    booted = Transcript(arm="control", boot=2, workload="w", digest="d", answers=tuple(said))
    return replace(one, control=booted, scores={**one.scores, "control": tuple(scores)})


def said_of_noise(verdict):
    return next(line for line in verdict.evidence if line.startswith("logit noise"))


def test_the_noise_of_the_control_is_told_and_widens_the_null():
    one = with_control(toy_speculation.captured("model"), noise=0.12)
    assert "above the 0.1 of a sound scorer" in said_of_noise(sampling.judge(one))
    assert gather(one).observed.distribution.noise.min() > 0.1
    quiet = with_control(toy_speculation.captured("model"), noise=0.01)
    assert said_of_noise(sampling.judge(quiet)).endswith("tokens")
    assert gather(quiet).observed.distribution.noise.tolist() == [NOISE] * gather(quiet).observed.tokens
    mute = with_control(toy_speculation.captured("model"), reported=False)
    assert said_of_noise(sampling.judge(mute)) == "logit noise unknown: the baseline reported no log-probabilities"


@pytest.mark.parametrize(
    "reported, null",
    [(calibration(), 0.0), (calibration(2000, noise=0.02), JUMP_RATE), (calibration(2000, noise=0.02, jumps=4), 0.002)],
    ids=["exact", "noisy", "jumping"],
)
def test_a_correct_server_may_jump_as_often_as_the_run_shows(reported, null):
    observed = gather(replace(toy_speculation.captured("model", answers=2), calibration=reported)).observed
    assert observed.distribution.jump_rate == null


@pytest.mark.parametrize("verify, exact", [(0.0, True), (0.02, False)], ids=["exact", "noisy kernel"])
def test_the_margin_at_top_p_is_narrow_where_both_kernels_are_exact(verify, exact):
    one = toy_speculation.captured("model", answers=2, top_p=0.9)
    one = replace(one, calibration=calibration(), verify_calibration=calibration(2000, noise=verify))
    seen, wide = gather(one).observed.distribution, gather(one, exact=False).observed.distribution
    assert (seen.top_p.noise.max() == 0.0) == exact
    assert (seen.violation.sum() > wide.violation.sum()) == exact


def test_single_precision_without_a_calibration_is_not_taken_to_be_exact():
    one = replace(toy_speculation.captured("model", answers=2), capabilities={"baseline": Capabilities(single_precision=True)})
    assert has_exact_kernels(replace(one, calibration=calibration()))
    assert not has_exact_kernels(replace(one, calibration=ReportedDraws()))


def test_the_control_is_held_to_the_margins_of_the_arm_that_it_is_compared_with(monkeypatch):
    """Without a verify kernel of its own it would be held to those of a server that is not known to be exact."""
    one = with_control(toy_speculation.captured("model", answers=4, top_p=0.9), noise=0.0)
    one = replace(one, calibration=calibration(), verify_calibration=calibration(2000))
    observed, margins = gather(one).observed, []
    monkeypatch.setattr(control, "bettors", lambda seen: margins.append(seen.distribution.top_p.noise.max()) or bettors(seen))
    compare_with_control(one, observed, bettors(observed))
    assert margins == [observed.distribution.top_p.noise.max()] == [0.0]


def test_too_much_noise_leaves_the_difference_to_the_control():
    verdict = sampling.judge(with_control(toy_speculation.captured("model"), noise=0.5))
    assert verdict.outcome is Outcome.INVALID
    assert "too noisy to judge single tokens" in verdict.headline
    assert "no significant difference to the control" in verdict.headline
    verdict = sampling.judge(with_control(toy_speculation.captured("model", "stale"), noise=0.5))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.headline.startswith("sampled tokens do not follow the control's distribution")


def biased(power, *, told=False):
    """Variant and control that both draw from TARGET to a power, as if the scores were taken at another temperature, and tell so or not."""
    one = toy_speculation.captured("head", answers=96)
    random = np.random.default_rng(4)
    said = []
    for answer in one.speculative.answers:
        tokens, last = [], answer.prompt_token_ids[-1]
        while len(tokens) < 64:
            last = int((power * toy_speculation.TARGET[last] + random.gumbel(size=toy_speculation.VOCABULARY)).argmax())
            tokens.append(last)
        said.append(replace(answer, choices=(Choice(token_ids=tuple(tokens), finish_reason="length"),)))
    mine = replace(
        one,
        speculative=replace(one.speculative, answers=tuple(said)),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in said)},
    )
    return with_control(mine, table=power * toy_speculation.TARGET, told=power * toy_speculation.TARGET if told else toy_speculation.TARGET)


def test_scores_that_scoring_bias_are_not_held_against_the_variant():
    one = biased(0.8)
    verdict = sampling.judge(one)
    assert verdict.outcome is Outcome.INVALID
    assert "but the control shows the same" in verdict.headline
    alone = sampling.judge(replace(one, control=None))
    assert alone.outcome is Outcome.FAIL


def test_a_scoring_bias_that_the_baselines_boots_report_is_measured_and_taken_out():
    one = biased(0.94, told=True)
    known = logit_noise(one)
    assert known.scoring_bias == pytest.approx(-0.06, abs=0.002)
    assert known.is_biased
    verdict = sampling.judge(replace(one, alpha=1e-3))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.startswith("biased scores")
    assert verdict.figures["log10_wealth"] == pytest.approx(4.0, abs=0.1), "of the two, that against the scores"
    assert "to the power 0.94" in said_of_noise(verdict)
    assert sampling.judge(one).outcome is Outcome.PASS


def test_a_scoring_bias_does_not_hide_who_follows_the_scores_alone():
    """The baseline draws from ``p^0.94`` and reports it; the variant draws from p, as the scores have it."""
    one = with_control(
        toy_speculation.captured("head", answers=160), table=0.94 * toy_speculation.TARGET, told=0.94 * toy_speculation.TARGET
    )
    verdict = sampling.judge(one)
    assert verdict.outcome is Outcome.INVALID
    assert "biased scores give no verdict" in verdict.headline


def test_the_control_is_held_against_the_same_scores():
    """Uncorrected, the control would earn what the scoring bias pays, and excuse a variant that earns as much by a fault."""
    one = biased(0.94, told=True)
    observed = gather(one, scoring_bias=-0.06).observed
    winner = next(bettor for bettor in bettors(observed) if bettor.name == "temperature 1.08 times the requested one")
    right, wrong = (compare_at_bias(one, observed, winner, scoring_bias=scoring_bias).difference.control for scoring_bias in (-0.06, 0.0))
    assert wrong > right + 0.003


def test_a_scoring_bias_does_not_excuse_a_fault():
    tilted = 0.94 * toy_speculation.TARGET
    one = with_control(toy_speculation.captured("head", "stale"), table=tilted, told=tilted)
    verdict = sampling.judge(one)
    assert verdict.outcome is Outcome.FAIL
    assert "scores biased" in said_of_noise(verdict)
    upright = wealth_process(bettors(gather(one, scoring_bias=logit_noise(one).scoring_bias).observed))
    assert verdict.figures["log10_wealth"] == pytest.approx(upright.peak / np.log(10))


def test_a_scoring_bias_is_not_read_off_answers_that_were_drawn_otherwise():
    one = biased(0.94, told=True)
    cold = tuple(replace(request, body={**request.body, "top_p": 0.9}) for request in one.workload.requests)
    known = logit_noise(replace(one, workload=replace(one.workload, requests=cold)))
    assert not known.is_biased
    assert known.noise > 0.05


def test_the_whole_run_calibrates_where_it_is_there():
    one = with_control(toy_speculation.captured("model"), noise=0.12)
    pairs = tuple((position.logprob, position) for position in one.scores["control"][0].positions)
    assert logit_noise(replace(one, calibration=ReportedDraws(answers=(pairs,)))).noise == 0.0


def test_a_fault_of_the_variant_alone_stands():
    assert sampling.judge(with_control(toy_speculation.captured("head", "stale"))).outcome is Outcome.FAIL


def twice(one, *, copied, seeds=True):
    """The same with every prompt asked twice; ``copied`` gives the first answer of a prompt again."""
    answers, requests = list(one.speculative.answers), list(one.workload.requests)
    half = len(answers) // 2
    for index in range(half):
        other = half + index
        answers[other] = replace(answers[other if not copied else index], request_id=answers[other].request_id)
        body = {**requests[index].body, "prompt": f"prompt {index}"}
        for place, seed in ((index, 2 * index), (other, 2 * index + seeds)):
            requests[place] = Request(id=requests[place].id, route=Route.COMPLETIONS, body={**body, "seed": seed})
    return replace(
        one,
        workload=replace(one.workload, requests=tuple(requests)),
        speculative=replace(one.speculative, answers=tuple(answers)),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in answers)},
        draft_scores={},
    )


def told_of_pairs(verdict):
    return [line for line in verdict.evidence if "pairs of answers" in line]


def test_answers_given_again_are_named():
    verdict = sampling.judge(twice(toy_speculation.captured("head", answers=8), copied=True))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "dependence between requests (an answer given again)")
    assert told_of_pairs(verdict)[0].startswith("4 of 4 pairs of answers to one prompt begin with the same 16 tokens")


def test_a_seed_that_comes_again_may_bring_its_answer_again():
    verdict = sampling.judge(twice(toy_speculation.captured("head", answers=32), copied=True, seeds=False))
    assert verdict.outcome is Outcome.PASS
    assert not told_of_pairs(verdict)


def answers_to_one_prompt(count):
    """Independent answers that all begin after one token."""
    one = toy_speculation.captured("head", answers=count)
    random = np.random.default_rng(8)
    start = one.speculative.answers[0].prompt_token_ids
    said = tuple(
        replace(answer, prompt_token_ids=start, choices=(Choice(token_ids=tuple(drawn(start, {}, random)), finish_reason="length"),))
        for answer in one.speculative.answers
    )
    asked_alike = tuple(
        replace(request, body={**request.body, "prompt": "p", "seed": index}) for index, request in enumerate(one.workload.requests)
    )
    return replace(
        one,
        workload=replace(one.workload, requests=asked_alike),
        speculative=replace(one.speculative, answers=said),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in said)},
    )


def test_independent_answers_to_one_prompt_pass():
    verdict = sampling.judge(answers_to_one_prompt(48))
    assert verdict.outcome is Outcome.PASS
    assert told_of_pairs(verdict)[0].startswith("0 of 1,128 pairs of answers")


def test_answers_that_end_too_soon_are_named():
    """The end is token 0, as the baseline's own answers show; the server makes it e times as probable."""
    random = np.random.default_rng(6)
    one = toy_speculation.captured("head", answers=150)
    wrong = toy_speculation.TARGET.copy()
    wrong[:, 0] += 1.2
    said, theirs = [], []
    for answer in one.speculative.answers:
        for table, out in ((wrong, said), (toy_speculation.TARGET, theirs)):
            tokens, last = [], answer.prompt_token_ids[-1]
            while len(tokens) < 64 and 0 not in tokens:
                last = int((table[last] + random.gumbel(size=toy_speculation.VOCABULARY)).argmax())
                tokens.append(last)
            finish = "stop" if tokens[-1] == 0 else "length"
            out.append(replace(answer, choices=(Choice(token_ids=tuple(tokens), finish_reason=finish),)))
    seen = replace(
        one,
        baseline=replace(one.baseline, answers=tuple(theirs)),
        speculative=replace(one.speculative, answers=tuple(said)),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in said)},
    )
    verdict = sampling.judge(seen)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "end of sequence")
    right = replace(
        seen,
        speculative=replace(seen.speculative, answers=tuple(theirs)),
        scores={"v": tuple(toy_speculation.score(answer, "v", "baseline", toy_speculation.TARGET) for answer in theirs)},
    )
    assert sampling.judge(right).outcome is Outcome.PASS


def test_who_does_not_bet_on_the_control_is_not_compared_with_it():
    one = with_control(toy_speculation.captured("head"), noise=0.0)
    observed = gather(one).observed
    found = {
        seat.name: compare_at_bias(one, observed, seat, scoring_bias=0.0)
        for seat in bettors(observed)
        if seat.name in ("greedy bonus", "learned boldly", "learned boldly at the bonus")
    }
    assert found["greedy bonus"] is None
    at_the_bonus = found["learned boldly at the bonus"]
    assert at_the_bonus.difference.control != 0.0
    assert at_the_bonus.difference.control == found["learned boldly"].difference.control


def test_a_bettor_whose_name_continues_another_name_is_a_variation_of_it():
    """Names are for people, but variations continue the name of what they vary: a field that lacks one loses a control."""
    runs = [with_control(toy_speculation.captured(kind), noise=0.0) for kind in ("head", "model", "ngram")]
    panels = [bettors(gather(arm).observed) for one in runs for arm in (one, one.as_control())]
    named = {bettor.name: bettor for panel in panels for bettor in panel}
    assert not [
        (name, other)
        for name, bettor in named.items()
        for other in named
        if other != name and name.startswith(other) and other not in bettor.variation_of
    ]
