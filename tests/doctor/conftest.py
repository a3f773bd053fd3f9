from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytest_specdec.config import shipped
from pytest_specdec.config.config import Config
from pytest_specdec.config.load import load

HELP = """\
usage: vllm serve [model_tag] [options]

options:
  --host HOST           Where to listen; see --not-a-flag.
                        --nor-this one.
  --port PORT, -p PORT  The port.
  --max-num-seqs MAX_NUM_SEQS
                        Sequences in a batch.
  --dtype {auto,float32}
                        The type.
  --async-scheduling, --no-async-scheduling
                        Whether to overlap.
  --speculative-config SPECULATIVE_CONFIG, -sc SPECULATIVE_CONFIG
  --per-request-spec-decode-metrics {none,summary,detailed}
  --tensor-parallel-size N, -tp N
  --gpu-memory-utilization F
  -h, --help            show this help message and exit
"""

VLLM = """\
engine:
  kind: vllm
  venv: venv
  model: model
  args: {max-num-seqs: 4}
variants:
  ngram-k3:
    args:
      speculative-config: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}
      async-scheduling: false
baseline: {args: {async-scheduling: false}}
"""

PROGRAM = """\
#!/bin/sh
case "$*" in
  --version) %(version)s ;;
  *float33*) echo "vllm serve: error: argument --dtype: invalid choice: 'float33'" >&2; exit 2 ;;
  *--help*) cat "%(help)s" ;;
esac
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder to be in, and an environment without what the machine happens to have."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(shipped, "SUITES", Path(shipped.__file__).parents[1] / "suites")  # as in a wheel, but empty
    return tmp_path


@pytest.fixture
def config(here):
    """Write a config and load it."""

    def write(text: str = VLLM, name: str = "mine.yaml") -> Config:
        path = here / name
        path.write_text(textwrap.dedent(text))
        return load(path)

    return write


@pytest.fixture
def vllm(here):
    """Put a program into ``venv`` that answers as vLLM does, and a model beside it."""

    def install(*, version: str = "echo noise; echo 0.32.0+cpu", help_text: str = HELP) -> Path:
        program = here / "venv" / "bin" / "vllm"
        program.parent.mkdir(parents=True, exist_ok=True)
        (here / "help.txt").write_text(help_text)
        program.write_text(PROGRAM % {"version": version, "help": here / "help.txt"})
        program.chmod(0o755)
        (here / "model").mkdir(exist_ok=True)
        (here / "model" / "config.json").write_text("{}")
        return program

    return install
