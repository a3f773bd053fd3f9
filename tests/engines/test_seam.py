"""What belongs to one engine stands in that engine's files: no other code names a kind, a flag or a metric of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pytest_specdec"
OWN = (
    "engines/vllm/",
    "engines/arctic.py",
    "engines/llama_cpp/",
    "engines/sglang/",
    "engines/tensorrt_llm/",
    "engines/reference.py",
)
"""The files of the engines."""

PARTICULAR = re.compile(
    r"vllm|sglang|trt_?llm|tensorrt|llama\.?_?cpp|llama_arg"  # names of engines
    r"|spec_decode|per-request-spec|speculative.config|num.speculative.tokens|spec-tokens"  # metrics and the speculative setting
    r"|gpu-memory-utilization|tensor-parallel|max-logprobs|kv-cache-dtype|async-scheduling"  # flags
    r"|^reference$|specdec_reference",
    re.IGNORECASE,
)


def files():
    return [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in {".py", ".json"} and not name(path).startswith(OWN)]


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def words(text: str):
    """Every name and every text of Python code, except comments and docstrings, which may cite an engine's source for a formula."""
    tree = ast.parse(text)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (f"{getattr(node, 'module', '') or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            yield f".{node.id if isinstance(node, ast.Name) else node.attr}"


def particular(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return sorted({word for word in (words(text) if path.suffix == ".py" else [text]) if PARTICULAR.search(word)})


def test_no_file_outside_an_engines_own_names_what_is_peculiar_to_it():
    offenders = {name(path): names for path in files() if (names := particular(path))}
    assert not offenders, "move these names behind pytest_specdec/engines/protocol.py"


@pytest.mark.parametrize(
    "code",
    [
        "if engine.kind == 'vllm': pass",
        "if config.engine.kind == 'reference': pass",
        "from pytest_specdec.engines import vllm",
        "SERIES = 'vllm:spec_decode_num_drafts_total'",
        "SHARE = 'gpu-memory-utilization'",
        "x = f'{engine} of SGLang'",
    ],
)
def test_the_rule_itself_can_fail(code, tmp_path):
    (tmp_path / "x.py").write_text(code)
    assert particular(tmp_path / "x.py")


def test_prose_may_cite_an_engine(tmp_path):
    (tmp_path / "x.py").write_text('"""As vLLM does it."""\nX = 1  # vLLM counts so\n"""vLLM\'s default."""\n')
    assert not particular(tmp_path / "x.py")


def test_the_files_of_the_engines_are_the_ones_that_are_left_out():
    assert all(any(PACKAGE.glob(f"{own.rstrip('/')}*")) for own in OWN)
