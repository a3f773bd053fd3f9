"""Adapters keep their contract: towards their doubles, and llama.cpp's towards the real server; whole contracts, some 20 s each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.config.load import load
from pytest_specdec.doctor.contract import contract, visit
from tests.engines.doubles import configs

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / ".llama-server" / "llama-server"


@pytest.fixture(autouse=True)
def no_wait_for_log_lines(monkeypatch):
    """The servers here write none."""
    monkeypatch.setattr(visit, "_LOGGED_S", 0.2)


def broken(path, folder):
    held = contract.hold(load(path), folder, surveyed=False)
    return {arm.arm: {one.name: one.evidence for one in arm.clauses if one.name in arm.broken} for arm in held.arms}


@pytest.mark.faults(quick=True)
@pytest.mark.parametrize("name", list(configs.CONFIGS))
def test_an_adapter_keeps_its_contract_towards_its_double(name, tmp_path):
    """What is broken here is a mistake of the adapter or of the double: both were written from the same sources."""
    assert broken(configs.write(name, tmp_path), tmp_path / "run") == {"baseline": {}, "draft-k3": {}}


@pytest.mark.faults(quick=True)
@pytest.mark.skipif(not LLAMA.exists(), reason="make llama-env builds llama-server")
def test_llama_cpp_keeps_its_contract(tmp_path):
    assert broken(ROOT / "suites" / "configs" / "llama-cpp.yaml", tmp_path) == {"baseline": {}, "draft-k3": {}}
