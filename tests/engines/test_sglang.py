"""SGLang: the dialect, the command line, what is refused before anything boots, and SGLang's own word on bodies and recipes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.config.lint import lint
from pytest_specdec.config.load import load
from pytest_specdec.doctor.arms import arms
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.sglang import RULES, SglangDialect, draft
from pytest_specdec.errors import EngineError, RequestError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import DraftKind, DraftSampling
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Request, Route
from tests.engines.doubles import sglang as double

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang-protocol" / "bin" / "python"
RECIPES = [path for path in sorted((ROOT / "suites" / "configs").glob("sglang-*.yaml")) if load(path).engine.kind == "sglang"]
CHAIN = {
    "speculative-algorithm": "STANDALONE",
    "speculative-draft-model-path": "small",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
DIALECT = SglangDialect(draft_tokens=3)


@pytest.fixture
def config(tmp_path):
    return Config(
        name="one",
        path=tmp_path / "one.yaml",
        text="",
        engine=EngineSettings(kind="sglang", model="m", executable=str(double.python(tmp_path))),
        variants=(VariantSettings(name="standalone-k3", args=CHAIN),),
    )


def request(route=Route.COMPLETIONS, **body):
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if route is Route.CHAT else {"prompt": "Hi"}
    return Request(id="r", route=route, body={**asked, **body})


def setup(**fields):
    return ServerSetup(**{"model": "m", "port": 8001, "secrets": Secrets(), **fields})


def test_what_a_request_leaves_out_is_sent_as_neutral():
    sent = DIALECT.sent(request(max_tokens=3), stream=False)
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert DIALECT.sent(request(temperature=0.0, top_k=5), stream=False) | {"temperature": 0.0, "top_k": 5} == DIALECT.sent(
        request(temperature=0.0, top_k=5), stream=False
    )


def test_no_top_k_is_minus_one_since_the_server_refuses_zero():
    assert DIALECT.sent(request(top_k=0), stream=False)["top_k"] == -1


@pytest.mark.parametrize(
    "route,wanted,sent",
    [
        (Route.CHAT, {"regex": "a+"}, {"regex": "a+"}),
        (Route.COMPLETIONS, {"grammar": "root ::= x"}, {"ebnf": "root ::= x"}),
        (Route.CHAT, {"choice": ["a.b", "c"]}, {"regex": r"(a\.b|c)"}),
        (Route.COMPLETIONS, {"json": {"type": "array"}}, {"json_schema": '{"type": "array"}'}),
        (
            Route.CHAT,
            {"json_object": True},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "schema", "schema": {"type": "object"}}}},
        ),
    ],
)
def test_structured_fields_have_sglangs_names(route, wanted, sent):
    body = DIALECT.sent(request(route, structured_outputs=wanted), stream=False)
    assert "structured_outputs" not in body
    assert {name: body[name] for name in sent} == sent


def test_a_streamed_chat_asks_for_ids_where_it_may():
    whole, streamed = (DIALECT.sent(request(Route.CHAT), stream=stream) for stream in (False, True))
    assert whole["return_token_ids"] is whole["return_prompt_token_ids"] is True
    assert not {"return_token_ids", "return_prompt_token_ids"} & streamed.keys()
    assert streamed["return_output_ids_in_sglext"] is streamed["return_input_ids_in_sglext"] is True
    assert streamed["stream_options"] == {"include_usage": True}


def test_ids_of_a_chat_are_read_from_the_choice_and_from_the_end_of_a_stream():
    whole = DIALECT.reply({"choices": [{"index": 0, "message": {"content": "x"}, "response_token_ids": [7, 8], "prompt_token_ids": [1]}]})
    assert whole["choices"][0]["token_ids"] == [7, 8]
    end = DIALECT.reply({"choices": [], "sglext": {"input_ids": [1, 2], "output_ids": [[7], [8, 9]]}})
    assert [choice["token_ids"] for choice in end["choices"]] == [[7], [8, 9]]
    assert end["prompt_token_ids"] == [1, 2]


DETAILS = {"spec_verify_ct": 4, "spec_num_proposed_drafts": 12, "spec_num_correct_drafts": 5, "spec_correct_drafts_histogram": [1, 1, 2]}
COUNTED = SpecCounters(drafts=4, draft_tokens=12, accepted_tokens=5, accepted_per_position=(3, 2))


@pytest.mark.parametrize(
    "reply,counters",
    [
        ({"sglext": {"spec_tokens_details": DETAILS}}, COUNTED),
        ({"sglext": {"spec_tokens_details": [DETAILS, DETAILS]}}, COUNTED + COUNTED),
        ({"usage": {"completion_tokens": 1}}, SpecCounters()),
        ({"usage": {"completion_tokens": 9}}, None),
        ({}, None),
    ],
)
def test_an_answer_holds_its_own_counts(reply, counters):
    assert DIALECT.counted(reply) == counters


def test_counts_that_are_none_are_outside_the_protocol():
    with pytest.raises(ValueError, match="whole number"):
        DIALECT.counted({"sglext": {"spec_tokens_details": {**DETAILS, "spec_verify_ct": "many"}}})


PAGE = """# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 40.0
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 60.0
sglang:generation_tokens_total{model_name="m",is_streaming="false"} 50.0
sglang:num_requests_total{model_name="m",is_streaming="false"} 10.0
sglang:spec_accept_length{model_name="m"} 2.5
"""


def test_the_metrics_allow_an_estimate_of_the_accepted_tokens():
    assert DIALECT.counters(PAGE) == SpecCounters(drafts=40, draft_tokens=120, accepted_tokens=60)
    assert DIALECT.counters_exact is False
    assert DIALECT.counters("") is None
    assert SglangDialect().counters(PAGE) is None, "a baseline drafts nothing"


SCORED = {
    "meta_info": {
        "input_token_logprobs": [[None, 2, None], [-0.5, 7, None], [None, 8, None]],
        "input_top_logprobs": [None, [[-0.5, 7, None], [-1.5, 9, None]], [[-0.1, 9, None], [-2.5, 3, None]]],
    }
}


def test_a_prompt_is_scored_by_the_native_route_from_the_last_token_before_the_answer():
    asked = DIALECT.scoring((1, 2), (7, 8), 2)
    assert asked is not None
    assert asked.path == "/generate"
    assert asked.body["input_ids"] == [1, 2, 7, 8]
    assert asked.body["logprob_start_len"] == 1
    first, second = DIALECT.positions(SCORED, (7, 8), 2)
    assert (first.token_id, first.logprob, first.top_ids) == (7, -0.5, (7, 9))
    assert (second.logprob, second.top_ids, second.top_logprobs) == (float("-inf"), (9, 3), (-0.1, -2.5))


@pytest.mark.parametrize(
    "reply,ids",
    [({}, (7,)), (SCORED, (7, 9)), ({"meta_info": {"input_token_logprobs": [[0.5, 7, None]], "input_top_logprobs": [[]]}}, (7,))],
)
def test_a_reply_without_the_tokens_distribution_is_an_error(reply, ids):
    with pytest.raises(RequestError):
        DIALECT.positions(reply, ids, 2)


@pytest.mark.parametrize(
    "args,kind,tokens",
    [
        (CHAIN, DraftKind.MODEL, 3),
        ({**CHAIN, "speculative-eagle-topk": 4, "speculative-num-draft-tokens": 16}, DraftKind.UNKNOWN, 3),
        ({**CHAIN, "speculative-algorithm": "EAGLE3"}, DraftKind.HEAD, 3),
        ({"speculative-algorithm": "NGRAM"}, DraftKind.UNKNOWN, 11),
        ({"speculative-algorithm": "DFLASH", "speculative-dflash-block-size": 16}, DraftKind.HEAD, 15),
        ({"speculative-algorithm": "DSPARK", "speculative-dspark-block-size": 7}, DraftKind.HEAD, 7),
    ],
)
def test_a_draft_is_read_off_the_flags(args, kind, tokens):
    read = draft(args)
    assert read is not None
    assert (read.kind, read.tokens, read.sampling) == (kind, tokens, DraftSampling.GREEDY)
    assert (read.model == "small") == (kind is DraftKind.MODEL)
    assert draft({**args, "speculative-use-rejection-sampling": True}).sampling is DraftSampling.PROBABILISTIC


def test_no_algorithm_is_no_draft():
    assert draft({"max-running-requests": 4}) is None


def test_the_command_is_the_modules_with_metrics_on_and_false_left_out(config):
    engine = engine_of("sglang")
    command = engine.command(config, setup(args={"disable-radix-cache": False, "enable_mixed_chunk": True, "tp-size": 2}, api_key="k"))
    assert " ".join(command.argv[1:]) == (
        "-m sglang.launch_server --model-path m --host 127.0.0.1 --enable-metrics --enable-mixed-chunk --tp-size 2 --api-key k --port 8001"
    )
    assert command.scrubbed == ("SGLANG_SIMULATE_",)


def test_readiness_is_asked_of_the_path_that_the_release_has(config):
    engine = engine_of("sglang")
    assert engine.dialect(config, setup()).health_path == "/health"
    image = replace(config.engine, executable=None, image="lmsysorg/sglang:v0.5.23")
    assert engine.dialect(replace(config, engine=image), setup()).health_path == "/ready"


@pytest.mark.parametrize("missing", ["speculative-num-steps", "speculative-eagle-topk"])
def test_half_a_chain_is_refused_before_it_dies_at_boot(missing, config):
    args = {name: value for name, value in CHAIN.items() if name != missing}
    with pytest.raises(EngineError, match=f"no {missing}") as caught:
        engine_of("sglang").check(replace(config, variants=(VariantSettings(name="half", args=args),)))
    assert "variants.half.args" in str(caught.value)


def test_a_tree_needs_its_size_and_a_chain_does_not(config):
    engine = engine_of("sglang")
    args = {name: value for name, value in CHAIN.items() if name != "speculative-num-draft-tokens"}
    engine.check(replace(config, variants=(VariantSettings(name="chain", args=args),)))
    with pytest.raises(EngineError, match="no speculative-num-draft-tokens"):
        engine.check(replace(config, variants=(VariantSettings(name="tree", args={**args, "speculative-eagle-topk": 2}),)))


def test_simulated_acceptance_is_refused_unless_the_config_is_lossy(config):
    engine, faked = engine_of("sglang"), VariantSettings(name="faked", args=CHAIN, env={"SGLANG_SIMULATE_ACC_LEN": "3"})
    with pytest.raises(EngineError, match=r"variants\.faked\.env\.SGLANG_SIMULATE_ACC_LEN"):
        engine.check(replace(config, variants=(faked,)))
    engine.check(replace(config, variants=(faked,), lossy=True))


@pytest.fixture
def linted(tmp_path):
    def _linted(args: str, engine: str = "{max-running-requests: 8}"):
        path = tmp_path / "a.yaml"
        path.write_text(f"engine: {{kind: sglang, model: m, args: {engine}}}\nvariants: {{v: {{args: {args}}}}}\n")
        return [(problem.path, problem.refused) for problem in lint(load(path), RULES)]

    return _linted


EAGLE = "speculative-algorithm: EAGLE3, speculative-num-steps: 3"


@pytest.mark.parametrize(
    "args,problems",
    [
        (f"{{{EAGLE}}}", []),
        ("{speculative-algorithm: NGRAM}", []),
        ("{speculative-algorithm: EAGLE4, speculative-num-steps: 3}", [("variants.v.args.speculative-algorithm", True)]),
        ("{speculative-algorithm: EAGLE}", [("variants.v.args", True)]),
        (f"{{{EAGLE}, speculative-accept-threshold-single: 0.5}}", [("variants.v.args.speculative-accept-threshold-single", True)]),
        (f"{{{EAGLE}, speculative-accept-threshold-acc: 1.0}}", []),
    ],
)
def test_the_pair_lint_knows_methods_numbers_and_lossy_thresholds(args, problems, linted):
    assert linted(args) == problems


def test_the_pair_lint_names_the_limit_that_speculation_sets_by_itself(linted):
    assert linted(f"{{{EAGLE}}}", "{}") == [("variants.v", False)]


BODIES = {
    "completion": request(max_tokens=3, temperature=0.0, logprobs=1, seed=1, stop=["x"], logit_bias={"3": 1.0}),
    "penalties": request(max_tokens=3, presence_penalty=0.5, frequency_penalty=0.5, top_k=0, n=2, ignore_eos=True),
    "chat": request(Route.CHAT, max_tokens=3, logprobs=True, top_logprobs=1, response_format={"type": "json_object"}),
    "regex": request(Route.CHAT, max_tokens=3, structured_outputs={"choice": ["a", "b"]}),
    "schema": request(max_tokens=3, structured_outputs={"json": {"type": "object"}}),
}


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """What SGLang's own models and parser say of our bodies and recipes, and of mistakes; one process, since its import takes seconds."""
    if not PYTHON.exists():
        pytest.skip("SGLang's own models are not here: make sglang-protocol")
    paths = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}
    asked = {name: (paths[r.route], {"model": "m", **DIALECT.sent(r, stream=False)}) for name, r in BODIES.items()}
    asked |= {
        f"{name}, streamed": (paths[r.route], {"model": "m", "stream": True, **DIALECT.sent(r, stream=True)}) for name, r in BODIES.items()
    }
    for name, api in (("scoring", DIALECT.scoring((1, 2), (3,), 5)), ("continuation", DIALECT.continuations([(1, 2)], 5))):
        asked[name] = (api.path, api.body)
    asked["mistaken type"] = (paths[Route.COMPLETIONS], {"prompt": "x", "top_k": "many"})
    asked["mistaken name"] = (paths[Route.CHAT], {"messages": [], "structured_outputs": {}})
    asked["mistaken sampling"] = ("/generate", {"input_ids": [1], "sampling_params": {"max_tokens": 1}})
    commands = {f"{path.stem}/{arm}": flags for path in RECIPES for arm, flags in recipe(path, tmp_path_factory).items()}
    commands["mistaken flag"] = [*next(iter(commands.values())), "--speculative-num-step-s", "4"]
    commands["mistaken value"] = [*next(iter(commands.values())), "--dtype", "float33"]
    ran = subprocess.run(
        [PYTHON, ROOT / "tests" / "engines" / "sglang" / "validate.py"],
        input=json.dumps({"bodies": asked, "commands": commands}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def recipe(path, tmp_path_factory):
    """Return the flags that our adapter starts every arm's server with."""
    config = load(path)
    config = replace(config, engine=replace(config.engine, venv=None, executable=str(double.python(tmp_path_factory.mktemp("bin")))))
    engine = engine_of("sglang")
    return {arm.name: list(arm.command(config, engine).argv[3:]) for arm in arms(config, engine, {})}


def test_sglangs_own_models_take_every_body_and_ignore_no_field_of_it(validated):
    ours = {name: error for name, error in validated["bodies"].items() if not name.startswith("mistaken")}
    assert len(ours) == 2 * len(BODIES) + 2
    assert not any(ours.values()), ours


def test_sglangs_own_parser_reads_every_arm_of_every_recipe(validated):
    ours = {name: error for name, error in validated["commands"].items() if not name.startswith("mistaken")}
    assert len(ours) >= 2 * len(RECIPES) > 0
    assert not any(ours.values()), ours
    assert validated["flags"] > 400, "the declared fields were not found"


@pytest.mark.parametrize(
    "kind,name,said",
    [
        ("bodies", "mistaken type", "valid integer"),
        ("bodies", "mistaken name", "ignored: structured_outputs"),
        ("bodies", "mistaken sampling", "unknown field `max_tokens`"),
        ("commands", "mistaken flag", "unrecognized arguments"),
        ("commands", "mistaken value", "invalid choice: 'float33'"),
    ],
)
def test_sglangs_own_models_and_parser_refuse_a_planted_mistake(kind, name, said, validated):
    assert said in validated[kind][name]
