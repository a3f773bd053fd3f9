"""Acceptance against a stored run: red in both tails by name, and said where nothing is compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.acceptance.stored import lengths
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.verdict import Finding, Outcome
from tests.judge.captured_values import a_pair, a_workload, answer, captured, requests

CHANCES = np.random.default_rng(2).beta(8.4, 3.6, 100)


def answers(power=1.0, *, prompts=100, steps=40, seed=3):
    """Answers whose windows come of chances that each prompt has for itself, raised to ``power``."""
    rng = np.random.default_rng(seed)
    drawn = [[int(1 + np.cumprod(rng.random(3) < chance**power).sum()) for _ in range(steps)] for chance in CHANCES[:prompts]]
    return [answer(f"chat-{i:02}", range(sum(each)), windows=(1, *each, 1)) for i, each in enumerate(drawn)]


def seen(mine, *gates, concurrency=24, pair=None, temperature=0, **fields):
    base = [replace(each, choices=(replace(each.choice, windows=None),)) for each in mine]
    workload = a_workload(requests(len(mine), temperature=temperature), concurrency=concurrency)
    return captured("speed", mine, base, base, workload=workload, gates=gates, pair=pair, alpha=5e-4, **fields)


def stored(given, **fields):
    run = seen(given)
    about = {"figure": "acceptance_length", "digest": run.workload.traffic_digest, "runs": 1, "source": "tiny/m.yaml:12"}
    return Gate(**{**about, "lengths": lengths(run.speculative, run.workload), **fields})


BEFORE = stored(answers(seed=1))


@pytest.mark.parametrize(
    "power, outcome, finding, change",
    [
        (1.0, Outcome.PASS, Finding.SAME, 0.0),
        (1.5, Outcome.FAIL, Finding.WORSE, -0.14),
        (0.6, Outcome.FAIL, Finding.MORE, 0.16),
        (1.12, Outcome.NOT_DECIDED, Finding.MAYBE_WORSE, -0.04),
        (0.87, Outcome.NOT_DECIDED, Finding.MAYBE_MORE, 0.04),
    ],
)
def test_both_tails_are_red_by_name(power, outcome, finding, change):
    verdict = speed.judge(seen(answers(power), BEFORE))
    assert verdict.outcome is outcome
    assert finding in verdict.headline
    assert verdict.finding is finding
    assert "over 100 prompts at temperature 0, 24 at once" in verdict.headline
    assert verdict.names == (finding if outcome is Outcome.FAIL else "")
    assert verdict.figures["acceptance_change"] == pytest.approx(change, abs=0.025)
    assert bool(verdict.settle) == (outcome is Outcome.NOT_DECIDED)
    assert bool(verdict.rules_out) == (outcome is Outcome.PASS)


def test_a_loss_of_eight_percent_is_red():
    verdicts = [speed.judge(seen(answers(1.29, seed=seed), BEFORE)) for seed in range(10, 30)]
    assert np.mean([verdict.figures["acceptance_change"] for verdict in verdicts]) == pytest.approx(-0.085, abs=0.012)
    assert sum(verdict.outcome is Outcome.FAIL for verdict in verdicts) >= 17


def test_the_evidence_has_stored_now_limits_margin_and_what_is_found():
    verdict = speed.judge(seen(answers(1.5), BEFORE))
    text = "\n".join(verdict.evidence)
    for part in (
        "against the stored run: -1",
        "95%",
        "allowed: 3%",
        "1 stored run (tiny/m.yaml:12)",
        "is found with probability 0.99",
        "furthest:",
    ):
        assert part in text
    assert any("--specdec-accept-regression" in line for line in verdict.short[:4])


def test_a_pass_says_what_it_would_have_found():
    verdict = speed.judge(seen(answers(), BEFORE))
    assert "100 prompts; an acceptance loss of " in verdict.rules_out
    assert 0.05 < verdict.figures["detectable_acceptance_loss"] < 0.1
    equal = speed.judge(seen(answers(seed=1), BEFORE))
    assert "a loss of 3.0% " in "\n".join(equal.evidence)


def test_no_loss_is_named_where_even_that_of_all_acceptance_may_be_missed():
    """Ten prompts of six steps vary too much: the loss would be one of more than a step can lose."""
    before = stored(answers(prompts=10, steps=6, seed=1))
    verdicts = [speed.judge(seen(answers(prompts=10, steps=6, seed=seed), before)) for seed in range(10, 40)]
    verdict = next(verdict for verdict in verdicts if verdict.finding is Finding.SAME)
    assert verdict.rules_out == "10 prompts; even a loss of all acceptance against the stored run may be missed"
    assert "no loss is found with probability 0.99, each tail at 0.00025" in verdict.evidence
    assert "detectable_acceptance_loss" not in verdict.figures
    open_ = next(verdict for verdict in verdicts if verdict.finding is Finding.MAYBE_WORSE)
    assert open_.settle == "more runs in the baseline file or a greater depth: here even a loss of all acceptance may be missed"


def test_lengths_under_another_load_or_of_other_requests_are_not_compared():
    reworded = {name: replace(each, request="other") for name, each in BEFORE.lengths.items()}
    for gate in (replace(BEFORE, digest="1" * 16), replace(BEFORE, lengths=reworded)):
        verdict = speed.judge(seen(answers(1.5), gate))
        assert verdict.outcome is Outcome.NOT_DECIDED
        assert verdict.headline.endswith("it answered other requests, or under another load (tiny/m.yaml:12)")
        assert "--specdec-update-baselines" in verdict.settle


def test_another_depth_is_compared_over_the_requests_that_it_shares():
    some = replace(BEFORE, lengths={name: BEFORE.lengths[name] for name in list(BEFORE.lengths)[:60]})
    verdict = speed.judge(seen(answers(1.5), some))
    assert (verdict.outcome, verdict.figures["shared_prompts"]) == (Outcome.FAIL, 60)
    few = speed.judge(seen(answers(1.5, prompts=30), BEFORE))
    assert few.figures["shared_prompts"] == 30


def test_another_draft_is_not_compared_and_another_release_is():
    swapped = replace(BEFORE, changes=("draft model a, 3 tokens -> model b, 3 tokens", "engine e 1 -> e 2"))
    verdict = speed.judge(seen(answers(1.5), swapped))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert "it had another draft model a, 3 tokens -> model b, 3 tokens (tiny" in verdict.headline
    upgraded = speed.judge(seen(answers(1.5), replace(BEFORE, changes=("engine e 1 -> e 2",))))
    assert upgraded.outcome is Outcome.FAIL
    assert "since the stored run: engine e 1 -> e 2" in upgraded.evidence


def test_too_few_shared_prompts_are_said():
    few = replace(BEFORE, lengths={name: BEFORE.lengths[name] for name in list(BEFORE.lengths)[:9]})
    verdict = speed.judge(seen(answers(1.5), few))
    assert (verdict.outcome, "9 are in both, 10 needed" in verdict.headline) == (Outcome.NOT_DECIDED, True)


@pytest.mark.parametrize(
    "draft, concurrency, outcome",
    [
        ({"depends_on_load": True}, 24, Outcome.PASS),
        ({"depends_on_load": True}, 1, Outcome.FAIL),
        ({"most_requests": 8}, 24, Outcome.PASS),
        ({"most_requests": 32}, 24, Outcome.FAIL),
    ],
)
def test_a_variant_that_drafts_by_load_is_reported_and_not_gated(draft, concurrency, outcome):
    pair = a_pair()
    pair = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, **draft)))
    before = replace(BEFORE, digest=seen(answers(1.5), concurrency=concurrency).workload.traffic_digest)
    verdict = speed.judge(seen(answers(1.5), before, pair=pair, concurrency=concurrency))
    assert verdict.outcome is outcome
    assert ("drafting depends on load: " in verdict.headline) == (outcome is Outcome.PASS)
    assert verdict.rules_out == ""


def test_requests_of_one_prompt_are_one_unit():
    def twice(power, seed):
        given = answers(power, seed=seed)
        run = seen([*given, *(replace(each, request_id=f"{each.request_id}#2") for each in answers(power, seed=seed + 1))])
        asked = (*requests(100), *(replace(each, id=f"{each.id}#2") for each in requests(100)))
        return replace(run, workload=replace(run.workload, requests=asked))

    before, now = twice(1.0, 1), twice(1.5, 3)
    gate = replace(BEFORE, lengths=lengths(before.speculative, before.workload))
    assert len(gate.lengths) == 200
    assert speed.judge(replace(now, gates=(gate,))).figures["shared_prompts"] == 100


def test_a_gate_of_the_config_shares_the_false_alarms():
    floor = Gate(figure="acceptance_length", at_least=1.5, source="tiny.yaml:9 gates.acceptance_length")
    verdict = speed.judge(seen(answers(), floor, BEFORE))
    assert verdict.outcome is Outcome.PASS
    assert "gate met: acceptance length at least 1.5" in verdict.headline
    assert Finding.SAME in verdict.headline
    assert verdict.finding is Finding.SAME
    assert any("each tail at 0.000125" in line for line in verdict.evidence)
    missed = speed.judge(seen(answers(), replace(floor, at_least=3.9), BEFORE))
    assert (missed.outcome, "gate missed" in missed.headline) == (Outcome.FAIL, True)


def test_a_change_that_may_be_a_loss_is_a_finding_beside_an_open_gate():
    """The headline then speaks of the gate alone."""
    now = seen(answers(1.12), BEFORE)
    length = speed.judge(now).promise.tokens_per_step
    gate = Gate(figure="acceptance_length", at_least=length, source="tiny.yaml:9 gates.acceptance_length")
    verdict = speed.judge(replace(now, gates=(gate, BEFORE)))
    assert verdict.outcome is Outcome.NOT_DECIDED
    assert verdict.finding is Finding.MAYBE_WORSE
