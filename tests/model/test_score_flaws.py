"""Flaws of scores: which positions are distributions, and what the others are refused for."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.model.score_flaws import flaw
from pytest_specdec.model.transcript import Position

NAN, INF = math.nan, math.inf


def position(own, top=(-0.5, -2.0), ids=(7, 9, 11), token_id=7):
    return Position(token_id=token_id, logprob=own, top_ids=ids[: len(top)], top_logprobs=top)


@pytest.mark.parametrize(
    "sound",
    [
        position(-0.5),
        position(-2.0, token_id=9),
        position(-0.5, (-0.5, -2.0, -INF)),
        position(-0.5, (-0.5, -0.5004)),
        position(4e-4, (4e-4, -9.0)),
        position(-9.0, token_id=99),
        position(-INF, token_id=99),
        position(NAN, token_id=99),
        position(-3.4e38, token_id=99),
        position(-1e-4, (-1e-4,)),
    ],
)
def test_a_distribution_has_no_flaw(sound):
    assert flaw(sound, top_tokens=20) == ""


@pytest.mark.parametrize(
    "reason, unsound",
    [
        ("lists 0 tokens", position(-0.5, ())),
        ("lists 3 tokens", Position(token_id=7, logprob=-0.5, top_ids=(7, 9, 11), top_logprobs=(-0.5, -2.0))),
        ("log-probability of nan", position(-0.5, (-0.5, NAN))),
        ("log-probability of 1e+308", position(-0.5, (1e308, -0.5))),
        ("log-probability of -1e+308", position(-0.5, (-0.5, -1e308))),
        ("no best token", position(-INF, (-INF, -INF))),
        ("not ranked", position(-2.0, (-2.0, -0.5))),
        ("lists one token", position(-0.5, (-0.5,))),
        ("of nan, and of -0.5 in the list", position(NAN)),
        ("of 0.0, and of -2 in the list", position(0.0, token_id=9)),
        ("the best one listed", position(-0.1, token_id=99)),
        ("the best one listed", position(INF, token_id=99)),
    ],
)
def test_what_is_no_distribution_is_named(reason, unsound):
    assert reason in flaw(unsound, top_tokens=20)


def test_one_token_is_enough_where_one_was_asked_for():
    assert flaw(position(-0.5, (-0.5,)), top_tokens=1) == ""
