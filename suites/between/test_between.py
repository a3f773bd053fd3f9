"""Between: an event between two askings, such as sleep and wake or a reload of the weights, changes no answer and loses no drafter.

A pass means: after every event that the servers have, the same prompts, one at a time and together, got the baseline's tokens, as many of
their drafts were accepted as before the first event, and as much of them was cached as with the baseline after the same event.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import between

AROUND_EVENTS = between.around_events()


@pytest.mark.specdec(AROUND_EVENTS, family="between")
def test_a_server_is_as_before_after_an_event(captured, check):
    check(judge.between.judge(captured))
