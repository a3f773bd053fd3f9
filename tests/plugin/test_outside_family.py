"""A family of another package: found by entry point, planned, judged, shown, stored and judged again."""

from __future__ import annotations

import json
import os
import shutil

import jsonschema
import pytest

from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.families import CORRECTNESS_ALPHA, RESERVED
from tests.plugin.conftest import TESTS

ROW = """
from pytest_specdec.model.families import Budget, FamilyRow

TONE = FamilyRow(
    name="acme.tone",
    judge="acme_tone.judge",
    promise="as polite as the baseline",
    budget=Budget.CORRECTNESS,
    part=0.05,
    workloads=1,
    lossy=True,
)
"""

JUDGE = """
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Outcome


def judge(captured):
    answers = captured.speculative.answers
    rude = [answer.request_id for answer in answers if "WORD" in answer.choice.text]
    if rude:
        return say(captured, Outcome.FAIL, f"{len(rude)} of {len(answers)} answers are rude, first {rude[0]}", cell=f"{len(rude)} rude")
    return say(captured, Outcome.PASS, f"none of {len(answers)} answers is rude", cell=f"{len(answers)} polite")
"""

TEST = """
import pytest
from acme_tone.judge import judge
from sample import workload


@pytest.mark.specdec(workload("tone", scored=True), family="acme.tone")
def test_no_answer_is_rude(specdec_captured, specdec_check):
    specdec_check(judge(specdec_captured))
"""


SHOWN = "as polite as the baseline *ok *3 polite *ok *3 polite"


@pytest.fixture
def install(project, monkeypatch):
    """Put a package with one family on the path, as pip would."""

    def _install(row=ROW, judge=JUDGE, package="acme_tone", path=project.path / "site"):
        (path / package).mkdir(parents=True)
        (path / package / "__init__.py").write_text(row)
        (path / package / "judge.py").write_text(judge)
        info = path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pytest_specdec.families]\ntone = {package}:TONE\n")
        project.pytester.syspathinsert(path)
        monkeypatch.setenv("PYTHONPATH", os.fspath(path))
        return project.tests(TEST)

    return _install


def is_valid(document, kind, repository):
    schema = json.loads((repository / f"pytest_specdec/files/schemas/{kind}.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema).is_valid(document)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_a_family_is_judged_shown_as_a_row_and_takes_its_share_of_the_reserve(install, workers):
    project = install()
    result = project.run(*workers, subprocess=bool(workers))
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*false-alarm share of each test: acme.tone 1.7e-05; red by chance: 5e-05 of correctness*", SHOWN])
    result.stdout.fnmatch_lines(["Not tested: greedy, *, offload, endurance, speed"])
    shares = [one["alpha"] for one in project.document["plan"]["judgements"]]
    assert shares == [pytest.approx(CORRECTNESS_ALPHA * 0.05 / (2 + 1))] * 2, "two variants and the control"
    assert sum(shares) <= CORRECTNESS_ALPHA * RESERVED


def test_an_installed_family_without_a_test_is_listed_as_not_tested(install, project):
    install()
    project.tests("import pytest\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
        "def test_it(specdec_captured, specdec_check): specdec_check(say(specdec_captured))\n")  # fmt: skip
    project.run().stdout.fnmatch_lines(["Not tested: *, offload, endurance, acme.tone, speed"])


def test_plan_and_run_are_what_their_schemas_say(install, repository):
    project = install()
    project.run()
    (run,) = project.runs
    plan = json.loads((run / "plan.json").read_text())
    assert [row["name"] for row in plan["families"]] == ["acme.tone"]
    assert is_valid(plan, "plan", repository)
    assert is_valid(project.document, "run", repository)
    plan["judgements"][0]["family"] = "tone"
    assert not is_valid(plan, "plan", repository)


def test_a_replay_keeps_verdict_and_share_even_where_the_row_has_grown(install, project):
    install().run()
    (run,) = project.runs
    package = project.path / "site/acme_tone/__init__.py"
    package.write_text(package.read_text().replace("0.05", "0.1"))
    result = project.run(f"--specdec-replay={run}", "--specdec-run-dir=again", config=None)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([SHOWN])
    again = json.loads((project.path / "again/run.json").read_text())
    assert again["plan"]["judgements"] == json.loads((run / "run.json").read_text())["plan"]["judgements"]
    assert len(project.captures) == 1


def test_other_tests_of_a_run_are_judged_again_where_the_package_is_missing(install, project):
    install().pytester.makepyfile(test_other=TESTS)
    project.run().assert_outcomes(passed=6)
    (run,) = project.runs
    (project.path / "test_it.py").unlink()
    shutil.rmtree(project.path / "site")
    project.run(f"--specdec-replay={run}", config=None).assert_outcomes(passed=4)
    assert run_documents.read_plan(RunDirectory.open(run)).rows["acme.tone"].promise == "as polite as the baseline"


def test_a_plan_that_names_a_family_without_declaring_it_is_refused(install, project):
    install().run()
    (run,) = project.runs
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps(plan | {"families": []}))
    result = project.run(f"--specdec-replay={run}", config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*names a family that it does not declare*", "*plan.json*", "*acme.tone*"])


def test_a_judge_that_fails_the_control_makes_its_workload_invalid(install):
    result = install(judge=JUDGE.replace("WORD", "three")).run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*invalid: the control fails acme.tone on tone*", "*3 of 3 answers are rude*"])


@pytest.mark.parametrize("config, expected", [("", {"failed": 2}), ("lossy: true\n", {"skipped": 2})])
def test_a_failure_is_excused_by_lossy_where_the_row_says_so(install, config, expected):
    """The control is judged by the registered judge, the variant by one that fails."""
    project = install().config(config)
    failing = "from sample import workload, say, Outcome\njudge = lambda captured: say(captured, Outcome.FAIL)\n"
    project.tests(TEST.replace("from acme_tone.judge import judge\nfrom sample import workload\n", failing))
    project.run().assert_outcomes(**expected)


def test_an_inconclusive_verdict_is_excused_by_its_dotted_name(install):
    project = install().config("allow_inconclusive: [acme.tone]\n")
    assert project.run().ret == 0
    result = project.config("allow_inconclusive: [acme.tune]\n").run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the family 'acme.tune'; did you mean 'acme.tone'?*", "*tiny.yaml*allow_inconclusive*"])


WRONG = {
    "a judge that does not exist": (
        {"row": ROW.replace("acme_tone.judge", "acme_tone.juge")},
        ["*'acme.tone'*", "*acme_tone 1.0*", "*'acme_tone.juge'*no module*"],
    ),
    "a module without a judge": (
        {"judge": "def juge(captured): ..."},
        ["*judge of the family 'acme.tone' is missing*", "*acme_tone.judge*"],
    ),
    "a judge that cannot be imported": (
        {"judge": "import nowhere_to_be_found"},
        ["*'acme.tone' cannot be imported*", "*nowhere_to_be_found*"],
    ),
    "more than the reserve": (
        {"row": ROW.replace("0.05", "0.11")},
        ["*acme.tone 0.11 (acme_tone 1.0*", "*0.11 in total*", "*at most 0.1*"],
    ),
}
"""The row is wrong, or its judge; the test brings a verdict of its own, so that it can be collected."""


@pytest.mark.parametrize("files, lines", WRONG.values(), ids=WRONG)
def test_a_wrong_family_is_a_usage_error_before_anything_boots(install, files, lines):
    project = install(**files).tests(TEST.replace("acme_tone.judge import judge", "sample import say as judge"))
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert not project.captures


def test_two_rows_of_one_name_are_a_usage_error_that_names_both_packages(install, project):
    install(package="bell_tone", path=project.path / "other")
    result = install().run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*2 rows declare the family 'acme.tone'*", "*acme_tone 1.0*bell_tone 1.0*"])
    assert not project.captures


def test_a_misspelt_mark_is_told_the_nearest_family(install):
    result = install().tests(TEST.replace('"acme.tone"', '"acme.tune"')).run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*found family='acme.tune'; did you mean 'acme.tone'?*"])


def test_listing_reads_the_row_and_imports_no_judge(install):
    project = install().tests(TEST.replace("from acme_tone.judge import judge\n", ""))
    project.pytester.makepyfile(
        listing="import sys, pytest\n"
        "code = pytest.main(['--co', '-q', '--specdec-config=tiny', 'test_it.py'])\n"
        "sys.exit(code or 'acme_tone.judge' in sys.modules or 'acme_tone' not in sys.modules)\n"
    )
    assert project.pytester.runpython("listing.py").ret == 0
