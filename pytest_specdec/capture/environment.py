"""The environment of a capture: machine, engine, client."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_specdec.config.engines import EngineName, restrict_to_engine
from pytest_specdec.engines import checkpoint
from pytest_specdec.engines.arguments import fill
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files import yaml
from pytest_specdec.model.baseline import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config, VariantSettings
    from pytest_specdec.engines.protocol import Engine
    from pytest_specdec.model.workload import JSON

_PACKAGES = ("pytest-specdec", "openai", "numpy", "scipy", "pytest")
_NVIDIA_SMI_S = 10.0
_KIB_PER_GIB = 1024**2


def environment(config: Config, engine_version: str) -> Environment:
    """Return the environment of this capture: machine, engine and client.

    It is stored with the results, which depend on it. ``engine_version`` is empty before the first server is ready.
    """
    return Environment(
        engine=config.engine.kind,
        engine_version=engine_version,
        model=config.engine.model,
        processor=_read_field("/proc/cpuinfo", "model name") or platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gib=memory_gib(),
        devices=devices(),
        driver=driver(),
        system=platform.platform(),
        python=platform.python_version(),
        packages={name: version for name in _PACKAGES if (version := _installed_version(name))},
        variants={variant.name: _describe_variant(config, variant) for variant in config.variants},
    )


def _describe_variant(config: Config, variant: VariantSettings) -> dict[str, str]:
    """Return the checkpoints, dtype and flags of a variant's server.

    They are those in the config; no server is asked. A dtype that the config leaves out is ``auto``.
    """
    engine = engine_of(config.engine.kind)
    args = fill(config, variant, os.environ)
    dtype, quantization = (str(args.get(name, "")) for name in ("dtype", "quantization"))
    return {
        "model": _name_with_digest(config, config.engine.model),
        "draft": _describe_draft(config, engine, args),
        "dtype": " ".join(filter(None, (dtype, quantization))) or "auto",
        "flags": _digest_flags(config, variant.name),
    }


def _describe_draft(config: Config, engine: Engine, args: Mapping[str, JSON]) -> str:
    """Return a drafter's kind, checkpoint and number of draft tokens.

    They are put in words, such as ``model name@digest, 3 tokens``. ``args`` are the arguments of the variant's server. Returns an empty
    string if the config does not state them.
    """
    try:
        draft, targets = engine.draft(args), engine.models(config.engine.model, {})
        draft_models = engine.models(config.engine.model, args)[len(targets) :]  # the target's checkpoints come first
    except SpecdecError:
        return ""
    names = draft_models or ((draft.model,) if draft and draft.model else ())
    description = " ".join(["" if draft is None else draft.kind.value, *(_name_with_digest(config, name) for name in names)]).strip()
    return f"{description}, {draft.tokens} tokens" if draft else description


def _name_with_digest(config: Config, name: str) -> str:
    """Return a checkpoint's name with a digest of its files.

    The digest covers the names and sizes of the files and the content of ``config.json``; weights are not read. Returns ``name`` alone if
    the checkpoint is not on this machine.
    """
    location = checkpoint.folder(config, name)
    files = sorted(path for path in (location.glob("*") if location.is_dir() else [location]) if path.is_file())
    if not name or not files:
        return name
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes() if path.name == "config.json" else b"")
    return f"{Path(name).name if Path(name).is_absolute() else name}@{digest.hexdigest()[:12]}"


def _digest_flags(config: Config, variant: str) -> str:
    """Return a digest of a variant's and the baseline's server arguments.

    These are the baseline's, the variant's and the ones that both share, as written in the config: ``${VAR}`` is not expanded, since a
    variable may be a secret. If the config has two ``engines``, an old and a new one, they are the new one's.
    """
    document = yaml.load(config.text, str(config.path)).data
    data: Any = restrict_to_engine(document, EngineName.NEW) if isinstance(document, dict) else {}
    sections = (data.get("engine"), data.get("baseline"), data.get("variants", {}).get(variant))
    args = [section.get("args", {}) if isinstance(section, dict) else {} for section in sections]
    return hashlib.sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()[:12]


def memory_gib() -> float:
    """Return the machine's memory, used or not."""
    return round(int((_read_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / _KIB_PER_GIB, 1)


def load_per_core() -> float:
    """Return the load per core, averaged over a minute.

    The load is the number of processes that run or wait to run.
    """
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def has_accelerator() -> bool:
    """Return True if this process may use an NVIDIA device.

    The device files decide, and CUDA_VISIBLE_DEVICES, which hides all devices if it is empty or begins with -1. No driver is called, so
    that a plan can be made without loading one.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return visible != "" and not visible.startswith("-1") and any(Path("/dev").glob("nvidia[0-9]*"))


def devices() -> tuple[str, ...]:
    """Return the names of this machine's NVIDIA accelerators, in order.

    Returns an empty tuple without any, or if their driver does not answer in time.
    """
    return _query_devices("name")


def driver() -> str:
    """Return the version of the driver of the NVIDIA accelerators.

    Returns an empty string without any.
    """
    return ", ".join(dict.fromkeys(_query_devices("driver_version")))


def uuids() -> tuple[str, ...]:
    """Return the driver's UUIDs of the NVIDIA accelerators, in order.

    The order is that of nvidia-smi's device numbers. Empty without any, or if the driver does not answer in time.
    """
    return _query_devices("uuid")


def _query_devices(field: str) -> tuple[str, ...]:
    """Return one field of every accelerator, as reported by nvidia-smi.

    Returns an empty tuple without the tool, or if it fails.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    argv = [tool, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def _read_field(path: str, name: str) -> str:
    """Return the first value of a field in a text file.

    Each line of the file is ``name: value``. Returns an empty string if the file cannot be read or has no such field.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _installed_version(package: str) -> str:
    """Return the version of an installed package, or an empty string."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
