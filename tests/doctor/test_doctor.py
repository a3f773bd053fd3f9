"""The doctor as it is called: what it prints, and what it exits with."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.config import shipped
from pytest_specdec.doctor import config_checks
from pytest_specdec.doctor.probe import ProgramResult
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.gates import baseline_file
from pytest_specdec.model.baseline import Environment, Gate
from tests.doctor.conftest import VLLM

ROOT = Path(__file__).parents[2]
SECRET = "sk-0123456789abcdef"


@pytest.fixture
def doctor(capsys):
    def call(*arguments: str) -> tuple[int, str]:
        code = main(["doctor", *arguments])
        return code, capsys.readouterr().out

    return call


def rows(out: str, name: str) -> list[str]:
    """Return the lines of the checks called ``name``, without what stands under them."""
    return [line for line in out.splitlines() if line[8:].startswith(f"{name:<11}") and not line.startswith(" " * 8)]


def test_a_sound_config_passes_every_check_and_ends_with_the_next_command(doctor, config, vllm):
    vllm()
    config()
    code, out = doctor("mine.yaml")
    assert code == 0, out
    lines = out.splitlines()
    assert lines[0] == "doctor: mine.yaml at depth standard"
    assert rows(out, "engine")[0].startswith("  ok    engine     vllm 0.32.0+cpu, ")
    (flags,) = rows(out, "flags")
    assert (flags[:6].strip(), re.findall(r"\d+", flags)) == ("ok", ["6", "15"])
    assert "3 boots (baseline, ngram-k3, control)" in rows(out, "plan")[0]
    assert lines[-1] == "pytest --pyargs pytest_specdec.suites --specdec-config=mine.yaml"
    assert "none failed" in lines[-2]


def test_both_engines_are_checked_and_told_apart(doctor, here, vllm):
    vllm()
    (here / "model").mkdir(exist_ok=True)
    (here / "mine.yaml").write_text(VLLM + "engines: {old: {}, new: {venv: gone}}\n")
    code, out = doctor("mine.yaml")
    assert code == 1
    assert [row[19:] for row in rows(out, "engines")] == ["old: venv venv", "new: venv gone"]
    assert [row[:6].strip() for row in rows(out, "engine")] == ["ok", "FAIL"]


def test_the_depth_decides_the_boots(doctor, config, vllm):
    vllm()
    config()
    _, out = doctor("mine.yaml", "--depth=smoke")
    assert "2 boots (ngram-k3, baseline and control)" in out
    assert out.splitlines()[-1] == "pytest --pyargs pytest_specdec.suites --specdec-config=mine.yaml --specdec-depth=smoke"


def test_an_engine_without_a_help_to_read_gets_a_warning_for_its_flags(doctor, config, vllm, monkeypatch):
    vllm()
    config()
    monkeypatch.setattr(type(engine_of("vllm")), "program", lambda *_: None)
    code, out = doctor("mine.yaml")
    assert code == 0
    assert [row[:19] for row in rows(out, "flags")] == ["  warn  flags      "]


def test_every_problem_of_the_schema_is_told(doctor, here):
    (here / "mine.yaml").write_text("engine: {kind: vllm}\nvariant: {}\n")
    code, out = doctor("mine.yaml")
    assert code == 1
    assert "FAIL  config     the config has" in out
    assert "mine.yaml:1  engine.model: found nothing" in out
    assert "did you mean 'variants'?" in out
    assert out.splitlines()[-1].startswith("1 of 1 checks failed")


@pytest.mark.parametrize(
    "before, after, name, said",
    [
        ("max-num-seqs: 4", "max-num-seqz: 4", "flags", "did you mean '--max-num-seqs'?"),
        ("max-num-seqs: 4", "dtype: float33", "flags", "invalid choice: 'float33'"),
        ("max-num-seqs: 4", "max-num-seqs: '${UNSET_SIZE}'", "variables", "the environment variable UNSET_SIZE is not set"),
        ("venv: venv", "venv: vnev", "engine", "the engine is not installed"),
        ("kind: vllm", "kind: vlm", "engine", "did you mean vllm?"),
        ("model: model", "model: modle", "models", "did you mean 'model'?"),
        ("method: ngram", "method: ngram, rejection_sample_method: synthetic", "pair", "which changes the answers"),
        ("baseline: {args: {", "baseline: {args: {speculative-config: {}, ", "pair", "a speculative setting in the baseline"),
    ],
)
def test_what_stands_in_the_way_fails_and_brings_its_remedy(before, after, name, said, *, doctor, config, vllm):
    vllm()
    text = config().text
    config(text.replace(before, after))
    code, out = doctor("mine.yaml")
    assert code == 1
    failed = [row for row in rows(out, name) if row.startswith("  FAIL")]
    assert any(said in row for row in failed), out
    below = out.splitlines()[out.splitlines().index(failed[0]) + 1 :]
    assert any(line.strip().startswith(("remedy:", "expected:")) for line in below[:4]), out


def test_the_known_failures_of_a_config_are_listed_with_those_that_expired(doctor, config, vllm, here):
    waiver = "{family: greedy, workload: %s, variant: ngram-k3, bug: 'https://e.com/7', owner: ann, expires: %s}"
    config(VLLM + f"waivers: [{waiver % ('chat', '2999-01-31')}, {waiver % ('code', '2001-01-31')}]\n")
    ok, warning, *_ = rows(doctor("mine.yaml")[1], "waivers")
    assert ok == "  ok    waivers    greedy of chat on ngram-k3 may fail: https://e.com/7 (owner ann, until 2999-01-31)"
    assert warning.startswith("  warn  waivers    mine.yaml:")
    assert "expired: https://e.com/7" in warning


def test_the_prompts_of_a_config_are_counted_or_told_what_is_wrong_with_them(doctor, config, vllm, here):
    vllm()
    config(VLLM + "prompts: own.jsonl\n")
    (here / "own.jsonl").write_text('{"id": "a", "prompt": "Once"}\n{"id": "b", "messages": [{"role": "user"}], "schema": {}}\n')
    assert rows(doctor("mine.yaml")[1], "prompts") == ["  ok    prompts    2 of own.jsonl, 1 of them with a schema"]
    (here / "own.jsonl").write_text('{"id": "a"}\n')
    code, out = doctor("mine.yaml")
    assert (code, rows(out, "prompts")) == (1, ["  FAIL  prompts    the prompts file has a problem"])


def test_a_variable_that_several_values_want_is_asked_for_once(doctor, config, vllm, monkeypatch):
    vllm()
    config(config().text.replace("max-num-seqs: 4", "max-num-seqs: '${SIZE}', host: '${PLACE}', port: '${SIZE}'"))
    assert len(rows(doctor("mine.yaml")[1], "variables")) == 2
    monkeypatch.setenv("SIZE", "4")
    monkeypatch.setenv("PLACE", "")
    assert rows(doctor("mine.yaml")[1], "variables") == ["  ok    variables  all set"]


def test_a_variable_in_a_comment_is_no_variable(config):
    assert config_checks.variables(config(f"# ${{SIZE}} was here\n{VLLM}"), {}) == ()


def test_a_variant_that_does_not_speculate_has_no_plan(doctor, config, vllm):
    vllm()
    config(config().text.replace("speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}", "port: 1"))
    code, out = doctor("mine.yaml")
    assert code == 1
    assert rows(out, "plan") == ["  FAIL  plan       variant ngram-k3 does not speculate"]


def test_a_difference_of_the_arms_and_a_lossy_config_are_warnings(doctor, config, vllm):
    vllm()
    config(config().text.replace("baseline: {args: {async-scheduling: false}}", "lossy: true"))
    code, out = doctor("mine.yaml")
    assert code == 0
    assert len([row for row in rows(out, "pair") if row.startswith("  warn")]) == 3


def test_an_engine_that_does_not_tell_its_version_is_shown_with_its_last_words(doctor, config, vllm):
    vllm(version="echo 'ImportError: libcudart.so.13' >&2; exit 1")
    config()
    code, out = doctor("mine.yaml")
    assert code == 1
    assert "FAIL  engine     vllm prints no version and ended with exit code 1" in out
    assert "found:    ImportError: libcudart.so.13" in out


def test_secrets_reach_the_terminal_nowhere(doctor, config, vllm, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRET + "2")
    monkeypatch.setenv("OTHER", SECRET + "3")
    vllm(version=f"echo failed with {SECRET} and $HF_TOKEN >&2; exit 1")
    config(config().text.replace("  model: model", "  model: model\n  api_key: ${MY_API_KEY}\n  env: {OTHER_TOKEN: '${OTHER}'}"))
    _, out = doctor("mine.yaml")
    assert "failed with *** and ***" in out
    assert SECRET not in out


def test_control_sequences_of_an_engine_are_not_passed_on(doctor, config, vllm):
    vllm(version=r"printf '\033[31mred\n'; exit 0")
    config()
    assert "\033" not in doctor("mine.yaml")[1]


@pytest.mark.parametrize(
    "answer, level, said",
    [
        ("[ $1 = version ]", "warn", "image org/vllm:v0.32.0 is not on this machine: the first boot pulls it"),
        ("exit 1", "FAIL", "the Docker daemon does not answer"),
        ("", "FAIL", "the engine is not installed"),
    ],
)
def test_an_image_is_looked_for_and_its_flags_are_not_guessed(answer, level, said, *, doctor, config, here, monkeypatch):
    if answer:
        (here / "bin").mkdir()
        (here / "bin" / "docker").write_text(f"#!/bin/sh\n{answer}\n")
        (here / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(here / "bin"))
    config(config().text.replace("venv: venv", "image: org/vllm:v0.32.0").replace("model: model", "model: org/model"))
    _, out = doctor("mine.yaml")
    assert f"  {level:<4}  engine     {said}" in out
    assert "not checked" in rows(out, "flags")[0]


def test_a_model_to_be_downloaded_is_told_with_the_room_that_is_left(doctor, config, vllm):
    vllm()
    config(config().text.replace("model: model", "model: org/model"))
    assert "to which org/model will be downloaded" in doctor("mine.yaml")[1]


def test_a_name_that_no_config_has_is_wrong_usage(here, capsys):
    (here / "suites" / "configs").mkdir(parents=True)
    (here / "suites" / "configs" / "reference.yaml").write_text("")
    assert main(["doctor", "refrence"]) == 2
    assert "did you mean 'reference'?" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["docter", "x"], ["doctor"], ["doctor", "x", "--depth=shallow"], ["doctor", "x", "--no-such"]])
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: python -m pytest_specdec" in capsys.readouterr().err


@pytest.mark.parametrize(
    "depth, documented",
    [
        ("smoke", {"cost": "at smoke depth {} requests and at most {} tokens", "first-gate": "{} requests (…), at most {} tokens an arm"}),
        pytest.param("standard", {"cost": "at standard {} and {}, for the two variants"}, marks=pytest.mark.nightly),
    ],
)
def test_the_stock_config_is_told_with_the_suites_plan_by_the_module_itself(depth, documented):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest_specdec", "doctor", "reference", f"--depth={depth}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ok    engine     reference 0.1.0" in ran.stdout
    assert f"{'7' if depth == 'smoke' else '12'} boots (" in ran.stdout
    assert "2 pairs (draft-k3, ngram-k3) x" in ran.stdout
    counts = re.search(r"([\d,]+) requests .* at most ([\d,]+) tokens an arm", ran.stdout).groups()
    for page, sentence in documented.items():
        assert sentence.format(*counts) in (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


def test_a_collection_that_fails_is_told_with_its_last_lines(here):
    words = "\n".join(f"line {n}" for n in range(30))
    check = config_checks.collection(ProgramResult(exit_code=4, out=words, err="ERROR: found 'x'"), here)
    assert check.level == "FAIL"
    assert check.details[-2:] == ("ERROR: found 'x'", f"remedy:   see pytest --co {here}")
    assert len(check.details) == 11


def test_the_plan_is_read_off_a_collection_without_the_lints_warnings(here):
    text = "specdec: mine\n  2 pairs\n  3 boots, about 1:00\n  warning: arms differ\nsuites/test_x.py::test_x\n"
    check = config_checks.collection(ProgramResult(exit_code=0, out=text, err=""), here)
    assert (check.line, check.details) == ("2 pairs", ("3 boots, about 1:00",))


def test_suites_are_those_that_the_config_lies_in_or_those_here(config, here):
    (here / "suites" / "configs").mkdir(parents=True)
    inside = config(name="suites/configs/mine.yaml")
    assert config_checks.suites(inside, here / "elsewhere") is None
    (here / "suites" / "test_x.py").write_text("")
    assert config_checks.suites(inside, here / "elsewhere") == here / "suites"
    assert config_checks.suites(config(), here) == here / "suites"


def test_suites_elsewhere_are_those_that_ship(config, here, monkeypatch):
    monkeypatch.setattr(shipped, "SUITES", ROOT / "suites")
    assert config_checks.suites(config(), here) == ROOT / "suites"


def test_the_next_command_runs_the_suites_that_lie_here(doctor, config, vllm, here):
    vllm()
    config()
    (here / "suites").mkdir()
    (here / "suites" / "test_x.py").write_text("")
    assert doctor("mine")[1].splitlines()[-1] != "pytest suites/ --specdec-config=mine"
    (here / "suites" / "test_x.py").write_text(
        "import pytest\nfrom pytest_specdec.prompts import CODE\n\n"
        "@pytest.mark.specdec(CODE.greedy(), family='greedy')\ndef test_x(specdec_captured): pass\n"
    )
    assert doctor("mine")[1].splitlines()[-1] == "pytest suites/ --specdec-config=mine"


def environment(processor: str) -> Environment:
    return Environment(engine="vllm", engine_version="", model="m", processor=processor, cores=2, memory_gib=8)


def test_the_baseline_file_of_this_machine_is_named_and_those_of_others_are_not_compared(config, here):
    loaded, mine, other = config(), environment("mine"), environment("other")
    folder = here / "baselines"
    assert config_checks.gates(loaded, folder, mine)[0].line == f"none of this machine ({mine.machine}), so speedup at least 1 gates"
    baseline_file.write(folder / "mine" / f"{other.machine}.yaml", other, [Gate(figure="speedup", pair="a", workload="w", at_least=1.5)])
    (check,) = config_checks.gates(loaded, folder, mine)
    assert (check.level, "not comparable" in check.line) == ("warn", True)
    (check,) = config_checks.gates(loaded, folder, other)
    assert (check.level, check.line) == ("ok", f"1 of this machine in {folder}/mine/{other.machine}.yaml, beside speedup at least 1")


def test_a_floor_that_is_not_used_is_noted_beside_one_that_is(config, here):
    loaded, folder = config(), here / "baselines"
    mine = replace(environment("mine"), variants={"a": {"model": "m"}})
    keys = {"w": {"model": "m"}, "old": {"model": "another"}}
    gates = [Gate(figure="speedup", pair="a", workload=name, at_least=1.5, key=key) for name, key in keys.items()]
    baseline_file.write(folder / "mine" / f"{mine.machine}.yaml", mine, gates)
    used, note = config_checks.gates(loaded, folder, mine)
    assert (used.level, used.line.partition(" in ")[0]) == ("ok", "1 of this machine")
    assert (note.level, note.line.partition(": ")[0]) == ("warn", "floor not used")


def test_a_broken_baseline_file_fails(config, here):
    mine = environment("mine")
    (here / "baselines" / "mine").mkdir(parents=True)
    (here / "baselines" / "mine" / f"{mine.machine}.yaml").write_text("schema: other\n")
    (check,) = config_checks.gates(config(), here / "baselines", mine)
    assert (check.level, check.line) == ("FAIL", "the baseline file has another schema")
