"""Accepted lengths in a baseline file: what a run brings, and what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.gates import baseline_file, update
from pytest_specdec.gates.accepted_lengths import CellLengths
from pytest_specdec.gates.update import Results
from pytest_specdec.model.baseline import Environment, PromptLength
from pytest_specdec.model.promise import AcceptedLength, DraftedTraffic, SpeedFigure, Speedup
from pytest_specdec.model.verdict import Finding, Outcome, Verdict
from pytest_specdec.model.workload import Family

HERE = Environment(
    engine="e",
    engine_version="1",
    model="m",
    processor="p",
    cores=2,
    memory_gib=8.0,
    variants={"draft-k3": {"model": "m@1", "draft": "model d, 3 tokens", "dtype": "auto", "flags": "1"}},
)


def verdict(outcome=Outcome.PASS, finding=Finding.SAME):
    about = {"family": Family.SPEED, "pair": "draft-k3", "workload": "greedy", "headline": "2.50 tokens per step"}
    return Verdict(outcome=outcome, finding=finding, promise=AcceptedLength(tokens_per_step=2.5, prompts=20), **about)


def length(tokens_per_step, steps=40, request="r1"):
    return PromptLength(tokens_per_step=tokens_per_step, steps=steps, request=request)


def results(tokens_per_step=2.5, *, one=None, accepted="", count=20, steps=40, digest="a", request="r1"):
    lengths = {f"chat-{i:02}": length(tokens_per_step, steps, request) for i in range(count)}
    cell = CellLengths(digest=digest, lengths=lengths)
    return Results(verdicts=(one or verdict(),), lengths={("draft-k3", "greedy"): cell}, accepted=accepted)


def after(folder, *runs, here=HERE):
    for run in runs:
        found = update.update(folder, "tiny", here, run)
    return found, baseline_file.read(baseline_file.path(folder, "tiny", here))


def test_lengths_are_stored_with_digest_and_key(tmp_path):
    found, (gate,) = after(tmp_path, results())
    assert (gate.digest, gate.runs, gate.key) == ("a", 1, HERE.key("draft-k3"))
    assert gate.lengths["chat-07"] == length(2.5)
    assert gate.reason == "mean 2.500 tokens per step of 20 requests over 1 run; a run may differ by 3 %"
    assert found.moves == ("acceptance_length draft-k3 greedy: 2.500 tokens per step (20 requests, 800 steps, 1 run)",)


def test_runs_are_pooled_by_their_steps(tmp_path):
    found, (gate,) = after(tmp_path, results(2.5), results(2.45, steps=120))
    assert gate.lengths["chat-07"] == length(2.4625, 160)
    assert gate.runs == 2
    assert found.moves == ("acceptance_length draft-k3 greedy: 2.500 -> 2.462 tokens per step (20 requests, 3,200 steps, 2 runs)",)


@pytest.mark.parametrize(
    "outcome, finding",
    [
        (Outcome.FAIL, Finding.WORSE),
        (Outcome.FAIL, Finding.MORE),
        (Outcome.FAIL, Finding.MAYBE_WORSE),
        (Outcome.NOT_DECIDED, Finding.MAYBE_WORSE),
        (Outcome.NOT_DECIDED, Finding.MAYBE_MORE),
    ],
)
def test_what_may_be_worse_is_not_pooled_without_a_reason(tmp_path, outcome, finding):
    after(tmp_path, results())
    other = results(2.3, one=verdict(outcome, finding))
    assert update.update(tmp_path, "tiny", HERE, other) is None
    (line,) = update.refusal_lines(other)
    assert line.startswith("draft-k3 greedy ")
    assert line.endswith('; if it is meant: --specdec-update-baselines --specdec-accept-regression "why"')
    assert update.refusal_lines(replace(other, accepted="another template")) == ()
    found, (gate,) = after(tmp_path, replace(other, accepted="another template"))
    begun = outcome is Outcome.FAIL
    assert gate.runs == (1 if begun else 2)
    assert gate.accepted_regression == "another template"
    assert found.moves[0].endswith("; accepted: another template")
    assert ("begun anew" in found.moves[0]) is begun


def test_another_draft_begins_anew_and_another_release_does_not(tmp_path):
    after(tmp_path, results())
    _, (upgraded,) = after(tmp_path, results(), here=replace(HERE, engine_version="2"))
    assert upgraded.runs == 2
    other = replace(HERE, variants={"draft-k3": {**HERE.variants["draft-k3"], "draft": "model e, 3 tokens"}})
    found, (swapped,) = after(tmp_path, results(2.1), here=other)
    assert (swapped.runs, swapped.lengths["chat-00"].tokens_per_step) == (1, 2.1)
    assert "begun anew; " in found.moves[0]
    assert "draft model d, 3 tokens -> model e, 3 tokens" in found.moves[0]


def test_another_depth_adds_its_requests_and_leaves_the_others(tmp_path):
    _, (gate,) = after(tmp_path, results(), results(2.45, count=100))
    assert (gate.lengths["chat-07"], gate.lengths["chat-99"]) == (length(2.475, 80), length(2.45))
    _, (gate,) = after(tmp_path, results(2.5, count=10))
    assert (len(gate.lengths), gate.runs) == (100, 3)


def test_reworded_requests_and_another_load_begin_anew(tmp_path):
    _, (gate,) = after(tmp_path, results(), results(2.1, request="r2"))
    assert gate.lengths["chat-07"] == length(2.1, request="r2")
    found, (gate,) = after(tmp_path, results(2.2, digest="b", request="r2"))
    assert (gate.lengths["chat-07"], gate.runs) == (length(2.2, request="r2"), 1)
    assert "begun anew" in found.moves[0]


def test_few_prompts_are_not_stored(tmp_path):
    assert update.update(tmp_path, "tiny", HERE, results(count=9)) is None
    assert update.refusal_lines(results(count=9)) == (
        "draft-k3 greedy is not taken: verify steps are known of 9 requests, and a gate needs 10: --specdec-depth standard sends more",
    )
    assert update.refusal_lines(results()) == ()


def test_failed_traffic_names_no_option_that_would_take_it():
    failed = replace(verdict(Outcome.FAIL), promise=DraftedTraffic(kinds=3))
    assert update.refusal_lines(results(one=failed)) == ()


SPEEDUP = Speedup(response=SpeedFigure(baseline=1.0, speculative=1.5, speedup=1.5))


@pytest.mark.parametrize("promise", [DraftedTraffic(kinds=3), SPEEDUP, None])
def test_verdicts_on_something_else_bring_no_lengths(tmp_path, promise):
    found = update.update(tmp_path, "tiny", HERE, results(one=replace(verdict(), promise=promise)))
    assert found is None or all(not gate.lengths for gate in baseline_file.read(found.path))


def test_a_candidate_has_them_too(tmp_path):
    path = update.write_candidate(tmp_path, HERE, results())
    assert "tokens_per_step: 2.5" in path.read_text()
