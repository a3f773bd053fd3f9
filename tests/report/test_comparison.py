from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report.comparison import compare, lines
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import ENVIRONMENT, FAILED, GREEDY, GREEN, MIXED, SPEED, acceptance, judgement, run_of

RED = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED)
GOOD = judgement(GREEDY)


def test_a_run_against_itself_differs_in_nothing():
    for run in (GREEN, MIXED):
        same = compare(run, run)
        changes = (same.found, same.gone, same.judgements, same.capabilities, same.environment, same.unlike)
        assert not any(changes)
    assert next(lines(compare(GREEN, GREEN))) == "NO FINDING in either run"
    assert next(lines(compare(MIXED, MIXED))).startswith("NO NEW FINDING: ")


def test_findings_come_go_and_stay():
    other = judgement(replace(FAILED, pair="ngram-k3", names="torn"), PytestOutcome.FAILED)
    worse, better = compare(run_of(GOOD), run_of(RED)), compare(run_of(RED, other), run_of(GOOD, other))
    assert (worse.found, worse.headline) == (("draft-k3: accept-all",), "WORSE: 1 new finding")
    assert (better.gone, better.kept) == (("draft-k3: accept-all",), ("ngram-k3: torn",))
    assert better.headline == "BETTER: 1 finding gone, 1 as before"
    (change,) = worse.judgements
    assert (change.old, change.new) == ("pass", "fail")


def test_the_same_fault_in_another_variant_is_a_new_finding():
    other = judgement(replace(FAILED, pair="ngram-k3"), PytestOutcome.FAILED)
    assert compare(run_of(RED), run_of(RED, other)).found == ("ngram-k3: accept-all",)


def test_figures_are_shown_with_what_forbids_to_compare_them():
    fast = judgement(replace(SPEED, outcome=Outcome.PASS))
    there = replace(ENVIRONMENT, processor="another")
    here = compare(run_of(fast, judgement(acceptance("draft-k3"))), run_of(fast, judgement(acceptance("draft-k3"))))
    assert [str(change) for change in here.measures] == [
        "draft-k3, vacation: 1.82x [0.91, 2.90] -> 1.82x [0.91, 2.90]",
        "draft-k3, chat: 2.69 tokens per step -> 2.69 tokens per step",
    ]
    away = compare(run_of(fast), run_of(fast, environment=there))
    assert away.unlike == "of two machines, not comparable"
    assert "speed and acceptance (of two machines, not comparable):" in list(lines(away))
    assert compare(run_of(fast), run_of(fast, environment=None)).unlike == "of an unknown machine"
    assert compare(run_of(fast, RED), run_of(fast)).measures == (), "speed beside wrong tokens counts for nothing"


def test_capabilities_and_environment():
    after = run_of(
        GOOD,
        capabilities={"baseline": Capabilities(support={"min_p": FeatureSupport.REFUSED})},
        environment=replace(ENVIRONMENT, engine_version="0.2.0"),
    )
    before = run_of(GOOD, capabilities={"baseline": Capabilities(support={"min_p": FeatureSupport.HONOURED})})
    changes = compare(before, after)
    assert [str(change) for change in changes.capabilities] == ["baseline min_p: honoured -> refused"]
    assert [str(change) for change in changes.environment] == ["engine: reference 0.1.0 -> reference 0.2.0"]


def test_hostile_text_is_escaped():
    text = "\n".join(lines(compare(GREEN, MIXED)))
    assert not set("\x1b\r\u202e") & set(text)
