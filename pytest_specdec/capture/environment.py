"""The environment of a capture: machine, engine, client."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.model.baseline import Environment

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config

__all__ = ["accelerated", "devices", "environment", "memory_gib", "uuids"]

_PACKAGES = ("pytest-specdec", "openai", "numpy", "scipy", "pytest")
_NVIDIA_SMI_S = 10.0
_KIB_PER_GIB = 1024**2


def environment(config: Config, engine_version: str) -> Environment:
    """Return what the figures of this capture depend on besides the code under test."""
    return Environment(
        engine=config.engine.kind,
        engine_version=engine_version,
        model=config.engine.model,
        processor=_field("/proc/cpuinfo", "model name") or platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gib=memory_gib(),
        devices=devices(),
        system=platform.platform(),
        python=platform.python_version(),
        packages={name: version for name in _PACKAGES if (version := _version(name))},
    )


def memory_gib() -> float:
    """Return the machine's memory, used or not."""
    return round(int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / _KIB_PER_GIB, 1)


def accelerated() -> bool:
    """Return whether there is an NVIDIA device that this process may use, by its device file: no driver is asked."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def devices() -> tuple[str, ...]:
    """Return the names of the NVIDIA accelerators; empty without any, or when their driver does not answer in time."""
    return _queried("name")


def uuids() -> tuple[str, ...]:
    """Return the names by which the driver knows the NVIDIA accelerators, in the order of their numbers."""
    return _queried("uuid")


def _queried(field: str) -> tuple[str, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    argv = [tool, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
