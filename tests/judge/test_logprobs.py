from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import logprobs
from pytest_specdec.model.captured import Capabilities, ReportedDraws
from pytest_specdec.model.transcript import Answer, Choice, SpecCounters, Transcript
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from tests.judge import toy_speculation

ALPHA = 2.5e-5


def told(answer, score, random, *, noise=0.0, late=None, temperature=1.0, wrong=None, known=toy_speculation.TARGET):
    """The answer with log-probabilities: the scored ones, noisy, or what ``wrong(place, position)`` makes of one."""
    values = []
    for place, position in enumerate(score.positions):
        last = (answer.prompt_token_ids + answer.choice.token_ids)[len(answer.prompt_token_ids) + place - 1]
        sd = noise if late is None or place < logprobs.LATE else late
        logits = known[last] + sd * random.normal(size=toy_speculation.VOCABULARY)
        value = float((logits / temperature - np.log(np.exp(logits / temperature).sum()))[position.token_id])
        values.append(value if wrong is None else wrong(place, value))
    return replace(answer, choices=(replace(answer.choice, logprobs=tuple(values)),))


def reporting(*, noise=0.0, own=0.0, late=None, answers=12, tokens=48, wrong=None, seed=1, **fields):
    """A variant whose reported log-probabilities have ``own`` noise or are ``wrong``, a baseline and a control that have ``noise``.

    From its 257th token on the variant's noise is ``late``, where that is given.
    """
    random = np.random.default_rng(seed)
    one = toy_speculation.captured("model", answers=answers, tokens=tokens, seed=seed, alpha=ALPHA)
    plain = toy_speculation.Server(random=random, draft=toy_speculation.draft_of(), speculates=False)
    arms, scores = {}, {"v": one.scores["v"]}
    for arm in ("baseline", "control"):
        said = [plain.answer(answer.request_id, answer.prompt_token_ids, tokens) for answer in one.speculative.answers]
        scores[arm] = tuple(toy_speculation.score(answer, arm, "baseline", toy_speculation.TARGET) for answer in said)
        reported = tuple(told(answer, score, random, noise=noise, **fields) for answer, score in zip(said, scores[arm], strict=True))
        arms[arm] = Transcript(arm=arm, boot=0, workload="w", digest="d", answers=reported)
    mine = zip(one.speculative.answers, scores["v"], strict=True)
    spoken = tuple(told(answer, score, random, noise=own or noise, late=late, wrong=wrong, **fields) for answer, score in mine)
    return replace(
        one,
        family=Family.LOGPROBS,
        baseline=arms["baseline"],
        control=arms["control"],
        speculative=replace(one.speculative, answers=spoken),
        scores=scores,
    )


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_as_noisy_as_the_baseline_passes(noise):
    verdict = logprobs.judge(reporting(noise=noise))
    assert verdict.outcome is Outcome.PASS, verdict.headline
    assert "tokens checked; logit noise of" in verdict.rules_out
    assert "(99%)" in verdict.rules_out
    assert verdict.figures["tokens"] == 576


@pytest.mark.parametrize("noise, own", [(0.0, 0.1), (0.03, 0.2), (0.1, 0.4)])
def test_noisier_than_the_baseline_fails(noise, own):
    verdict = logprobs.judge(reporting(noise=noise, own=own))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "reported log-probabilities or verifier numerics")
    assert len(verdict.short) <= 4


@pytest.mark.parametrize("noise, own", [(0.05, 0.06), (0.03, 0.09), (0.0, 0.04)])
def test_a_verify_kernel_that_is_noisier_by_a_bounded_factor_is_lawful(noise, own):
    assert logprobs.judge(reporting(noise=noise, own=own)).outcome is Outcome.PASS


def test_how_noisy_the_verify_kernel_is_is_said():
    """The scores of these servers are exact, so that theirs is the noise of decode alone."""
    verdict = logprobs.judge(reporting(noise=0.03, own=0.09, answers=24))
    assert verdict.figures["verify_noise_times"] == pytest.approx(17**0.5, rel=0.2)
    assert re.search(r"; the verify kernel is [34]\.\d times as noisy as decode$", verdict.headline)
    assert "verify kernel" not in logprobs.judge(reporting(noise=0.03)).headline
    assert "verify_noise_times" not in logprobs.judge(reporting()).figures


def test_in_single_precision_less_noise_is_lawful():
    known = {"baseline": Capabilities(raw_logprobs=True, single_precision=True)}
    one = reporting(own=0.03)
    assert logprobs.judge(one).outcome is Outcome.PASS
    assert logprobs.judge(replace(one, capabilities=known)).outcome is Outcome.FAIL


def test_what_a_boot_keeps_is_no_fault_of_the_variant():
    """The control scores itself: what its boot keeps is in its reports and scores alike, and in those of no other arm."""
    one, quiet = reporting(noise=0.14), reporting(noise=0.01, seed=2)
    assert (
        logprobs.judge(replace(one, control=quiet.control, scores=one.scores | {"control": quiet.scores["control"]})).outcome
        is Outcome.PASS
    )


def test_what_begins_late_is_seen_among_the_late_tokens():
    """An eighth of the tokens, their noise seven times the baseline's: a fifth of all tokens decides, and of all it is lawful."""
    one = reporting(noise=0.03, tokens=296)
    late = reporting(noise=0.03, own=0.03, tokens=296, late=0.2)
    assert logprobs.judge(one).outcome is Outcome.PASS
    verdict = logprobs.judge(late)
    assert verdict.outcome is Outcome.FAIL
    assert "after token 256" in verdict.headline


def by_the_first_boot():
    """As side by side: the first boot scores itself, quietly; the control and the variant, .14 nats apart from it, are scored by it."""
    one, quiet = reporting(noise=0.14), reporting(noise=0.01, seed=2)
    calibration = ReportedDraws(answers=(tuple(pairs_of(one, "control")),))
    scores = one.scores | {"baseline": quiet.scores["baseline"]}
    return replace(one, baseline=quiet.baseline, scores=scores, calibration=calibration, scored_by=("baseline",))


def pairs_of(captured, arm):
    for answer, score in zip(captured.control.answers, captured.scores[arm], strict=True):
        yield from zip(answer.choice.logprobs, score.positions, strict=True)


def test_side_by_side_the_variant_is_held_against_the_boot_that_another_one_scored():
    one = by_the_first_boot()
    assert logprobs.judge(one).outcome is Outcome.PASS
    assert logprobs.judge(one.as_control()).outcome is Outcome.PASS
    assert logprobs.judge(replace(one, scored_by=("control",))).outcome is Outcome.FAIL, "held against the one that scored itself"
    assert logprobs.judge(replace(one, scored_by=("control",)).as_control()).outcome is Outcome.FAIL


def test_where_one_boot_did_everything_more_noise_is_lawful_in_half_precision():
    one = reporting(noise=0.01, own=0.12)
    assert logprobs.judge(one).outcome is Outcome.FAIL
    attached = replace(one, scored_by=("baseline", "control"))
    assert logprobs.judge(attached).outcome is Outcome.PASS
    assert logprobs.judge(replace(attached, capabilities=SINGLE)).outcome is Outcome.FAIL
    assert logprobs.judge(replace(reporting(noise=0.01, own=0.25), scored_by=("baseline", "control"))).outcome is Outcome.FAIL


def accepted(captured, answer, place):
    ends = np.cumsum(answer.choice.windows) - 1
    return place > 0 and place not in ends


def cut(windows, tokens):
    """The windows as chunks of a stream tell them: what was emitted of each."""
    before = np.concatenate([[0], np.cumsum(windows)])
    return tuple(int(min(end, tokens) - start) for start, end in itertools.pairwise(before) if start < tokens)


@pytest.mark.parametrize("by_chunks", [False, True])
def test_log_probabilities_of_the_draft_are_named(by_chunks):
    """Chunks do not tell that a limit cut the last window off, whose last token is then a draft."""
    one = reporting()
    said = []
    for answer, score in zip(one.speculative.answers, one.draft_scores["v"], strict=True):
        count = len(answer.choice.token_ids)
        values = [
            score.positions[place].logprob if accepted(one, answer, place) or (by_chunks and place == count - 1) else value
            for place, value in enumerate(answer.choice.logprobs)
        ]
        windows = cut(answer.choice.windows, count) if by_chunks else answer.choice.windows
        said.append(replace(answer, choices=(replace(answer.choice, logprobs=tuple(values), windows=windows),)))
    verdict = logprobs.judge(replace(one, speculative=replace(one.speculative, answers=tuple(said))))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "reported log-probabilities of accepted draft tokens")
    assert verdict.short[0].endswith(", an accepted draft token")


def wild(transcript, by):
    """The transcript with one token of middling probability off by so many nats."""
    index, place = next(
        (index, place)
        for index, answer in enumerate(transcript.answers)
        for place, value in enumerate(answer.choice.logprobs)
        if -1.5 < value < -0.5
    )
    answer = transcript.answers[index]
    values = tuple(value - by * (at == place) for at, value in enumerate(answer.choice.logprobs))
    changed = replace(answer, choices=(replace(answer.choice, logprobs=values),))
    return replace(transcript, answers=(*transcript.answers[:index], changed, *transcript.answers[index + 1 :]))


SINGLE = {"baseline": Capabilities(raw_logprobs=True, single_precision=True)}


def lower_logprobs(captured, by, of):
    """The captured run with values too low at places ``of`` their verify steps, by ``(slot, tokens of the window)``."""
    answers = []
    for answer in captured.speculative.answers:
        marks = [of(slot, window) for window in answer.choice.windows[1:] for slot in range(window)]
        marks = [False, *marks][: len(answer.choice.token_ids)]
        values = tuple(value - by * mark for value, mark in zip(answer.choice.logprobs, marks, strict=True))
        answers.append(replace(answer, choices=(replace(answer.choice, logprobs=values),)))
    return replace(captured, speculative=replace(captured.speculative, answers=tuple(answers)))


def is_bonus(slot, window):
    return window == 4 and slot == 3


def is_recovered(slot, window):
    return window < 4 and slot == window - 1


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("of, name", [(is_bonus, "bonus tokens"), (is_recovered, "recovered tokens")])
def test_values_off_at_one_place_of_the_step_alone_are_named(noise, of, name):
    """Less than a jump, and at few of all tokens."""
    verdict = logprobs.judge(lower_logprobs(reporting(noise=noise, answers=24), 0.3, of))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, f"reported log-probabilities of {name}")


def test_bonus_tokens_are_those_of_the_drafts_that_the_server_reports():
    """Of three drafted at most, one alone: its bonus token is the second of the step."""
    one = reporting(noise=0.03, answers=24)
    short = tuple(
        replace(
            answer,
            choices=(replace(answer.choice, drafted=tuple(window if window == 1 else window - 1 for window in answer.choice.windows[1:])),),
        )
        for answer in one.speculative.answers
    )
    off = lower_logprobs(
        replace(one, speculative=replace(one.speculative, answers=short)), 0.3, lambda slot, window: window > 1 and slot == window - 1
    )
    assert logprobs.judge(off).names == "reported log-probabilities of bonus tokens"


def test_few_small_offsets_are_too_many_on_exact_servers():
    """One token in twenty by .2 nats: no noise, and no jump where servers are not exact."""

    def off(place, value):
        return value - 0.2 * (place % 20 == 7)

    one = reporting(answers=24)
    one = replace(
        one,
        speculative=replace(
            one.speculative,
            answers=tuple(
                replace(answer, choices=(replace(answer.choice, logprobs=tuple(off(i, v) for i, v in enumerate(answer.choice.logprobs))),))
                for answer in one.speculative.answers
            ),
        ),
    )
    assert logprobs.judge(one).outcome is Outcome.PASS
    assert logprobs.judge(replace(one, capabilities=SINGLE)).outcome is Outcome.FAIL


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("noise, own", [(0.0, 0.04), (0.03, 0.09)])
def test_no_place_of_the_step_is_red_on_a_correct_server(noise, own):
    runs = [logprobs.judge(reporting(noise=noise, own=own, seed=seed)) for seed in range(20)]
    assert [verdict.headline for verdict in runs if verdict.outcome is Outcome.FAIL] == []


def test_one_wild_token_is_proof_where_the_run_has_shown_that_its_servers_do_not_jump():
    one = reporting()
    off = replace(one, speculative=wild(one.speculative, 1.6))
    assert logprobs.judge(off).outcome is Outcome.PASS, "half precision: an expert may have flipped"
    verdict = logprobs.judge(replace(off, capabilities=SINGLE))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.figures["tokens_far_off"] == 1
    jumping = replace(off, baseline=wild(one.baseline, 0.2), capabilities=SINGLE)
    assert logprobs.judge(jumping).outcome is Outcome.PASS, "one of the baseline's is off by more than single precision explains"


def test_a_mark_in_place_of_a_log_probability_is_no_jump():
    one = reporting(noise=0.05)
    assert logprobs.judge(replace(one, speculative=wild(one.speculative, 1.6))).outcome is Outcome.PASS
    assert logprobs.judge(replace(one, speculative=wild(one.speculative, 9999.0))).outcome is Outcome.FAIL


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_many_wild_tokens_fail_and_as_many_of_the_baselines_excuse_them(noise):
    def off(place, value):
        return value - 1.6 if place % 12 == 5 else value

    one = reporting(noise=noise, answers=24, wrong=off)
    verdict = logprobs.judge(one)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "reported log-probabilities or verifier numerics")
    baseline = tuple(
        replace(a, choices=(replace(a.choice, logprobs=tuple(off(i, v) for i, v in enumerate(a.choice.logprobs))),))
        for a in one.baseline.answers
    )
    assert logprobs.judge(replace(one, baseline=replace(one.baseline, answers=baseline))).outcome is Outcome.PASS


def test_values_of_the_position_before_are_found_at_any_noise():
    """Stale values: at every third token that of the one before."""
    for noise in (0.03, 0.14):
        one = reporting(noise=noise, answers=24)
        said = []
        for answer in one.speculative.answers:
            values = answer.choice.logprobs
            stale = tuple(values[i - 1] if i % 3 == 2 else value for i, value in enumerate(values))
            said.append(replace(answer, choices=(replace(answer.choice, logprobs=stale),)))
        assert logprobs.judge(replace(one, speculative=replace(one.speculative, answers=tuple(said)))).outcome is Outcome.FAIL


@pytest.mark.parametrize("values, why", [
    (None, "no log-probabilities"),
    ((-0.1,), "1 log-probabilities of 48 tokens"),
    ((0.5,) * 48, "0.5 is no log-probability"),
])  # fmt: skip
def test_asked_for_and_not_there_fails(values, why):
    one = reporting(answers=8)
    first, *others = one.speculative.answers
    bare = replace(first, choices=(replace(first.choice, logprobs=values),))
    verdict = logprobs.judge(replace(one, speculative=replace(one.speculative, answers=(bare, *others))))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "log-probabilities not reported")
    assert why in verdict.headline


def test_without_the_baselines_nothing_can_be_judged():
    one = reporting(answers=4)
    silent = [replace(answer, choices=(replace(answer.choice, logprobs=None),)) for answer in one.baseline.answers]
    mute = replace(one.baseline, answers=tuple(silent))
    verdict = logprobs.judge(replace(one, baseline=mute, control=None))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.endswith("no log-probabilities")
    assert logprobs.judge(replace(one, scores={"v": one.scores["v"]})).outcome is Outcome.INVALID


def test_too_few_tokens_are_inconclusive():
    verdict = logprobs.judge(reporting(answers=2))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.settle.endswith(" more such tokens")


def test_a_server_that_does_not_speculate_is_not_passed():
    one = reporting()
    assert logprobs.judge(replace(one, speculative=replace(one.speculative, counters=SpecCounters()))).outcome is Outcome.NOT_SPECULATING


def test_a_server_that_rejects_nothing_reports_rightly_all_the_same():
    one = reporting()
    eager = SpecCounters(drafts=60, draft_tokens=180, accepted_tokens=180)
    assert logprobs.judge(replace(one, speculative=replace(one.speculative, counters=eager))).outcome is Outcome.PASS


def test_the_control_is_held_against_the_first_boot():
    assert logprobs.judge(reporting(noise=0.03).as_control()).outcome is Outcome.PASS
    one = reporting(noise=0.03)
    loud = reporting(noise=0.3, seed=2)
    assert logprobs.judge(
        replace(one, control=loud.control, scores=loud.scores | {"baseline": one.scores["baseline"]}).as_control()
    ).outcome is (Outcome.FAIL)


@pytest.mark.parametrize("raw, outcome", [(False, Outcome.PASS), (True, Outcome.FAIL)])
def test_log_probabilities_after_temperature_are_held_against_the_distribution_after_it(raw, outcome):
    one = reporting(answers=16, temperature=0.7)
    asked = tuple(replace(request, body={**request.body, "temperature": 0.7}) for request in one.workload.requests)
    plain = reporting(answers=16)
    known = {"v": Capabilities(vocabulary=toy_speculation.VOCABULARY, raw_logprobs=raw), "baseline": Capabilities(raw_logprobs=raw)}
    mixed = replace(
        one,
        workload=replace(one.workload, requests=asked),
        capabilities=known,
        baseline=plain.baseline if raw else one.baseline,
        control=plain.control if raw else one.control,
    )
    assert logprobs.judge(mixed).outcome is outcome


def test_what_the_variant_reports_does_not_decide_what_it_is_held_against():
    """A variant that reports another distribution than the baseline looks processed to the capability probe; it is wrong all the same."""
    plain, cooled = reporting(answers=16), reporting(answers=16, temperature=0.7)
    asked = tuple(replace(request, body={**request.body, "temperature": 0.7}) for request in plain.workload.requests)
    known = {"v": Capabilities(raw_logprobs=False), "baseline": Capabilities(raw_logprobs=True)}
    mixed = replace(
        plain,
        workload=replace(plain.workload, requests=asked),
        capabilities=known,
        speculative=cooled.speculative,
        scores={**plain.scores, "v": cooled.scores["v"]},
    )
    assert logprobs.judge(mixed).outcome is Outcome.FAIL


def test_tokens_that_the_scores_do_not_tell_are_left_out():
    one = reporting(answers=16)
    dumb = tuple(
        replace(
            score, positions=tuple(replace(p, logprob=float("nan") if p.token_id not in p.top_ids else p.logprob) for p in score.positions)
        )
        for score in one.scores["v"]
    )
    verdict = logprobs.judge(replace(one, scores={**one.scores, "v": dumb}))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["tokens"] < 768


def test_unknown_windows_are_no_hindrance():
    one = reporting(own=0.3, noise=0.03)
    hidden = tuple(
        Answer(
            request_id=answer.request_id,
            status=200,
            prompt_token_ids=answer.prompt_token_ids,
            choices=(Choice(token_ids=answer.choice.token_ids, logprobs=answer.choice.logprobs, finish_reason="stop"),),
        )
        for answer in one.speculative.answers
    )
    verdict = logprobs.judge(replace(one, speculative=replace(one.speculative, answers=hidden)))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.short[2].endswith("windows unknown")
