"""Windows that follow from prompt lookup: what a correct server does with the drafts that the tokens imply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.sampling.data import gather
from pytest_specdec.judge.sampling.draft_distribution import drafting
from tests.judge import toy_speculation


@pytest.fixture(scope="module")
def told():
    return toy_speculation.captured("ngram", answers=24)


def test_they_are_those_that_a_correct_server_tells(told):
    """But for the last, which a limit may have cut."""
    lookup = drafting(told)
    for answer in told.speculative.answers:
        assert lookup.windows(answer)[:-1] == answer.choice.windows[:-1]
        assert sum(lookup.windows(answer)) == len(answer.choice.token_ids)


def test_they_stand_in_where_the_server_tells_none(told):
    silent = tuple(replace(a, choices=(replace(a.choice, windows=None),)) for a in told.speculative.answers)
    seen, hidden = (gather(one).observed.slots for one in (told, replace(told, speculative=replace(told.speculative, answers=silent))))
    assert (seen.implied, hidden.implied) == (False, True)
    inner = ~seen.last
    assert (hidden.slot[inner] == seen.slot[inner]).all()
    assert (hidden.drafted[inner] == seen.drafted[inner]).all()


def test_a_model_leaves_them_to_the_filter():
    one = toy_speculation.captured("greedy", answers=2)
    assert drafting(one).windows(one.speculative.answers[0]) is None
