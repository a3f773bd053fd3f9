"""Two runs' baselines: the same within noise, or changed, and how."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge.baseline_answers import find_difference
from pytest_specdec.judge.baseline_change import BaselineRelation, ChangeKind, compare
from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer, Prefix
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.transcript import Choice, Position

TOKENS = 8
PROMPTS, LENGTH = 20, 15


def normal(sd):
    return lambda rng, shape: rng.normal(0.0, 1.0, shape) * sd


EXACT = normal(0.0)


def heavy(sd):
    return lambda rng, shape: rng.standard_t(3, shape) * sd


def grid(step, share):
    """A kernel that moves a share of the logits by one step."""
    return lambda rng, shape: step * rng.choice([-1.0, 0.0, 1.0], shape, p=[share / 2, 1.0 - share, share / 2])


def logprobs(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def positions(tokens, logits):
    lines = logprobs(logits)
    order = np.argsort(-lines, axis=-1)
    return tuple(
        Position(
            token_id=int(token),
            logprob=float(line[token]),
            top_ids=tuple(map(int, ids)),
            top_logprobs=tuple(map(float, line[ids])),
        )
        for token, line, ids in zip(tokens, lines, order, strict=True)
    )


def record(rng, *, decode=EXACT, prefill=EXACT, change=lambda logits: logits, finish="length"):
    """What a run stores: the model's logits are the same in every record, what its kernels add to them is drawn.

    Answers at temperature 0 take the best token of the decode kernel and are scored by the prefill kernel. Where one differs from the
    model's own best token it ends, since all that follows has another prefix.
    """
    model = np.random.default_rng(7).normal(0.0, 2.0, (2 * PROMPTS, LENGTH, TOKENS))
    logits = change(model)
    reported, scored = logits + decode(rng, logits.shape), logits + prefill(rng, logits.shape)
    best, own = reported.argmax(axis=-1), model.argmax(axis=-1)
    prefixes, greedy = {}, {}
    for prompt in range(PROMPTS):
        other = np.flatnonzero(best[prompt] != own[prompt])
        ids = best[prompt][: other[0] + 1] if len(other) else best[prompt]
        scores = positions(ids, scored[prompt][: len(ids)])
        prefixes |= {f"{prompt}/{index}".encode(): Prefix(prompt=f"p{prompt}", position=each) for index, each in enumerate(scores)}
        choice = Choice(token_ids=tuple(map(int, ids)), finish_reason=finish if len(ids) == LENGTH else "length")
        greedy[f"p{prompt}"] = GreedyAnswer(request_id=f"p{prompt}", prompt=f"p{prompt}", choice=choice, positions=scores, control=choice)
    draws = tuple(
        tuple((float(line[token]), each) for token, line, each in zip(best[prompt], logprobs(reported[prompt]), row, strict=True))
        for prompt in range(PROMPTS, 2 * PROMPTS)
        for row in [positions(best[prompt], scored[prompt])]
    )
    prompts = {f"p{prompt}": (prompt,) for prompt in range(PROMPTS)}
    return BaselineRecord(
        prompts=prompts, chats=frozenset(prompts), prefixes=prefixes, greedy=greedy, draws=ReportedDraws(answers=draws), boots=2
    )


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_a_run_is_the_same_as_itself(rng):
    change = compare(*[record(rng)] * 2)
    assert (change.relation, change.kinds, change.beyond) == (BaselineRelation.SAME, (), 0)
    assert (change.prompts, change.answers, change.shift.high) == (PROMPTS, PROMPTS, 0.0)


@pytest.mark.parametrize("sd, kind", [
    (0.03, ChangeKind.NUMERICS),
    (0.3, ChangeKind.WEIGHTS),
    (3.0, ChangeKind.MODEL),
])  # fmt: skip
def test_a_broad_shift_is_named_by_its_size(rng, sd, kind):
    """Against a server whose numbers are exact, weights that are off by a fixed amount."""
    weights = np.random.default_rng(5).normal(0.0, sd, (2 * PROMPTS, LENGTH, TOKENS))
    change = compare(record(rng), record(rng, change=lambda logits: logits + weights))
    assert (change.relation, change.kinds[0]) == (BaselineRelation.CHANGED, kind)
    assert change.shift.low < sd < change.shift.high


def test_noisier_kernels_are_a_change_of_numerics_and_noise_beyond_kernels_is_worse(rng):
    """Exact before: what the new run measured as its noise explains the distance, and is itself what changed."""
    change = compare(record(rng), record(rng, decode=normal(0.03), prefill=normal(0.03)))
    assert (change.kinds, change.is_worse) == ((ChangeKind.NUMERICS,), False)
    assert 0.015 < change.shift.low < change.shift.high < change.allowed
    weights = np.random.default_rng(5).normal(0.0, 0.09, (2 * PROMPTS, LENGTH, TOKENS))
    both = compare(record(rng), record(rng, decode=normal(0.01), prefill=normal(0.01), change=lambda logits: logits + weights))
    assert both.kinds.count(ChangeKind.NUMERICS) == 1, "shifted and noisier: one kind"
    cache = compare(record(rng, decode=normal(0.02), prefill=normal(0.02)), record(rng, decode=normal(0.3), prefill=normal(0.02)))
    assert (ChangeKind.NOISE in cache.kinds, cache.is_worse) == (True, True)


def test_prompts_with_other_ids_name_the_template_or_the_tokenizer(rng):
    old = record(rng)
    new = replace(old, prompts={**old.prompts, "p3": (3, 3)})
    change = compare(old, new)
    assert (change.relation, change.kinds, change.other_prompts) == (BaselineRelation.CHANGED, (ChangeKind.CHAT_TEMPLATE,), ("p3",))
    assert change.answers == PROMPTS - 1, "the answer after another prompt is not compared"
    dated = compare(replace(old, prompts={**old.prompts, "p3": (1, 2, 3)}), replace(old, prompts={**old.prompts, "p3": (1, 2, 4)}))
    assert (dated.relation, dated.dated_prompts, dated.other_prompts) == (BaselineRelation.UNKNOWN, 1, ())
    assert "as where the chat template writes the date" in dated.why
    assert compare(replace(old, chats=frozenset()), new).kinds == (ChangeKind.TOKENIZER,)


def test_answers_that_end_elsewhere_are_a_change(rng):
    old = record(rng, finish="stop")
    ends = {name: replace(answer, choice=replace(answer.choice, finish_reason="length")) for name, answer in old.greedy.items()}
    change = compare(old, replace(old, greedy={**old.greedy, "p1": ends["p1"]}))
    assert (change.relation, change.kinds, change.other_ends) == (BaselineRelation.CHANGED, (ChangeKind.ENDS,), ("p1",))
    assert change.alike == PROMPTS - 1
    shorter = replace(old.greedy["p2"], choice=replace(old.greedy["p2"].choice, token_ids=old.greedy["p2"].choice.token_ids[:-3]))
    assert compare(old, replace(old, greedy={**old.greedy, "p2": shorter})).other_ends == ("p2",)


def wrong_at(prompts):
    """A change of single tokens: the least probable one becomes the best."""

    def change(logits):
        logits = logits.copy()
        for prompt in prompts:
            logits[prompt, 4, logits[prompt, 4].argmin()] = logits[prompt, 4].max() + 3.0
        return logits

    return change


def test_one_wrong_token_is_proof_between_exact_servers_and_none_between_noisy_ones(rng):
    change = compare(record(rng), record(rng, change=wrong_at([2])))
    assert (change.kinds, change.beyond, change.differences[0].request_id) == ((ChangeKind.ANSWERS,), 1, "p2")
    assert (change.differences[0].index, change.differences[0].gap > 3.0) == (4, True)
    noise = {"decode": normal(0.02), "prefill": normal(0.02)}
    assert compare(record(rng, **noise), record(rng, change=wrong_at([2]), **noise)).relation is BaselineRelation.SAME
    many = compare(record(rng, **noise), record(rng, change=wrong_at(range(12)), **noise))
    assert (many.kinds, many.beyond >= 10) == ((ChangeKind.ANSWERS,), True)


def test_differences_of_the_controls_excuse_those_of_the_runs(rng):
    """Servers that jump: their own boots differ as often as the two runs do."""
    noise = {"decode": normal(0.02), "prefill": normal(0.02)}
    old, new = record(rng, **noise), record(rng, change=wrong_at(range(12)), **noise)
    with_jumps = {name: replace(answer, control=new.greedy[name].choice) for name, answer in old.greedy.items()}
    assert ChangeKind.ANSWERS not in compare(replace(old, greedy=with_jumps), new).kinds


def test_a_small_shift_hides_no_wrong_answers(rng):
    weights = np.random.default_rng(5).normal(0.0, 0.04, (2 * PROMPTS, LENGTH, TOKENS))
    change = compare(record(rng), record(rng, change=lambda logits: wrong_at(range(PROMPTS))(logits + weights)))
    assert (change.kinds, change.is_worse) == ((ChangeKind.NUMERICS, ChangeKind.ANSWERS), True)


def test_a_shift_after_some_prompts_is_none_of_the_median(rng):
    """Nine prompts of twenty, as where a window is wrong: the median over prompts stays."""
    far = np.random.default_rng(5).normal(0.0, 3.0, (9, LENGTH, TOKENS))

    def change_nine(logits):
        logits = logits.copy()
        logits[:9] += far
        return logits

    noise = {"decode": normal(0.02), "prefill": normal(0.02)}
    old, new = record(rng, **noise), record(rng, change=change_nine, **noise)
    change = compare(replace(old, greedy={}), replace(new, greedy={}))
    assert (change.relation, change.kinds) == (BaselineRelation.CHANGED, (ChangeKind.SOME_PROMPTS,))
    assert change.shift.nats < change.allowed


def test_what_was_not_seen_is_unknown(rng):
    old = record(rng)
    few = dict(list(old.prefixes.items())[: 3 * LENGTH])
    assert compare(replace(old, prefixes=few), old).why == "too few prompts were scored in both runs"
    assert "did not measure its noise" in compare(replace(old, draws=ReportedDraws()), old).why
    assert compare(replace(old, prefixes={}), replace(old, prompts={"p0": (9, 9)})).relation is BaselineRelation.CHANGED
    four = dict(list(old.greedy.items())[:4])
    assert compare(replace(old, greedy=four), old).why == "too few answers at temperature 0 are in both runs: 4"
    alone = {name: replace(answer, control=None) for name, answer in old.greedy.items()}
    noise = {"decode": normal(0.02), "prefill": normal(0.02)}
    noisy = [replace(record(rng, **noise), greedy=alone) for _ in range(2)]
    assert compare(*noisy).why.startswith("the controls' answers are missing"), "no number of other answers would be too many"


def test_chats_that_the_new_run_did_not_score_are_not_the_same(rng):
    """As where a new server no longer tells the prompt ids of a chat: what its template gives is not seen."""
    old = record(rng)
    chats = frozenset({"c0", "c1"})
    whole = replace(old, chats=chats, prompts={**old.prompts, "c0": (90,), "c1": (91,)})
    assert compare(whole, whole).relation is BaselineRelation.SAME
    unseen = compare(whole, replace(whole, chats=frozenset(), prompts=old.prompts))
    assert (unseen.relation, unseen.why) == (BaselineRelation.UNKNOWN, "no chat's prompt was scored in both runs")
    fewer = replace(whole, prompts={**old.prompts, "c0": (90,)})
    assert compare(whole, fewer).relation is BaselineRelation.SAME, "as at a lower depth"


def test_without_noise_a_difference_proves_nothing(rng):
    noise = {"decode": normal(0.03), "prefill": normal(0.03)}
    unmeasured = [replace(record(rng, **noise), draws=ReportedDraws()) for _ in range(2)]
    assert compare(*unmeasured).relation is BaselineRelation.UNKNOWN


def test_a_list_of_one_token_says_nothing_of_another():
    position = Position(token_id=1, logprob=-0.1, top_ids=(1,), top_logprobs=(-0.1,))
    answer = GreedyAnswer(request_id="r", prompt="p", choice=Choice(token_ids=(1,)), positions=(position,), control=None)
    assert find_difference(answer, Choice(token_ids=(2,))) is None


@pytest.mark.nightly
@pytest.mark.parametrize("decode, prefill", [
    pytest.param(normal(0.03), normal(0.03), marks=pytest.mark.statistics),
    pytest.param(normal(0.0), normal(0.03), marks=pytest.mark.statistics),
    pytest.param(normal(0.03), normal(0.0), marks=pytest.mark.statistics(quick=True)),
    pytest.param(heavy(0.03), heavy(0.03), marks=pytest.mark.statistics),
    pytest.param(normal(0.0), heavy(0.03), marks=pytest.mark.statistics),
    pytest.param(normal(0.0), grid(0.02, 0.35), marks=pytest.mark.statistics),
], ids=["alike", "prefill alone", "decode alone", "heavy tails", "heavy prefill", "prefill on a grid"])  # fmt: skip
def test_runs_of_one_server_are_the_same_whichever_kernel_is_noisy(decode, prefill):
    """No change in 60 pairs of runs; at the level of 1e-3 of each test none is expected."""
    rng = np.random.default_rng(3)
    relations = [
        compare(record(rng, decode=decode, prefill=prefill), record(rng, decode=decode, prefill=prefill)).relation for _ in range(60)
    ]
    assert set(relations) == {BaselineRelation.SAME}


def test_a_run_too_noisy_for_a_kernel_excuses_no_more_than_a_kernel(rng):
    wild = {"decode": normal(0.5), "prefill": normal(0.5)}
    assert compare(record(rng, **wild), record(rng, **wild)).allowed == pytest.approx(0.2, rel=0.01)


def shorten(answer, tokens, limit):
    """The answer without its last ``tokens``, as if it had been sent with ``limit``."""
    return replace(answer, choice=replace(answer.choice, token_ids=answer.choice.token_ids[:-tokens]), limit=limit)


def test_an_answer_cut_by_another_limit_ends_nowhere_else(rng):
    """A run raises the token limits of a workload if they cut most of its documents off."""
    old = record(rng, finish="length")
    old = replace(old, greedy={name: replace(answer, limit=LENGTH) for name, answer in old.greedy.items()})
    cut = shorten(old.greedy["p2"], 3, LENGTH - 3)
    assert compare(old, replace(old, greedy={**old.greedy, "p2": cut})).other_ends == ()


@pytest.mark.parametrize("tokens, limit", [(5, LENGTH), (1, LENGTH - 1), (5, None)])
def test_answers_cut_elsewhere_under_the_same_limit_end_elsewhere(rng, tokens, limit):
    """Short of it, beyond it, or under the server's own."""
    long = record(rng, **NOISE)
    long = replace(long, greedy={name: replace(answer, limit=limit) for name, answer in long.greedy.items()})
    short = replace(long, greedy={name: shorten(answer, tokens, limit) for name, answer in long.greedy.items()})
    for old, new in ((long, short), (short, long)):
        change = compare(old, new)
        assert (change.kinds, len(change.other_ends)) == ((ChangeKind.ENDS,), PROMPTS)
    assert compare(short, short).kinds == ()


def test_an_answer_that_the_new_run_lacks_is_not_the_same(rng):
    """Refused, failed, or nothing at all after a prompt that is then scored nowhere."""
    old = record(rng, **NOISE)
    fewer = {name: answer for name, answer in old.greedy.items() if name != "p1"}
    refused = replace(old, greedy=fewer, unanswered=frozenset({"p1"}))
    assert (compare(old, refused).relation, compare(old, refused).lost) == (BaselineRelation.UNKNOWN, ("p1",))
    assert compare(old, refused).why == "answers of the old run at temperature 0 that the new one refused, failed or left empty: 1"
    assert compare(refused, refused).relation is BaselineRelation.SAME, "in both"
    assert compare(refused, old).relation is BaselineRelation.SAME
    assert compare(old, replace(old, greedy=fewer)).relation is BaselineRelation.SAME, "not asked, as at a lower depth"
    nothing = replace(old.greedy["p1"], choice=Choice(finish_reason="stop"), positions=())
    empty = replace(old, greedy={**old.greedy, "p1": nothing})
    exact = record(rng)
    assert compare(exact, replace(exact, greedy={**exact.greedy, "p1": nothing})).kinds == (ChangeKind.ENDS,)
    unscored = replace(empty, prompts={prompt: ids for prompt, ids in old.prompts.items() if prompt != "p1"})
    assert compare(old, unscored).lost == ("p1",)
    assert compare(unscored, unscored).relation is BaselineRelation.SAME


NOISE = {"decode": normal(0.02), "prefill": normal(0.02)}


def shifted(sd, *, prompts=slice(None), first=0):
    """A change of all logits of some prompts from a position on."""
    far = np.random.default_rng(5).normal(0.0, sd, (2 * PROMPTS, LENGTH, TOKENS))

    def change(logits):
        logits = logits.copy()
        logits[prompts, first:] += far[prompts, first:]
        return logits

    return change


def with_controls(old, new, names):
    """The record ``old``, whose control gave some answers of ``new``."""
    return replace(old, greedy={**old.greedy, **{name: replace(old.greedy[name], control=new.greedy[name].choice) for name in names}})


def test_a_shift_late_in_every_answer_is_none_of_the_median(rng):
    """As of a cache that goes stale: the last third of all positions, whose best tokens hardly change."""
    change = compare(record(rng, **NOISE), record(rng, change=shifted(0.3, first=10), **NOISE))
    assert (change.kinds, change.beyond, change.shift.low < change.allowed) == ((ChangeKind.SOME_POSITIONS,), 0, True)


def test_one_shifted_prompt_is_proof_between_exact_servers_and_a_doubt_between_noisy_ones(rng):
    """The best tokens stay, so that no answer at temperature 0 shows it."""
    change = compare(record(rng), record(rng, change=shifted(0.01, prompts=[3])))
    assert (change.kinds, change.alike) == ((ChangeKind.SOME_PROMPTS,), PROMPTS)
    old, new = record(rng, **NOISE), record(rng, change=shifted(3.0, prompts=[3]), **NOISE)
    assert compare(old, new).why.startswith("prompts with other distributions, by far more than noise explains: 1")


def test_tokens_that_the_new_run_no_longer_lists_are_shifts(rng):
    """Lists of two tokens: where another model puts the old token third, its log-probability is that of the second at most."""

    def cut(position):
        return replace(position, top_ids=position.top_ids[:2], top_logprobs=position.top_logprobs[:2])

    def unlist(position, odd):
        ids = tuple((token + 1) % TOKENS for token in position.top_ids) if odd else position.top_ids
        return replace(position, token_id=ids[0], top_ids=ids, logprob=position.top_logprobs[0])

    old = record(rng)
    old = replace(old, prefixes={key: replace(one, position=cut(one.position)) for key, one in old.prefixes.items()})
    new = {key: replace(one, position=unlist(one.position, number % 3)) for number, (key, one) in enumerate(old.prefixes.items())}
    change = compare(old, replace(old, prefixes=new))
    assert (change.kinds, change.shift.positions > 200) == ((ChangeKind.WEIGHTS,), True)


def test_an_exact_server_that_did_not_repeat_itself_proves_nothing_by_one_answer(rng):
    old, other = record(rng), record(rng, change=wrong_at(range(8)))
    new = replace(old, greedy={**old.greedy, "p7": replace(other.greedy["p7"], control=other.greedy["p7"].choice)})
    assert compare(old, new).kinds == (ChangeKind.ANSWERS,)
    assert compare(with_controls(old, other, ["p1", "p2"]), new).kinds == ()


def test_a_server_that_jumped_in_its_draws_is_not_exact(rng):
    """A rate of jumps that no median shows: one other answer is a jump as well."""
    old, new = record(rng), record(rng, change=wrong_at([2]))
    first, *rest = old.draws.answers
    draws = ReportedDraws(answers=(((first[0][0] - 1.0, first[0][1]), *first[1:]), *rest))
    assert compare(old, new).kinds == (ChangeKind.ANSWERS,)
    assert compare(replace(old, draws=draws), new).kinds == ()


def test_a_new_build_that_no_longer_repeats_its_answers_is_changed(rng):
    """Half of its answers are others in every boot, and would excuse all that differ from the old ones."""
    old, other = record(rng, **NOISE), record(rng, change=wrong_at(range(14)), **NOISE)
    change = compare(old, with_controls(old, other, [f"p{prompt}" for prompt in range(14)]))
    assert (change.kinds, change.is_worse) == ((ChangeKind.REPEATS,), True)


def test_answers_that_differ_unscored_are_not_the_same(rng):
    """The greedy answers' scores are missing; the prefixes come from another suite."""
    old, other = record(rng, **NOISE), record(rng, change=wrong_at(range(14)), **NOISE)
    unscored = replace(old, greedy={name: replace(answer, positions=()) for name, answer in old.greedy.items()})
    assert "no score tells by how much" in compare(unscored, replace(unscored, greedy=other.greedy)).why


def test_more_wrong_answers_than_chance_explains_are_not_the_same(rng):
    """Four of six at smoke depth, and none of twelve of the runs' own: Fisher's p is .005."""
    old, new = record(rng, **NOISE), record(rng, change=wrong_at(range(4)), **NOISE)
    old, new = (replace(each, greedy={f"p{prompt}": each.greedy[f"p{prompt}"] for prompt in range(6)}) for each in (old, new))
    assert compare(old, new).why == "answers at temperature 0 differ by more than noise: 4, which is no proof and hardly chance"


def test_near_ties_of_the_controls_hide_no_beyond(rng):
    """Six answers, as at smoke depth: the controls take other tokens in most of them, none by more than noise."""
    noise = {"decode": normal(0.1), "prefill": normal(0.05)}
    six = [f"p{prompt}" for prompt in range(6)]
    runs = [with_controls(record(rng, **noise), record(rng, **noise), six) for _ in range(2)]
    few = [replace(run, greedy={name: run.greedy[name] for name in six}) for run in runs]
    others = [answer.control.token_ids != answer.choice.token_ids for run in few for answer in run.greedy.values()]
    assert sum(others) > 3
    assert compare(*few).relation is BaselineRelation.SAME


def test_a_kernel_of_a_tenth_of_a_nat_is_numerics(rng):
    """What a run measures is the noise of two kernels, the larger by the root of 2."""
    change = compare(record(rng, decode=normal(0.02), prefill=normal(0.02)), record(rng, decode=normal(0.1), prefill=normal(0.1)))
    assert (change.kinds, change.is_worse) == ((ChangeKind.NUMERICS,), False)


def test_a_change_hides_no_reason_against_calling_the_rest_the_same(rng):
    """Other weights and all prompts with other ids: nothing after a shared prefix tells of the weights."""
    old = record(rng, **NOISE)
    other = record(rng, change=shifted(2.0), **NOISE)
    apart = {b"other" + key: prefix for key, prefix in other.prefixes.items()}
    new = replace(other, prompts={prompt: (1000, *ids) for prompt, ids in other.prompts.items()}, prefixes=apart)
    change = compare(old, new)
    assert (change.relation, change.kinds) == (BaselineRelation.CHANGED, (ChangeKind.CHAT_TEMPLATE,))
    assert change.why == "too few prompts were scored in both runs"
    noisier = compare(record(rng), replace(record(rng, decode=normal(0.03)), prompts={}, prefixes={}, greedy={}))
    assert (noisier.kinds, noisier.why) == ((ChangeKind.NUMERICS,), "no chat's prompt was scored in both runs"), "by its draws alone"


def test_a_change_explains_what_follows_from_it(rng):
    """A shift of numerics is no reason to doubt the numerics, nor one of all prompts a doubt about some of them."""
    for sd, kind in ((0.06, ChangeKind.NUMERICS), (0.3, ChangeKind.WEIGHTS), (3.0, ChangeKind.MODEL)):
        change = compare(record(rng), record(rng, change=shifted(sd)))
        assert (change.kinds[0], change.why) == (kind, ""), sd
    for kernel in (normal(0.03), normal(0.1)):
        assert compare(record(rng), record(rng, decode=kernel, prefill=kernel)).why == ""
    assert compare(record(rng), record(rng, change=wrong_at([2]))).why == ""
    old = record(rng, finish="stop")
    ends = {name: replace(answer, choice=replace(answer.choice, finish_reason="length")) for name, answer in old.greedy.items()}
    assert compare(old, replace(old, greedy={**old.greedy, "p1": ends["p1"]})).why == ""
    few = compare(record(rng, **NOISE), record(rng, change=shifted(0.3, first=10), **NOISE))
    assert (few.kinds, few.why) == ((ChangeKind.SOME_POSITIONS,), "")


def test_a_small_shift_of_all_prompts_hides_no_far_one(rng):
    def change(logits):
        return shifted(0.1, prompts=[3])(shifted(0.01)(logits))

    old, new = record(rng), record(rng, change=change)
    assert (compare(old, new).kinds, compare(old, new).why[:28]) == ((ChangeKind.NUMERICS,), "prompts with other distribut")
