"""Prompts and answers at the ends of contexts: around the sizes of cache blocks, up to the limit of the server, and one token beyond.

A pass means: every answer had the tokens that it was to have, refusals were the baseline's, and the tokens were its choice.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts.context import EDGES, LONG


@pytest.mark.specdec(LONG, family="context")
def test_long_sequences_get_the_baselines_tokens(captured, check):
    check(judge.context.judge(captured))


@pytest.mark.specdec(EDGES, family="context")
def test_answers_run_up_to_the_limit(captured, check):
    check(judge.context.judge(captured))
