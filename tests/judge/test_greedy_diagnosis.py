"""Which fault a wrong token at temperature 0 points to: a state behind fully accepted drafts, and a target that is wrong everywhere."""

from __future__ import annotations

import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_diagnosis import AFTER_FULL, AT_DRAFTS, BONUS, EVERYWHERE, NOT_ROLLED_BACK
from tests.judge.captured_values import VARIANT, answer, captured, score

WINDOWS = (1, 4, 2, 1, 4, 2, 1, 2, 1, 2)
"""Full windows end at tokens 4 and 11; the first recovered token is token 6."""
ANSWERS = [answer(f"chat-{i:02}", range(20), windows=WINDOWS) for i in range(8)]


def named(wrong):
    """The name where these tokens of every answer are wrong."""
    scores = {VARIANT: tuple(score(VARIANT, each, dict.fromkeys(wrong, 3.0).items()) for each in ANSWERS)}
    return greedy.judge(captured("greedy", ANSWERS, ANSWERS, scores=scores)).names


@pytest.mark.parametrize("wrong, name", [
    ((5, 6, 8, 12, 15), AFTER_FULL),
    ((4, 11), BONUS),
    ((7, 8, 11, 12, 14), NOT_ROLLED_BACK),
    ((2, 7, 11, 14), ""),
    ((1, 6, 7, 12, 14), AT_DRAFTS),
    (range(1, 20), EVERYWHERE),
    (range(1, 12), ""),
])  # fmt: skip
def test_a_fault_is_named_from_where_its_wrong_tokens_stand(wrong, name):
    assert named(wrong) == name


def test_a_few_wrong_tokens_behind_a_full_window_may_be_an_accident():
    scores = {VARIANT: tuple(score(VARIANT, each, {11: 3.0}.items() if i == 0 else ()) for i, each in enumerate(ANSWERS))}
    assert greedy.judge(captured("greedy", ANSWERS, ANSWERS, scores=scores)).names == ""
