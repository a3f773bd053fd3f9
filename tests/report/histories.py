"""Nightly runs of the reference pair, written and read as files are."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from pytest_specdec.model.promise import SpeedFigure, SpeedLimits
from pytest_specdec.model.status import BootTime, State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import run, trend
from tests.report.runs import ENVIRONMENT, GREEDY, SPEED, judgement, run_of

START = datetime(2026, 1, 5, 2, 30, tzinfo=UTC)


def night(number, ratio=1.8, *judgements, **fields):
    """Return the run of one night with one speedup."""
    promise = replace(
        SPEED.promise,
        response=SpeedFigure(baseline=100.0, speculative=100.0 * ratio, speedup=ratio),
        limits=SpeedLimits(low=0.95 * ratio, high=1.05 * ratio),
    )
    greedy = replace(GREEDY, figures={"noise_nats": 0.01, "wrong_tokens": 0.0, "tokens": 3072.0})
    served = (BootTime(boot=0, arm="control", readiness_s=1.0 + number, wall_s=2.0, busy=0.5),)
    about = {
        "made_at": (START + timedelta(days=number)).isoformat(timespec="seconds"),
        "status": Status(state=State.COMPLETE, boots=5, wall_s=80.0, served=served),
        **fields,
    }
    return run_of(judgement(greedy), judgement(replace(SPEED, outcome=Outcome.PASS, promise=promise)), *judgements, **about)


def ratios(count, step, factor=0.9, spread=0.03):
    """Return speedups that fall by a factor from one run on."""
    rng = np.random.default_rng(3)
    return [1.8 * (factor if number >= step else 1.0) * math.exp(rng.normal(0.0, spread)) for number in range(count)]


def upgraded(version="0.2.0", **fields):
    return replace(ENVIRONMENT, engine_version=version, **fields)


def read(nights):
    """Return the trends of runs as their run.json says."""
    return trend.build([trend.read(run.render(one), "run.json") for one in nights])


def history(count=60, step=40, **fields):
    """Return runs with a loss at an upgrade of the engine."""
    speedups = ratios(count, step)
    return [night(n, speedups[n], environment=upgraded() if n >= step else ENVIRONMENT, **fields) for n in range(count)]
