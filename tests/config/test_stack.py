"""``stack`` and ``metrics_url``: what a config may say of servers of several processes, and how each mistake is reported."""

from __future__ import annotations

import pytest

from pytest_specdec.config import lint, load, shipped, stack, variables
from pytest_specdec.config.config import StackProcess
from pytest_specdec.engines import vllm
from pytest_specdec.errors import ConfigError

HEAD = "engine: {kind: reference, model: target}\nvariants: {v: {args: {speculative-config: {method: ngram}}}}\n"
PROXY = "  - {name: proxy, command: [proxy, --port, '{port.proxy}'], asked: true}\n"
ENGINE = "  - {name: decode, kind: engine, counted: true}\n"


def write(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path):
    with pytest.raises(ConfigError) as caught:
        load.load(path)
    return [line.strip().removeprefix(f"{path}:") for line in caught.value.what.splitlines()[1:]]


def test_a_stack_is_read_with_its_defaults(tmp_path):
    text = f"{HEAD}stack:\n{ENGINE}  - {{name: kv, kind: engine, args: {{seed: 1}}, env: {{A: 1}}, ports: [side], ready: up}}\n{PROXY}"
    config = load.load(write(tmp_path, text))
    assert config.stack == (
        StackProcess(name="decode", is_counted=True),
        StackProcess(name="kv", args={"seed": 1}, env={"A": "1"}, ports=("side",), ready="up"),
        StackProcess(name="proxy", command=("proxy", "--port", "{port.proxy}"), is_asked=True),
    )
    assert stack.port_names(config.stack) == ("decode", "kv", "side", "proxy")
    assert [one.takes_args for one in config.stack] == [True, True, False]


def test_the_shipped_stack_loads():
    assert [process.name for process in load.load(shipped.CONFIGS / "reference-stack.yaml").stack] == ["rank-0", "rank-1", "router"]


@pytest.mark.parametrize("entries, line", [
    (ENGINE, "3  stack: found 0 processes with `asked: true`, expected one: requests are sent to it"),
    (PROXY, "3  stack: found no process that gets the arguments of an arm, expected a process with `kind: engine`, or {args} in a command"),
    (ENGINE + PROXY + ENGINE, "6  stack[2].name: found the name decode twice, expected a name of its own for each process and port"),
    (ENGINE + PROXY + "  - {name: x}\n", "6  stack[2]: found neither kind nor command, expected `kind: engine`"),
    (ENGINE + PROXY + "  - {name: x, kind: engine, command: [x]}\n", "6  stack[2]: found both kind and command, expected `kind: engine`"),
    (ENGINE + PROXY + "  - {name: x, command: [x], args: {a: 1}}\n", "6  stack[2].args: found arguments that the command does not take"),
    (ENGINE + PROXY + "  - {name: x, kind: engine, args: {port: 1}}\n", "6  stack[2].args.port: found a port of your own, expected none"),
    (ENGINE + PROXY + "  - {name: x, command: [x], counted: true}\n",
     "6  stack[2]: found a process that is asked or counted, and has no port"),
    (ENGINE + PROXY + "  - {name: x, command: ['{port.decod}']}\n",
     "6  stack[2].command[0]: found the port 'decod', expected one of decode, proxy, x, or a name under `ports`; did you mean 'decode'?"),
    (ENGINE + PROXY + "  - {name: x, command: ['{hots}']}\n",
     "6  stack[2].command[0]: found the placeholder {hots}, expected one of {host}"),
    (ENGINE + PROXY + "  - {name: x, command: ['--a={args}']}\n", "6  stack[2].command[0]: found {args} inside of a text"),
    (ENGINE + PROXY + "  - {name: X, kind: engine}\n", '6  stack[2].name: found "X", expected lower-case letters'),
])  # fmt: skip
def test_mistakes_are_reported_with_place_and_remedy(tmp_path, entries, line):
    reported = problems(write(tmp_path, f"{HEAD}stack:\n{entries}"))
    assert any(one.startswith(line) for one in reported), reported


@pytest.mark.parametrize("text, path", [
    ("stack: 5\n", "stack"),
    ("stack:\n" + ENGINE + PROXY + "  - {name: x, kind: engine, ports: 5}\n", "stack[2].ports"),
    ("stack:\n" + ENGINE + PROXY + "  - {name: x, kind: engine, ports: [[a]]}\n", "stack[2].ports[0]"),
    ("stack:\n" + ENGINE + PROXY + "  - {name: x, command: 5}\n", "stack[2].command"),
    ("stack:\n  - {name: x, command: 5, asked: true}\n", "stack[0].command"),
])  # fmt: skip
def test_a_value_of_another_type_is_a_problem_with_its_place(tmp_path, text, path):
    reported = problems(write(tmp_path, HEAD + text))
    assert any(f"  {path}: found" in one for one in reported), reported


@pytest.mark.parametrize("process, listens", [
    ({"command": ["x", "{port.a}"]}, True),
    ({"command": ["x", "{args}"], "args": {"at": ["{host}:{port.a}"]}}, True),
    ({"command": ["x", "{args}"], "args": '{"at": "{port.a}"}'}, True),
    ({"command": ["x"], "env": {"PORT": "{port.a}"}}, True),
    ({"command": ["x", "{port.b}"], "env": {"A": "port.a"}}, False),
])  # fmt: skip
def test_a_process_listens_where_its_command_arguments_or_variables_have_its_port(process, listens):
    assert stack.uses_port("a", *(process.get(part) for part in ("command", "args", "env"))) is listens


def test_words_of_a_command_that_are_paths_stand_beside_the_config(tmp_path):
    config = load.load(write(tmp_path, f"{HEAD}stack:\n{ENGINE}{PROXY.replace('[proxy,', '[./proxy.py, ../x, a/./b,')}"))
    assert config.stack[1].command[:3] == (str(tmp_path / "proxy.py"), str(tmp_path / ".." / "x"), "a/./b")


@pytest.mark.parametrize("head, line", [
    ("engine: {kind: reference, model: target, url: 'http://h:1'}\nvariants: {v: {}}\n", "1  engine.url: found a server that runs already"),
    ("engine: {kind: reference, model: target, args: {port: 80}}\nvariants: {v: {}}\n", "1  engine.args.port: found a port beside `stack`"),
    ("engine: {kind: reference, model: target, metrics_url: 'http://h:1'}\nvariants: {v: {}}\n",
     "1  engine.metrics_url: found `metrics_url` beside `counted: true` of decode, expected one of the two"),
])  # fmt: skip
def test_a_stack_is_started_here(tmp_path, head, line):
    reported = problems(write(tmp_path, f"{head}stack:\n{ENGINE}{PROXY}"))
    assert any(one.startswith(line) for one in reported), reported


def test_counters_elsewhere_need_a_server_that_is_asked(tmp_path):
    lone = "engine: {kind: reference, model: target, metrics_url: 'http://h:1'}\nvariants: {v: {}}\n"
    (found,) = problems(write(tmp_path, lone))
    assert found.startswith("1  engine.metrics_url: found addresses of counters, and no `url` and no `stack`")
    attached = "engine: {kind: attach, model: m}\nbaseline: {url: 'http://h:1', metrics_url: 'http://h:2'}\n"
    config = load.load(write(tmp_path, attached + "variants: {v: {url: 'http://h:3', metrics_url: ['http://h:4', 'http://h:5/prom']}}\n"))
    assert (config.baseline.metrics_url, config.variants[0].metrics_url) == (("http://h:2",), ("http://h:4", "http://h:5/prom"))


def test_a_speculative_setting_of_a_process_is_refused_and_null_is_none(tmp_path):
    entry = "  - {name: prefill, kind: engine, args: {speculative-config: %s}}\n"
    text = f"{HEAD.replace('reference', 'vllm')}stack:\n{ENGINE}{PROXY}"
    found = lint.lint(load.load(write(tmp_path, text + entry % "{method: ngram}")), vllm.RULES)
    assert any(one.refused and one.path == "stack[2].args.speculative-config" for one in found)
    assert not [one for one in lint.lint(load.load(write(tmp_path, text + entry % "null")), vllm.RULES) if one.path.startswith("stack")]


def test_variables_are_filled_in_and_those_of_env_stay(tmp_path):
    entry = "  - {name: x, command: [x, '${WHERE}'], env: {TOKEN_OF_X: '${WHAT}'}}\n"
    config = load.load(write(tmp_path, f"{HEAD}stack:\n{ENGINE}{PROXY}{entry}"))
    filled = variables.fill(config, {"WHERE": "here", "WHAT": "secret-value"})
    assert (filled.stack[2].command, filled.stack[2].env) == (("x", "here"), {"TOKEN_OF_X": "${WHAT}"})
    assert "secret-value" not in variables.secrets_of(config.text, {"WHAT": "secret-value"}).mask("a secret-value b")
    with pytest.raises(ConfigError, match="WHERE is not set"):
        variables.fill(config, {})


@pytest.mark.parametrize("value, filled", [
    ("http://{host}:{port.a}", "http://h:7"),
    ("{port.a}", 7),
    ({"kv": ["{port.a}", {"x": "{host}"}]}, {"kv": [7, {"x": "h"}]}),
    ('{"json": 1}', '{"json": 1}'),
    ("${host} {other}", "${host} {other}"),
    (5, 5),
])  # fmt: skip
def test_placeholders_are_filled_at_any_depth(value, filled):
    assert stack.fill(value, {"host": "h"}, {"a": 7}) == filled
