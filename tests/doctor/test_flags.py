from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_specdec.doctor import probe
from pytest_specdec.doctor.arms import Arm, arms
from pytest_specdec.doctor.engine import Help, flag_checks, flags_of, help_of, listed_flags
from pytest_specdec.doctor.probe import ProgramResult
from pytest_specdec.engines.protocol import EngineProgram
from pytest_specdec.engines.registry import engine_of
from tests.doctor.conftest import VLLM

KNOWN = frozenset({"--host", "--port", "--max-num-seqs", "--max-model-len", "--async-scheduling", "--no-async-scheduling"})


def test_the_flags_of_a_help_text_are_its_entries_and_not_its_prose():
    text = (
        "options:\n  --host HOST, -H HOST  see --not-this\n                        --nor-this\n"
        "  -h, --help  help\n  --a.b C\n  --grpc               Cannot be combined\n"
    )
    assert listed_flags(text) == {"--host", "-H", "-h", "--help", "--a.b", "--grpc"}


@pytest.mark.parametrize(
    "argv, found",
    [
        (["vllm", "serve", "model", "--max_num_seqs", "4"], ["--max-num-seqs"]),
        (["--speculative-config.method=ngram"], ["--speculative-config"]),
        (["--dtype=float32", "-tp", "-1"], ["--dtype"]),
    ],
)
def test_flags_are_read_off_a_command_line_in_one_spelling(argv, found):
    assert list(flags_of(argv)) == found


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
    assert Help(flags=KNOWN, abbreviates=abbreviates).knows(flag) is knows


@pytest.fixture
def commands(config, vllm):
    """A config and the command of each of its arms."""

    def read(text: str):
        vllm()
        loaded, engine = config(text), engine_of("vllm")
        return loaded, [(arm, arm.command(loaded, engine).argv) for arm in arms(loaded, engine, os.environ)]

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


def test_an_unknown_flag_is_told_with_its_line_and_the_nearest_name(commands):
    loaded, argvs = commands(TEXT)
    listed = Help(flags=KNOWN | {"--speculative-config", "--attention", "--enable-sleep"}, abbreviates=True)
    checks = flag_checks(loaded, argvs[1:], listed)
    assert [(check.level, *check.line.partition(": found ")[::2]) for check in checks] == [
        (
            "FAIL",
            f"{loaded.path}:6  engine.args.max-num-seqz",
            "--max-num-seqz, which the engine does not know; did you mean '--max-num-seqs'?",
        ),
        (
            "FAIL",
            f"{loaded.path}:7  engine.args.enable-sleep",
            "--no-enable-sleep, which the engine does not know; did you mean '--enable-sleep'?",
        ),
        ("FAIL", f"{loaded.path}:13  variants.a.args.atention", "--atention, which the engine does not know; did you mean '--attention'?"),
        ("FAIL", "a, added by the engine's adapter", "--per-request-spec-decode-metrics, which the engine does not know"),
    ]
    assert {check.details[-1] for check in checks[:-1]} == {"remedy:   write it as the engine's help does, or take it out"}
    assert "engine.venv" in checks[-1].details[-1]  # nobody can take out what is in no config


def test_a_flag_of_the_settings_for_speed_is_looked_at_too(commands):
    loaded, argvs = commands(TEXT + "speed: {args: {max-num-sqes: 8}}\n")
    checks = flag_checks(loaded, argvs[1:2], Help(flags=KNOWN | {"--enable-sleep"}, abbreviates=True))
    assert f"{loaded.path}:14  speed.args.max-num-sqes" in [check.line.partition(": found ")[0] for check in checks]


def test_a_dotted_flag_is_found_where_it_stands(commands):
    loaded, argvs = commands(TEXT.replace("      speculative-config: {method: ngram}\n", "").replace("methd", "method"))
    checks = flag_checks(loaded, argvs[-1:], Help(flags=frozenset({"--other"})))
    assert f"{loaded.path}:11  variants.a.args.speculative-config.method" in [check.line.partition(": found ")[0] for check in checks]


def test_all_arms_are_put_before_one_parser(commands, here):
    _, argvs = commands(TEXT)
    script = f'echo "$*" >> {here}/words; exit 1'
    help_of(EngineProgram(version=(), help=("/bin/sh", "-c", script, "sh"), abbreviates=False), [argv for _, argv in argvs], ARM)
    words = (here / "words").read_text().splitlines()[0].split()
    assert words[0].endswith("/model")
    assert words.count("--max-num-seqz") == 2
    assert "--atention" in words
    assert "serve" not in words


ARM = Arm(name="baseline", section=("baseline",), model="m", paths={}, args={}, env={}, speculative=False)


def test_one_look_tells_flags_and_another_a_wrong_value(vllm):
    program = engine_of("vllm").program((str(vllm()), "serve"))
    assert "--dtype" in help_of(program, [["vllm", "serve", "m", "--dtype", "auto"]], ARM).flags
    assert help_of(program, [["vllm", "serve", "m", "--dtype", "float33"]], ARM).complaint.endswith("invalid choice: 'float33'")


def test_a_parser_that_is_not_done_in_time_says_nothing_of_a_value(monkeypatch):
    late, bare = ProgramResult(exit_code=None, out="", err=""), ProgramResult(exit_code=0, out="  --dtype TYPE", err="")
    monkeypatch.setattr("pytest_specdec.doctor.probe.run", lambda argv, *_: late if "m" in argv else bare)
    program = EngineProgram(version=(), help=("vllm", "serve"), abbreviates=False)
    assert help_of(program, [["vllm", "serve", "m", "--dtype", "auto"]], ARM) == Help(flags=frozenset({"--dtype"}))


def test_a_release_without_help_all_is_asked_in_its_own_words(here):
    program = here / "old"
    program.write_text('#!/bin/sh\ncase "$*" in *=all) echo "error: ignored explicit argument" >&2; exit 2;; esac\necho "  --old  flag"\n')
    program.chmod(0o755)
    asked = EngineProgram(version=(), help=(str(program),), abbreviates=False)
    assert help_of(asked, [["m"]], ARM) == Help(flags=frozenset({"--old"}))


def test_a_help_that_cannot_be_read_is_a_warning_with_its_reason(commands):
    loaded, argvs = commands(TEXT)
    broken = EngineProgram(version=(), help=("/bin/sh", "-c", "echo 'ImportError: no torch' >&2; exit 1", "sh"), abbreviates=True)
    (check,) = flag_checks(loaded, argvs, help_of(broken, [["m"]], ARM))
    assert check.level == "warn"
    assert check.details == ("found:    ImportError: no torch",)


def test_a_probe_ends_in_time_with_all_that_it_started(here):
    ran = probe.run(("/bin/sh", "-c", f"sleep 300 & echo $! > {here}/pid; wait"), {}, limit_s=0.5)
    assert (ran.exit_code, ran.err) == (None, "not done after 0.5 s")
    assert ended(int((here / "pid").read_text()))


def test_a_program_that_is_not_there_is_said(here):
    assert probe.run((str(here / "none"),), {}).exit_code is None
    assert probe.run(("true",), {}).last_words == "no output"


@pytest.mark.parametrize(
    "printed, words",
    [
        ("usage\nvllm serve: error: no\nmore", "vllm serve: error: no"),
        ("error while handling --spec-type: unknown\n\nusage:\nrun with -h", "error while handling --spec-type: unknown"),
        ("a warning\nthe end", "the end"),
    ],
)
def test_an_error_is_quoted_wherever_a_program_prints_it(printed, words):
    assert probe.ProgramResult(exit_code=1, out="", err=printed).last_words == words


@pytest.mark.parametrize("named", ["--max-num-seqz", "--max_num_seqz=4"])
def test_a_flag_that_the_parser_complains_of_too_is_told_once(commands, named):
    loaded, given = commands(VLLM.replace("max-num-seqs", "max-num-seqz"))
    listed = KNOWN | {"--speculative-config", "--per-request-spec-decode-metrics"}
    (check,) = flag_checks(loaded, given, Help(flags=listed, complaint=f"error: invalid argument: {named}"))
    assert "did you mean '--max-num-seqs'?" in check.line


def test_an_unknown_flag_hides_no_complaint_about_another_that_begins_like_it(commands):
    loaded, given = commands(VLLM.replace("max-num-seqs", "max"))
    listed = KNOWN | {"--speculative-config", "--per-request-spec-decode-metrics"}
    checks = flag_checks(loaded, given, Help(flags=listed, complaint="error: argument --max-model-len: invalid value"))
    assert len(checks) == 2


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
