"""Readiness, with a reference server that cannot answer."""

from __future__ import annotations

import sys

import pytest

from pytest_specdec.capture.server import server as ready
from pytest_specdec.capture.server.ports import free
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.engines.protocol import Command, ServerSetup
from pytest_specdec.engines.reference import Reference
from pytest_specdec.errors import BootError
from pytest_specdec.files.secrets import Secrets

PLANT = """
import sys
from pytest_specdec.reference.{module} import {name}
from pytest_specdec.reference.cli import main
def broken(*_):
    raise RuntimeError("planted")
{name}.{method} = broken
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("module,name,method", [("scheduler", "Batch", "_prefill"), ("engine", "ReferenceEngine", "_receive")])
def test_an_engine_that_breaks_is_a_boot_that_died_with_its_traceback(module, name, method, tmp_path):
    setup = ServerSetup(model="target", port=free(), secrets=Secrets())
    code = PLANT.format(module=module, name=name, method=method)
    server = ServerProcess(Command(argv=(sys.executable, "-c", code, "target", "--port", str(setup.port))), tmp_path / "server.log")
    try:
        with pytest.raises(BootError, match=r"(?s)died at boot: exit code 1.*Traceback.*RuntimeError: planted"):
            ready.wait(server, setup, Reference.dialect, draft_tokens=0, boot_s=600.0, heartbeat=lambda: None)
    finally:
        server.stop(0.0)
