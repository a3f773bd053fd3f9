"""The call chain of a request, from the hook of pytest to the client of the openai package."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from openai.resources.completions import Completions

import pytest_specdec
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.doctor import boot_checks
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.workload import Depth, Family
from pytest_specdec.plugin.capture import CaptureLoop

PACKAGE = Path(pytest_specdec.__file__).parent
MOST = 12


def frames(frame):
    """Return the frames of this package from ``frame`` up, outermost first."""
    names = []
    while frame is not None:
        if PACKAGE in Path(frame.f_code.co_filename).parents:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names[::-1]


def test_few_frames_lead_from_the_hook_to_an_untimed_request(config, workload, tmp_path, monkeypatch):
    """Frames of the thread that sends count together with those of the thread that waits for it."""
    in_turn, chains = replace(config, placement=Placement.IN_TURN), []
    plan = make(in_turn, [SelectedWorkload(workload=workload(), family=Family.GREEDY)], Depth.SMOKE, ("draft-k3",))
    create = Completions.create

    def counted(*args, **fields):
        if "of greedy" in str(fields["prompt"]):
            waiting = frames(sys._current_frames()[threading.main_thread().ident])
            if waiting[-1] == "ThreadPool.__iter__":  # else it takes an answer in meanwhile
                chains.append(waiting + frames(sys._getframe()))
        return create(*args, **fields)

    monkeypatch.setattr(Completions, "create", counted)
    monkeypatch.setattr(boot_checks, "require", lambda _: None)
    settings = SimpleNamespace(replay=None, taken_up=None, resume=None, deadline_s=None, against=None, cluster="")
    run = SimpleNamespace(
        settings=settings,
        config=in_turn,
        plan=plan,
        root=tmp_path / "run",
        session="s",
        refusal="",
        matrix_root=None,
        is_ended=False,
        capture_s=None,
    )
    plugins = SimpleNamespace(getplugin=lambda _: None)
    option = SimpleNamespace(collectonly=False, setupplan=False)
    pytest_config = SimpleNamespace(pluginmanager=plugins, option=option)
    next(CaptureLoop(pytest_config, [run], {}).pytest_runtestloop(SimpleNamespace(config=pytest_config, testsfailed=0)))
    assert {chain[0] for chain in chains} == {"CaptureLoop.pytest_runtestloop"}
    assert [chain for chain in chains if len(chain) > MOST] == []
