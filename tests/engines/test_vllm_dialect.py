"""The vLLM dialect: counters, verify steps and distributions as vLLM serves them."""

from __future__ import annotations

import math

import pytest

from pytest_specdec.config.config import Config, EngineSettings
from pytest_specdec.engines import vllm
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.server_counts import VerifySteps
from pytest_specdec.engines.vllm import Vllm, VllmDialect
from pytest_specdec.engines.vllm.dialect import GuidedDialect, NamedTokensDialect
from pytest_specdec.errors import RequestError
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.workload import Request, Route

PAGE = """
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="tiny"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 45.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 1.2e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="tiny",position="0"} 1.0
vllm:generation_tokens_total{engine="0"} 99.0
"""


def test_counters_are_summed_over_engines():
    assert vllm.parse(PAGE) == SpecCounters(drafts=15, draft_tokens=45, accepted_tokens=12, accepted_per_position=(8, 4))


@pytest.mark.parametrize("page", ["", "vllm:generation_tokens_total 3\n", "# vllm:spec_decode_num_drafts_total 3\n"])
def test_a_page_without_the_series_has_no_counters(page):
    assert vllm.parse(page) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e300", "many"])
def test_counters_that_are_no_numbers_are_a_page_without(value):
    assert vllm.parse(f'{PAGE}vllm:spec_decode_num_drafts_total{{engine="2"}} {value}\n') is None


def test_a_total_below_0_is_kept_for_the_judges_to_see():
    below = PAGE.replace('accepted_tokens_total{engine="0",model_name="tiny"} 1.2e+01', 'accepted_tokens_total{engine="0"} -2540.0')
    assert vllm.parse(below) == SpecCounters(drafts=15, draft_tokens=45, accepted_tokens=-2540, accepted_per_position=(8, 4))


def test_steps_are_counted_as_the_server_counts_them():
    steps = VerifySteps(accepted=(3, 0, 1, 0), drafted=(3, 3, 2, 0))
    assert steps.windows == (1, 4, 1, 2, 1)
    assert steps.counters == SpecCounters(drafts=3, draft_tokens=8, accepted_tokens=4, accepted_per_position=(2, 1, 1))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"metrics": None},
        {"metrics": {"speculative_decoding": None}},
        {"metrics": {"speculative_decoding": {"per_step_accepted": "12"}}},
    ],
)
def test_without_detailed_metrics_there_are_no_steps(data):
    assert VllmDialect().steps(data) is None


def test_streams_ask_for_usage_and_keep_what_was_asked():
    request = Request(id="a", route=Route.CHAT, body={"stream_options": {"continuous_usage_stats": True}})
    sent = VllmDialect().sent(request, stream=True)
    assert sent == {"return_token_ids": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert VllmDialect().sent(request, stream=False) == {**request.body, "return_token_ids": True}


NAMED = {"tokens": ["token_id:5", "token_id:9"], "token_logprobs": [-0.1, -0.2]}


@pytest.mark.parametrize(
    "logprobs, ids",
    [
        (NAMED, [5, 9]),
        ({"content": [{"token": "token_id:7", "logprob": -0.5, "top_logprobs": []}]}, [7]),
        ({"tokens": ["token_id:5", "a text"]}, None),
        ({"tokens": [], "content": None}, None),
        (None, None),
    ],
)
def test_releases_before_0_10_2_name_tokens_by_their_ids(logprobs, ids):
    read = NamedTokensDialect().reply({"id": "x", "choices": [{"text": "a", "logprobs": logprobs}]})
    assert read["choices"][0].get("token_ids") == ids
    assert (read["id"], read["choices"][0]["text"]) == ("x", "a")


@pytest.mark.parametrize("data", [{}, {"choices": None}, {"choices": [3]}, {"choices": "no"}])
def test_what_is_no_reply_with_choices_stays(data):
    assert NamedTokensDialect().reply(data) == data


@pytest.mark.parametrize(
    "route, body, logprobs",
    [
        (Route.COMPLETIONS, {}, 0),
        (Route.COMPLETIONS, {"logprobs": 5}, 5),
        (Route.CHAT, {}, True),
        (Route.CHAT, {"logprobs": False}, True),
        (Route.CHAT, {"logprobs": True, "top_logprobs": 2}, True),
    ],
)
def test_releases_before_0_10_2_are_asked_for_log_probabilities_and_for_nothing_that_they_refuse(route, body, logprobs):
    sent = NamedTokensDialect().sent(Request(id="a", route=route, body=body), stream=False)
    assert sent == {**body, "logprobs": logprobs}
    assert type(sent["logprobs"]) is type(logprobs)
    assert "return_tokens_as_token_ids" not in NamedTokensDialect().continuations([[1]], 5).body


def test_a_release_before_0_11_gets_grammars_in_the_fields_that_it_knows():
    request = Request(id="a", route=Route.CHAT, body={"messages": [], "structured_outputs": {"regex": "a+"}})
    assert GuidedDialect().sent(request, stream=False) == {"messages": [], "guided_regex": "a+", "return_token_ids": True}
    assert VllmDialect().sent(request, stream=False)["structured_outputs"] == {"regex": "a+"}


@pytest.mark.parametrize("version, dialect", [
    ("0.7.3", NamedTokensDialect),
    ("0.10.1", NamedTokensDialect),
    ("0.10.2", GuidedDialect),
    ("0.11.0", VllmDialect),
    ("nightly", VllmDialect),
])  # fmt: skip
def test_the_release_decides_the_dialect(tmp_path, version, dialect):
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    engine = EngineSettings(kind="vllm", model="m", executable=str(program))
    config = Config(name="c", path=tmp_path / "c.yaml", text="", engine=engine, variants=())
    setup = ServerSetup(model="m", port=1, secrets=Secrets())
    assert type(Vllm().dialect(config, setup)) is dialect
    assert ("--return-tokens-as-token-ids" in Vllm().command(config, setup).argv) is (dialect is NamedTokensDialect)


def distribution(**entries):
    return {key.lstrip("t"): {"logprob": logprob, "rank": rank} for key, (logprob, rank) in entries.items()}


def test_the_distribution_is_the_top_tokens_by_falling_probability_and_the_token_itself():
    told = {"choices": [{"prompt_logprobs": [None, distribution(t9=(-1.0, 1)), distribution(t4=(-3.0, 2), t8=(-0.1, 1), t7=(-9.0, 30))]}]}
    (position,) = VllmDialect().positions(told, [7], top_tokens=2)
    assert (position.token_id, position.logprob) == (7, -9.0)
    assert (position.top_ids, position.top_logprobs) == ((8, 4), (-0.1, -3.0))


def test_a_distribution_without_a_number_is_impossible():
    told = {"choices": [{"prompt_logprobs": [{"7": {"logprob": None, "rank": 3}}]}]}
    assert VllmDialect().positions(told, [7], top_tokens=1)[0].logprob == -math.inf


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"prompt_logprobs": []}]},
        {"choices": [{"prompt_logprobs": [{"3": {"logprob": -1}}]}]},
        {"choices": [{"prompt_logprobs": [None]}]},
    ],
)
def test_a_reply_without_the_distribution_is_an_error(told):
    with pytest.raises(RequestError):
        VllmDialect().positions(told, [7], top_tokens=1)


@pytest.mark.parametrize("logprob", [0.5, math.inf, True, "0"])
def test_a_distribution_of_no_log_probabilities_is_an_error(logprob):
    told = {"choices": [{"prompt_logprobs": [{"7": {"logprob": logprob, "rank": 1}}]}]}
    with pytest.raises(RequestError, match="log-probability"):
        VllmDialect().positions(told, [7], top_tokens=1)


@pytest.mark.parametrize("lists", [{}, {"per_step_accepted": None, "per_step_drafted": None}])
def test_an_answer_without_a_draft_is_a_record_without_steps(lists):
    told = {"metrics": {"speculative_decoding": {"num_spec_steps": 0, **lists}}}
    assert VllmDialect().steps(told) == VerifySteps(accepted=(), drafted=())
    told["metrics"]["speculative_decoding"]["num_spec_steps"] = 2
    assert VllmDialect().steps(told) is None


@pytest.mark.parametrize("steps", [[1, None], [1.0], [-1], [True]])
def test_verify_steps_that_are_no_counts_are_an_error(steps):
    told = {"metrics": {"speculative_decoding": {"per_step_accepted": steps, "per_step_drafted": [3, 3]}}}
    with pytest.raises(ValueError, match="verify steps"):
        VllmDialect().steps(told)
