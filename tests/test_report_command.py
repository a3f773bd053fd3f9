"""``python -m pytest_specdec report`` and ``show``: the same report again, from run.json alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.errors import RunError
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.report import html, markdown, run, terminal
from pytest_specdec.report.upgrade import CornerRow, Upgrade, UpgradeSection, UpgradeWord
from tests.report.histories import history
from tests.report.runs import GREEN, MIXED
from tests.report.test_golden import text_of


@pytest.fixture(params=[GREEN, MIXED], ids=["green", "mixed"])
def sample(request):
    return request.param


@pytest.fixture
def folder(tmp_path, sample):
    (tmp_path / "run.json").write_text(run.render(sample), encoding="utf-8")
    return tmp_path


def test_every_format_of_a_stored_run_is_what_the_session_wrote(folder, sample, capsys):
    assert main(["report", str(folder), "--format", "md,html"]) == 0
    assert (folder / "report.md").read_bytes().decode("utf-8") == markdown.render(sample)
    assert (folder / "report.html").read_bytes().decode("utf-8") == html.render(sample)
    assert capsys.readouterr().out.splitlines() == [str(folder / "report.md"), str(folder / "report.html")]


def test_run_json_holds_all_of_it(sample):
    text = run.render(sample)
    assert run.render(run.read(text, "run.json")) == text
    assert replace(run.read(text, "run.json"), timings=sample.timings) == sample


def test_the_terminal_is_the_default_and_many_runs_follow_each_other(folder, sample, capsys):
    assert main(["report", str(folder), str(folder / "run.json")]) == 0
    text = text_of((*terminal.FORMAT.render(sample), *terminal.next_steps(sample), terminal.result(sample)))
    assert capsys.readouterr().out == text * 2


def test_files_are_written_elsewhere_on_request(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("out") / "deeper"
    assert main(["report", str(folder), "--format=md", "--out", str(elsewhere)]) == 0
    assert [path.name for path in elsewhere.iterdir()] == ["report.md"]


def test_one_judgement_is_shown_in_full(tmp_path, capsys):
    (tmp_path / "run.json").write_text(run.render(MIXED), encoding="utf-8")
    assert main(["show", str(tmp_path), "test_greedy"]) == 0
    out = capsys.readouterr().out
    assert "\nline one\n" in out
    assert "replay: pytest 'suites/greedy/test_greedy.py::test_x[draft-k3]' --specdec-replay .specdec/reference-1" in out
    assert not set("\x1b\r") & set(out)


def edit_document(**changes):
    return json.dumps({**json.loads(run.render(MIXED)), **changes})


@pytest.mark.parametrize("text, first, found", [
    ("", "the file is not JSON", "Expecting value"),
    (run.render(MIXED)[:4000], "the file is not JSON", "Expecting|Unterminated"),
    ("[1, 2]", "the file is of another kind", "schema None"),
    ('{"schema": "somebody/else/1"}', "the file is of another kind", "somebody/else/1"),
    (edit_document(schema="pytest-specdec/run/3"), "an older release wrote this run", "run/3"),
    (edit_document(schema="pytest-specdec/run/99"), "a newer release wrote this run", "run/99"),
    (edit_document(judgements=3), "this is no Run", "3"),
    (edit_document(plan={}), "this is no Run", "config"),
    ("[" * 100_000, "the file is not JSON", "recursion|nested"),
])  # fmt: skip
def test_what_is_no_run_is_one_clear_error(tmp_path, capsys, text, first, found):
    path = tmp_path / "run.json"
    path.write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert not output.out
    assert output.err.splitlines()[0] == first
    assert str(path) in output.err
    with pytest.raises(RunError, match=f"(?s){found}"):
        run.read(text, "run.json")


@pytest.mark.parametrize("arguments, words", [
    (["report", "nowhere"], "there is no run to read"),
    (["report", "here", "--format=pdf"], "no report format 'pdf' that writes a file"),
    (["report", "here", "--format=terminal,benchmark"], "no report format 'benchmark' that writes a file"),
    (["report", "here", "--format=json"], "a report would write over the run"),
    (["report", "here", "here", "--format=md", "--out=there"], "the reports of several runs would write over each other"),
    (["show", "here", "test_of_nothing"], "the run holds no such test"),
])  # fmt: skip
def test_wrong_usage_is_one_clear_error(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/run.json").write_text(run.render(MIXED), encoding="utf-8")
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith(words)
    assert all(f"  {label}:" in text for label in ("found", "expected", "remedy"))
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("old, new, code, first", [
    (GREEN, MIXED, 1, "WORSE: "),
    (MIXED, GREEN, 0, "BETTER: "),
    (GREEN, GREEN, 0, "NO FINDING in either run; whether the baseline's answers changed is unknown: no run directory with "),
])  # fmt: skip
def test_two_runs_are_compared(tmp_path, capsys, old, new, code, first):
    for name, sample in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(run.render(sample), encoding="utf-8")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == code
    assert capsys.readouterr().out.startswith(first)


def test_without_transcripts_the_new_runs_config_still_says_what_is_accepted(tmp_path, capsys):
    """The old run as an artifact of a nightly keeps it: run.json alone."""
    accepted = "[{change: refuses-json_schema, reason: nobody asks for one, owner: ada, expires: 2999-12-31}]"
    for folder, support in (("old", FeatureSupport.HONOURED), ("new", FeatureSupport.REFUSED)):
        sample = replace(GREEN, capabilities={"baseline": Capabilities(support={"json_schema": support})})
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(run.render(sample), encoding="utf-8")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    (tmp_path / "new/config.yaml").write_text(
        "engine: {kind: reference, model: target}\n"
        "variants: {ngram-k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}}}}\n"
        f"gates: {{upgrade: {{accept: {accepted}}}}}\n",
        encoding="utf-8",
    )
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    assert "accepted: refuses-json_schema: nobody asks for one" in capsys.readouterr().out


@pytest.fixture
def nights(tmp_path):
    """A folder as a nightly keeps it: run directories at any depth, a file under a name of its own, and what is no run."""
    folder = tmp_path / "nights"
    for number, one in enumerate(history(count=12, step=8)):
        target = folder / ("old" if number < 4 else "") / f"night-{number:02}" / "run.json"
        target.parent.mkdir(parents=True)
        target.write_text(run.render(one), encoding="utf-8")
    (folder / "night-11/run.json").rename(folder / "last.json")
    return folder


SPOILT = {
    "cut": (run.render(MIXED)[:4000], "the file is not JSON"),
    "empty": ("", "the file is not JSON"),
    "foreign": ('{"schema": "somebody/else/1"}', "the file is of another kind"),
    "newer": (edit_document(schema="pytest-specdec/run/99"), "a newer release wrote this run"),
    "binary": (b"\xff\xfe\x00", "there is no run to read"),
}


def test_runs_are_found_at_any_depth_and_what_cannot_be_read_is_a_line_each(nights, capsys):
    for name, (text, _) in SPOILT.items():
        (nights / name).mkdir()
        (nights / name / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["trend", str(nights), str(nights / "last.json"), str(nights / "nowhere")]) == 0
    output = capsys.readouterr()
    assert "12 runs, 2026-01-05 to 2026-01-16." in output.out
    expected = [f"not read: {nights / name / 'run.json'}: {words}: " for name, (_, words) in sorted(SPOILT.items())]
    lines = output.err.splitlines()
    assert len(lines) == len(expected) + 1
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=False))
    assert lines[-1].startswith(f"not read: {nights / 'nowhere'}: there is no run to read")
    assert output.out.count("\n- ") == len(lines), "the page says so too"


@pytest.mark.parametrize("beside", ["run.json", "plan.json"])
def test_the_old_engine_of_a_run_of_two_is_followed_only_where_it_is_named(tmp_path, capsys, beside):
    """Its run is in a folder of the new one's, with the same config, depth and machine, also where the new one's was cut off."""
    old_runs = history(count=12, step=12)[6:]
    for number, (one, old) in enumerate(zip(history(count=6, step=3), old_runs, strict=True)):
        folder = tmp_path / f"night-{number}"
        (folder / "old").mkdir(parents=True)
        (folder / "old/run.json").write_text(run.render(old), encoding="utf-8")
        (folder / (beside if number else "run.json")).write_text(run.render(one), encoding="utf-8")
    assert main(["trend", str(tmp_path)]) == 0
    count = 6 if beside == "run.json" else 1
    assert f"\n{count} run{'s' * (count > 1)}, 2026-01-05 to " in capsys.readouterr().out
    assert main(["trend", *(str(tmp_path / f"night-{number}/old") for number in range(6))]) == 0
    assert "\n6 runs, 2026-01-11 to 2026-01-16." in capsys.readouterr().out


def test_a_trend_is_printed_or_written_and_the_same_each_time(nights, tmp_path, capsys):
    assert main(["trend", str(nights), "--format", "md,html", "--out", str(tmp_path / "out")]) == 0
    paths = [tmp_path / "out" / name for name in ("trend.md", "trend.html")]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in paths]
    before = [path.read_bytes() for path in paths]
    assert main(["trend", str(nights)]) == 0
    assert capsys.readouterr().out.encode() == before[0]
    assert main(["trend", str(nights), "--format", "md,html", "--out", str(tmp_path / "out")]) == 0
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("arguments, words", [
    ([], "there is no run to follow"),
    (["--format=pdf"], "a trend has no format 'pdf'"),
    (["--format=md,html"], "the page of a trend needs a folder"),
])  # fmt: skip
def test_a_trend_of_nothing_and_wrong_formats_are_one_error(tmp_path, capsys, arguments, words):
    assert main(["trend", str(tmp_path), *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith(words)
    assert all(f"  {label}:" in text for label in ("where", "found", "expected", "remedy"))


@pytest.mark.parametrize("arguments", [["report", "here", "--format=md", "--out=file"], ["trend", "here", "--format=html", "--out=file"]])
def test_a_file_in_the_place_of_the_folder_is_one_clear_error(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/run.json").write_text(run.render(replace(GREEN, made_at="2026-01-05T02:30:00+00:00")), encoding="utf-8")
    (tmp_path / "file").write_text("mine")
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("the file cannot be written\n  where:    file")
    assert "--out of a report" in text


@pytest.mark.parametrize("name, read", [
    ("json", lambda text: json.loads(text)["word"]),
    ("md", lambda text: "worse" if text.startswith("\n### Upgrade from ") and "\n❌ **WORSE: " in text else text),
    ("html", lambda text: "worse" if '<p class="answer bad">WORSE: ' in text and ">arm</span></th>" in text else text),
])  # fmt: skip
def test_a_comparison_is_printed_in_each_format(tmp_path, capsys, name, read):
    for folder, sample in (("old", GREEN), ("new", MIXED)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(run.render(sample), encoding="utf-8")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--format", name]) == 1
    assert read(capsys.readouterr().out) == "worse"


def test_a_run_is_not_compared_with_itself_or_a_copy_of_itself(tmp_path, capsys):
    for folder in ("old", "copy"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(run.render(GREEN), encoding="utf-8")
        (tmp_path / folder / "session.json").write_text('{"schema": "urn:pytest-specdec:session:1", "id": "a1"}', encoding="utf-8")
    for earlier, later in (("old", "old"), ("old", "copy"), ("old/run.json", "old")):
        assert main(["compare", str(tmp_path / earlier), str(tmp_path / later)]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err.splitlines()[0]) == ("", "a run is given as its own predecessor")


@pytest.mark.parametrize("name, content, first", [
    ("old.json", edit_document(schema="pytest-specdec/run/3").encode(), "an older release wrote this run"),
    ("old.json", b"\x1f\x8b\x08 no text", "there is no run to read"),
    ("old.tar.gz", b"\x1f\x8b\x08 an archive, cut off", "the archive cannot be read"),
])  # fmt: skip
def test_what_cannot_be_compared_is_one_clear_error(tmp_path, capsys, name, content, first):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "run.json").write_text(run.render(GREEN), encoding="utf-8")
    assert main(["compare", str(tmp_path / name), str(tmp_path / "run.json")]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()[0]) == ("", first)
    assert name in output.err


@pytest.fixture
def packed(tmp_path):
    """Two runs as archives, as CI systems keep them, and their texts."""
    for name, form, sample in (("old", "zip", GREEN), ("new", "gztar", MIXED)):
        (tmp_path / name / "night").mkdir(parents=True)
        dated = replace(sample, made_at="2026-01-05T02:30:00+00:00")
        (tmp_path / name / "night/run.json").write_text(run.render(dated), encoding="utf-8")
        shutil.make_archive(str(tmp_path / name), form, tmp_path / name)
    return tmp_path / "old.zip", tmp_path / "new.tar.gz"


def test_each_command_takes_an_archive_as_it_takes_its_folder(tmp_path, capsys, packed):
    old, new = packed
    folders = tmp_path / "old/night", tmp_path / "new/night"
    for command, code in ((["report"], 0), (["show", "test"], 0), (["compare"], 1), (["trend"], 0)):
        count = 2 if command == ["compare"] else 1
        outputs = []
        for paths in (packed, folders):
            assert main([command[0], *map(str, paths[:count]), *command[1:]]) == code
            outputs.append(capsys.readouterr().out.replace(f"{paths[0]}/run.json", "RUN").replace(str(paths[0]), "RUN"))
        assert outputs[0] == outputs[1] != ""
    assert sorted(tmp_path.glob("*")) == sorted([old, new, tmp_path / "old", tmp_path / "new"]), "nothing is written beside them"


def test_report_files_of_an_archive_need_a_folder(tmp_path, capsys, packed):
    old, _ = packed
    assert main(["report", str(old), "--format=md"]) == 2
    assert capsys.readouterr().err.startswith("the reports of an archive need a folder\n  where:    --out")
    assert main(["report", str(old), "--format=md", f"--out={tmp_path / 'out'}"]) == 0
    assert (tmp_path / "out/report.md").is_file()


def test_a_stored_run_shows_its_upgrade_again(tmp_path, capsys):
    compared = Upgrade(
        word=UpgradeWord.WORSE,
        earlier="old-run",
        headline="SLOWER: the baseline",
        corners=(
            CornerRow(arm="corner", old="old", new="new", change="new over old"),
            CornerRow(arm="baseline", old="1", new="2", change="3"),
        ),
        sections=(UpgradeSection(title="judgements", lines=("a test",), is_detail=True), UpgradeSection(title="baseline", lines=("same",))),
    )
    (tmp_path / "run.json").write_text(run.render(replace(GREEN, upgrade=compared)), encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "UPGRADE: SLOWER: the baseline\n\ncorner    old  new  new over old\nbaseline  1    2    3\n\nbaseline:\n  same\n" in out
    assert out.endswith("RESULT: finding: SLOWER: the baseline\n")
