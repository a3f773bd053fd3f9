"""The old baseline's tokens under the new baseline's scores: wrong ones at temperature 0, another distribution, other defaults.

And the new baseline's sampled tokens under the old one's scores.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import baseline_change
from pytest_specdec.judge.baseline_change import BaselineRelation, ChangeKind
from pytest_specdec.judge.dated_prompts import MOST_IDS, classify
from pytest_specdec.judge.old_tokens import examine, examine_new
from pytest_specdec.model.captured import Captured
from pytest_specdec.model.pair import OLD_BASELINE, DraftKind
from pytest_specdec.model.transcript import Answer, Choice, Position, Score, Transcript
from pytest_specdec.model.workload import Family, Request, Route, Workload
from tests.judge.captured_values import a_pair
from tests.judge.captured_values import calibration as draws
from tests.judge.test_baseline_change import EXACT, normal, record

VOCABULARY, LENGTH = 30, 64
MASKED = np.arange(VOCABULARY) >= VOCABULARY - 4
NEAR_TIE = 0.05
MORNING, EVENING, NEXT_DAY = (f"2026-11-{moment}:00+00:00" for moment in ("27T08:00", "27T20:00", "28T08:00"))
BODIES = {
    "greedy": {"temperature": 0.0, "max_tokens": LENGTH},
    "sampled": {"temperature": 1.0, "max_tokens": LENGTH},
    "default": {"max_tokens": LENGTH},
    "nucleus": {"temperature": 1.0, "top_p": 0.8, "max_tokens": LENGTH},
}


def truncate(logits, top_p):
    """Leave the most probable tokens that hold ``top_p`` together."""
    lines = np.exp(logits - logits.max(axis=1, keepdims=True))
    order = np.argsort(-lines, axis=1)
    ranked = np.take_along_axis(lines / lines.sum(axis=1, keepdims=True), order, axis=1)
    cut = np.take_along_axis(ranked.cumsum(axis=1) - ranked >= top_p, np.argsort(order, axis=1), axis=1)
    return np.where(cut, -np.inf, logits)


def emit(rng, logits, temperature):
    """Draw one token after each prefix; a prefix is its place, so that both servers have the same ones."""
    if not temperature:
        return logits.argmax(axis=1)
    return (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)


def positions(tokens, logits):
    lines = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    order = np.argsort(-lines, axis=1)
    return tuple(
        Position(token_id=int(token), logprob=float(line[token]), top_ids=tuple(map(int, ids)), top_logprobs=tuple(map(float, line[ids])))
        for token, line, ids in zip(tokens, lines, order, strict=True)
    )


def mask(logits, leak):
    """Leave the share ``leak`` of the mass to the last tokens of the vocabulary."""
    rest = np.log(np.exp(np.where(MASKED, -np.inf, logits)).sum(axis=1, keepdims=True))
    return np.where(MASKED, rest + (math.log(leak / (1.0 - leak) / MASKED.sum()) if leak else -30.0), logits)


def scored_by_the_old_baseline(**fields):
    """The same with the roles exchanged: the old server scores both."""
    return scored_by_the_new_baseline(by_old=True, **fields)


def scored_by_the_new_baseline(
    seed=1, *, kind="sampled", requests=16, old=1.0, new=1.0, numerics=0.0, wrong=(), began="then", leak=None, by_old=False
):
    """One workload: the old server draws at temperature ``old``, the new one at ``new`` and with other numerics, and scores both.

    With ``leak`` the old server excludes some tokens, and the new one draws them at that share.
    """
    rng = np.random.default_rng(seed)
    bodies = [Request(id=f"{kind}-{i}", route=Route.COMPLETIONS, body={"prompt": f"p{i}", **BODIES[kind]}) for i in range(requests)]
    workload = Workload(name=kind, version=1, requests=tuple(bodies), top_tokens=VOCABULARY)
    answers, scores = {"baseline": [], OLD_BASELINE: []}, {"baseline": [], OLD_BASELINE: []}
    for number, request in enumerate(bodies):
        model = rng.normal(0.0, 2.0, (LENGTH, VOCABULARY))
        scorer = model + numerics * rng.normal(size=model.shape)
        model, scorer = (model, scorer) if leak is None else (mask(model, 0.0), mask(scorer, leak))
        judged, own = (model, old), (scorer, new)
        if by_old:
            scorer, judged, own = model, own, judged
        for arm, (logits, temperature) in ((OLD_BASELINE, judged), ("baseline", own)):
            tokens = emit(rng, truncate(logits, BODIES[kind].get("top_p", 1.1)), 0.0 if kind == "greedy" else temperature)
            if arm == OLD_BASELINE and number in wrong:
                tokens[50] = model[50].argmin()
            choice = Choice(token_ids=tuple(map(int, tokens)), finish_reason="length")
            answers[arm].append(Answer(request_id=request.id, status=200, prompt_token_ids=(number,), choices=(choice,)))
            scores[arm].append(Score(request_id=request.id, arm=arm, under="baseline", positions=positions(tokens, scorer)))
    arms = {
        arm: Transcript(arm=arm, boot=0, workload=kind, digest=workload.digest, answers=tuple(given), started_at=began)
        for arm, given in answers.items()
    }
    return Captured(
        pair=a_pair(DraftKind.UNKNOWN),
        workload=workload,
        family=Family.SAMPLING,
        baseline=arms["baseline"],
        control=arms["baseline"],
        speculative=arms[OLD_BASELINE],
        scores={arm: tuple(given) for arm, given in scores.items()},
        calibration=draws(400),
    )


def examined(*workloads, near_tie=NEAR_TIE):
    return examine(workloads, near_tie=near_tie)


def test_without_old_answers_there_is_nothing_to_say():
    assert examined() is None


@pytest.mark.parametrize("numerics, near_tie", [(0.0, NEAR_TIE), (0.03, 0.6)])
def test_the_same_model_shows_nothing_under_other_numerics(numerics, near_tie):
    kinds = [scored_by_the_new_baseline(kind=kind, requests=6, numerics=numerics) for kind in ("greedy", "sampled", "default")]
    old = examined(*kinds, near_tie=near_tie)
    assert (old.answers, old.tokens, old.likeliest, old.unscored) == (18, 18 * LENGTH, 6, 0)
    assert (old.wrong, old.wrong_answers, old.draws_otherwise, old.has_other_defaults) == ((), 0, False, False)


def test_other_numerics_move_the_boundary_of_a_nucleus_and_pay_no_bet():
    assert examined(scored_by_the_new_baseline(kind="nucleus", numerics=0.15)).bets[0].log10_evidence < 1.0


def test_a_wrong_token_counts_after_the_first_difference_too():
    captured = scored_by_the_new_baseline(kind="greedy", wrong=(3,))
    first = captured.scores["baseline"][3].positions
    old = examined(captured)
    (wrong,) = old.wrong
    assert (wrong.request_id, wrong.index, wrong.new_id, old.wrong_answers) == ("greedy-3", 50, first[50].token_id, 1)
    assert wrong.gap > NEAR_TIE
    assert not examined(captured, near_tie=0.0).wrong, "nothing is wrong where the noise is unknown"


def test_sampled_tokens_of_another_temperature_are_another_distribution():
    old = examined(scored_by_the_new_baseline(old=0.6))
    (bet,) = old.bets
    assert (old.draws_otherwise, bet.workload, bet.tokens) == (True, "sampled", 16 * LENGTH)
    assert bet.log10_evidence > 10.0
    assert bet.nats_per_token > 0.02


def test_what_the_new_baselines_own_tokens_show_too_is_no_change():
    """Both servers draw at 0.6 where 1 is asked for: the scores do not say what is drawn, and the upgrade changed nothing."""
    old = examined(scored_by_the_new_baseline(old=0.6, new=0.6))
    assert old.bets[0].log10_evidence > 10.0
    assert not old.draws_otherwise


@pytest.mark.parametrize("numerics", [0.0, 0.03])
def test_tokens_that_the_old_build_excluded_show_in_the_new_tokens_alone(numerics):
    fields = {"leak": 0.02, "numerics": numerics}
    old, new = examined(scored_by_the_new_baseline(**fields)), examine_new([scored_by_the_old_baseline(**fields)], is_noise_known=True)
    assert (old.draws_otherwise, new.draws_otherwise) == (False, True)
    assert old.bets[0].log10_evidence < 2.0
    assert new.bets[0].log10_evidence > 10.0
    assert (new.answers, new.tokens, new.unscored) == (16, 16 * LENGTH, 0)


def test_new_tokens_of_a_healthy_upgrade_show_nothing_and_none_are_bet_on_under_unknown_noise():
    for fields in ({"numerics": 0.03, "requests": 8}, {"old": 0.6, "new": 0.6, "requests": 8}):
        assert not examine_new([scored_by_the_old_baseline(**fields)], is_noise_known=True).draws_otherwise
    assert examine_new([scored_by_the_old_baseline(leak=0.02)], is_noise_known=False).bets == ()


def test_only_new_tokens_at_a_stated_temperature_are_bet_on():
    others = [scored_by_the_old_baseline(kind=kind, requests=4) for kind in ("greedy", "default")]
    new = examine_new([*others, scored_by_the_old_baseline(requests=3)], is_noise_known=True)
    assert (new.answers, [bet.workload for bet in new.bets]) == (3, ["sampled"])
    assert examine_new([], is_noise_known=True) is None


def test_new_tokens_are_a_change_of_draws_in_the_run_that_has_both_engines():
    rng = np.random.default_rng(2)
    old, new = record(rng), replace(record(rng), new_answers=(scored_by_the_old_baseline(leak=0.02),))
    change = baseline_change.compare(replace(old, began={"sampled": "then"}), new)
    assert (change.relation, change.kinds, change.is_worse) == (BaselineRelation.CHANGED, (ChangeKind.DRAWS,), True)
    elsewhere = baseline_change.compare(replace(old, began={"sampled": "later"}), new)
    assert (elsewhere.relation, elsewhere.new) == (BaselineRelation.SAME, None)


def test_requests_without_a_temperature_show_default_parameters_and_nothing_else():
    old = examined(scored_by_the_new_baseline(kind="default", requests=5, old=1.0, new=0.6))
    assert (old.has_other_defaults, old.bets) == (True, ())
    assert (old.defaults.old.temperature, old.defaults.new.temperature) == (pytest.approx(1.0, abs=0.11), pytest.approx(0.6, abs=0.11))
    same = examined(scored_by_the_new_baseline(kind="default", requests=5, old=0.6, new=0.6))
    assert not same.has_other_defaults


def test_other_defaults_of_one_route_show_beside_a_route_that_keeps_its_own():
    """As SGLang has it: chats take the checkpoint's parameters, completions none. No one choice of parameters fits both routes."""
    completions = scored_by_the_new_baseline(kind="default", requests=8, seed=1)
    chats = scored_by_the_new_baseline(kind="default", requests=4, old=0.7, new=0.15)
    asked = tuple(replace(request, route=Route.CHAT) for request in chats.workload.requests)
    old = examined(completions, replace(chats, workload=replace(chats.workload, requests=asked)))
    assert old.has_other_defaults
    assert (old.defaults.old_tokens, old.defaults.new_tokens) == (4 * LENGTH, 4 * LENGTH), "of that route alone"
    assert old.defaults.new.temperature == pytest.approx(0.15, abs=0.06)
    unchanged = scored_by_the_new_baseline(kind="default", requests=4, seed=2)
    assert not examined(completions, replace(unchanged, workload=replace(unchanged.workload, requests=asked))).has_other_defaults


def test_answers_without_scores_are_counted_and_left_out():
    captured = scored_by_the_new_baseline()
    scores = {**captured.scores, OLD_BASELINE: captured.scores[OLD_BASELINE][2:]}
    old = examined(replace(captured, scores=scores))
    assert (old.answers, old.unscored) == (14, 2)


def test_a_position_without_any_log_probability_is_no_score():
    """As where a server's null was stored: the comparison stands at the session's end, and an error there would cost its verdicts."""
    captured = scored_by_the_new_baseline(kind="greedy")
    first, *others = captured.scores[OLD_BASELINE]
    blank = replace(first.positions[3], logprob=math.nan, top_ids=(), top_logprobs=())
    spoilt = replace(first, positions=(*first.positions[:3], blank, *first.positions[4:]))
    old = examined(replace(captured, scores={**captured.scores, OLD_BASELINE: (spoilt, *others)}))
    assert (old.answers, old.unscored) == (15, 1)


def changed(rng, *old_answers, began="then", **fields):
    old, new = record(rng), record(rng, **fields)
    return baseline_change.compare(replace(old, began=dict.fromkeys(BODIES, began)), replace(new, old_answers=old_answers))


@pytest.mark.examples(2)
@pytest.mark.parametrize("fields, kind", [
    ({"kind": "greedy", "wrong": (3,)}, ChangeKind.ANSWERS),
    ({"old": 0.6}, ChangeKind.DRAWS),
    ({"kind": "default", "requests": 5, "new": 0.6}, ChangeKind.DEFAULTS),
])  # fmt: skip
def test_each_is_a_change_that_is_worse(fields, kind):
    change = changed(np.random.default_rng(2), scored_by_the_new_baseline(**fields))
    assert (change.relation, change.kinds, change.is_worse) == (BaselineRelation.CHANGED, (kind,), True)


def test_scores_of_another_old_run_are_not_compared():
    change = changed(np.random.default_rng(2), scored_by_the_new_baseline(old=0.6), began="later")
    assert (change.relation, change.old) == (BaselineRelation.SAME, None)


def test_after_a_broad_shift_other_draws_are_no_kind_of_their_own():
    weights = np.random.default_rng(5).normal(0.0, 0.3, (40, 15, 8))
    change = changed(np.random.default_rng(2), scored_by_the_new_baseline(old=0.6), change=lambda logits: logits + weights)
    assert change.kinds[0] is ChangeKind.WEIGHTS
    assert ChangeKind.DRAWS not in change.kinds
    assert change.possible_kinds == (ChangeKind.DRAWS,)
    assert change.old.draws_otherwise


def test_after_a_broad_shift_other_defaults_may_only_follow_from_it():
    """Tokens of a model that is another one altogether are those of a higher temperature, under its scores."""
    weights = np.random.default_rng(5).normal(0.0, 3.0, (40, 15, 8))
    captured = scored_by_the_new_baseline(kind="default", requests=5, numerics=3.0)
    change = changed(np.random.default_rng(2), captured, change=lambda logits: logits + weights)
    assert (change.kinds[0], ChangeKind.DEFAULTS in change.kinds) == (ChangeKind.MODEL, False)
    assert change.possible_kinds == (ChangeKind.DEFAULTS,)


def test_old_tokens_decide_what_controls_and_dated_prompts_left_open():
    rng = np.random.default_rng(2)
    old = record(rng, decode=normal(0.01), prefill=EXACT)
    new = replace(old, prompts={**old.prompts, "p3": (4,)})
    assert baseline_change.compare(old, new).relation is BaselineRelation.UNKNOWN
    scored = replace(new, old_answers=(scored_by_the_new_baseline(kind="greedy"),))
    assert baseline_change.compare(replace(old, began={"greedy": "then"}), scored).relation is BaselineRelation.SAME


def test_a_date_in_the_template_does_not_explain_other_ids_of_one_day():
    """Such as another token for the end of a turn, one id of each prompt: old tokens do not show it, after the old prompts."""
    rng = np.random.default_rng(2)
    old = record(rng, decode=normal(0.01), prefill=EXACT)
    new = replace(old, prompts={**old.prompts, "p3": (4,)}, old_answers=(scored_by_the_new_baseline(kind="greedy", began=MORNING),))
    of_one_day = baseline_change.compare(replace(old, began={"greedy": MORNING}), replace(new, began={"greedy": EVENING}))
    assert (of_one_day.relation, of_one_day.dated_prompts) == (BaselineRelation.UNKNOWN, 1)
    assert "one day, in UTC" in of_one_day.why, "a template writes the day of the server's own zone"
    of_two = baseline_change.compare(replace(old, began={"greedy": MORNING}), replace(new, began={"greedy": NEXT_DAY}))
    assert of_two.relation is BaselineRelation.SAME


HEADER = (101, 102, 103)
"""Ids that a chat template writes before its date."""


def every(chats=20, *, first=0, before=(), middle=(), after=()):
    """Prompts of chats, each with two ids of its own between what the template writes; those from ``first`` on."""
    return {f"p{number}": (*before, 200 + number, *middle, 300 + number, *after) for number in range(first, chats)}


@pytest.mark.parametrize("before, after, sizes", [
    pytest.param(every(before=(*HEADER, 5)), every(before=(*HEADER, 6)), (0, 20, 0), id="a date in every header"),
    pytest.param(every(before=(*HEADER, 5, 9, 4)), every(before=(*HEADER, 6, 9, 5)), (0, 20, 0), id="today and yesterday"),
    pytest.param(
        every(before=(*HEADER, 5)) | {"p3": (*HEADER, 90, 5, 203)}, every(before=(*HEADER, 6)) | {"p3": (*HEADER, 90, 6, 203)},
        (0, 20, 0), id="the same date after another header",
    ),
    pytest.param(
        every(before=(*HEADER, 5)) | {"p3": (*HEADER, 5, 7)}, every(before=(*HEADER, 6)) | {"p3": (*HEADER, 6, 8)},
        (0, 20, 1), id="a chat with more than the date",
    ),
    pytest.param(every(before=(*HEADER, 5)), every(before=(*HEADER, 6)) | {"p3": (*HEADER, 5, 203, 303)}, (0, 19, 19), id="one unchanged"),
    pytest.param(every(middle=(7,)), every(middle=(8,)), (0, 20, 20), id="the end of one turn"),
    pytest.param(every(middle=(7,)), every(5, middle=(8,)) | every(first=5, middle=(7,)), (0, 5, 5), id="the end of some turns"),
    pytest.param(every(middle=(7,)), every(middle=(7,)) | {"p3": (203, 8, 303)}, (0, 1, 1), id="the end of one chat's turn"),
    pytest.param(every(middle=(7,), after=(7,)), every(middle=(8,), after=(8,)), (20, 0, 0), id="the end of every turn"),
    pytest.param(
        every(middle=(7, 11, 7), after=(7,)), every(5, middle=(8, 11, 8), after=(8,)) | every(first=5, middle=(7, 11, 7), after=(7,)),
        (5, 0, 0), id="the end of every turn of some chats",
    ),
    pytest.param(every(middle=(7,)), every(middle=(8, 8)), (20, 0, 0), id="another length"),
])  # fmt: skip
def test_a_date_stands_in_the_header_and_another_token_wherever_the_template_has_it(before, after, sizes):
    changed = classify({prompt: (before[prompt], after[prompt]) for prompt in before}, before)
    assert tuple(map(len, (changed.other, changed.few, changed.undated))) == sizes


def spell(text):
    """Ids of a tokenizer that writes each character by itself."""
    return tuple(1000 + ord(character) for character in text)


@pytest.mark.parametrize("before, after, sizes", [
    ("2026-12-28", "2027-01-05", (0, 20, 0)),
    ("30 Nov 2026", "01 Dec 2026", (0, 20, 0)),
    ("2026-11-27 after 2026-11-26", "2026-12-04 after 2026-12-03", (0, 20, 0)),
    ("9 Dec 2026", "16 Dec 2026", (0, 20, 0)),
    ("9-30", "10-7", (0, 20, 0)),
    ("1 Dec 2026", "14 Dec 2026", (20, 0, 0)),
    ("", "S", (20, 0, 0)),
    ("a b c d e f g", "A B C D E F G", (20, 0, 0)),
    ("You are a model.", "You know it all.", (20, 0, 0)),
    ("Be brief.", "Be kind and brief.", (20, 0, 0)),
])  # fmt: skip
def test_a_date_may_take_several_ids_or_one_more_and_never_ids_where_none_were(before, after, sizes):
    """An id that is put in may as well be a second beginning of the prompt. Ids do not tell other texts as short as a date from dates."""
    old, new = (every(before=(*HEADER, *spell(text), 9)) for text in (before, after))
    assert tuple(map(len, _sizes(classify({prompt: (old[prompt], new[prompt]) for prompt in old}, old)))) == sizes
    of_one_day = classify({prompt: (old[prompt], new[prompt]) for prompt in old}, old, is_one_day=True)
    places = len(before) == len(after) and sum(map(str.__ne__, before, after))
    assert len(of_one_day.other) == (0 if 0 < places <= MOST_IDS else 20), "as the template alone may have it"


def test_a_long_date_that_no_other_chat_confirms_is_no_change_where_the_header_is_shared():
    """Three headers, of which none is that of half of all chats."""
    old, new = (
        {f"p{number}": (*HEADER, number // 4, *spell(date), 9, 200 + number) for number in range(12)}
        for date in ("2026-12-28", "2027-01-05")
    )
    assert tuple(map(len, _sizes(classify({prompt: (old[prompt], new[prompt]) for prompt in old}, old)))) == (0, 12, 12)
    alone = {prompt: ids for prompt, ids in old.items() if prompt in {"p0", "p4", "p8"}}
    assert len(classify({prompt: (ids, new[prompt]) for prompt, ids in alone.items()}, alone).other) == 3


def _sizes(changed):
    return changed.other, changed.few, changed.undated


@pytest.mark.parametrize("before, after, relation", [
    (every(before=(*HEADER, 5)), every(before=(*HEADER, 6)), BaselineRelation.SAME),
    (every(middle=(7,)), every(5, middle=(8,)) | every(first=5, middle=(7,)), BaselineRelation.UNKNOWN),
    (every(middle=(7,), after=(7,)), every(5, middle=(8,), after=(8,)) | every(first=5, middle=(7,), after=(7,)), BaselineRelation.CHANGED),
])  # fmt: skip
def test_of_two_days_only_a_date_in_the_header_explains_other_ids(before, after, relation):
    """Old tokens are scored after the old prompts: they do not show what another template does."""
    old = record(np.random.default_rng(2), decode=normal(0.01), prefill=EXACT)
    scored = (scored_by_the_new_baseline(kind="greedy", requests=6, began=MORNING),)
    new = replace(old, prompts=after, old_answers=scored, began={"greedy": NEXT_DAY})
    change = baseline_change.compare(replace(old, prompts=before, began={"greedy": MORNING}), new)
    assert (change.relation, change.kinds) == (relation, (ChangeKind.CHAT_TEMPLATE,) * (relation is BaselineRelation.CHANGED))


@pytest.mark.parametrize("dates, days, undated", [
    ({6}, 1, False),
    ({6, 7}, 1, True),
    ({6, 7}, 2, False),
    ({5, 6}, 1, True),
    ({5, 6}, 2, False),
    ({6, 7, 8}, 2, True),
    ({5, 6, 7}, 2, True),
])  # fmt: skip
def test_a_run_over_midnight_writes_a_date_more(dates, days, undated):
    """The old date is 5. In the new run chats with one header have these dates, some of them maybe still 5."""
    numbers, after = range(9), sorted(dates)
    shared = {f"p{number}": ((*HEADER, 5, number), (*HEADER, after[number * len(after) // 9], number)) for number in numbers}
    assert bool(classify(shared, shared, days=days).undated) is undated
    few = set(classify(shared, shared, days=days).few)
    assert set(classify(shared, (), days=days).other) >= few, "no template dates a prompt that is no chat"


@pytest.mark.statistics
def test_healthy_pairs_raise_no_alarm():
    """Forty pairs of runs, and twenty scored by the old baseline, exact and with noise of .03 nats: none alarms at one in a thousand."""
    found = [
        examined(scored_by_the_new_baseline(seed, numerics=0.03 * (seed % 2)), scored_by_the_new_baseline(seed, kind="default"))
        for seed in range(40)
    ]
    assert not any(old.draws_otherwise or old.has_other_defaults for old in found)
    new = [examine_new([scored_by_the_old_baseline(seed=seed, numerics=0.03 * (seed % 2))], is_noise_known=True) for seed in range(20)]
    assert not any(each.draws_otherwise for each in new)
