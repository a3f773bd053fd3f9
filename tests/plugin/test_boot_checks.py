"""A run makes the doctor's checks before its first boot."""

from __future__ import annotations


def test_a_flag_that_the_engine_does_not_know_ends_the_run_before_anything_boots(project):
    project.tests().config("draft: {}\n")
    path = project.path / "suites" / "configs" / "tiny.yaml"
    path.write_text(path.read_text().replace("model: target}", "model: target, args: {max-num-seqz: 4}}"))
    result = project.run("--specdec-exit-codes")
    result.assert_outcomes(errors=1)
    assert result.ret == 78, "no retry makes the engine know it"
    text = result.stdout.str()
    assert text.count("a server would die at boot\n") == 1, "in full once, beside the line in the table"
    assert "tiny.yaml:2  engine.args.max-num-seqz: found --max-num-seqz, which the engine does not know" in text
    assert "did you mean '--max-num-seqs'?" in text
    assert not project.captures


def test_a_value_that_a_variable_brings_is_linted(project, monkeypatch):
    monkeypatch.setenv("A_METHOD", "ngran")
    project.tests()
    path = project.path / "suites" / "configs" / "tiny.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    project.config("draft: {}\n")
    path.write_text(path.read_text().replace("method: ngram,", "method: '${A_METHOD}',"))
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*\"ngran\", an unknown drafting method*did you mean 'ngram'?*"])


def test_a_variable_that_is_not_set_is_a_usage_error_wherever_it_stands(project):
    project.tests().config("baseline: {env: {NOTE: '${NO_SUCH_VARIABLE}'}}\n")
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*NO_SUCH_VARIABLE is not set*", "*baseline.env.NOTE*"])
