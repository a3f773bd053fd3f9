"""Bursts: simulated streams of servers that draft and of servers that do not, under load and behind proxies."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_specdec.model.transcript import Stream
from pytest_specdec.stats.bursts import LEVEL, _above_zero_p, compare_streams

PROMPTS, TOKENS, STEP_S, READ_S = 12, 48, 5e-3, 5e-5


def windows(random, accepted, k=3):
    """Token index at which each verify step ends, with drafts accepted at this rate."""
    ends, at = [], 0
    while at < TOKENS:
        at += 1 + next((i for i in range(k) if random.random() >= accepted), k) if at else 1
        ends.append(min(at, TOKENS))
    return ends


def emitted(random, ends):
    """Seconds at which tokens leave the server: those of one step together, steps of uneven length."""
    steps_s = np.cumsum(STEP_S * random.gamma(20.0, 1 / 20.0, len(ends)))
    return steps_s[np.searchsorted(ends, np.arange(1, TOKENS + 1))]


def stalled(random, at_s, share):
    """The client reads nothing for a while, now and then: ``share`` of the time, a few steps at once."""
    begins_s = np.cumsum(random.exponential(4 * STEP_S * (1 / share - 1), 200)) if share else np.empty(0)
    for begin_s, length_s in zip(begins_s, random.exponential(4 * STEP_S, len(begins_s)), strict=True):
        at_s = np.where((at_s >= begin_s) & (at_s < begin_s + length_s), begin_s + length_s, at_s)
    return at_s


def buffered(at_s, tokens):
    """A proxy that sends on every so many tokens."""
    return at_s[np.minimum((np.arange(TOKENS) // tokens + 1) * tokens, TOKENS) - 1]


def flushed(at_s, every_s):
    """A proxy that sends on what it has every so many seconds from the request on."""
    return np.ceil(at_s / every_s) * every_s


def read(prompt, at_s, text="x" * TOKENS):
    """What the client notes: one chunk after the other."""
    at_s = np.maximum.accumulate(at_s + READ_S * np.arange(TOKENS) / TOKENS)
    return Stream(prompt=prompt, text=text, ends=tuple(range(1, TOKENS + 1)), at_s=tuple(map(float, at_s)), tokens=TOKENS)


def streams(random, accepted=None, load=0.0, through=lambda at_s: at_s, rounds=2):
    """One arm's answers, every prompt so many times; ``accepted`` None drafts nothing."""
    steps = [list(range(1, TOKENS + 1)) if accepted is None else windows(random, accepted) for _ in range(PROMPTS)]
    return [read(prompt, stalled(random, through(emitted(random, ends)), load)) for _ in range(rounds) for prompt, ends in enumerate(steps)]


NOT_DRAFTING = {
    "quiet": ({}, {}),
    "the variant's machine was busy": ({"load": 0.4}, {}),
    "both were": ({"load": 0.3}, {"load": 0.3}),
    "the variant's was, and it was asked six times": ({"load": 0.6, "rounds": 6}, {"rounds": 2}),
    "a proxy sends eight tokens at a time": ({"through": lambda at_s: buffered(at_s, 8)},) * 2,
    "a proxy sends everything at once": ({"through": lambda at_s: buffered(at_s, TOKENS)},) * 2,
    "a proxy sends every 40 ms": ({"through": lambda at_s: flushed(at_s, 0.04)},) * 2,
}


def called_drafting(seeds, variant, baseline):
    found = (
        compare_streams(streams(np.random.default_rng((1, seed)), **variant), streams(np.random.default_rng((2, seed)), **baseline))
        for seed in seeds
    )
    return sum(one is not None and one.drafting for one in found)


@pytest.mark.examples(3)
@pytest.mark.parametrize("variant, baseline", NOT_DRAFTING.values(), ids=NOT_DRAFTING.keys())
def test_a_server_that_does_not_draft_is_not_called_drafting(variant, baseline):
    assert called_drafting(range(10), variant, baseline) == 0


@pytest.mark.statistics
@pytest.mark.parametrize("variant, baseline", NOT_DRAFTING.values(), ids=NOT_DRAFTING.keys())
def test_the_size_is_below_the_level_of_one_test(variant, baseline):
    """Of 500 at one in a thousand each, were the tests one, every other time a single one is expected; five come twice in 10,000."""
    assert called_drafting(range(500), variant, baseline) < 5
    assert LEVEL == 1e-3


@pytest.mark.examples(2)
@pytest.mark.parametrize("load", [0.0, 0.3])
@pytest.mark.parametrize("accepted", [0.3, 0.6, 0.9])
def test_three_draft_tokens_are_seen_at_any_usual_acceptance(accepted, load):
    assert called_drafting(range(10), {"accepted": accepted, "load": load}, {"load": load}) == 10


@pytest.mark.statistics
@pytest.mark.parametrize("accepted, least", [(0.1, 0.4), (0.2, 0.93), (0.6, 0.99)])
def test_the_power_of_the_probe(accepted, least):
    """Under load: 151, 290 and 300 of 300 were seen."""
    assert called_drafting(range(300), {"accepted": accepted, "load": 0.2}, {"load": 0.2}) >= 300 * least


def test_the_estimate_is_tokens_per_step():
    random = np.random.default_rng(5)
    steps = [windows(random, 0.6) for _ in range(PROMPTS)]
    drafted = [read(prompt, emitted(random, ends)) for _ in range(2) for prompt, ends in enumerate(steps)]
    found = compare_streams(drafted, streams(random))
    assert found.tokens_per_step == pytest.approx(PROMPTS * TOKENS / sum(map(len, steps)), rel=0.01)
    assert found.baseline_tokens_per_step == pytest.approx(1.0, abs=0.01)


def test_a_chunk_per_step_is_a_burst_too():
    """Servers that send what a step emitted as one chunk: fewer chunks than tokens, whenever they come."""
    random = np.random.default_rng(6)
    drafted = []
    for prompt in range(PROMPTS):
        ends = windows(random, 0.6)
        at_s = tuple(float(0.01 * (i + 1)) for i in range(len(ends)))
        drafted += [Stream(prompt=prompt, text="x" * TOKENS, ends=tuple(ends), at_s=at_s, tokens=TOKENS)] * 2
    assert compare_streams(drafted, streams(random)).drafting


@pytest.mark.parametrize("through", ["eight tokens", "everything", "40 ms"])
def test_a_proxy_before_both_leaves_drafting_unknown(through):
    arms = next(arms for name, arms in NOT_DRAFTING.items() if through in name)
    drafted = streams(np.random.default_rng(8), accepted=0.6, **arms[0])
    found = compare_streams(drafted, streams(np.random.default_rng(9), **arms[1]))
    assert found is None or (not found.known and not found.drafting)


def test_without_two_equal_answers_nothing_is_known():
    random = np.random.default_rng(7)
    plain = streams(random)
    assert compare_streams([], plain) is None
    assert compare_streams(plain, []) is None
    assert compare_streams(plain[:PROMPTS], plain) is None
    other = [read(prompt, emitted(random, range(1, TOKENS + 1)), text=f"{number:0{TOKENS}}") for number, prompt in enumerate([0, 0])]
    assert compare_streams(other, plain) is None


def test_equal_excesses_over_chance_are_no_certain_proof():
    """They have no spread: the sign test's p-value, not 0."""
    assert _above_zero_p([2.0, 2.0, 2.0]) == 0.125
    assert _above_zero_p([0.0, 0.0]) == 1.0
