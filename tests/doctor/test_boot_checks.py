"""What would end a server at boot ends a run before it, in the doctor's words."""

from __future__ import annotations

import socket

import pytest

from pytest_specdec.capture import locks
from pytest_specdec.config import variables
from pytest_specdec.doctor import boot_checks, engine, machine, probe
from pytest_specdec.doctor.probe import ProgramResult
from pytest_specdec.errors import BootError, EngineError


@pytest.fixture(autouse=True)
def remembered(here, monkeypatch):
    """A folder of this test's own for what is remembered."""
    (here / "locks").mkdir(mode=0o700)
    monkeypatch.setattr(locks, "folder", lambda: here / "locks")
    return here / "locks"


@pytest.fixture
def asked(monkeypatch):
    """Count how often a parser is asked."""
    calls = []
    real = engine.help_of

    def counting(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(engine, "help_of", counting)
    return calls


def test_a_config_that_boots_passes_and_its_parser_is_asked_once(config, vllm, asked, remembered):
    program = vllm()
    loaded = config()
    boot_checks.require(loaded)
    boot_checks.require(loaded)
    assert len(asked) == 1
    (path,) = remembered.iterdir()
    assert path.read_text() == ""
    program.write_text(program.read_text() + "# another release\n")
    boot_checks.require(loaded)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "before, after, said",
    [
        ("max-num-seqs: 4", "max-num-seqz: 4", "did you mean '--max-num-seqs'?"),
        ("max-num-seqs: 4", "dtype: float33", "invalid choice: 'float33'"),
        ("venv: venv", "venv: vnev", "the engine is not installed"),
        ("model: model", "model: org/../modle", "no model org/../modle"),
        ("method: ngram", "method: medusa, model: ./nowhere", "no model ./nowhere"),
        ("engine:", "scorer: {kind: vllm, model: m, venv: nothing}\nengine:", "scorer: the engine is not installed"),
    ],
)
def test_what_would_end_a_server_at_boot_is_one_error(before, after, said, *, config, vllm, remembered):
    vllm()
    with pytest.raises(EngineError, match="a server would die at boot") as caught:
        boot_checks.require(config(config().text.replace(before, after)))
    assert said in caught.value.found
    assert caught.value.lasting
    assert caught.value.remedy.startswith("python -m pytest_specdec doctor ")
    assert not list(remembered.iterdir()), "nothing is remembered of a command line that was refused"


@pytest.mark.parametrize("flag, lasting", [("max-num-seqs", False), ("max-num-seqz", True)])
def test_a_port_in_use_may_be_free_at_the_next_try_and_a_flag_stays_unknown(flag, lasting, config, vllm):
    vllm()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {number} is taken") as caught:
            boot_checks.require(config(config().text.replace("max-num-seqs: 4", f"{flag}: 4, port: {number}")))
    assert caught.value.lasting is lasting


@pytest.mark.parametrize(
    "devices, args, said, lasting",
    [
        ("0, NVIDIA H200, 143771, 0", "tensor-parallel-size: 2", "devices: the config asks for 2 devices, and 1 are here", True),
        ("0, NVIDIA H200, 143771, 130000", "gpu-memory-utilization: 0.9", "device: 0: NVIDIA H200, 13.4 of 140.4 GiB free", False),
    ],
)
def test_too_few_devices_stay_so_and_memory_may_be_free_at_the_next_try(devices, args, said, lasting, *, config, vllm, monkeypatch):
    vllm()
    ask = probe.run
    listed = ProgramResult(exit_code=0, out=devices, err="")
    monkeypatch.setattr(probe, "run", lambda argv, *rest: listed if argv == machine.QUERY else ask(argv, *rest))
    with pytest.raises(EngineError, match="a server would die at boot") as caught:
        boot_checks.require(config(config().text.replace("max-num-seqs: 4", args)))
    assert said in caught.value.found
    assert (isinstance(caught.value, BootError), caught.value.lasting) == (not lasting, lasting)


@pytest.mark.parametrize("scorer", ["", "scorer: {kind: vllm, model: m, venv: nothing}\n"])
def test_nothing_is_looked_for_of_servers_that_run_already(scorer, config, remembered):
    text = "engine: {kind: vllm, model: org/m, venv: nothing, url: 'http://a:1'}\nvariants: {mine: {body: {speculate: 1}}}\n"
    if scorer:
        with pytest.raises(EngineError, match="a server would die at boot") as caught:
            boot_checks.require(config(scorer + text))
        assert caught.value.found.startswith("scorer: the engine is not installed")
    else:
        boot_checks.require(config(text))
    assert not list(remembered.iterdir())


def test_a_value_that_a_variable_brings_is_shown_to_the_parser(config, vllm, monkeypatch):
    vllm()
    monkeypatch.setenv("WIDTH", "float33")
    loaded = variables.fill(config(config().text.replace("max-num-seqs: 4", "dtype: '${WIDTH}'")), {"WIDTH": "float33"})
    with pytest.raises(EngineError, match="invalid choice: 'float33'"):
        boot_checks.require(loaded)


def test_a_release_without_a_method_is_named(config, vllm, here):
    vllm()
    (here / "venv" / "lib" / "python3.12" / "site-packages" / "vllm-0.33.0.dist-info").mkdir(parents=True)
    text = config().text.replace("method: ngram", "method: medusa, model: model")
    with pytest.raises(EngineError, match=r"vLLM 0\.33\.0 has no drafting method medusa"):
        boot_checks.require(config(text))
