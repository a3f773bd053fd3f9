"""Adapters keep their contract: towards their doubles, and llama.cpp's towards the real server; whole contracts, some 20 s each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.config.load import load
from pytest_specdec.plugin.contract import ContractPrinter, run
from suites.contract import visit
from tests.engines.doubles import configs

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / ".llama-server" / "llama-server"


@pytest.fixture(autouse=True)
def no_wait_for_log_lines(monkeypatch):
    """The servers here write none."""
    monkeypatch.setattr(visit, "_LOGGED_S", 0.2)


def hold(path):
    """Return what the suite prints of a config's servers, and whether they keep all claims.

    The session is one of this process and keeps its modules: an HTTP library imported anew would not know its own errors.
    """
    lines = []
    printer = ContractPrinter(load(path).variants[0].name, lines.append)
    return run(path, None, printer), printer, "\n".join(lines)


@pytest.mark.faults(quick=True)
@pytest.mark.parametrize("name", list(configs.CONFIGS))
def test_an_adapter_keeps_its_contract_towards_its_double(name, tmp_path, monkeypatch):
    """What is broken here is a mistake of the adapter or of the double: both were written from the same sources."""
    monkeypatch.chdir(ROOT)
    is_kept, printer, lines = hold(configs.write(name, tmp_path))
    assert is_kept, lines
    assert {arm for arm, counts in printer.counts.items() if counts["kept"]} == {"baseline", "draft-k3"}, lines


@pytest.mark.faults(quick=True)
@pytest.mark.skipif(not LLAMA.exists(), reason="make llama-env builds llama-server")
def test_llama_cpp_keeps_its_contract(monkeypatch):
    monkeypatch.chdir(ROOT)
    is_kept, _, lines = hold(ROOT / "suites" / "configs" / "llama-cpp.yaml")
    assert is_kept, lines
