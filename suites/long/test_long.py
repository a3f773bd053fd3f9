"""Long contexts: prompts of an eighth, a quarter and a half of what the server admits, and at deep depth of the whole.

A pass means: every long prompt had its answer, tokens after it were the baseline's choice as far as sequences are scored, and
drafts were still accepted, at the depth and after it. The report says how much is accepted by depth.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts.long import LONG_CONTEXTS


@pytest.mark.specdec(LONG_CONTEXTS, family="long")
def test_tokens_and_drafts_stay_right_behind_long_contexts(captured, check):
    check(judge.long.judge(captured))
