"""A fake engine for the parts that start, ask and end servers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture import planner
from pytest_specdec.capture.server import ports, server
from pytest_specdec.capture.server.recipe import ServerRecipe
from pytest_specdec.config.config import Config, EngineSettings, Limits, Overlay, VariantSettings
from pytest_specdec.engines import registry, vllm
from pytest_specdec.engines.arguments import flags
from pytest_specdec.engines.protocol import PROTOCOL_VERSION, Command, Footprint, RoughRates, ServerSetup
from pytest_specdec.engines.vllm import VllmDialect
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.workload import Request, Route, Workload

SERVER = Path(__file__).parent / "fake_server.py"
DRAFT = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


@pytest.fixture
def calibrating():
    """Ask for it where the calibration is part of what is tested."""


@pytest.fixture(autouse=True)
def _planned_alone(request, monkeypatch):
    """Plan what a test asks for and nothing beside it: the calibration is 32 requests of 64 tokens."""
    if "calibrating" not in request.fixturenames:
        monkeypatch.setattr(planner, "calibrations", lambda judged, depth: ())


class FakeEngine:
    kind = "fake"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=1.0, tokens_per_s=100.0, scored_tokens_per_s=1000.0)
    rules = vllm.RULES
    scored_with = "serve prompt_logprobs"

    def dialect(self, config, setup):
        return VllmDialect()

    def draft(self, args):
        return vllm.draft(args)

    def models(self, model, args):
        return ()

    def check(self, config):
        pass

    def program(self, argv):
        return None

    def single_precision(self, config):
        return False

    def command(self, config, setup):
        env = {**setup.env, **({"VLLM_API_KEY": setup.api_key} if setup.api_key else {})}
        # -S: it needs the standard library alone, and coverage, which starts with site-packages, has nothing to measure in it
        argv = (sys.executable, "-S", str(SERVER), setup.model, *flags({**setup.args, "port": setup.port}))
        return Command(argv=argv, env=env, secrets=setup.secrets)

    def vocabulary(self, config):
        return 40

    def footprint(self, config, *, accelerated):
        return Footprint(memory_gib=0.1)

    def route(self, config):
        continued = config.engine.args.get("top-logprobs") and config.engine.args.get("no-prompt-logprobs")
        return ScoringRoute.CONTINUATIONS if continued else ScoringRoute.PROMPT_LOGPROBS


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    """The fake engine is known, dies at once if it dies of an error, and locks are those of this test alone."""
    monkeypatch.setattr(server, "_EXIT_S", 0.3)
    monkeypatch.setitem(registry.LOADED, FakeEngine.kind, FakeEngine())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def config(tmp_path):
    return Config(
        name="fake",
        path=tmp_path / "fake.yaml",
        text="engine: {kind: fake}\n",
        engine=EngineSettings(kind="fake", model="big"),
        variants=(
            VariantSettings(name="draft-k3", args={"speculative-config": DRAFT}),
            VariantSettings(name="ngram-k3", args={"speculative-config": NGRAM}),
        ),
        limits=Limits(boot_s=20.0, request_s=10.0, stop_s=0.5),
    )


@pytest.fixture
def with_args():
    """A config whose engine, baseline or variant gets more arguments."""

    def _with(config, arm=None, **args):
        named = {name.replace("_", "-"): value for name, value in args.items()}
        if arm is None:
            return replace(config, engine=replace(config.engine, args={**config.engine.args, **named}))
        if arm in {"baseline", "draft"}:
            return replace(config, **{arm: Overlay(args=named)})
        variants = tuple(replace(v, args={**v.args, **named}) if v.name == arm else v for v in config.variants)
        return replace(config, variants=variants)

    return _with


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "runs" / "now")


@pytest.fixture
def workload():
    def _workload(name="greedy", requests=5, **fields):
        asked = tuple(
            Request(id=f"p{i}", route=Route.COMPLETIONS, body={"prompt": f"p{i} of {name}", "max_tokens": 6, "temperature": 0.0})
            for i in range(requests)
        )
        return Workload(**{"name": name, "version": 1, "requests": asked, "concurrency": 2, **fields})

    return _workload


@pytest.fixture
def recipe(tmp_path):
    """How an arm's fake server is started, with the arguments given."""
    engine = FakeEngine()

    def _recipe(config, **args):
        setup = ServerSetup(
            model="m", port=ports.free(), args={name.replace("_", "-"): value for name, value in args.items()}, secrets=Secrets()
        )
        command = engine.command(config, setup)
        return ServerRecipe(
            dialect=engine.dialect(config, setup),
            setup=setup,
            command=command,
            draft_tokens=0,
            log=tmp_path / "s" / "0.log",
            boot_s=20.0,
            stop_s=0.5,
        )

    return _recipe
