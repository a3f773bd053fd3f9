from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_specdec.doctor import arm_commands, probe
from pytest_specdec.doctor import engine as flags
from pytest_specdec.doctor.engine import Commands, arguments, flags_of
from pytest_specdec.doctor.probe import Help
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.files import yaml

KNOWN = frozenset({"--host", "--port", "--max-num-seqs", "--max-model-len", "--async-scheduling", "--no-async-scheduling"})


def test_the_flags_of_a_help_text_are_its_entries_and_not_its_prose():
    text = (
        "options:\n  --host HOST, -H HOST  see --not-this\n                        --nor-this\n"
        "  -h, --help  help\n  --a.b C\n  --grpc               Cannot be combined\n"
    )
    assert flags.known(text) == {"--host", "-H", "-h", "--help", "--a.b", "--grpc"}


@pytest.mark.parametrize(
    "argv, found",
    [
        (["vllm", "serve", "model", "--max_num_seqs", "4"], ["--max-num-seqs"]),
        (["--speculative-config.method=ngram"], ["--speculative-config"]),
        (["--dtype=float32", "-tp", "-1"], ["--dtype"]),
    ],
)
def test_flags_are_read_off_a_command_line_in_one_spelling(argv, found):
    assert list(flags.given(argv)) == found


@pytest.mark.parametrize(
    "flag, abbreviates, knows",
    [
        ("--max-num-seqs", False, True),
        ("--max-num", False, False),
        ("--max-num", True, True),
        ("--max", True, False),
        ("--no-port", True, False),
    ],
)
def test_a_parser_knows_its_flags_and_their_only_abbreviations_where_it_takes_them(flag, abbreviates, knows):
    assert flags.Parser(flags=KNOWN, abbreviates=abbreviates).knows(flag) is knows


@pytest.fixture
def found(config, vllm):
    """The commands of a config, as the doctor holds them against the help."""

    def read(text: str) -> tuple[object, Commands]:
        vllm()
        loaded = config(text)
        engine = engine_of("vllm")
        arms = arm_commands.arms(loaded, engine, os.environ)
        return loaded, Commands(argv=tuple((arm, arm.command(loaded, engine).argv) for arm in arms))

    return read


TEXT = """\
engine:
  kind: vllm
  venv: venv
  model: model
  args:
    max-num-seqz: 4
    enable-sleep: false
variants:
  a:
    args:
      speculative-config.methd: ngram
      speculative-config: {method: ngram}
      atention: x
"""


def test_an_unknown_flag_is_told_with_its_line_and_the_nearest_name(found):
    loaded, commands = found(TEXT)
    document = yaml.load(loaded.text, "mine.yaml")
    parser = flags.Parser(flags=KNOWN | {"--speculative-config", "--attention", "--enable-sleep"}, abbreviates=True)
    told = [str(one) for arm, argv in commands.argv[1:] for one in flags.unknown(arm, argv, parser, document)]
    assert told == [
        "mine.yaml:6  engine.args.max-num-seqz: found --max-num-seqz, which the engine does not know; did you mean '--max-num-seqs'?",
        "mine.yaml:7  engine.args.enable-sleep: found --no-enable-sleep, which the engine does not know; did you mean '--enable-sleep'?",
        "mine.yaml:13  variants.a.args.atention: found --atention, which the engine does not know; did you mean '--attention'?",
        "a, added by the adapter: found --per-request-spec-decode-metrics, which the engine does not know",
    ]


def test_a_dotted_flag_is_found_where_it_stands(found):
    loaded, commands = found(TEXT.replace("      speculative-config: {method: ngram}\n", "").replace("methd", "method"))
    arm, argv = commands.argv[-1]
    parser = flags.Parser(flags=frozenset(), abbreviates=False)
    where = [one.where for one in flags.unknown(arm, argv, parser, yaml.load(loaded.text, "mine.yaml"))]
    assert "mine.yaml:11  variants.a.args.speculative-config.method" in where


def test_all_arms_are_put_before_one_parser(found):
    _, commands = found(TEXT)
    words = arguments(commands)
    assert words[0].endswith("/model")
    assert words.count("--max-num-seqz") == 2
    assert "--atention" in words
    assert "serve" not in words


def test_one_look_tells_flags_and_another_a_wrong_value(vllm):
    program = str(vllm())
    assert "--dtype" in probe.listing((program, "serve"), ("m", "--dtype", "auto"), {}).flags
    assert probe.listing((program, "serve"), ("m", "--dtype", "float33"), {}).complaint.endswith("invalid choice: 'float33'")


def test_a_release_without_help_all_is_asked_in_its_own_words(here):
    program = here / "old"
    program.write_text('#!/bin/sh\ncase "$*" in *=all) echo "error: ignored explicit argument" >&2; exit 2;; esac\necho "  --old  flag"\n')
    program.chmod(0o755)
    assert probe.listing((str(program),), ("m",), {}) == Help(flags=frozenset({"--old"}))


def test_a_help_that_cannot_be_read_is_said_and_not_guessed(found, vllm):
    loaded, commands = found(TEXT)
    listed = probe.listing(("/bin/sh", "-c", "echo 'ImportError: no torch' >&2; exit 1", "sh"), (), {})
    (check,) = flags_of(loaded, commands, listed, abbreviates=True)
    assert (check.level, check.said) == ("warn", "not checked: the engine's help could not be read")
    assert check.more == ("found:    ImportError: no torch",)


def test_a_probe_ends_in_time_with_all_that_it_started(here):
    ran = probe.run(("/bin/sh", "-c", f"sleep 300 & echo $! > {here}/pid; wait"), {}, limit_s=0.5)
    assert (ran.exit_code, ran.err) == (None, "not done after 0.5 s")
    assert ended(int((here / "pid").read_text()))


def test_a_program_that_is_not_there_is_said(here):
    assert probe.run((str(here / "none"),), {}).exit_code is None
    assert probe.run(("true",), {}).last_words == "it said nothing"


def ended(pid: int) -> bool:
    """Return whether a process is gone, or waits to be reaped by whoever adopted it."""
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False
