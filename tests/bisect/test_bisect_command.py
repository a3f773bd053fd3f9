"""The command ``bisect``, with pytest replaced by what it would write: results, resumption, deadlines and errors."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec import bisect_command
from pytest_specdec.__main__ import main
from pytest_specdec.bisect import process, search
from pytest_specdec.errors import DeadlineError
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import run as runs
from pytest_specdec.report.run import PytestOutcome
from tests.report.runs import FAILED, GREEDY, judgement, run_of

CONFIG = """
engine: {kind: reference, model: target, venv: "${SPECDEC_ENVIRONMENT}", environment: [make, "{version}", "{folder}"]}
variants: {draft-k3: {args: {speculative-config: {method: ngram}}}}
"""
NAMES = ("0.1", "0.2", "0.3", "0.4", "0.5")
GREEN = run_of(judgement(GREEDY, nodeid="test_it"))
RED = run_of(judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED, nodeid="test_it"))
UNDECIDED = run_of(judgement(replace(GREEDY, outcome=Outcome.INCONCLUSIVE), PytestOutcome.FAILED, nodeid="test_it"))
SAMPLED = replace(GREEDY, family=Family.SAMPLING, outcome=Outcome.INCONCLUSIVE)
UNDECIDED_SAMPLING = run_of(judgement(SAMPLED, PytestOutcome.FAILED, nodeid="test_it"))
WITHOUT_VERDICT = run_of(judgement(None, PytestOutcome.SKIPPED, nodeid="test_it", pair="draft-k3", workload="chat", family=GREEDY.family))


class Server:
    """Stands for pytest and for the environments' command, and counts what was run."""

    def __init__(self):
        self.asked = []
        self.made = []
        self.commands = []
        self.log = "ERROR: unknown option\n"
        self.answers = {release: RED if release >= "0.3" else GREEN for release in NAMES}
        """By release a run, a list of them for one after the other, an exit code without a run, or an exception."""

    def run(self, command, log, variables, *, folder, deadline):
        release = variables["SPECDEC_VERSION"]
        if command[0] == "make":
            self.made.append(release)
            Path(command[2]).mkdir()
            return 0
        self.asked.append(release)
        self.commands.append(command)
        answer = self.answers[release]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, int):
            atomic_write(log, self.log)
            return answer
        (directory,) = [word.partition("=")[2] for word in command if word.startswith(("--specdec-run-dir=", "--specdec-continue="))]
        atomic_write(Path(directory) / "run.json", runs.render(answer))
        return answer.run_class.exit_code


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate.yaml").write_text(CONFIG)
    server = Server()
    monkeypatch.setattr(process, "run", server.run)
    return server


def bisect(*arguments, good="0.1", bad="0.5"):
    return main(["bisect", "gate.yaml", "tests.py", "--good", good, "--bad", bad, "--releases", ",".join(NAMES), *arguments])


def state():
    return json.loads(Path(".specdec/bisect-gate-0.1-0.5/bisect.json").read_text())


def test_the_first_bad_release_is_named_with_its_finding_and_replay(server, capsys):
    assert bisect("-k", "greedy") == 0
    assert server.asked == ["0.5", "0.1", "0.3", "0.2", "0.2"]
    assert server.made == ["0.5", "0.1", "0.3", "0.2"]
    assert server.commands[0][3:6] == ("tests.py", "-k", "greedy")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good 0.1, bad 0.5, 3 releases between: about 5 runs"
    assert lines[-4:] == [
        f"The first bad release is 0.3: accept-all: {FAILED.headline}",
        "The last good release is 0.2.",
        "Run: .specdec/bisect-gate-0.1-0.5/runs/0.3-1",
        f"Replay it: {RED.judgements[0].replay}",
    ]
    assert [(trial["release"], trial["answer"]) for trial in state()["trials"][-2:]] == [("0.2", "good"), ("0.2", "good")]


def test_a_release_that_cannot_be_tested_is_left_out_and_named(server, capsys):
    server.answers["0.2"] = 4
    assert bisect() == 1
    assert "The first bad release is one of 0.2, 0.3; 0.3 is bad: accept-all" in (output := capsys.readouterr().out)
    assert "0.2 cannot be tested: ERROR: unknown option\n" in output
    assert server.asked.count("0.2") == 1


def test_a_last_good_release_that_is_not_confirmed_is_named_and_tried_again(server, capsys):
    server.answers["0.2"] = [GREEN, UNDECIDED]
    assert bisect() == 1
    output = capsys.readouterr().out
    assert "The first bad release is one of 0.2, 0.3; 0.3 is bad: accept-all" in output
    assert "The last good release is 0.2 by 1 green run, fewer than it needs.\n0.2 cannot be tested: 0 of 3,072 tokens wrong\n" in output
    assert server.asked == ["0.5", "0.1", "0.3", *["0.2"] * 4]
    server.answers["0.2"] = GREEN
    assert bisect() == 0
    assert server.asked[7:] == ["0.2"]
    assert [trial["answer"] for trial in state()["trials"][3:]] == ["good", "good"]


def test_an_interrupted_bisect_goes_on_and_runs_nothing_again(server, capsys):
    server.answers["0.3"] = [KeyboardInterrupt(), RED]
    assert bisect() == 130
    assert (
        "The first bad release is one of 0.2, 0.3, 0.4, 0.5; the next run is of 0.3. The same command goes on." in capsys.readouterr().out
    )
    assert bisect() == 0
    assert server.asked == ["0.5", "0.1", "0.3", "0.3", "0.2", "0.2"]
    assert server.made == ["0.5", "0.1", "0.3", "0.2"]
    capsys.readouterr()
    assert bisect() == 0
    assert len(server.asked) == 6
    assert "The first bad release is 0.3" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_the_first_run_ends_alike(server, capsys, monkeypatch, number):
    """pip is asked for the releases, which may take a minute; CI systems cancel by SIGTERM."""

    def list_releases(package, ends):
        assert signal.getsignal(number) is not signal.SIG_DFL
        signal.raise_signal(number)

    monkeypatch.setattr(bisect_command, "list_releases", list_releases)
    assert main(["bisect", "gate.yaml", "--good", "0.1", "--bad", "0.5"]) == 130
    assert capsys.readouterr().out == "Interrupted. The same command goes on.\n"
    assert not server.asked


def test_a_pytest_that_cannot_be_started_is_one_error_and_keeps_earlier_runs(server, capsys):
    server.answers["0.1"] = FileNotFoundError(2, "No such file or directory", sys.executable)
    assert bisect() == 2
    error = capsys.readouterr().err
    assert error.startswith("pytest cannot be started\n")
    assert f"found:    {sys.executable}: No such file or directory" in error
    assert [trial["release"] for trial in state()["trials"]] == ["0.5"]


def test_a_bisect_that_is_out_of_time_says_what_is_left(server, capsys):
    server.answers["0.1"] = DeadlineError("the time is up")
    assert bisect("--minutes", "5") == 1
    assert capsys.readouterr().out.endswith("The ends are not verified yet; the next run is of 0.1. The same command goes on.\n")


def test_no_environment_is_made_after_the_time_is_up(server, capsys):
    assert bisect("--minutes", "1e-9") == 1
    assert "The time is up.\n" in capsys.readouterr().out
    assert not server.made


def test_a_search_without_progress_is_one_error_and_keeps_its_runs(server, capsys, monkeypatch):
    """Planted: a release that cannot be tested is not left out."""
    monkeypatch.setattr(search._Tally, "is_untestable", False)
    server.answers["0.2"] = 4
    assert bisect() == 2
    assert "the search makes no progress at 0.2\n" in capsys.readouterr().err
    assert [trial["release"] for trial in state()["trials"]] == ["0.5", "0.1", "0.3", *["0.2"] * 4]


@pytest.mark.parametrize("undecided, again", [
    (UNDECIDED_SAMPLING, "--specdec-continue={}/0.3-1"),
    (UNDECIDED, "--specdec-run-dir={}/0.3-2"),
], ids=["sampling", "greedy"])  # fmt: skip
def test_an_undecided_run_is_continued_where_more_answers_settle_it(server, undecided, again):
    server.answers["0.3"] = [undecided, RED]
    assert bisect() == 0
    folder = Path(".specdec/bisect-gate-0.1-0.5/runs").absolute()
    assert server.commands[2][-2:] == (f"--specdec-run-dir={folder}/0.3-1", "--specdec-exit-codes")
    assert server.commands[3][-2:] == (again.format(folder), "--specdec-exit-codes")


SKIPPED_SAMPLING = judgement(SAMPLED, PytestOutcome.SKIPPED, nodeid="test_it")
"""As at smoke depth, where an inconclusive verdict does not fail."""
OTHER_GREEN = judgement(GREEDY, nodeid="test_other")
OTHER_RED = judgement(replace(FAILED, pair="draft-k3"), PytestOutcome.FAILED, nodeid="test_other")


@pytest.mark.parametrize("release, beside", [
    ("0.3", OTHER_GREEN),
    ("0.3", OTHER_RED),
    ("0.5", OTHER_GREEN),
], ids=["a green test beside", "a red test beside", "at the bad end"])  # fmt: skip
def test_an_undecided_run_is_continued_whatever_its_exit_code(server, release, beside):
    server.answers[release] = [run_of(SKIPPED_SAMPLING, beside), RED]
    assert bisect() == 0
    folder = Path(".specdec/bisect-gate-0.1-0.5/runs").absolute()
    number = server.asked.index(release)
    assert server.commands[number + 1][-2] == f"--specdec-continue={folder}/{release}-1"


def test_an_undecided_run_that_cannot_be_continued_is_made_anew(server):
    """pytest ends with 4 where machine or package have changed since."""
    server.answers["0.3"] = [UNDECIDED_SAMPLING, 4, RED]
    assert bisect() == 0
    folder = Path(".specdec/bisect-gate-0.1-0.5/runs").absolute()
    assert [command[-2] for command in server.commands[3:5]] == [f"--specdec-continue={folder}/0.3-1", f"--specdec-run-dir={folder}/0.3-2"]


def test_a_green_run_with_another_test_undecided_is_not_continued(server):
    """The last good release needs two runs of its own."""
    server.answers["0.2"] = run_of(GREEN.judgements[0], judgement(SAMPLED, PytestOutcome.FAILED, nodeid="test_other"))
    assert bisect() == 0
    folder = Path(".specdec/bisect-gate-0.1-0.5/runs").absolute()
    assert [command[-2] for command in server.commands[3:]] == [f"--specdec-run-dir={folder}/0.2-{number}" for number in (1, 2)]


def answers_of(**red):
    """A run in which tests have the findings ``red`` by name, and pass without one."""
    failed = replace(FAILED, pair="draft-k3")
    return run_of(*(
        judgement(replace(failed, names=finding), PytestOutcome.FAILED, nodeid=name) if finding else judgement(GREEDY, nodeid=name)
        for name, finding in red.items()
    ))  # fmt: skip


OLD = answers_of(test_old="double softmax", test_new="")
BOTH = answers_of(test_old="double softmax", test_new="accept-all")


def test_an_older_fault_does_not_mislead_the_search(server, capsys):
    server.answers = {release: BOTH if release >= "0.3" else OLD for release in NAMES}
    assert bisect() == 0
    assert server.asked == ["0.5", "0.1", "0.3", "0.2", "0.2"]
    output = capsys.readouterr().out
    assert f"The first bad release is 0.3: accept-all: {FAILED.headline}\n" in output
    assert "Red at 0.1, the good end, too, and not counted: test_old. If it is the same fault, give an older release as --good.\n" in output
    assert "another finding" not in output
    assert [(trial["release"], trial["answer"], trial["name"]) for trial in state()["trials"][:3]] == [
        ("0.5", "bad", "accept-all"),
        ("0.1", "good", ""),
        ("0.3", "bad", "accept-all"),
    ]


def test_an_older_fault_that_comes_and_goes_is_known_late(server, capsys):
    """The good end shows it in its second run; the releases that were bad for it alone are judged again."""
    clean = answers_of(test_old="", test_new="")
    server.answers = {"0.1": [clean, OLD], "0.2": [OLD, clean], "0.3": BOTH, "0.4": BOTH, "0.5": BOTH}
    assert bisect() == 0
    assert f"The first bad release is 0.3: accept-all: {FAILED.headline}\n" in capsys.readouterr().out


def test_the_good_end_is_bad_if_it_has_every_fault_of_the_bad_end(server, capsys):
    server.answers = dict.fromkeys(NAMES, OLD) | {"0.1": BOTH}
    assert bisect() == 1
    assert "0.1, the good end, is bad: double softmax" in capsys.readouterr().out


def test_a_flaky_release_is_found_though_its_first_run_was_green(server, capsys):
    server.answers["0.2"] = [GREEN, RED]
    assert bisect() == 0
    assert "The first bad release is 0.2" in capsys.readouterr().out
    assert server.asked == ["0.5", "0.1", "0.3", "0.2", "0.2", "0.1", "0.1", "0.1"]


@pytest.mark.parametrize("answers, line", [
    (dict.fromkeys(NAMES, GREEN), "0.5, the bad end, is green in 2 runs."),
    (dict.fromkeys(NAMES, RED), "0.1, the good end, is bad: accept-all"),
    (dict.fromkeys(NAMES, 4), "0.5 cannot be tested: ERROR: unknown option"),
    (dict.fromkeys(NAMES, replace(run_of(), status=None)), "0.5 cannot be tested: no test has a result"),
    (dict.fromkeys(NAMES, WITHOUT_VERDICT), "0.5 cannot be tested: no verdict"),
], ids=["green", "red", "usage", "no test", "no verdict"])  # fmt: skip
def test_ends_that_are_not_as_stated_are_said(server, capsys, answers, line):
    server.answers = answers
    assert bisect() == 1
    assert line in capsys.readouterr().out


def test_a_run_without_output_is_said_with_its_exit_code(server, capsys):
    server.answers, server.log = dict.fromkeys(NAMES, 4), ""
    assert bisect() == 1
    assert "0.5 cannot be tested: no output; exit code 4\n" in capsys.readouterr().out


def test_another_name_at_the_bad_end_is_said(server, capsys):
    other = replace(RED.judgements[0], verdict=replace(RED.judgements[0].verdict, names="double softmax"))
    server.answers["0.5"] = run_of(other)
    assert bisect() == 0
    assert "At 0.5 the same tests are red with another finding: double softmax." in capsys.readouterr().out


def test_another_question_in_the_same_folder_is_one_error(server, capsys):
    assert bisect("--folder", "here") == 0
    assert bisect("--folder", "here", "--depth", "deep") == 2
    assert "the folder holds another bisect" in (error := capsys.readouterr().err)
    assert "depth: 'smoke', now 'deep'" in error
    Path("gate.yaml").write_text(f"{CONFIG}# changed\n")
    assert bisect("--folder", "here") == 2
    assert "config digest: " in capsys.readouterr().err


@pytest.mark.parametrize("change, difference", [
    (("--releases", "0.1,0.2,0.3,0.5"), "releases: ('0.1', '0.2', '0.3', '0.4', '0.5'), now ('0.1', '0.2', '0.3', '0.5')"),
    (("--package", "another"), "package: '', now 'another'"),
])  # fmt: skip
def test_other_releases_in_the_same_folder_are_one_error(server, capsys, change, difference):
    assert bisect() == 0
    count = len(server.asked)
    assert bisect(*change) == 2
    assert "the folder holds another bisect" in (error := capsys.readouterr().err)
    assert difference in error
    assert len(server.asked) == count


def test_a_bisect_goes_on_without_its_releases(server):
    server.answers["0.3"] = [KeyboardInterrupt(), RED]
    assert bisect() == 130
    assert main(["bisect", "gate.yaml", "tests.py", "--good", "0.1", "--bad", "0.5"]) == 0


@pytest.mark.parametrize("text, found", [
    ("{", "Expecting property name"),
    ("7", "'int' object is not iterable"),
    ("[]", "the file is of another kind"),
    ('{"schema": "pytest-specdec:bisect:9"}', "a newer release wrote this run"),
    ('{"schema": "pytest-specdec:bisect:1"}', "this is no Record"),
])  # fmt: skip
def test_a_spoilt_file_is_one_error(server, capsys, text, found):
    atomic_write(Path("here/bisect.json"), text)
    assert bisect("--folder", "here") == 2
    assert (error := capsys.readouterr().err).startswith("the file of the bisect cannot be read\n")
    assert f"found:    {found}" in error
    assert not server.asked


def test_a_release_without_an_environment_is_tried_again_by_the_next_command(server, monkeypatch):
    working, broken = server.run, ["0.3"]

    def run(command, log, variables, **options):
        if command[0] == "make" and variables["SPECDEC_VERSION"] in broken:
            return 3
        return working(command, log, variables, **options)

    monkeypatch.setattr(process, "run", run)
    assert bisect() == 1
    assert [(trial["release"], trial["answer"]) for trial in state()["trials"] if not trial["run"]] == [("0.3", "untestable")]
    broken.clear()
    assert bisect() == 0
    assert server.asked.count("0.3") == 1


@pytest.mark.parametrize("broken, answer", [("0.1", UNDECIDED), ("0.3", UNDECIDED), ("0.3", 4), ("0.5", 5)])
def test_a_release_that_could_not_be_tested_is_tried_again_by_the_next_command(server, capsys, broken, answer):
    server.answers[broken], mended = answer, server.answers[broken]
    assert bisect() == 1
    assert f"{broken} cannot be tested: " in capsys.readouterr().out
    server.answers[broken], tried = mended, len(server.asked)
    assert bisect() == 0
    assert server.asked[tried] == broken


def test_a_mended_config_is_searched_in_another_folder(server, capsys):
    server.answers["0.5"] = 4
    assert bisect() == 1
    assert "Next: mend that and give the same command again, with --folder F if the config changes; or give" in capsys.readouterr().out
    Path("gate.yaml").write_text(f"{CONFIG}# mended\n")
    server.answers["0.5"] = RED
    assert bisect() == 2
    assert bisect("--folder", "F") == 0


@pytest.mark.parametrize("option, value", [("--minutes", "0"), ("--disk", "-1"), ("--detection", "1.5")])
def test_a_bound_out_of_range_is_one_error(server, capsys, option, value):
    assert bisect(option, value) == 2
    assert capsys.readouterr().err.startswith(f"{option} is out of range")
