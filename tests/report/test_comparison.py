from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.baseline_change import BaselineChange, BaselineRelation, ChangeKind, TokenDifference
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report.comparison import compare, lines
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.upgrade import UpgradeWord
from pytest_specdec.stats.logit_shift import LogitShift
from tests.report.runs import ENVIRONMENT, FAILED, GREEDY, GREEN, MIXED, SPEED, acceptance, judgement, run_of

RED = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED)
GOOD = judgement(GREEDY)
UNKNOWN = "whether the baseline's answers changed is unknown: "
FEW = UNKNOWN + "too few prompts were scored in both runs"
DECIDED = Status(state=State.COMPLETE)
GOOD_TOO = judgement(replace(FAILED, pair="draft-k3", outcome=Outcome.PASS, names="", finding=None))
SAMPLED = replace(GREEDY, family=Family.SAMPLING)
OLD = replace(run_of(GOOD_TOO), status=DECIDED)
SHIFT = LogitShift(nats=0.03, low=0.02, high=0.04, prompts=20, positions=410)
SAME = BaselineChange(relation=BaselineRelation.SAME, shift=SHIFT, allowed=0.05, prompts=20, answers=6)
CHANGED = replace(SAME, relation=BaselineRelation.CHANGED, kinds=(ChangeKind.WEIGHTS,), allowed=0.01)
TOO_LITTLE = replace(SAME, relation=BaselineRelation.UNKNOWN, shift=None, why="too few prompts were scored in both runs")


def test_a_run_against_itself_differs_in_nothing():
    for run in (GREEN, MIXED):
        same = compare(run, run)
        changes = (same.found, same.gone, same.judgements, same.capabilities, same.environment, same.unlike)
        assert not any(changes)
    assert next(lines(compare(GREEN, GREEN))).startswith("NO FINDING in either run; ")
    assert next(lines(compare(MIXED, MIXED))).startswith("NO NEW FINDING: ")


def test_findings_come_go_and_stay():
    other = judgement(replace(FAILED, pair="ngram-k3", names="torn"), PytestOutcome.FAILED)
    worse, better = compare(run_of(GOOD), run_of(RED)), compare(run_of(RED, other), run_of(GOOD, other))
    assert (list(map(str, worse.found)), worse.headline) == (["draft-k3: accept-all"], f"WORSE: 1 new finding; {UNKNOWN}")
    assert [*map(str, better.gone), *map(str, better.kept)] == ["draft-k3: accept-all", "ngram-k3: torn"]
    assert better.headline == f"BETTER: 1 finding gone, 1 as before; {UNKNOWN}"
    (change,) = worse.judgements
    assert (change.old, change.new) == ("pass", "fail")


def test_the_same_fault_in_another_variant_is_one_that_the_old_run_did_not_look_for():
    other = judgement(replace(FAILED, pair="ngram-k3"), PytestOutcome.FAILED)
    assert list(map(str, compare(run_of(RED), run_of(RED, other)).unjudged)) == ["ngram-k3: accept-all"]
    assert compare(run_of(GOOD), run_of(RED, other)).headline.startswith("WORSE: 1 new finding;"), "one fault, in two variants"


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


WITHIN = "the baselines' answers are the same, their distributions typically within 0.04 nats per logit"
SHIFTED = ChangeKind.WEIGHTS.value


@pytest.mark.parametrize("baseline, red, decided, headline", [
    (SAME, False, True, f"SAFE TO UPGRADE, as far as both runs were judged: {WITHIN}; no finding in either run"),
    (SAME, True, True, f"SPECULATION BROKE IN THE NEW RUN: 1 new finding; {WITHIN}"),
    (SAME, False, False, f"CANNOT SAY: the new run is incomplete; {WITHIN}"),
    (SAME, True, False, f"SPECULATION BROKE IN THE NEW RUN: 1 new finding; {WITHIN}"),
    (CHANGED, False, True, f"ANSWERS CHANGED, speculation follows: {SHIFTED}; no finding in either run"),
    (CHANGED, True, True, f"BOTH CHANGED: the baseline's answers ({SHIFTED}), and speculation has 1 new finding"),
    (CHANGED, False, False, f"ANSWERS CHANGED ({SHIFTED}); whether speculation follows is not decided: the new run is incomplete"),
    (TOO_LITTLE, False, True, f"NO FINDING in either run; {FEW}"),
    (TOO_LITTLE, True, True, f"WORSE: 1 new finding; {FEW}"),
    (None, False, False, f"NO FINDING in either run; the new run is incomplete; {UNKNOWN}no files"),
])  # fmt: skip
def test_the_headline_tells_the_upgrades_change_from_speculations(baseline, red, decided, headline):
    status = DECIDED if decided else replace(DECIDED, state=State.INCOMPLETE)
    new = replace(run_of(RED if red else GOOD_TOO), status=status)
    changes = compare(OLD, new, baseline, not_compared="" if baseline else "no files")
    assert changes.headline == headline
    is_worse = red or baseline is CHANGED
    is_open = baseline in (TOO_LITTLE, None) or not decided
    assert changes.is_worse == is_worse
    assert changes.word is (UpgradeWord.WORSE if is_worse else UpgradeWord.UNKNOWN if is_open else UpgradeWord.FINE)


def test_what_the_new_run_did_not_judge_again_is_neither_safe_nor_gone():
    changes = compare(replace(run_of(RED, GOOD_TOO), status=DECIDED), replace(run_of(judgement(SAMPLED)), status=DECIDED), SAME)
    assert changes.headline == f"CANNOT SAY: the new run did not judge draft-k3 {RED.family.value}; {WITHIN}"
    assert (changes.gone, changes.word) == ((), UpgradeWord.UNKNOWN)


def test_a_finding_that_the_old_run_did_not_look_for_is_no_change():
    changes = compare(replace(run_of(judgement(SAMPLED)), status=DECIDED), replace(run_of(judgement(SAMPLED), RED), status=DECIDED), SAME)
    assert changes.headline == f"WRONG IN THE NEW RUN: 1 finding that the old run did not look for; {WITHIN}"
    assert (changes.found, changes.is_worse) == ((), True)
    assert "  not judged before: draft-k3: accept-all" in list(lines(changes))


def test_a_waiver_that_lapsed_is_no_new_finding():
    waived = replace(RED, result=PytestOutcome.WAIVED)
    changes = compare(replace(run_of(waived), status=DECIDED), replace(run_of(RED), status=DECIDED), SAME)
    assert (changes.found, changes.unjudged, len(changes.kept)) == ((), (), 1)


def test_a_broken_off_run_with_an_old_finding_is_not_safe():
    broken_off = replace(run_of(RED), status=replace(DECIDED, state=State.INCOMPLETE))
    assert compare(replace(run_of(RED), status=DECIDED), broken_off, SAME).headline.startswith("CANNOT SAY: the new run is incomplete")


def test_another_kernel_is_no_worse():
    assert not compare(GREEN, GREEN, replace(CHANGED, kinds=(ChangeKind.NUMERICS,))).is_worse
    assert compare(GREEN, GREEN, replace(CHANGED, kinds=(ChangeKind.NUMERICS, ChangeKind.ENDS))).is_worse


def test_what_differs_of_the_baselines_is_listed():
    differences = (TokenDifference(request_id="chat-07", index=17, old_id=777, new_id=806, gap=1.25),)
    change = replace(CHANGED, differences=differences, beyond=1, other_ends=("code-01\x1b",), alike=4)
    text = list(lines(compare(GREEN, GREEN, change)))
    assert text[1:7] == [
        "",
        "baseline:",
        "  prompts: all 20 have the same token ids",
        "  distributions: 0.03 nats per logit apart [0.02, 0.04] over 410 positions of 20 prompts; the noise of both runs explains 0.01",
        "  answers at temperature 0: 4 of 6 alike, 1 with another token, 1 of them beyond noise; 1 end elsewhere",
        "    chat-07, token 18: id 777 -> id 806, 1.25 nats apart",
    ]
    assert "\x1b" not in "".join(text)
    other = list(lines(compare(GREEN, GREEN, replace(CHANGED, other_prompts=('["chat", {}]',)))))
    assert other[3:5] == ["  prompts: 1 of 20 have other token ids", '    ["chat", {}]']
