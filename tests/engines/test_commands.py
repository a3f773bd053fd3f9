"""Commands, drafts and checks of the engines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.engines import checkpoint, locate
from pytest_specdec.engines import vllm as speculation
from pytest_specdec.engines.arguments import flags, merge
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.vllm.speculative_setting import with_resolved_model
from pytest_specdec.errors import EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling


@pytest.fixture
def program(tmp_path):
    """An executable file, and around it a venv that says which vLLM it has."""

    def _program(name="vllm", version="0.32.0+cpu"):
        path = tmp_path / "venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
        return path

    return _program


@pytest.fixture
def config(tmp_path):
    draft = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    return Config(
        name="one",
        path=tmp_path / "one.yaml",
        text="",
        engine=EngineSettings(kind="vllm", model="m"),
        variants=(
            VariantSettings(name="draft-k3", args={"speculative-config": draft}),
            VariantSettings(name="ngram-k3", args={"speculative-config": ngram}),
        ),
    )


@pytest.fixture
def engine_config(config):
    def _config(kind, **fields):
        return replace(config, engine=EngineSettings(kind=kind, **{"model": "m", **fields}))

    return _config


def setup(**fields):
    return ServerSetup(**{"model": "m", "port": 8001, "secrets": Secrets(), **fields})


@pytest.mark.parametrize(
    "args,argv",
    [
        ({"max-num-seqs": 4, "seed": 0.5}, ["--max-num-seqs", "4", "--seed", "0.5"]),
        ({"enforce-eager": True, "async-scheduling": False}, ["--enforce-eager", "--no-async-scheduling"]),
        ({"speculative-config": {"method": "ngram"}}, ["--speculative-config", '{"method":"ngram"}']),
        ({"served-model-name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ({"ladder": [[1, 2], [3, 4]]}, ["--ladder", "[[1,2],[3,4]]"]),
        ({"--dashed": "as it is"}, ["--dashed", "as it is"]),
    ],
)
def test_arguments_become_flags(args, argv):
    assert flags(args) == argv


def test_null_takes_an_argument_out():
    assert merge({"a": 1, "b": 2}, {"a": None, "c": 3}) == {"b": 2, "c": 3}


@pytest.mark.parametrize(
    "found,draft",
    [
        (
            {"method": "draft_model", "model": "d", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"},
            Draft(kind=DraftKind.MODEL, tokens=3, model="d", sampling=DraftSampling.PROBABILISTIC),
        ),
        ({"model": "org/small", "num-speculative-tokens": 2}, Draft(kind=DraftKind.MODEL, tokens=2, model="org/small")),
        ({"model": "org/Qwen3-EAGLE3", "num_speculative_tokens": 2}, Draft(kind=DraftKind.HEAD, tokens=2)),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, Draft(kind=DraftKind.HEAD, tokens=1)),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            Draft(kind=DraftKind.NGRAM, tokens=4, ngram_min=2, ngram_max=5),
        ),
        ({"method": "suffix", "num_speculative_tokens": 8}, Draft(kind=DraftKind.UNKNOWN, tokens=8)),
    ],
)
def test_the_speculative_setting_says_how_a_variant_drafts(found, draft):
    assert speculation.draft({"speculative-config": found}) == draft
    assert speculation.draft({"speculative_config": json.dumps(found), "max-num-seqs": 3}) == draft


OLD_MODEL = {"speculative-model": "org/small", "num-speculative-tokens": 5}
OLD_NGRAM = {"speculative_model": "[ngram]", "num-speculative-tokens": "4", "ngram-prompt-lookup-max": 3, "ngram-prompt-lookup-min": 1}


@pytest.mark.parametrize(
    "args, draft",
    [
        (OLD_MODEL, Draft(kind=DraftKind.MODEL, tokens=5, model="org/small", sampling=DraftSampling.PROBABILISTIC)),
        (OLD_NGRAM, Draft(kind=DraftKind.NGRAM, tokens=4, ngram_min=1, ngram_max=3)),
        ({"speculative-model": "org/llama-accelerator-eagle", "num-speculative-tokens": 2}, Draft(kind=DraftKind.HEAD, tokens=2)),
        (
            {**OLD_NGRAM, "speculative-disable-by-batch-size": 4},
            Draft(kind=DraftKind.NGRAM, tokens=4, ngram_min=1, ngram_max=3, most_requests=3),
        ),
        ({"speculative-disable-by-batch-size": 8}, None),
    ],
)
def test_the_flags_before_0_8_say_how_a_variant_drafts(args, draft):
    assert speculation.draft({**args, "max-num-seqs": 3}) == draft


def test_a_server_before_0_8_gets_its_flags_as_it_takes_them(engine_config, program, tmp_path):
    (tmp_path / "small").mkdir()
    config = engine_config("vllm", executable=str(program(version="0.6.3.post1")))
    args = {"enable-chunked-prefill": False, "enforce-eager": True, **OLD_MODEL, "speculative-model": "small"}
    argv = engine_of("vllm").command(config, setup(speculative=True, args=args)).argv
    assert argv[5:] == (
        *("--enable-chunked-prefill", "false", "--enforce-eager", "--speculative-model", str(tmp_path / "small")),
        *("--num-speculative-tokens", "5", "--port", "8001", "--return-tokens-as-token-ids"),
        *("--disable-logprobs-during-spec-decoding", "false"),
    )
    stated = {**args, "disable-logprobs-during-spec-decoding": True}
    assert engine_of("vllm").command(config, setup(speculative=True, args=stated)).argv.count("true") == 1
    assert "--disable-logprobs-during-spec-decoding" not in engine_of("vllm").command(config, setup()).argv


NEW_NGRAM = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}


def method(name):
    return {"speculative-config": {"method": name, "num_speculative_tokens": 3, "model": "org/head"}}


@pytest.mark.parametrize(
    "version, args, what, remedy",
    [
        ("0.6.3.post1", NEW_NGRAM, "vLLM 0.6.3.post1 does not take speculative-config", "write speculative-model"),
        ("0.7.3", {"spec-method": "ngram", "spec-tokens": 3}, "vLLM 0.7.3 does not take spec-method", "write speculative-model"),
        (
            *("0.9.1", OLD_MODEL, "vLLM 0.9.1 does not take speculative-model"),
            "write speculative-config: {model: org/small, num_speculative_tokens: 5}",
        ),
        ("0.8.3", OLD_NGRAM, "vLLM 0.8.3 does not take speculative_model", "method: ngram"),
        ("0.33.0", method("medusa"), "vLLM 0.33.0 has no drafting method medusa", "take the variant out"),
        ("0.34", method("mlp_speculator"), "vLLM 0.34 has no drafting method mlp_speculator", "take the variant out"),
        ("0.10.2", method("suffix"), "vLLM 0.10.2 has no drafting method suffix", "take the variant out"),
        ("0.22.1+cpu", method("dflash"), r"vLLM 0.22.1\+cpu has no drafting method dflash", "take the variant out"),
    ],
)
def test_what_a_release_does_not_take_is_said_before_anything_boots(version, args, what, remedy, *, config, engine_config, program):
    variants = (config.variants[1], VariantSettings(name="late", args=args)) if "speculative-config" in args else ()
    variants = variants or (VariantSettings(name="late", args=args),)
    if version.startswith(("0.6", "0.7")):
        variants = variants[-1:]
    wrong = replace(engine_config("vllm", executable=str(program(version=version))), variants=variants)
    with pytest.raises(EngineError, match=what) as caught:
        engine_of("vllm").check(wrong)
    assert caught.value.where.startswith("variants.late.args")
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "version, args",
    [
        ("0.6.3", OLD_MODEL),
        ("0.8.1", OLD_MODEL),
        ("0.8.1", NEW_NGRAM),
        ("0.32.0", method("medusa")),
        ("0.26.0", method("dflash")),
        ("0.11.0", method("suffix")),
        ("nightly", OLD_MODEL),
        ("nightly", method("medusa")),
    ],
)
def test_what_a_release_may_take_passes(version, args, *, engine_config, program):
    variants = (VariantSettings(name="v", args=args),)
    engine_of("vllm").check(replace(engine_config("vllm", executable=str(program(version=version))), variants=variants))


def test_short_flags_are_part_of_the_setting():
    assert speculation.draft({"spec-method": "ngram", "spec-tokens": 2}) == Draft(kind=DraftKind.NGRAM, tokens=2)
    assert speculation.draft({"max-num-seqs": 3}) is None


@pytest.mark.parametrize("flag", ["speculative-config", "speculative_config", "sc"])
def test_a_flag_for_each_key_is_the_setting_too_and_becomes_one_flag(flag):
    args = {f"{flag}.method": "draft_model", f"{flag}.model": "d", f"{flag}.num_speculative_tokens": 3, "max-num-seqs": 3}
    assert speculation.draft(args) == Draft(kind=DraftKind.MODEL, tokens=3, model="d")
    resolved = with_resolved_model(args, lambda name: f"/there/{name}")
    setting = {"method": "draft_model", "model": "/there/d", "num_speculative_tokens": 3}
    assert resolved == {"max-num-seqs": 3, "speculative-config": setting}


def test_vllm_serves_the_arguments_and_adds_its_metrics_when_it_speculates(engine_config, program):
    path = program()
    config = engine_config("vllm", venv=str(path.parent.parent))
    vllm = engine_of("vllm")
    plain = vllm.command(config, setup(args={"dtype": "float32"}, api_key="k" * 8))
    assert plain.argv == (str(path), "serve", "m", "--host", "127.0.0.1", "--dtype", "float32", "--port", "8001")
    assert plain.env["VLLM_API_KEY"] == "k" * 8
    speculating = vllm.command(config, setup(speculative=True)).argv
    assert speculating[-2:] == ("--per-request-spec-decode-metrics", "detailed")
    silenced = vllm.command(config, setup(speculative=True, args={"per-request-spec-decode-metrics": "none"})).argv
    assert "detailed" not in silenced
    for name, left_out in (("per-request-spec-decode-metrics", None), ("per_request_spec_decode_metrics", False)):
        argv = vllm.command(config, setup(speculative=True, args={name: left_out})).argv
        assert not any("spec-decode-metrics" in word for word in argv)


@pytest.mark.parametrize("version,known", [("0.29.1", False), ("0.30.0", True)])
def test_an_older_vllm_gets_no_flag_that_it_refuses(engine_config, program, version, known):
    config = engine_config("vllm", executable=str(program(version=version)))
    assert ("detailed" in engine_of("vllm").command(config, setup(speculative=True)).argv) is known


def test_a_model_beside_the_config_is_served_by_its_path(engine_config, program, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"text_config": {"vocab_size": 77}}')
    config = engine_config("vllm", executable=str(program()))
    assert engine_of("vllm").command(config, setup()).argv[2] == str(tmp_path / "m")
    assert engine_of("vllm").vocabulary(config) == 77
    assert checkpoint.vocabulary(tmp_path) == 0


def test_an_image_is_run_with_its_model_mounted(engine_config, tmp_path):
    (tmp_path / "m").mkdir()
    config = engine_config("vllm", image="vllm/vllm-openai:v0.32.0")
    argv = engine_of("vllm").command(config, setup(speculative=True)).argv
    assert argv[:2] == ("docker", "run")
    assert f"{tmp_path}/m:{tmp_path}/m:ro" in argv
    assert argv[-1] == "detailed"
    old = engine_config("vllm", image="vllm/vllm-openai:v0.20.0")
    assert "detailed" not in engine_of("vllm").command(old, setup(speculative=True)).argv


@pytest.mark.parametrize("fields", [{}, {"executable": "/no/such/vllm"}, {"venv": "/no/such/venv"}, {"image": "vllm:latest"}])
def test_a_vllm_that_is_not_there_says_how_to_get_it(engine_config, fields, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="not installed") as caught:
        engine_of("vllm").check(engine_config("vllm", **fields))
    assert "install" in caught.value.remedy


def test_a_vllm_that_is_there_passes(engine_config, program):
    engine_of("vllm").check(engine_config("vllm", executable=str(program())))


@pytest.mark.parametrize("model", ["../nowhere/target-48", "/no/such/model"])
def test_a_model_that_is_a_path_is_looked_for_before_anything_boots(engine_config, program, model, tmp_path):
    there = str(program())
    with pytest.raises(EngineError, match="the model is not there") as caught:
        engine_of("vllm").check(engine_config("vllm", executable=there, model=model))
    assert caught.value.found == f"no folder {model}"
    engine_of("vllm").check(engine_config("vllm", executable=there, model=str(tmp_path)))
    engine_of("vllm").check(engine_config("vllm", executable=there, model="Qwen/Qwen3-8B"))


@pytest.mark.parametrize("text,numbers", [("0.32.0+cpu", (0, 32, 0)), ("v0.9", (0, 9)), ("nightly", ())])
def test_versions_are_their_leading_numbers(text, numbers):
    assert locate.numbers(text) == numbers


@pytest.mark.parametrize("packages", ["python3.12/site-packages", "python3.12/dist-packages", "python3/dist-packages"])
def test_the_version_of_a_program_is_read_beside_it_as_debian_names_the_folder_too(tmp_path, packages):
    (tmp_path / "lib" / packages / "vllm-0.26.0.dist-info").mkdir(parents=True)
    assert locate.release(str(tmp_path / "bin" / "vllm"), "vllm") == "0.26.0"


@pytest.mark.parametrize("image, release", [
    ("vllm/vllm-openai:v0.32.0", "v0.32.0"),
    ("vllm/vllm-openai:v0.32.0@sha256:0a1b", "v0.32.0"),
    ("vllm/vllm-openai@sha256:9a1b", ""),
    ("localhost:5000/vllm", ""),
    ("localhost:5000/vllm:0.31", "0.31"),
    ("nvcr.io/nvidia/vllm:25.10-py3", ""),
    ("registry.example/sglang:20251101", ""),
    ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6", "1.2.0rc6"),
    ("vllm/vllm-openai:nightly", "nightly"),
])  # fmt: skip
def test_the_release_of_an_image_is_its_tag_and_neither_digest_nor_port(image, release):
    assert locate.image_release(image) == release


def test_the_version_beside_a_python_that_links_to_another_is_its_own(tmp_path):
    for name, version in (("venv", "0.5.20"), ("base", "0.4.0")):
        (tmp_path / name / "lib/python3.12/site-packages" / f"sglang-{version}.dist-info").mkdir(parents=True)
        (tmp_path / name / "bin").mkdir()
    (tmp_path / "base/bin/python").touch()
    (tmp_path / "venv/bin/python").symlink_to(tmp_path / "base/bin/python")
    assert locate.release(str(tmp_path / "venv/bin/python"), "sglang") == "0.5.20"


def test_the_version_of_a_program_without_an_environment_is_unknown(tmp_path):
    assert locate.release(str(tmp_path / "bin" / "vllm"), "vllm") == ""


SPECULATIVE = {"speculative-config": {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}}


def test_the_reference_engine_serves_checkpoints_that_it_ships_and_those_beside_the_config(engine_config, tmp_path):
    reference = engine_of("reference")
    config = engine_config("reference", model="target")
    argv = reference.command(config, setup(model="target", speculative=True, args={**SPECULATIVE, "seed": 1})).argv
    assert argv[:3] == (sys.executable, "-m", "specdec_reference")
    assert argv[3].endswith("reference/checkpoints/target")
    assert argv[-2:] == ("--per-request-spec-decode-metrics", "detailed")
    setting = json.loads(argv[argv.index("--speculative-config") + 1])
    assert setting["model"].endswith("reference/checkpoints/draft")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"vocab_size": 5}')
    mine = engine_config("reference", model="mine")
    assert reference.command(mine, setup(model="mine")).argv[3] == str(tmp_path / "mine")
    assert reference.vocabulary(mine) == 5


def test_a_missing_checkpoint_is_found_out_before_anything_boots(engine_config, config):
    reference = engine_of("reference")
    with pytest.raises(EngineError, match="no checkpoint targt; did you mean target"):
        reference.check(engine_config("reference", model="targt"))
    with pytest.raises(EngineError, match="no checkpoint small") as caught:
        reference.check(engine_config("reference", model="target"))
    assert caught.value.where == "variants.draft-k3.args.speculative-config.model"
    shipped = replace(config.variants[0], args=SPECULATIVE)
    reference.check(replace(engine_config("reference", model="target"), variants=(shipped, config.variants[1])))


def test_the_reference_engine_says_what_it_needs(engine_config, monkeypatch):
    monkeypatch.setattr("pytest_specdec.engines.reference.find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(EngineError, match="no uvicorn") as caught:
        engine_of("reference").check(engine_config("reference", model="target"))
    assert caught.value.remedy == "pip install 'pytest-specdec[reference]'"


def test_the_reference_engine_runs_in_no_container(engine_config):
    with pytest.raises(EngineError, match="no container"):
        engine_of("reference").check(engine_config("reference", model="target", image="x"))


def test_variants_without_a_draft_model_need_no_checkpoint(engine_config, config):
    engine_of("reference").check(replace(engine_config("reference", model="target"), variants=config.variants[1:]))
    setting = {"method": "ngram", "num_speculative_tokens": 3}
    argv = engine_of("reference").command(engine_config("reference"), setup(model="target", args={"speculative-config": setting})).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == setting


def checkpoint_of(folder, vocabulary):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocabulary}))
    return str(folder)


@pytest.mark.parametrize("kind", ["vllm", "reference"])
def test_a_draft_model_of_another_vocabulary_is_found_out_before_anything_boots(engine_config, program, tmp_path, kind):
    target, other = checkpoint_of(tmp_path / "target", 32_000), checkpoint_of(tmp_path / "other", 32_064)
    fields = {"executable": str(program())} if kind == "vllm" else {}
    setting = {"method": "draft_model", "model": other, "num_speculative_tokens": 3}
    variants = (VariantSettings(name="d", args={"speculative-config": setting}),)
    config = replace(engine_config(kind, model=target, **fields), variants=variants)
    with pytest.raises(EngineError, match="another vocabulary") as caught:
        engine_of(kind).check(config)
    assert caught.value.where == "variants.d.args.speculative-config.model"
    assert (caught.value.found.split()[1], caught.value.expected.split()[1].rstrip(",")) == ("32,064", "32,000")


@pytest.mark.parametrize("bridged, refused", [(True, False), (False, True)])
def test_an_engine_that_is_told_to_bridge_two_vocabularies_may_have_two(engine_config, program, tmp_path, bridged, refused):
    target, other = checkpoint_of(tmp_path / "target", 32_000), checkpoint_of(tmp_path / "other", 32_064)
    setting = {"method": "draft_model", "model": other, "num_speculative_tokens": 3, "use_heterogeneous_vocab": bridged}
    variants = (VariantSettings(name="d", args={"speculative-config": setting}),)
    config = replace(engine_config("vllm", model=target, executable=str(program())), variants=variants)
    if refused:
        with pytest.raises(EngineError, match="another vocabulary"):
            engine_of("vllm").check(config)
    else:
        engine_of("vllm").check(config)


def test_a_speculative_setting_that_is_no_json_is_an_error_and_no_traceback():
    with pytest.raises(EngineError, match="the speculative setting cannot be read"):
        speculation.draft({"speculative-config": "{method: x"})
