"""The floors of the house: a module imports downwards only, and says so here."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = Path(__file__).parent.parent / "pytest_specdec"
SOURCES = sorted(PACKAGE.rglob("*.py"))
REFERENCE = sorted((PACKAGE.parent / "specdec_reference").rglob("*.py"))

FLOOR = {
    "model": 0,
    "errors": 0,
    "files": 1,
    "prompts": 1,
    "stats": 1,
    "config": 2,
    "gates": 2,
    "engines": 3,
    "judge": 4,
    "capture": 4,
    "report": 5,
    "doctor": 6,
    "init": 6,
}
"""Rooms by floor, below pytest."""
TOP = {
    "plugin": 7,
    "bisect": 8,
    "doctor_command": 8,
    "report_command": 8,
    "live_shrinking": 8,
    "bisect_command": 9,
    "matrix_command": 9,
    "merge_command": 9,
    "repro_command": 9,
    "__main__": 10,
    "__init__": 10,
}
"""The plugin, and the commands that start it."""

PURE = {"model", "stats", "judge", "report"}
"""No I/O, no clock, no unseeded randomness, no pytest."""

IMPURE_MODULES = {
    "asyncio",
    "http",
    "openai",
    "pytest",
    "_pytest",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, wherever the import stands, type-checking blocks included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative imports hide the floor they go to"
            module = node.module or ""
            found.add(module)
            if module == "pytest_specdec":
                found.update(f"pytest_specdec.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
    return found


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("pytest_specdec.")}


def floor_of(room: str) -> int:
    return FLOOR[room] if room in FLOOR else TOP[room]


def may_import(importer: str, imported: str) -> bool:
    if importer in {imported, "__init__"}:
        return True
    upper, lower = floor_of(importer), floor_of(imported)
    return upper > lower or upper == lower == 0


def offenders(paths: Iterable[Path], forbidden: set[str]) -> dict[str, list[str]]:
    """Return by file what it imports of the top-level packages ``forbidden``."""
    wrong = {path: sorted(name for name in imports_of(path) if name.split(".")[0] in forbidden) for path in paths}
    return {str(path.relative_to(PACKAGE)): names for path, names in wrong.items() if names}


def test_a_module_imports_downwards_only():
    wrong = {path: sorted(room for room in rooms_imported(path) if not may_import(room_of(path), room)) for path in SOURCES}
    upwards = {f"{path.relative_to(PACKAGE)}, floor {floor_of(room_of(path))}": rooms for path, rooms in wrong.items() if rooms}
    assert not upwards, "modules that import upwards"


def test_pytest_lives_on_the_top_floor_only():
    below = [path for path in SOURCES if room_of(path) in FLOOR]
    assert not offenders(below, {"pytest", "_pytest", "pluggy", "xdist"})


def test_pure_rooms_import_nothing_that_does_io():
    files = {"baseline_file", "update"}
    gates = [path for path in SOURCES if room_of(path) == "gates" and path.stem not in files]
    assert not offenders([*gates, *(path for path in SOURCES if room_of(path) in PURE)], IMPURE_MODULES)


def test_the_ground_floor_stands_on_the_standard_library():
    third_party = {"numpy", "scipy", "yaml", "jsonschema", "openai", "pydantic", "starlette", "uvicorn", "tokenizers", "safetensors"}
    assert not offenders([path for path in SOURCES if room_of(path) == "model"], third_party)


def test_the_reference_engine_imports_what_an_engine_of_anybody_may():
    shared = {"pytest_specdec.errors", "pytest_specdec.model.grammar", "pytest_specdec.model.workload"}
    wrong = {path.name: sorted({name for name in imports_of(path) if name.startswith("pytest_specdec")} - shared) for path in REFERENCE}
    assert not {name: names for name, names in wrong.items() if names}


def test_the_package_imports_no_engine():
    assert not offenders(SOURCES, {"specdec_reference", "vllm", "sglang", "tensorrt_llm", "mlx_lm", "torch", "transformers"})


def test_the_rule_itself_can_fail():
    assert not may_import("judge", "capture")
    assert not may_import("model", "files")
    assert not may_import("stats", "judge")
    assert not may_import("capture", "plugin")
    assert not may_import("doctor", "plugin")
    assert not may_import("gates", "judge")
    assert may_import("capture", "config")
    assert not may_import("engines", "capture")
    assert may_import("plugin", "judge")
