"""TensorRT-LLM: the command and its file of options, the rules of its lint, and the dialect, without a server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.config.lint import lint
from pytest_specdec.config.load import load
from pytest_specdec.engines.protocol import CHAT_COMPLETIONS, COMPLETIONS, ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.tensorrt_llm import TensorRtLlmDialect, draft, options
from pytest_specdec.errors import EngineError, RequestError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import Draft, DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Request, Route

TARGET = Path(__file__).parents[2] / "specdec_reference" / "checkpoints" / "target"
ENGINE = engine_of("tensorrt_llm")
EAGLE = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model": "nvidia/gpt-oss-120b-Eagle3"}
OPTIONS = {"disable_overlap_scheduler": True, "kv_cache_config": {"enable_block_reuse": False}}


@pytest.fixture
def config(tmp_path):
    """A config whose program lies in an environment of a given release."""

    def _config(release="1.3.0", *, variant=EAGLE, **fields):
        program = tmp_path / release / "bin" / "trtllm-serve"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        (tmp_path / release / "lib" / "python3.12" / "site-packages" / f"tensorrt_llm-{release}.dist-info").mkdir(
            parents=True, exist_ok=True
        )
        engine = EngineSettings(**{"kind": "tensorrt_llm", "model": "openai/gpt-oss-120b", "executable": str(program), **fields})
        variants = (VariantSettings(name="v", args={"speculative_config": variant}),)
        return Config(name="c", path=tmp_path / "c.yaml", text="", engine=engine, variants=variants)

    return _config


def setup(tmp_path, **fields):
    return ServerSetup(**{"model": "openai/gpt-oss-120b", "port": 8001, "folder": tmp_path, "secrets": Secrets(), **fields})


def options_in(command):
    (text,) = command.files.values()
    return yaml.safe_load(text)


def test_the_options_go_into_a_file_and_the_rest_onto_the_command_line(config, tmp_path):
    args = {"tp-size": 1, "trust_remote_code": True, "enable_chunked_prefill": False, "extra_llm_api_options": OPTIONS}
    command = ENGINE.command(config(), setup(tmp_path, args=args))
    (file,) = command.files
    assert Path(file).parent == tmp_path
    flags = ("--host", "127.0.0.1", "--tp_size", "1", "--trust_remote_code", "--port", "8001", "--extra_llm_api_options", file)
    assert command.argv[1:] == ("openai/gpt-oss-120b", *flags)
    assert options_in(command) == {**OPTIONS, "enable_iter_perf_stats": True, "iter_stats_max_iterations": 1_000_000}


def test_a_mapping_is_json_and_a_list_a_flag_for_each_item():
    args = {"media_io_kwargs": {"video": {"num_frames": 10}}, "set": ["a=1", "b=2"], "trust-remote-code": True, "off": False}
    assert options.command_line(args) == [
        *("--media_io_kwargs", '{"video": {"num_frames": 10}}', "--set", "a=1", "--set", "b=2", "--trust_remote_code")
    ]


def test_a_backend_that_counts_unasked_is_not_asked(config, tmp_path):
    assert "enable_iter_perf_stats" not in options_in(ENGINE.command(config(), setup(tmp_path, args={"backend": "tensorrt"})))


@pytest.mark.parametrize(
    "release,name", [("1.0.0", "speculative_model_dir"), ("1.1.0rc5", "speculative_model_dir"), ("1.2.1", "speculative_model")]
)
def test_the_drafter_goes_by_the_name_that_the_release_knows(config, tmp_path, release, name):
    command = ENGINE.command(config(release), setup(tmp_path, args={"speculative_config": EAGLE}, speculative=True))
    setting = options_in(command)["speculative_config"]
    assert setting == {"decoding_type": "Eagle", "max_draft_len": 3, name: "nvidia/gpt-oss-120b-Eagle3"}


def test_a_drafter_beside_the_config_is_loaded_by_its_path(config, tmp_path):
    (tmp_path / "head").mkdir()
    command = ENGINE.command(config(), setup(tmp_path, args={"speculative_config": {**EAGLE, "speculative_model": "head"}}))
    assert options_in(command)["speculative_config"]["speculative_model"] == str(tmp_path / "head")


def test_a_container_gets_the_folder_of_its_options(config, tmp_path):
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6"
    command = ENGINE.command(config(executable=None, image=image), setup(tmp_path, args={"speculative_config": EAGLE}))
    assert f"{tmp_path}:{tmp_path}:ro" in command.argv
    assert command.argv[command.argv.index(image) + 1 :][:2] == ("trtllm-serve", "openai/gpt-oss-120b")
    assert Path(command.argv[-1]).parent == tmp_path
    assert command.stop


def test_a_secret_is_not_written_into_the_file(config, tmp_path):
    secrets = Secrets.of({}, {}, also=("hunter2hunter2",))
    args = {"extra_llm_api_options": {"otlp_traces_endpoint": "http://u:hunter2hunter2@h"}}
    with pytest.raises(EngineError, match="hold a secret"):
        ENGINE.command(config(), setup(tmp_path, args=args, secrets=secrets))


@pytest.mark.parametrize(
    "args,what",
    [
        ({"extra_llm_api_options": "low_latency.yaml"}, "cannot be read"),
        ({"extra_llm_api_options": {"speculative_config": EAGLE}}, "stands among the options that both arms have"),
        ({"config": "low_latency.yaml"}, "written by us"),
        ({"pp_size": 2}, "pipeline parallelism"),
    ],
)
def test_arguments_that_end_every_boot_are_refused_before_one(config, args, what):
    with pytest.raises(EngineError, match=what):
        ENGINE.check(config(args=args))


def test_a_server_that_is_not_there_says_how_to_get_it(config):
    with pytest.raises(EngineError, match="not installed"):
        ENGINE.check(config(executable="/no/such/trtllm-serve"))
    ENGINE.check(config())


@pytest.mark.parametrize(
    "setting,expected",
    [
        (EAGLE, Draft(kind=DraftKind.HEAD, tokens=3)),
        ({"decoding_type": "MTP", "num_nextn_predict_layers": 2}, Draft(kind=DraftKind.HEAD, tokens=2)),
        (
            {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "d"},
            Draft(kind=DraftKind.MODEL, tokens=4, model="d"),
        ),
        ({"decoding_type": "NGram", "max_draft_len": 3}, Draft(kind=DraftKind.UNKNOWN, tokens=3)),
        (
            {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 4, "is_public_pool": False},
            Draft(kind=DraftKind.NGRAM, tokens=3, ngram_min=1, ngram_max=4),
        ),
        ({"decoding_type": "SA", "max_draft_len": 3}, Draft(kind=DraftKind.UNKNOWN, tokens=3)),
        ({"decoding_type": "SA", "max_draft_len": 3, "max_concurrency": 4}, Draft(kind=DraftKind.UNKNOWN, tokens=3, most_requests=4)),
    ],
)
def test_the_setting_is_read_as_a_draft(setting, expected):
    assert draft({"speculative-config": setting}) == expected
    assert draft({}) is None


def test_a_server_takes_its_share_of_what_is_free_and_may_say_so(config):
    unsaid, said = (
        ENGINE.footprint(config(), accelerated=True),
        ENGINE.footprint(
            config(args={"tp_size": 2, "extra_llm_api_options": {"kv_cache_config": {"free_gpu_memory_fraction": 0.4}}}), accelerated=True
        ),
    )
    assert (unsaid.device_share, unsaid.share_stated, unsaid.devices) == (0.9, False, 1)
    assert (said.device_share, said.share_stated, said.devices) == (0.4, True, 2)
    assert "race" in said.options


PAIR = """
engine:
  kind: tensorrt_llm
  model: m
  args: {{extra_llm_api_options: {options}}}
variants:
  v: {{args: {{speculative_config: {setting}}}}}
"""


@pytest.mark.parametrize(
    "options,setting,found",
    [
        ("{disable_overlap_scheduler: true}", "{decoding_type: Eagle, max_draft_len: 3, allow_advanced_sampling: true}", []),
        (
            "{disable_overlap_scheduler: true}",
            "{decoding_type: Eagle, max_draft_len: 3}",
            ["no speculative-config.allow-advanced-sampling"],
        ),
        ("{}", "{decoding_type: DraftTarget, max_draft_len: 3}", ["no extra-llm-api-options.disable-overlap-scheduler"]),
        ("{disable_overlap_scheduler: true}", "{decoding_type: DraftTarget}", ["no max_draft_len"]),
        ("{disable_overlap_scheduler: true}", "{decoding_type: DraftTarget, max_draft_len: 0}", ["0"]),
        (
            "{disable_overlap_scheduler: true}",
            "{decoding_type: DraftTargte, max_draft_len: 3}",
            ['"DraftTargte", an unknown drafting method'],
        ),
        ("{disable_overlap_scheduler: true}", "{decoding_type: NGram, max_draft_len: 3}", ["no speculative-config.is-public-pool"]),
        (
            "{disable_overlap_scheduler: true}",
            "{decoding_type: MTP, max_draft_len: 3, allow_advanced_sampling: true, use_relaxed_acceptance_for_thinking: true}",
            ["true, which changes the answers"],
        ),
        (
            "{disable_overlap_scheduler: true}",
            "{decoding_type: DraftTarget, max_draft_len: 3, acceptance_window: 9, acceptance_length_threshold: 1.5}",
            ["1.5, which changes the answers"],
        ),
        ("fast.yaml", "{decoding_type: DraftTarget, max_draft_len: 3}", ["a string that holds no JSON mapping"]),
    ],
)
def test_the_pair_lint_knows_the_settings(tmp_path, options, setting, found):
    path = tmp_path / "c.yaml"
    path.write_text(PAIR.format(options=options, setting=setting))
    problems = lint(load(path), ENGINE.rules)
    assert [problem.found.partition(":")[0] for problem in problems] == found


# The dialect, with the tokenizer of the checkpoint that ships.


@pytest.fixture
def dialect():
    return TensorRtLlmDialect(str(TARGET), {}, completions_list_tokens=True)


@pytest.fixture
def textual():
    """The dialect where the checkpoint's tokenizer is not on this machine."""
    return TensorRtLlmDialect("nobody/nothing", {}, completions_list_tokens=True)


def chat(**body):
    return Request(id="c", route=Route.CHAT, body={"messages": [{"role": "user", "content": "Say hello."}], **body})


def completion(**body):
    return Request(id="p", route=Route.COMPLETIONS, body={"prompt": "Once upon a time", **body})


def test_a_conversation_is_sent_as_the_ids_that_the_template_makes_of_it(dialect):
    request = chat(max_completion_tokens=9, seed=1, logprobs=True, top_logprobs=5)
    body = dialect.sent(request, stream=False)
    assert dialect.path(request) == COMPLETIONS
    assert dialect.prompt_token_ids(request, lambda _: None) == tuple(body["prompt"])
    rest = {name: value for name, value in body.items() if name != "prompt"}
    assert rest == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 9, "seed": 1, "logprobs": 5, "detokenize": False}
    tokenizer = dialect._tokenizer._tokenizer
    assert tokenizer.decode(body["prompt"], skip_special_tokens=False) == "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"


def test_a_conversation_under_an_adapter_is_sent_as_ids_too(dialect):
    adapter = {"lora_name": "sql", "lora_int_id": 0, "lora_path": "/sql"}
    sent = dialect.sent(chat(lora_request=adapter), stream=False)
    assert sent["lora_request"] == adapter
    assert sent["prompt"]


@pytest.mark.parametrize("field", [{"tools": [{"type": "function"}]}, {"reasoning_effort": "low"}, {"no_such_field": 1}])
def test_a_conversation_that_asks_for_what_only_chats_have_stays_one(dialect, field):
    request = chat(**field)
    assert dialect.path(request) == CHAT_COMPLETIONS
    assert dialect.sent(request, stream=False) == {**request.body, "temperature": 1.0, "top_p": 1.0, "top_k": 0}


def test_without_a_tokenizer_requests_are_texts_and_nothing_is_scored(textual):
    assert textual.path(chat()) == CHAT_COMPLETIONS
    assert "detokenize" not in textual.sent(completion(), stream=False)
    assert textual.prompt_token_ids(completion(), lambda _: None) == ()
    assert textual.text([1, 2]) == ""
    assert textual.continuations([[1]], 5) is None


def test_streams_ask_for_usage_and_other_requests_must_not(dialect):
    assert dialect.sent(completion(), stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in dialect.sent(completion(), stream=False)


def test_a_top_k_that_is_off_is_0_and_a_log_probability_alone_1(dialect):
    body = dialect.sent(completion(top_k=-1, logprobs=0, temperature=0.0), stream=False)
    assert (body["top_k"], body["logprobs"], body["temperature"]) == (0, 1, 0.0)


@pytest.mark.parametrize("request_", [chat(logprobs=False), chat(logprobs=None), completion(logprobs=False), completion(logprobs=None)])
def test_a_request_without_log_probabilities_asks_for_none(dialect, request_):
    """Before, False was taken for 0."""
    assert "logprobs" not in dialect.sent(request_, stream=False)


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    "asked,expected",
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, {"type": "json", "schema": SCHEMA}),
        ({"response_format": {"type": "json_object"}}, {"type": "json_object"}),
        ({"structured_outputs": {"json": SCHEMA}}, {"type": "json", "schema": SCHEMA}),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, {"type": "ebnf", "ebnf": "root ::= 'a'"}),
        ({"guided_regex": "a+"}, {"type": "regex", "regex": "a+"}),
        ({"guided_choice": ["yes", "a.b"]}, {"type": "regex", "regex": "(yes)|(a\\.b)"}),
    ],
)
def test_structured_fields_become_a_format_that_every_release_takes(dialect, textual, asked, expected):
    for speaker in (dialect, textual):
        body = speaker.sent(chat(**asked), stream=False)
        assert body["response_format"] == expected
        assert not {"structured_outputs", "guided_regex", "guided_choice"} & body.keys()


def test_what_has_no_translation_is_left_for_the_server_to_refuse(dialect):
    asked = {"structured_outputs": {"structural_tag": "x"}}
    assert dialect.sent(completion(**asked), stream=False)["structured_outputs"] == asked["structured_outputs"]


def test_counters_are_the_sum_of_the_iterations_that_drafted():
    rows = [
        {"specDecodingStats": {"numDraftTokens": 6, "numAcceptedTokens": 4, "numRequestsWithDraftTokens": 2, "acceptanceLength": 3.0}},
        {"specDecodingStats": {"numDraftTokens": 3, "numAcceptedTokens": 0, "numRequestsWithDraftTokens": 1, "acceptanceLength": 1.0}},
        {"specDecodingStats": {"numDraftTokens": 0, "numAcceptedTokens": 0, "numRequestsWithDraftTokens": 5, "acceptanceLength": 1.0}},
        {"specDecodingStats": None},
        {},
    ]
    read = TensorRtLlmDialect("m", {}, completions_list_tokens=True).counters
    assert read(json.dumps(rows)) == SpecCounters(drafts=3, draft_tokens=9, accepted_tokens=4)
    assert read("[]") == SpecCounters()
    assert read("{}") is read("nothing") is None


def reply(*listed):
    return {"choices": [{"index": i, "logprobs": {"top_logprobs": [names]}} for i, names in enumerate(listed)]}


def names(**chances):
    return {name.replace("_", " "): math.log(chance) for name, chance in chances.items()}


def id_of(dialect, name):
    (token,) = dialect._tokenizer.find_ids(name)
    return token


def test_continuations_of_several_prefixes_are_one_request_and_read_in_their_order(dialect):
    asked = dialect.continuations([[1, 2], [1, 2, 3]], 2)
    assert (asked.path, asked.body["prompt"], asked.body["logprobs"]) == (COMPLETIONS, [[1, 2], [1, 2, 3]], 2)
    a, b = id_of(dialect, " the"), id_of(dialect, " a")
    first, second = dialect.continued(reply(names(_the=0.6, _a=0.3), names(_a=0.7, _the=0.2)), [a, a], 2)
    assert (first.top_ids, second.top_ids) == ((a, b), (b, a))
    assert math.exp(second.logprob) == pytest.approx(0.2)


def test_before_1_3_continuations_are_asked_of_the_chat_route(config):
    speaker = ENGINE.dialect(config("1.2.0", model=str(TARGET)), replace(setup(Path("/")), model=str(TARGET)))
    asked = speaker.continuations([[1, 2]], 2)
    assert (asked.path, asked.body["prompt_token_ids"], asked.body["top_logprobs"]) == (CHAT_COMPLETIONS, [1, 2], 2)
    assert speaker.prefixes_per_request == 1
    the = id_of(speaker, " the")
    spoken = {"token": " the", "top_logprobs": [{"token": " the", "logprob": -0.5}, {"token": " a", "logprob": -1.0}]}
    (position,) = speaker.continued({"choices": [{"index": 0, "logprobs": {"content": [spoken]}}]}, [the], 2)
    assert (position.logprob, position.top_ids) == (-0.5, (the, id_of(speaker, " a")))


def test_a_string_that_several_tokens_decode_to_is_refused_for_one_of_them(dialect):
    broken = dialect._tokenizer.find_ids("\ufffd")
    assert len(broken) > 1
    with pytest.raises(RequestError, match="several tokens by one string"):
        dialect.continued(reply({"\ufffd": math.log(0.6), " the": math.log(0.2)}), [broken[0]], 2)


def test_that_string_does_not_keep_other_tokens_from_their_score(dialect):
    the = id_of(dialect, " the")
    (position,) = dialect.continued(reply({"\ufffd": math.log(0.6), " the": math.log(0.2)}), [the], 2)
    assert math.exp(position.logprob) == pytest.approx(0.2)
    assert position.top_ids[0] < 0


def test_it_is_scored_where_nothing_of_weight_can_hide_behind_it(dialect):
    broken = dialect._tokenizer.find_ids("\ufffd")[0]
    (position,) = dialect.continued(reply({"\ufffd": math.log(0.9995), " the": math.log(0.0004)}), [broken], 2)
    assert math.exp(position.logprob) == pytest.approx(0.9995)


def test_a_list_in_which_a_string_took_the_best_ones_place_is_refused(dialect):
    with pytest.raises(RequestError, match="several tokens by one string"):
        dialect.continued(reply({"\ufffd": math.log(0.1), " the": math.log(0.2)}), [id_of(dialect, " the")], 3)


@pytest.mark.parametrize("broken", [{}, {"choices": []}, {"choices": [{"index": 0, "logprobs": None}]}])
def test_a_reply_without_a_list_is_an_error(dialect, broken):
    with pytest.raises(RequestError, match="no log-probabilities"):
        dialect.continued(broken, [5], 2)
