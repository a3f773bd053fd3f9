"""A speedup taken apart: the identity, the step-cost ratio, and what a missed gate is put down to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.speed.step_cost import SlowCause, is_contradicted, step_cost, suspect
from pytest_specdec.judge.speed.timing import measure_speed
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import a_workload, captured, requests
from tests.judge.streams import PLAIN, counted, passes

FLOOR = Gate(figure="speedup", at_least=1.0, source="tiny.yaml", boot_sd=0.01)
GOOD, POOR, DEAD = (1, *(3, 2, 1) * 15), (1, *(2, 1, 1) * 22, 2), PLAIN
"""91 tokens each, of 2, 1.34 and one token per step."""
TEN_MS = 0.01


def seen(windows, *, step_s, gates=(FLOOR,), base=None, counters=None, **said):
    """A variant of three draft tokens beside a baseline whose steps take 10 ms."""
    plain = passes(PLAIN, step_s=TEN_MS) if base is None else base
    mine = passes(windows, step_s=step_s, **said)
    workload = a_workload(requests(1), passes=4, stream=True, timed=True)
    own = counted(passes(windows, step_s=step_s)) if counters is None else counters
    found = captured("speed", mine, plain, plain, workload=workload, gates=gates, counters=own, alpha=1e-3)
    return replace(found, control=replace(found.control, boot=2))


def cost_of(given):
    return step_cost(given, measure_speed(given))


def test_a_speedup_is_tokens_per_step_over_the_cost_of_a_step():
    found = cost_of(seen(GOOD, step_s=0.012))
    assert found.tokens_per_step == pytest.approx(2.0)
    assert found.speedup == pytest.approx(2.0 / 1.2, rel=1e-3)
    assert found.cost == pytest.approx(1.2, rel=1e-3)
    assert str(found) == "a verify step costs 1.20 plain steps (tokens per step / speedup): plausible"


@pytest.mark.parametrize("step_s, sense", [(0.0092, "implausible"), (0.0098, ": plausible"), (0.0195, ": plausible"), (0.021, "dear")])
def test_the_cost_of_a_step_has_limits_of_sense(step_s, sense):
    assert sense in str(cost_of(seen(GOOD, step_s=step_s)))


def test_the_identity_holds_where_client_and_server_saw_the_same():
    identity = cost_of(seen(GOOD, step_s=0.012)).identity
    assert identity.predicted == pytest.approx(identity.measured, rel=1e-3)
    assert not identity.broken
    assert str(identity).endswith("make 1.67x, measured 1.67x: consistent")


@pytest.mark.parametrize("share, broken", [(1.0, False), (0.96, False), (0.9, True), (0.67, True)])
def test_a_server_that_counts_fewer_tokens_than_it_sends_breaks_the_identity(share, broken):
    """Its speedup is read too low by as much; 4 % are within what the identity holds to."""
    given = seen(GOOD, step_s=0.012, usage_tokens=round(90 * share) + 1)
    identity = cost_of(given).identity
    assert identity.broken == broken
    assert identity.measured == pytest.approx(share * identity.predicted, rel=0.01)


def test_a_client_that_reads_the_baseline_in_bursts_breaks_the_identity():
    """What a saturated client shows: the time of the last token is right, and most gaps are next to none."""
    bursty = passes(PLAIN, step_s=TEN_MS, jitter=(0.0, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01))
    identity = cost_of(seen(GOOD, step_s=0.012, base=bursty)).identity
    assert identity.broken
    assert identity.predicted < 0.5 * identity.measured


def test_noise_between_passes_breaks_no_identity():
    """The client stops reading for a fifth of a second now and then, in some passes and not in others."""
    quiet, noisy = (passes(PLAIN, step_s=TEN_MS, jitter=late) for late in ((), (0.0,) * 40 + (0.2,)))
    mixed = [*quiet[:2], *noisy[2:]]
    assert not cost_of(seen(GOOD, step_s=0.012, base=mixed)).identity.broken


@pytest.mark.parametrize(
    "off, noise, low, high", [(0.0, 0.05, 0.0, 0.002), (0.05, 0.05, 0.015, 0.035), (0.05, 0.02, 0.015, 0.035), (0.2, 0.03, 0.95, 1.0)]
)
def test_the_rate_of_contradictions_is_that_of_the_docstring(off, noise, low, high):
    """Of 4,000 simulated runs of four passes; at exactly 5 % one in forty, below it hardly any, and 20 % is found."""
    runs = np.random.default_rng(7).normal(math.log1p(off), noise, size=(4_000, 4))
    assert low <= np.mean([is_contradicted(run) for run in runs.tolist()]) <= high


@pytest.mark.parametrize("dear", [2, 3, 5])
def test_steps_of_two_kinds_keep_the_identity(dear):
    """Prompt lookup: a step with a draft takes longer than one without, and the median is that of the one kind."""
    found = cost_of(seen(POOR, step_s=TEN_MS, dear=dear))
    assert found.identity.predicted == pytest.approx(found.identity.measured, rel=1e-3)
    assert found.cost == pytest.approx(1.0 + 1.0 / dear, rel=0.02)


def test_a_stream_that_shows_no_steps_has_no_identity():
    assert cost_of(seen(GOOD, step_s=0.012, per_chunk=3)).identity is None
    collected = passes(PLAIN, step_s=TEN_MS, per_chunk=4)
    assert cost_of(seen(GOOD, step_s=0.012, base=collected)).identity is None
    plain = seen(GOOD, step_s=0.012)
    single = replace(plain, speculative=replace(plain.speculative, answers=plain.speculative.answers[:1]))
    assert not cost_of(single).identity.broken, "one pass tells no noise"


def late_by(seconds):
    """Of every answer of the variant the last chunk is read so much later than it came."""
    return (*(0.0,) * (len(GOOD) - 1), seconds)


def test_a_broken_identity_stands_beside_a_gate_that_is_met():
    verdict = speed.judge(seen(GOOD, step_s=0.012, jitter=late_by(0.2)))
    assert verdict.outcome is Outcome.PASS
    assert any("make 1.67x, measured 1.22x: they contradict each other, so the client or the stream" in line for line in verdict.short)
    assert speed.judge(seen(GOOD, step_s=0.012)).figures["speedup_by_steps"] == pytest.approx(1.667, rel=1e-3)


CASES = [
    ("dead drafts", DEAD, 0.0115, FLOOR, SlowCause.DRAFTER),
    ("dead drafts by a slow drafter", DEAD, 0.08, FLOOR, SlowCause.DRAFTER),
    ("a slow verify", GOOD, 0.06, FLOOR, SlowCause.STEP),
    ("a poor drafter", POOR, 0.0125, replace(FLOOR, at_least=1.3), SlowCause.DRAFTER),
    ("a poor drafter and a dear step", POOR, 0.03, FLOOR, SlowCause.STEP),
    ("a good drafter and a gate out of reach", GOOD, 0.012, replace(FLOOR, at_least=3.0), SlowCause.DRAFTER),
]


@pytest.mark.parametrize("windows, step_s, gate, cause", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_missed_gate_is_put_down_to_what_lost_more(windows, step_s, gate, cause):
    given = seen(windows, step_s=step_s, gates=(gate,), counters=SpecCounters(drafts=1, draft_tokens=3, accepted_tokens=1))
    verdict = speed.judge(given)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.names == cause
    assert f"er: {cause}; gate missed: speedup at least {gate.at_least:g} (tiny.yaml)" in verdict.headline
    assert verdict.short[1].startswith(f"why: {cause}: ")


def stored(tokens, speedup, **fields):
    ratios = tuple(math.log(speedup) + each for each in (-0.01, 0.0, 0.02))
    return replace(FLOOR, log_ratios=ratios, log_tokens_per_step=(math.log(tokens),) * 3, **fields)


@pytest.mark.parametrize(
    "before, cause",
    [((2.0, 1.9), SlowCause.STEP), ((3.4, 1.45), SlowCause.DRAFTER)],
    ids=["the step got dearer", "the drafter got worse"],
)
def test_stored_runs_say_which_of_the_two_changed(before, cause):
    """The same figures, of 2 tokens for 2.3 plain steps: against what the pair was before, another part has lost."""
    given = seen(GOOD, step_s=0.023, gates=(stored(*before, at_least=1.2),))
    verdict = speed.judge(given)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, cause)
    assert f"in 3 stored runs: {before[0]:.2f} for {before[0] / before[1]:.2f}" in verdict.short[1]


def test_a_speedup_that_its_own_parts_contradict_is_put_down_to_the_client():
    verdict = speed.judge(seen(GOOD, step_s=0.012, jitter=late_by(1.0)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, SlowCause.CLIENT)
    assert "make 1.67x, measured 0.58x: they contradict each other" in verdict.short[1]
    slow = speed.judge(seen(GOOD, step_s=0.06, jitter=late_by(1.0)))
    assert slow.names == SlowCause.STEP, "what steps and gaps say would miss the gate as well"


def test_a_slowdown_against_stored_runs_is_put_down_to_the_client_too():
    """The floor is met; what is missed is the speed of the stored runs, which tokens per step and step gaps still make."""
    gate = stored(2.0, 1.67, at_least=1.0)
    verdict = speed.judge(seen(GOOD, step_s=0.012, jitter=late_by(0.2), gates=(gate,)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, SlowCause.CLIENT)
    assert "make 1.67x, measured 1.22x: they contradict each other" in verdict.short[1]


def test_tokens_that_cannot_make_the_speed_of_stored_runs_name_the_drafter():
    verdict = speed.judge(seen(GOOD, step_s=0.012, gates=(stored(3.4, 2.9, at_least=1.5),)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, SlowCause.DRAFTER)
    assert verdict.short[1] == f"why: {SlowCause.DRAFTER}: 2.00 tokens per step cannot make 2.76x, however cheap a step is"


def test_nothing_is_named_where_tokens_per_step_are_unknown():
    given = seen(GOOD, step_s=0.012)
    blind = replace(given, speculative=replace(given.speculative, answers=(), counters=None))
    assert step_cost(blind, measure_speed(given)) is None


def test_a_server_that_accepts_nothing_is_told_with_what_it_costs():
    nothing = SpecCounters(drafts=180, draft_tokens=540, accepted_tokens=0)
    verdict = speed.judge(seen(DEAD, step_s=0.0125, counters=nothing))
    assert (verdict.outcome, verdict.names) == (Outcome.NOT_SPECULATING, SlowCause.DRAFTER)
    assert verdict.headline.startswith("no draft token accepted in the judged requests")
    assert "0.80x" in verdict.headline
    assert verdict.headline.endswith("slower: the drafter brings too little")
    assert verdict.figures["step_cost"] == pytest.approx(1.25, rel=1e-2)


def test_a_missed_gate_on_acceptance_names_the_drafter():
    given = seen(GOOD, step_s=0.012)
    gate = Gate(figure="acceptance_length", at_least=3.0, source="tiny.yaml")
    many = [replace(a, request_id=f"chat-{i:02}", pass_index=0) for i, a in enumerate(given.speculative.answers * 6)]
    plain = [replace(a, request_id=f"chat-{i:02}", pass_index=0) for i, a in enumerate(given.baseline.answers * 6)]
    found = replace(
        given,
        gates=(replace(FLOOR, at_least=0.5), gate),
        speculative=replace(given.speculative, answers=tuple(many)),
        baseline=replace(given.baseline, answers=tuple(plain)),
        control=None,
    )
    verdict = speed.judge(found)
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, SlowCause.DRAFTER)


def test_a_suspect_is_told_with_its_figures():
    given = seen(POOR, step_s=0.03)
    found = suspect(given, cost_of(given), 1.0)
    assert (
        str(found) == "why: the step is too dear: 1.34 tokens per step for 3.00 plain steps each; usual with 3 draft tokens: 2.18 for 1.25"
    )
