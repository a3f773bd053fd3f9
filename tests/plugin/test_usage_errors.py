"""Wrong usage ends the session with exit code 4 and a sentence, never with a traceback, and before anything boots."""

from __future__ import annotations

import pytest

from pytest_specdec.plugin.options import DEPTHS

OPTIONS = [
    (("--specdec-depth=depe",), "*--specdec-depth: *'depe'*'deep'?*"),
    (("--specdec-report=pdf",), "*--specdec-report: *md*'pdf'*"),
    (("--specdec-deadline=-1",), "*--specdec-deadline*-1*"),
    (("--specdec-deadline=soon",), "*--specdec-deadline: *1h30m*'soon'*"),
    (("--specdec-deadline=0m",), "*--specdec-deadline*0m*"),
    (("--specdec-config=",), "*--specdec-config: *empty*variable*"),
    (("--specdec-run-dir=",), "*--specdec-run-dir: *empty*"),
    (("--specdec-replay=",), "*--specdec-replay: *empty*"),
    (("--specdec-depth=",), "*--specdec-depth: *empty*"),
    (("--specdec-replay=nowhere",), "*--specdec-replay: *plan.json*nowhere*"),
    (("--specdec-run-dir=.",), "*--specdec-run-dir: * in use*"),
    (("--specdec-boots=0",), "*--specdec-boots: *at least 1*found 0*"),
    (("--specdec-boots=two",), "*--specdec-boots*'two'*"),
    (("--specdec-boots=2",), "*no selected test measures speed*"),
    (("--specdec-config=tinny",), "*tinny*'tiny'?*"),
]


@pytest.mark.examples(3)
@pytest.mark.parametrize(
    "args, line",
    [*OPTIONS, pytest.param((*OPTIONS[-1][0], "-n2"), OPTIONS[-1][1], marks=pytest.mark.nightly)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_a_usage_error(project, args, line):
    result = project.tests().run(*args, subprocess="-n2" in args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert not project.captures


@pytest.mark.parametrize("text, seconds", [("90", 90), ("1.5", 1.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5h", 1800)])
def test_a_deadline_is_seconds_or_says_its_unit(project, text, seconds):
    project.tests().run(f"--specdec-deadline={text}")
    assert [capture["deadline_s"] for capture in project.captures] == [seconds]


@pytest.mark.parametrize("name", ["my-model", "my-model.yaml", "./my-model", "there/my-model"])
def test_a_config_is_found_where_one_stands_by_its_bare_name(project, name):
    for folder in (project.path, project.path / "there"):
        folder.mkdir(exist_ok=True)
        (folder / "my-model.yaml").write_text((project.path / "suites/configs/tiny.yaml").read_text())
    project.tests().run(config=name).assert_outcomes(passed=4)


def test_no_config_is_a_usage_error_only_when_tests_need_one(project):
    result = project.tests().run(config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no config is named*", "*--specdec-config=NAME*init*"])
    project.tests("def test_it(): pass\n").run(config=None).assert_outcomes(passed=1)


def test_a_wrong_config_tells_all_its_problems(project):
    result = project.config("alow_inconclusive: []\nlossy: maybe\n").tests().run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*tiny.yaml:6*alow_inconclusive*'allow_inconclusive'?*", "*tiny.yaml:7*lossy*"])


MARKS = [
    ("@pytest.mark.specdec(CHAT, family='gredy')", "*family='gredy'*'greedy'?*"),
    ("@pytest.mark.specdec(CHAT)", "*found family=None*"),
    ("@pytest.mark.specdec(CHAT, family=['greedy'])", "*found family=[[]'greedy'[]]*"),  # of a type that no mapping can look up
    ("@pytest.mark.specdec(family='greedy')", "*test_it*: found no workload*"),
    ("@pytest.mark.specdec('chat', family='greedy')", "*found 'chat' (str)*"),
    ("@pytest.mark.specdec(CHAT, 'greedy')", "*found 2 positional arguments*"),
    ("@pytest.mark.specdec(CHAT, familly='greedy')", "*found familly=*"),
    ("", "*test_it.py:* test_it*: *no mark*"),
]


@pytest.mark.parametrize("mark, line", MARKS, ids=[mark or "no mark" for mark, _ in MARKS])
def test_a_wrong_mark_is_a_usage_error(project, mark, line):
    project.tests(f"import pytest\nfrom sample import *\n\n{mark}\ndef test_it(specdec_captured): pass\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line, "*remedy:   @pytest.mark.specdec(WORKLOAD, family=*"])


def test_a_mark_without_its_fixture_is_a_usage_error(project):
    project.tests("import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\ndef test_it(): pass\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it*fixture specdec_captured*"])


def test_two_workloads_of_one_name_are_a_usage_error(project):
    project.tests(
        "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\ndef test_one(specdec_captured): pass\n\n"
        "@pytest.mark.specdec(workload('chat', 5), family='liveness')\ndef test_two(specdec_captured): pass\n"
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*different workloads*chat*"])


def test_the_choices_are_those_of_the_model():
    from pytest_specdec.model.workload import Depth

    assert tuple(Depth) == DEPTHS
