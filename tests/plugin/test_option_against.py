"""``--specdec-against RUN``: what an upgrade changed, told from what speculation does."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from pytest_specdec.judge.baseline_change import BaselineChange, BaselineRelation, ChangeKind
from pytest_specdec.plugin import against
from pytest_specdec.report import run
from pytest_specdec.stats.logit_shift import LogitShift
from tests.report.runs import ENVIRONMENT, run_of

SAME = BaselineChange(relation=BaselineRelation.SAME, shift=LogitShift(nats=0.0, low=0.0, high=0.0, prompts=20, positions=400), prompts=20)
CHANGED = BaselineChange(relation=BaselineRelation.CHANGED, kinds=(ChangeKind.ENDS,), answers=3, other_ends=("chat-1",))
UNKNOWN = BaselineChange(relation=BaselineRelation.UNKNOWN, why="too few")
NUMERICS = BaselineChange(relation=BaselineRelation.CHANGED, kinds=(ChangeKind.NUMERICS,))


@pytest.fixture
def earlier(project):
    """A stored run of the engine in use."""
    project.outcome("Outcome.PASS").run("--specdec-run-dir=old")
    return project.path / "old"


def give(monkeypatch, change):
    monkeypatch.setattr(against, "_compare_baselines", lambda *_: change)


@pytest.mark.examples(2)
@pytest.mark.parametrize("change, outcome, code, headline", [
    (SAME, "Outcome.PASS", 0, "SAFE TO UPGRADE, as far as both runs were judged: *"),
    (SAME, "Outcome.FAIL, names='a fault'", 1, "SPECULATION BROKE IN THE NEW RUN: 1 new finding; *"),
    (CHANGED, "Outcome.PASS", 1, "ANSWERS CHANGED, speculation follows: answers end elsewhere after the same tokens; *"),
    (CHANGED, "Outcome.INVALID, transient=True", 75, "ANSWERS CHANGED (*); whether *: nothing of the new run could be judged"),
    (CHANGED, "Outcome.INCONCLUSIVE", 1, "ANSWERS CHANGED (*); whether *: nothing of the new run could be judged"),
    (UNKNOWN, "Outcome.PASS", 76, "NO FINDING in either run; whether the baseline's answers changed is unknown: too few"),
    (NUMERICS, "Outcome.PASS", 0, "ANSWERS CHANGED, speculation follows: numerics, *"),
])  # fmt: skip
def test_the_last_word_and_the_exit_code_follow_both_comparisons(project, earlier, monkeypatch, change, outcome, code, headline):
    give(monkeypatch, change)
    result = project.outcome(outcome).run("--specdec-against=old", "--specdec-exit-codes")
    assert result.ret == code
    result.stdout.fnmatch_lines([f"UPGRADE: {headline}", "RESULT: *"])
    (note, *_) = project.document["notes"]
    assert not [line for line in result.outlines if line.startswith("note: UPGRADE")], "once on the terminal"
    assert note.startswith("UPGRADE from old: ")
    stored = run.read(next(project.runs[0].glob("run.json")).read_text(), "run.json")
    assert (stored.run_class.value, stored.upgrade.headline) == (project.document["class"], note.removeprefix("UPGRADE from old: "))
    assert project.document["class"] == {0: "clean", 1: "finding", 75: "infrastructure", 76: "undecided"}[code]
    (folder,) = project.runs
    assert "UPGRADE from old: " in (folder / "report.md").read_text()


CONFIG = """
engine: {{kind: reference, model: target, args: {{max-num-seqs: {sequences}, hf-token: "${{HF_TOKEN}}"}}}}
variants:
  small-draft: {{args: {{speculative-config: {{method: draft_model, num_speculative_tokens: {tokens}}}}}}}
"""


def test_the_flags_that_changed_are_named_with_both_values(tmp_path, monkeypatch):
    """And a config that cannot be read leaves the digests to say that some flag did."""
    give(monkeypatch, SAME)
    monkeypatch.setattr(against, "_compare_speeds", lambda *_: None)
    folders, judged = [tmp_path / name for name in ("old", "new")], []
    for folder, sequences, tokens in zip(folders, (8, 4), (3, 5), strict=True):
        folder.mkdir()
        (folder / "plan.json").touch()
        (folder / "config.yaml").write_text(CONFIG.format(sequences=sequences, tokens=tokens))
        variants = {"small-draft": {"draft": f"model draft, {tokens} tokens", "flags": f"digest{tokens}"}}
        judged.append(run_of(environment=replace(ENVIRONMENT, variants=variants)))
    compare = partial(against.compare, *folders, *judged, day=date(2026, 11, 27))
    assert [str(change) for change in compare().environment] == [
        "small-draft draft: model draft, 3 tokens -> model draft, 5 tokens",
        "flag max-num-seqs: 8 -> 4",
        "small-draft flag speculative-config.num_speculative_tokens: 3 -> 5",
    ]
    (folders[0] / "config.yaml").write_text("engine: {kind: reference, no-such-key: 1}\n")
    assert [str(change) for change in compare().environment][1:] == ["small-draft flags (digest): digest3 -> digest5"]


def test_pytests_own_code_is_red_too(project, earlier, monkeypatch):
    give(monkeypatch, CHANGED)
    assert project.outcome("Outcome.PASS").run("--specdec-against=old").ret == 1
    give(monkeypatch, SAME)
    assert project.outcome("Outcome.PASS").run("--specdec-against=old", "--specdec-run-dir=new").ret == 0


def test_a_stored_run_is_compared_without_a_server(project, earlier):
    project.outcome("Outcome.PASS").run("--specdec-run-dir=new")
    result = project.run("--specdec-replay=new", "--specdec-against=old", config=None)
    result.stdout.fnmatch_lines(["UPGRADE: NO FINDING in either run; whether the baseline's answers changed is unknown: *"])
    assert len(project.captures) == 2


def test_the_old_answers_are_in_the_new_run_whose_replay_and_resume_keep_them(project, earlier, begun_here):
    for path in earlier.glob("transcripts/baseline/*.jsonl"):
        header, *answers = map(json.loads, path.read_text().splitlines())
        answers = [{**answer, "prompt_token_ids": [7, 8]} for answer in answers]
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, *answers)))
    project.outcome("Outcome.PASS", ", scored=True").run("--specdec-against=old", "--specdec-run-dir=new")
    new = project.path / "new"
    assert '"prompt_token_ids":[7,8]' in (new / "transcripts/old.baseline/chat.jsonl").read_text()
    assert (new / "scores/baseline/old.baseline/chat.jsonl").is_file()
    result = project.run("--specdec-replay=new", "--specdec-against=old", config=None)
    result.stdout.fnmatch_lines(["  old answers: *, scored by the new baseline"])
    begun_here(new)
    assert project.run("--specdec-resume=new").ret == 0, "without the option, by the plan that it was begun with"


@pytest.mark.nightly
def test_workers_compare_once(project, earlier):
    result = project.outcome("Outcome.PASS").run("--specdec-against=old", "-n2", subprocess=True)
    assert sum(line.startswith("UPGRADE: ") for line in result.outlines) == 1


def test_a_file_that_cannot_be_read_costs_no_verdict(project, earlier, monkeypatch):
    (transcript, *_) = sorted(earlier.glob("transcripts/baseline/*.jsonl"))
    transcript.write_text("{}\n")
    result = project.outcome("Outcome.PASS").run("--specdec-against=old")
    result.stdout.fnmatch_lines([f"UPGRADE: NO FINDING in either run; *is unknown: *{transcript.name}*", "RESULT: undecided*"])


def test_an_archive_of_the_earlier_run_is_as_good_as_its_folder(project, earlier, temporary):
    shutil.make_archive(str(project.path / "artifact"), "zip", earlier.parent, "old")
    shutil.rmtree(earlier)
    result = project.outcome("Outcome.PASS").run("--specdec-against=artifact.zip", "--specdec-run-dir=new")
    result.stdout.fnmatch_lines(["UPGRADE: NO FINDING in either run; whether the baseline's answers changed is unknown: *"])
    document = json.loads((project.path / "new/run.json").read_text())
    assert document["notes"][0].startswith("UPGRADE from artifact.zip: "), "not of a folder that is gone"
    assert list(temporary.glob("specdec-*")) == []
    replayed = project.run("--specdec-replay=new", "--specdec-against=artifact.zip", config=None)
    replayed.stdout.fnmatch_lines(["UPGRADE: NO FINDING in either run; *"])


def test_an_archive_that_holds_no_run_is_said_before_anything_boots(project, temporary):
    with zipfile.ZipFile(project.path / "artifact.zip", "w") as packed:
        packed.writestr("notes.txt", "")
    result = project.outcome("Outcome.PASS").run("--specdec-against=artifact.zip")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-against: the archive holds no run", "  where:    *artifact.zip"])
    assert (project.captures, list(temporary.glob("specdec-*"))) == ([], [])


def test_an_archive_of_the_run_itself_is_no_predecessor(project, earlier):
    shutil.make_archive(str(project.path / "copy"), "gztar", earlier)
    result = project.run("--specdec-replay=copy.tar.gz", "--specdec-against=old", "--specdec-exit-codes", config=None)
    result.stdout.fnmatch_lines(["UPGRADE: NO FINDING *copy.tar.gz*: a run is given as its own predecessor"])
    assert result.ret == 76


@pytest.mark.parametrize("given, words", [
    ("file.txt", "--specdec-against: found the file *file.txt; expected a directory that a capture wrote*"),
    ("nowhere", "--specdec-against: found no directory *nowhere; expected a directory that a capture wrote*"),
    (".", "--specdec-against: found no plan.json in *; expected a directory that a capture wrote*"),
    ("", "--specdec-against: found an empty value*"),
])  # fmt: skip
def test_what_is_no_run_is_said_before_anything_boots(project, given, words):
    (project.path / "file.txt").touch()
    result = project.outcome("Outcome.PASS").run(f"--specdec-against={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {words}"])
    assert not project.captures


def test_an_earlier_run_of_another_schema_is_one_error(project, earlier):
    document = earlier / "run.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "schema": "pytest-specdec/run/3"}))
    before = len(project.captures)
    result = project.outcome("Outcome.PASS").run("--specdec-against=old")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: an older release wrote this run*"])
    assert len(project.captures) == before


def test_a_run_is_not_its_own_predecessor(project, earlier):
    result = project.run("--specdec-replay=old", "--specdec-against=old", config=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specdec-against: found *old, the run that is judged itself; expected the run of the build *"])


@pytest.mark.parametrize("option", ["--specdec-against", "--specdec-replay"])
def test_a_folder_that_cannot_be_read_is_a_usage_error(project, monkeypatch, option):
    def deny(path):
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    original = Path.is_file
    (project.path / "closed").mkdir()
    monkeypatch.setattr(Path, "is_file", deny)
    result = project.outcome("Outcome.PASS").run(f"{option}=closed")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option}: cannot read *closed: Permission denied"])


ACCEPTED = """
gates:
  upgrade:
    accept: [{change: ends, reason: the model has a new end of turn, owner: ada, expires: 2027-01-31}]
"""


@pytest.mark.parametrize("day, code, note", [
    ("2027-01-31", 0, "accepted: ends: the model has a new end of turn (owner ada, until 2027-01-31) (tiny.yaml:*)"),
    ("2027-02-01", 1, "expired: tiny.yaml:* accepted ends until 2027-01-31; ask ada, then renew or remove it"),
])  # fmt: skip
def test_a_reviewed_change_is_accepted_by_name_until_its_day(project, earlier, monkeypatch, day, code, note):
    give(monkeypatch, CHANGED)
    result = project.config(ACCEPTED).outcome("Outcome.PASS").run("--specdec-against=old", f"--specdec-date={day}", "--specdec-exit-codes")
    assert result.ret == code
    result.stdout.fnmatch_lines([f"  {note}"])
