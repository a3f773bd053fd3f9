"""Two runs' baselines: the same within noise, or changed, and how."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
        greedy[f"p{prompt}"] = GreedyAnswer(request_id=f"p{prompt}", choice=choice, positions=scores, control=choice)
    draws = tuple(
        tuple((float(line[token]), each) for token, line, each in zip(best[prompt], logprobs(reported[prompt]), row, strict=True))
        for prompt in range(PROMPTS, 2 * PROMPTS)
        for row in [positions(best[prompt], scored[prompt])]
    )
    prompts = {f"p{prompt}": (prompt,) for prompt in range(PROMPTS)}
    return BaselineRecord(prompts=prompts, chats=frozenset(prompts), prefixes=prefixes, greedy=greedy, draws=ReportedDraws(answers=draws))


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


def test_what_both_runs_noise_explains_is_no_change(rng):
    """Exact before, noisy now: the new run measured its noise, and the old one's tokens lie within it."""
    change = compare(record(rng), record(rng, decode=normal(0.03), prefill=normal(0.03)))
    assert change.relation is BaselineRelation.SAME
    assert change.shift.low > 0.015, "though the shift is there, and printed"


def test_prompts_with_other_ids_name_the_template_or_the_tokenizer(rng):
    old = record(rng)
    new = replace(old, prompts={**old.prompts, "p3": (3, 3)})
    change = compare(old, new)
    assert (change.relation, change.kinds, change.other_prompts) == (BaselineRelation.CHANGED, (ChangeKind.CHAT_TEMPLATE,), ("p3",))
    assert change.answers == 0, "answers after other prompts are not compared"
    assert compare(replace(old, chats=frozenset()), new).kinds == (ChangeKind.TOKENIZER,)


def test_answers_that_end_elsewhere_are_a_change(rng):
    old = record(rng, finish="stop")
    ends = {name: replace(answer, choice=replace(answer.choice, finish_reason="length")) for name, answer in old.greedy.items()}
    change = compare(old, replace(old, greedy={**old.greedy, "p1": ends["p1"]}))
    assert (change.relation, change.kinds, change.other_ends) == (BaselineRelation.CHANGED, (ChangeKind.ENDS,), ("p1",))
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
    assert compare(replace(old, greedy=with_jumps), new).relation is BaselineRelation.SAME


def test_too_little_in_common_is_unknown(rng):
    old = record(rng)
    few = dict(list(old.prefixes.items())[: 3 * LENGTH])
    assert compare(replace(old, prefixes=few), old).relation is BaselineRelation.UNKNOWN
    assert compare(replace(old, draws=ReportedDraws()), old).relation is BaselineRelation.UNKNOWN
    assert compare(replace(old, prefixes={}), replace(old, prompts={"p0": (9,)})).relation is BaselineRelation.CHANGED


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("decode, prefill", [
    (normal(0.03), normal(0.03)),
    (normal(0.0), normal(0.03)),
    (normal(0.03), normal(0.0)),
    (heavy(0.03), heavy(0.03)),
], ids=["alike", "prefill alone", "decode alone", "heavy tails"])  # fmt: skip
def test_runs_of_one_server_are_the_same_whichever_kernel_is_noisy(decode, prefill):
    """No change in 60 pairs of runs; at the level of 1e-3 of each test none is expected."""
    rng = np.random.default_rng(3)
    relations = [
        compare(record(rng, decode=decode, prefill=prefill), record(rng, decode=decode, prefill=prefill)).relation for _ in range(60)
    ]
    assert set(relations) == {BaselineRelation.SAME}
