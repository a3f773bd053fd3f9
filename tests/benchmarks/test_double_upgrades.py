"""The doubles of an upgrade differ in what its row states, and in nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.double_upgrades import SessionOutput, row
from pytest_specdec.config import load
from pytest_specdec.config.engines import EngineName
from tests.engines.doubles.upgrades import UPGRADES, write

SAFE = UPGRADES["sglang-spec-details"]


@pytest.mark.parametrize("name", UPGRADES)
def test_the_two_doubles_differ_in_one_behaviour(name, tmp_path):
    upgrade, path = UPGRADES[name], write(name, tmp_path)
    old, new = (load.load(path, engine).engine for engine in EngineName)
    programs = [Path(str(engine.executable)).read_text() for engine in (old, new)]
    exports = [dict(re.findall(r"^export (\w+)=(\S*)$", program, re.MULTILINE)) for program in programs]
    releases = [{"TRTLLM_DOUBLE_RELEASE": release} for release in upgrade.releases] or [{}, {}]
    assert [dict(export.items() - exports[1 - side].items()) for side, export in enumerate(exports)] == [
        {**upgrade.old, **releases[0]},
        {**upgrade.new, **releases[1]},
    ]
    assert sum(map(bool, (upgrade.old, upgrade.new, upgrade.releases))) == 1
    before, after = (engine.args.get("extra_llm_api_options", {}) for engine in (old, new))
    assert dict(after) == {**before, **upgrade.new_options}
    assert (old.model, {**old.args, "extra_llm_api_options": {}}) == (new.model, {**new.args, "extra_llm_api_options": {}})
    assert re.fullmatch(r"(NVIDIA/TensorRT-LLM|sgl-project/sglang)#\d+", upgrade.source)


@pytest.mark.parametrize("code, output, right", [
    (0, "UPGRADE: SAFE TO UPGRADE, as far as both runs were judged: no finding in either run\nRESULT: clean", True),
    (1, "UPGRADE: SAFE TO UPGRADE, as far as both runs were judged: no finding in either run\nRESULT: clean", False),
    (0, "UPGRADE: ANSWERS CHANGED, speculation follows: numerics; no finding in either run", False),
    (0, "UPGRADE: SAFE TO UPGRADE, as far as both runs were judged: 1 finding as before", False),
    (4, "ERROR: no config", False),
])  # fmt: skip
def test_an_upgrade_is_right_by_its_headline_what_it_says_and_its_exit_code(code, output, right):
    assert row(SAFE, SessionOutput(code=code, output=output))["right"] is right
