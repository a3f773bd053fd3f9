"""A bisect in text, before its end: the range that is left."""

from __future__ import annotations

import pytest

from pytest_specdec.bisect import summary
from pytest_specdec.bisect.record import Question, Record, Trial
from pytest_specdec.bisect.search import Answer

NAMES = ("0.1", "0.2", "0.3", "0.4", "0.5")


def record(**answers):
    """The record of an unfinished bisect; ``answers`` by release, as ``_3="gb"`` for 0.3, green and then red."""
    by_letter = {"g": Answer.GOOD, "b": Answer.BAD, "u": Answer.UNTESTABLE}
    trials = [
        Trial(release=f"0{release.replace('_', '.')}", answer=by_letter[letter], seconds=1.0)
        for release, letters in answers.items()
        for letter in letters
    ]
    question = Question(config="c.yaml", config_digest="", good="0.1", bad="0.5", tests=(), depth="smoke", detection=1.0)
    return Record(question=question, releases=NAMES, trials=tuple(trials))


@pytest.mark.parametrize("answers, left", [
    ({"_5": "b", "_1": "g"}, "0.2, 0.3, 0.4, 0.5"),
    ({"_5": "b", "_1": "g", "_3": "b"}, "0.2, 0.3"),
    ({"_5": "b", "_1": "g", "_3": "g"}, "0.4, 0.5"),
    ({"_5": "b", "_1": "g", "_3": "gb"}, "0.2, 0.3"),
    ({"_5": "b", "_1": "g", "_2": "g", "_3": "gb"}, "0.3"),
    ({"_5": "b", "_1": "g", "_3": "u"}, "0.2, 0.3, 0.4, 0.5"),
])  # fmt: skip
def test_a_release_that_was_red_once_is_the_last_one_left_though_it_was_green_too(answers, left):
    line = summary.closing(record(**answers))[-1]
    assert line.startswith(f"The first bad release is one of {left}; the next run is of ")
