from __future__ import annotations


def test_the_depth_decides_how_much_is_asked(project):
    project.tests().run("--specdec-depth=smoke").assert_outcomes(passed=4)
    assert project.captures[0]["depth"] == "smoke"
    assert [w["requests"] for w in project.document["plan"]["workloads"]] == [1, 3]


def test_the_ini_key_is_the_default(project):
    (project.path / "tox.ini").write_text(
        "[pytest]\nspecdec_depth = deep\nspecdec_config = tiny\n"
        "addopts = -p no:randomly -p no:benchmark -p no:cacheprovider -p no:hypothesispytest\n"
    )
    project.tests().run(config=None).assert_outcomes(passed=4)
    assert project.captures[0]["depth"] == "deep"


def test_a_workload_that_takes_nothing_at_smoke_is_left_out_there(project):
    project.tests(
        "import pytest\nfrom pytest_specdec.model.workload import Depth\nfrom sample import *\n\n"
        "@pytest.mark.specdec(CHAT, family='greedy')\n"
        "def test_one(specdec_captured, specdec_check): specdec_check(say(specdec_captured))\n\n"
        "@pytest.mark.specdec(workload('asks', take={Depth.SMOKE: 0}), family='parameters')\ndef test_two(specdec_captured): pass\n"
    )
    result = project.run("--specdec-depth=smoke", "-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["*asks *smoke depth*"])
