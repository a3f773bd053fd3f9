"""The search for the first bad release: few runs, releases that cannot be tested, and faults that come and go."""

from __future__ import annotations

import math
import random

import pytest

from pytest_specdec.bisect import search as searches
from pytest_specdec.bisect.search import DETECTION, MISS, Answer, Ask, End, Result, Trial, next_step, runs_needed
from pytest_specdec.errors import SpecdecError

FIVE = ("1", "2", "3", "4", "5")


def search(releases, answer, detection=DETECTION, most=200):
    """The result of a search and the releases that it ran, where ``answer(release, nth run)`` is what a run says."""
    trials = []
    while len(trials) < most:
        step = next_step(releases, trials, detection)
        if isinstance(step, Result):
            return step, [trial.release for trial in trials]
        count = sum(trial.release == step.release for trial in trials)
        trials.append(Trial(release=step.release, answer=answer(step.release, count)))
    raise AssertionError(step)


def faulty_from(first_bad, releases, **others):
    """A server that is faulty from a release on; ``others`` have an answer of their own, by ``_RELEASE``."""
    bad = releases[releases.index(first_bad) :]
    return lambda release, _: others.get(f"_{release}", Answer.BAD if release in bad else Answer.GOOD)


def test_a_fault_of_five_releases_is_found_in_three_runs_after_the_ends():
    result, asked = search(FIVE, faulty_from("3", FIVE))
    assert result == Result(end=End.FOUND, last_good="2", first_bad="3")
    assert asked == ["5", "1", "3", "2", "2"]


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_every_first_bad_release_is_found_in_logarithmically_many_runs(count):
    releases = tuple(map(str, range(count)))
    for first_bad in releases[1:]:
        result, asked = search(releases, faulty_from(first_bad, releases))
        assert (result.end, result.first_bad, result.last_good) == (End.FOUND, first_bad, str(int(first_bad) - 1))
        assert len(asked) <= 2 + math.ceil(math.log2(count)) + 1


def test_a_release_that_cannot_be_tested_is_left_out():
    result, asked = search(FIVE, faulty_from("4", FIVE, _3=Answer.UNTESTABLE, _2=Answer.GOOD))
    assert result == Result(end=End.NARROWED, last_good="2", first_bad="4", untestable=("3",))
    assert asked.count("3") == 1
    result, _ = search(FIVE, faulty_from("2", FIVE, _3=Answer.UNTESTABLE))
    assert result == Result(end=End.FOUND, last_good="1", first_bad="2")


def test_an_undecided_release_is_run_three_times_and_no_more():
    result, asked = search(FIVE, faulty_from("4", FIVE, _3=Answer.OPEN))
    assert result.end is End.NARROWED
    assert asked.count("3") == 3


@pytest.mark.parametrize("others", [[Answer.OPEN] * 3, [Answer.UNTESTABLE]], ids=["undecided", "untestable"])
def test_a_last_good_release_without_its_second_green_run_is_among_those_left(others):
    """Its first run was green; the run that would confirm it cannot be had."""
    answers = {"1": [Answer.GOOD], "2": [Answer.GOOD, *others], "3": [Answer.BAD]}
    result, asked = search(tuple(answers), lambda release, run: answers[release][run])
    assert result == Result(end=End.NARROWED, last_good="2", first_bad="3", untestable=("2",))
    assert asked == ["3", "1", "2", *["2"] * len(others)]


def test_a_search_ends_whatever_its_runs_answer():
    draws = random.Random(3)
    for _ in range(300):
        weights = [draws.random() for _ in Answer]
        search(FIVE, lambda *_, weights=weights: draws.choices(list(Answer), weights)[0])


def test_a_release_that_is_undecided_once_is_decided_by_the_next_run():
    result, asked = search(FIVE, lambda release, run: Answer.OPEN if run == 0 else faulty_from("3", FIVE)(release, run))
    assert result == Result(end=End.FOUND, last_good="2", first_bad="3")
    assert asked == ["5", "5", "1", "1", "3", "3", "2", "2", "2"]


@pytest.mark.parametrize("answer, end", [
    (lambda release, _: Answer.GOOD, End.BAD_IS_GOOD),
    (lambda release, _: Answer.BAD, End.GOOD_IS_BAD),
    (lambda release, _: Answer.UNTESTABLE, End.END_UNTESTABLE),
    (lambda release, _: Answer.BAD if release == "5" else Answer.OPEN, End.END_UNTESTABLE),
], ids=["all green", "all red", "no server", "good end undecided"])  # fmt: skip
def test_ends_that_are_not_as_stated_end_the_search(answer, end):
    result, asked = search(FIVE, answer)
    assert result.end is end
    assert set(asked) <= {"1", "5"}


@pytest.mark.parametrize("detection, runs", [(1.0, 1), (0.99, 1), (0.9, 2), (0.5, 7), (0.1, 44)])
def test_green_runs_are_as_many_as_the_miss_asks_for(detection, runs):
    assert runs_needed(detection) == runs
    assert (1 - detection) ** runs <= MISS * (1 + 1e-9)
    assert runs == 1 or (1 - detection) ** (runs - 1) > MISS


def test_a_last_good_release_that_turns_red_opens_the_releases_before_it_again():
    said = {"1": [Answer.GOOD], "2": [Answer.GOOD, Answer.BAD], "3": [Answer.BAD], "5": [Answer.BAD]}
    result, asked = search(FIVE, lambda release, run: said[release][min(run, len(said[release]) - 1)])
    assert result == Result(end=End.FOUND, last_good="1", first_bad="2")
    # of the four runs from release 2 on three are red: a good release needs four green ones
    assert asked == ["5", "1", "3", "2", "2", "1", "1", "1"]


def test_a_stated_detection_asks_for_its_runs_from_the_start():
    _, asked = search(FIVE, faulty_from("3", FIVE), detection=0.5)
    assert {release: asked.count(release) for release in FIVE} == {"1": 7, "2": 7, "3": 1, "4": 0, "5": 1}


@pytest.mark.examples(2)
@pytest.mark.parametrize("shows, stated, most_wrong", [(0.5, 0.5, 0.03), (0.8, 0.8, 0.03), (0.8, DETECTION, 0.12)])
def test_a_fault_that_comes_and_goes_is_seldom_put_at_another_release(shows, stated, most_wrong):
    """With its detection stated the search errs by 1 % a release on its path, unstated by what two green runs leave."""
    releases, draws, searches = tuple("abcdefgh"), random.Random(7), 300
    results = []
    for _ in range(searches):
        first_bad = draws.choice(releases[1:])

        def answer(release, _, first_bad=first_bad):
            return Answer.BAD if release >= first_bad and draws.random() < shows else Answer.GOOD

        result, _ = search(releases, answer, detection=stated)
        results.append(result.end is End.FOUND and result.first_bad == first_bad)
    assert results.count(False) / searches <= most_wrong


def test_nothing_is_asked_twice_that_decides_nothing():
    assert next_step(FIVE, []) == Ask(release="5")


@pytest.mark.parametrize("answer, release", [
    (faulty_from("4", FIVE, _3=Answer.UNTESTABLE), "3"),
    (lambda *_: Answer.OPEN, "5"),
], ids=["between the ends", "at an end"])  # fmt: skip
def test_a_search_without_progress_is_one_error(monkeypatch, answer, release):
    """Planted: releases that cannot be tested are not left out."""
    monkeypatch.setattr(searches._Tally, "is_untestable", False)
    with pytest.raises(SpecdecError, match=f"the search makes no progress at {release}") as caught:
        search(FIVE, answer)
    assert caught.value.expected == "an answer within 4 runs"
