"""A script that shows one fault on two servers with the openai package alone.

It is put together from the texts below, which hold placeholders in capitals, such as MOST. The symptom is what is wrong with the answer,
such as its text or its log-probabilities. An arm is one of the two servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.judge.tolerance import STATED
from pytest_specdec.model.verdict import Symptom

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.verdict import Example

    Arms = Mapping[str, Mapping[str, Mapping[str, object]]]

__all__ = ["Sending", "packages", "script"]

TRIES = 10
"""Times that requests are sent together: which of them meets the fault depends on the order in which they arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a script sends the requests beside it."""

    index: int
    """Of the wrong answer's request in the last group, from 0."""
    most: int
    """Requests in flight together at most."""
    streamed: bool
    """Whether that request is streamed; the others are not."""
    deadline_s: float
    tries: int = 1
    """Times that all of it is sent, until the fault shows."""
    others: tuple[int, ...] = ()
    """Places in the last group of requests whose texts are compared too: the fault may strike any of them."""
    arms: Arms = field(default_factory=dict)
    """Headers and body fields of each arm's requests, by the name of its address; empty if neither arm has any."""
    has_responses: bool = False
    """Whether some request goes to the Responses API."""


_BEGINNING = '''\
"""Ask two servers the same; exits with 1 while the speculative one is wrong, with 0 when it is right, with 2 if a server is not up.

    pip install PACKAGES
    BASELINE=http://127.0.0.1:8001/v1 SPECULATIVE=http://127.0.0.1:8002/v1 python repro.py
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

IMPORTS

# Groups of [path, body], sent one after another, up to MOST requests in flight. Request INDEX of the last group, from 0, went wrong.
GROUPS = json.loads((Path(__file__).parent / "requests.json").read_text(encoding="utf-8"))


def connect(arm):
    client = OpenAI(base_url=os.environ[arm], api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0, timeout=DEADLINE)OWN_HEADERS
    return client, client.models.list().data[0].id


def ask(arm):
    client, model = connect(arm)

    def send(request):
        path, body = request
        SEND

    for group in GROUPS:
        with ThreadPoolExecutor(MOST) as pool:
            answers = list(pool.map(send, group))
    return answers


def text(answer):
    choice = answer["choices"][0]
    message = choice.get("message") or {}
    calls = [[call["function"][name] for name in ("name", "arguments")] for call in message.get("tool_calls") or []]
    return choice.get("text") or (message.get("content") or "") + (json.dumps(calls) if calls else "")
'''

_WHOLE = 'return client.post(path, body={"model": model, **body}, cast_to=object)'
_STREAMED = """\
if request is not GROUPS[-1][INDEX]:
            return client.post(path, body={"model": model, **body}, cast_to=object)
        body = {"model": model, **body, "stream": True, "stream_options": {"include_usage": True}}
        return join(client.post(path, body=body, cast_to=object, stream=True, stream_cls=Stream[object]))"""
_JOIN = """\
def join(chunks):
    content, calls, finish_reason, usage = "", {}, None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"][:1]:
            delta = choice.get("delta") or {}
            content += choice.get("text") or delta.get("content") or ""
            finish_reason = choice.get("finish_reason") or finish_reason
            for call in delta.get("tool_calls") or []:
                function = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                for name, part in (call.get("function") or {}).items():
                    function[name] += part or ""
    message = {"content": content, "tool_calls": [{"function": function} for function in calls.values()]}
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}
"""
_WHOLE_RESPONSE = 'return as_chat(client.post(path, body={"model": model, **body}, cast_to=object))'
_STREAMED_RESPONSE = """\
if request is not GROUPS[-1][INDEX]:
            return as_chat(client.post(path, body={"model": model, **body}, cast_to=object))
        body = {"model": model, **body, "stream": True}
        return join_events(client.post(path, body=body, cast_to=object, stream=True, stream_cls=Stream[object]))"""
_AS_CHAT = """\
def as_chat(response):
    # The answer of the Responses API in the form of the chat route.
    if "output" not in response:
        return response
    calls = [{"function": item} for item in response["output"] if item["type"] == "function_call"]
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    message = {"content": "".join(part.get("text") or "" for part in parts), "tool_calls": calls}
    finish_reason = [response["status"], (response.get("incomplete_details") or {}).get("reason")]
    usage = {"completion_tokens": (response.get("usage") or {}).get("output_tokens")}
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}
"""
_JOIN_EVENTS = """\
def join_events(events):
    # What a client puts together from the deltas, the kinds of events in order, and what the last one says.
    content, calls, kinds, final, number, rises = "", {}, [], {}, -1, True
    try:
        for event in events:
            kind, place = event["type"], event.get("output_index")
            kinds += [kind] if kinds[-1:] != [kind] else []
            rises, number = rises and event.get("sequence_number", -1) > number, event.get("sequence_number", -1)
            final = event.get("response") or {}
            if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
                calls[place] = {"name": event["item"]["name"], "arguments": ""}
            if kind == "response.output_text.delta":
                content += event["delta"]
            if kind == "response.function_call_arguments.delta" and place in calls:
                calls[place]["arguments"] += event["delta"]
    except Exception as error:
        raise OpenAIError(f"the stream breaks after {kinds[-1:]}: {error!r}") from error
    said = as_chat({"output": [], "status": "no end", **final})
    message = {"content": content, "tool_calls": [{"function": function} for function in calls.values()]}
    joined = {"choices": [{"message": message, "finish_reason": said["choices"][0]["finish_reason"]}], "usage": said["usage"]}
    agrees = text(joined) == text(said)
    return {**joined, "stream": {"events": kinds, "numbers rise": rises, "last event says the same": agrees}}
"""

_ARM_SETTINGS = """\
# What the config of the run adds to each arm's requests; ${VAR} is read from the environment.
ARMS = OWN_SETTINGS


def fill(value):
    if isinstance(value, str):
        return re.sub(r"\\$\\{(\\w+)\\}", lambda match: os.environ[match[1]], value)
    if isinstance(value, dict):
        return {name: fill(item) for name, item in value.items()}
    return [fill(item) for item in value] if isinstance(value, list) else value
"""
_SET_ARM_HEADERS = '\n    client = client.with_options(default_headers=fill(ARMS[arm])["headers"])'
_ADD_ARM_FIELDS = """\
body = {**body, **fill(ARMS[arm]["body"])}
        """
_ASK_LOGPROBS = """\
if arm == "BASELINE" and any(request is GROUPS[-1][index] for index in OTHERS):
            body = {**body, **({"logprobs": True, "top_logprobs": 5} if "chat" in path else {"logprobs": 5})}
        """
_ONE = """\
def compare(baseline, speculative):
    return look(baseline[INDEX], speculative[INDEX])
"""
_ALL = """\
# Others of the last group, at temperature 0. Which request the fault strikes depends on the order in which they arrive.
OTHERS = [OTHER_REQUESTS]


def compare(baseline, speculative):
    wrong = look(baseline[INDEX], speculative[INDEX])
    for index in [] if wrong else OTHERS:
        pair = baseline[index], speculative[index]
        if text(pair[0]) != text(pair[1]) and not near_tie(*pair):
            print(f"request {index}: baseline:   ", repr(text(pair[0])))
            print(f"request {index}: speculative:", repr(text(pair[1])))
            wrong = f"the texts differ, of request {index}"
    return wrong


def near_tie(baseline, speculative):
    # By the baseline, the first other token is as likely as its own, but for LIMIT nats. Also true if its log-probabilities do not say.
    likely, seen, answer = tokens(baseline), "", text(speculative)
    if "".join(token for token, _ in likely) != text(baseline):
        return True
    for token, top in likely:
        if not answer.startswith(seen + token):
            rest = answer[len(seen) :]
            near = [other for other, logprob in top.items() if other != token and max(top.values()) - logprob <= LIMIT]
            return any(rest.startswith(other) or not rest for other in near)
        seen += token
    return baseline["choices"][0]["finish_reason"] != "length"


def tokens(answer):
    reported = answer["choices"][0].get("logprobs") or {}
    if "content" in reported:
        return [(each["token"], {other["token"]: other["logprob"] for other in each["top_logprobs"]}) for each in reported["content"]]
    return list(zip(reported.get("tokens", []), reported.get("top_logprobs", [])))
"""

_TEXT = """\
def look(baseline, speculative):
    # Up to the first character that was another one in the run.
    baseline, speculative = text(baseline)[:CHARACTERS], text(speculative)[:CHARACTERS]
    print("baseline:   ", repr(baseline))
    print("speculative:", repr(speculative))
    return "the texts differ" if speculative != baseline else ""
"""

_ANSWER = """\
def facts(answer):
    choice, usage = answer["choices"][0], answer["usage"]
    seen = {"text": text(answer), "finish_reason": choice["finish_reason"], "completion_tokens": usage["completion_tokens"]}
    return {**seen, **answer.get("stream", {})}


def look(baseline, speculative):
    print("baseline:   ", facts(baseline))
    print("speculative:", facts(speculative))
    return "the answers differ" if facts(speculative) != facts(baseline) else ""
"""

_LOGPROBS = """\
def logprobs(answer):
    choice = answer["choices"][0]
    reported = choice.get("logprobs") or {}
    prompt = choice.get("prompt_logprobs") or answer.get("prompt_logprobs") or []
    of_prompt = [next(iter(token.values()))["logprob"] for token in prompt if token]
    return of_prompt or reported.get("token_logprobs") or [token["logprob"] for token in reported.get("content") or []]


def look(baseline, speculative):
    pairs = [(b, s) for b, s in zip(logprobs(baseline), logprobs(speculative)) if b is not None and s is not None]
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    print(f"{len(pairs)} log-probabilities; furthest apart: baseline {worst[0]:.4f}, speculative {worst[1]:.4f}")
    return "log-probabilities differ by more than LIMIT nats" if abs(worst[0] - worst[1]) > LIMIT else ""
"""

_DOCUMENT = """\
def fault(document):
    schema = (GROUPS[-1][INDEX][1]["response_format"].get("json_schema") or {}).get("schema", {})
    try:
        jsonschema.validate(json.loads(document), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return ""


def look(baseline, speculative):
    print("baseline:   ", text(baseline), fault(text(baseline)) or "(valid)")
    print("speculative:", text(speculative), fault(text(speculative)) or "(valid)")
    return "the document is invalid" if fault(text(speculative)) and not fault(text(baseline)) else ""
"""

_UNREPEATED = """\
def look(baseline, speculative):
    again = {arm: text(ask(arm)[INDEX]) for arm in ("BASELINE", "SPECULATIVE")}
    print("baseline:   ", repr(text(baseline)), "then", repr(again["BASELINE"]))
    print("speculative:", repr(text(speculative)), "then", repr(again["SPECULATIVE"]))
    repeats = text(baseline) == again["BASELINE"]
    return "a seed does not repeat its answer" if repeats and text(speculative) != again["SPECULATIVE"] else ""
"""

_UNANSWERED = """\
def look(baseline, speculative):
    return ""
"""

_END = """\
def main():
    for arm in ("BASELINE", "SPECULATIVE"):
        try:
            connect(arm)
        except (OpenAIError, KeyError, IndexError) as error:
            print(f"no server answers at {arm}, {os.environ.get(arm, 'which is not set')}: {error!r}", file=sys.stderr)
            return 2
    for _ in range(TRIES):
        try:
            baseline = ask("BASELINE")
        except OpenAIError as error:
            print(f"the baseline has no answer: {error!r}", file=sys.stderr)
            return 2
        try:
            wrong = compare(baseline, ask("SPECULATIVE"))
        except OpenAIError as error:
            wrong = f"the speculative server has no answer, and the baseline has one: {error!r}"
        if wrong is None:
            print("nothing to compare: a server reports no log-probabilities", file=sys.stderr)
            return 2
        if wrong:
            print("WRONG: " + wrong)
            return 1
    print("right: the fault does not show")
    return 0


if __name__ == "__main__":
    sys.exit(main())
"""


def script(example: Example, sending: Sending, *, characters: int, is_json: bool) -> str:
    """Return a Python script for showing the fault of ``example``.

    It reads the requests from ``requests.json`` beside it, and needs no other file; ``sending`` says how they are sent. Texts are compared
    in their first ``characters`` characters, which end with the first difference in the run. A document is checked against its JSON schema
    if ``is_json``, since it then has to be JSON; a document under another grammar is compared with the baseline's.
    """
    # The script's function that compares both answers; each form has the same name and arguments.
    compare_answers = {
        Symptom.TEXT: _TEXT,
        Symptom.ANSWER: _ANSWER,
        Symptom.LOGPROBS: _LOGPROBS,
        Symptom.DOCUMENT: _DOCUMENT if is_json else _ANSWER,
        Symptom.UNREPEATED: _UNREPEATED,
        Symptom.UNANSWERED: _UNANSWERED,
    }[example.symptom]
    settings = (_ARM_SETTINGS,) if sending.arms else ()  # headers and body fields of one arm's requests alone
    parts = (_BEGINNING, *settings, *_readers(sending), compare_answers, _ALL if sending.others else _ONE, _END)
    text = "\n\n".join(parts)
    # One after another: a value may hold placeholders that are replaced after it.
    for placeholder, value in (
        ("SEND\n", f"{_send(sending)}\n"),
        ("OWN_HEADERS", _SET_ARM_HEADERS if sending.arms else ""),
        ("import os\n", "import os\nimport re\n" if sending.arms else "import os\n"),  # the code of the settings needs re
        ("OTHER_REQUESTS", ", ".join(map(str, sending.others))),
        ("PACKAGES", packages(example, is_json=is_json)),
        ("IMPORTS", _imports(example, sending, is_json=is_json)),
        ("INDEX", str(sending.index)),
        ("MOST", str(sending.most)),
        ("DEADLINE", f"{sending.deadline_s:g}"),
        ("CHARACTERS", str(characters)),
        ("LIMIT", f"{STATED if example.limit_nats is None else example.limit_nats:g}"),  # STATED: the least tolerance of the judges
        ("TRIES", str(sending.tries)),
        ("OWN_SETTINGS", ascii(sending.arms)),  # the last: texts of a config may hold any of the placeholders
    ):
        text = text.replace(placeholder, value)
    return text


def _imports(example: Example, sending: Sending, *, is_json: bool) -> str:
    """Return the import lines of the packages that the script needs."""
    names = "OpenAI, OpenAIError, Stream" if sending.streamed else "OpenAI, OpenAIError"
    _, *others = packages(example, is_json=is_json).split()
    return "".join(f"import {package}\n" for package in others) + f"from openai import {names}"


def _send(sending: Sending) -> str:
    """Return the lines that complete one request's body, send it and return its answer.

    Of other requests whose texts are compared, the baseline's log-probabilities are requested: they tell near-ties from faults.
    """
    complete_body = (_ADD_ARM_FIELDS if sending.arms else "") + (_ASK_LOGPROBS if sending.others else "")
    if sending.has_responses:
        return complete_body + (_STREAMED_RESPONSE if sending.streamed else _WHOLE_RESPONSE)
    return complete_body + (_STREAMED if sending.streamed else _WHOLE)


def _readers(sending: Sending) -> tuple[str, ...]:
    """Return the functions that bring answers into the form of a whole chat answer.

    They join the chunks of a stream, and convert what the Responses API answers; () if neither is needed.
    """
    if sending.has_responses:
        return (_AS_CHAT, _JOIN_EVENTS) if sending.streamed else (_AS_CHAT,)
    return (_JOIN,) if sending.streamed else ()


def packages(example: Example, *, is_json: bool) -> str:
    """Return the packages that the script needs, openai first."""
    return "openai jsonschema" if is_json and example.symptom is Symptom.DOCUMENT else "openai"
