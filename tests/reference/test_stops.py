"""Stops, ends and limits by a second statement of vLLM's rules, token by token, whatever the windows of a server are."""

from __future__ import annotations

import pytest

from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served

RUN = "import sys\n" * 6
CODE = "def main():\n"
END = "<|im_start|>user\nWrite JSON.<|im_end|>\n<|im_start|>assistant\n"
EOS = 2


def asked(prompt, **body):
    return {"prompt": prompt, "temperature": 0, "max_tokens": 40, "return_token_ids": True, **body}


def outcome(answer):
    choice, usage = answer["choices"][0], answer["usage"]
    assert usage["completion_tokens"] == len(choice["token_ids"])
    return choice["text"], choice["token_ids"], choice["finish_reason"], choice["stop_reason"]


def ruled(pieces, ids, *, stop=(), stop_ids=(), include=False, least=0, most=40):
    """Take the tokens one by one: an end by id first, then the limit, then the first stop string that is complete, which overrules it."""
    for count in range(1, most + 1):
        token, text = ids[count - 1], b"".join(pieces[i] for i in ids[:count]).decode()
        if token in stop_ids or token == EOS:
            text = text if include else b"".join(pieces[i] for i in ids[: count - 1]).decode()
            return text, ids[:count], "stop", None if token == EOS else token
        shorter = b"".join(pieces[i] for i in ids[: count - 1]).decode()
        complete = sorted(
            (at + len(s), stop.index(s), at, s)
            for s in stop
            for at in range(len(text))
            if text.startswith(s, at) and at + len(s) > len(shorter)
        )
        if complete and count > least:
            end, _, at, found = complete[0]
            return text[: end if include else at], ids[:count], "stop", found
        if count == most:
            return text, ids[:count], "length", None
    raise AssertionError


@pytest.fixture(scope="module")
def plain(baseline):
    return {prompt: outcome(baseline.complete(asked(prompt)))[1] for prompt in (RUN, CODE)}


STOPS = [("sys",), ("\n",), ("sys\nimport",), ("sys\nimport sys\nimport sys\n",), ("y", "sys"), ("t s", "port"), ("import sys\nim",)]


@pytest.mark.examples(2)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_an_answer_at_the_token_that_completes_it(server, plain, stop, include):
    pieces, body = server.engine.tokenizer.pieces, {"stop": list(stop), "include_stop_str_in_output": include}
    for least, most in ((0, 40), (0, 4), (0, 5), (2, 40), (4, 9), (7, 40)):
        answer = server.complete(asked(RUN, **body, min_tokens=least, max_tokens=most))
        assert outcome(answer) == ruled(pieces, plain[RUN], stop=stop, include=include, least=least, most=most)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_an_answer_and_has_no_text_unless_asked_for(server, plain, include):
    pieces = server.engine.tokenizer.pieces
    for at in (0, 1, 3, 6, 11):
        stop_ids = [plain[CODE][at], 4095]
        answer = server.complete(asked(CODE, stop_token_ids=stop_ids, include_stop_str_in_output=include))
        assert outcome(answer) == ruled(pieces, plain[CODE], stop_ids=stop_ids, include=include)


@pytest.mark.parametrize("fields, named", [({}, None), ({"ignore_eos": True}, EOS)])
def test_an_end_of_sequence_among_the_stop_tokens_is_named_only_where_ends_are_ignored(server, fields, named):
    """As in vLLM, whose ``check_stop`` looks for the end of sequence first."""
    _, ids, finish, reason = outcome(server.complete(asked(END, stop_token_ids=[EOS], max_tokens=200, **fields)))
    assert (ids[-1], finish, reason) == (EOS, "stop", named)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_holds_back_what_may_be_a_stop_string(server, plain, stream):
    body = asked(RUN, stop=["sys\nimport sys\nimport sys\nno"], max_tokens=9, stream=stream)
    if stream:
        text = "".join(chunk["choices"][0]["text"] for chunk in server.stream("/v1/completions", {**body, "stream": True}))
    else:
        text = outcome(server.complete(body))[0]
    assert text == ruled(server.engine.tokenizer.pieces, plain[RUN], most=9)[0]


@pytest.mark.examples(2)
@pytest.mark.parametrize("least", [1, 6, 20, 30])
def test_nothing_ends_an_answer_before_min_tokens(server, baseline, least):
    answer = outcome(server.complete(asked(END, min_tokens=least)))
    assert answer == outcome(baseline.complete(asked(END, min_tokens=least)))
    assert len(answer[1]) >= least
    assert EOS not in answer[1][:least]


def test_min_tokens_keeps_stop_tokens_away(server, plain):
    stop_id = plain[RUN][1]
    answer = outcome(server.complete(asked(RUN, stop_token_ids=[stop_id], min_tokens=10)))
    assert stop_id not in answer[1][:10]


def test_a_document_ends_where_its_grammar_says_whatever_min_tokens(server):
    answer = server.complete(asked(CODE, min_tokens=40, response_format={"type": "json_object"}))
    assert len(answer["choices"][0]["token_ids"]) <= 40


def test_special_tokens_have_a_text_where_they_are_not_skipped(server):
    shown = outcome(server.complete(asked(END, ignore_eos=True, skip_special_tokens=False)))
    assert "<|im_end|>" in shown[0]
    stopped = outcome(server.complete(asked(END, ignore_eos=True, skip_special_tokens=False, stop=["<|im_end|>"])))
    assert (stopped[0], stopped[2:]) == (shown[0].partition("<|im_end|>")[0], ("stop", "<|im_end|>"))


@pytest.mark.parametrize(
    "body", [{"min_tokens": 41}, {"min_tokens": -1}, {"stop_token_ids": [4096]}, {"stop_token_ids": ["2"]}, {"stop_token_ids": 2}]
)
def test_what_cannot_be_is_refused(baseline, body):
    assert baseline.refused(asked(CODE, **body))[0] == 400


@pytest.mark.parametrize("speculation", [PROBABILISTIC, NGRAM])
def test_drafts_end_with_the_context(speculation, plain):
    with served(speculation, max_model_len=48, spec_decode_metrics="detailed") as client:
        prompt = client.complete(asked(RUN, max_tokens=1))["usage"]["prompt_tokens"]
        answer = client.complete(asked(RUN, max_tokens=48 - prompt))
        assert client.refused(asked(RUN, max_tokens=49 - prompt))[0] == 400
    assert outcome(answer)[1] == plain[RUN][: 48 - prompt]
    report = answer["metrics"]["speculative_decoding"]
    tokens = prompt + 1
    for drafted, accepted in zip(report["per_step_drafted"], report["per_step_accepted"], strict=True):
        assert tokens + drafted + 1 <= 48
        tokens += accepted + 1
    assert tokens == 48


@pytest.mark.parametrize("context", [4, 20, 30])
def test_an_answer_goes_on_without_drafts_behind_the_drafts_own_context(context, plain):
    short = type(PROBABILISTIC)(method="draft_model", tokens=3, model="draft", probabilistic=True, max_model_len=context)
    with served(short, spec_decode_metrics="detailed") as client:
        answer, beside = client.complete(asked(RUN), asked("A", max_tokens=2))
    assert outcome(answer)[1] == plain[RUN]
    assert beside["usage"]["completion_tokens"] == 2
    report, tokens = answer["metrics"]["speculative_decoding"], answer["usage"]["prompt_tokens"] + 1
    for drafted, accepted in zip(report["per_step_drafted"], report["per_step_accepted"], strict=True):
        assert drafted == max(0, min(3, context - tokens))
        tokens += accepted + 1
    assert tokens > context
