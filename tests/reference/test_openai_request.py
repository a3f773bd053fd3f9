"""What is refused, and that nothing is silently ignored."""

from __future__ import annotations

import pytest

from tests.reference.asgi_client import served

NEUTRAL = {
    "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": {}, "min_p": 0, "best_of": 1, "echo": False,
    "suffix": None, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True, "use_beam_search": False, "user": "me", "top_k": -1,
    "stop": None, "seed": None, "n": 1, "response_format": {"type": "text"}, "model": "target",
}  # fmt: skip


def test_neutral_values_change_nothing(baseline):
    plain = {"prompt": "def", "max_tokens": 6, "temperature": 0}
    assert baseline.complete(plain | NEUTRAL)["choices"][0]["text"] == baseline.complete(plain)["choices"][0]["text"]


@pytest.mark.parametrize(
    "body", [{"presence_penalty": -2, "frequency_penalty": 2}, {"logit_bias": {"0": 100, "4095": -100}}, {"logit_bias": None}]
)
def test_the_ends_of_the_ranges_are_honoured(baseline, body):
    assert baseline.complete({"prompt": "def", "max_tokens": 1, "temperature": 0, **body})["usage"]["completion_tokens"] == 1


NOT_HONOURED = [
    ("logit_bias", {"5": 100.5}),
    ("logit_bias", {"5": -101}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": None}),
    ("logit_bias", {"5": True}),
    ("logit_bias", {"five": 1}),
    ("logit_bias", {"4096": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", [5]),
    ("min_p", 1.1),
    ("min_p", -0.1),
    ("frequency_penalty", 2.1),
    ("frequency_penalty", "1"),
    ("frequency_penalty", float("nan")),
    ("presence_penalty", -2.1),
    ("presence_penalty", True),
    ("repetition_penalty", 0),
    ("repetition_penalty", 101),
    ("bad_words", [""]),
    ("bad_words", [7]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", "7"),
    ("allowed_token_ids", [True]),
    ("allowed_token_ids", [4096]),
    ("best_of", 2),
    ("echo", 1),
    ("include_stop_str_in_output", 1),
    ("skip_special_tokens", "no"),
    ("min_tokens", 17),
    ("tools", [{}]),
    ("structured_outputs", {"regexp": "a"}),
    ("temprature", 1),
    ("top_logprobs", 2),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("max_tokens", 0),
    ("max_tokens", True),
    ("n", 0),
    ("seed", "1"),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", 7),
    ("stream", "yes"),
    ("logprobs", 21),
    ("logprobs", True),
    ("prompt_logprobs", 21),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"usage": True}),
    ("stream_options", []),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "objecx"}}}),
    ("prompt", []),
    ("prompt", ""),
    ("prompt", None),
    ("prompt", ["a", "b"]),
    ("prompt", [[1, 2], [3]]),
    ("prompt", [4096]),
    ("prompt", [-1]),
    ("prompt", [True]),
    ("prompt", [5] * 1024),
    ("model", 3),
]


def test_what_is_not_honoured_is_refused(server):
    answers = [(field, value, *server.refused({"prompt": "def", field: value})) for field, value in NOT_HONOURED]
    right = (400, 400, "BadRequestError")
    assert not [
        (field, value, status, error)
        for field, value, status, error in answers
        if (status, error["code"], error["type"]) != right or error["param"] not in {field, "max_tokens"}
    ]


@pytest.fixture
def refusing():
    with served(prompt_logprobs=False) as client:
        yield client


def test_prompt_logprobs_can_be_refused(refusing):
    """As by engines that serve none; everything else is honoured as ever."""
    status, error = refusing.refused({"prompt": "def", "prompt_logprobs": 1})
    assert (status, error["param"]) == (400, "prompt_logprobs")
    assert refusing.complete({"prompt": "def", "prompt_logprobs": None, "max_tokens": 2})["choices"][0]["text"]


def test_prompts_of_token_ids_can_be_refused():
    with served(token_prompts=False) as client:
        status, error = client.refused({"prompt": [1, 2]})
        assert client.complete({"prompt": "def", "max_tokens": 2})["choices"][0]["text"]
    assert (status, error["param"]) == (400, "prompt")


def test_an_unknown_model_is_404(baseline):
    status, error = baseline.refused({"prompt": "def", "model": "gpt"})
    assert (status, error["type"]) == (404, "NotFoundError")


def test_a_misspelt_field_is_told_its_neighbour(baseline):
    assert "temperature" in baseline.refused({"prompt": "def", "temprature": 1})[1]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        [],
        {"prompt": "x", "max_tokens": 1024},
        {"prompt": "x", "n": 2, "temperature": 0},
        {"prompt": "x", "stream": True, "prompt_logprobs": 1},
    ],
)
def test_a_body_that_makes_no_sense_is_refused(baseline, body):
    assert baseline.refused(body)[0] == 400


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        ["x"],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "x", "tool_calls": []}],
    ],
)
def test_strange_messages_are_refused(baseline, messages):
    assert baseline.refused({"messages": messages}, "/v1/chat/completions")[0] == 400


def test_chat_top_logprobs_need_logprobs(baseline):
    messages = [{"role": "user", "content": "x"}]
    assert baseline.refused({"messages": messages, "top_logprobs": 2}, "/v1/chat/completions")[1]["param"] == "top_logprobs"


def test_chat_takes_either_name_of_the_limit(baseline):
    for name in ("max_tokens", "max_completion_tokens"):
        assert baseline.chat("x", **{name: 3}, ignore_eos=True)["usage"]["completion_tokens"] == 3
