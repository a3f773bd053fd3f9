"""llama.cpp: what its servers are asked, how its drafters are read, and which settings are refused before anything boots."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.attached import recognise
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.config.lint import lint
from pytest_specdec.config.load import load
from pytest_specdec.doctor.engine import listed_flags
from pytest_specdec.engines.attach import Attach
from pytest_specdec.engines.llama_cpp import LlamaCppDialect, drafters, gguf
from pytest_specdec.engines.protocol import ApiRequest, ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RequestError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import Draft, DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Request, Route

ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".llama-server"
built = pytest.mark.skipif(not (BUILT / "llama-server").exists(), reason="llama-server is not here: make llama-env")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def model_file(path: Path, *, architecture="qwen3", file_type=0, tokens=("<e>", "a", "b", "c", "d", "e", "f"), version=3) -> Path:
    """Write the header of a model file without weights, with keys of other types in between."""
    listed = struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens))
    numbers = struct.pack("<IIQ", 9, 5, 3) + struct.pack("<iii", 1, 2, 3)
    pairs = (
        *((text("general.architecture"), struct.pack("<I", 8) + text(architecture)), (text("a.list"), numbers)),
        *((text("a.flag"), struct.pack("<IB", 7, 1)), (text("general.file_type"), struct.pack("<II", 4, file_type))),
        *((text("a.width"), struct.pack("<Id", 12, 0.5)), (text("tokenizer.ggml.tokens"), listed)),
    )
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(key + value for key, value in pairs))
    return path


@pytest.fixture
def config(tmp_path):
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    model_file(tmp_path / "target.gguf")
    model_file(tmp_path / "draft.gguf")
    engine = EngineSettings(kind="llama_cpp", model="target.gguf", executable=str(program))

    def _config(variant=None, **args):
        variants = (VariantSettings(name="v", args=variant or {"spec-type": "ngram-simple"}),)
        return Config(name="one", path=tmp_path / "one.yaml", text="", engine=replace(engine, args=args), variants=variants)

    return _config


def test_requests_say_what_the_server_would_fill_in_and_ask_for_ids():
    request = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "A", "temperature": 0.0, "top_p": 0.5, "repetition_penalty": 1.2})
    sent = LlamaCppDialect().sent(request, stream=False)
    assert sent == {
        "prompt": "A",
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.2,
        "repeat_last_n": 64,
        "verbose": True,
        "return_tokens": True,
    }
    assert LlamaCppDialect().sent(request, stream=True)["stream_options"] == {"include_usage": True}


def test_ids_go_to_the_choice_that_they_belong_to():
    data = {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}], "__verbose": {"index": 1, "tokens": [7, 8]}}
    assert LlamaCppDialect().reply(data) == {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b", "token_ids": [7, 8]}]}
    assert LlamaCppDialect().reply({"choices": [{"index": 0}]}) == {"choices": [{"index": 0}]}


def test_a_chats_prompt_is_tokenized_behind_its_template():
    asked = []

    def ask(request):
        asked.append(request)
        return {"prompt": "<a>Hi"} if request.path == "/apply-template" else {"tokens": [1, 5]}

    chat = Request(id="a", route=Route.CHAT, body={"messages": [{"role": "user", "content": "Hi"}]})
    assert LlamaCppDialect().prompt_token_ids(chat, ask) == (1, 5)
    tokenize = ApiRequest(path="/tokenize", body={"content": "<a>Hi", "add_special": True, "parse_special": True})
    assert asked == [ApiRequest(path="/apply-template", body=chat.body), tokenize]
    given = Request(id="b", route=Route.COMPLETIONS, body={"prompt": [3, 4]})
    assert LlamaCppDialect().prompt_token_ids(given, ask) == (3, 4)
    assert LlamaCppDialect().prompt_token_ids(chat, lambda _: None) == ()


def test_the_version_is_the_build():
    assert LlamaCppDialect().version('{"build_info": "b1-0c1e570"}') == "b1-0c1e570"
    assert LlamaCppDialect().version("[]") == LlamaCppDialect().version("<html>") == ""


def test_counters_are_those_of_this_engine():
    page = "vllm:spec_decode_num_drafts_total 9\nllamacpp:spec_decode_num_drafts_total 6\nllamacpp:spec_decode_num_draft_tokens_total 18\n"
    page += 'llamacpp:spec_decode_num_accepted_tokens_total 4\nllamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1\n'
    assert LlamaCppDialect().counters(page) == SpecCounters(drafts=6, draft_tokens=18, accepted_tokens=4, accepted_per_position=(0, 1))


def listed(index, *tokens):
    top = [{"id": token, "logprob": logprob} for token, logprob in tokens]
    return {"index": index, "logprobs": {"content": [{"id": tokens[0][0], "top_logprobs": top}]}}


@pytest.mark.parametrize("timings, counted", [
    ({"predicted_n": 12, "draft_n": 15, "draft_n_accepted": 6}, SpecCounters(drafts=5, draft_tokens=15, accepted_tokens=6)),
    ({"predicted_n": 1, "draft_n": 3, "draft_n_accepted": 0}, SpecCounters(draft_tokens=3)),
    ({"predicted_n": 12}, SpecCounters()),
    ({"predicted_ms": 1.5}, None),
    (None, None),
])  # fmt: skip
def test_an_answer_says_what_was_drafted_for_it(timings, counted):
    assert LlamaCppDialect().counted({"timings": timings}) == counted


def test_prefixes_of_one_request_share_a_slot_and_requests_take_turns():
    dialect = LlamaCppDialect(slots=2)
    asked = [dialect.continuations([(1,), (1, 2)], 5).body for _ in range(3)]
    assert [body["id_slot"] for body in asked] == [0, 1, 0]
    assert (asked[0]["prompt"], asked[0]["max_tokens"], asked[0]["logprobs"]) == ([[1], [1, 2]], 1, 5)
    assert LlamaCppDialect().prefixes_per_request == 1
    assert "id_slot" not in LlamaCppDialect().continuations([(1,)], 5).body


def test_distributions_are_read_by_the_index_of_their_prefix():
    choices = [listed(1, (8, -0.2), (9, -1.8)), listed(0, (7, -0.1), (5, -2.5))]
    first, second = LlamaCppDialect(4).continued({"choices": choices}, (5, 6), 2)
    assert (first.token_id, first.logprob, first.top_ids) == (5, -2.5, (7, 5))
    assert (second.token_id, second.top_ids) == (6, (8, 9))
    assert math.isnan(second.logprob)


@pytest.mark.parametrize("choices", [[], [listed(0, (7, -0.1))], [listed(0, (7, -0.1)), listed(2, (7, -0.1))], "no"])
def test_a_prefix_without_a_distribution_is_an_error(choices):
    with pytest.raises(RequestError):
        LlamaCppDialect(4).continued({"choices": choices}, (5, 6), 2)


@pytest.mark.parametrize(
    "args,draft",
    [
        ({"ctx-size": 4096}, None),
        ({"spec-type": "none"}, None),
        ({"spec-type": "draft-simple", "md": "d.gguf"}, Draft(kind=DraftKind.MODEL, tokens=3, model="d.gguf")),
        ({"spec-type": "draft-eagle3", "spec-draft-model": "e.gguf", "spec-draft-n-max": 5}, Draft(kind=DraftKind.HEAD, tokens=5)),
        ({"spec-type": "draft-mtp"}, Draft(kind=DraftKind.HEAD, tokens=3)),
        (
            {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": 3, "spec-ngram-simple-size-m": 5},
            Draft(kind=DraftKind.UNKNOWN, tokens=5, ngram_min=3),
        ),
        ({"spec-type": "ngram-mod,ngram-map-k4v"}, Draft(kind=DraftKind.UNKNOWN, tokens=64, ngram_min=12)),
        ({"spec-type": "ngram-map-k4v"}, Draft(kind=DraftKind.UNKNOWN, tokens=48, ngram_min=12)),
        ({"spec-default": True}, Draft(kind=DraftKind.UNKNOWN, tokens=64, ngram_min=24)),
        ({"spec-type": ["draft-simple", "ngram-mod"], "spec-ngram-mod-n-max": "9"}, Draft(kind=DraftKind.UNKNOWN, tokens=9)),
    ],
)
def test_the_speculative_setting_says_how_a_variant_drafts(args, draft):
    assert engine_of("llama_cpp").draft(args) == draft


@pytest.mark.parametrize(
    "args,what,expected",
    [
        ({"draft-max": 5, "spec-type": "draft-simple"}, "no --draft-max any more", "spec-draft-n-max"),
        ({"spec-type": "ngram-simple", "spec-ngram-size-n": 3}, "no --spec-ngram-size-n any more", "spec-ngram-simple-size-n"),
        ({"md": "draft.gguf"}, "nothing drafts without spec-type", "spec-type: draft-simple"),
        ({"spec-type": "draft-simple"}, "needs a draft model", "spec-draft-model"),
        ({"spec-type": "ngram-mod,draft-eagle3"}, "draft-eagle3 needs a draft model", "spec-draft-model"),
        ({"spec-type": "draft-simple", "md": "gone.gguf"}, "the model is not there", "a GGUF file"),
        ({"spec-type": "draft-simple", "md": "one.yaml.gguf"}, "cannot be read", "a GGUF file of version 2 or 3"),
        ({"spec-type": "draft-eagle3", "md": "draft.gguf"}, "draft-eagle3 cannot draft with this model", "eagle3"),
        ({"spec-type": "draft-simple", "md": "other.gguf"}, "another vocabulary", "7 tokens, token 5 'e'"),
        ({"spec-type": "draft-simple", "md": "large.gguf"}, "another vocabulary", "7 tokens"),
    ],
)
def test_a_setting_that_never_drafts_is_refused_before_anything_boots(config, tmp_path, args, what, expected):
    (tmp_path / "one.yaml.gguf").write_text("no model")
    model_file(tmp_path / "other.gguf", tokens=("<e>", "a", "b", "c", "d", "E", "f"))
    model_file(tmp_path / "large.gguf", tokens=("<e>", "a", "b", "c", "d", "e", "f", *map(str, range(129))))
    with pytest.raises(EngineError) as raised:
        engine_of("llama_cpp").check(config(args))
    assert what in raised.value.what
    assert expected in raised.value.expected


def test_a_variable_that_makes_the_baseline_speculate_is_refused(config):
    given = config()
    engine = replace(given.engine, env={"LLAMA_ARG_SPEC_TYPE": "ngram-mod"})
    with pytest.raises(EngineError, match="in the baseline's environment"):
        engine_of("llama_cpp").check(replace(given, engine=engine))


def test_settings_that_draft_are_not_refused(config, tmp_path):
    model_file(tmp_path / "head.gguf", architecture="eagle3", tokens=("other",))
    model_file(tmp_path / "padded.gguf", tokens=("<e>", "a", "b", "c", "d", "e", "f", "padding"))
    for args in (
        {"spec-type": "draft-eagle3", "md": "head.gguf"},
        {"spec-type": "draft-simple", "md": "padded.gguf"},
        {"spec-default": True},
    ):
        engine_of("llama_cpp").check(config(args))


@pytest.mark.parametrize("broken", [b"", b"GGUF", b"GGML" + bytes(40), b"GGUF" + struct.pack("<IQQ", 9, 0, 0)])
def test_a_broken_model_file_is_one_error(tmp_path, broken):
    (tmp_path / "x.gguf").write_bytes(broken)
    with pytest.raises(EngineError, match="the model file cannot be read"):
        gguf.header(tmp_path / "x.gguf")


def test_a_header_says_architecture_precision_and_vocabulary(tmp_path):
    header = gguf.header(model_file(tmp_path / "x.gguf", file_type=1))
    assert (header.architecture, header.single_precision, header.tokens[1]) == ("qwen3", False, b"a")
    assert gguf.header(model_file(tmp_path / "y.gguf")).single_precision


def test_single_precision_is_that_of_weights_and_cache(config):
    engine = engine_of("llama_cpp")
    assert engine.single_precision(config(**{"ctk": "f32", "cache-type-v": "f32"}))
    assert not engine.single_precision(config())
    assert engine.vocabulary(config()) == 7


def test_the_command_has_long_flags_and_keeps_the_key_out_of_it(config, tmp_path):
    variant = {"spec-type": ["draft-simple", "ngram-mod"], "md": "draft.gguf"}
    asked = config(variant, np=4)
    setup = ServerSetup(model="target.gguf", port=8001, args={"np": 4, **variant}, api_key="k" * 8, speculative=True, secrets=Secrets())
    command = engine_of("llama_cpp").command(asked, setup)
    assert command.argv[1:] == (
        *("--model", str(tmp_path / "target.gguf"), "--host", "127.0.0.1", "--metrics", "--parallel", "4"),
        *("--spec-type", "draft-simple,ngram-mod", "--spec-draft-model", str(tmp_path / "draft.gguf"), "--port", "8001"),
    )
    assert command.env == {"LLAMA_API_KEY": "k" * 8}
    assert command.scrubbed == ("LLAMA_ARG_", "LLAMA_API_KEY")
    hub = engine_of("llama_cpp").command(asked, replace(setup, model="org/model:Q4_K_M"))
    assert hub.argv[1:3] == ("--hf-repo", "org/model:Q4_K_M")
    assert engine_of("llama_cpp").models("org/model:Q4_K_M", {}) == ("org/model",)


CONFIG = """
engine: {kind: llama_cpp, model: target.gguf, args: {%s}}
variants:
  v:
    args: {%s}
baseline:
  args: {%s}
"""


@pytest.mark.parametrize(
    "variant,baseline,found",
    [
        ("spec-type: 'draft-simple,ngram-mod'", "", []),
        ("spec-type: [draft-simple, ngram-mod]", "", []),
        ("spec-type: 'draft-simple,ngram-mud'", "", ["unknown drafting method"]),
        ("spec-type: ngram-mod, spec-draft-n-max: 0", "", ["0"]),
        ("spec-type: ngram-mod, spec-synth-len: 2.5", "", ["which changes the answers"]),
        ("spec-type: ngram-mod, spec-synth-rates: '1,1,1'", "", ["which changes the answers"]),
        ("spec-type: ngram-mod", "md: draft.gguf", ["a speculative setting in the baseline"]),
    ],
)
def test_the_pair_lint_knows_the_drafters(tmp_path, variant, baseline, found):
    path = tmp_path / "one.yaml"
    path.write_text(CONFIG % ("fit: 'off'", variant, baseline))
    problems = [problem for problem in lint(load(path), engine_of("llama_cpp").rules) if problem.refused]
    assert len(problems) == len(found)
    assert all(words in problem.found for words, problem in zip(found, problems, strict=True))


def test_what_a_draft_model_changes_behind_ones_back_is_told(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(CONFIG % ("", "spec-type: 'draft-simple,ngram-mod', md: d.gguf", ""))
    assert ["no fit" in problem.found for problem in lint(load(path), engine_of("llama_cpp").rules)] == [True]


def test_a_help_that_pads_short_names_and_begins_at_the_margin_is_read():
    help_text = (
        "----- common params -----\n\n-np,   --parallel N            number of slots --none\n--spec-draft-model, -md, --model-draft FNAME\n"
    )
    assert listed_flags(help_text) == {"-np", "--parallel", "--spec-draft-model", "-md", "--model-draft"}


@built
def test_the_drafters_are_those_that_the_program_lists():
    help_text = subprocess.run([BUILT / "llama-server", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    methods = re.search(r"^--spec-type (\S+)", help_text, re.MULTILINE)[1]
    assert set(methods.split(",")) == engine_of("llama_cpp").rules.drafting.methods


@built
@pytest.mark.nightly  # in `make engines` too
def test_the_doctor_reads_version_and_flags_of_the_program():
    argv = [sys.executable, "-m", "pytest_specdec", "doctor", str(ROOT / "suites" / "configs" / "llama-cpp.yaml"), "--depth", "smoke"]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert "llama_cpp 0.5.0-dev" in ran.stdout, ran.stdout
    assert re.search(r"ok +flags +all \d+ known to the engine", ran.stdout), ran.stdout


@built
def test_a_running_server_is_recognised(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(RUN.format(built=BUILT))
    given, engine = load(path), engine_of("llama_cpp")
    setup = ServerSetup(model=given.engine.model, port=ports.free(), args=given.engine.args, folder=tmp_path, secrets=Secrets())
    command = engine.command(given, setup)
    recipe = ServerRecipe(
        dialect=engine.dialect(given, setup), setup=setup, command=command, draft_tokens=0, log=tmp_path / "log", boot_s=60.0, stop_s=5.0
    )
    with ArmServer(recipe, heartbeat=lambda: None):
        assert recognise(Attach(), given, replace(setup, attached=setup.url)) is engine


def test_none_among_the_drafters_is_no_drafter():
    assert drafters.drafters({"spec-type": "none,draft-simple"}) == ("draft-simple",)


RUN = """
engine:
  kind: llama_cpp
  executable: {built}/llama-server
  model: {built}/target.gguf
  args:
    {{ctx-size: 32768, parallel: 32, threads: 1, gpu-layers: 0, flash-attn: off, cache-type-k: f32, cache-type-v: f32, fit: off, ui: false}}
variants:
  draft-k3:
    args: {{spec-type: draft-simple, spec-draft-model: {built}/draft.gguf}}
  synthetic:
    args: {{spec-type: draft-simple, spec-draft-model: {built}/draft.gguf}}
    env: {{LLAMA_ARG_SPEC_SYNTH_RATES: "1,0.9,0.8"}}
gates: {{speedup: {{at_least: 0.1}}}}
"""


@pytest.mark.nightly
@built
def test_a_pair_is_judged_and_the_bug_of_its_logprobs_found(tmp_path):
    """Variant synthetic accepts drafts at random, as the engine does for benchmarks: greedy answers are wrong there.

    Penalties are judged over the engine's own window, which its baseline has to follow.
    """
    (tmp_path / "pair.yaml").write_text(RUN.format(built=BUILT))
    where = [str(ROOT / "suites" / family) for family in ("greedy", "logprobs", "parameters")]
    options = ("--specdec-config", str(tmp_path / "pair.yaml"), "--specdec-depth", "smoke", "--specdec-run-dir", str(tmp_path / "run"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *where, *options, "-p", "no:cacheprovider", "-q"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout[-3000:]
    outcomes = {}
    for judgement in json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]:
        outcomes.setdefault((judgement["pair"], judgement["verdict"]["family"]), set()).add(judgement["verdict"]["outcome"])
    assert outcomes["draft-k3", "greedy"] == {"pass"}, ran.stdout[-3000:]
    assert outcomes["draft-k3", "logprobs"] == {"fail"}, "an echo asks for those of the answer too"
    assert outcomes["draft-k3", "parameters"] == {"pass", "inconclusive"}, "two parameters bind in the five requests of smoke depth"
    assert outcomes["synthetic", "greedy"] == {"fail"}
    assert "fail" in outcomes["synthetic", "parameters"]
