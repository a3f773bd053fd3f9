"""Tools: calls, reasoning and text are taken out of the tokens alike, however many of them a step brings.

A pass means: every call is well formed, fits its tool, and is the same in the stream and in the whole answer of the same tokens.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import tools


@pytest.mark.specdec(tools.twins(), family="tools")
def test_streamed_and_whole_answers_hold_the_same_calls(captured, check):
    check(judge.tools.judge(captured))
