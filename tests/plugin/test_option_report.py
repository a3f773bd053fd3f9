"""Report formats: our own by name, those of other packages by entry point, wrong ones before anything boots."""

from __future__ import annotations

import re

import pytest

PAGE = "docs/adding-a-report-format.md"


@pytest.fixture
def package(project, repository, monkeypatch):
    """Install the package that the how-to describes, as pip would leave it."""
    (source,) = re.findall(r"```python\n(.*?)```", (repository / PAGE).read_text(), re.DOTALL)
    (row,) = re.findall(r"^ {4}(csv = .*)$", (repository / PAGE).read_text(), re.MULTILINE)
    folder = project.path / "site"
    (folder / "specdec_csv-1.0.dist-info").mkdir(parents=True)
    (folder / "specdec_csv-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: specdec-csv\nVersion: 1.0\n")
    (folder / "specdec_csv-1.0.dist-info/entry_points.txt").write_text(f"[pytest_specdec.report_formats]\n{row}\n".replace('"', ""))
    (folder / "specdec_csv.py").write_text(re.sub(r"^ {4}", "", source, flags=re.MULTILINE))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder / "specdec_csv.py"


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_a_format_of_another_package_is_written_by_its_name(project, package, workers):
    result = project.tests().run("--specdec-report=csv", "--specdec-run-dir=kept", *workers, subprocess=True)
    result.assert_outcomes(passed=4)
    assert (project.path / "kept/judgements.csv").read_text().splitlines()[0] == "draft-k3,chat,greedy,pass"
    assert (project.path / "kept/run.json").is_file()
    assert not (project.path / "kept/report.md").exists()
    result.stdout.fnmatch_lines(["judgements: kept/judgements.csv"])


def test_its_file_holds_no_secret(project, package, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "draft-k3-secret")
    package.write_text(package.read_text().replace("    return ", "    return 'draft-k3-secret' + "))
    project.tests().run("--specdec-report=csv", "--specdec-run-dir=kept", subprocess=True)
    assert (project.path / "kept/judgements.csv").read_text().startswith("***")


WRONG = [
    (("return ", "retrun "), "csv", "found SyntaxError"),
    (('name="csv"', 'name="tsv"'), "csv", "name='tsv'"),
    (("When.FILES", "When.SUMMARY"), "csv", "When.SUMMARY"),
    (("judgements.csv", "plan.json"), "csv", "'plan.json'"),
    (("judgements.csv", "../x.csv"), "csv", "'../x.csv'"),
    (("judgements.csv", "report.md"), "md,csv", "'report.md'"),
    (("", ""), "benchmark", "called 'benchmark'"),
    (("", ""), "cvs", "did you mean 'csv'?"),
]


CASES = [*((*case, ()) for case in WRONG), (*WRONG[0], ("-n2",))]


@pytest.mark.examples(2)
@pytest.mark.parametrize("change, names, found, workers", CASES, ids=[" ".join([case[1], case[2], *case[3]]) for case in CASES])
def test_a_wrong_format_is_a_usage_error_before_the_capture(project, package, change, names, found, workers):
    package.write_text(package.read_text().replace(*change))
    result = project.tests().run(f"--specdec-report={names}", *workers, subprocess=bool(workers))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert found in result.stderr.str()
    assert "Traceback" not in result.stderr.str()
    assert not project.captures
