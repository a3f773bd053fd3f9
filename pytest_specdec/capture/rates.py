"""Rates for the estimate of a plan: those of earlier runs of the same config on this machine, else from the model's size and the device.

Rates are the seconds of a boot, the tokens per second of one stream and of scoring, and the scaling: the part of ideal speed-up that
concurrent streams reach. A footprint is the share of a machine that one server takes.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment
from pytest_specdec.engines import model_size
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError, RunError
from pytest_specdec.files import run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.plan import Rates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Engine, Footprint
    from pytest_specdec.model.baseline import Environment

_RUNS = 5
"""Earlier runs at most; the estimate takes their median."""
_LOOKED_AT = 50
"""Newest runs of any config that are searched for earlier runs of this one."""

_GB_PER_S = {
    "B300": 8000.0,
    "B200": 8000.0,
    "H200": 4800.0,
    "H20": 4000.0,
    "H100 NVL": 3900.0,
    "H100 PCIe": 2000.0,
    "H100": 3350.0,
    "A100": 2000.0,
    "RTX PRO 6000": 1792.0,
    "RTX 5090": 1792.0,
    "RTX 4090": 1008.0,
    "RTX 6000 Ada": 960.0,
    "RTX 3090": 936.0,
    "V100": 900.0,
    "L40S": 864.0,
    "A6000": 768.0,
    "A10G": 600.0,
    "A10": 600.0,
    "T4": 320.0,
    "L4": 300.0,
    "GB10": 273.0,
}
"""Memory bandwidth of devices by a word in their name (NVIDIA's data sheets); the first that fits counts."""
_UNKNOWN_DEVICE = 1000.0
"""GB per second of a device that is not in the table."""
_CPU = 40.0
"""GB per second of a CPU; two channels of DDR4-3200 have 51."""

_REACHED = 0.75
"""Fraction of the bandwidth that one stream reaches by the weights it reads.

Published: 0.84 (Qwen3-32B, RTX PRO 6000), 0.75 (Llama-3.1-8B, H100; Llama-3.3-70B FP8, H200), 0.77 (Llama-3.1-8B, A100), 0.64
(Llama-3.3-70B FP8, H100).
"""
_LOADED_GB_PER_S = 2.0
"""Weights read per second of a boot: 5.1 (Qwen3-32B from a warm cache, vllm#28919), below 1 from many disks."""
_PREFILL = 100.0
"""Prompt tokens that a device reads in the time of one emitted by one stream: it reads weights once for all of them."""
_DEVICE_SCALING = 0.8
"""Seen at eight streams: 0.83 (Llama-3.1-8B, A100); at 32: 0.91 (a 49B in FP8, B200)."""


def expected_rates(config: Config, folder: Path) -> Rates:
    """Return the rates of the newest matching runs in ``folder``.

    Matching runs have the same config, engine, model and machine. Each rate is the median over at most five of these. The scaling, which no
    run measures, and the rate of timed tokens, maybe None, are the newest run's. Without such a run they are :func:`scale_to_size`'s.
    """
    earlier_rates = _earlier_rates(config, folder)
    if not earlier_rates:
        return scale_to_size(config)
    runs = "1 earlier run" if len(earlier_rates) == 1 else f"{len(earlier_rates)} earlier runs"
    return Rates(
        boot_s=median(rates.boot_s for rates in earlier_rates),
        tokens_per_s=median(rates.tokens_per_s for rates in earlier_rates),
        scored_tokens_per_s=median(rates.scored_tokens_per_s for rates in earlier_rates),
        scaling=earlier_rates[0].scaling,
        timed_tokens_per_s=earlier_rates[0].timed_tokens_per_s,
        source=f"from {runs} on this machine",
    )


def scale_to_size(config: Config) -> Rates:
    """Return the engine's own rates, slowed down to the model's size.

    The engine states rates for a tiny model. A larger one takes time to load its weights in every boot, and to read them for every token.
    ``known`` is False if nothing is known of the model or the device. Raises EngineError as :func:`engine_of`.
    """
    engine = engine_of(config.engine.kind)
    pace, size = engine.pace, model_size.of(config.engine.model, Path(config.resolve(config.engine.model)))
    footprint = _device_footprint(config, engine)  # None if it runs on the CPU
    device_gb_per_s = _gb_per_s(footprint.devices) if footprint and environment.has_accelerator() else 0.0
    on_device = device_gb_per_s > 0  # on an accelerator of this machine
    is_attached = bool(config.baseline.url or config.engine.url)
    rates = Rates(
        boot_s=pace.boot_s + (pace.compile_s if on_device else 0.0),
        tokens_per_s=pace.tokens_per_s,
        scored_tokens_per_s=pace.scored_tokens_per_s,
        scaling=_DEVICE_SCALING if on_device else pace.scaling,
        timed_tokens_per_s=pace.timed_tokens_per_s if config.speed else None,
        source="roughly, on a quiet machine",
        known=not is_attached and (footprint is None or (on_device and size is not None)),
    )
    if size is None or is_attached:  # an attached server runs on an unknown device
        return rates
    # One stream reads all active weights for each token, and reaches only a part of the memory's bandwidth.
    tokens_per_s = min(rates.tokens_per_s, _REACHED * (device_gb_per_s if on_device else _CPU) / size.active_gb)
    return replace(
        rates,
        boot_s=rates.boot_s + size.weights_gb / _LOADED_GB_PER_S,
        tokens_per_s=tokens_per_s,
        scored_tokens_per_s=min(rates.scored_tokens_per_s, _PREFILL * tokens_per_s),  # a prompt's tokens are read together
        source="from the model's size, roughly, on a quiet machine",
    )


def _device_footprint(config: Config, engine: Engine) -> Footprint | None:
    """Return the footprint of one server on accelerators.

    Returns None if it runs on the CPU, or if its share of them is unknown. The accelerators need not be in this machine.
    """
    try:
        footprint = engine.footprint(config, accelerated=True)
    except EngineError:  # whatever is missing is reported when it is needed
        return None
    return None if footprint.device_share is None else footprint


def _gb_per_s(devices: int) -> float:
    """Return the bandwidth of this many of the machine's devices, in GB/s.

    All count as the first one, which is looked up by its name.
    """
    device = next(iter(environment.devices()), "")
    bandwidths = (gb_per_s for model, gb_per_s in _GB_PER_S.items() if re.search(rf"\b{model}\b", device))
    return devices * next(bandwidths, _UNKNOWN_DEVICE)


def _earlier_rates(config: Config, folder: Path) -> list[Rates]:
    """Return the rates of the newest matching runs, newest first.

    Matching runs have the same config, engine, model and machine; at most five count. Runs that cannot be read are skipped.
    """
    rates: list[Rates] = []
    current_environment: Environment | None = None
    for directory in _newest_runs(folder):
        with suppress(RunError, OSError, ValueError, KeyError, TypeError):  # what a run that cannot be read raises
            run_rates = run_documents.read_status(directory).rates
            if run_rates is None or json.loads(directory.plan.read_text(encoding="utf-8"))["config"] != config.name:
                continue
            run_environment = run_documents.read_environment(directory)
            current_environment = current_environment or environment.environment(config, "")
            if (run_environment.engine, run_environment.model, run_environment.machine) == (
                current_environment.engine,
                current_environment.model,
                current_environment.machine,
            ):
                rates.append(run_rates)
        if len(rates) == _RUNS:
            break
    return rates


def _newest_runs(folder: Path) -> Iterator[RunDirectory]:
    """Yield the run directories written last, newest first.

    At most :data:`_LOOKED_AT` are yielded, of any config. A run is as new as its status.
    """
    dated_folders: list[tuple[float, Path]] = []
    for status in folder.glob("*/status.json"):
        with suppress(OSError):
            dated_folders.append((status.stat().st_mtime, status.parent))
    yield from (RunDirectory(root) for _, root in sorted(dated_folders, reverse=True)[:_LOOKED_AT])
