"""The double of trtllm-serve: as strict as what was read of the real one."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.attached import recognise
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.transport import HTTPX
from pytest_specdec.config.load import load
from pytest_specdec.engines.attach import Attach
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import BootError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.workload import Request, Route
from tests.engines.doubles.serving import trtllm_serve

ROOT = Path(__file__).parents[2]
CHECKPOINTS = ROOT / "specdec_reference" / "checkpoints"
ENGINE = engine_of("tensorrt_llm")
SPECULATIVE = {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model": str(CHECKPOINTS / "draft")}
OPTIONS = {"dtype": "float32", "disable_overlap_scheduler": True, "guided_decoding_backend": "xgrammar"}
PLAIN = {"model": "target", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
CHAT = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0.0}


def config_of(folder, program, **options):
    """Load the config of a pair whose servers are ``program``."""
    document = {
        "engine": {
            "kind": "tensorrt_llm",
            "model": str(CHECKPOINTS / "target"),
            "executable": str(program),
            "args": {"max_batch_size": 32, "max_seq_len": 512, "extra_llm_api_options": {**OPTIONS, **options}},
        },
        "variants": {"draft-k3": {"args": {"speculative_config": SPECULATIVE}}},
    }
    path = folder / "double.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(path)


def booted(folder, program, *, speculative=True, boot_s=60.0, heartbeat=lambda: None, **options):
    """Return a server of that config, not started yet."""
    config = config_of(folder, program, **options)
    args = {**config.engine.args, **(config.variants[0].args if speculative else {})}
    setup = ServerSetup(model=config.engine.model, port=ports.free(), args=args, speculative=speculative, folder=folder, secrets=Secrets())
    recipe = ServerRecipe(
        dialect=ENGINE.dialect(config, setup),
        setup=setup,
        command=ENGINE.command(config, setup),
        draft_tokens=3,
        log=folder / "server.log",
        boot_s=boot_s,
        stop_s=5.0,
    )
    return ArmServer(recipe, heartbeat=heartbeat)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A speculating server of the newest release."""
    folder = tmp_path_factory.mktemp("new")
    with booted(folder, trtllm_serve(folder)) as server:
        yield server


@pytest.fixture
def ask(arm):
    def _ask(path, **body):
        url = f"{arm.recipe.setup.url}{path}"
        return HTTPX.post(url, json=body, timeout=30) if body else HTTPX.get(url, timeout=30)

    return _ask


def test_the_name_of_a_local_folder_is_its_last_part(ask):
    assert ask("/v1/models").json()["data"][0]["id"] == "target"
    assert ask("/version").json() == {"version": "1.3.0"}
    assert ask("/tokenize").status_code == 404


@pytest.mark.parametrize("field", ["return_token_ids", "prompt_logprobs", "structured_outputs", "cache_salt"])
def test_an_unknown_field_is_refused_with_an_error_that_is_a_text(ask, field):
    answer = ask("/v1/completions", **PLAIN, **{field: True})
    assert answer.status_code == 400
    assert field in answer.json()["error"]


def test_a_completion_is_a_text_or_ids(ask):
    (text,) = ask("/v1/completions", **PLAIN).json()["choices"]
    (ids,) = ask("/v1/completions", **PLAIN, detokenize=False).json()["choices"]
    assert (bool(text["text"]), text["token_ids"]) == (True, None)
    assert (ids["text"], len(ids["token_ids"])) == ("", 8)
    assert ids["avg_decoded_tokens_per_iter"] >= 1.0


def test_a_chat_has_no_ids(ask):
    (choice,) = ask("/v1/chat/completions", **CHAT).json()["choices"]
    assert "token_ids" not in choice
    assert choice["message"]["content"]


def test_log_probabilities_name_tokens_by_strings(ask):
    (choice,) = ask("/v1/completions", **PLAIN, logprobs=3).json()["choices"]
    (listed, *_) = choice["logprobs"]["top_logprobs"]
    assert not any(name.startswith("token_id:") for name in listed)
    (spoken,) = ask("/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2).json()["choices"]
    assert len(spoken["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_a_reading_of_the_counters_empties_them(ask):
    ask("/v1/completions", **PLAIN)
    assert ask("/metrics").json()
    assert ask("/metrics").json() == []


def test_its_engine_is_recognised_without_a_reading_of_the_counters(arm, ask, tmp_path):
    ask("/v1/completions", **PLAIN)
    setup = replace(arm.recipe.setup, attached=arm.recipe.setup.url)
    assert recognise(Attach(), config_of(tmp_path, "trtllm-serve"), setup) is ENGINE
    assert ask("/metrics").json() != []


def test_several_prompts_are_choices_of_one_reply(ask):
    body = {**PLAIN, "prompt": [[5, 6, 7], [5, 6]], "max_tokens": 1, "logprobs": 2}
    assert [choice["index"] for choice in ask("/v1/completions", **body).json()["choices"]] == [0, 1]


def test_the_adapter_counts_what_the_double_counted(arm):
    before = arm.counters()
    arm.client.send(Request(id="a", route=Route.CHAT, body={"messages": CHAT["messages"], "max_tokens": 24}), streamed=True, deadline_s=30)
    counted = arm.counters() - before
    assert 0 < counted.accepted_tokens <= counted.draft_tokens <= 3 * counted.drafts


def test_a_streamed_answer_has_ids_text_and_windows(arm):
    request = Request(id="a", route=Route.CHAT, body={"messages": CHAT["messages"], "max_tokens": 24, "temperature": 0.0})
    whole, streamed = (arm.client.send(request, streamed=way, deadline_s=30).answer for way in (False, True))
    assert streamed.choice.token_ids == whole.choice.token_ids
    assert streamed.choice.text == whole.choice.text
    assert sum(streamed.choice.windows) == len(streamed.choice.token_ids) == streamed.usage.completion_tokens
    assert streamed.prompt_token_ids == whole.prompt_token_ids


def test_misspelt_options_end_the_start_as_strict_models_do(tmp_path):
    arm = booted(tmp_path, trtllm_serve(tmp_path), kv_cache_confg={})
    with pytest.raises(BootError, match="Extra inputs are not permitted"):
        arm.start()


def test_a_port_that_is_bound_before_loading_is_waited_for(tmp_path):
    with booted(tmp_path, trtllm_serve(tmp_path, TRTLLM_DOUBLE_LISTENS_EARLY="1"), speculative=False) as arm:
        assert arm.version == "1.3.0"


def test_a_server_that_signals_itself_fails_the_request_and_is_started_again(tmp_path):
    with booted(tmp_path, trtllm_serve(tmp_path, TRTLLM_DOUBLE_SIGINT_ON="66600666")) as arm:
        deadly = Request(id="d", route=Route.COMPLETIONS, body={"prompt": "a", "seed": 66600666, "max_tokens": 2})
        assert arm.client.send(deadly, streamed=False, deadline_s=30).ending in {FailureKind.ERROR, FailureKind.DIED}
        assert arm.wait_for_end()
        assert arm.ensure_running()
        harmless = Request(id="h", route=Route.COMPLETIONS, body={"prompt": "a", "max_tokens": 2})
        assert arm.client.send(harmless, streamed=False, deadline_s=30).answer.ok


def test_a_server_that_cannot_bind_for_its_predecessors_connections_is_started_after_them(tmp_path):
    def release():
        if held.fileno() != -1 and "Address already in use" in arm.recipe.log.read_text():
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset ends the other side at once
            held.close()

    arm = booted(tmp_path, trtllm_serve(tmp_path), speculative=False, heartbeat=release)
    with socket.socket() as held, arm:
        held.connect(("127.0.0.1", arm.recipe.setup.port))
        held.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert held.recv(1000), "it has taken the connection"
        arm.kill()
        assert arm.wait_for_end()
        assert ports.is_held(arm.recipe.setup.port)
        assert arm.ensure_running()
        assert held.fileno() == -1
