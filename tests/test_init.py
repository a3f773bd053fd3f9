"""``init``: what it writes loads, judges and checks as it is, and nothing is overwritten."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.__main__ import UNREAD, main
from pytest_specdec.config import lint, shipped
from pytest_specdec.config.load import find, load
from pytest_specdec.engines import registry
from pytest_specdec.engines.reference import Reference
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.files import yaml

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


class PlainEngine(Reference):
    """An engine without a template of its own."""

    kind = "plain"
    template = None


class RenamedEngine(Reference):
    """An engine of another package that is built on ours."""

    kind = "renamed"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def init(capsys):
    """Call the command and return its exit code, what it printed, and its error."""

    def call(*arguments):
        code = main(["init", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_without_an_engine_it_writes_the_shipped_pair_and_the_commands_to_type_next(init, here):
    code, out, err = init()
    assert (code, err) == (0, "")
    written, stock = (yaml.load(path.read_text(), "").data for path in (here / "my-model.yaml", shipped.CONFIGS / "reference.yaml"))
    assert written == stock
    assert out.splitlines()[0] == "wrote my-model.yaml: reference serving target, variants draft-k3, ngram-k3"
    commands = [line.strip() for line in out.splitlines()[2:]]
    assert commands[0] == "python -m pytest_specdec doctor my-model"
    assert commands[1] == f"pytest {shipped.SUITES} --specdec-config=my-model --specdec-depth=smoke"


@pytest.mark.parametrize("name", ["gates/qwen", "my gates/qwen.yaml"])
def test_the_commands_in_the_head_of_a_config_find_it(init, here, name):
    (here / name).parent.mkdir()
    init(name)
    (path,) = here.rglob("*.yaml")
    commands = [shlex.split(line.removeprefix("#")) for line in path.read_text().splitlines() if line.startswith("#     ")]
    option = next(word for word in commands[1] if word.startswith("--specdec-config="))
    assert [find(config, here) for config in (commands[0][-1], option.partition("=")[2])] == [path, path]


def test_a_written_config_names_a_schema_that_is_there(init, here):
    init("mine.yaml")
    first = (here / "mine.yaml").read_text().splitlines()[0]
    assert Path(first.partition("$schema=")[2]).is_file()


VLLM = [
    ((), "ngram-k3", "ngram", None, False, "1"),
    (("--speculator", "suffix"), "suffix-k8", "suffix", None, False, "0"),
    (("--speculator", "mtp"), "mtp-k1", "mtp", None, True, "1"),
    (("--speculator", "NGRAM"), "ngram-k3", "ngram", None, False, "1"),
    (("--speculator", "./eagle3"), "eagle3-k3", "eagle3", "./eagle3", True, "1"),
    (("--speculator", "RedHatAI/Qwen3-32B-speculator.eagle3"), "eagle3-k3", "eagle3", "RedHatAI/Qwen3-32B-speculator.eagle3", True, "1"),
    (("--speculator", "yuhuili/EAGLE3-LLaMA3.3"), "eagle3-k3", "eagle3", "yuhuili/EAGLE3-LLaMA3.3", True, "1"),
    (("--speculator", "org/EAGLE-LLaMA3"), "eagle-k3", "eagle", "org/EAGLE-LLaMA3", True, "1"),
    (("--speculator", "org/medusa-7b"), "medusa-k3", "medusa", "org/medusa-7b", False, "0"),
    (("--speculator", "org/small"), "draft-k3", "draft_model", "org/small", True, "1"),
]


@pytest.mark.parametrize("more, name, method, model, overlaps, runner", VLLM, ids=str)
def test_a_config_for_vllm_speculates_as_the_speculators_name_says_and_is_a_fair_pair(
    init, here, more, name, method, model, overlaps, runner
):
    code, _, err = init("q", "--engine", "vllm", "--model", "Qwen/Qwen3-32B", *more)
    assert (code, err) == (0, "")
    config = load(here / "q.yaml")
    (variant,) = config.variants
    setting = variant.args["speculative-config"]
    assert (variant.name, setting["method"], setting.get("model")) == (name, method, model)
    assert (config.engine.args["async-scheduling"], config.engine.env["VLLM_USE_V2_MODEL_RUNNER"]) == (overlaps, runner)
    assert lint.check(config, engine_of("vllm").rules) == ()
    assert engine_of("vllm").draft(variant.args).tokens == int(name[-1])


@pytest.mark.parametrize("speculator", ["eagle3", "EAGLE-3", "medusa", "dflash", "draft_model", "draft-model", "deepseek_mtp"])
def test_a_method_that_needs_a_second_model_is_no_speculator(init, here, speculator):
    """vLLM would look for a model of that name, and find none."""
    code, _, err = init("q", "--engine", "vllm", "--model", "Qwen/Qwen3-32B", "--speculator", speculator)
    assert code == 2
    assert "name of the draft model or head" in err
    assert not (here / "q.yaml").exists()


def test_a_model_is_written_so_that_it_is_read_back(init, here):
    for model in ("Qwen/Qwen3-32B", "./a folder", "true", "7", "a: b", "{x", 'q"', "${MODEL}", "~/m"):
        assert init("q", "--engine", "vllm", "--model", model)[0] == 0
        assert load(here / "q.yaml").engine.model == model
        (here / "q.yaml").unlink()


def test_the_shipped_pair_takes_other_checkpoints(init, here):
    init("q", "--engine", "reference", "--model", "draft", "--speculator", "./target")
    config = load(here / "q.yaml")
    assert config.engine.model == "draft"
    assert config.variants[0].args["speculative-config"]["model"] == "./target"


def test_an_engine_without_a_template_gets_the_keys_that_all_engines_share(init, here, monkeypatch):
    monkeypatch.setitem(registry.LOADED, "plain", PlainEngine())
    assert "plain writes no config without a model" in init("p", "--engine", "plain")[2]
    assert init("p", "--engine", "plain", "--model", "m", "--speculator", "s")[0] == 0
    config = load(here / "p.yaml")
    assert (config.engine.kind, config.engine.model, config.require) == ("plain", "m", ("json_schema",))
    assert "s" in (here / "p.yaml").read_text().partition("args: {} # the flags")[2].splitlines()[0]


def test_a_config_for_servers_that_run_already_has_their_addresses_to_edit(init, here):
    assert "--model" in init("served", "--engine", "attach")[2]
    assert init("served", "--engine", "attach", "--model", "org/m", "--speculator", "org/head")[0] == 0
    config = load(here / "served.yaml")
    assert (config.engine.kind, config.engine.model, config.baseline.url) == ("attach", "org/m", "http://127.0.0.1:8000")
    assert [variant.url for variant in config.variants] == ["http://127.0.0.1:8001"]
    assert lint.check(config, engine_of("attach").rules) == ()
    assert "org/head" in (here / "served.yaml").read_text()


def test_the_commands_of_the_readme_write_the_configs_that_its_runs_name(init, here):
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^    python -m pytest_specdec init(.*)$", README, re.MULTILINE)]
    assert len(commands) >= 3
    assert [init(*arguments)[0] for arguments in commands] == [0] * len(commands)
    runs = set(re.findall(r"^    pytest --pyargs \S+ --specdec-config=([\w-]+)", README, re.MULTILINE)) - {"qwen3-eagle3"}
    assert {path.stem for path in here.glob("*.yaml")} == runs
    assert {load(path).engine.kind for path in here.glob("*.yaml")} == {"reference", "vllm", "attach"}


def test_an_engine_built_on_ours_is_named_by_its_own_kind(init, here, monkeypatch):
    monkeypatch.setitem(registry.LOADED, "renamed", RenamedEngine())
    init("r", "--engine", "renamed")
    assert load(here / "r.yaml").engine.kind == "renamed"


WRONG = [
    (("--engine", "vlm"), "did you mean vllm?"),
    (("--engine", "vllm"), "--model"),
    (("--model", "m"), "--engine"),
    (("--speculator", "m"), "--engine"),
    (("nowhere/mine",), "nowhere/mine.yaml cannot be written"),
    (("",), "the config has no name"),
]


@pytest.mark.parametrize("arguments, said", WRONG)
def test_a_wrong_call_is_one_error_and_writes_nothing(init, here, arguments, said):
    code, out, err = init(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert list(here.iterdir()) == []


OWN = "engine: {kind: attach, model: org/m}\nvariants: {spec: {url: 'http://127.0.0.1:8001'}}\n"
ELSEWHERE = [("suites/configs/x.yaml", "x"), ("x.yml", "x"), ("x.yml", "x.yml"), ("x.yml", "x.yaml"), ("x", "x")]


@pytest.mark.parametrize("place, name", ELSEWHERE)
def test_a_config_wherever_its_name_is_looked_for_stays_and_gets_its_job(init, here, place, name):
    (here / place).parent.mkdir(parents=True, exist_ok=True)
    (here / place).write_text(OWN)
    assert init(name, "--ci", "github")[0] == 0
    assert [path for path in here.rglob("x*") if path.is_file()] == [here / place]
    job_name = re.search(r"SPECDEC_CONFIG:-([\w.]+)}", (here / "specdec-ci.sh").read_text())[1]
    assert find(job_name, here) == here / place


def test_the_job_of_one_of_two_configs_judges_the_one_that_was_named(init, here):
    for place in ("x.yml", "x.yaml"):
        (here / place).write_text(OWN)
    assert init("x.yml", "--ci", "gitlab")[0] == 0
    assert "{SPECDEC_CONFIG:-x.yml}" in (here / "specdec-ci.sh").read_text()
    assert sorted(path.name for path in here.glob("x*")) == ["x.yaml", "x.yml"]


@pytest.mark.parametrize("place, name", ELSEWHERE)
def test_no_new_config_hides_one_of_the_same_name(init, here, place, name):
    (here / place).parent.mkdir(parents=True, exist_ok=True)
    (here / place).write_text(OWN)
    code, _, err = init(name, "--engine", "vllm", "--model", "org/m")
    assert (code, err.splitlines()[0]) == (2, f"{place} is there already and stays as it is")
    assert [path for path in here.rglob("*") if path.is_file()] == [here / place]


@pytest.mark.parametrize("there", ["my-model.yaml", "suites"])
def test_nothing_is_overwritten_and_nothing_is_written_beside_it(init, here, there):
    (here / there).write_text("mine")
    code, _, err = init("--suites")
    assert code == 2
    assert err.startswith(f"{there} is there already")
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [(there, "mine")]


def test_suites_in_the_way_are_not_to_be_copied_into(init, here):
    init()
    (here / "suites").mkdir()
    code, _, err = init("my-model", "--suites", "--ci", "github")
    assert (code, err.startswith("suites is there already")) == (2, True)
    assert "cp -r" not in err


def test_a_copy_of_the_suites_runs_as_it_is(init, here):
    code, out, _ = init("--suites")
    assert code == 0
    assert out.startswith("wrote my-model.yaml, suites/, pytest.ini: ")
    assert "pytest suites/ --specdec-config=my-model" in out
    ours = {path.relative_to(shipped.SUITES) for path in shipped.SUITES.rglob("*.py")}
    assert {path.relative_to(here / "suites") for path in (here / "suites").rglob("*") if path.is_file()} == ours
    argv = [sys.executable, "-m", "pytest", "suites/", "--co", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "specdec: my-model" in done.stdout
    assert "86 tests collected" in done.stdout


@pytest.mark.parametrize("name", ["pytest.ini", "pyproject.toml", "tox.ini"])
def test_settings_of_pytest_that_are_there_stay_the_only_ones(init, here, name):
    (here / name).write_text("")
    _, out, _ = init("--suites")
    assert out.startswith("wrote my-model.yaml, suites/: ")
    assert (here / name).read_text() == ""
    assert {"pytest.ini"} & {path.name for path in here.iterdir()} == {"pytest.ini"} & {name}


def test_a_config_elsewhere_is_found_by_the_copied_suites(init, here):
    (here / "there").mkdir()
    init("there/mine", "--suites")
    assert "specdec_config = there/mine" in (here / "pytest.ini").read_text()


@pytest.mark.parametrize(
    "arguments, code",
    [pytest.param("--help", 0, marks=pytest.mark.nightly), pytest.param("--version", 0, marks=pytest.mark.nightly), ("init", UNREAD)],
)
def test_a_reader_that_goes_away_is_no_error(arguments, code):
    with subprocess.Popen([sys.executable, "-m", "pytest_specdec", arguments], stdout=-1, stderr=-1, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", code)
