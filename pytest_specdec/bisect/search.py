"""The search for the first bad release, as a function of the answers so far; it starts nothing.

A trial is one run of the tests at a release: green for a good answer, red for a bad one. A tally has the number of a release's trials by
answer. The ends are the first release, good by the user's word, and the last, bad likewise. ``needed`` is the number of green runs by which
a release counts as good while others are tried; ``decisive``, at least two, that by which the result may rest on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.errors import SpecdecError

if TYPE_CHECKING:
    from collections.abc import Sequence

MISS = 0.01
"""The probability accepted that a bad release is taken for a good one."""
DETECTION = 0.99
"""The probability that a run at a bad release is red: the power that the suites' own passes state."""
_MOST_OPEN = 3
"""Runs of a release that come to no decision before it counts as untestable."""
_DECISIVE_RUNS = 2
"""Green runs, at least, of a release that the result rests on: a fault that comes and goes shows as a release that answers both ways."""


class Answer(StrEnum):
    """What one run said of a release."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "undecided"
    """A server failed once, or evidence was short of a decision: another run may decide."""
    UNTESTABLE = "untestable"
    """No environment, no server, or no such feature: another run says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A release and the answer of one of its runs."""

    release: str
    answer: Answer


class End(StrEnum):
    """How a search ends."""

    FOUND = "found"
    NARROWED = "narrowed"
    """Releases that cannot be tested stand before the first known bad one; the last good one may be among them, for want of green runs."""
    GOOD_IS_BAD = "the good end is bad"
    BAD_IS_GOOD = "the bad end is good"
    END_UNTESTABLE = "an end is untestable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The next step: a run of one release."""

    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a search."""

    end: End
    last_good: str
    """The last release known to be good, which may be the bad end itself; empty if the search ends without one."""
    first_bad: str
    """The first release known to be bad; empty if the search ends without one."""
    untestable: tuple[str, ...] = ()
    """Those between the two, and the last good one if it has too few green runs, or the untestable end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally:
    """The answers of one release."""

    good: int
    bad: int
    open: int
    untestable: int

    @property
    def runs(self) -> int:
        return self.good + self.bad + self.open + self.untestable

    @property
    def is_untestable(self) -> bool:
        """True if further runs would come to no decision; one red run is a decision."""
        return not self.bad and (self.untestable > 0 or self.open >= _MOST_OPEN)


def next_step(releases: Sequence[str], trials: Sequence[Trial], detection: float = DETECTION) -> Ask | Result:
    """Return the release to run next, or the result.

    ``releases`` are in order, from the good end to the bad one. One red run makes a release bad: a run's false-alarm
    rate is 0.001 for correctness. Green runs may have missed the fault, so that a good release may need several.
    ``detection`` is the probability that a run at a bad release is red, as the user states it. Raises SpecdecError if
    the next run would be of a release that has had every run that could decide it: the search would not end.
    """
    tallies = [_count(release, trials) for release in releases]
    # The user's number may be too high: the lower one asks for more green runs.
    needed = runs_needed(min(detection, _estimate_detection(tallies)))
    # For the last good release of a result, or to say that the bad end is good after all.
    decisive = max(needed, _DECISIVE_RUNS)
    step = _choose(releases, tallies, needed, decisive)
    if isinstance(step, Ask):
        _require_progress(step.release, tallies[releases.index(step.release)], decisive)
    return step


def _choose(releases: Sequence[str], tallies: Sequence[_Tally], needed: int, decisive: int) -> Ask | Result:
    """Return the next step of a search.

    First the bad end is run until a run is red. Then the good end is run until some release before the first bad one has
    ``needed`` green runs. Then the releases between these two are halved (:func:`_halve`). The search ends early if an
    end is not as the user says, or cannot be tested.
    """
    bad_end, good_end = tallies[-1], tallies[0]
    if not bad_end.bad:
        # An end that cannot be tested is reported as that, whatever its green runs.
        if bad_end.is_untestable or bad_end.good < decisive:
            return _run_or_give_up(releases[-1], bad_end)
        return Result(end=End.BAD_IS_GOOD, last_good=releases[-1], first_bad="")
    bad_index = _first_bad(tallies)
    if bad_index == 0:
        return Result(end=End.GOOD_IS_BAD, last_good="", first_bad=releases[0])
    good_index = max((index for index in range(bad_index) if tallies[index].good >= needed), default=None)
    if good_index is None:
        return _run_or_give_up(releases[0], good_end)
    return _halve(releases, tallies, good_index, bad_index, decisive)


def _halve(releases: Sequence[str], tallies: Sequence[_Tally], good: int, bad: int, decisive: int) -> Ask | Result:
    """Return the next step between a good and a bad release.

    ``good`` and ``bad`` are their indices. The next run is of the testable release between them that is nearest to the
    middle. If none is left, ``good`` is run until it has ``decisive`` green runs, since the result rests on it. If it
    becomes untestable before that, the result lists it among the untestable releases.
    """
    testable = [index for index in range(good + 1, bad) if not tallies[index].is_untestable]
    if testable:
        return Ask(release=releases[_nearest_index(testable, (good + bad) / 2)])
    is_confirmed = tallies[good].good >= decisive
    if not is_confirmed and not tallies[good].is_untestable:
        return Ask(release=releases[good])
    untestable = tuple(releases[good + 1 if is_confirmed else good : bad])
    return Result(end=End.NARROWED if untestable else End.FOUND, last_good=releases[good], first_bad=releases[bad], untestable=untestable)


def _run_or_give_up(release: str, tally: _Tally) -> Ask | Result:
    """Return another run of an end, or the search's result if it is untestable."""
    if tally.is_untestable:
        return Result(end=End.END_UNTESTABLE, last_good="", first_bad="", untestable=(release,))
    return Ask(release=release)


def _require_progress(release: str, tally: _Tally, decisive: int) -> None:
    """Raise SpecdecError if a release has had every run it can need.

    A release is settled after ``decisive`` green runs, or as untestable after ``_MOST_OPEN`` undecided ones. The longest
    history has ``decisive`` - 1 green and ``_MOST_OPEN`` - 1 undecided runs, and then the run that settles it.
    """
    most = decisive + _MOST_OPEN - 1
    if tally.runs >= most:
        what, expected = f"the search makes no progress at {release}", f"an answer within {most} runs"
        counts = f"{tally.good} good, {tally.bad} bad, {tally.open} undecided, {tally.untestable} untestable runs"
        remedy = f"report this error of the search with its bisect.json; to go on, leave {release} out of --releases in another --folder"
        raise SpecdecError(what, where=release, found=counts, expected=expected, remedy=remedy)


def runs_needed(detection: float) -> int:
    """Return the number k of green runs needed by a good release.

    ``detection`` is the probability that a run at a bad release is red. By chance alone a bad release has k green runs
    with probability (1 - ``detection``)^k, runs taken as independent; k is the smallest for which this is at most
    :data:`MISS`, the accepted one.
    """
    # rounded, since the logarithms of 0.01 and 1 - 0.99 are not quite the same float
    return 1 if detection >= 1 else max(1, math.ceil(round(math.log(MISS) / math.log1p(-detection), 9)))


def _count(release: str, trials: Sequence[Trial]) -> _Tally:
    """Return how often the runs of ``release`` gave each answer."""
    answers = [trial.answer for trial in trials if trial.release == release]
    counts = {answer: answers.count(answer) for answer in Answer}
    return _Tally(good=counts[Answer.GOOD], bad=counts[Answer.BAD], open=counts[Answer.OPEN], untestable=counts[Answer.UNTESTABLE])


def _estimate_detection(tallies: Sequence[_Tally]) -> float:
    """Return the fraction of red runs from the first bad release on.

    It estimates the probability that a run at a bad release is red: all releases from there on have the fault, so that
    a green run has missed it. Undecided and untestable runs do not count. Returns 1 if no run was red.
    """
    bad_tallies = tallies[_first_bad(tallies) :]
    red, green = sum(tally.bad for tally in bad_tallies), sum(tally.good for tally in bad_tallies)
    return red / (red + green) if red else 1.0


def _first_bad(tallies: Sequence[_Tally]) -> int:
    """Return the index of the first release with a red run.

    Without one it is the number of releases.
    """
    return next((index for index, tally in enumerate(tallies) if tally.bad), len(tallies))


def _nearest_index(indices: Sequence[int], middle: float) -> int:
    """Return the index nearest to ``middle``; of two the lower one."""
    return min(indices, key=lambda index: (abs(index - middle), index))
