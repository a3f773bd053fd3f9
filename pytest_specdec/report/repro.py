"""A repro: one wrong answer as a folder of files that need nothing of this package."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_specdec.model.grammar import GrammarKind
from pytest_specdec.model.images import shorten_data_urls
from pytest_specdec.model.verdict import Symptom
from pytest_specdec.model.workload import Family, Route
from pytest_specdec.report import repro_script
from pytest_specdec.report.escape import printable, shell_value
from pytest_specdec.report.repro_script import Sending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.baseline import Environment
    from pytest_specdec.model.transcript import Answer, Score
    from pytest_specdec.model.verdict import Example, Verdict
    from pytest_specdec.model.workload import JSON, Request, Workload

__all__ = ["PLAIN_FORM", "ArmRecord", "Repro", "files", "requests_of", "requests_to_send", "script_of", "server_command"]

_PATHS = {Route.CHAT: "/chat/completions", Route.COMPLETIONS: "/completions", Route.RESPONSES: "/responses"}
"""Below an address that ends in /v1."""
_JSON = {GrammarKind.JSON, GrammarKind.JSON_OBJECT}
_WRONG = {
    Symptom.TEXT: "The same request to the same model gets another text with speculative decoding than without.",
    Symptom.ANSWER: "The same request to the same model gets another answer with speculative decoding than without.",
    Symptom.LOGPROBS: "The same request to the same model gets other log-probabilities with speculative decoding than without.",
    Symptom.DOCUMENT: "With speculative decoding an answer breaks the grammar that was asked for; without, it keeps to it.",
    Symptom.UNREPEATED: "With speculative decoding a request with a seed gets another answer each time; without, the same one.",
    Symptom.UNANSWERED: "With speculative decoding the server does not survive a request; without, it answers.",
}
NO_ENV: Mapping[str, str] = MappingProxyType({})
PLAIN_FORM = """\
### Environment

{environment}

### What happens

{description}

### What should happen

The same answer as without speculative decoding.

### Reproduction

{reproduction}
"""
_PORTS = {"baseline": 8001, "speculative": 8002}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRecord:
    """One arm's server and answer, as the run has them."""

    command: str
    """The command of its server; empty if the server ran already."""
    answer: Answer | None
    score: Score | None = None
    """The answer's tokens under the baseline; None without scores."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, JSON] = field(default_factory=dict)
    """Headers and body fields of its requests alone; a ``${VAR}`` in them is left to the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repro:
    """One wrong answer, and what it takes to get it again."""

    verdict: Verdict
    example: Example
    request: Request
    groups: tuple[tuple[Request, ...], ...]
    """Requests to be sent, group after group, in the order of the run; ``request`` is one of the last."""
    concurrency: int
    """Most requests in flight in the run."""
    streamed: bool
    """Whether the wrong answer was streamed."""
    deadline_s: float
    body: Mapping[str, JSON]
    """Fields that the config lays over each body."""
    baseline: ArmRecord
    speculative: ArmRecord
    environment: Environment
    release: str
    """The version of this package that writes the folder."""
    replay: str
    """The command that judges the run's answers again, in the folder."""
    shrunk: str = ""
    """What was left out on live servers, as a sentence; empty if the requests are those of the run."""


def requests_to_send(example: Example, family: str, workload: Workload) -> tuple[tuple[Request, ...], ...]:
    """Return the groups of requests to send to reproduce ``example``.

    Groups are sent one after the other, the requests of a group together, in the order of the run. If the judge has found the smallest
    group that shows the fault, or the request to come before, these are sent. Otherwise ``family``, the kind of test, decides: in *state*
    and *offload* all requests before the wrong one come first, one at a time; in *images*, *adapters* and *long* likewise, grouped as they
    were in flight; in *concurrency* and *pressure* those in flight with it are sent too; in any other family it goes alone.
    """
    wrong = workload.by_id[example.request_id]
    if example.beside:  # the smallest group, by its other requests
        return (tuple(request for request in workload.requests if request is wrong or request.id in example.beside),)
    if example.after:
        return ((workload.by_id[example.after],), (wrong,))
    if family in {Family.STATE, Family.OFFLOAD}:
        return tuple((request,) for request in workload.requests[: workload.requests.index(wrong) + 1])
    if family in {Family.IMAGES, Family.ADAPTERS, Family.LONG}:
        turns = workload.turns
        return turns[: next(number for number, turn in enumerate(turns, 1) if wrong in turn)]
    if family in {Family.CONCURRENCY, Family.PRESSURE}:
        return (next(turn for turn in workload.turns if wrong in turn),)
    return ((wrong,),)


def server_command(line: str, arm: str, env: Mapping[str, str] = NO_ENV, *, is_asked: bool = True) -> str:
    """Return a server's command line, for a reader to type.

    ``line`` is the first line of the server's log, the command after ``# ``. ``arm`` is ``baseline`` or ``speculative``. The program's
    folder and Python's version are left out, and the port is the arm's in the repro. ``env`` are the variables that the config gives the
    server, put before the command; a ``${VAR}`` is left to the reader's shell. Where a server has several processes, one that is not asked,
    so gets no requests, keeps its port, by which the others find it. Empty if the log has no command.
    """
    if not line.startswith("# "):
        return ""
    words = shlex.split(line.removeprefix("# "))
    program = words[0].rpartition("/")[2] if words else ""
    words[:1] = ["python" if re.fullmatch(r"python[0-9.]*", program) else program]
    command = re.sub(r"(?<=--port[ =])\d+", str(_PORTS[arm]), shlex.join(words)) if is_asked else shlex.join(words)
    return " ".join((*(f"{name}={shell_value(value)}" for name, value in env.items()), command))


def files(repro: Repro, form: str = PLAIN_FORM) -> dict[str, str]:
    """Return the texts of the repro's files, by file name.

    ``form`` is the template of the engine's issue tracker, with the fields ``environment``, ``description`` and ``reproduction``.
    """
    request = repro.request
    script = script_of(repro, characters=_shared_characters(repro) + 1)  # up to the first that differs
    issue = form.format(
        environment=_describe_environment(repro), description=_description(repro), reproduction=_reproduction(repro, script)
    )
    return {
        "README.md": _readme(repro),
        "repro.py": script,
        "requests.json": requests_of(repro),
        # What the config lays over all bodies, then over those to the speculative server, replaces fields, but not the choice of weights.
        "request.json": _json({"model": "MODEL", **request.body, **repro.body, **repro.speculative.body, **request.weights}),
        "curl.sh": _curl(request, repro.speculative.headers),
        "observed.json": _json({arm: _describe_answer(record) for arm, record in _arms(repro).items()}),
        "issue.md": f"[Bug]: {_title(repro)}\n\n{issue.rstrip()}\n",
    }


def script_of(repro: Repro, *, characters: int, tries: int = repro_script.TRIES) -> str:
    """Return the repro's Python script, for showing the fault.

    Texts are compared in their first ``characters`` characters. Groups of requests are sent one after another, those of a group together.
    If several of the last group are in flight at once, the fault depends on their order of arrival: all groups are then sent up to
    ``tries`` times, until it shows; else once.
    """
    last = repro.groups[-1]
    in_flight = min(len(last), repro.concurrency)
    sending = Sending(
        index=last.index(repro.request),
        most=in_flight,
        streamed=repro.streamed,
        deadline_s=repro.deadline_s,
        tries=tries if in_flight > 1 else 1,
        others=_comparable_others(repro),
        arms=_request_settings(repro),  # what only one of the two servers is sent
        has_responses=any(request.route is Route.RESPONSES for group in repro.groups for request in group),
    )
    return repro_script.script(repro.example, sending, characters=characters, is_json=_is_json(repro))


def _comparable_others(repro: Repro) -> tuple[int, ...]:
    """Return the indices, in the last group, of other requests to compare too.

    On another try the fault may strike one of them. Each has to take the likeliest token by the reported log-probabilities, which tell
    near-ties from faults: penalties and grammars rule a request out. Empty for a symptom that no text shows.
    """
    if repro.example.symptom not in {Symptom.TEXT, Symptom.ANSWER}:
        return ()
    others = [(index, request) for index, request in enumerate(repro.groups[-1]) if request.id != repro.request.id]
    overlays = [{**repro.body, **record.body} for record in _arms(repro).values()]  # fields that the config sets in requests to each server
    as_sent = ((index, [replace(other, body={**other.body, **overlay}) for overlay in overlays]) for index, other in others)
    return tuple(index for index, to_each_server in as_sent if all(request.takes_likeliest for request in to_each_server))


def _request_settings(repro: Repro) -> repro_script.Arms:
    """Return headers and body fields of one arm's requests only, by arm; empty without any."""
    arms: repro_script.Arms = {name.upper(): {"headers": {**arm.headers}, "body": {**arm.body}} for name, arm in _arms(repro).items()}
    return arms if any(part for arm in arms.values() for part in arm.values()) else {}


def requests_of(repro: Repro) -> str:
    """Return the JSON that the script reads: groups of paths with bodies."""
    return _json([[_request_entry(repro, request) for request in group] for group in repro.groups])


def _is_json(repro: Repro) -> bool:
    """Return True if ``response_format``, the field of the OpenAI API, bound the answer to JSON."""
    grammar = repro.request.grammar
    return grammar is not None and grammar.kind in _JSON and "response_format" in repro.request.body


def _arms(repro: Repro) -> dict[str, ArmRecord]:
    return {"baseline": repro.baseline, "speculative": repro.speculative}


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _request_entry(repro: Repro, request: Request) -> list[object]:
    return [_PATHS[request.route], {**request.body, **repro.body, **request.weights}]


def _answer_text(record: ArmRecord) -> str:
    return record.answer.choice.written if record.answer and record.answer.choices else ""


def _shared_characters(repro: Repro) -> int:
    """Return the length of the beginning that both answers' texts share, in characters."""
    pairs = zip(_answer_text(repro.baseline), _answer_text(repro.speculative), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _describe_answer(record: ArmRecord) -> dict[str, object] | None:
    """Return one server's answer as JSON, with the baseline's scores of its tokens.

    A score is a token's log-probability, beside that of the most probable one; it is left out without the latter. None without an answer.
    """
    answer = record.answer
    if answer is None:
        return None
    choices = [
        {
            "text": choice.written,
            "token_ids": choice.token_ids,
            "finish_reason": choice.finish_reason,
            "logprobs": choice.logprobs,
            "tokens_per_verify_step": choice.windows,
        }
        for choice in answer.choices
    ]
    usage = answer.usage and {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens}
    positions = record.score.positions if record.score else ()
    scores = [
        {"token_id": token.token_id, "logprob": token.logprob, "best_token_id": token.top_ids[0], "best_logprob": token.top_logprobs[0]}
        for token in positions
        if token.top_ids
    ]
    return {
        "status": answer.status,
        "error": answer.error,
        "choices": choices,
        "usage": usage,
        "prompt_token_ids": answer.prompt_token_ids,
        "prompt_logprobs": answer.prompt_logprobs,
        "under_the_baseline": scores,
    }


def _curl(request: Request, headers: Mapping[str, str]) -> str:
    """Return a shell script for sending ``request.json`` by curl."""
    options = "".join("-H " + shell_value(f"{name}: {value}") + " " for name, value in headers.items())
    return (
        "#!/bin/sh\n"
        "# The request alone, to one server, under a name that its /v1/models lists: sh curl.sh http://127.0.0.1:8002/v1 MODEL\n"
        f'sed "s|\\"MODEL\\"|\\"$2\\"|" "$(dirname "$0")/request.json" | curl -s "$1{_PATHS[request.route]}" '
        f'-H "Content-Type: application/json" -H "Authorization: Bearer ${{OPENAI_API_KEY:-none}}" {options}-d @-\n'
    )


def _title(repro: Repro) -> str:
    """Return the fault in one line."""
    fault = repro.verdict.names or repro.verdict.headline.partition(":")[0]
    return printable(f"Speculative decoding ({_drafter(repro)}): {fault}")


def _drafter(repro: Repro) -> str:
    drafter = repro.environment.variants.get(repro.verdict.pair, {}).get("draft", "")
    return f"{repro.verdict.pair}, {drafter}" if drafter else repro.verdict.pair


def _describe_sending(repro: Repro) -> str:
    """Return sentences on what the script sends beside the wrong request, and on how many texts it compares."""
    *earlier_groups, last_group = repro.groups
    earlier, beside = sum(map(len, earlier_groups)), len(last_group) - 1
    together = f"with {beside} other{'s' * (beside > 1)}, up to {repro.concurrency} in flight" if beside else "alone"
    at_a_time = "one at a time" if earlier == len(earlier_groups) else f"in {len(earlier_groups)} group{'s' * (len(earlier_groups) > 1)}"
    after = f", after {earlier} other{'s' * (earlier > 1)}, {at_a_time}" if earlier else ""
    run = f"; in the run up to {repro.concurrency} requests were in flight" if not beside and repro.concurrency > 1 else ""
    others = len(_comparable_others(repro))
    compared = f" It compares the text{'s' * (others > 1)} of {others} of the others too." if others else ""
    return f"The script sends the request {together}{after}{run}.{compared}"


def _describe_difference(repro: Repro) -> list[str]:
    """Return lines on both answers around their first difference.

    They show up to 80 characters before it and 60 from it on, and the ends of the answers. Empty for a symptom that no text shows.
    """
    cut = _shared_characters(repro)
    shared = _answer_text(repro.speculative)[:cut]
    if repro.example.symptom in {Symptom.UNANSWERED, Symptom.LOGPROBS}:
        return []
    rows = [
        f"{arm + ':':<13}{json.dumps(_answer_text(record)[cut : cut + 60], ensure_ascii=False)}" for arm, record in _arms(repro).items()
    ]
    ends = [
        f"{arm + ':':<13}{record.answer.tokens or 0} tokens, finish_reason {record.answer.choice.finish_reason}"
        for arm, record in _arms(repro).items()
        if record.answer and record.answer.choices
    ]
    return [f"both begin   {json.dumps(shared[-80:], ensure_ascii=False)}", "then", *rows, "end", *ends]


def _commands(repro: Repro) -> str:
    """Return the shell commands to start both servers, each below a comment."""
    lines = []
    for arm, record in _arms(repro).items():
        command = record.command or f"(a server that ran already; put its address into {arm.upper()} below)"
        lines += [f"# the {arm} server", command, ""]
    return "\n".join(lines).rstrip()


def _code_to_run(repro: Repro) -> str:
    """Return a code block of commands: servers, variables to set, packages, script."""
    run = "BASELINE=http://127.0.0.1:8001/v1 SPECULATIVE=http://127.0.0.1:8002/v1 python repro.py"
    names = sorted(set(re.findall(r"\$\{(\w+)\}", _json(_request_settings(repro)))))  # of each ${VAR}, which the script fills in
    variables = f"# set {', '.join(names)}\n" if names else ""
    return _code_block(
        "sh", f"{_commands(repro)}\n\n{variables}pip install {repro_script.packages(repro.example, is_json=_is_json(repro))}\n{run}"
    )


def _reproduction(repro: Repro, script: str) -> str:
    """Return the section of an issue on how to reproduce the fault.

    It has both files in full, but for the data of images, which no reader wants to see.
    """
    requests = requests_of(repro)
    without_images = shorten_data_urls(requests)
    beside = "`requests.json`, beside it" + (", is attached: the data of its images is left out here" if without_images != requests else "")
    return "\n\n".join(
        (
            _code_to_run(repro),
            _describe_sending(repro),
            "`repro.py`:",
            _code_block("python", script),
            f"{beside}:",
            _code_block("json", without_images),
        )
    )


def _description(repro: Repro) -> str:
    lines = (repro.verdict.headline, "", *_describe_difference(repro), *(("", *repro.verdict.short) if repro.verdict.short else ()))
    return f"{_WRONG[repro.example.symptom]}\n\n{_code_block('text', chr(10).join(map(printable, lines)))}"


def _code_block(language: str, text: str) -> str:
    """Return ``text`` as a block of code, under a fence longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _describe_environment(repro: Repro) -> str:
    """Return versions, speculation and machine as a Markdown list."""
    environment = repro.environment
    facts = (
        ("engine", f"{environment.engine} {environment.engine_version}"),
        ("model", environment.model),
        ("speculation", _drafter(repro)),
        ("dtype", environment.variants.get(repro.verdict.pair, {}).get("dtype", "")),
        ("machine", ", ".join(filter(None, (environment.processor, *environment.devices)))),
        ("system", f"{environment.system}, Python {environment.python}"),
    )
    return "\n".join(f"- {what}: {value}" for what, value in facts if value)


def _readme(repro: Repro) -> str:
    """Return the README of the repro's folder, in Markdown."""
    return "\n".join(
        (
            f"# {_title(repro)}",
            "",
            _description(repro),
            "",
            "## See it",
            "",
            _code_to_run(repro),
            "",
            "It exits with 1 and prints `WRONG` while the fault is there, with 0 once it is gone.",
            "With 2 a server is not up, or the baseline does not answer.",
            " ".join(filter(None, (_describe_sending(repro), repro.shrunk, *_caution(repro)))),
            "",
            "## Versions",
            "",
            _describe_environment(repro),
            "",
            "## Files",
            "",
            "- `repro.py`, `requests.json`: the script and what it sends",
            "- `request.json`, `curl.sh`: the request alone, for curl",
            "- `observed.json`: both answers of the run: texts, token ids, log-probabilities, and the tokens' scores under the baseline",
            "- `issue.md`: text for the engine's issue tracker, with its template's fields",
            "- `run/`: what the verdict was reached by: the answers, their scores under the baseline, plan and config",
            "",
            "## Judge it again",
            "",
            _code_block("sh", f"pip install pytest-specdec=={repro.release}\n{repro.replay}"),
            "",
            "In this folder these commands come to the verdict above, without a server and without the run.",
            *_requirement(repro),
            "",
        )
    )


def _requirement(repro: Repro) -> tuple[str, ...]:
    """Return a sentence on the test that a replay needs; () for a test of the package's own."""
    return () if " --pyargs " in repro.replay else ("The test is that of the project whose run this is: give its path there.",)


def _caution(repro: Repro) -> tuple[str, ...]:
    """Return a caution on near-ties, two candidates nearly as likely.

    In half precision rounding may swap them, and the script cannot tell that from a fault. () in float32, or if no text shows the symptom.
    """
    exact = repro.environment.variants.get(repro.verdict.pair, {}).get("dtype", "") == "float32"
    if exact or repro.example.symptom not in {Symptom.TEXT, Symptom.ANSWER}:
        return ()
    near_ties = "It compares texts. In half precision two candidates that are nearly as likely may change places without any fault; "
    return (f"{near_ties}the judgement above took that into account.",)
