from __future__ import annotations

import pytest


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)], ids=["alone", "xdist"])
def test_the_run_is_kept_where_it_is_told(project, workers):
    project.tests().run("--specdec-run-dir=here/it/is", *workers, subprocess=bool(workers)).assert_outcomes(passed=4)
    kept = {path.name for path in (project.path / "here/it/is").iterdir()}
    assert {"plan.json", "status.json", "run.json", "report.md", "transcripts"} <= kept
    assert not project.runs


def test_an_empty_directory_will_do(project):
    (project.path / "empty").mkdir()
    project.tests().run("--specdec-run-dir=empty").assert_outcomes(passed=4)


def test_two_runs_never_share_a_directory(project):
    project.tests().run()
    project.run()
    assert len(project.runs) == 2
