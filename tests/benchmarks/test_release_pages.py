"""The pages of judged releases: what a cell says, and since and until when a finding is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.release_findings import ReleaseFinding
from benchmarks.release_pages import Release, ReleasedEngine, list_unexplained, page
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.report import run as run_document
from pytest_specdec.report.run import PytestOutcome

EXAMPLE = Path(__file__).parents[2] / "docs/examples/vllm-gpu/run.json"
VARIANT = "eagle3-k3"
ENGINE = ReleasedEngine(title="An engine", config="vllm-cpu-stock", releases=("3.0", "2.0", "1.0"), about="As released.")
PROMPTS = ReleaseFinding(
    title="prompts are off", page="findings/x.md", families=frozenset({Family.LOGPROBS}), words=("log-probabilities of prompts",)
)


@pytest.fixture(scope="module")
def red():
    """A run with one red judgement, of logprobs."""
    run = run_document.read(EXAMPLE.read_text(encoding="utf-8"), "example")
    assert [judgement.family for judgement in run.judgements if judgement.has_fault] == [Family.LOGPROBS]
    return run


@pytest.fixture(scope="module")
def green(red):
    return with_logprobs(red, Outcome.PASS, PytestOutcome.PASSED)


def with_logprobs(run, outcome, result):
    """The run with all of its judgements of logprobs like that."""
    judgements = tuple(
        replace(one, result=result, verdict=one.verdict and replace(one.verdict, outcome=outcome)) if one.family == Family.LOGPROBS else one
        for one in run.judgements
    )
    return replace(run, judgements=judgements)


def write(*runs, findings=(PROMPTS,)):
    """The page of releases 3.0, 2.0, 1.0 with these runs."""
    releases = [Release(version=version, runs={VARIANT: run} if run else {}) for version, run in zip(ENGINE.releases, runs, strict=True)]
    return page("engine", ENGINE, releases, findings)


def cells(text, version):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {version} |")]
    return line.strip("| ").split(" | ")


def finding_row(text):
    (line,) = [line for line in text.splitlines() if "prompts are off" in line]
    return line.strip("| ").split(" | ")


def test_a_red_cell_has_its_run_and_the_letter_of_its_finding(red, green):
    text = write(red, green, green)
    assert f"[**wrong**][3.0-{VARIANT}] a" in cells(text, "3.0")
    assert f"[ok][2.0-{VARIANT}]" in cells(text, "2.0")
    assert "**wrong**" not in " ".join(cells(text, "2.0"))
    assert f"[3.0-{VARIANT}]: runs/engine-3.0-{VARIANT}.json" in text.splitlines()


@pytest.mark.parametrize(
    "shown, since, until, count",
    [
        ((True, True, False), "2.0", "3.0, the newest", "2 of 3"),
        ((False, True, True), "1.0 or before", "2.0", "2 of 3"),
        ((True, False, True), "1.0 or before", "3.0, the newest", "2 of 3"),
        ((False, True, False), "2.0", "2.0", "1 of 3"),
    ],
)
def test_a_finding_is_there_from_the_oldest_to_the_newest_release_that_shows_it(red, green, shown, since, until, count):
    text = write(*(red if red_there else green for red_there in shown))
    assert finding_row(text)[2:] == [VARIANT, since, until, count]


def test_a_release_without_a_run_is_none_that_a_finding_is_not_in(red):
    assert finding_row(write(red, red, None))[3:] == ["2.0 or before", "3.0, the newest", "2 of 2"]


def test_an_older_release_that_could_not_be_judged_does_not_say_since_when(red, green):
    unable = with_logprobs(green, Outcome.INVALID, PytestOutcome.FAILED)
    assert finding_row(write(red, unable, green))[3] == "3.0 or before"
    assert finding_row(write(red, green, unable))[3] == "3.0"


def test_a_finding_that_no_run_shows_has_no_row(green):
    assert "prompts are off" not in write(green, green, green)


def test_what_no_finding_explains_is_listed(red, green):
    releases = [Release(version="2.0", runs={VARIANT: red}), Release(version="1.0", runs={VARIANT: green})]
    assert list_unexplained(releases, [PROMPTS]) == []
    (line,) = list_unexplained(releases, [replace(PROMPTS, words=("another fault",))])
    assert line.startswith("2.0 suites/logprobs/")
    assert len(list_unexplained(releases, [replace(PROMPTS, variants=frozenset({"ngram-k3"}))])) == 1


@pytest.mark.parametrize("is_invalid, word", [(False, "not captured"), (True, "invalid")])
def test_answers_that_are_missing_are_red_and_outweigh_what_passed(green, is_invalid, word):
    lost = tuple(
        replace(one, result=PytestOutcome.ERROR, verdict=None, error="no answers", is_invalid=is_invalid)
        if one.family == Family.LOGPROBS
        else one
        for one in green.judgements
    )
    run = replace(green, judgements=lost)
    assert f"[{word}][3.0-{VARIANT}]" in cells(write(run, green, green), "3.0")
    assert list_unexplained([Release(version="3.0", runs={VARIANT: run})], [PROMPTS])


@pytest.mark.parametrize("outcome, word", [(Outcome.REFUSED, "refused"), (Outcome.INCONCLUSIVE, "open"), (Outcome.NOT_DECIDED, "open")])
def test_what_was_not_judged_is_called_so(green, outcome, word):
    run = with_logprobs(green, outcome, PytestOutcome.SKIPPED)
    assert f"[{word}][3.0-{VARIANT}]" in cells(write(run, green, green), "3.0")


def test_a_verdict_that_the_baseline_is_invalid_needs_a_finding_too(green):
    run = with_logprobs(green, Outcome.INVALID, PytestOutcome.FAILED)
    assert f"[invalid][3.0-{VARIANT}]" in " ".join(cells(write(run, green, green), "3.0"))
    assert list_unexplained([Release(version="3.0", runs={VARIANT: run})], [PROMPTS])
    assert list_unexplained([Release(version="3.0", runs={VARIANT: run})], [replace(PROMPTS, words=(), of_variant=False)]) == []


def test_a_family_of_which_some_is_open_is_ok_in_part(green):
    first = next(index for index, one in enumerate(green.judgements) if one.family == Family.LOGPROBS)
    one = green.judgements[first]
    is_open = replace(one, result=PytestOutcome.SKIPPED, verdict=replace(one.verdict, outcome=Outcome.INCONCLUSIVE))
    run = replace(green, judgements=(*green.judgements[:first], is_open, *green.judgements[first + 1 :]))
    assert f"[ok in part][3.0-{VARIANT}]" in cells(write(run, green, green), "3.0")


def test_a_release_without_a_verdict_says_what_its_log_ends_with(red):
    releases = [Release(version="3.0", runs={VARIANT: red}), Release(version="2.0", runs={}, reason="collecting\nno such release\n")]
    assert "| 2.0 | [no such release](runs/engine-2.0.txt) |" in page("engine", ENGINE, releases, [PROMPTS])


def test_a_release_that_was_not_run_is_named_as_such(red):
    assert "Not run yet: 2.0, 1.0." in page("engine", ENGINE, [Release(version="3.0", runs={VARIANT: red})], [PROMPTS])
    assert "Not run yet" not in write(red, red, red)
