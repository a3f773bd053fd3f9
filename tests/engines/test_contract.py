"""The reference engine keeps its contract, and every clause sees the lie that breaks it; other adapters: tests/faults/test_contracts.py."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import math
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pytest_specdec.capture import planner, rates
from pytest_specdec.capture.client import Client
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.capture.server_recipes import ServerRecipes
from pytest_specdec.config.load import load
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.optional import Recognising
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.engines.protocol import Dialect, Engine, EngineProgram, ServerSetup
from pytest_specdec.engines.reference import Reference
from pytest_specdec.engines.server_counts import Traffic
from pytest_specdec.engines.vllm import Vllm
from pytest_specdec.engines.vllm.dialect import VllmDialect
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.plan import Role
from pytest_specdec.model.transcript import ScoringRoute, SpecCounters
from pytest_specdec.model.workload import Route
from suites.contract import lifecycle, parameters, visit
from suites.contract import test_contract as suite
from suites.contract.claims import outcome
from suites.contract.visit import Visit

ROOT = Path(__file__).parents[2]
CONFIG = """\
engine: {kind: reference, model: target, args: {max-model-len: 512}}
variants:
  draft-k3:
    args: {speculative-config: {method: draft_model, model: draft, num_speculative_tokens: 3}}
"""
ARMS = {"baseline": suite.TestBaseline, "variant": suite.TestVariant}
CLAUSES = {
    name.removeprefix("test_").replace("_", " "): test
    for arm in ARMS.values()
    for name, test in inspect.getmembers(arm)
    if name.startswith("test_")
}
KEPT, BROKEN, NOT_CLAIMED, UNCHECKED = "kept", "broken", "not claimed", "could not be checked"
WITHOUT = {
    "kind": "the name in the config found the engine",
    "protocol_version": "checked when the engine is loaded",
    "pace": "an estimate",
    "footprint": "an estimate",
    "rules": "the pair lint's, for configs",
    "scored_with": "words of a remedy",
    "models": "checked by `doctor` without `--contract`",
    "dialect": "every other clause is about it",
    "penalty_window": "judged in every run: the control's own answers have to agree with it",
    "counters_late": "says when the counters are read; which ones they are has its clause",
}
"""Members of the protocol without a clause, and why."""


@pytest.fixture(autouse=True)
def no_wait_for_log_lines(monkeypatch):
    """The servers here write none."""
    monkeypatch.setattr(visit, "_LOGGED_S", 0.2)


def members(protocol) -> set[str]:
    parts = [part for part in protocol.__mro__ if part.__module__ == protocol.__module__]
    return {name for part in parts for name in {*inspect.get_annotations(part), *vars(part)} if not name.startswith("_")}


def test_every_member_of_the_protocol_has_a_clause_or_a_reason():
    held = {member for clause in CLAUSES.values() for member in clause.members}
    assert not held & WITHOUT.keys()
    assert held | WITHOUT.keys() == members(Dialect) | members(Engine) | members(Recognising)


@pytest.fixture
def doctor(tmp_path):
    """Run the command on a config, as it is typed: it runs a session of pytest."""

    def call(config, *options):
        (tmp_path / "mine.yaml").write_text(config)
        argv = [sys.executable, "-m", "pytest_specdec", "doctor", "mine.yaml", "--contract", *options]
        return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    return call


def outcomes(arm, outcome) -> dict[str, str]:
    return {clause["name"]: clause["evidence"] for clause in arm["clauses"] if clause["outcome"] == outcome}


def test_the_reference_engine_keeps_it_and_the_command_says_so(tmp_path, doctor):
    """A whole contract, survey included, on both arms, and the twelve seconds in which log lines may come."""
    done = doctor(CONFIG, "--json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  draft-k3      kept                  counters exact" in done.stdout
    assert "BROKEN" not in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "baseline: 29 kept, 0 broken, 2 not claimed, 0 could not be checked",
        "draft-k3: 28 kept, 0 broken, 1 not claimed, 1 could not be checked",
    ]
    told = json.loads((tmp_path / "out.json").read_text())
    assert [arm["arm"] for arm in told["arms"]] == ["baseline", "draft-k3"]
    unchecked = [{held["name"] for held in arm["clauses"] if held["outcome"] == "could not be checked"} for arm in told["arms"]]
    assert unchecked == [set(), {"log lines"}]
    for arm in told["arms"]:
        assert arm["clauses"][-1]["name"] == "end"
        support = arm["survey"]["support"]
        honoured = {name for name, how in support.items() if how == "honoured"}
        assert {"token_ids", "top_k", "n", "logit_bias", "frequency_penalty", "json_schema"} <= honoured
        assert arm["survey"]["deadly"] == []
        assert arm["survey"]["depths"] == {"completions": 20, "chat": 20}


@pytest.mark.nightly
def test_a_variant_that_is_not_there_and_a_server_that_does_not_come_up_are_errors(doctor):
    done = doctor(CONFIG, "--variant", "eagle")
    assert done.returncode == 1
    assert "no variant eagle" in done.stdout
    done = doctor(CONFIG.replace("max-model-len: 512", "no-such-flag: 1"))
    assert done.returncode == 1
    assert "FAIL  contract   the server died at boot: exit code 2" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 of 1 checks failed: a run would not start"
    assert "kept" not in done.stdout


@pytest.mark.nightly
def test_a_broken_claim_fails_by_its_name_and_says_what_was_seen(doctor, tmp_path, monkeypatch):
    """By the command, and by pytest alone, which also names who made the claim."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'usage or version or build'")
    config = CONFIG.replace("max-model-len: 512", "usage: false")
    done = doctor(config)
    assert done.returncode == 1
    assert "  baseline      BROKEN                usage                   whole: no usage\n" in done.stdout
    assert "baseline: 1 kept, 1 broken, 1 not claimed, 0 could not be checked\n" in done.stdout
    argv = [
        sys.executable,
        "-m",
        "pytest",
        str(ROOT / "suites" / "contract"),
        "--specdec-config=mine.yaml",
        "-v",
        "-rs",
        "-c",
        "pytest.ini",
    ]
    (tmp_path / "pytest.ini").touch()
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    for words in ("::test_version[draft-k3] KEPT (0.1.0)", "::TestBaseline::test_usage BROKEN (whole: no usage)", "reply, sent"):
        assert words in done.stdout
    assert "not claimed: the log is not looked at" in done.stdout


@pytest.mark.nightly
def test_the_suite_runs_where_it_is_named_and_is_no_part_of_a_gate(pytester):
    for folder, is_collected in (("suites", False), ("suites/contract", True)):
        found = pytester.runpytest_subprocess(str(ROOT / folder), "--specdec-config=reference", "--co", "-q").stdout.str()
        assert ("::TestBaseline::test_usage" in found) == is_collected
        assert ("::TestVariant::test_usage[draft-k3]" in found) == is_collected


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """The servers of CONFIG, none started."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "mine.yaml").write_text(CONFIG)
    config = load(folder / "mine.yaml")
    plan = planner.plan_servers(config, rates.expected_rates(config, folder))
    return ServerRecipes(config=config, plan=plan, directory=RunDirectory(folder))


@pytest.fixture(scope="module")
def arms(recipes):
    """The pair at work, by role: server, config, drafting."""
    started = {}
    try:
        for boot in recipes.plan.boots:
            if boot.role in {Role.BASELINE, Role.VARIANT}:
                arm = recipes.server(boot, lambda: None, lambda: math.inf)
                arm.start()
                draft = None if boot.role is Role.BASELINE else recipes.plan.pair(boot.arm).variant.draft
                started[boot.role.value] = (arm, recipes.config, draft)
        yield started
    finally:
        for arm, _, _ in started.values():
            arm.stop(0.0)


@pytest.fixture(scope="module")
def truth(arms):
    """What the clauses find of the true adapter, each asked once."""
    return functools.cache(lambda role, clause: found(arms, role, clause))


class Posing:
    """A server at work, asked in another dialect."""

    def __init__(self, arm, dialect, **recipe):
        self._arm = arm
        self.recipe = replace(arm.recipe, dialect=dialect, **recipe)
        self.client = Client(self.recipe.setup, dialect, model=arm.model, draft_tokens=self.recipe.draft_tokens)

    def __getattr__(self, name):
        return getattr(self._arm, name)


def outcome_of(clause, server):
    """Run the test of a clause on a visit; an error of the adapter's own breaks it, one of any other kind is ours."""
    try:
        CLAUSES[clause](None, server, lambda evidence: None)
    except (AssertionError, SpecdecError, ArithmeticError, LookupError, TypeError, ValueError, pytest.skip.Exception) as error:
        return outcome(error)
    return outcome(None)


def found(arms, role, clause, dialect=VllmDialect, engine=Reference, **fields):
    arm, config, draft = arms[role]
    variant = "draft-k3" if role == "variant" else ""
    posing = Posing(arm, dialect(), **fields.pop("recipe", {}))
    try:
        return outcome_of(clause, Visit(posing, config, engine(), draft=draft, variant=variant, **fields))
    finally:
        posing.client.close()


def lie(name, clause, role="variant", **overrides):
    return pytest.param(clause, role, {"dialect": type("Lying", (VllmDialect,), overrides)}, id=name)


def engine_lie(name, clause, role="baseline", dialect=None, **overrides):
    told = {"engine": type("LyingEngine", (Reference,), overrides)}
    return pytest.param(clause, role, told | ({"dialect": type("Lying", (VllmDialect,), dialect)} if dialect else {}), id=name)


def _choices(change):
    """A reply whose choices are changed."""

    def reply(_self, data):
        return {**data, "choices": [change(dict(choice)) for choice in data.get("choices") or ()]}

    return reply


def _less_first(name):
    return _choices(lambda choice: {**choice, name: choice[name][1:]} if choice.get(name) else choice)


def _counters(change):
    return lambda self, text: (counted := VllmDialect.counters(self, text)) and change(counted)


def _positions(change):
    return lambda self, *args: change(VllmDialect.positions(self, *args))


def _sent(**fields):
    return lambda self, request, *, stream: {**VllmDialect.sent(self, request, stream=stream), **fields}


def _unstreamed_usage(self, request, *, stream):
    return {name: value for name, value in VllmDialect.sent(self, request, stream=stream).items() if name != "stream_options"}


def _short_streams(self, request, *, stream):
    return {**VllmDialect.sent(self, request, stream=stream), **({"max_tokens": 5} if stream else {})}


def _only_streamed(self, request, *, stream):
    asked = VllmDialect.sent(self, request, stream=stream)
    return {**asked, "seed": 7 if stream else 8, "temperature": 2.0}


def _refused_but_plain(_self, request, *, stream):
    plain = request.body.keys() <= {"prompt", "messages", "max_tokens", "temperature"} and request.body.get("temperature") == 0.0
    return VllmDialect().sent(request, stream=stream) | ({} if plain else {"top_k": -5})


def _wrong_chat(_self, request):
    return "/v1/nowhere" if request.route is Route.CHAT else "/v1/completions"


def _cut_prompt(self, prompt, ids, top):
    return VllmDialect.scoring(self, prompt[:-3], ids, top)


def _cut_prefix(self, prefixes, top):
    return VllmDialect.continuations(self, [list(prefixes[0])[2:] or [1]], top)


def _off(by):
    return _positions(
        lambda positions: tuple(
            replace(one, logprob=one.logprob - by, top_logprobs=tuple(each - by for each in one.top_logprobs)) for one in positions
        )
    )


def _more_steps(self, reply):
    told = VllmDialect.steps(self, reply)
    return told and replace(told, accepted=tuple(count + 1 for count in told.accepted))


def _seeded(self, request, *, stream):
    return {**VllmDialect.sent(self, request, stream=stream), "temperature": 1.0}


def _a_position_late(counted):
    return replace(counted, accepted_per_position=(0, *counted.accepted_per_position))


def _more_at_every_reading():
    readings = itertools.count(1)
    return lambda *_: SpecCounters(drafts=next(readings) // 4, draft_tokens=1)


def _unranked(positions):
    return tuple(replace(one, top_logprobs=one.top_logprobs[::-1]) for one in positions)


def _too_probable(positions):
    return tuple(replace(one, top_logprobs=(-0.1,) * len(one.top_ids)) for one in positions)


def _another(_self, argv):
    return EngineProgram(version=(argv[0], "-c", "print('9.9.9')"), help=(), abbreviates=False)


LIES = [
    lie("a health path that is none", "readiness", health_path="/nowhere"),
    lie("a version path that is none", "version", version_path="/nowhere"),
    lie("a version that is not read", "version", version=lambda *_: ""),
    lie("a complaint about the build", "build", wrong_build=lambda *_: "no plugin"),
    lie("a route that is none", "chat", path=_wrong_chat),
    lie("completions nowhere", "completion", path=lambda *_: "/v1/nowhere"),
    lie("a field that is refused", "fields accepted", sent=_sent(top_k=-5)),
    lie("a temperature of its own", "neutral temperature", sent=_sent(temperature=0.0)),
    lie("a draw in place of the best token", "greedy repeats", sent=_seeded),
    lie("streams cut short", "stream as whole", sent=_short_streams),
    lie("chat streams cut short", "chat stream as whole", sent=_short_streams),
    lie("streams drawn otherwise", "stream as whole", sent=_only_streamed),
    lie("a text of its own", "text", reply=_choices(lambda choice: {**choice, "text": "x" + choice.get("text", "")})),
    lie("ids of other tokens", "token ids", reply=_choices(lambda c: {**c, "token_ids": [i + 1 for i in c["token_ids"]]})),
    lie("an id left out", "usage", reply=_less_first("token_ids")),
    lie("a prompt without its beginning", "prompt token ids", reply=_less_first("prompt_token_ids")),
    lie("no usage of streams", "usage", sent=_unstreamed_usage),
    lie("a limit of its own", "max tokens", sent=_sent(max_tokens=8)),
    lie("chunks of single tokens", "chunk per step", chunk_per_step=False),
    lie("counters nowhere", "counters", counters_path="/nowhere"),
    lie("counters not read", "counters", counters=lambda *_: None),
    lie("more accepted than drafted", "counters", counters=_counters(lambda c: replace(c, accepted_tokens=c.draft_tokens + 1))),
    lie("drafts that are tokens", "counters", counters=_counters(lambda c: replace(c, drafts=c.draft_tokens))),
    lie("a position left out", "counters per position", counters=_counters(_a_position_late)),
    lie("drafts counted twice", "counters exact", counters=_counters(lambda c: replace(c, draft_tokens=c.draft_tokens - c.drafts))),
    lie("counters that drain", "counters drain", counters_drain=True),
    lie("a baseline that drafts", "baseline counts nothing", "baseline", counters=_more_at_every_reading()),
    lie("steps that accept one more", "steps in replies", steps=_more_steps),
    lie("an answer's counts doubled", "counts in replies", counted=lambda s, r: (c := VllmDialect.counted(s, r)) and c + c),
    lie("a log of other counts", "log lines", logged=lambda *_: SpecCounters(drafts=1, draft_tokens=3, accepted_tokens=1)),
    lie("a start in 1970", "traffic", traffic=lambda *_: Traffic(started_s=12.0)),
    lie("tokens that nobody generated", "traffic", traffic=lambda *_: Traffic(generated_tokens=7)),
    lie("a prompt scored without its end", "prompt scores", "baseline", scoring=_cut_prompt),
    lie("scores off by a nat", "prompt scores", "baseline", positions=_off(1.0)),
    lie("a position left out of the scores", "prompt scores", "baseline", positions=_positions(lambda p: p[1:])),
    lie("unranked tokens", "prompt scores", "baseline", positions=_positions(_unranked)),
    lie("probabilities beyond 1", "prompt scores", "baseline", positions=_positions(_too_probable)),
    lie("continuations of another prefix", "continuations", "baseline", continuations=_cut_prefix),
    lie("routes that differ", "routes agree", "baseline", positions=_off(0.5)),
    lie("three prefixes at once", "prefixes per request", "baseline", prefixes_per_request=3),
    engine_lie("no draft", "drafting", "variant", draft=lambda *_: None),
    engine_lie("a shorter draft", "drafting", "variant", draft=lambda s, args: replace(Reference.draft(s, args), tokens=1)),
    engine_lie("a small vocabulary", "vocabulary", vocabulary=lambda *_: 100),
    engine_lie("another program", "program", program=_another),
    engine_lie("half precision", "single precision", dialect={"positions": _off(0.01)}),
    engine_lie(
        "a route that is refused", "planned route", dialect={"continuations": lambda s, p, top: VllmDialect.continuations(s, p, top=10**6)},
        route=lambda *_: ScoringRoute.CONTINUATIONS,
    ),
]  # fmt: skip


@pytest.mark.examples(2)
@pytest.mark.parametrize("clause,role,lying", LIES)
def test_a_lie_is_broken_by_its_clause_and_the_truth_is_not(clause, role, lying, arms, truth):
    assert found(arms, role, clause, **lying) == BROKEN
    wanted = {"build": NOT_CLAIMED, "log lines": UNCHECKED}.get(clause, KEPT)
    assert truth(role, clause) == wanted


def test_every_clause_but_the_boot_is_broken_by_a_lie():
    # No server without a boot; chat and completion are the path; two have tests of their own.
    rest = {"boot", "path", "end", "recognised"}
    assert CLAUSES.keys() - {lie.values[0] for lie in LIES} == rest


@pytest.mark.examples(2)
@pytest.mark.parametrize("name", ["temperature", "n", "frequency_penalty", "logit_bias", "ignore_eos"])
def test_a_parameter_without_effect_is_ignored_and_one_with_it_honoured(name, arms):
    arm, config, _ = arms["baseline"]

    def support(dialect):
        posing = Posing(arm, dialect())
        try:
            return parameters._probe_support(Visit(posing, config, Reference(), draft=None), parameters.PARAMETERS[name])
        finally:
            posing.client.close()

    def without(_self, request, *, stream):
        kept = {field: value for field, value in request.body.items() if field != name}
        return VllmDialect().sent(replace(request, body={"temperature": 0.0, **kept}), stream=stream)

    assert support(VllmDialect) == (FeatureSupport.HONOURED, False)
    assert support(type("Dropping", (VllmDialect,), {"sent": without})) == (FeatureSupport.IGNORED, False)
    assert support(type("Refused", (VllmDialect,), {"sent": _refused_but_plain})) == (FeatureSupport.REFUSED, False)


@pytest.mark.nightly
def test_attached_servers_are_visited_and_left_alone(tmp_path, arms, doctor):
    """Somebody else's are neither started nor ended, and without may_kill no parameter is tried that has ended servers."""
    urls = {role: arm.recipe.setup.url for role, (arm, _, _) in arms.items()}
    (name,) = {arm.model for arm, _, _ in arms.values()}
    document = CONFIG.replace("  draft-k3:\n", f"  draft-k3:\n    url: {urls['variant']}\n")
    document = document.replace("model: target,", f"model: target, served_as: {name},", 1)
    done = doctor(f"{document}baseline: {{url: {urls['baseline']}}}\n", "--json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    held = json.loads((tmp_path / "out.json").read_text())["arms"]
    for arm in held:
        assert outcomes(arm, BROKEN) == {}
        assert {"boot", "end"} <= outcomes(arm, NOT_CLAIMED).keys()
        assert arm["survey"] is None
    assert "log lines" in outcomes(held[1], UNCHECKED)
    assert all(arm.running for arm, _, _ in arms.values())


class Claimant:
    """An engine that takes any server for its own, or none."""

    def __init__(self, *, everything):
        self.kind, self.everything = "claimant", everything

    def recognises(self, get):
        return self.everything or get("/no-such-path") is not None

    def dialect(self, *_):
        return LlamaCppDialect()


def test_a_server_that_another_engine_takes_for_its_own_breaks_recognition(arms, monkeypatch):
    for everything, expected in ((True, BROKEN), (False, KEPT)):
        monkeypatch.setattr(
            lifecycle.registry, "installed_engines", lambda all_of_them=everything: (Claimant(everything=all_of_them), Reference(), Vllm())
        )
        assert found(arms, "baseline", "recognised") == expected
    monkeypatch.setattr(Reference, "recognises", lambda *_: False)
    assert found(arms, "baseline", "recognised") == UNCHECKED


def test_a_plain_dialect_claims_nothing_and_is_held_to_the_protocol(arms):
    for clause in ("counters", "steps in replies", "log lines", "readiness", "version", "build"):
        assert found(arms, "variant", clause, dialect=PlainDialect) == NOT_CLAIMED
    assert found(arms, "variant", "completion", dialect=PlainDialect) == KEPT
    assert found(arms, "variant", "token ids", dialect=PlainDialect) == NOT_CLAIMED


def test_a_server_that_has_to_be_killed_breaks_the_end(recipes):
    arm = recipes.server(recipes.plan.boots[0], lambda: None, lambda: math.inf)
    arm.recipe = replace(arm.recipe, stop_s=0.001, log=arm.recipe.log.with_name("killed.log"))
    with arm:
        assert outcome_of("end", Visit(arm, recipes.config, Reference(), draft=None)) == BROKEN


class Hasty(BaseHTTPRequestHandler):
    """Says that it is ready, and answers no completion."""

    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        self.answer(503)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_a_health_path_that_answers_while_the_model_loads_is_noticed(tmp_path, arms):
    setup = ServerSetup(model="m", port=ports.free(), secrets=Secrets())
    recipe = ServerRecipe(dialect=VllmDialect(), setup=setup, command=None, draft_tokens=0, log=tmp_path / "log", boot_s=2.0, stop_s=1.0)
    server = ThreadingHTTPServer(("127.0.0.1", setup.port), Hasty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch = lifecycle.ReadinessWatch(recipe)
    with watch:
        watch._thread.join(30)
    server.shutdown()
    server.server_close()
    assert "503" in (watch.early or "")
    assert found(arms, "baseline", "readiness", early=watch.early) == BROKEN
    assert found(arms, "baseline", "readiness", early="") == KEPT
