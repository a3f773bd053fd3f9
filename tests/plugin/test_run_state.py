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
    found = SimpleNamespace(**fields, calibrations=lambda pair: ("calibrations", pair))
    cell = SimpleNamespace(pair="draft-k3")
    monkeypatch.setattr(verdicts, "_planned_judgement", lambda item, pair: cell)
    monkeypatch.setattr(verdicts.run_state, "get", lambda config, pair: found)
    monkeypatch.setattr(verdicts.stored, "read", lambda *what, slo: read.append((*what, slo)) or RAN)
    monkeypatch.setattr(verdicts, "replace", lambda value, **changes: value)
    verdicts.read_captured(ITEM, None)
    assert read == [("directory", "plan", cell, (), ("calibrations", "draft-k3"), "slo")]


def test_the_run_is_read_once(monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr(run_state.captured, "read_calibrations", lambda *what: (read.append(what), what[-1])[1])
    monkeypatch.setattr(RunState, "directory", "directory")
    made = RunState(SimpleNamespace(deadline_s=None), None, root=tmp_path, plan="plan", warnings=())
    assert [made.calibrations(pair) for pair in ("draft-k3", "draft-k3", "ngram-k3")] == ["draft-k3", "draft-k3", "ngram-k3"]
    assert read == [("directory", "plan", "draft-k3"), ("directory", "plan", "ngram-k3")]
