"""The wheel in an environment of its own, used in an empty folder as a newcomer would."""

from __future__ import annotations

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
REPOSITORY_ONLY = {"vllm-cpu", "vllm-cpu-faulty", "vllm-cpu-padded", "vllm-cpu-stock"}
"""Configs that name a venv and checkpoints of the repository."""
COUNT = re.compile(r"(\d+) tests? collected")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The wheel, built from the source distribution as an installer builds it."""
    folder = tmp_path_factory.mktemp("dist")
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
    """The interpreter of a new environment with the wheel in it and, behind it, the packages that it needs."""
    venv = tmp_path_factory.mktemp("venv")
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
        return subprocess.run([python, "-m", *argv], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

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
    assert not [path for path in names if path.parts[0] not in {"pytest_specdec", "pytest_specdec-0.1.0.dist-info"}]


def test_the_suites_are_collected_from_the_wheel_by_the_name_of_a_shipped_config(ran):
    everything = collected(ran("pytest", "--pyargs", shipped.MODULE, "--specdec-config=reference", "--co", "-q", "-p", "no:cacheprovider"))
    greedy = collected(ran("pytest", "--pyargs", f"{shipped.MODULE}.greedy", "--specdec-config=reference", "--co", "-q"))
    assert (everything, greedy) == (24, 2)


def test_every_shipped_config_makes_a_plan_in_an_empty_folder(ran, python):
    (configs,) = python.parents[1].glob("lib/python*/site-packages/pytest_specdec/suites/configs")
    for path in sorted(configs.iterdir()):
        assert collected(ran("pytest", "--pyargs", f"{shipped.MODULE}.greedy", f"--specdec-config={path.stem}", "--co", "-q")) >= 1
