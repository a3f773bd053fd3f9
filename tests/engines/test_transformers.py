"""transformers serve: what is asked of its server and read from it, and a pair of real servers where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.capture.devices import count_needed
from pytest_specdec.config import lint
from pytest_specdec.config.load import load
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.transformers import Transformers, TransformersDialect
from pytest_specdec.errors import ConfigError, EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling
from pytest_specdec.model.workload import Request, Route

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "specdec_reference" / "checkpoints" / "target"
LOOKUP = {"prompt_lookup_num_tokens": 3}
EOS = 2
TEXT = " to be used"


def dialect(drafting=None):
    return TransformersDialect(str(TARGET), drafting or {}, {})


def completion(**body):
    return Request(id="a", route=Route.COMPLETIONS, body=body)


@pytest.mark.parametrize(
    "body, config",
    [
        ({"temperature": 0.0, "top_p": 1.0, "max_tokens": 8}, {"do_sample": False, "max_new_tokens": 8, "eos_token_id": [EOS]}),
        ({"temperature": 0.7}, {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "eos_token_id": [EOS]}),
        (
            {"top_k": -1, "top_p": 0.9, "min_p": 0.1},
            {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "eos_token_id": [EOS]},
        ),
        ({"temperature": 0, "ignore_eos": True}, {"do_sample": False, "eos_token_id": -1}),
        ({"temperature": 0, "stop_token_ids": [9]}, {"do_sample": False, "eos_token_id": [EOS, 9]}),
        (
            {"temperature": 0, "min_tokens": 3, "repetition_penalty": 1.2, "logit_bias": {"7": 2}},
            {
                "do_sample": False,
                "min_new_tokens": 3,
                "repetition_penalty": 1.2,
                "sequence_bias": [[[7], 2]],
                "eos_token_id": [EOS],
            },
        ),
    ],
)
def test_every_sampling_parameter_reaches_the_engine(body, config):
    """What the library would fill in (top_k 50, no sampling) is stated, and nothing that it refuses stays in the body."""
    sent = dialect(LOOKUP).sent(completion(prompt="A", **body), stream=True)
    assert json.loads(sent["generation_config"]) == {**config, **LOOKUP}
    assert {name: value for name, value in sent.items() if name != "generation_config"} == {"prompt": "A", "model": str(TARGET)}


def test_a_bias_is_written_as_a_float():
    """The library checks the type, and answers a whole number with 500."""
    sent = dialect().sent(completion(prompt="A", temperature=0, logit_bias={"7": -100}), stream=False)
    assert [(tokens, type(bias)) for tokens, bias in json.loads(sent["generation_config"])["sequence_bias"]] == [([7], float)]


def test_what_the_engine_has_no_name_for_is_left_to_it():
    sent = dialect().sent(completion(prompt="A", seed=3, stop=["x"], presence_penalty=0.5, logprobs=1), stream=False)
    assert {"seed": 3, "stop": ["x"], "presence_penalty": 0.5, "logprobs": 1}.items() <= sent.items()


def reply(text, tokens=None, reason="length"):
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}], **usage}


@pytest.fixture(scope="module")
def ids():
    pytest.importorskip("tokenizers")
    return list(dialect()._tokenizer.encode_answer(TEXT))


@pytest.mark.parametrize("more, body, found", [(0, {}, []), (1, {}, [EOS]), (2, {}, None), (1, {"stop": ["x"]}, None)])
def test_ids_are_those_of_a_greedy_text_where_the_server_counts_as_many(ids, more, body, found):
    """The end of sequence is counted and in no text; a count that differs otherwise means that the text was spelt by other tokens."""
    request = completion(temperature=0, max_tokens=8, **body)
    (read,) = dialect(LOOKUP).answer(request, [reply(TEXT, len(ids) + more, "stop")])
    assert read["choices"][0].get("token_ids") == (None if found is None else [*ids, *found])


@pytest.mark.parametrize("drafting, steps", [({}, 4), (LOOKUP, 2)], ids=["whole", "stream-of-steps"])
def test_a_token_that_is_missing_at_the_limit_is_no_end_of_sequence(ids, drafting, steps):
    """The text may be spelt by one token more than the tokenizer uses: " as" and "s" for " ass"."""
    assert len(ids) == 3
    replies = [reply(TEXT, steps)] if not drafting else [reply(TEXT, reason=None), reply("", steps, "stop")]
    read = dialect(drafting).answer(completion(temperature=0, max_tokens=4), replies)
    assert "token_ids" not in read[-1]["choices"][0]


def test_a_sampled_text_may_be_spelt_in_several_ways_and_has_no_ids(ids):
    (read,) = dialect().answer(completion(temperature=1.0), [reply(TEXT, len(ids))])
    assert "token_ids" not in read["choices"][0]


@pytest.mark.parametrize("limit, known", [(3, True), (4, False)])
def test_a_stream_under_speculation_is_held_against_its_limit_since_it_counts_steps(ids, limit, known):
    assert len(ids) == 3
    chunks = [reply(" to", reason=None), reply(" be used", reason=None), reply("", 2, "stop")]
    read = dialect(LOOKUP).answer(completion(temperature=0, max_tokens=limit, ignore_eos=True), chunks)
    assert [chunk["choices"][0].get("token_ids") for chunk in read] == [None, None, ids if known else None]


def test_prompts_are_read_by_the_checkpoints_tokenizer_and_template(ids):
    chat = Request(id="a", route=Route.CHAT, body={"messages": [{"role": "user", "content": "Say hello."}]})
    assert list(dialect().prompt_token_ids(completion(prompt=TEXT), None)) == ids
    assert len(dialect().prompt_token_ids(chat, None)) == 14  # as the server counts them


@pytest.mark.parametrize(
    "setting, draft",
    [
        (LOOKUP, Draft(kind=DraftKind.NGRAM, tokens=3, ngram_min=1, ngram_max=2)),
        ('{"prompt_lookup_num_tokens": 3}', Draft(kind=DraftKind.NGRAM, tokens=3, ngram_min=1, ngram_max=2)),
        ({"assistant_early_exit": 2}, Draft(kind=DraftKind.HEAD, tokens=20, sampling=DraftSampling.PROBABILISTIC)),
        ({"num_assistant_tokens": 3}, None),
    ],
)
def test_what_drafts_is_read_off_the_setting(setting, draft):
    assert Transformers().draft({"generation-config": setting}) == draft


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)

    def made(variant, engine="args: {dtype: float32}"):
        path = tmp_path / "mine.yaml"
        path.write_text(f"engine: {{kind: transformers, model: {TARGET}, executable: ./run, {engine}}}\nvariants: {{v: {variant}}}\n")
        return load(path)

    return made


def test_the_drafting_goes_into_requests_and_not_into_the_command(config, tmp_path):
    settings = config("{args: {generation-config: {prompt_lookup_num_tokens: 3}}}")
    setup = ServerSetup(model=str(TARGET), port=8, args={"dtype": "float32", "generation-config": LOOKUP}, secrets=Secrets())
    command = Transformers().command(settings, setup)
    assert command.argv == (str(tmp_path / "run"), "serve", str(TARGET), "--host", "127.0.0.1", "--dtype", "float32", "--port", "8")
    sent = Transformers().dialect(settings, setup).sent(completion(prompt="A", temperature=0), stream=False)
    assert json.loads(sent["generation_config"])["prompt_lookup_num_tokens"] == 3
    assert (Transformers().single_precision(settings), Transformers().vocabulary(settings)) == (True, 4096)


def test_a_server_takes_an_accelerator_where_there_is_one_unless_its_device_is_the_cpu(config):
    anywhere, on_cpu = (config("{}", engine) for engine in ("args: {dtype: float32}", "args: {device: cpu}"))
    assert count_needed(anywhere, accelerators=True) == 1
    assert count_needed(on_cpu, accelerators=True) == count_needed(anywhere, accelerators=False) == 0
    assert Transformers().footprint(on_cpu, accelerated=True).memory_gib > 0


@pytest.mark.parametrize(
    "variant, match",
    [
        ("{args: {generation-config: {do_sample: true}}}", "sets no 'do_sample'"),
        ("{args: {generation-config: {prompt_lookup_tokens: 3}}}", "prompt_lookup_num_tokens"),
        ("{args: {generation-config: {assistant_early_exit: 2}}, body: {generation_config: x}}", "takes the place"),
    ],
)
def test_settings_that_would_undo_a_request_are_refused(config, variant, match):
    with pytest.raises(EngineError, match=match):
        Transformers().check(config(variant))


def test_acceptance_by_a_mixture_with_the_draft_is_lossy(config):
    lossy = config("{args: {generation-config: {assistant_early_exit: 2, assistant_ensemble_weight: 0.5}}}")
    with pytest.raises(ConfigError, match="changes the answers"):
        lint.check(lossy, Transformers().rules)


@pytest.mark.skipif(not (ROOT / ".venv-transformers").exists(), reason="transformers serve is not here: make transformers-env")
def test_a_pair_of_real_servers_is_judged_through_the_scorer(tmp_path):
    """Greedy tokens with and without drafting, under the engine that comes with this package: every answer is scored, none is wrong."""
    argv = (sys.executable, "-m", "pytest", "suites/greedy", "--specdec-config=transformers", "--specdec-depth=smoke")
    ended = subprocess.run((*argv, f"--specdec-run-dir={tmp_path / 'run'}"), cwd=ROOT, capture_output=True, text=True, check=False)
    verdicts = [judgement["verdict"] for judgement in json.loads((tmp_path / "run" / "run.json").read_text())["judgements"]]
    assert {verdict["outcome"] for verdict in verdicts} == {"pass"}, ended.stdout
    for verdict in verdicts:
        scores = (tmp_path / "run" / "scores" / "baseline" / verdict["pair"] / "all-greedy.jsonl").read_text()
        assert scores.count('"request_id"') == 6, ended.stdout
        assert "scored by a further server of the same weights: reference target" in verdict["evidence"]
