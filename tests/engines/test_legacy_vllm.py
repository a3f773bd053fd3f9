"""vLLM before 0.8: its double is as strict as its sources say, and the adapter gets everything that verdicts need out of it."""

from __future__ import annotations

import time

import pytest

from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.capture.transport import HTTPX
from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import BootError, EngineError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Request, Route
from tests.engines.doubles import legacy_vllm as double
from tests.engines.doubles.serving import legacy_vllm

ENGINE = engine_of("vllm")
DRAFTED = {"speculative-model": "draft", "num-speculative-tokens": 3}
PLAIN = {"model": "target", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 24, "temperature": 0.0, "ignore_eos": True}


def booted(folder, release="0.7.3", speculative=True, **args):
    """Return a server of a release, not started yet."""
    program = legacy_vllm(folder, release, VLLM_DOUBLE_COLLECT_S="0.05")
    given = {"max-model-len": 512, **(DRAFTED if speculative else {}), **args}
    config = Config(
        name="one",
        path=folder / "one.yaml",
        text="",
        engine=EngineSettings(kind="vllm", model="target", executable=str(program)),
        variants=(VariantSettings(name="v", args=given),),
    )
    setup = ServerSetup(model="target", port=ports.free(), args=given, speculative=speculative, folder=folder, secrets=Secrets())
    recipe = ServerRecipe(
        dialect=ENGINE.dialect(config, setup),
        setup=setup,
        command=ENGINE.command(config, setup),
        draft_tokens=3,
        log=folder / "server.log",
        boot_s=60.0,
        stop_s=2.0,
    )
    return ArmServer(recipe, heartbeat=lambda: None)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A speculating server of the newest release."""
    with booted(tmp_path_factory.mktemp("legacy")) as server:
        yield server


@pytest.fixture
def ask(arm):
    def _ask(path, **body):
        url = f"{arm.recipe.setup.url}{path}"
        return HTTPX.post(url, json=body, timeout=30) if body else HTTPX.get(url, timeout=30)

    return _ask


@pytest.mark.examples(2)
@pytest.mark.parametrize(
    "path,body,status",
    [
        ("/v1/completions", {**PLAIN, "no_such_field": 1}, 200),
        ("/v1/completions", {name: value for name, value in PLAIN.items() if name != "model"}, 400),
        ("/v1/completions", {**PLAIN, "model": "other"}, 404),
        ("/v1/completions", {**PLAIN, "logprobs": 21}, 400),
        ("/v1/completions", {**PLAIN, "stream_options": {"include_usage": True}}, 400),
        ("/tokenize", {"prompt": "hi"}, 400),
        ("/tokenize", {"prompt": [5], "model": "target"}, 400),
        ("/tokenize", {"prompt": "hi", "model": "target"}, 200),
    ],
)
def test_a_field_is_taken_ignored_or_refused(ask, path, body, status):
    answer = ask(path, **body)
    assert answer.status_code == status
    assert status == 200 or answer.json()["object"] == "error", "errors are flat"


def test_token_ids_are_names_only(ask):
    (choice,) = ask("/v1/completions", **PLAIN, logprobs=1, return_token_ids=True).json()["choices"]
    assert "token_ids" not in choice
    assert all(name.startswith("token_id:") for name in choice["logprobs"]["tokens"])


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--speculative-config", "{}"],
        ["m", "--disable-logprobs-during-spec-decoding", "maybe"],
        ["m", "--spec-decoding-acceptance-method", "other"],
    ],
)
def test_a_command_line_that_ends_the_start(words):
    with pytest.raises((SystemExit, ValueError)):
        double.arguments(words)


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--num-speculative-tokens", "3"],
        ["m", "--speculative-model", "d"],
        ["m", "--speculative_model", "[ngram]", "--num_speculative_tokens", "3"],
    ],
)
def test_a_setting_that_ends_the_start(words):
    with pytest.raises(ValueError, match=r"speculative_model|num_speculative_tokens|ngram_prompt_lookup_max"):
        double.speculation(double.arguments(words))


@pytest.mark.parametrize("route,asked", [(Route.CHAT, CHAT), (Route.COMPLETIONS, PLAIN), (Route.COMPLETIONS, {**PLAIN, "prompt": [5, 6]})])
def test_an_answer_has_ids_windows_and_the_ids_of_its_prompt(arm, route, asked):
    request = Request(id="a", route=route, body={name: value for name, value in asked.items() if name != "model"})
    whole, streamed = (arm.client.send(request, streamed=way, deadline_s=30).answer for way in (False, True))
    assert streamed.choice.token_ids == whole.choice.token_ids
    assert sum(streamed.choice.windows) == len(streamed.choice.token_ids) == streamed.usage.completion_tokens
    assert max(streamed.choice.windows) > 1
    assert streamed.prompt_token_ids == whole.prompt_token_ids
    assert len(whole.prompt_token_ids) == whole.usage.prompt_tokens


def test_tokens_are_scored_by_the_log_probabilities_of_a_prompt(arm):
    request = Request(id="a", route=Route.COMPLETIONS, body=PLAIN)
    answer = arm.client.send(request, streamed=False, deadline_s=30).answer
    body = arm.recipe.dialect.scoring(answer.prompt_token_ids, answer.choice.token_ids, 5)
    reply = HTTPX.post(f"{arm.recipe.setup.url}{body.path}", json={"model": "target", **body.body}, timeout=30).json()
    positions = arm.recipe.dialect.positions(reply, answer.choice.token_ids, 5)
    assert [position.top_ids[0] for position in positions] == list(answer.choice.token_ids), "greedy tokens are the most probable ones"


def test_answers_are_streamed_since_the_log_counts_too_late_for_a_workload(arm, tmp_path):
    """Or else a workload of a few seconds has neither counters nor windows, and no verdict."""
    assert arm.recipe.dialect.counters_late
    assert not booted(tmp_path, "0.10.2", speculative=False).recipe.dialect.counters_late


def test_the_log_counts_late_and_the_metrics_add_totals_anew(arm, ask):
    before = arm.counters()
    for _ in range(3):
        ask("/v1/completions", **PLAIN)
        time.sleep(0.06)
    counted = arm.counters()
    assert arm.counters_lag
    assert counted.drafts > (before.drafts if before else 0)
    assert 0 < counted.accepted_tokens <= counted.draft_tokens == 3 * counted.drafts
    page = ask("/metrics").text
    assert "spec_decode_num_drafts" not in page
    assert arm.recipe.dialect.counters(page) is None
    emitted = next(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:spec_decode_num_emitted_tokens_total"))
    assert emitted > counted.drafts + counted.accepted_tokens, "a sum of totals"


def test_log_probabilities_are_placeholders_unless_the_adapter_asks_for_them(tmp_path):
    assert "--disable-logprobs-during-spec-decoding" in booted(tmp_path).recipe.command.argv
    with booted(tmp_path, **{"disable-logprobs-during-spec-decoding": True}) as server:
        body = {**PLAIN, "logprobs": 2, "prompt_logprobs": 1}
        (choice,) = HTTPX.post(f"{server.recipe.setup.url}/v1/completions", json=body, timeout=30).json()["choices"]
    assert set(choice["logprobs"]["token_logprobs"]) == {0.0}
    assert [len(listed) for listed in choice["logprobs"]["top_logprobs"]] == [1] * 12
    assert {entry["logprob"] for listed in choice["prompt_logprobs"][1:] for entry in listed.values()} == {0.0}


def test_a_release_that_forbids_unknown_fields_answers_what_the_adapter_sends(tmp_path):
    with booted(tmp_path, "0.6.3", speculative=False) as server:
        url = f"{server.recipe.setup.url}/v1/completions"
        assert HTTPX.post(url, json={**PLAIN, "no_such_field": 1}, timeout=30).status_code == 400
        request = Request(id="a", route=Route.CHAT, body=CHAT)
        answer = server.client.send(request, streamed=True, deadline_s=30).answer
    assert answer.ok
    assert len(answer.choice.token_ids) == 24
    assert answer.prompt_token_ids


def test_the_new_flag_is_refused_before_anything_boots(tmp_path):
    program = legacy_vllm(tmp_path)
    engine = EngineSettings(kind="vllm", model="target", executable=str(program))
    variant = VariantSettings(name="v", args={"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}})
    config = Config(name="one", path=tmp_path / "one.yaml", text="", engine=engine, variants=(variant,))
    with pytest.raises(EngineError, match="does not take speculative-config"):
        ENGINE.check(config)


def test_a_draft_without_a_number_of_tokens_ends_the_start(tmp_path):
    with pytest.raises(BootError, match="num_speculative_tokens must be provided"):
        booted(tmp_path, speculative=False, **{"speculative-model": "draft"}).start()
