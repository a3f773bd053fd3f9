"""A bisect in text: a line per run, a sentence for the result, and a table of releases.

A bisect searches an engine's releases for the first one with a fault. Its record has the releases in order, from the good end to the bad
one, by the user's word. A trial is one run of the tests at a release; its finding is the fault that turned the run red.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_specdec.bisect.search import Answer, Ask, End, Result
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.bisect.record import Record, Trial

_LONGEST = 100


def opening(record: Record) -> str:
    """Return the line on the search's ends and its expected runs.

    The runs are two for the ends, a halving search between them, and one that confirms the last good release.
    """
    question, between = record.question, len(record.releases) - 2
    runs = 2 + math.ceil(math.log2(between + 1)) + 1
    done = f"; {len(record.trials)} runs are there already" if record.trials else ""
    return f"good {question.good}, bad {question.bad}, {between} release{'s' * (between != 1)} between: about {runs} runs{done}"


def trial_line(trial: Trial, width: int) -> str:
    """Return the line of one run; ``width`` is that of the longest release."""
    words = [f"{trial.release:<{width}}  {trial.answer.value:<10}  {trial.seconds:.0f} s", _finding(trial), trial.run]
    return printable("  ".join(filter(None, words)))


def closing(record: Record) -> tuple[str, ...]:
    """Return the table of the releases run so far, and the result.

    While the search goes on, ``record.step`` asks for a run, and the releases left to try stand in place of the result.
    """
    step = record.step
    lines = _open_lines(record, step) if isinstance(step, Ask) else _result_lines(record, step)
    return ("", *_table(record), "", *(printable(line) for line in lines))


def _open_lines(record: Record, step: Ask) -> tuple[str, ...]:
    """Return the line on the releases left to try.

    If no run was red yet, or the good end has not been run, it says that the ends are not verified. Else it lists the
    releases that may be the first bad one: those after the last green release up to the first red one.
    """
    answers = [{trial.answer for trial in record.of(release)} for release in record.releases]
    first_red = next((index for index, values in enumerate(answers) if Answer.BAD in values), None)
    if first_red is None or not answers[0]:
        return (f"The ends are not verified yet; the next run is of {step.release}. The same command goes on.",)
    # Without a green run it is the good end (0), by the user's word. That end is not red: the search would have ended.
    last_green = max((index for index in range(1, first_red) if Answer.GOOD in answers[index]), default=0)
    left = ", ".join(record.releases[last_green + 1 : first_red + 1])
    return (f"The first bad release is one of {left}; the next run is of {step.release}. The same command goes on.",)


def _result_lines(record: Record, result: Result) -> tuple[str, ...]:
    """Return the lines of the result and of the run behind it.

    If an end is not as stated, or cannot be tested, the last line is the next step.
    """
    if result.end is End.END_UNTESTABLE:
        (release,) = result.untestable
        trial, again = record.of(release)[-1], "give the same command again, with --folder F if the config changes"
        remedy = f"mend that and {again}; or give the search another end: --good, --bad"
        return (f"{release} cannot be tested: {trial.headline}", *_run_lines(trial), f"Next: {remedy}.")
    if result.end is End.BAD_IS_GOOD:
        runs = len(record.of(result.last_good))
        remedy = "select the test that shows the fault, at the depth that shows it; state --detection where a run does not always show it"
        return (f"{result.last_good}, the bad end, is green in {runs} runs.", f"Next: {remedy}.")
    trial = next(trial for trial in record.of(result.first_bad) if trial.answer is Answer.BAD)
    if result.end is End.GOOD_IS_BAD:
        return (
            f"{result.first_bad}, the good end, is bad: {_finding(trial)}",
            *_run_lines(trial),
            "Next: give an older release as --good.",
        )
    return _first_bad_lines(record, result, trial)


def _first_bad_lines(record: Record, result: Result, trial: Trial) -> tuple[str, ...]:
    """Return the lines on a first bad release and the releases beside it.

    ``trial`` is the first red run of that release. If the search was only narrowed down, its untestable releases are
    named as possible first ones.
    """
    first = f"The first bad release is {result.first_bad}"
    if result.end is End.NARROWED:
        first = f"The first bad release is one of {', '.join((*result.untestable, result.first_bad))}; {result.first_bad} is bad"
    untestable_lines = (f"{release} cannot be tested: {record.of(release)[-1].headline}" for release in result.untestable)
    return (
        f"{first}: {_finding(trial)}",
        _last_good_line(record, result),
        *untestable_lines,
        *_run_lines(trial),
        *_other_finding_line(record, trial),
        *_older_faults_line(record),
    )


def _last_good_line(record: Record, result: Result) -> str:
    """Return the line on the last good release.

    A release with too few green runs is called untestable too, if its other runs came to no decision. The line then
    gives their number.
    """
    line = f"The last good release is {result.last_good}"
    if result.last_good not in result.untestable:
        return f"{line}."
    runs = sum(trial.answer is Answer.GOOD for trial in record.of(result.last_good))
    return f"{line} by {runs} green run{'s' * (runs != 1)}, fewer than it needs."


def _other_finding_line(record: Record, trial: Trial) -> tuple[str, ...]:
    """Return a line if the bad end has another finding than ``trial``.

    ``trial`` is the first bad release's. A trial's ``name`` is that of its finding. Returns () if both are the same.
    """
    # There is a red one: no other release is run before the bad end is red.
    red_at_end = next(other for other in record.of(record.question.bad) if other.answer is Answer.BAD)
    if red_at_end.name == trial.name:
        return ()
    return (f"At {red_at_end.release} the same tests are red with another finding: {red_at_end.name}. It may be another fault.",)


def _older_faults_line(record: Record) -> tuple[str, ...]:
    """Return a line on the tests red at both ends; () without any."""
    if not record.older:
        return ()
    first, *others = sorted(record.older)
    tests = f"{first} and {len(others)} more" if others else first
    remedy = "If it is the same fault, give an older release as --good."
    return (f"Red at {record.question.good}, the good end, too, and not counted: {tests}. {remedy}",)


def _run_lines(trial: Trial) -> tuple[str, ...]:
    """Return the lines on a trial's run and its replay."""
    run = (f"Run: {trial.run}",) if trial.run else ()
    return (*run, f"Replay it: {trial.replay}") if trial.replay else run


def _finding(trial: Trial) -> str:
    """Return a trial's finding, or why it has no answer.

    The text is the finding's name and headline, or the headline alone if that has the name in it, cut to 100 characters.
    Without a finding the name is empty, and the headline is the reason.
    """
    text = trial.headline if trial.name in trial.headline else f"{trial.name}: {trial.headline}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _table(record: Record) -> tuple[str, ...]:
    """Return the lines of a table of the releases run so far.

    All columns but the last are padded to their widest cell.
    """
    rows = [_row(release, record.of(release)) for release in record.releases if record.of(release)]
    heads = ("release", "engine", "answers", "finding or reason")
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(3)]
    return tuple(
        "  ".join((*(f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=True)), row[3])).rstrip() for row in (heads, *rows)
    )


def _row(release: str, trials: Sequence[Trial]) -> tuple[str, str, str, str]:
    """Return the cells of a release's row.

    Engine and finding are those of its first bad trial, or of its last one if none is bad.
    """
    shown_trial = next((trial for trial in trials if trial.answer is Answer.BAD), trials[-1])
    answers = ", ".join(trial.answer.value for trial in trials)
    return release, printable(shown_trial.engine), answers, printable(_finding(shown_trial))
