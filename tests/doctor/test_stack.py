"""The doctor on servers of several processes: each engine's arguments, and each other program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.config import load
from pytest_specdec.doctor import stack
from pytest_specdec.doctor.arms import arms
from pytest_specdec.doctor.check import Level
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError

CONFIG = """
engine: {{kind: reference, model: target, args: {{max-num-seqs: 8}}}}
stack:
  - {{name: prefill, kind: engine, args: {{speculative-config: null, seed: 1}}}}
  - {{name: decode, kind: engine}}
  - {{name: proxy, command: ["{program}", "--port", "{{port.proxy}}"], asked: true, env: {{A: "${{NOT_SET}}"}}}}
variants: {{v: {{args: {{speculative-config: {{method: ngram, num_speculative_tokens: 2}}}}}}}}
"""


@pytest.fixture
def config(tmp_path):
    def written(program="{program}", env=True):
        text = CONFIG.format(program=program)
        path = tmp_path / "mine.yaml"
        path.write_text(text if env else text.replace(', env: {A: "${NOT_SET}"}', ""))
        return load.load(path)

    return written


def test_each_engine_of_a_stack_is_a_server_of_each_arm(config):
    engine = engine_of("reference")
    servers = arms(config(), engine, {})
    assert [(arm.name, arm.speculative) for arm in servers] == [
        ("baseline, process prefill", False),
        ("baseline, process decode", False),
        ("v, process prefill", False),
        ("v, process decode", True),
    ]
    assert servers[0].paths["seed"] == ("stack", 0, "args", "seed")
    assert [("speculative-config" in arm.args, arm.args.get("seed")) for arm in servers[2:]] == [(False, 1), (True, None)]


def test_programs_of_commands_are_looked_for(config):
    engine = engine_of("reference")
    (check,) = stack.checks(config(env=False), engine, {})
    assert (check.level, check.line.partition(":")[0]) == (Level.OK, "proxy")
    (check,) = stack.checks(config("no-such-proxy", env=False), engine, {})
    assert check.level is Level.FAIL
    assert "mine.yaml:6  stack[2].command: found 'no-such-proxy', which cannot be executed here" in check.line


def test_a_process_with_a_variable_that_is_not_set_is_left_to_another_check(config):
    assert list(stack.checks(config(), engine_of("reference"), {})) == []
    unset = replace(config(), stack=tuple(replace(one, env={"A": "${NOT_SET}"}) for one in config().stack))
    assert arms(unset, engine_of("reference"), {}) == ()
    assert arms(unset, engine_of("reference"), {"NOT_SET": "x"})[0].env == {"A": "x"}


def test_programs_are_looked_for_without_the_engine_where_no_word_names_its_own(config, monkeypatch):
    def missing(config, setup):
        msg = "no engine"
        raise EngineError(msg)

    engine = engine_of("reference")
    monkeypatch.setattr(engine, "command", missing)
    assert len(arms(config(), engine, {})) == 4
    (check,) = stack.checks(config("no-such-proxy", env=False), engine, {})
    assert "'no-such-proxy', which cannot be executed" in check.line
    (check,) = stack.checks(config(env=False), engine, {})
    assert check.line == "no engine"
