"""State: what a server keeps between requests, a prefix cache above all, changes no token of a later one.

A pass means: prompts asked again, prompts that share a beginning and prompts after a long one or after a stream that its client left got
the baseline's tokens, as many of their drafts were accepted as before, and as much of them was cached as with the baseline.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Depth
from pytest_specdec.prompts import state

IN_ORDER = state.in_order(take={Depth.SMOKE: 10})


@pytest.mark.specdec(IN_ORDER, family="state")
def test_no_answer_depends_on_what_was_asked_before(captured, check):
    check(judge.state.judge(captured))
