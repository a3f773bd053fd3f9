"""Which fault wrong tokens at temperature 0 point to: by their places in verify windows, and by the prompts that they follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_diagnosis import AFTER_FULL, AT_DRAFTS, BONUS, EVERYWHERE, NOT_ROLLED_BACK, SHORT_PROMPT, STOPPED_DRAFTS
from pytest_specdec.model.pair import DraftKind
from tests.judge.captured_values import VARIANT, a_pair, answer, captured, score

WINDOWS = (1, 4, 2, 1, 4, 2, 1, 2, 1, 2)
"""Full windows end at tokens 4 and 11; the first recovered token is token 6."""
ANSWERS = [answer(f"chat-{i:02}", range(20), windows=WINDOWS) for i in range(8)]

LONGER = [answer(f"chat-{i:02}", range(55), windows=(1, 4, *(2, 2, 4, 2) * 5)) for i in range(8)]
"""Full windows end at tokens 4, 12, 22 and so on."""


COPIED = (*(7, 8, 9, 10), *(30, 31, 32, 33, 34), 7, 8, 9, 10, *(40, 41, 42, 43, 44, 45), 30, 31, 32, 33, 34)
COPYING = [answer(f"chat-{i:02}", COPIED, windows=(1,) * 11 + (3,) + (1,) * 7 + (4, 1)) for i in range(8)]
"""Prompt lookup drafts from tokens 11 and 21 on, and nothing from token 14 on: there its drafts stop."""


def named(wrong, *, also=(), answers=ANSWERS, **fields):
    """The name where these tokens of every answer are wrong, and ``also`` those of the first."""
    tokens = [(*wrong, *(() if number else also)) for number in range(len(answers))]
    scores = {VARIANT: tuple(score(VARIANT, each, dict.fromkeys(w, 3.0).items()) for each, w in zip(answers, tokens, strict=True))}
    return greedy.judge(captured("greedy", answers, answers, scores=scores, **fields)).names


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


def test_few_wrong_bonus_tokens_may_have_come_of_wrong_drafts():
    drafted = (1, 5, 6, 7, 15, 16, 17, 25, 26, 27)
    assert named(drafted, also=(4,), answers=LONGER) == AT_DRAFTS
    assert named((*drafted, 4), answers=LONGER) == ""


def test_where_all_wrong_tokens_stand_behind_a_full_draft_positions_and_state_are_not_told_apart():
    assert named((5, 6, 7, 15, 16), answers=LONGER) == ""
    assert named((1, 5, 6, 7, 15), answers=LONGER) == AT_DRAFTS


def test_a_few_wrong_tokens_behind_a_full_window_may_be_an_accident():
    scores = {VARIANT: tuple(score(VARIANT, each, {11: 3.0}.items() if i == 0 else ()) for i, each in enumerate(ANSWERS))}
    assert greedy.judge(captured("greedy", ANSWERS, ANSWERS, scores=scores)).names == ""


@pytest.mark.parametrize("wrong, name", [
    ((14,), STOPPED_DRAFTS),
    ((14, 15, 16, 22), STOPPED_DRAFTS),
    ((17, 18), STOPPED_DRAFTS),
    ((18,), NOT_ROLLED_BACK),
    ((3, 14), ""),
])  # fmt: skip
def test_a_state_that_is_wrong_where_drafts_stop_is_named(wrong, name):
    assert named(wrong, answers=COPYING, pair=a_pair(DraftKind.NGRAM)) == name


@pytest.mark.parametrize("tokens, wrong, name", [
    (4, (0, 1, 5), SHORT_PROMPT),
    (3, (0, 1, 5), ""),
    (5, (0, 1, 5), ""),
])  # fmt: skip
def test_answers_to_prompts_of_one_window_are_named_where_no_other_is_wrong(tokens, wrong, name):
    prompt = tuple(range(tokens))
    answers = [replace(each, prompt_token_ids=prompt) if number == 0 else each for number, each in enumerate(ANSWERS)]
    assert named((), also=wrong, answers=answers) == name
    assert named((0,), also=wrong, answers=answers) == ""
