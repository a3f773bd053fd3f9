"""Four mistakes of a user in one run: each is one clear error where it belongs, and every other test says what it says without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_specdec.capture.server import ports, readiness
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.files.secrets import Secrets
from tests.chaos.raw_server import RawServer, always, response

ROOT = Path(__file__).parents[2]
LOOKUP = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
SUITE = """
from dataclasses import replace

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Route
from pytest_specdec.prompts import ALL

EVERY = ALL.greedy(max_tokens=32)
GOOD = replace(EVERY, name="good", requests=EVERY.requests[:8], take={}, takes_prompts=True)
CHAT = next(request for request in EVERY.requests if request.route is Route.CHAT)
NONE = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": {"type": "objekt"}}}
FAR = {"messages": [{"role": "user", "content": "one two three " * 3000}]}
SCHEMA = replace(GOOD, name="schema", takes_prompts=False, requests=(
    *(replace(CHAT, id=f"ticket-{i}", body={**CHAT.body, "response_format": NONE}) for i in range(2)),
))
LONG = replace(GOOD, name="long", takes_prompts=False)
LONG = replace(LONG, requests=(*EVERY.requests[:12], replace(CHAT, id="novel", body={**CHAT.body, **FAR})))


@pytest.mark.specdec(GOOD, family="greedy")
def test_good(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))


@pytest.mark.specdec(SCHEMA, family="structured")
def test_schema(specdec_captured, specdec_check):
    specdec_check(judge.structured.judge(specdec_captured))


@pytest.mark.specdec(LONG, family="greedy")
def test_long(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))


def test_of_somebody_else():
    pass
"""
PAGE = "<!DOCTYPE html><html><head><title>{0}</title></head><body>{0}</body></html>"
GOOD_LINE = '{"id": "mine", "prompt": "one two three one two three one two"}\n'
BAD_LINE = '{"id": "second", "promt": "def total(items):"}\n'


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """The addresses of a baseline, of a variant, and of two that answer with web pages: a sign-in and a gateway without a server."""
    folder, numbers = tmp_path_factory.mktemp("servers"), [ports.free() for _ in range(2)]
    pages = [
        response(PAGE.format("Sign in"), kind="text/html"),
        response(PAGE.format("502 Bad Gateway"), "502 Bad Gateway", kind="text/html"),
    ]
    with ExitStack() as running:
        for number, options in zip(numbers, ([], ["--speculative-config", LOOKUP]), strict=True):
            argv = [sys.executable, "-m", "specdec_reference", "target", "--port", str(number), *options]
            log = running.enter_context((folder / f"{number}.log").open("wb"))
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=ROOT)
            running.callback(process.wait)
            running.callback(process.terminate)
        for number in numbers:
            while readiness.look(ServerSetup(model="target", port=number, secrets=Secrets()), "/health", seconds=1.0).status is None:
                pass
        raw = [running.enter_context(RawServer(always(page)).running()) for page in pages]
        yield [f"http://127.0.0.1:{number}" for number in (*numbers, *(server.port for server in raw))]


def run(folder, servers, *options, prompts=GOOD_LINE, variants=("mine", "page", "gateway")):
    baseline, *others = servers
    addresses = dict(zip(("mine", "page", "gateway"), others, strict=True))
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "own.jsonl").write_text(prompts)
    named = "".join(f"  {name}: {{url: '{addresses[name]}'}}\n" for name in variants)
    (folder / "pair.yaml").write_text(
        f"engine: {{kind: attach, model: target}}\nbaseline: {{url: '{baseline}'}}\nvariants:\n{named}"
        "limits: {boot_s: 3}\nprompts: own.jsonl\n"
    )
    argv = ["pytest", "test_suite.py", "--specdec-config=pair.yaml", "--specdec-run-dir=run", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def verdicts(folder):
    document = json.loads((folder / "run/run.json").read_text())
    return {(each["pair"], each["workload"]): each.get("verdict") for each in document["judgements"]}


def told(verdict):
    """What a verdict says, but for the noise: that is of draws without seeds."""
    figures = {name: value for name, value in verdict["figures"].items() if "noise" not in name}
    return {"outcome": verdict["outcome"], "headline": verdict["headline"], "figures": figures}


def flat(text):
    return " ".join(text.split())


@pytest.mark.chaos(
    "a schema that is none, a prompt beyond the context, web pages with 200 and 502, in one run",
    expected="4 errors, each named; 2 other tests as without them",
    quick=True,
)
def test_mistakes_stay_where_they_were_made(servers, seen, tmp_path):
    alone, among = tmp_path / "alone", tmp_path / "among"
    for folder in (alone, among):
        folder.mkdir()
    run(alone, servers, "-k", "good or somebody", variants=("mine",))
    done = run(among, servers)
    report, found, usual = flat(done.stdout), verdicts(among), verdicts(alone)
    named = [
        "the JSON schema of request ticket-0 cannot be used at $.type: \"'objekt' is not valid" in report
        and "correct the schema" in report,
        found["mine", "long"]["outcome"] == "pass" and "first novel: " in str(found["mine", "long"]["evidence"]),
        f"{servers[2]} answers with a web page, not as a model's server" in report and "found a web page titled 'Sign in'" in report,
        f"{servers[3]} answers with a web page" in report and "502: a web page titled '502 Bad Gateway'" in report,
    ]
    assert all(named), (named, done.stdout)
    assert "Traceback" not in done.stdout + done.stderr
    kept = [told(verdict) for verdict in (found["mine", "good"], usual["mine", "good"])]
    same = [kept[0] == kept[1] and kept[0]["outcome"] == "pass", "1 failed, 3 passed, 2 errors, 4 not captured" in report]
    assert all(same), (kept, done.stdout)
    seen(f"{sum(named)} errors, each named; {sum(same)} other tests as without them")


@pytest.mark.chaos("a prompts file with a bad line", expected="usage error with the line, nothing captured", quick=True)
def test_a_bad_line_of_prompts_is_named_before_anything_is_asked(servers, seen, tmp_path):
    done = run(tmp_path, servers, prompts=GOOD_LINE + BAD_LINE, variants=("mine",))
    said = flat(done.stderr)
    assert "own.jsonl:2" in said, done.stderr
    assert "promt" in said
    assert "did you mean" in said
    seen(
        ("usage error with the line" if done.returncode == pytest.ExitCode.USAGE_ERROR else f"exit {done.returncode}")
        + (", nothing captured" if not (tmp_path / "run").exists() else ", a run was begun")
    )
