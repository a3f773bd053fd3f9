"""Speed of this machine gates what comes after it, and gets into its file only by the flag."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace

import pytest

from pytest_specdec.files import baselines as gates
from pytest_specdec.model.baseline import Environment, Gate, PromptLength
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import baselines
from pytest_specdec.plugin.accepted_lengths import Results
from pytest_specdec.report.run import JudgementResult, PytestOutcome
from pytest_specdec.stats.boot_spread import boot_spread

HERE = Environment(engine="reference", engine_version="0", model="target", processor="p", cores=2, memory_gib=8.0)

TEST = (
    "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='speed')\ndef test_it(specdec_captured, specdec_check):\n"
    "    print('GATES', [(g.figure, g.at_least, g.source) for g in specdec_captured.gates])\n"
    "    specdec_check(say(specdec_captured, Outcome.NOT_DECIDED, figures={'speedup': 2.0}))\n\n\n"
    "@pytest.mark.specdec(CHAT, family='greedy')\ndef test_tokens(specdec_captured, specdec_check):\n"
    "    specdec_check(say(specdec_captured, Outcome.PASS))\n"
)


def speed(ratio, outcome=Outcome.PASS):
    about = {"family": Family.SPEED, "pair": "draft-k3", "workload": "chat", "headline": ""}
    return Verdict(outcome=outcome, figures={"speedup": ratio}, **about)


@pytest.mark.parametrize("folder", [False, True])
def test_without_a_file_a_candidate_is_shown_and_becomes_the_file_by_the_command_beside_it(project, folder):
    if folder:
        (project.path / "baselines/tiny").mkdir(parents=True)
    result = project.tests(TEST).run()
    (run,) = project.runs
    assert "at_least: 1.14" in (run / "baseline-candidate.yaml").read_text()
    assert list(project.path.glob("baselines/tiny/*")) == []
    (line,) = (line for line in result.outlines if line.startswith("baseline candidate: "))
    _, _, command = line.partition("; to gate on it: ")
    assert command.startswith("mv" if folder else "mkdir")
    subprocess.run(command, shell=True, cwd=project.path, check=True)
    result = project.run("-s")
    result.stdout.fnmatch_lines(["*GATES*('speedup', 1.0, *('speedup', 1.14, 'tiny/p-*"])
    result.stdout.no_fnmatch_line("baseline candidate: *")


def test_the_flag_writes_the_file_and_the_file_gates(project):
    result = project.tests(TEST).run("--specdec-update-baselines")
    result.stdout.fnmatch_lines(
        [
            "baseline updated: baselines/tiny/p-*.yaml",
            "  speedup draft-k3 chat: at_least 1.14 (*2.00x*1 run: add more*)",
        ]
    )
    (path,) = (project.path / "baselines/tiny").iterdir()
    assert [gate.pair for gate in gates.read(path)] == ["draft-k3", "ngram-k3"]
    result = project.run("-s")
    result.stdout.fnmatch_lines(["*GATES*('speedup', 1.0, 'tiny.yaml: gates.speedup (default)'), ('speedup', 1.14, 'tiny/p-*"])
    before = path.read_text()
    project.run("--specdec-baselines", str(path.parent.parent))
    assert path.read_text() == before


def test_a_replay_is_judged_by_the_file_that_the_run_was_judged_by(project):
    project.tests(TEST).run("--specdec-update-baselines")
    (path,) = (project.path / "baselines/tiny").iterdir()
    project.run("--specdec-run-dir=judged")
    path.write_text(path.read_text().replace("at_least: 1.14", "at_least: 9.9"))
    kept = project.run("--specdec-replay=judged", "-s", config=None)
    kept.stdout.fnmatch_lines(["*GATES*('speedup', 1.14, 'tiny/p-*"])
    named = project.run("--specdec-replay=judged", "--specdec-baselines=baselines", "-s", config=None)
    named.stdout.fnmatch_lines(["*GATES*('speedup', 9.9, 'tiny/p-*"])


def test_other_machines_are_not_comparable(project):
    other = Environment(engine="reference", engine_version="0", model="target", processor="q", cores=2, memory_gib=8.0)
    gates.write(baselines.path(project.path / "elsewhere", "tiny", other), other, [Gate(figure="speedup", at_least=9.0)])
    result = project.tests(TEST).run("--specdec-baselines=elsewhere", "-s")
    result.stdout.fnmatch_lines([f"note: *{HERE.machine}*{other.machine}*"])
    assert "9.0" not in result.stdout.str()


def test_published_figures_are_shown_and_gate_nothing(project):
    path = project.path / "suites/configs/tiny.yaml"
    speeds = "baseline_tokens_per_s: 22.96, speculative_tokens_per_s: 41.88, speedup: 1.82, acceptance_length: 2.01"
    path.write_text(path.read_text() + f"published: [{{{speeds}, setup: one card, source: a blog}}]\n")
    result = project.tests(TEST).run("-s")
    line = "note: published, never gated: 22.96 -> 41.88 tokens/s, 1.82x, acceptance length 2.01 (one card; a blog)"
    result.stdout.fnmatch_lines([line])
    assert "- published, never gated: 22.96" in (project.runs[0] / "report.md").read_text()
    assert "1.82" not in "".join(text for text in result.stdout.str().splitlines() if "GATES" in text)
    greedy = project.tests(TEST.replace("'speed'", "'greedy'")).run()
    assert "published, never" not in greedy.stdout.str()


@pytest.mark.parametrize("times, code", [(1, pytest.ExitCode.USAGE_ERROR), (2, pytest.ExitCode.OK)])
def test_under_ci_the_flag_is_meant_only_twice(project, monkeypatch, times, code):
    monkeypatch.setenv("CI", "true")
    assert project.tests(TEST).run(*["--specdec-update-baselines"] * times).ret == code


def test_a_stored_run_updates_nothing(project):
    project.tests(TEST).run()
    result = project.run("--specdec-update-baselines", f"--specdec-replay={project.runs[0]}", config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--specdec-update-baselines: found --specdec-replay*"])


def updated(folder, *ratios, accepted="", **figures):
    for number, ratio in enumerate(ratios, 1):
        verdict = replace(speed(ratio), figures={"speedup": ratio, **figures})
        results = Results(verdicts=(verdict,), accepted=accepted if number == len(ratios) else "")
        found = baselines.update(folder, "tiny", HERE, results)
    return found, gates.read(found.path)[0]


def test_runs_add_up_with_what_their_boots_showed(tmp_path):
    _, gate = updated(tmp_path, 2.0, 2.2, 1.9, 2.1, boot_log_ratio=0.02, tokens_per_step=2.5)
    assert gate.log_ratios == pytest.approx([math.log(ratio) for ratio in (2.0, 2.2, 1.9, 2.1)], abs=1e-5)
    assert gate.boot_log_ratios == (0.02,) * 4
    assert gate.log_tokens_per_step == pytest.approx([math.log(2.5)] * 4, abs=1e-5)


SIX = (1.67, 1.27, 1.25, 1.29, 1.26, 1.28)


def test_the_floor_follows_the_typical_run_and_not_the_luckiest(tmp_path):
    found, gate = updated(tmp_path, *reversed(SIX), boot_log_ratio=0.01)
    assert 1.05 < gate.at_least < 1.2
    (move,) = found.moves
    for figure in ("speedup draft-k3 chat", "at_least 1.14", "median 1.27x over 6 runs, less"):
        assert figure in move
    assert gate.reason in move
    assert updated(tmp_path / "lucky-first", *SIX, boot_log_ratio=0.01)[1].at_least == gate.at_least


def test_the_floor_of_a_lucky_first_run_comes_down_and_the_file_says_why(tmp_path):
    figures = {"boot_log_ratio": 0.01}
    first = updated(tmp_path, 2.3, **figures)[1]
    assert "over 1 run: add more, less" in first.reason
    _, gate = updated(tmp_path, *(2.0,) * 5, **figures)
    higher = gate.at_least
    assert len(gate.log_ratios) == 6
    _, gate = updated(tmp_path, 1.7, 1.7, 1.7, 1.7, 1.7, **figures)
    assert (gate.at_least < higher, gate.accepted_regression) == (True, "")
    assert "down from" in gate.reason
    assert (len(gate.log_ratios), len(gate.boot_log_ratios)) == (10, 10)
    assert gate.log_ratios[0] == pytest.approx(math.log(2.0), abs=1e-5), "the lucky one has left"


@pytest.mark.parametrize("ratios, why", [
    ((2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0), "as the typical run went from"),
    ((2.0, 2.0, 2.0, 1.7, 2.3, 1.6, 2.4), "runs show more spread than was reckoned with"),
])  # fmt: skip
def test_a_floor_that_comes_down_says_whether_runs_got_slower_or_only_vary_more(tmp_path, ratios, why):
    reasons = []
    for ratio in ratios:
        found, gate = updated(tmp_path, ratio, boot_log_ratio=0.01)
        reasons.append(gate.reason)
        assert gate.reason in found.moves[0]
    down = [reason for reason in reasons if "; down from" in reason]
    assert down
    assert all(why in reason for reason in down[-1:])


@pytest.mark.parametrize("apart", [0.0, -0.142])
def test_a_first_run_leaves_a_low_floor_and_a_lower_one_where_its_boots_lay_far_apart(tmp_path, apart):
    _, gate = updated(tmp_path, 1.61, boot_log_ratio=apart)
    spread = boot_spread((apart,))
    below = 1.645 * math.sqrt(1.5 * (1 + math.pi / 2)) * spread.sd + spread.half_width(0.0075, 1.5)
    assert gate.at_least == pytest.approx(1.61 * max(math.exp(-below), 0.55), abs=0.001)
    assert (gate.at_least < 1.0) is (apart != 0.0)
    assert f"where boots vary by {spread.sd:.1%}" in gate.reason


def test_a_floor_begun_anew_keeps_the_reason_of_the_regression(tmp_path):
    updated(tmp_path, 2.0, 2.1, boot_log_ratio=0.01)
    slow = replace(speed(1.2, Outcome.FAIL), figures={"speedup": 1.2, "boot_log_ratio": 0.01})
    found = baselines.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,), accepted="a new driver"))
    assert found.moves[0].endswith("; accepted: a new driver")
    assert "as the typical run went from 2.05x to 1.20x" in found.moves[0]
    found, later = updated(tmp_path, 1.26, boot_log_ratio=0.01)
    assert later.accepted_regression == "a new driver"


def test_what_failed_is_taken_only_with_a_reason_and_begins_anew(tmp_path):
    updated(tmp_path, 2.0, 2.1)
    slow = speed(1.2, Outcome.FAIL)
    assert baselines.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,))) is None
    assert baselines.refusal_lines([slow, speed(2.0)]) == (
        'draft-k3 chat failed and is not taken; if it is meant: --specdec-update-baselines --specdec-accept-regression "why"',
    )
    found = baselines.update(tmp_path, "tiny", HERE, Results(verdicts=(slow,), accepted="another draft model"))
    (gate,) = gates.read(found.path)
    assert (gate.log_ratios, gate.accepted_regression) == ((0.182322,), "another draft model")
    assert gate.at_least < 1.2


@pytest.mark.parametrize("figures, why", [
    ({"speedup_low": 0.8, "speedup_high": 3.1}, "1.60x [0.80, 3.10] is too wide for a floor"),
    ({"passes_low": 1.2, "passes_high": 2.1}, "1.60x [1.20, 2.10] over the passes alone is too wide for a floor"),
    ({"disturbed": 1.0}, "the client could not keep up"),
    ({"busy_machine": 1.0}, "the machine was busy while servers were timed"),
])  # fmt: skip
def test_no_floor_is_made_of_a_wide_interval_nor_of_times_that_are_not_the_servers(tmp_path, figures, why):
    unfit = replace(speed(1.6, Outcome.NOT_DECIDED), figures={"speedup": 1.6, **figures}, reason="the client could not keep up")
    assert baselines.update(tmp_path, "tiny", HERE, Results(verdicts=(unfit,))) is None
    assert baselines.candidate(tmp_path, HERE, Results(verdicts=(unfit,))) is None
    assert baselines.refusal_lines([unfit], "whatever else was accepted") == (f"draft-k3 chat is not taken: {why}",)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--specdec-accept-regression=why"], "*--specdec-accept-regression: found no --specdec-update-baselines*"),
        (["--specdec-update-baselines", "--specdec-accept-regression= "], "*--specdec-accept-regression: found an empty value*"),
    ],
)
def test_a_regression_is_accepted_with_a_reason_in_an_update(project, options, message):
    result = project.tests(TEST).run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


GATE = Gate(figure="speedup", at_least=1.7, pair="draft-k3", workload="chat", log_ratios=(0.69, 0.7, 0.68))


@pytest.mark.parametrize(
    "gate, key, found",
    [
        (replace(GATE, at_least=0.9), "at_least", "0.9 under a median of 1.99x"),
        (Gate(figure="acceptance_length", at_least=1.0), "at_least", "1"),
        (
            Gate(figure="acceptance_length", digest="d", lengths={"a": PromptLength(tokens_per_step=2.0, steps=9, request="a")}),
            "lengths",
            "1 requests",
        ),
    ],
)
def test_a_gate_that_cannot_fail_ends_the_session_before_anything_boots(project, gate, key, found):
    path = baselines.path(project.path / "baselines", "tiny", HERE)
    gates.write(path, HERE, [GATE, replace(gate, workload="other")])
    result = project.tests(TEST).run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    line = 1 + next(i for i, text in reversed(list(enumerate(path.read_text().splitlines()))) if "figure:" in text)
    message = result.stderr.str()
    for part in ("the baseline file has a gate that cannot fail", f"tiny/{path.name}:{line}  {key}", f"found:    {found}"):
        assert part in message
    assert not project.captures
    assert not project.runs


def test_floors_that_runs_bring_about_can_fail(tmp_path):
    for count in (1, 2, 6, 20):
        updated(tmp_path / str(count), *[2.0, 1.6] * count)
        baselines.check(tmp_path / str(count), "tiny")


def test_a_floor_of_another_draft_is_not_used_and_that_is_said(tmp_path):
    then = replace(HERE, variants={"draft-k3": {"model": "m", "draft": "model a, 3 tokens", "dtype": "auto", "flags": "1"}})
    now = replace(then, variants={"draft-k3": {**then.variants["draft-k3"], "draft": "model b, 3 tokens"}})
    upgraded = replace(then, engine_version="1")
    results = Results(verdicts=(speed(2.0),))
    baselines.update(tmp_path, "tiny", then, results)
    assert [gate.changes for gate in baselines.gates(tmp_path, "tiny", upgraded)] == [("engine reference 0 -> reference 1",)]
    assert baselines.notes(tmp_path, "tiny", upgraded) == ()
    assert baselines.gates(tmp_path, "tiny", now) == ()
    (note,) = baselines.notes(tmp_path, "tiny", now)
    assert "floor not used: speedup at least 1.14 (tiny/p-" in note
    assert "another draft model a, 3 tokens -> model b, 3 tokens" in note
    baselines.update(tmp_path, "tiny", now, results)
    assert [len(gate.log_ratios) for gate in baselines.gates(tmp_path, "tiny", now)] == [1]


def test_a_floor_comes_closer_as_runs_agree(tmp_path):
    floors = [updated(tmp_path / str(count), *[2.0] * count)[1].at_least for count in (1, 4, 12)]
    assert floors == sorted(floors)
    assert floors[-1] == pytest.approx(2.0 * math.exp(-0.1), abs=0.01)


def test_one_slow_run_moves_a_floor_of_many_little(tmp_path):
    before = updated(tmp_path / "a", *[2.0] * 9)[1].at_least
    after = updated(tmp_path / "b", *[2.0] * 9, 1.9)[1].at_least
    assert after == pytest.approx(before, rel=0.01)


WHOLE = replace(speed(2.0), figures={**speed(2.0).figures, "answers_in_one_burst": 1.0})


@pytest.mark.parametrize("verdicts", [[], [speed(0.5, Outcome.FAIL)], [WHOLE]], ids=["nothing", "failed", "whole requests"])
def test_what_was_not_timed_or_failed_is_not_taken(tmp_path, verdicts):
    assert baselines.update(tmp_path, "tiny", HERE, Results(verdicts=tuple(verdicts))) is None
    assert baselines.candidate(tmp_path, HERE, Results(verdicts=tuple(verdicts))) is None
    assert not list(tmp_path.iterdir())


def test_a_speed_of_whole_requests_is_not_taken_and_that_is_said():
    (line,) = baselines.refusal_lines([WHOLE])
    assert line.startswith("draft-k3 chat is not taken: answers came in one burst")


WRONG = TEST.replace(
    "Outcome.PASS))", "Outcome.FAIL if specdec_captured.pair.variant.name == 'draft-k3' else Outcome.PASS, names='accept-all'))"
)


@pytest.mark.parametrize(
    "options, line",
    [
        ((), "no baseline of draft-k3: it is not clean: greedy failed"),
        (("--specdec-update-baselines",), "no baseline of draft-k3: it is not clean: greedy failed"),
        (("--specdec-update-baselines", "--specdec-accept-regression=meant"), "no baseline of draft-k3: it is not clean: greedy failed"),
    ],
    ids=["candidate", "update", "accepted"],
)
def test_a_red_run_becomes_no_baseline_whatever_is_accepted(project, options, line):
    result = project.tests(WRONG).run(*options)
    assert line in result.outlines
    written = [*project.path.glob("baselines/tiny/*"), *project.path.glob(".specdec/*/baseline-candidate.yaml")]
    assert [gate.pair for path in written for gate in gates.read(named(path))] == ["ngram-k3"]


def named(path):
    """A candidate under the name of the machine, as it is moved to be used."""
    return path if path.name != "baseline-candidate.yaml" else path.rename(path.with_name(f"{HERE.machine}.yaml"))


@pytest.mark.parametrize("option", [(), ("--specdec-update-baselines",)], ids=["candidate", "update"])
def test_a_speed_of_answers_that_were_not_judged_becomes_no_baseline(project, option):
    result = project.tests(TEST.partition("@pytest.mark.specdec(CHAT, family='greedy')")[0]).run(*option)
    result.stdout.fnmatch_lines(["no baseline of draft-k3: whether its tokens are right was not judged: run suites/greedy*"])
    assert not [*project.path.glob("baselines/tiny/*"), *project.path.glob(".specdec/*/baseline-candidate.yaml")]


def judged(outcome, result, family=Family.GREEDY):
    verdict = Verdict(outcome=outcome, family=family, pair="draft-k3", workload="chat", headline="")
    return JudgementResult(nodeid="", pair="draft-k3", workload="chat", family=family, result=result, verdict=verdict)


@pytest.mark.parametrize(
    "results, clean",
    [
        ([judged(Outcome.PASS, PytestOutcome.PASSED)], True),
        ([judged(Outcome.PASS, PytestOutcome.PASSED, Family.SAMPLING)], True),
        ([judged(Outcome.PASS, PytestOutcome.PASSED), judged(Outcome.FAIL, PytestOutcome.FAILED, Family.LIVENESS)], False),
        ([judged(Outcome.PASS, PytestOutcome.PASSED), judged(Outcome.FAIL, PytestOutcome.WAIVED, Family.TOOLS)], False),
        ([judged(Outcome.PASS, PytestOutcome.PASSED), judged(Outcome.FAIL, PytestOutcome.FAILED, Family.SPEED)], True),
        ([judged(Outcome.FAIL, PytestOutcome.SKIPPED)], True),  # lossy: reported and not gated
        ([judged(Outcome.INCONCLUSIVE, PytestOutcome.SKIPPED)], False),
        ([judged(Outcome.PASS, PytestOutcome.PASSED, Family.STATE)], False),
        ([judged(Outcome.PASS, PytestOutcome.PASSED), judged(Outcome.SUSPICIOUS, PytestOutcome.FAILED, Family.SAMPLING)], False),
    ],
)
def test_a_variant_is_clean_where_its_tokens_were_judged_and_nothing_failed(results, clean):
    assert (baselines.unclean(results) == {}) is clean
