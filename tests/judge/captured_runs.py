"""Builders of whole runs: workloads with their answers by arm, joined as the files of a run join them."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.captured_run import CapturedRun, join
from tests.judge.captured_values import captured


def a_run(*parts, **fields):
    """The first part's workload is the one that the test names."""
    return CapturedRun(whole=replace(join(parts[0], parts), **fields), parts=parts)


def a_part(workload, speculative, baseline, control=None, family="invariants", **fields):
    return captured(family, speculative, baseline, control, workload=workload, **fields)
