"""What the capability probe makes of a distribution in which some tokens are not told."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.capture.capabilities import CapabilityProbe
from pytest_specdec.model.transcript import Answer, Choice, ScoringRoute
from tests.capture.test_routes import Server, listed

HALF, UNLISTED = math.log(0.5), -7.0


def warm(reported):
    """Three tokens, of which the second is nowhere in the list."""
    choice = Choice(text="abc", token_ids=(10, 99, 12), logprobs=reported, finish_reason="length")
    return Answer(request_id="probe", status=200, prompt_token_ids=(1, 2), choices=(choice,))


@pytest.mark.parametrize(
    "reported,raw",
    [
        ((HALF, UNLISTED, HALF), True),
        ((HALF + 0.1, UNLISTED, HALF - 0.15), True),  # more noise than is ever met
        ((1.05 * HALF, UNLISTED, 1.05 * HALF), True),  # a scorer that leans
        ((-0.31, UNLISTED, -0.31), False),
        ((-0.31 + 0.1, UNLISTED, -0.31 - 0.1), False),
        ((-0.31, -math.inf, -0.31), False),
        ((), True),
        (None, True),
    ],
)
def test_log_probabilities_are_judged_by_the_listed_tokens(reported, raw):
    server = Server(listed)
    server.running = True
    assert CapabilityProbe(server, 4096)._raw_logprobs(warm(reported), ScoringRoute.CONTINUATIONS) is raw
