"""Stored runs that somebody edited before they are judged again: one clear error each, and never a verdict on what is not an answer."""

from __future__ import annotations

import json
import os

import pytest

from tests.plugin.conftest import Project

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def project(pytester, monkeypatch):
    for name in ("CI", "GITHUB_STEP_SUMMARY", "PYTEST_ADDOPTS", "FAKE_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


def row(fault, expected, *values, quick=False):
    return pytest.param(*values, id=fault, marks=pytest.mark.chaos(fault, expected=expected, quick=quick))


def lines(edit):
    """Return an edit of a file's lines after the header."""

    def _edit(path):
        header, *rest = path.read_text().splitlines()
        edited = edit(rest)
        path.write_text("\n".join([json.dumps({**json.loads(header), "count": len(edited)}), *edited, ""]))

    return _edit


def instead(make):
    """Return an edit that puts something else in the file's place."""

    def _edit(path):
        path.unlink()
        make(path)

    return _edit


def sparse(path):
    with path.open("wb") as file:
        file.truncate(2**33)


def positions(change):
    """Return an edit of every score's positions: token, log-probability, top tokens and theirs."""

    def _edit(path):
        header, *rest = path.read_text().splitlines()
        scored = [json.loads(line) for line in rest]
        edited = [{**score, "positions": [change(*position) for position in score["positions"]]} for score in scored]
        path.write_text("\n".join([header, *map(json.dumps, edited), ""]))

    return _edit


def shares(alpha):
    def _edit(path):
        plan = json.loads(path.read_text())
        path.write_text(json.dumps({**plan, "judgements": [{**one, "alpha": alpha} for one in plan["judgements"]]}))

    return _edit


def swapped(path):
    other = path.parent.parent / "ngram-k3" / path.name
    ours, theirs = path.read_text(), other.read_text()
    path.write_text(theirs)
    other.write_text(ours)


TRANSCRIPT, SCORES = "transcripts/draft-k3/chat.jsonl", "scores/baseline/draft-k3/chat.jsonl"
NONE = "the scores of draft-k3 under baseline are no distributions"
SHARE = "the plan gives a judgement of greedy an impossible share of the false alarms"


@pytest.mark.parametrize(
    "name, edit",
    [
        row("a folder in place of a transcript", "the file cannot be read", TRANSCRIPT, instead(lambda path: path.mkdir())),
        row("a pipe in place of a transcript", "the file cannot be read", TRANSCRIPT, instead(os.mkfifo), quick=True),
        row("a link to itself in place of scores", "the file cannot be read", SCORES, instead(lambda path: path.symlink_to(path))),
        row("a link to an endless file", "the file cannot be read", SCORES, instead(lambda path: path.symlink_to("/dev/zero")), quick=True),
        row("a transcript of 8 GB", "the file cannot be read", TRANSCRIPT, instead(sparse)),
        row("deep JSON in a transcript", "the file is incomplete", TRANSCRIPT, lines(lambda rest: [DEEP, *rest[1:]]), quick=True),
        row("deep JSON in scores", "the file is incomplete", SCORES, lines(lambda rest: [DEEP, *rest[1:]])),
        row("300 levels of JSON in a transcript", "this is no Answer", TRANSCRIPT, lines(lambda rest: ["[" * 300 + "]" * 300, *rest[1:]])),
        row("300 levels of JSON in scores", "this is no Score", SCORES, lines(lambda rest: ["[" * 300 + "]" * 300, *rest[1:]])),
        row("a transcript's row twice", "a row stands twice", TRANSCRIPT, lines(lambda rest: [*rest, rest[0]])),
        row("a score's row twice", "a row stands twice", SCORES, lines(lambda rest: [*rest, rest[0]])),
        row("transcripts of two arms swapped", "these are the answers of another arm", TRANSCRIPT, swapped),
        row("scores with NaN", NONE, SCORES, positions(lambda token, _, ids, top: [token, "nan", ids, ["nan", *top[1:]]]), quick=True),
        row("scores of 1e308", NONE, SCORES, positions(lambda token, _, ids, top: [token, 1e308, ids, [1e308, *top[1:]]])),
        row("scores of the scored token alone", NONE, SCORES, positions(lambda token, own, ids, top: [token, own, ids[:1], top[:1]])),
        row("scores with no list of top tokens", NONE, SCORES, positions(lambda token, own, *_: [token, own, [], []])),
        row("an alpha of 0", SHARE, "plan.json", shares(0.0)),
        row("an alpha of -1", SHARE, "plan.json", shares(-1.0)),
        row("an alpha of 1e-300", SHARE, "plan.json", shares(1e-300), quick=True),
        row("an alpha of NaN", SHARE, "plan.json", shares("nan")),
        row("an alpha above the budget", SHARE, "plan.json", shares(0.5)),
    ],
)
def test_an_edited_run_is_one_clear_error(project, name, edit, request, seen):
    project.tests(
        "import pytest\nfrom sample import *\n\n@pytest.mark.specdec(workload('chat', scored=True), family='greedy')\n"
        "def test_it(specdec_captured, specdec_check): specdec_check(say(specdec_captured))\n"
    )
    project.run().assert_outcomes(passed=2)
    (run,) = project.runs
    edit(run / name)
    result = project.run(f"--specdec-replay={run}", config=None)
    text = result.stdout.str() + result.stderr.str()
    assert result.ret not in {pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR}
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    expected = request.node.get_closest_marker("chaos").kwargs["expected"]
    seen(expected if expected in text else text)
