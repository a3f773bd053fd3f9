"""A repro folder: what it says, and a script that tells a wrong server from a right one."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest

from pytest_specdec.engines.optional import BugForm
from pytest_specdec.engines.registry import installed_engines
from pytest_specdec.model.transcript import Answer, Choice, Position, Score, Usage
from pytest_specdec.model.verdict import Example, Symptom
from pytest_specdec.model.workload import Family, Request, Route, Workload
from pytest_specdec.report import repro, repro_script
from tests.report.runs import ENVIRONMENT, FAILED
from tests.report.stub_server import serve

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "required": ["a"]}}}
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0.0, "response_format": SCHEMA}
REQUESTS = tuple(Request(id=f"chat-{i}", route=Route.CHAT, body={**BODY, "seed": i}) for i in range(5))
WORKLOAD = Workload(name="chat", version=1, requests=REQUESTS, waves=(2, 3))


def answer(text, **fields):
    choice = Choice(text=text, token_ids=tuple(range(len(text))), finish_reason="stop")
    usage = Usage(prompt_tokens=3, completion_tokens=len(text))
    return Answer(**{"request_id": "chat-3", "status": 200, "choices": (choice,), "usage": usage, **fields})


POSITION = Position(token_id=1, logprob=-9.0, top_ids=(2,), top_logprobs=(-0.1,))
SCORE = Score(request_id="chat-3", arm="draft-k3", under="baseline", positions=(POSITION,))


def repro_of(symptom=Symptom.TEXT, *, texts=("the same beginning", "the same end"), **fields):
    arms = [repro.ArmRecord(command=f"serve --port {port}", answer=answer(text)) for port, text in zip((8001, 8002), texts, strict=True)]
    example = Example(symptom=symptom, request_id="chat-3", limit_nats=0.5)
    return repro.Repro(**{
        "verdict": replace(FAILED, example=example),
        "example": example,
        "request": REQUESTS[3],
        "groups": ((REQUESTS[3],),),
        "concurrency": 3,
        "streamed": False,
        "deadline_s": 5.0,
        "body": {},
        "baseline": arms[0],
        "speculative": replace(arms[1], score=SCORE),
        "environment": ENVIRONMENT,
        "release": "9.9",
        "replay": "pytest --pyargs x --specdec-replay .",
        **fields,
    })  # fmt: skip


@pytest.mark.parametrize("family, beside, expected", [
    (Family.GREEDY, (), [[3]]),
    (Family.GREEDY, (0, 4), [[0, 3, 4]]),
    (Family.STATE, (), [[0], [1], [2], [3]]),
    (Family.OFFLOAD, (), [[0], [1], [2], [3]]),
    (Family.ADAPTERS, (), [[0, 1], [2, 3, 4]]),
    (Family.LONG, (), [[0, 1], [2, 3, 4]]),
    (Family.CONCURRENCY, (), [[2, 3, 4]]),
    (Family.PRESSURE, (), [[2, 3, 4]]),
])  # fmt: skip
def test_a_request_comes_with_those_that_its_family_is_about(family, beside, expected):
    example = Example(symptom=Symptom.TEXT, request_id="chat-3", beside=tuple(f"chat-{i}" for i in beside))
    groups = repro.requests_to_send(example, family, WORKLOAD)
    assert [[int(request.id.removeprefix("chat-")) for request in group] for group in groups] == expected


def test_a_request_comes_with_the_one_that_has_to_be_sent_right_before_it():
    example = Example(symptom=Symptom.UNANSWERED, request_id="chat-3", after="chat-1")
    assert [[one.id for one in group] for group in repro.requests_to_send(example, Family.STATE, WORKLOAD)] == [["chat-1"], ["chat-3"]]


@pytest.mark.parametrize("line, expected", [
    ("# /a/venv/bin/python3.11 -m vllm.server --port 40283 --x '{\"a\": 1}'", "python -m vllm.server --port 8002 --x '{\"a\": 1}'"),
    ("# /opt/env/bin/vllm serve /models/m --port=4", "vllm serve /models/m --port=8002"),
    ("ready: no command", ""),
    ("", ""),
])  # fmt: skip
def test_a_server_command_has_no_place_of_this_machine_and_a_port_of_the_repros(line, expected):
    assert repro.server_command(line, "speculative") == expected


def test_a_process_that_is_not_asked_keeps_the_port_that_others_find_it_by():
    line = "# /venv/bin/vllm serve m --port 20001"
    assert repro.server_command(line, "speculative", is_asked=False) == "vllm serve m --port 20001"


def test_a_servers_variables_come_before_its_command_and_expand_nothing_but_variables():
    env = {"A": "x,${SPECDEC_TEST}", "B": '$(id) `id` "$HOME" \\'}
    command = repro.server_command('# sh -c \'printf %s%s "$A" "$B"\'', "baseline", env)
    shell = subprocess.run(["sh", "-c", command], env={"SPECDEC_TEST": "7"}, capture_output=True, text=True, check=True)
    assert shell.stdout == 'x,7$(id) `id` "$HOME" \\'


def test_a_folder_says_what_is_wrong_how_to_see_it_and_under_which_versions():
    files = repro.files(repro_of())
    assert sorted(files) == ["README.md", "curl.sh", "issue.md", "observed.json", "repro.py", "request.json", "requests.json"]
    readme = files["README.md"]
    assert readme.startswith("# Speculative decoding (ngram-k3): accept-all\n")
    for line in ('both begin   "the same "', 'baseline:    "beginning"', 'speculative: "end"', "serve --port 8001", "serve --port 8002"):
        assert f"\n{line}\n" in readme
    assert "- engine: reference 0.1.0\n" in readme
    assert "\npip install pytest-specdec==9.9\npytest --pyargs x --specdec-replay .\n" in readme
    assert json.loads(files["requests.json"]) == [[["/chat/completions", dict(REQUESTS[3].body)]]]
    assert json.loads(files["request.json"]) == {"model": "MODEL", **REQUESTS[3].body}
    observed = json.loads(files["observed.json"])
    assert observed["baseline"]["choices"][0]["text"] == "the same beginning"
    assert observed["speculative"]["under_the_baseline"][0] == {
        "token_id": 1,
        "logprob": -9.0,
        "best_token_id": 2,
        "best_logprob": -0.1,
    }


def test_fields_that_the_config_lays_over_bodies_are_sent_too():
    files = repro.files(repro_of(body={"chat_template_kwargs": {"enable_thinking": False}}))
    assert json.loads(files["requests.json"])[0][0][1]["chat_template_kwargs"] == {"enable_thinking": False}


def speculating(made, headers, body):
    return replace(made, speculative=replace(made.speculative, headers=headers, body=body))


@pytest.mark.parametrize("streamed", [False, True])
def test_each_arm_gets_the_fields_and_headers_of_its_own(run_script, monkeypatch, streamed):
    """An engine that speculates by request is wrong only where the request says so."""
    same = reply("the same beginning")
    wrong = lambda body: reply("the same end") if body.get("speculative") else same  # noqa: E731
    stream = lambda body: [{"choices": [{"index": 0, "delta": {"content": wrong(body)["choices"][0]["message"]["content"]}}]}]  # noqa: E731
    made = speculating(
        repro_of(streamed=streamed), {"x-key": "k ${GATEWAY_KEY}"}, {"speculative": True, "user": ["INDEX", "${GATEWAY_KEY}"]}
    )
    monkeypatch.setenv("GATEWAY_KEY", "secret-7")
    code, _, bodies = run_script(made, [stream if streamed else wrong], [stream if streamed else wrong])
    assert (code, bodies[0]["user"], bodies[0]["speculative"]) == (1, ["INDEX", "secret-7"], True)
    assert run_script.headers[0]["x-key"] == "k secret-7"
    files = repro.files(made)
    assert "set GATEWAY_KEY" in files["README.md"]
    assert '-H "x-key: k ${GATEWAY_KEY}"' in files["curl.sh"]
    assert json.loads(files["request.json"])["speculative"] is True
    assert not any("secret-7" in text for text in files.values())


def test_an_unset_variable_is_no_fault(run_script, monkeypatch):
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    code, line, bodies = run_script(speculating(repro_of(), {}, {"user": "${GATEWAY_KEY}"}), [OK], [OK])
    assert (code, bodies) == (2, [])
    assert line.endswith("KeyError('GATEWAY_KEY')")


def test_hostile_text_ends_no_block_of_code():
    files = repro.files(repro_of(texts=("```` \x1b[2J\n<script>", "~~~ ``` \u202e")))
    for name in ("README.md", "issue.md"):
        text = files[name]
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
        block = re.search(r"^(`{3,})text\n(.*?)^\1$", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        assert len(block[1]) > 4
        assert "<script>" not in text.replace(block[0], "")


@pytest.mark.parametrize("engine", [engine for engine in installed_engines() if isinstance(engine, BugForm)], ids=lambda e: e.kind)
def test_each_trackers_form_is_filled(engine):
    issue = repro.files(repro_of(), engine.bug_form())["issue.md"]
    assert issue.startswith("[Bug]: Speculative decoding (ngram-k3): accept-all\n\n### ")
    for part in ("- engine: reference", "the same ", "python repro.py", "look(", '"/chat/completions"'):
        assert part in issue
    assert not re.search(r"\{(environment|description|reproduction)\}", issue)


def reply(text, *, finish="stop", tokens=3, logprobs=None):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish, "prompt_logprobs": None}
    top = None if logprobs is None else [None, *({"7": {"logprob": value}} for value in logprobs)]
    return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}, "prompt_logprobs": top}


@pytest.fixture
def run_script(tmp_path, monkeypatch, capsys):
    """Run a repro's script against two servers; return its exit code, its last line and what the speculative server was sent."""

    def run(made, baseline, speculative):
        for name, text in repro.files(made).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        with serve(*baseline) as one, serve(*speculative) as other:
            for name, server in (("BASELINE", one), ("SPECULATIVE", other)):
                monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}/v1")
            with pytest.raises(SystemExit) as exit_:
                runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
        captured, run.headers = capsys.readouterr(), other.headers
        return exit_.value.code, (captured.out or captured.err).strip().splitlines()[-1], other.bodies

    return run


OK = reply('{"a": 1}')


@pytest.mark.examples(2)
@pytest.mark.parametrize("symptom, right, wrong", [
    (Symptom.TEXT, reply("the same beginning"), reply("the same end")),
    (Symptom.ANSWER, OK, reply('{"a": 1}', finish="length")),
    (Symptom.ANSWER, OK, reply('{"a": 1}', tokens=4)),
    (Symptom.LOGPROBS, reply("", logprobs=[-0.1, -1.0]), reply("", logprobs=[-0.1, -1.6])),
    (Symptom.DOCUMENT, OK, reply('{"a": 1')),
    (Symptom.DOCUMENT, OK, reply('{"b": 1}')),
    (Symptom.UNANSWERED, OK, None),
])  # fmt: skip
def test_the_script_is_red_while_the_fault_is_there_and_green_when_it_is_gone(run_script, symptom, right, wrong):
    made = repro_of(symptom)
    code, line, bodies = run_script(made, [right], [wrong])
    assert (code, line.partition(":")[0]) == (1, "WRONG")
    assert bodies == [REQUESTS[3].body]
    assert run_script(made, [right], [right])[:2] == (0, "right: the fault does not show")
    imports = {line.split()[1].partition(".")[0] for line in repro.files(made)["repro.py"].splitlines() if re.match("(from|import) ", line)}
    assert imports - sys.stdlib_module_names <= {"openai", "jsonschema"}


def test_a_seed_is_asked_twice(run_script):
    made, one, other = repro_of(Symptom.UNREPEATED), reply("one"), reply("other")
    assert run_script(made, [one, one], [other, one])[0] == 1
    assert run_script(made, [one, one], [other, other])[0] == 0
    assert run_script(made, [one, other], [other, one])[0] == 0


def test_log_probabilities_within_the_limit_and_a_baseline_without_an_answer_are_no_fault(run_script):
    near = [reply("", logprobs=[-1.0])], [reply("", logprobs=[-1.4])]
    assert run_script(repro_of(Symptom.LOGPROBS), *near)[0] == 0
    code, line, bodies = run_script(repro_of(), [None], [OK])
    assert (code, line.partition(":")[0], bodies) == (2, "the baseline has no answer", [])


def test_a_server_that_is_not_up_is_no_fault(tmp_path, monkeypatch, capsys):
    for name, text in repro.files(repro_of()).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with serve(OK) as one:
        monkeypatch.setenv("BASELINE", f"http://127.0.0.1:{one.server_port}/v1")
        monkeypatch.setenv("SPECULATIVE", "http://127.0.0.1:9/v1")
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    assert exit_.value.code == 2
    assert "no server answers at SPECULATIVE, http://127.0.0.1:9/v1" in capsys.readouterr().err


@pytest.mark.parametrize("earlier, sentence", [
    ((), "The script sends the request alone; in the run up to 3 requests were in flight."),
    ((REQUESTS[:1], REQUESTS[1:2]), "The script sends the request alone, after 2 others, one at a time;"),
    ((REQUESTS[:3],), "The script sends the request alone, after 3 others, in 1 group;"),
    ((REQUESTS[:1], REQUESTS[1:3]), "The script sends the request alone, after 3 others, in 2 groups;"),
])  # fmt: skip
def test_the_readme_says_what_is_sent_before(earlier, sentence):
    made = repro_of(groups=(*earlier, (REQUESTS[3],)))
    assert sentence in repro.files(made)["README.md"].replace("\n", " ")


def test_groups_are_sent_one_after_another_and_one_of_the_last_is_judged(run_script):
    groups = ((REQUESTS[0],), (REQUESTS[3], REQUESTS[1]))
    same = reply("the same beginning")
    code, _, bodies = run_script(repro_of(groups=groups), [same], [same])
    assert code == 0
    assert bodies[0]["seed"] == 0
    assert {body["seed"] for body in bodies[1:3]} == {1, 3}
    assert len(bodies) == 3 * repro_script.TRIES


def test_the_answer_that_is_judged_is_that_to_its_own_request(run_script):
    """Whichever place its request has in the group."""

    def wrong_to(seed):
        return lambda body: reply("the same end" if body["seed"] == seed else "the same beginning")

    for group in ((REQUESTS[3], REQUESTS[1]), (REQUESTS[1], REQUESTS[3])):
        assert run_script(repro_of(groups=(group,)), [reply("the same beginning")], [wrong_to(3)])[0] == 1
        assert run_script(repro_of(groups=(group,)), [reply("the same beginning")], [wrong_to(1)])[0] == 0


def test_requests_in_flight_together_are_sent_again_until_the_fault_shows(run_script):
    groups = ((REQUESTS[3], REQUESTS[1]),)
    same, other = reply("the same beginning"), reply("the same end")
    code, _, bodies = run_script(repro_of(groups=groups), [same], [*[same] * 4, other])
    assert (code, len(bodies)) == (1, 6)


PLAIN = {name: value for name, value in BODY.items() if name != "response_format"}
GROUP = tuple(
    Request(id=f"chat-{i}", route=route, body={**PLAIN, "seed": i})
    for i, route in ((3, Route.CHAT), (1, Route.CHAT), (2, Route.COMPLETIONS))
)


def likely(body, *tokens):
    """Return a reply of tokens, each with another one and its distance in nats."""
    text = "".join(token for token, _, _ in tokens)
    if "messages" not in body:
        top = [{token: -0.1, other: -0.1 - nats} for token, other, nats in tokens]
        logprobs = {"tokens": [token for token, _, _ in tokens], "top_logprobs": top}
        choice = {"text": text, "finish_reason": "length", "logprobs": logprobs if "logprobs" in body else None}
        return {**reply(""), "choices": [choice]}
    top = [
        {"token": token, "top_logprobs": [{"token": token, "logprob": -0.1}, {"token": other, "logprob": -0.1 - nats}]}
        for token, other, nats in tokens
    ]
    answer = reply(text, finish="length")
    answer["choices"][0]["logprobs"] = {"content": top} if body.get("logprobs") else None
    return answer


def baseline_tokens(body):
    return likely(body, ("the", " a", 5.0), (" same", " next", 0.2), (" end", " start", 5.0))


def other_text(seed, text):
    """Return a server that answers one request with another text."""

    def answer(body):
        return likely(body, (text, "", 5.0)) if body["seed"] == seed else baseline_tokens(body)

    return answer


@pytest.mark.examples(2)
@pytest.mark.parametrize("seed", [1, 2], ids=["chat", "completions"])
@pytest.mark.parametrize("text, code", [
    ("the same start", 1),
    ("the next end", 0),
    ("the end", 1),
    ("the", 0),
    ("the same", 1),
    ("the same end and on", 1),
])  # fmt: skip
def test_every_answer_of_a_group_is_compared_but_for_near_ties(run_script, seed, text, code):
    """The second token has another one that is nearly as likely; the third has not."""
    made = repro_of(request=GROUP[0], groups=(GROUP,), example=Example(symptom=Symptom.TEXT, request_id="chat-3"))
    assert run_script(made, [baseline_tokens], [other_text(seed, text)])[0] == code


def test_only_the_baseline_is_asked_for_log_probabilities_and_without_them_no_other_answer_counts(run_script):
    made = repro_of(request=GROUP[0], groups=(GROUP,))
    code, _, bodies = run_script(
        made, [lambda body: likely({**body, "logprobs": None} if "messages" in body else body, ("one", "", 5.0))], [other_text(1, "two")]
    )
    assert code == 1, "its own request is compared as it is alone"
    assert not any("logprobs" in body for body in bodies)

    def silent(body):
        return likely({name: value for name, value in body.items() if name != "logprobs"}, ("the same end", "", 5.0))

    assert run_script(made, [silent], [other_text(1, "two")])[0] == 0


@pytest.mark.examples(2)
@pytest.mark.parametrize("fields", [{"presence_penalty": 1.0}, {"response_format": SCHEMA}, {"temperature": 1.0}])
def test_answers_whose_likeliest_tokens_log_probabilities_do_not_show_are_not_compared(run_script, fields):
    changed = replace(GROUP[1], body={**GROUP[1].body, **fields})
    made = repro_of(request=GROUP[0], groups=((GROUP[0], changed, GROUP[2]),))
    assert run_script(made, [baseline_tokens], [other_text(1, "two")])[0] == 0
    assert run_script(made, [baseline_tokens], [other_text(2, "two")])[0] == 1
    assert "It compares the text of 1 of the others too." in repro.files(made)["README.md"]


def test_a_streamed_answer_is_put_together(run_script):
    """What comes in chunks: text, a tool call whose arguments are split, the finish reason, and at last the usage."""

    def chunk(finish=None, **delta):
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def call(arguments, **named):
        return {"index": 0, "function": {**named, "arguments": arguments}}

    def chunks(finish, first='{"a', second='": 1}'):
        calls = chunk(tool_calls=[call(first, name="f")]), chunk(tool_calls=[call(second)])
        return [chunk(role="assistant", content="So "), *calls, chunk(finish), {"choices": [], "usage": {"completion_tokens": 4}}]

    made = repro_of(Symptom.ANSWER, streamed=True)
    code, _, bodies = run_script(made, [chunks("tool_calls")], [chunks("stop")])
    assert code == 1
    assert bodies == [{**REQUESTS[3].body, "stream": True, "stream_options": {"include_usage": True}}]
    assert run_script(made, [chunks("stop")], [chunks("stop", '{"a": ', "1}")])[0] == 0
    assert run_script(made, [chunks("stop")], [chunks("stop", '{"a": ', "2}")])[0] == 1


def test_a_stream_of_the_responses_api_shows_its_text_its_events_and_its_end(run_script):
    body = {"input": "Hi", "max_output_tokens": 8}

    def stream(*deltas, last="ab", item=True, number=3, end=True):
        message = {"type": "message", "content": [{"type": "output_text", "text": last}]}
        final = {"output": [message], "status": "completed", "usage": {"output_tokens": 4}}
        events = [
            {"type": "response.created", "response": {"status": "in_progress", "output": []}},
            *([{"type": "response.output_item.added", "output_index": 0, "item": message}] if item else []),
            *({"type": "response.output_text.delta", "output_index": 0, "delta": delta} for delta in deltas),
            *([{"type": "response.completed", "response": final, "sequence_number": number}] if end else []),
        ]
        return [{"sequence_number": number, **event} for number, event in enumerate(events)]

    request = replace(REQUESTS[3], route=Route.RESPONSES, body=body)
    made = repro_of(Symptom.ANSWER, streamed=True, request=request, groups=((request,),))
    code, _, bodies = run_script(made, [stream("ab")], [stream("a")])
    assert (code, bodies) == (1, [{**body, "stream": True}])
    assert run_script(made, [stream("ab", number=9)], [stream("a", "b", number=9)])[0] == 0
    for wrong in (stream("ab", last="a"), stream("ab", item=False), stream("ab", number=0), stream("ab", end=False)):
        assert run_script(made, [stream("ab")], [wrong])[0] == 1, wrong
    assert "/responses" in repro.files(made)["curl.sh"]


def test_a_whole_answer_of_the_responses_api_is_compared_like_a_chats(run_script):
    def response(status, arguments="{}"):
        call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": arguments}
        return {"output": [call], "status": status, "incomplete_details": None, "usage": {"output_tokens": 4}}

    request = replace(REQUESTS[3], route=Route.RESPONSES, body={"input": "Hi"})
    made = repro_of(Symptom.ANSWER, request=request, groups=((request,),))
    assert run_script(made, [response("completed")], [response("incomplete")])[0] == 1
    assert run_script(made, [response("completed")], [response("completed", "")])[0] == 1
    assert run_script(made, [response("completed")], [response("completed")])[0] == 0


def test_a_server_whose_address_is_not_set_is_no_fault(tmp_path, monkeypatch, capsys):
    for name, text in repro.files(repro_of()).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.delenv("BASELINE", raising=False)
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    assert exit_.value.code == 2
    assert "no server answers at BASELINE, which is not set" in capsys.readouterr().err


def test_servers_that_report_no_log_probabilities_are_no_fault(run_script):
    code, _, _ = run_script(repro_of(symptom=Symptom.LOGPROBS), [reply("the same beginning")], [reply("the same beginning")])
    assert code == 2
