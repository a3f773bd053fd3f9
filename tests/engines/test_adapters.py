"""LoRA adapters: what each engine reads of its arguments, what withholds them, and under which weights tokens are scored."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pytest_specdec.capture.unmet_needs import shared_adapters
from pytest_specdec.capture.withheld import withheld_workloads
from pytest_specdec.capture.workloads import apply_config
from pytest_specdec.config.config import Config, EngineSettings, StackProcess, VariantSettings
from pytest_specdec.engines.lora_paths import adapter_paths, named_adapters, resolve_paths
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Family
from suites.adapters.test_adapters import MIXED

TWO = ["sql=/sql", "tone=/tone"]


def a_config(kind, variant=None, **args):
    named = {name.replace("_", "-"): value for name, value in args.items()}
    engine = EngineSettings(kind=kind, model="m", args=named)
    return Config(name="c", path=Path("c.yaml"), text="", engine=engine, variants=(VariantSettings(name="v", args=variant or {}),))


def reason(config):
    return withheld_workloads(config, engine_of(config.engine.kind), [(MIXED, Family.ADAPTERS)]).get("adapters", "")


@pytest.mark.parametrize("modules", [TWO, [f'{{"name": "{name}", "path": "/{name}"}}' for name in ("sql", "tone")]])
@pytest.mark.parametrize("kind", ["vllm", "reference", "arctic"])
def test_vllm_and_the_reference_engine_choose_by_the_model_s_name(kind, modules):
    named = engine_of(kind).adapters(a_config("any"), {"enable-lora": True, "lora-modules": modules}).named
    assert [(adapter.name, adapter.fields) for adapter in named] == [("sql", {"model": "sql"}), ("tone", {"model": "tone"})]
    assert not engine_of(kind).adapters(a_config("any"), {"lora-modules": modules}).named


def test_sglang_chooses_by_a_field_that_its_own_route_has_too():
    named = (
        engine_of("sglang")
        .adapters(a_config("any"), {"lora-paths": ["sql=/sql", {"lora_name": "tone", "lora_path": "/tone"}, "/plain"]})
        .named
    )
    assert [adapter.fields for adapter in named] == [{"lora_path": "sql"}, {"lora_path": "tone"}, {"lora_path": "/plain"}]


def test_llama_cpp_chooses_by_number_and_scales_all_others_to_nothing():
    adapters = engine_of("llama_cpp").adapters(a_config("any"), {"lora": "a/sql.gguf,b.gguf", "lora-scaled": "c.gguf:0.5"})
    assert [adapter.name for adapter in adapters.named] == ["0:sql", "1:b", "2:c"]
    assert [[each["scale"] for each in adapter.fields["lora"]] for adapter in adapters.named] == [[1, 0, 0], [0, 1, 0], [0, 0, 0.5]]
    assert [each["scale"] for each in adapters.without["lora"]] == [0, 0, 0]


def test_scaled_adapters_of_llama_cpp_stand_beside_the_config_and_need_their_scales(tmp_path):
    (tmp_path / "c.gguf").touch()
    config = replace(a_config("llama_cpp"), path=tmp_path / "c.yaml")
    config = replace(config, engine=replace(config.engine, executable=sys.executable))
    setup = ServerSetup(model="m.gguf", port=1, args={"lora": ["c.gguf", "d.gguf"], "lora-scaled": "c.gguf:0.5"}, secrets=Secrets())
    argv = engine_of("llama_cpp").command(config, setup).argv
    assert argv[argv.index("--lora") + 1] == f"{tmp_path}/c.gguf,d.gguf"
    assert argv[argv.index("--lora-scaled") + 1] == f"{tmp_path}/c.gguf:0.5"
    for word in ("c.gguf", "c.gguf:half", "0.5"):
        with pytest.raises(EngineError, match="an adapter without its scale") as caught:
            engine_of("llama_cpp").adapters(a_config("any"), {"lora-scaled": word})
        assert (caught.value.found, caught.value.expected) == (word, "FILE:SCALE")


def test_tensorrt_llm_chooses_by_folder():
    options = {"lora_config": {"lora_dir": ["/x/sql", "/x/tone"], "max_loras": 2}}
    named = engine_of("tensorrt_llm").adapters(a_config("any"), {"extra_llm_api_options": options}).named
    assert named[1].fields == {"lora_request": {"lora_name": "tone", "lora_int_id": 1, "lora_path": "/x/tone"}}


@pytest.fixture
def beside(tmp_path):
    """Return a config of an engine in an image, with a folder ``sql`` beside it."""
    (tmp_path / "sql").mkdir()

    def _beside(kind, image):
        config = replace(a_config(kind), path=tmp_path / "c.yaml")
        return replace(config, engine=replace(config.engine, image=image))

    return _beside


def test_adapters_of_sglang_beside_the_config_are_mounted_and_go_by_the_same_names(beside, tmp_path):
    engine, config = engine_of("sglang"), beside("sglang", "lmsysorg/sglang:v0.5.23")
    folder, args = str(tmp_path / "sql"), {"lora-paths": ["sql", "a=sql", {"lora_name": "b", "lora_path": "sql"}, "org/tone"]}
    argv = engine.command(config, ServerSetup(model="m", port=1, args={"lora_paths": args["lora-paths"]}, secrets=Secrets())).argv
    words = list(argv[argv.index("--lora-paths") + 1 :][:4])
    assert words == [f"sql={folder}", f"a={folder}", json.dumps({"lora_name": "b", "lora_path": folder}), "org/tone"]
    assert f"{folder}:{folder}:ro" in argv
    names = [adapter.fields["lora_path"] for adapter in engine.adapters(config, args).named]
    assert names == ["sql", "a", "b", "org/tone"] == [adapter.name for adapter in named_adapters(words, "lora_path").named]


def test_adapters_of_tensorrt_llm_beside_the_config_are_mounted_and_requests_name_their_paths(beside, tmp_path):
    engine, config = engine_of("tensorrt_llm"), beside("tensorrt_llm", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0")
    folder, args = str(tmp_path / "sql"), {"extra_llm_api_options": {"lora_config": {"lora_dir": ["sql", "/tone"], "max_loras": 2}}}
    command = engine.command(config, ServerSetup(model="m", port=1, args=args, folder=tmp_path / "run", secrets=Secrets()))
    (text,) = command.files.values()
    assert yaml.safe_load(text)["lora_config"] == {"lora_dir": [folder, "/tone"], "max_loras": 2}
    assert {f"{folder}:{folder}:ro", "/tone:/tone:ro"} <= set(command.argv)
    requests = [adapter.fields["lora_request"] for adapter in engine.adapters(config, args).named]
    assert [(request["lora_name"], request["lora_path"]) for request in requests] == [("sql", folder), ("tone", "/tone")]


def test_paths_beside_the_config_are_found_from_there_and_objects_become_texts():
    resolve = {"sql": "/c/sql"}.get
    words = resolve_paths(["sql=sql", {"name": "tone", "path": "sql"}], lambda path: resolve(path, path))
    assert words[0] == "sql=/c/sql"
    assert json.loads(words[1]) == {"name": "tone", "path": "/c/sql"}
    path = "runs/lr=1/sql"
    assert resolve_paths([f"sql={path}", "sql"], "/c/{}".format) == [f"sql=/c/{path}", "sql=/c/sql"]
    assert (adapter_paths([f"sql={path}"]), [adapter.name for adapter in named_adapters([f"sql={path}"], "model").named]) == (
        [path],
        ["sql"],
    )


@pytest.mark.parametrize(
    "config, words",
    [
        (a_config("reference", enable_lora=True, lora_modules=TWO), ""),
        (a_config("reference"), "this config has none: load them by `args:` under `engine:`"),
        (a_config("reference", enable_lora=True, lora_modules=TWO[:1]), "has sql alone"),
        (a_config("reference", {"lora-modules": TWO[1:]}, enable_lora=True, lora_modules=TWO), "has tone alone"),
        (a_config("mlx_lm"), "how this engine serves them is not known here"),
    ],
)
def test_requests_with_adapters_are_sent_where_all_arms_have_two(config, words):
    assert words in reason(config)
    assert bool(words) is bool(reason(config))


def test_adapters_may_be_those_of_every_process_of_a_stack():
    args = {"enable-lora": True, "lora-modules": TWO}
    one, other = (StackProcess(name=name, args=args, is_asked=name == "one") for name in ("one", "other"))
    assert not reason(replace(a_config("vllm"), stack=(one, other)))
    assert "has none" in reason(replace(a_config("vllm"), stack=(one, replace(other, args={}))))
    fewer = replace(other, args={**args, "lora-modules": TWO[:1]})
    assert "has sql alone" in reason(replace(a_config("vllm"), stack=(one, fewer)))


def test_a_scorer_would_have_to_serve_them_too():
    config = a_config("reference", enable_lora=True, lora_modules=TWO)
    assert "a `scorer:`" in reason(replace(config, scorer=config.engine))


def test_a_plan_s_requests_name_the_config_s_adapters():
    config = a_config("vllm", enable_lora=True, lora_modules=TWO)
    assert [adapter.name for adapter in shared_adapters(config, engine_of("vllm")).named] == ["sql", "tone"]
    assert {request.adapter for request in apply_config(MIXED, config, ()).requests} == {"", "sql", "tone"}
