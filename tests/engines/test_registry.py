"""An engine is an entry point: one from outside serves like our own, and one that breaks the protocol is refused by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from pytest_specdec.engines import registry
from pytest_specdec.engines.protocol import PROTOCOL_VERSION
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-an-engine.md"
CONFIG = """\
engine: {kind: my-engine, model: target, args: {max-model-len: 512}}
variants: {ngram-k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}}}}
"""
TEST = """\
import pytest
from pytest_specdec import judge
from pytest_specdec.prompts import CODE

@pytest.mark.specdec(CODE.greedy(max_tokens=32, concurrency=4), family="greedy")
def test_every_token_is_the_baselines_choice(specdec_captured, specdec_check):
    specdec_check(judge.greedy.judge(specdec_captured))
"""


def install(folder: Path, code: str, entry: str = "my-engine = my_engine:MyEngine", package: str = "my-engine") -> None:
    """Put a package into ``folder`` as an installer leaves it: a module and the metadata of a distribution."""
    metadata = folder / f"{package.replace('-', '_')}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry}\n")
    (folder / "my_engine.py").write_text(code)


def written() -> str:
    """The engine that docs/adding-an-engine.md shows."""
    (code,) = re.findall(r"    ```python\n(.*?)    ```", PAGE.read_text(), re.DOTALL)
    return re.sub(r"^ {4}", "", code, flags=re.MULTILINE)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder on the path of this process, whose engines are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "LOADED", {})
    monkeypatch.delitem(sys.modules, "my_engine", raising=False)
    yield tmp_path
    sys.modules.pop("my_engine", None)


def test_the_engines_of_this_package_are_entry_points():
    for kind in ("reference", "vllm"):
        assert (engine_of(kind).kind, engine_of(kind).protocol_version) == (kind, PROTOCOL_VERSION)


def test_the_engine_of_the_page_is_loaded_once_and_only_when_it_is_asked_for(outside):
    install(outside, written())
    engine_of("reference")
    assert "my_engine" not in sys.modules
    engine = engine_of("my-engine")
    assert (engine.kind, engine_of("my-engine") is engine) == ("my-engine", True)
    assert set(registry.LOADED) == {"reference", "my-engine"}


def test_the_page_names_every_member_of_the_protocol():
    assert [name for name in registry._MEMBERS if f"`{name}`" not in PAGE.read_text() and f"{name} = " not in PAGE.read_text()] == []


BROKEN = [
    (("protocol_version = 3", "protocol_version = 99"), f"protocol_version {PROTOCOL_VERSION}", "protocol_version 99"),
    (("protocol_version = 3", "protocol_version = None"), f"protocol_version {PROTOCOL_VERSION}", "protocol_version None"),
    (('kind = "my-engine"', 'kind = "yours"'), "kind 'my-engine'", "kind 'yours'"),
    (("class MyEngine(Reference):", "class MyEngine:"), "every member", "no check, command, dialect, draft"),
    (("class MyEngine", "class YourEngine"), "a class", "AttributeError"),
    (("pytest_specdec.engines.reference", "no_such_module"), "a module that imports", "ModuleNotFoundError"),
]


@pytest.mark.parametrize("change, expected, found", BROKEN)
def test_an_engine_that_breaks_the_protocol_is_refused_with_its_package_and_a_remedy(outside, change, expected, found):
    assert change[0] in written()
    install(outside, written().replace(*change))
    with pytest.raises(EngineError, match="my-engine") as caught:
        engine_of("my-engine")
    assert "my_engine:MyEngine" in caught.value.where
    assert "of my-engine 2.0" in caught.value.where
    assert caught.value.found.startswith(found)
    assert expected in caught.value.expected
    assert caught.value.remedy
    assert "my-engine" not in registry.LOADED


def test_an_engine_that_two_packages_serve_is_refused_with_both(outside):
    install(outside, written())
    install(outside, written(), package="other")
    with pytest.raises(EngineError) as caught:
        engine_of("my-engine")
    assert {"of my-engine 2.0", "of other 2.0"} <= {f"of {name}" for name in re.findall(r"of (\S+ 2\.0)", caught.value.found)}


def test_an_unknown_engine_is_told_with_the_nearest_and_all(outside):
    install(outside, written())
    with pytest.raises(EngineError, match="did you mean my-engine") as caught:
        engine_of("my-engin")
    kinds = sorted(caught.value.expected.removeprefix("one of ").split(", "))
    assert (caught.value.where, caught.value.expected) == ("engine.kind", f"one of {', '.join(kinds)}")
    assert {"attach", "my-engine", "reference", "vllm"} <= set(kinds)


def test_an_installation_without_entry_points_is_told_to_install_again(monkeypatch):
    monkeypatch.setattr(registry, "LOADED", {})
    monkeypatch.setattr(registry, "entry_points", lambda **_: EntryPoints())
    with pytest.raises(EngineError) as caught:
        engine_of("reference")
    assert "install" in caught.value.remedy


@pytest.fixture
def project(tmp_path):
    """A folder with a config for an engine from outside, and that engine on the path of what is run there."""
    install(tmp_path / "site", written())
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "pytest.toml").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TEST)

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
        return subprocess.run([sys.executable, "-m", *argv], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    return run


def test_the_doctor_checks_an_engine_from_outside(project):
    ran = project("pytest_specdec", "doctor", "my.yaml", "--depth=smoke")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "my-engine serving target" in ran.stdout
    assert re.search(r"ok    flags +all \d+ known", ran.stdout)
    assert "2 boots (ngram-k3, baseline and control)" in ran.stdout


@pytest.mark.nightly
def test_a_plan_is_made_and_a_capture_judged_with_an_engine_from_outside(project):
    options = ("test_it.py", "--specdec-config=my.yaml", "--specdec-depth=smoke", "-p", "no:cacheprovider")
    collected = project("pytest", *options, "--co", "-q")
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert "2 boots" in collected.stdout
    captured = project("pytest", *options)
    assert captured.returncode == 0, captured.stdout + captured.stderr
    assert "1 passed" in captured.stdout
