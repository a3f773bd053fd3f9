"""The table of the verify-noise gate: none exactly at it fails, and one far above it does."""

from __future__ import annotations

import pytest

from benchmarks.verify_noise import failing


@pytest.mark.parametrize("spread, ratio, expected", [(0.0, 3.0, 0), (0.5, 3.0, 0), (0.0, 6.0, 20)])
def test_kernels_at_the_gate_pass_and_those_far_above_fail(spread, ratio, expected):
    assert failing(spread, ratio, 20) == expected
