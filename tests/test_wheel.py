"""The wheel in an environment of its own, used in an empty folder as a newcomer would."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from pytest_specdec.config import shipped

ROOT = Path(__file__).parents[1]
REPOSITORY_ONLY = {
    *("llama-cpp", "mlx-lm", "transformers", "vllm-cpu", "vllm-cpu-faulty", "vllm-cpu-padded", "vllm-cpu-stock", "vllm-gpu"),
    *("vllm-cpu-bfloat16", "vllm-cpu-bfloat16-whole", "vllm-cpu-float16", "vllm-cpu-float16-async", "vllm-cpu-upgrade", "vllm-gpu-wide"),
    *("vllm-cpu-adapters", "vllm-cpu-settings"),
}
"""Configs that name programs and checkpoints of the repository."""
COUNT = re.compile(r"(\d+) tests? collected")


@pytest.fixture(scope="session")
def built(tmp_path_factory, worker_id):
    """The wheel, built from the source distribution as an installer builds it: by the first worker that needs it, for all."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "dist"
        return next(folder.glob("*.whl"), None) or build_wheel(folder)


def build_wheel(folder):
    folder.mkdir()
    build(ROOT, "sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    build(source, "wheel", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def python(built, tmp_path_factory):
    """The interpreter of a new environment with the wheel in it and, after it, the packages that it needs."""
    return install(built, tmp_path_factory.mktemp("venv"))


@pytest.fixture
def engine_venv(built, tmp_path):
    """An environment of an engine, beside the one that judges."""
    install(built, tmp_path / "engine")
    return tmp_path / "engine"


def install(built, venv):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    with zipfile.ZipFile(built) as wheel:
        wheel.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return venv / "bin" / "python"


@pytest.fixture
def ran(python, tmp_path):
    """Run a module of the environment in an empty folder."""

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SPECDEC_FAULT": ""}  # that some shipped configs name
        return subprocess.run([python, "-m", *argv], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    return call


def build(source, target, folder):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], cwd=source, check=True, capture_output=True)


def collected(done) -> int:
    assert done.returncode == 0, done.stdout + done.stderr
    return int(COUNT.search(done.stdout)[1])


def test_the_wheel_holds_every_suite_and_every_config_that_works_outside_the_repository(built):
    names = {Path(name) for name in zipfile.ZipFile(built).namelist()}
    suites = {path.relative_to(Path("pytest_specdec/suites")) for path in names if path.is_relative_to("pytest_specdec/suites")}
    ours = {path.relative_to(shipped.SUITES) for path in shipped.SUITES.rglob("*") if path.suffix in {".py", ".yaml"}}
    assert suites == {path for path in ours if path.stem not in REPOSITORY_ONLY}
    assert {path.stem for path in ours - suites} == REPOSITORY_ONLY
    assert not [path for path in names if path.parts[0] not in {"pytest_specdec", "specdec_reference", "pytest_specdec-0.1.0.dist-info"}]
    scripts = {path.relative_to(ROOT) for path in (ROOT / "pytest_specdec/engines/environments").iterdir()}
    assert scripts <= names


def test_the_suites_are_collected_from_the_wheel_by_the_name_of_a_shipped_config(ran):
    everything = collected(ran("pytest", "--pyargs", shipped.MODULE, "--specdec-config=reference", "--co", "-q", "-p", "no:cacheprovider"))
    greedy = collected(ran("pytest", "--pyargs", f"{shipped.MODULE}.greedy", "--specdec-config=reference", "--co", "-q"))
    contract = collected(ran("pytest", "--pyargs", f"{shipped.MODULE}.contract", "--specdec-config=reference", "--co", "-q"))
    assert (everything, greedy, contract) == (86, 4, 91)


SESSIONS = """
import sys
import pytest
suite, *names = sys.argv[1:]
for name in names:
    assert pytest.main(["--pyargs", suite, f"--specdec-config={name}", "--co", "-q"]) == 0, name
"""


def test_every_shipped_config_makes_a_plan_in_an_empty_folder(ran, python, tmp_path):
    """In sessions of one process: starting it takes longer than all the plans."""
    (configs,) = python.parents[1].glob("lib/python*/site-packages/pytest_specdec/suites/configs")
    names = sorted(path.stem for path in configs.iterdir())
    (tmp_path / "sessions.py").write_text(SESSIONS)
    done = ran("sessions", f"{shipped.MODULE}.greedy", *names)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(count) for count in COUNT.findall(done.stdout)]
    assert len(counts) == len(names)
    assert min(counts) >= 1


def test_the_description_in_the_metadata_has_no_link_into_the_repository(built):
    with zipfile.ZipFile(built) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        text = wheel.read(name).decode()
    assert "## Install" in text
    assert [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith("http")] == []


def test_the_wheel_holds_the_documentation_that_its_description_and_its_help_name(built, python, ran):
    with zipfile.ZipFile(built) as wheel:
        held = set(wheel.namelist())
        (name,) = [name for name in held if name.endswith("METADATA")]
        named = set(re.findall(r"`(pytest_specdec/docs/[^`]+)`", wheel.read(name).decode()))
    assert len(named) > 20
    assert named <= held
    (first,) = re.findall(r"^documentation.*:\n  (.+)$", ran("pytest_specdec", "--help").stdout, re.MULTILINE)
    assert Path(first).read_text(encoding="utf-8") == (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    pages = list((site / "pytest_specdec/docs").rglob("*.md"))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= {page.name for page in pages}
    assert dead_links(pages) == []


def test_links_between_pages_of_the_repository_lead_to_files():
    assert dead_links([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]) == []


def dead_links(pages) -> list[str]:
    links = [(page, target) for page in pages for target in re.findall(r"\]\((?!http|#)([^)#\s]+)", page.read_text(encoding="utf-8"))]
    return [f"{page.name}: {target}" for page, target in links if not (page.parent / target).is_file()]


@pytest.mark.nightly
def test_an_engine_of_another_environment_is_judged_from_the_wheel_and_a_red_verdict_is_replayed_as_printed(ran, tmp_path, engine_venv):
    """The config of a first run, with the engine's environment named as docs/engine-ci.md has it."""
    assert ran("pytest_specdec", "init").returncode == 0
    config = tmp_path / "my-model.yaml"
    text = config.read_text().replace("prompt_lookup_min: 2}", "prompt_lookup_min: 2}\n      fault: accept-all")
    config.write_text(text.replace("kind: reference\n", "kind: reference\n  venv: engine\n"))
    red = ran("pytest", "--pyargs", f"{shipped.MODULE}.greedy", "--specdec-config=my-model", "--specdec-depth=smoke")
    assert "1 failed, 1 passed" in red.stdout, red.stdout + red.stderr
    test, run = re.search(r"replay: pytest --pyargs '?(\S+?)'? --specdec-replay (\S+)", red.stdout).groups()
    assert test.startswith("pytest_specdec.suites.greedy.test_greedy::")
    started = [log.read_text().split()[1] for log in (tmp_path / run / "servers").glob("*.log")]
    assert set(started) == {str(engine_venv / "bin" / "python")}
    assert "1 failed" in ran("pytest", "--pyargs", test, "--specdec-replay", run).stdout
    assert f"pytest --pyargs pytest_specdec.suites.greedy --specdec-replay {run}" in red.stdout
