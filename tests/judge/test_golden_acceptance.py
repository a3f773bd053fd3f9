"""The accepted length of a workload against the floor of a golden file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.acceptance.length import drafted_length
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.golden import GoldenFloor
from pytest_specdec.model.pair import Draft, DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import VARIANT, a_pair, a_workload, requests
from tests.judge.test_acceptance import drawn, seen

CONDITIONS = ("prompts", "temperature", "precision")


def golden(at_least, length=None):
    floor = GoldenFloor(
        pair=VARIANT,
        source="m1_mtp.yaml:3 m1.thinking_on.3",
        at_least=at_least,
        length=length or at_least / 0.95,
        origin="95% of the mean",
        uncompared=CONDITIONS,
    )
    return Gate(figure="acceptance_length", at_least=at_least, source=floor.source, pair=VARIANT, golden=floor)


def against(windows, at_least, *own, **fields):
    given = seen(windows, *own, **fields)
    return replace(given, gates=(*given.gates, golden(at_least)))


@pytest.mark.parametrize(
    "asked, outcome, words",
    [
        (1.5, Outcome.PASS, "gate met: acceptance length at least 1.5 (m1_mtp.yaml:3 m1.thinking_on.3)"),
        (3.9, Outcome.FAIL, "gate missed: acceptance length at least 3.9 (m1_mtp.yaml:3 m1.thinking_on.3)"),
        (2.5, Outcome.NOT_DECIDED, "the interval contains the gate"),
    ],
)
def test_a_golden_floor_is_decided_like_any_other_and_says_what_it_did_not_compare(asked, outcome, words):
    verdict = speed.judge(against(drawn(), asked))
    assert verdict.outcome is outcome
    assert words in verdict.headline
    assert verdict.headline.endswith("; not compared with the golden file: prompts, temperature, precision")
    assert any(line.startswith(f"golden: {asked / 0.95:.3g} there, 2.60 [") for line in verdict.short)
    assert any(line.startswith("to change    gates.acceptance_length") for line in verdict.short) is (outcome is Outcome.FAIL)
    assert bool(verdict.names) is (outcome is Outcome.FAIL)
    assert verdict.figures["golden_floor"] == asked


def test_a_drafter_that_loses_acceptance_goes_red_by_the_golden_floor_alone():
    healthy, lossy = drawn(prompts=60), drawn(prompts=60, mean=0.4)
    run = seen(healthy)
    mean = drafted_length(run.speculative, run.workload, a_pair().variant.draft).tokens
    assert speed.judge(against(healthy, 0.9 * mean)).outcome is Outcome.PASS
    verdict = speed.judge(against(lossy, 0.9 * mean))
    assert verdict.outcome is Outcome.FAIL
    assert speed.judge(seen(lossy)).outcome is Outcome.PASS


def by_lookup(windows, counted, at_least=2.0):
    """Answers of prompt lookup: steps of one token had no draft; ``counted`` says whether the server reports that."""
    draft = Draft(kind=DraftKind.NGRAM, tokens=3, ngram_min=2, ngram_max=4)
    pair = a_pair()
    given = against(windows, at_least, pair=replace(pair, variant=replace(pair.variant, draft=draft)))
    drafted = [(*(3 * (window > 1) for window in each), 0) if counted else None for each in windows]
    mine = [
        replace(answer, choices=(replace(answer.choice, drafted=counts),))
        for answer, counts in zip(given.speculative.answers, drafted, strict=True)
    ]
    return replace(given, speculative=replace(given.speculative, answers=tuple(mine)))


def test_steps_without_a_draft_count_for_no_golden_floor():
    """As the files count: here half of the steps have no draft, and those that have bring three tokens."""
    windows = [(3, 1) * 20 for _ in range(30)]
    verdict = speed.judge(by_lookup(windows, counted=True, at_least=2.5))
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.startswith("2.00 [2.00, 2.00] tokens per step, 3.00 per step with a draft; gate met")
    assert verdict.figures["acceptance_length_drafted"] == pytest.approx(3.0)


def test_a_server_that_does_not_report_its_drafts_leaves_the_floor_open():
    verdict = speed.judge(by_lookup(drawn(), counted=False))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "do not show which verify steps had a draft" in verdict.headline
    assert "their draft tokens" in verdict.settle


def test_sampled_answers_show_the_golden_length_and_are_not_gated():
    workload = a_workload(requests(20, temperature=1.0))
    verdict = speed.judge(against(drawn(), 3.9, workload=workload))
    assert verdict.outcome is Outcome.PASS
    assert "golden" not in verdict.headline
    assert any("shown, not gated: these answers are sampled" in line for line in verdict.evidence)


def test_drafting_that_depends_on_load_is_not_gated():
    pair = a_pair()
    loaded = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, depends_on_load=True)))
    workload = a_workload(requests(20), concurrency=24)
    verdict = speed.judge(against(drawn(), 3.9, pair=loaded, workload=workload))
    assert verdict.outcome is Outcome.PASS
    assert any("shown, not gated: drafting depends on load" in line for line in verdict.evidence)


def test_a_floor_of_the_config_and_a_golden_one_are_both_ruled():
    verdict = speed.judge(against(drawn(), 1.6, 1.5))
    assert verdict.outcome is Outcome.PASS
    assert "acceptance length at least 1.5 (tiny.yaml:9 gates.acceptance_length) and acceptance length at least 1.6 (m1" in verdict.headline
    assert speed.judge(against(drawn(), 1.6, 3.9)).outcome is Outcome.FAIL
    assert speed.judge(against(drawn(), 3.9, 1.6)).outcome is Outcome.FAIL


def test_answers_counted_by_the_server_need_no_windows():
    given = against(drawn(), 1.5)
    counters = SpecCounters(drafts=40, draft_tokens=120, accepted_tokens=60)
    hidden = tuple(replace(each, choices=(replace(each.choice, windows=None),), counters=counters) for each in given.speculative.answers)
    verdict = speed.judge(replace(given, speculative=replace(given.speculative, answers=hidden)))
    assert verdict.outcome is Outcome.PASS
    assert verdict.figures["acceptance_length_drafted"] == pytest.approx(2.5)


def test_a_pass_that_does_not_say_which_steps_had_a_draft_leaves_the_length_unknown():
    counted, uncounted = (by_lookup(drawn(), is_counted) for is_counted in (True, False))
    draft = counted.pair.variant.draft
    again = tuple(replace(answer, pass_index=1) for answer in uncounted.speculative.answers)
    both = replace(counted.speculative, answers=counted.speculative.answers + again)
    assert drafted_length(counted.speculative, counted.workload, draft) is not None
    assert drafted_length(both, counted.workload, draft) is None
