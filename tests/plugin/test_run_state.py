"""What the baseline's boots report anywhere in a run calibrates every judgement of it."""

from __future__ import annotations

from types import SimpleNamespace

from pytest_specdec.plugin import run_state, verdicts
from pytest_specdec.plugin.run_state import RunState

RAN = SimpleNamespace(control=None)
ITEM = SimpleNamespace(config=None, stash={})


def test_a_judge_is_given_what_the_whole_run_reported(monkeypatch):
    read = []
    fields = {"directory": "directory", "plan": "plan", "gates": (), "config": SimpleNamespace(slo="slo")}
    found = SimpleNamespace(**fields, calibration=lambda *arms: ("pair", *arms))
    cell = SimpleNamespace(pair="draft-k3")
    monkeypatch.setattr(verdicts, "_judgement", lambda item, pair: cell)
    monkeypatch.setattr(verdicts.run_state, "get", lambda config: found)
    monkeypatch.setattr(
        verdicts.stored, "read", lambda *what, verify_calibration, slo: read.append((*what, verify_calibration, slo)) or RAN
    )
    monkeypatch.setattr(verdicts, "replace", lambda value, **changes: value)
    verdicts.captured(ITEM, None)
    assert read == [("directory", "plan", cell, (), ("pair",), ("pair", "draft-k3"), "slo")]


def test_the_run_is_read_once(monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr(run_state.captured, "read_calibration", lambda *what: (read.append(what), ("pair",))[1])
    monkeypatch.setattr(RunState, "directory", "directory")
    made = RunState(None, None, root=tmp_path, plan="plan", warnings=())
    assert (made.calibration(), made.calibration(), made.calibration("draft-k3")) == (("pair",),) * 3
    assert read == [("directory", "plan"), ("directory", "plan", "draft-k3")]
