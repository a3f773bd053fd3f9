"""Adapters keep their contract: towards their doubles, and llama.cpp's towards the real server; whole contracts, some 20 s each."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.contract import visit
from tests.engines.doubles import configs

ROOT = Path(__file__).parents[2]
LLAMA = ROOT / ".llama-server" / "llama-server"


@pytest.fixture(autouse=True)
def no_wait_for_log_lines(monkeypatch):
    """The servers here write none."""
    monkeypatch.setattr(visit, "_LOGGED_S", 0.2)


@pytest.fixture
def hold(pytester, monkeypatch):
    """Run the suite on the servers of a config, where the repository's own settings do not count."""
    monkeypatch.chdir(ROOT)

    def call(path):
        settings = pytester.makeini("[pytest]")
        options = (f"--specdec-run-dir={pytester.path / 'run'}", "-p", "no:cacheprovider", "-p", "no:benchmark")
        return pytester.inline_run(str(ROOT / "suites" / "contract"), "-c", str(settings), f"--specdec-config={path}", *options)

    return call


@pytest.mark.faults(quick=True)
@pytest.mark.parametrize("name", list(configs.CONFIGS))
def test_an_adapter_keeps_its_contract_towards_its_double(name, tmp_path, hold):
    """What is broken here is a mistake of the adapter or of the double: both were written from the same sources."""
    passed, _, failed = hold(configs.write(name, tmp_path)).listoutcomes()
    assert not failed
    assert {report.nodeid.split("::")[1] for report in passed} == {"TestBaseline", "TestVariant"}


@pytest.mark.faults(quick=True)
@pytest.mark.skipif(not LLAMA.exists(), reason="make llama-env builds llama-server")
def test_llama_cpp_keeps_its_contract(hold):
    assert not hold(ROOT / "suites" / "configs" / "llama-cpp.yaml").listoutcomes()[2]
