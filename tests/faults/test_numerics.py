"""Correct servers whose numbers are not exact stay green: half precision, noisy verify kernels, a mixture of experts.

Smoke depth and one variant; ``make healthy`` judges every world with all suites at standard depth.
"""

from __future__ import annotations

import pytest

from benchmarks import healthy
from benchmarks.sensitivity.suite_run import DRAFT

COMPARING = ("greedy", "logprobs", "state", "concurrency", "parameters", "seeds")
"""Families that hold tokens, texts or numbers against each other one by one."""


@pytest.mark.parametrize("world", [
    pytest.param("bf16.03", marks=pytest.mark.faults(quick=True)),
    pytest.param("ver3x", marks=pytest.mark.faults(quick=True)),
    pytest.param("out1e-4", marks=pytest.mark.faults(quick=False)),
])  # fmt: skip
def test_a_correct_server_stays_green_whatever_its_numerics(world, tmp_path):
    run = healthy.suite_run(world, 1, "smoke", only=COMPARING, variants={"draft-k3": DRAFT})
    run.capture(tmp_path)
    judged = run.judged(tmp_path)
    assert judged["draft-k3"]
    assert healthy.red(judged) == ()
