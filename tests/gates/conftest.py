from __future__ import annotations

import pytest

from pytest_specdec.model.baseline import Environment


@pytest.fixture
def environment():
    return Environment(engine="reference", engine_version="0.1", model="target", processor="A CPU", cores=2, memory_gib=7.5)
