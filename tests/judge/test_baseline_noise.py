"""What one boot of a baseline keeps: it is no change of weights, and it is not nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge.baseline_change import BaselineRelation, ChangeKind, compare
from pytest_specdec.model.captured import ReportedDraws
from tests.judge.test_baseline_change import LENGTH, NOISE, PROMPTS, TOKENS, normal, record, wrong_at

SHAPE = (2 * PROMPTS, LENGTH, TOKENS)


def kept_by(boot, sd=0.1):
    """What a boot adds to each logit, at every call alike."""
    return np.random.default_rng([17, boot]).normal(0.0, sd, SHAPE)


def draws_between(rng, reporting, scoring, **kernels):
    """Plain draws that one boot of a build reported and another one scored."""
    scored, reported = (record(rng, change=lambda logits, boot=boot: logits + boot, **kernels).draws for boot in (scoring, reporting))
    pairs = zip(reported.answers, scored.answers, strict=True)
    return ReportedDraws(
        answers=tuple(
            tuple((mine, position) for (mine, of), (_, position) in zip(*pair, strict=True) if of.token_id == position.token_id)
            for pair in pairs
        )
    )


def one_boot(rng, boot, *, weights=0.0, sd=0.1, variants=1, kernels=NOISE, **changes):
    """A run of one boot of its baseline; each variant is one more boot of the build."""
    scoring = kept_by(boot, sd) + weights
    others = tuple(draws_between(rng, kept_by(100 * boot + number, sd) + weights, scoring, **kernels) for number in range(variants))
    return replace(record(rng, change=lambda logits: logits + scoring, **kernels), boots=1, variant_draws=others, **changes)


@pytest.fixture
def rng():
    return np.random.default_rng(13)


def test_what_boots_keep_is_no_change_of_weights_and_not_the_same(rng):
    """Two runs of one build, their boots .14 nats apart: the noise within their boots is .03, and their variants' boots differ as much."""
    change = compare(one_boot(rng, 1), one_boot(rng, 2))
    assert (change.relation, change.kinds) == (BaselineRelation.UNKNOWN, ())
    assert change.why.startswith("each run had one boot of its baseline, which may keep the 0.13 nats per logit between the runs")
    assert change.allowed < change.shift.low < change.shift.nats < change.boots_allow


def test_two_boots_of_each_baseline_tell_what_a_boot_keeps(rng):
    old, new = (
        replace(one_boot(rng, boot), draws=draws_between(rng, kept_by(10 * boot), kept_by(boot), **NOISE), boots=2, variant_draws=())
        for boot in (1, 2)
    )
    change = compare(old, new)
    assert (change.relation, change.allowed) == (BaselineRelation.SAME, change.boots_allow)


def test_a_run_with_two_boots_beside_one_without_leaves_the_other_unknown(rng):
    old = record(rng, **NOISE)
    assert compare(old, one_boot(rng, 2)).why.startswith("the new run had one boot of its baseline")
    assert compare(one_boot(rng, 2), old).why.startswith("the old run had one boot of its baseline")


@pytest.mark.parametrize("sd, kind", [(0.1, ChangeKind.NUMERICS), (0.3, ChangeKind.WEIGHTS), (3.0, ChangeKind.MODEL)])
def test_weights_are_named_where_the_variants_boots_keep_nothing(rng, sd, kind):
    weights = np.random.default_rng(5).normal(0.0, sd, SHAPE)
    noise = {"sd": 0.0, "kernels": {}}
    change = compare(one_boot(rng, 1, **noise), one_boot(rng, 2, weights=weights, **noise))
    assert (change.kinds[0], change.boots_allow) == (kind, pytest.approx(change.allowed, abs=1e-6))


def test_weights_beyond_what_boots_may_keep_are_named(rng):
    weights = np.random.default_rng(5).normal(0.0, 0.5, SHAPE)
    assert compare(one_boot(rng, 1), one_boot(rng, 2, weights=weights)).kinds[0] is ChangeKind.WEIGHTS


def test_without_a_variants_draws_a_boot_may_keep_what_half_precision_is_granted(rng):
    """A tenth of a nat per run at most; servers of single precision are granted a hundredth."""
    old, new = (one_boot(rng, boot, variants=0) for boot in (1, 2))
    change = compare(old, new)
    assert (change.kinds, change.boots_allow) == ((), pytest.approx(0.2, rel=0.01))
    single = compare(*(replace(run, single_precision=True) for run in (old, new)))
    assert (single.kinds, single.boots_allow) == ((ChangeKind.WEIGHTS,), single.allowed)


def test_the_least_noisy_variant_limits_what_boots_keep(rng):
    """One variant that reports wrong log-probabilities must not widen the limit so far that a change of weights passes."""
    weights = np.random.default_rng(5).normal(0.0, 0.15, SHAPE)
    old, new = one_boot(rng, 1, sd=0.0), one_boot(rng, 2, sd=0.0, weights=weights)
    wild = draws_between(rng, kept_by(9, 2.0), kept_by(1, 0.0), **NOISE)
    assert compare(old, replace(new, variant_draws=(wild,))).kinds == ()
    assert compare(old, replace(new, variant_draws=(wild, *new.variant_draws))).kinds[0] is ChangeKind.WEIGHTS


def test_a_shift_after_some_prompts_within_what_boots_keep_is_unknown(rng):
    """Boots that differ at half of the prompts alone: the median over prompts stays."""
    half = np.arange(2 * PROMPTS)[:, None, None] % 2
    runs = [one_boot(rng, boot) for boot in (1, 2)]
    old, new = (replace(one_boot(rng, 0, sd=0.0, weights=half * kept_by(boot)), variant_draws=runs[0].variant_draws) for boot in (1, 2))
    assert (compare(old, new).kinds, compare(old, new).relation) == ((), BaselineRelation.UNKNOWN)
    known = compare(*(replace(run, boots=2) for run in (old, new)))
    assert known.kinds in {(ChangeKind.SOME_PROMPTS,), (ChangeKind.SOME_POSITIONS,)}


def test_servers_whose_boots_differ_are_not_exact(rng):
    """Within one boot no number differs; one other answer of another boot is then no proof."""
    exact = one_boot(rng, 1, sd=0.0, kernels={})
    other = replace(record(rng, change=wrong_at([2])), boots=1, variant_draws=exact.variant_draws)
    assert compare(exact, other).kinds == (ChangeKind.ANSWERS,)
    kept = replace(other, variant_draws=(draws_between(rng, kept_by(3), kept_by(4)),))
    assert compare(exact, kept).kinds == ()
    assert compare(replace(exact, variant_draws=()), replace(other, variant_draws=())).kinds == (), "nothing tells what boots keep"
    single = [replace(run, variant_draws=(), single_precision=True) for run in (exact, other)]
    assert compare(*single).kinds == (ChangeKind.ANSWERS,)


def test_without_shared_prefixes_a_near_tie_allows_for_boots(rng):
    """Another token by 1 nat: six deviations of two boots' difference are 1.7 nats, those of the noise within a boot .6 or less."""

    def second_best(gap):
        def change(logits):
            logits, order = logits.copy(), np.argsort(logits, axis=-1)[:, 4]
            for prompt in range(PROMPTS):
                logits[prompt, 4, order[prompt, -2]] = logits[prompt, 4, order[prompt, -1]] - gap
            return logits

        return change

    old, new = (
        replace(record(rng, change=second_best(gap), **NOISE), prefixes={}, boots=1, variant_draws=one_boot(rng, 1).variant_draws)
        for gap in (1.0, -0.5)
    )
    assert (len(compare(old, new).differences) > 15, compare(old, new).beyond) == (True, 0)
    assert compare(*(replace(run, boots=2) for run in (old, new))).beyond > 15


def test_noise_between_two_boots_is_not_held_against_that_within_one(rng):
    """Boots of one build differ by .03 nats. At smoke depth one boot draws and scores, at standard depth another one scores."""
    kernels = {"decode": normal(0.005), "prefill": normal(0.005)}
    old = one_boot(rng, 1, sd=0.03, kernels=kernels)
    twice = draws_between(rng, kept_by(20, 0.03), kept_by(2, 0.03), **kernels)
    new = replace(one_boot(rng, 2, sd=0.03, kernels=kernels), draws=twice, boots=2, variant_draws=())
    assert ChangeKind.NUMERICS not in compare(old, new).kinds
    noisier = draws_between(rng, kept_by(20, 0.1), kept_by(2, 0.1), **kernels)
    assert compare(old, replace(new, draws=noisier)).kinds == (ChangeKind.NUMERICS,), "noisier than the old build's boots may be"
