"""``python -m pytest_specdec report`` and ``show``: a stored run says again what it said, from run.json alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.errors import RunError
from pytest_specdec.report import html, markdown, run, terminal
from tests.report.runs import GREEN, MIXED
from tests.report.test_golden import text_of


@pytest.fixture(params=[GREEN, MIXED], ids=["green", "mixed"])
def shown(request):
    return request.param


@pytest.fixture
def stored(tmp_path, shown):
    (tmp_path / "run.json").write_text(run.render(shown), encoding="utf-8")
    return tmp_path


def test_every_format_of_a_stored_run_is_what_the_session_wrote(stored, shown, capsys):
    assert main(["report", str(stored), "--format", "md,html"]) == 0
    assert (stored / "report.md").read_bytes().decode("utf-8") == markdown.render(shown)
    assert (stored / "report.html").read_bytes().decode("utf-8") == html.render(shown)
    assert capsys.readouterr().out.splitlines() == [str(stored / "report.md"), str(stored / "report.html")]


def test_run_json_holds_all_of_it(shown):
    text = run.render(shown)
    assert run.render(run.read(text, "run.json")) == text
    assert replace(run.read(text, "run.json"), timings=shown.timings) == shown


def test_the_terminal_is_the_default_and_many_runs_follow_each_other(stored, shown, capsys):
    assert main(["report", str(stored), str(stored / "run.json")]) == 0
    text = text_of((*terminal.FORMAT.render(shown), *terminal.next_steps(shown), terminal.result(shown)))
    assert capsys.readouterr().out == text * 2


def test_files_are_written_elsewhere_on_request(stored, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "deeper"
    assert main(["report", str(stored), "--format=md", "--out", str(folder)]) == 0
    assert [path.name for path in folder.iterdir()] == ["report.md"]


def test_one_judgement_is_shown_in_full(tmp_path, capsys):
    (tmp_path / "run.json").write_text(run.render(MIXED), encoding="utf-8")
    assert main(["show", str(tmp_path), "test_greedy"]) == 0
    out = capsys.readouterr().out
    assert "\nline one\n" in out
    assert "replay: pytest suites --specdec-replay .specdec/reference-1 'suites/greedy/" in out
    assert not set("\x1b\r") & set(out)


def broken(**changes):
    return json.dumps({**json.loads(run.render(MIXED)), **changes})


@pytest.mark.parametrize("text, first, found", [
    ("", "the file is not JSON", "Expecting value"),
    (run.render(MIXED)[:4000], "the file is not JSON", "Expecting|Unterminated"),
    ("[1, 2]", "the file is of another kind", "schema None"),
    ('{"schema": "somebody/else/1"}', "the file is of another kind", "somebody/else/1"),
    (broken(schema="pytest-specdec/run/3"), "an older release wrote this run", "run/3"),
    (broken(schema="pytest-specdec/run/99"), "a newer release wrote this run", "run/99"),
    (broken(judgements=3), "this is no Run", "3"),
    (broken(plan={}), "this is no Run", "config"),
    ("[" * 100_000, "the file is not JSON", "recursion|nested"),
])  # fmt: skip
def test_what_is_no_run_is_one_clear_error(tmp_path, capsys, text, first, found):
    path = tmp_path / "run.json"
    path.write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.splitlines()[0] == first
    assert str(path) in said.err
    with pytest.raises(RunError, match=f"(?s){found}"):
        run.read(text, "run.json")


@pytest.mark.parametrize("arguments, words", [
    (["report", "nowhere"], "there is no run to report"),
    (["report", "here", "--format=pdf"], "no such format for a stored run"),
    (["report", "here", "--format=junit"], "no such format for a stored run"),
    (["show", "here", "test_of_nothing"], "the run holds no such test"),
])  # fmt: skip
def test_wrong_usage_is_one_clear_error(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/run.json").write_text(run.render(MIXED), encoding="utf-8")
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(words)


@pytest.mark.parametrize("old, new, code, first", [
    (GREEN, MIXED, 1, "WORSE: "),
    (MIXED, GREEN, 0, "BETTER: "),
    (GREEN, GREEN, 0, "NO FINDING in either run"),
])  # fmt: skip
def test_two_runs_are_compared(tmp_path, capsys, old, new, code, first):
    for name, shown in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(run.render(shown), encoding="utf-8")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == code
    assert capsys.readouterr().out.startswith(first)
