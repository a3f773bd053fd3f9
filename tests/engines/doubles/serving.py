"""Executables that stand in for an engine's program: a double in this environment, with variables of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

DOUBLES = Path(__file__).parent


def executable(folder: Path, program: str, double: str, package: str, release: str, **variables: str) -> Path:
    """Write ``program`` into an environment in ``folder`` that says which ``release`` of ``package`` it holds; it runs the double."""
    path = folder / "bin" / program
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "lib" / "python3.12" / "site-packages" / f"{package}-{release}.dist-info").mkdir(parents=True, exist_ok=True)
    # Several threads for matrices this small wait for each other, the more so where other work has the cores.
    set_up = {"OPENBLAS_NUM_THREADS": "1", **variables}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in set_up.items())
    path.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} {DOUBLES / double}.py "$@"\n')
    path.chmod(0o755)
    return path


def trtllm_serve(folder: Path, release: str = "1.3.0", **variables: str) -> Path:
    """Write a ``trtllm-serve`` of a release."""
    return executable(folder, "trtllm-serve", "trtllm", "tensorrt_llm", release, TRTLLM_DOUBLE_RELEASE=release, **variables)


def legacy_vllm(folder: Path, release: str = "0.7.3", **variables: str) -> Path:
    """Write a ``vllm`` of a release before 0.8."""
    return executable(folder, "vllm", "legacy_vllm", "vllm", release, VLLM_DOUBLE_RELEASE=release, **variables)
