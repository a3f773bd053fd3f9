"""Speed of this machine gates what comes after it, and gets into its file only by the flag."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from pytest_specdec.gates import baseline_file
from pytest_specdec.model.baseline import Environment, Gate, PromptLength

HERE = Environment(engine="reference", engine_version="0", model="target", processor="p", cores=2, memory_gib=8.0)

TEST = (
    "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='speed')\ndef test_it(specdec_captured, specdec_check):\n"
    "    print('GATES', [(g.figure, g.at_least, g.source) for g in specdec_captured.gates])\n"
    "    specdec_check(say(specdec_captured, Outcome.NOT_DECIDED, promise=speedup(2.0)))\n\n\n"
    "@pytest.mark.specdec(CHAT, family='greedy')\ndef test_tokens(specdec_captured, specdec_check):\n"
    "    specdec_check(say(specdec_captured, Outcome.PASS))\n"
)


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
    assert [gate.pair for gate in baseline_file.read(path)] == ["draft-k3", "ngram-k3"]
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
    assert f"Baseline file tiny/{path.name}, 2 gates: nothing differs" in (project.path / "judged/report.md").read_text()
    named = project.run("--specdec-replay=judged", "--specdec-baselines=baselines", "-s", config=None)
    named.stdout.fnmatch_lines(["*GATES*('speedup', 9.9, 'tiny/p-*"])


def test_other_machines_are_not_comparable(project):
    other = Environment(engine="reference", engine_version="0", model="target", processor="q", cores=2, memory_gib=8.0)
    baseline_file.write(baseline_file.path(project.path / "elsewhere", "tiny", other), other, [Gate(figure="speedup", at_least=9.0)])
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
    path = baseline_file.path(project.path / "baselines", "tiny", HERE)
    baseline_file.write(path, HERE, [GATE, replace(gate, workload="other")])
    result = project.tests(TEST).run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    line = 1 + next(i for i, text in reversed(list(enumerate(path.read_text().splitlines()))) if "figure:" in text)
    message = result.stderr.str()
    for part in ("the baseline file has a gate that cannot fail", f"tiny/{path.name}:{line}  {key}", f"found:    {found}"):
        assert part in message
    assert not project.captures
    assert not project.runs


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
    assert [gate.pair for path in written for gate in baseline_file.read(named(path))] == ["ngram-k3"]


def named(path):
    """A candidate under the name of the machine, as it is moved to be used."""
    return path if path.name != "baseline-candidate.yaml" else path.rename(path.with_name(f"{HERE.machine}.yaml"))


@pytest.mark.parametrize("option", [(), ("--specdec-update-baselines",)], ids=["candidate", "update"])
def test_a_speed_of_answers_that_were_not_judged_becomes_no_baseline(project, option):
    result = project.tests(TEST.partition("@pytest.mark.specdec(CHAT, family='greedy')")[0]).run(*option)
    result.stdout.fnmatch_lines(["no baseline of draft-k3: whether its tokens are right was not judged: run suites/greedy*"])
    assert not [*project.path.glob("baselines/tiny/*"), *project.path.glob(".specdec/*/baseline-candidate.yaml")]
