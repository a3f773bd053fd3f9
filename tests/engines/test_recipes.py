"""The configs that this project ships: all of them load, are fair pairs, and are read by the parser of the engine that they are for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.capture import planner
from pytest_specdec.capture.planner import SelectedWorkload
from pytest_specdec.config.lint import lint
from pytest_specdec.config.load import load
from pytest_specdec.config.matrix import is_matrix, load_matrix
from pytest_specdec.doctor.arms import arms
from pytest_specdec.engines import vllm
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.vllm.releases import is_old
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.workload import Depth, Family, Workload
from tests.engines.vllm_old import arguments

ROOT = Path(__file__).parents[2]
CONFIGS, MATRICES = [], []
for file in sorted((ROOT / "suites" / "configs").glob("*.yaml")):
    (MATRICES if is_matrix(file) else CONFIGS).append(file)
ARCTIC = [path for path in CONFIGS if load(path).engine.kind == "arctic"]
OLD = [path for path in CONFIGS if is_old((load(path).engine.image or "").rpartition(":")[2])]
VLLM = [path for path in CONFIGS if load(path).engine.kind == "vllm" and path not in OLD]
BIG = [path for path in CONFIGS if not (load(path).engine.model.startswith(".") or load(path).engine.kind == "reference")]
"""Recipes whose models come from the hub and are served on devices."""
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
OLD_ARGUMENTS = ROOT / ".venv-vllm-old"
PLUGINS = {"enable_suffix_decoding"}
"""Keys of Arctic's own ``speculative-config`` (its ``config.py``); so is the method ``arctic``."""
FAULTY = "vllm-cpu-faulty"
ENVIRON = {"SPECDEC_FAULT": "lenient"}
CHECKPOINTS = 16 * 1024**2
ANYTHING = SelectedWorkload(workload=Workload(name="any", version=1, requests=(), draft_scored=True), family=Family.GREEDY)

shipped = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
for_vllm = pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
for_vllm_and_its_plugin = pytest.mark.parametrize("path", VLLM + ARCTIC, ids=lambda path: path.stem)
for_old_vllm = pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
on_devices = pytest.mark.parametrize("path", BIG, ids=lambda path: path.stem)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """Stand in for the engine's program, which is not needed to write its command line."""
    program = tmp_path_factory.mktemp("bin") / "vllm"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pytest_specdec.engines.locate.program", lambda *_, **__: str(program))
        yield


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.stem)
def test_every_group_of_a_matrix_has_a_plan_and_differs_in_speculation_only(path):
    """A setting that a variant cannot have is excluded, and said by the lint where it is not."""
    whole = load_matrix(path)
    for group in whole.matrix.groups:
        config = whole.config(group)
        plan = planner.make(config, [ANYTHING], Depth.STANDARD)
        assert [pair.name for pair in plan.pairs] == list(group.cell_names)
        assert [str(problem) for problem in lint(config, engine_of(config.engine.kind).rules)] == []


@shipped
def test_a_recipe_loads_and_every_variant_speculates(path):
    config = load(path)
    plan = planner.make(config, [ANYTHING], Depth.STANDARD)
    drafts = {pair.variant.draft.model for pair in plan.pairs if pair.variant.draft.kind is DraftKind.MODEL}
    assert len(plan.boots) == len(plan.pairs) + 2 + len(drafts) + (config.scorer is not None)
    assert all(pair.variant.draft.tokens > 0 for pair in plan.pairs)


@shipped
def test_the_arms_differ_in_the_speculative_setting_only_but_for_planted_faults(path):
    config = load(path)
    found = lint(config, engine_of(config.engine.kind).rules)
    assert not [problem for problem in found if problem.refused]
    assert bool(found) == ("fault: ${SPECDEC_FAULT}" in path.read_text() or path.stem == FAULTY)
    assert all(problem.path.endswith(("SPECDEC_VLLM_PATCHES", "args.fault")) for problem in found)


@for_vllm
def test_a_recipe_pins_what_vllm_changes_behind_ones_back(path):
    engine = load(path).engine
    assert engine.args["generation-config"] == "vllm"
    assert isinstance(engine.args["async-scheduling"], bool)
    assert engine.env["VLLM_USE_V2_MODEL_RUNNER"] in {"0", "1"}
    assert engine.args["seed"] == 0


def test_the_stock_build_and_the_faulty_one_differ_from_the_mended_one_in_their_patches_only():
    mended, stock, faulty = (load(ROOT / "suites" / "configs" / f"{name}.yaml") for name in ("vllm-cpu", "vllm-cpu-stock", FAULTY))
    patches = dict(mended.engine.env)
    assert patches.pop("SPECDEC_VLLM_PATCHES") == "fix-expand,fix-topk,two-processes"
    assert dict(stock.engine.env) == patches
    assert faulty.engine == mended.engine
    for other in (stock, faulty):
        assert [(v.name, v.args) for v in other.variants] == [(v.name, v.args) for v in mended.variants]
    assert {variant.env["SPECDEC_VLLM_PATCHES"] for variant in faulty.variants} == {"fix-expand,fix-topk,two-processes,${SPECDEC_FAULT}"}


SCHEDULED = {"enable-chunked-prefill", "max-num-batched-tokens", "enable-prefix-caching", "async-scheduling"}


@pytest.mark.parametrize("name", ["bfloat16", "bfloat16-whole", "float16", "float16-async"])
def test_a_recipe_in_half_precision_differs_in_precision_and_scheduling_only(name):
    exact, half = (load(ROOT / "suites" / "configs" / f"{stem}.yaml") for stem in ("vllm-cpu", f"vllm-cpu-{name}"))
    args = {key: value for key, value in half.engine.args.items() if key not in SCHEDULED}
    assert args == {**{key: value for key, value in exact.engine.args.items() if key not in SCHEDULED}, "dtype": name.partition("-")[0]}
    assert half.engine.env == exact.engine.env
    ahead = half.engine.args["async-scheduling"]
    assert [v.name for v in half.variants] == [v.name for v in exact.variants if not (ahead and v.name == "ngram-k3")]
    whole = name.endswith("whole")
    assert (half.engine.args["enable-chunked-prefill"], half.engine.args["enable-prefix-caching"]) == (not whole, not whole)
    assert not engine_of("vllm").single_precision(half)


def test_the_checkpoints_that_ship_fit_their_budget_and_are_readable_by_all():
    files = [path for path in (ROOT / "specdec_reference" / "checkpoints").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= CHECKPOINTS
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}


@for_vllm
def test_paths_relative_to_a_recipe_reach_the_server_as_paths_that_are_there(path):
    made = {f"../../{folder}" for folder in re.findall(r"\.specdec/checkpoints/\S+", (ROOT / "Makefile").read_text())}
    for arm, argv in commands(path).items():
        models = [argv[0], *drafters(argv)]
        relative = [model for model in models if model.startswith(".") and model not in made]
        missing = [model for model in models if model.startswith("/") and not (Path(model) / "config.json").is_file()]
        assert relative + missing == [], f"{arm}: a server is started elsewhere"


@pytest.fixture(scope="module")
def parsed(installed):
    """What vLLM's parser says of every recipe's arms, and of two with a mistake in them; one process, since its import takes seconds."""
    if not PYTHON.exists():
        pytest.skip("vLLM's own parser is not here: make vllm-env")
    asked = {f"{path.stem}/{arm}": vllms_own(argv) for path in VLLM + ARCTIC for arm, argv in commands(path).items()}
    first = next(iter(asked.values()))
    asked["misspelt flag"] = [*first, "--max-num-seqz", "4"]
    asked["misspelt key"] = [*first, "--speculative-config", '{"method": "ngram", "num_speculative_token": 3}']
    asked["wrong value"] = [*first, "--dtype", "float33"]
    asked["wrong method"] = [*first, "--speculative-config", '{"method": "telepathy", "num_speculative_tokens": 3}']
    script = Path(__file__).parent / "vllm_cpu" / "parse_arguments.py"
    ran = subprocess.run([PYTHON, script], input=json.dumps(asked), capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@for_vllm_and_its_plugin
def test_vllms_own_parser_reads_every_arm(path, parsed):
    refused = {name: said["error"] for name, said in parsed.items() if name.startswith(f"{path.stem}/") and not said["ok"]}
    assert not refused
    assert sum(name.startswith(f"{path.stem}/") for name in parsed) > len(load(path).variants)


@pytest.mark.parametrize(
    "name, said",
    [
        ("misspelt flag", "unrecognized arguments: --max-num-seqz 4"),
        ("misspelt key", "--speculative-config has no num_speculative_token"),
        ("wrong value", "invalid choice: 'float33'"),
        ("wrong method", "--speculative-config has no method telepathy"),
    ],
)
def test_vllms_own_parser_refuses_a_planted_mistake(name, said, parsed):
    assert not parsed[name]["ok"]
    assert said in parsed[name]["error"]


def vllms_own(argv: list[str]) -> list[str]:
    """Return a command line without what only Arctic's plugin reads: it is not in this environment."""
    if "--speculative-config" not in argv:
        return argv
    at = argv.index("--speculative-config") + 1
    setting = json.loads(argv[at])
    ours = {name: value for name, value in setting.items() if name not in PLUGINS and value != "arctic"}
    return [*argv[:at], json.dumps(ours), *argv[at + 1 :]]


@pytest.fixture(scope="module")
def early():
    """The parser of a vLLM before 0.8, from its sources."""
    if not OLD_ARGUMENTS.exists():
        pytest.skip("the arguments of an early vLLM are not here: make vllm-old-arguments")
    return arguments.parser(OLD_ARGUMENTS)


@for_old_vllm
def test_the_parser_of_its_time_reads_every_arm_of_an_early_recipe(path, early):
    config, engine = load(path), engine_of("vllm")
    lines = {arm.name: arm.command(config, engine).argv for arm in arms(config, engine, {})}
    flags = {name: list(argv[argv.index("serve") + 1 :]) for name, argv in lines.items()}
    assert not {name: error for name, argv in flags.items() if (error := arguments.problem(early, argv))}
    assert len(flags) > len(config.variants)


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--speculative-config", "{}"], "unrecognized arguments: --speculative-config {}"),
        (["--dtype", "float33"], "invalid choice: 'float33'"),
        (["--max-model-len", "long"], "invalid int value: 'long'"),
        (["--enable-chunked-prefill", "maybe"], "invalid word value: 'maybe'"),
    ],
)
def test_the_early_parser_refuses_a_planted_mistake(flags, said, early):
    assert said in arguments.problem(early, ["m", *flags])


STUB = """#!/bin/sh
case "$*" in *version*) echo "version: 0.32.0" ;; *) exit 1 ;; esac
"""


@pytest.mark.examples(2)
@on_devices
def test_the_doctor_passes_a_recipe_where_there_is_no_hardware_and_says_what_it_could_not_check(
    path, installed, capsys, monkeypatch, tmp_path
):
    """The engine's program is a stand-in without a help, and there is no daemon: config, pair, models and plan are checked."""
    (tmp_path / "program").write_text(STUB)
    (tmp_path / "program").chmod(0o755)
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_specdec.engines.locate.program", lambda *_, **__: str(tmp_path / "program"))
    monkeypatch.setattr("pytest_specdec.engines.docker.check", lambda _: None)
    monkeypatch.setattr("pytest_specdec.doctor.config_checks.suites", lambda *_: None)  # the plan of the boots will do
    monkeypatch.setattr("pytest_specdec.doctor.machine.QUERY", ("true",))
    code = main(["doctor", str(path)])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "  warn  flags      not checked: " in out, out
    assert "no accelerator: nvidia-smi lists none" in out
    assert out.count("which the first boot downloads") + out.count("is of a gated family") >= 1
    assert "the arms differ in the speculative setting only" in out


def commands(path: Path) -> dict[str, list[str]]:
    """Return the model and the flags that our adapter starts every arm's server with."""
    config = load(path)
    engine = engine_of(config.engine.kind)
    return {arm.name: list(arm.command(config, engine).argv[2:]) for arm in arms(config, engine, ENVIRON)}


def drafters(argv: list[str]) -> list[str]:
    """Return the model that a server drafts with, if any."""
    setting = argv[argv.index("--speculative-config") + 1] if "--speculative-config" in argv else "{}"
    return [str(model) for model in [vllm.speculative_setting({"speculative-config": setting}).get("model")] if model]
