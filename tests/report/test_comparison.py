from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest

from pytest_specdec.gates.rulings import GateRuling
from pytest_specdec.judge.baseline_change import BaselineChange, BaselineRelation, ChangeKind
from pytest_specdec.judge.compared_speed import ChangedFigure, ComparedSpeed, Slowdown, SlowPart, UpgradeFigure
from pytest_specdec.judge.old_tokens import TokenDifference
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.upgrade_gates import AcceptedChange, Tolerance, UpgradeGates
from pytest_specdec.model.verdict import Finding, Outcome, SharedCheck
from pytest_specdec.model.workload import Family
from pytest_specdec.report import answer, html, junit, markdown
from pytest_specdec.report import run as run_document
from pytest_specdec.report.comparison import compare, upgrade
from pytest_specdec.report.run import PytestOutcome
from pytest_specdec.report.upgrade import Speculation, UpgradeWord, render
from pytest_specdec.report.upgrade import lines as upgrade_lines
from pytest_specdec.stats.logit_shift import LogitShift
from tests.report.runs import ENVIRONMENT, FAILED, GREEDY, GREEN, HOSTILE, MIXED, SPEED, acceptance, judgement, run_of

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
NUMERICS = replace(CHANGED, kinds=(ChangeKind.NUMERICS,))
MOVED = ChangeKind.NUMERICS.value
TOO_LITTLE = replace(SAME, relation=BaselineRelation.UNKNOWN, shift=None, why="too few prompts were scored in both runs")


def lines(changes):
    return upgrade_lines(upgrade(changes, "old-run"))


def test_a_run_against_itself_differs_in_nothing():
    for run in (GREEN, MIXED):
        same = compare(run, run)
        changes = (same.findings.found, same.findings.gone, same.judgements, same.capabilities, same.environment, same.unlike)
        assert not any(changes)
    assert next(lines(compare(GREEN, GREEN))).startswith("NO FINDING in either run; ")
    assert next(lines(compare(MIXED, MIXED))).startswith("NO NEW FINDING: ")


def test_findings_come_go_and_stay():
    other = judgement(replace(FAILED, pair="ngram-k3", names="torn"), PytestOutcome.FAILED)
    worse, better = compare(run_of(GOOD), run_of(RED)), compare(run_of(RED, other), run_of(GOOD, other))
    assert (list(map(str, worse.findings.found)), worse.headline) == (["draft-k3: accept-all"], f"WORSE: 1 new finding; {UNKNOWN}")
    assert [*map(str, better.findings.gone), *map(str, better.findings.kept)] == ["draft-k3: accept-all", "ngram-k3: torn"]
    assert better.headline == f"BETTER: 1 finding gone, 1 as before; {UNKNOWN}"
    (change,) = worse.judgements
    assert (change.old, change.new) == ("pass", "fail")


def test_the_same_fault_in_another_variant_is_one_that_the_old_run_did_not_look_for():
    other = judgement(replace(FAILED, pair="ngram-k3"), PytestOutcome.FAILED)
    assert list(map(str, compare(run_of(RED), run_of(RED, other)).findings.unjudged)) == ["ngram-k3: accept-all"]
    assert compare(run_of(GOOD), run_of(RED, other)).headline.startswith("WORSE: 1 new finding;"), "one fault, in two variants"


def test_an_upgrade_that_looks_slower_beside_other_work_is_not_called_safe():
    figure = ChangedFigure(
        figure=UpgradeFigure.DECODE, arm="baseline", workload="chat", old=100.0, new=27.0, ratio=0.27, low=0.2, high=0.36
    )
    doubtful = replace(figure, unfit="9.0 processes to a core of the client's machine")
    busy = ComparedSpeed(ratios=(figure,), not_gated="the client could not keep up with draft-k3", doubtful=(doubtful,))
    doubt = (
        "decode speed of baseline (chat): 100 tokens/s -> 27 tokens/s, 0.27x [0.20, 0.36], "
        "but 9.0 processes to a core of the client's machine"
    )
    for baseline, answers in ((SAME, WITHIN), (NUMERICS, f"the baseline's answers changed ({MOVED}), which is tolerated")):
        changes = compare(OLD, OLD, baseline, speed=busy)
        assert (changes.word, changes.headline) == (UpgradeWord.UNKNOWN, f"CANNOT SAY: {doubt}; {answers}")
        assert compare(OLD, OLD, baseline, speed=replace(busy, doubtful=())).word is UpgradeWord.FINE
    for baseline in (CHANGED, TOO_LITTLE):
        assert compare(OLD, OLD, baseline, speed=busy).headline.endswith(f"; looks slower: {doubt}"), "said beside what leads"


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
    assert [str(change) for change in changes.capabilities] == ["now refuses min_p, which was honoured: baseline"]
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


def test_prompts_with_a_few_other_ids_are_said_where_the_answers_are_called_the_same():
    changes = compare(OLD, OLD, replace(SAME, dated_prompts=7))
    dated = "7 of 20 prompts differ in a few token ids, as by a date, and were compared after the old ids only"
    assert changes.headline == f"SAFE TO UPGRADE, as far as both runs were judged: {WITHIN}; {dated}; no finding in either run"
    undated = "  prompts: 7 of 20 differ in a few token ids; 2 of them not as by a date"
    assert undated in list(lines(compare(OLD, OLD, replace(TOO_LITTLE, dated_prompts=7, undated_prompts=2))))


def test_what_the_new_run_did_not_judge_again_is_neither_safe_nor_gone():
    changes = compare(replace(run_of(RED, GOOD_TOO), status=DECIDED), replace(run_of(judgement(SAMPLED)), status=DECIDED), SAME)
    assert changes.headline == f"CANNOT SAY: the new run did not judge draft-k3 {RED.family.value}; {WITHIN}"
    assert (changes.findings.gone, changes.word) == ((), UpgradeWord.UNKNOWN)


@pytest.mark.parametrize("there, outcome", [
    ((), "not judged"),
    ((judgement(replace(GREEDY, workload="drawn", outcome=Outcome.REFUSED), PytestOutcome.SKIPPED),), "refused"),
])  # fmt: skip
def test_a_workload_that_the_new_run_did_not_judge_again_is_neither_safe_nor_gone(there, outcome):
    broken = judgement(replace(FAILED, pair="draft-k3", workload="drawn"), PytestOutcome.FAILED)
    for before in (broken, judgement(replace(GREEDY, workload="drawn"))):
        changes = compare(replace(run_of(GOOD, before), status=DECIDED), replace(run_of(GOOD, *there), status=DECIDED), SAME)
        assert changes.headline == f"CANNOT SAY: the new run did not judge draft-k3 greedy (drawn); {WITHIN}", outcome
        assert (changes.findings.gone, changes.word) == ((), UpgradeWord.UNKNOWN)


def test_a_workload_of_which_a_part_is_refused_is_judged_by_the_rest():
    """vLLM 0.31 fails a workload of pairs, of which logit_bias is refused; 0.32 passes the rest of it."""
    pairs = replace(FAILED, family=Family.PARAMETERS, workload="parameter-pairs", pair="draft-k3", names="answers go on after their end")
    refused = {"draft-k3": {"logit_bias": "refused", "top_k": "honoured"}}
    rest = replace(pairs, outcome=Outcome.REFUSED, names="", finding=None, parameters=refused)
    for parameters, beginning in ((refused, "SAFE TO UPGRADE"), ({}, "CANNOT SAY: the new run did not judge draft-k3 parameters")):
        new = judgement(replace(rest, parameters=parameters), PytestOutcome.SKIPPED)
        changes = compare(*(replace(run_of(GOOD, one), status=DECIDED) for one in (judgement(pairs, PytestOutcome.FAILED), new)), SAME)
        assert changes.headline.startswith(beginning)


def test_a_workload_that_comes_to_no_decision_where_that_is_allowed_leaves_the_upgrade_safe():
    open_ = judgement(replace(GREEDY, workload="drawn", outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED)
    old = replace(run_of(GOOD, judgement(replace(GREEDY, workload="drawn"))), status=DECIDED)
    assert compare(old, replace(run_of(GOOD, open_), status=DECIDED), SAME).word is UpgradeWord.FINE


def test_a_finding_that_the_old_run_did_not_look_for_is_no_change():
    changes = compare(replace(run_of(judgement(SAMPLED)), status=DECIDED), replace(run_of(judgement(SAMPLED), RED), status=DECIDED), SAME)
    assert changes.headline == f"WRONG IN THE NEW RUN: 1 finding that the old run did not look for; {WITHIN}"
    assert (changes.findings.found, changes.is_worse) == ((), True)
    assert "  not judged before: draft-k3: accept-all" in list(lines(changes))


def test_a_failure_by_another_name_broke_nothing_and_healed_nothing():
    """Stock vLLM 0.31 and 0.32 read one bug's temperatures from memory never written, so that its name varies."""
    other = judgement(replace(FAILED, pair="draft-k3", names="only the first draft token is accepted"), PytestOutcome.FAILED)
    old, new = (replace(run_of(GOOD, one), status=DECIDED) for one in (RED, other))
    changes = compare(old, new, SAME)
    assert changes.headline == f"CANNOT SAY: 1 finding where the old run failed by another name; {WITHIN}"
    assert (changes.findings.found, changes.findings.gone, changes.word) == ((), (), UpgradeWord.UNKNOWN)
    assert "  failed before too, by another name: draft-k3: only the first draft token is accepted" in list(lines(changes))
    sampled = replace(FAILED, pair="draft-k3", names="accept-all", workload="drawn")
    both = judgement(replace(sampled, names=other.verdict.names), PytestOutcome.FAILED)
    passed_before = replace(run_of(GOOD, RED, judgement(replace(sampled, outcome=Outcome.PASS, names="", finding=None))), status=DECIDED)
    wider = compare(passed_before, replace(run_of(GOOD, other, both), status=DECIDED), SAME)
    assert wider.headline.startswith("SPECULATION BROKE IN THE NEW RUN: 1 new finding"), "it fails where the old run passed"


@pytest.mark.parametrize("result", [PytestOutcome.FAILED, PytestOutcome.WAIVED])
def test_a_known_finding_at_tests_that_passed_before_broke_speculation(result):
    """Under the same name as elsewhere, waived there or not."""
    known, there = replace(RED, result=result), replace(FAILED, pair="draft-k3", workload="drawn")
    passed = judgement(replace(there, outcome=Outcome.PASS, names="", finding=None))
    old, new = (
        replace(run_of(known, passed), status=DECIDED),
        replace(run_of(known, judgement(there, PytestOutcome.FAILED)), status=DECIDED),
    )
    changes = compare(old, new, SAME)
    assert changes.headline == f"SPECULATION BROKE IN THE NEW RUN: 1 new finding; {WITHIN}"
    assert (changes.word, changes.findings.kept, changes.findings.gone) == (UpgradeWord.WORSE, (), ())
    assert "  known, and new at tests that passed before: draft-k3: accept-all" in list(lines(changes))
    assert len(compare(new, new, SAME).findings.kept) == 1
    unjudged = compare(replace(run_of(known), status=DECIDED), new, SAME)
    assert unjudged.speculation is Speculation.FOLLOWS, "the old run did not look there, and has the finding"


def test_a_waiver_that_lapsed_is_no_new_finding():
    waived = replace(RED, result=PytestOutcome.WAIVED)
    changes = compare(replace(run_of(waived), status=DECIDED), replace(run_of(RED), status=DECIDED), SAME)
    assert (changes.findings.found, changes.findings.unjudged, len(changes.findings.kept)) == ((), (), 1)


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
    at = text.index("baseline:")
    assert text[at - 1 : at + 5] == [
        "",
        "baseline:",
        "  prompts: all 20 have the same token ids",
        (
            "  distributions: 0.03 nats per logit apart [0.02, 0.04] over 410 positions of 20 prompts; "
            "the noise of both runs explains up to 0.01"
        ),
        "  answers at temperature 0: 4 of 6 alike, 1 with another token, 1 of them beyond noise; 1 end elsewhere",
        "    chat-07, token 18: id 777 -> id 806, 1.25 nats apart",
    ]
    assert "\x1b" not in "".join(text)
    lost = lines(compare(GREEN, GREEN, replace(change, lost=("chat-01\x1b", "chat-02", "chat-03", "chat-04"))))
    assert "    4 that the new run has no answer to: chat-01␛, chat-02, chat-03" in list(lost)
    one_boot = next(line for line in lines(compare(GREEN, GREEN, replace(change, boots_allow=0.2))) if "distributions:" in line)
    assert one_boot.endswith("the noise of both runs explains up to 0.01, 0.2 with what a boot may keep")
    other = list(lines(compare(GREEN, GREEN, replace(CHANGED, other_prompts=('["chat", {}]',)))))
    assert other[other.index("baseline:") + 1 :][:2] == ["  prompts: 1 of 20 have other token ids", '    ["chat", {}]']


DECODE = ChangedFigure(
    figure=UpgradeFigure.DECODE,
    arm="draft-k3",
    workload="vacation",
    old=41.88,
    new=30.1,
    ratio=0.72,
    low=0.66,
    high=0.78,
    at_least=0.95,
    ruling=GateRuling.MISSED,
)
SLOW = ComparedSpeed(ratios=(DECODE,), slower=(Slowdown(part=SlowPart.STEP, arm="draft-k3", why="0.72x"),))
DECIDED_OLD = replace(run_of(GOOD_TOO, judgement(replace(SPEED, outcome=Outcome.PASS))), status=DECIDED)
TODAY = date(2026, 11, 27)


def accept(change, expires=TODAY):
    return AcceptedChange(change=change, reason="the step is safer", owner="ada", expires=expires, source="qwen.yaml:9")


def test_a_slower_step_leads_where_the_answers_are_right():
    changes = compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=SLOW)
    assert changes.headline == f"SLOWER: the verify step of draft-k3; {WITHIN}"
    assert (changes.word, changes.names) == (UpgradeWord.WORSE, ("slower-step",))
    assert "  slower-step" in lines(changes), "the name that an acceptance needs"
    changed = compare(DECIDED_OLD, DECIDED_OLD, CHANGED, speed=SLOW)
    assert changed.headline.endswith("; slower: the verify step of draft-k3"), "said beside what leads"


def test_a_speed_that_decides_nothing_says_why_or_what_would_decide():
    open_ = replace(DECODE, low=0.7, high=1.1, ruling=GateRuling.OPEN)
    undecided = compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=ComparedSpeed(ratios=(open_,)))
    assert undecided.headline.endswith("no finding in either run; whether it is slower is not decided")
    assert any(line.startswith("  to decide: judge both builds in one run") for line in lines(undecided))
    shown = ComparedSpeed(ratios=(replace(open_, at_least=None),), not_gated="a busy machine\x1b")
    assert compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=shown).headline.endswith("; speeds are not gated: a busy machine␛")


@pytest.mark.parametrize("speed, says", [
    (None, True),
    (ComparedSpeed(), True),
    (ComparedSpeed(ratios=(replace(DECODE, at_least=None, ruling=GateRuling.OPEN),)), True),
    (ComparedSpeed(ratios=(replace(DECODE, ruling=GateRuling.PROVEN),)), False),
])  # fmt: skip
def test_a_speed_that_the_old_run_measured_and_nothing_compares_is_said(speed, says):
    """As where the new run timed nothing, or answered each timed request once."""
    fast = judgement(replace(SPEED, outcome=Outcome.PASS))
    old = replace(run_of(GOOD, fast), status=DECIDED)
    changes = compare(old, replace(run_of(GOOD), status=DECIDED), SAME, speed=speed)
    assert (changes.word, changes.headline.endswith("; speed of draft-k3 is not compared")) == (UpgradeWord.FINE, says)
    assert "not compared" not in compare(replace(run_of(GOOD), status=DECIDED), old, SAME, speed=speed).headline


def test_a_new_finding_of_speed_alone_breaks_no_answer():
    slow = judgement(replace(SPEED, outcome=Outcome.FAIL, names="the step is too dear"), PytestOutcome.FAILED)
    changes = compare(DECIDED_OLD, replace(run_of(GOOD_TOO, slow), status=DECIDED), SAME)
    assert changes.headline == f"SLOWER: draft-k3: the step is too dear; {WITHIN}"
    assert compare(DECIDED_OLD, replace(run_of(RED, slow), status=DECIDED), SAME).headline.startswith(
        "SPECULATION BROKE IN THE NEW RUN: 1 new"
    )


def missed(headline="0.81x", **fields):
    """A run with a speed test that missed its gate."""
    slow = judgement(replace(SPEED, outcome=Outcome.FAIL, headline=headline, **fields), PytestOutcome.FAILED)
    return replace(run_of(GOOD_TOO, slow), status=DECIDED)


def test_a_missed_speed_test_is_no_slowdown_where_the_speed_is_surely_no_lower():
    """As where the baseline became faster: the test stays red by itself."""
    proven = replace(DECODE, new=41.9, ratio=1.0, low=0.98, high=1.02, ruling=GateRuling.PROVEN)
    changes = compare(DECIDED_OLD, missed(), SAME, speed=ComparedSpeed(ratios=(proven,)))
    assert (changes.word, changes.headline) == (
        UpgradeWord.FINE,
        (
            f"SAFE TO UPGRADE, as far as both runs were judged: {WITHIN}; no new finding but of speed; "
            "missed, and no slower than in the old run: draft-k3: 0.81x"
        ),
    )
    for other in (replace(proven, workload="other"), replace(proven, ruling=GateRuling.OPEN), replace(proven, at_least=None)):
        speed = ComparedSpeed(ratios=(other,))
        assert compare(DECIDED_OLD, missed(), SAME, speed=speed).headline.startswith("SLOWER: draft-k3: 0.81x; ")
    speed = ComparedSpeed(ratios=(proven, replace(DECODE, arm="draft-k3")))
    assert compare(DECIDED_OLD, missed(), SAME, speed=speed).headline.startswith("SLOWER: "), "another ratio of it is not proven"


CRASH = {"promise": None, "check": SharedCheck.SERVER}
DRAFTLESS = {"promise": None}
IDLE = {"outcome": Outcome.NOT_SPECULATING}
UNGATED = {"promise": replace(SPEED.promise, gates=0)}
HELD = ComparedSpeed(ratios=(replace(DECODE, new=41.9, ratio=1.0, low=0.98, high=1.02, ruling=GateRuling.PROVEN),))


def broken(fault):
    """A run with a speed test that failed by something other than its gate."""
    verdict = replace(SPEED, **{"outcome": Outcome.FAIL, "headline": "a fault", **fault})
    return replace(run_of(GOOD_TOO, judgement(verdict, PytestOutcome.FAILED)), status=DECIDED)


@pytest.mark.parametrize("fault", [CRASH, DRAFTLESS, IDLE, UNGATED])
def test_a_fault_that_speed_tests_alone_saw_is_no_missed_gate(fault):
    """A dead server, or drafts that are not made."""
    new = broken(fault)
    unlooked, broke = compare(OLD, new, SAME), compare(DECIDED_OLD, new, SAME, speed=HELD)
    assert (unlooked.word, unlooked.headline.partition(":")[0]) == (UpgradeWord.WORSE, "WRONG IN THE NEW RUN")
    assert (broke.word, broke.headline.partition(":")[0]) == (UpgradeWord.WORSE, "SPECULATION BROKE IN THE NEW RUN")
    assert compare(missed(), new, SAME, speed=HELD).headline.startswith("SPECULATION BROKE"), "a missed gate hides no fault"
    after = compare(new, missed(), SAME, speed=HELD)
    assert after.headline.startswith("CANNOT SAY: 1 finding where the old run failed by another name")


def test_a_missed_gate_hides_no_known_fault_that_is_new_at_its_tests():
    """As where one workload was not speculating before, another missed its gate, and now neither speculates."""
    idle, there = (
        judgement(replace(SPEED, **IDLE, headline="idle", workload=name), PytestOutcome.FAILED) for name in ("vacation", "other")
    )
    slow = judgement(replace(SPEED, outcome=Outcome.FAIL, workload="other", headline="0.8x"), PytestOutcome.FAILED)
    changes = compare(decided(GOOD_TOO, idle, slow), decided(GOOD_TOO, idle, there), SAME)
    assert changes.headline.startswith("SPECULATION BROKE"), changes.headline


def test_a_speed_missed_beside_wrong_tokens_makes_no_other_name_of_them_new():
    slow = judgement(replace(SPEED, outcome=Outcome.FAIL, headline="0.8x"), PytestOutcome.FAILED)
    torn = [judgement(replace(one.verdict, outcome=Outcome.FAIL, names="torn"), PytestOutcome.FAILED) for one in (RED, slow)]
    changes = compare(decided(RED, slow), decided(*torn), SAME)
    assert changes.headline.startswith("CANNOT SAY: 1 finding where the old run failed by another name"), changes.headline
    for before in (slow, judgement(replace(SPEED, outcome=Outcome.PASS))):
        unlooked = compare(decided(before), decided(*torn), SAME).headline
        assert unlooked.startswith("WRONG IN THE NEW RUN: 1 finding that the old run did not look for"), unlooked
    open_ = judgement(replace(GREEDY, outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED)
    left_open = compare(decided(*torn), decided(open_, judgement(replace(GREEDY, workload="windows")), before), SAME)
    assert left_open.headline.startswith("CANNOT SAY: 1 finding of the old run, not decided now"), left_open.headline


def test_a_missed_accepted_length_is_no_fault():
    length = judgement(replace(acceptance("draft-k3"), outcome=Outcome.FAIL), PytestOutcome.FAILED)
    changes = compare(OLD, replace(run_of(GOOD_TOO, length), status=DECIDED), SAME)
    assert (changes.word, "missed, and not judged in the old run" in changes.headline) == (UpgradeWord.FINE, True)


MORE = judgement(
    replace(acceptance("draft-k3"), outcome=Outcome.FAIL, finding=Finding.MORE, names=Finding.MORE.value), PytestOutcome.FAILED
)
ACCEPTS_MORE = replace(run_of(GOOD_TOO, MORE), status=DECIDED)


def test_a_variant_that_accepts_more_is_neither_slower_nor_wrong_nor_safe():
    """A better drafter accepts more, and so does a verify step that is too lenient."""
    accepted = replace(run_of(GOOD_TOO, judgement(acceptance("draft-k3"))), status=DECIDED)
    for old in (accepted, OLD):
        changes = compare(old, ACCEPTS_MORE, SAME)
        assert (changes.word, changes.headline) == (UpgradeWord.UNKNOWN, f"CANNOT SAY: draft-k3: {Finding.MORE}; {WITHIN}")
    assert compare(accepted, ACCEPTS_MORE).headline.startswith(f"NO NEW FINDING but of speed; draft-k3: {Finding.MORE}; ")
    again = compare(ACCEPTS_MORE, ACCEPTS_MORE, SAME)
    assert (again.word, len(again.findings.kept)) == (UpgradeWord.FINE, 1)
    worse = replace(MORE, verdict=replace(MORE.verdict, finding=Finding.WORSE, names=Finding.WORSE.value))
    turned = compare(replace(run_of(GOOD_TOO, worse), status=DECIDED), ACCEPTS_MORE, SAME)
    assert turned.headline.startswith("CANNOT SAY: 1 finding where the old run failed by another name"), "less before, and more now"


def at(version="", made_at=""):
    """A decided run of an engine's release, made at some time."""
    return replace(OLD, environment=replace(ENVIRONMENT, engine_version=version), made_at=made_at)


EARLY, LATE = "2026-11-27T08:00:00+00:00", "2026-11-28T08:00:00+00:00"


@pytest.mark.parametrize("old, new, swapped", [
    (at("0.32.0"), at("0.31.2"), True),
    (at("0.10.0"), at("0.9.1rc1"), True),
    (at("v0.32.0+cu130"), at("v0.32"), False),
    (at("0.9.1"), at("0.10.0"), False),
    (at("0.32.0", EARLY), at("0.31.0", LATE), True),
    (at("0.31.0", LATE), at("0.32.0", EARLY), False),
    (at("0.32.0", LATE), at("0.32.0", EARLY), True),
    (at("1a2b3c4d", EARLY), at("0a2b3c4d", LATE), False),
    (at("b6210"), at("b6100"), True),
    (replace(at("0.32.0", LATE), replayed=True), at("0.32.0", EARLY), False),
    (at("0.32.0", LATE), at("0.32.0"), False),
    (at("0.32.0"), replace(at("0.31.0"), environment=replace(ENVIRONMENT, engine="another", engine_version="0.31.0")), False),
    (at("0.32.0"), replace(at("0.31.0"), environment=None), False),
])  # fmt: skip
def test_runs_given_the_wrong_way_round_are_said(old, new, swapped):
    """A release says it, and only where both runs are of one release the date: an old build may be judged after the new one."""
    says = [line for line in lines(compare(old, new, SAME)) if "the wrong way round" in line]
    assert len(says) == swapped


def test_a_speed_gate_that_both_runs_missed_is_one_finding_whatever_its_figures():
    changes = compare(missed("0.81x"), missed("0.82x"), SAME)
    assert (changes.word, len(changes.findings.kept), changes.findings.renamed, changes.findings.gone) == (UpgradeWord.FINE, 1, (), ())
    assert "no new finding: 1 as before" in changes.headline


def test_a_missed_speed_test_that_the_old_run_did_not_have_is_no_wrong_answer():
    changes = compare(OLD, missed(), SAME)
    assert (changes.word, changes.headline) == (
        UpgradeWord.FINE,
        (
            f"SAFE TO UPGRADE, as far as both runs were judged: {WITHIN}; no new finding but of speed; "
            "missed, and not judged in the old run: draft-k3: 0.81x"
        ),
    )
    assert "  not judged before: draft-k3: 0.81x" in list(lines(changes))


def test_speed_of_a_variant_with_wrong_tokens_is_no_slowdown():
    assert not compare(DECIDED_OLD, replace(run_of(RED), status=DECIDED), SAME, speed=SLOW).slower


REFUSING = {"baseline": Capabilities(support={"min_p": FeatureSupport.REFUSED, "seed": FeatureSupport.IGNORED})}
OFFERING = {"baseline": Capabilities(support={"min_p": FeatureSupport.HONOURED, "seed": FeatureSupport.HONOURED})}


def test_a_newly_refused_parameter_is_a_finding_of_the_upgrade_and_a_newly_honoured_one_is_said():
    before, after = (replace(run_of(GOOD_TOO, capabilities=known), status=DECIDED) for known in (OFFERING, REFUSING))
    changes = compare(before, after, SAME)
    assert changes.headline == f"THE NEW RUN OFFERS LESS: now refuses min_p, which was honoured: baseline; {WITHIN}"
    assert (changes.word, changes.names) == (UpgradeWord.WORSE, ("refuses-min_p",))
    assert "  by a single probe, which noise can mislead, now ignores seed, which was honoured: baseline" in lines(changes), (
        "a probe's one answer may be chance: said, and no loss"
    )
    better = compare(after, before, SAME)
    assert (better.word, better.names) == (UpgradeWord.FINE, ())
    assert "  now honours min_p, which was refused: baseline" in lines(better)


def test_what_judges_call_ignored_is_a_loss():
    judged = [judgement(replace(GREEDY, parameters={"draft-k3": {"seed": effect}})) for effect in ("honoured", "ignored")]
    before, after = (replace(run_of(one), status=DECIDED) for one in judged)
    assert compare(before, after, SAME).names == ("ignores-seed",)
    refused = replace(run_of(judgement(replace(GREEDY, parameters={"draft-k3": {"seed": "refused"}}))), status=DECIDED)
    assert list(map(str, compare(refused, after, SAME).capabilities)) == ["now ignores seed, which was refused: draft-k3"]


@pytest.mark.parametrize("tolerance, kinds, word, beginning", [
    (None, (ChangeKind.NUMERICS,), UpgradeWord.FINE, "ANSWERS CHANGED, speculation follows"),
    (None, (ChangeKind.ENDS,), UpgradeWord.WORSE, "ANSWERS CHANGED, speculation follows"),
    (Tolerance.ALLOW, (ChangeKind.ENDS,), UpgradeWord.FINE, "SAFE TO UPGRADE, as far as both runs were judged: the baseline's answers c"),
    (Tolerance.WARN, (ChangeKind.ENDS,), UpgradeWord.FINE, "ANSWERS CHANGED, speculation follows"),
    (Tolerance.FAIL, (ChangeKind.NUMERICS,), UpgradeWord.WORSE, "ANSWERS CHANGED, speculation follows"),
])  # fmt: skip
def test_the_config_says_what_a_changed_baseline_is(tolerance, kinds, word, beginning):
    changes = compare(OLD, OLD, replace(CHANGED, kinds=kinds), gates=UpgradeGates(baseline_change=tolerance))
    assert (changes.word, changes.headline[: len(beginning)]) == (word, beginning)


def test_a_reviewed_change_is_accepted_by_name_until_its_day():
    gates = UpgradeGates(accepted=(accept("weights"), accept("slower-step"), accept("ends")))
    changes = compare(DECIDED_OLD, DECIDED_OLD, CHANGED, speed=SLOW, gates=gates, day=TODAY)
    assert changes.word is UpgradeWord.FINE
    assert f"SAFE TO UPGRADE, as far as both runs were judged: the baseline's answers changed ({SHIFTED}), as accepted" in changes.headline
    said = list(changes.review.lines)
    assert said[0] == "accepted: weights: the step is safer (owner ada, until 2026-11-27) (qwen.yaml:9)"
    assert said[2] == (
        "not used: qwen.yaml:9 accepts ends, which is no change of this upgrade; "
        "the changes here are weights, slower-step; correct or remove it"
    )
    late = compare(DECIDED_OLD, DECIDED_OLD, CHANGED, gates=gates, day=date(2026, 11, 28))
    assert late.word is UpgradeWord.WORSE
    assert late.review.lines[0] == "expired: qwen.yaml:9 accepted weights until 2026-11-27; ask ada, then renew or remove it"
    assert "accepted changes:" in list(lines(late))
    assert "  weights" in list(lines(late))
    assert "changes:" not in list(lines(changes)), "all of them are accepted"


@pytest.mark.parametrize("baseline, speed, unknown", [
    (None, None, ["weights", "slower-step"]),
    (TOO_LITTLE, SLOW, ["weights"]),
    (SAME, replace(SLOW, slower=(), not_gated="a busy machine"), ["slower-step"]),
    (SAME, ComparedSpeed(ratios=(replace(DECODE, ruling=GateRuling.OPEN),)), ["slower-step"]),
    (SAME, ComparedSpeed(ratios=(replace(DECODE, ruling=GateRuling.PROVEN),)), []),
])  # fmt: skip
def test_an_acceptance_of_what_was_not_compared_is_not_to_be_removed(baseline, speed, unknown):
    gates = UpgradeGates(accepted=(accept("weights"), accept("slower-step"), accept("refuses-min_p")))
    changes = compare(OLD, OLD, baseline, not_compared="" if baseline else "no files", speed=speed, gates=gates, day=TODAY)
    says = {
        name: line for name in ("weights", "slower-step", "refuses-min_p") for line in changes.review.lines if f"accepts {name}" in line
    }
    open_ = [name for name, line in says.items() if line.startswith("not judged: ") and line.endswith("is not known; keep it")]
    assert open_ == unknown
    assert says["refuses-min_p"].endswith("remove it"), "what servers offer was compared"


def test_a_known_failure_that_healed_names_its_waiver():
    waived = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.WAIVED, waiver="https://x/1 (owner ada, until 2027-01-31)")
    healed = judgement(replace(FAILED, pair="draft-k3", outcome=Outcome.PASS), PytestOutcome.FAILED, waiver="https://x/1")
    (line,) = compare(replace(run_of(waived), status=DECIDED), replace(run_of(healed), status=DECIDED), SAME).healed
    about = "greedy of chat on draft-k3, waived before by https://x/1 (owner ada, until 2027-01-31)"
    assert line == f"healed: {about}; remove its waiver"


def test_two_models_are_said_with_what_changed():
    other = replace(OLD, plan=replace(OLD.plan, model="elsewhere"))
    changes = compare(OLD, other, replace(CHANGED, kinds=(ChangeKind.MODEL,)))
    assert changes.headline.endswith("; the runs name two models: target -> elsewhere")


def test_the_corners_are_in_every_format_and_escaped():
    hostile = replace(DECIDED_OLD, environment=replace(ENVIRONMENT, engine_version=HOSTILE))
    changes = compare(DECIDED_OLD, hostile, SAME, speed=SLOW)
    shown = upgrade(changes, "old-run")
    whole = replace(hostile, upgrade=shown)
    corner = "no finding; 1.82x"
    assert [(row.arm, row.old) for row in shown.corners[1:]] == [("baseline", "22.96 tokens/s, first token 25.6 ms"), ("draft-k3", corner)]
    assert shown.corners[2].change == "decode 0.72x [0.66, 0.78]"
    texts = [markdown.render(whole), html.render(whole), junit.render(whole), run_document.render(whole), "\n".join(lines(changes))]
    texts += [markdown.render_upgrade(shown), html.render_upgrade(shown), render(shown)]
    for text in texts:
        assert corner in text
        assert "SLOWER: the verify step of draft-k3" in text
        assert text is texts[3] or not set("\x1b\r\u202e") & set(text), "run.json holds the environment as it was"
    assert all("<script>" not in text for text in (texts[1], texts[6]))
    assert "specdec.upgrade.draft-k3.change" in texts[2]
    assert json.loads(render(shown))["case"] == "slower"
    assert run_document.read(texts[3], "run.json").upgrade == shown


def test_no_report_opens_with_nothing_wrong_where_the_baselines_answers_changed():
    """The answer on correctness is about speculation alone, which follows: the upgrade's headline stands before it."""
    run = replace(run_of(GOOD), status=DECIDED, upgrade=upgrade(compare(OLD, OLD, CHANGED), "old-run"))
    assert answer.correctness(run).text == "SPECULATION: nothing wrong found"
    assert answer.correctness(replace(run, upgrade=None)).text == "CORRECTNESS: nothing wrong found"
    for text in (markdown.render(run), html.render(run)):
        assert 0 < text.index("UPGRADE: ANSWERS CHANGED") < text.index("SPECULATION: nothing wrong found")


def test_the_baselines_speed_is_that_of_the_ratio_beside_it():
    """The verdict's own, of all its requests and boots, is another figure: two speeds of one server in one report are one too many."""
    plain = replace(DECODE, arm="baseline", old=231.0, new=219.5, ratio=0.95)
    first = replace(plain, figure=UpgradeFigure.TTFT, old=0.0119, new=0.0138)
    text = list(
        lines(compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=ComparedSpeed(ratios=(plain, first, replace(plain, workload="other")))))
    )
    assert "    old           231 tokens/s, first token 11.9 ms" in text
    assert "    new           219.5 tokens/s, first token 13.8 ms" in text
    assert any("decode speed of baseline (vacation): 231 tokens/s -> 219.5 tokens/s" in line for line in text)
    assert not any("22.96" in line for line in text)


def test_corners_that_do_not_fit_stand_below_each_other():
    text = list(lines(compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=SLOW)))
    assert [line.split("  ")[0] for line in text[2:5]] == ["arm", "baseline", "draft-k3"]
    wide = replace(SLOW, ratios=(DECODE, *(replace(DECODE, figure=kind) for kind in (UpgradeFigure.TTFT, UpgradeFigure.LENGTH))))
    stacked = list(lines(compare(DECIDED_OLD, DECIDED_OLD, SAME, speed=wide)))
    assert stacked[2:5] == [
        "by arm; old: reference 0.1.0; new: reference 0.1.0",
        "  baseline",
        "    old           22.96 tokens/s, first token 25.6 ms",
    ]


@pytest.mark.parametrize("kind, gates, how", [
    (ChangeKind.NUMERICS, UpgradeGates(), "which is tolerated"),
    (ChangeKind.CHAT_TEMPLATE, UpgradeGates(accepted=(accept("chat-template"),)), "as accepted"),
])  # fmt: skip
def test_a_tolerated_or_accepted_change_hides_nothing_that_is_unknown_beside_it(kind, gates, how):
    partly = replace(TOO_LITTLE, relation=BaselineRelation.CHANGED, kinds=(kind,))
    changes = compare(OLD, OLD, partly, gates=gates, day=TODAY)
    assert changes.headline == (
        f"NO FINDING in either run; the baseline's answers changed ({kind.value}), {how}; "
        "whether they changed otherwise is unknown: too few prompts were scored in both runs"
    )
    assert (changes.word, changes.is_worse) == (UpgradeWord.UNKNOWN, False)
    assert compare(OLD, OLD, replace(partly, kinds=(kind, ChangeKind.ENDS)), gates=gates, day=TODAY).is_worse
    stale = compare(OLD, OLD, partly, gates=UpgradeGates(accepted=(*gates.accepted, accept("ends"))), day=TODAY)
    assert any(line.startswith("not judged: qwen.yaml:9 accepts ends;") for line in stale.review.lines)


def test_an_accepted_broad_shift_hides_no_other_draws_that_are_not_accepted_too():
    both = replace(CHANGED, possible_kinds=(ChangeKind.DRAWS,))
    alone, accepted = (
        compare(OLD, OLD, both, gates=UpgradeGates(accepted=tuple(map(accept, names))), day=TODAY)
        for names in (("weights",), ("weights", "draws"))
    )
    assert (alone.word, accepted.word) == (UpgradeWord.UNKNOWN, UpgradeWord.FINE)
    assert "sampled answers follow another distribution, which the broad shift may explain or hide" in alone.headline
    assert compare(OLD, OLD, both).names == ("weights", "draws"), "both are to be accepted at once"


def decided(*judgements):
    """A complete run with some judgements."""
    return replace(run_of(*judgements), status=DECIDED)


@pytest.mark.parametrize("baseline, beginning", [(SAME, "CANNOT SAY"), (None, "NO NEW FINDING: 1 not decided now; ")])
def test_a_finding_of_the_old_run_that_is_not_decided_now_is_not_safe(baseline, beginning):
    elsewhere = judgement(replace(GREEDY, workload="windows"))
    open_ = judgement(replace(GREEDY, outcome=Outcome.INCONCLUSIVE), PytestOutcome.SKIPPED)
    changes = compare(decided(RED, elsewhere), decided(open_, elsewhere), baseline)
    assert changes.headline.startswith(beginning)
    assert "1 finding of the old run, not decided now" in changes.headline
    assert (changes.word, changes.findings.gone) == (UpgradeWord.UNKNOWN, ())
    assert "  not decided now: draft-k3: accept-all" in list(lines(changes))


def test_a_missed_speed_of_the_old_run_that_is_not_judged_now_is_counted_and_no_doubt_of_speculation():
    changes = compare(missed(), decided(GOOD_TOO), SAME)
    assert changes.headline.endswith("; no new finding: 1 not decided now; speed of draft-k3 is not compared")
    assert changes.word is UpgradeWord.FINE


@pytest.mark.parametrize("old", [RED, GOOD, replace(RED, result=PytestOutcome.WAIVED)])
def test_a_waived_finding_is_counted_in_a_safe_upgrade(old):
    changes = compare(decided(old), decided(replace(RED, result=PytestOutcome.WAIVED)), SAME)
    assert (changes.word, changes.headline) == (
        UpgradeWord.FINE,
        f"SAFE TO UPGRADE, as far as both runs were judged: {WITHIN}; no new finding: 1 waived",
    )
    assert "  waived: draft-k3: accept-all" in list(lines(changes))


NOISY = judgement(replace(RED.verdict, finding=Finding.TOO_NOISY, names=Finding.TOO_NOISY.value), PytestOutcome.FAILED)
NOISY_NOW = f"draft-k3: {Finding.TOO_NOISY}"


@pytest.mark.parametrize("baseline, beginning, end", [
    (SAME, f"NOISIER: {NOISY_NOW}; ", WITHIN),
    (CHANGED, "ANSWERS CHANGED, speculation follows: ", f"; no new finding but of noise; noisier: {NOISY_NOW}"),
])  # fmt: skip
def test_a_missed_gate_on_noise_is_worse_and_no_wrong_answer(baseline, beginning, end):
    changes = compare(OLD, decided(NOISY), baseline)
    assert (changes.word, changes.headline.startswith(beginning), changes.headline.endswith(end)) == (UpgradeWord.WORSE, True, True)
    assert compare(decided(NOISY), decided(NOISY), baseline).findings.noisier == ()


def test_a_missed_gate_on_noise_beside_others():
    unlooked = compare(decided(judgement(SAMPLED)), decided(judgement(SAMPLED), NOISY), SAME)
    assert unlooked.headline.endswith(f"; no new finding but of noise; missed, and not judged in the old run: {NOISY_NOW}")
    slow = compare(DECIDED_OLD, replace(missed(), judgements=(*missed().judgements, NOISY)), SAME)
    assert slow.headline == f"SLOWER: draft-k3: 0.81x; {WITHIN}; noisier: {NOISY_NOW}"
    assert compare(decided(NOISY), decided(RED), SAME).headline.startswith("SPECULATION BROKE IN THE NEW RUN: 1 new finding")
    assert compare(decided(RED), decided(NOISY), SAME).headline.startswith("CANNOT SAY: 1 finding where the old run failed by another")


@pytest.mark.parametrize("there, says", [
    ((Outcome.SUSPICIOUS,), "1 finding where the old run was suspicious"),
    ((Outcome.INVALID,), "1 finding where the old run was invalid"),
    ((Outcome.INVALID, Outcome.SUSPICIOUS), "1 finding where the old run was invalid, suspicious"),
    ((), "1 finding that the old run did not look for"),
])  # fmt: skip
def test_a_finding_where_the_old_run_decided_nothing_names_what_it_came_to(there, says):
    looked = [judgement(replace(GREEDY, outcome=outcome), PytestOutcome.FAILED) for outcome in there]
    for baseline, beginning in ((SAME, "WRONG IN THE NEW RUN: "), (CHANGED, f"ANSWERS CHANGED ({SHIFTED}); WRONG IN THE NEW RUN: ")):
        changes = compare(decided(*looked, judgement(SAMPLED)), decided(RED, judgement(SAMPLED)), baseline)
        assert changes.headline.startswith(f"{beginning}{says}"), changes.headline
        assert changes.word is UpgradeWord.WORSE


def test_findings_that_the_old_run_did_not_look_for_stand_beside_those_where_it_decided_nothing():
    looked = judgement(replace(GREEDY, outcome=Outcome.SUSPICIOUS), PytestOutcome.FAILED)
    other = judgement(replace(FAILED, pair="draft-k3", workload="drawn", names="torn"), PytestOutcome.FAILED)
    changes = compare(decided(looked), decided(RED, other), SAME)
    both = "1 finding where the old run was suspicious, 1 finding that the old run did not look for"
    assert changes.headline == f"WRONG IN THE NEW RUN: {both}; {WITHIN}"


def test_a_first_token_that_comes_much_later_is_said_beside_what_leads():
    late = replace(
        DECODE, figure=UpgradeFigure.TTFT, at_least=None, ruling=GateRuling.OPEN, old=0.1, new=2.0, ratio=20.0, low=19.6, high=21.0
    )
    changes = compare(OLD, OLD, SAME, speed=ComparedSpeed(ratios=(late,), late=(late, replace(late, arm="baseline", ratio=7.25))))
    assert changes.headline.endswith("; first token later, and not gated: draft-k3 (vacation) 20x, baseline (vacation) 7.25x")
    assert changes.word is UpgradeWord.FINE


def named(result, test):
    """A judgement by a test of its own, at the place of others."""
    return replace(result, nodeid=f"somewhere/test_greedy.py::{test}[draft-k3]")


WAIVED = replace(RED, result=PytestOutcome.WAIVED)
TORN = judgement(replace(RED.verdict, names="torn"), PytestOutcome.FAILED)


@pytest.mark.parametrize("old_a, new_a, new_b, beginning", [
    pytest.param(RED, RED, TORN, "SPECULATION BROKE", id="its neighbour failed before and after"),
    pytest.param(RED, GOOD, TORN, "SPECULATION BROKE", id="its neighbour healed"),
    pytest.param(WAIVED, WAIVED, TORN, "SPECULATION BROKE", id="waived"),
    pytest.param(RED, RED, RED, "SPECULATION BROKE", id="the same fault"),
    pytest.param(RED, None, GOOD, "CANNOT SAY: 1 finding of the old run, not decided now", id="the failed test was left out"),
    pytest.param(RED, GOOD, GOOD, "SAFE TO UPGRADE", id="healed"),
    pytest.param(GOOD, None, GOOD, "SAFE TO UPGRADE", id="a test that passed was left out"),
])  # fmt: skip
def test_two_tests_of_one_workload_do_not_stand_for_each_other(old_a, new_a, new_b, beginning):
    after = [named(result, test) for result, test in ((new_a, "test_a"), (new_b, "test_b")) if result is not None]
    changes = compare(decided(named(old_a, "test_a"), named(GOOD, "test_b")), decided(*after), SAME)
    assert changes.headline.startswith(beginning), changes.headline


def test_a_test_is_the_same_one_from_another_folder():
    moved = replace(GOOD, nodeid=f"elsewhere/{GOOD.nodeid}")
    assert compare(decided(moved), decided(RED), SAME).headline.startswith("SPECULATION BROKE")
    assert len(compare(decided(RED), decided(moved), SAME).findings.gone) == 1
