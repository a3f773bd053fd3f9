"""Device memory: whether the weights of every arm, a server that a run starts, drafter included, go into its share of the devices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.doctor.check import fail, ok, warn
from pytest_specdec.engines import checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.machine import Device
    from pytest_specdec.engines.protocol import Engine, Footprint
    from pytest_specdec.model.workload import JSON

_SHRINKING = ("quantization", "offload", "load-format", "kv-transfer")
"""Parts of the names of arguments by which weights take less of a device than of a disk."""
_PARAMETERS = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)
_BYTES = (
    (re.compile(r"fp4|int4|w4a|awq|gptq|4bit|gpt-oss", re.IGNORECASE), 0.55),
    (re.compile(r"fp8|int8|w8a|8bit", re.IGNORECASE), 1.0),
)
"""Bytes per parameter, by a word in a model's name; 2 without one."""
_BILLION_GIB = 1e9 / 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """The weights of one arm."""

    stored_gib: float
    """Of what lies on this machine."""
    guessed_gib: float
    """Of the rest, by the models' names."""


def checks(config: Config, engine: Engine, arms: Sequence[Arm], devices: Sequence[Device], footprint: Footprint) -> tuple[Check, ...]:
    """Check the weights of every arm against device memory.

    The weights must fit into the share of memory that a server uses. They are taken as split evenly over its devices, so that the smallest
    device here, times their number, is the limit. If all fit, one check says so. Returns () without a device, and for an engine that uses
    none. ``footprint`` states what one server takes; its ``options`` are the arguments to change, for remedies.
    """
    if not devices or footprint.device_share is None:
        return ()
    if not footprint.takes_first:  # it may take any of the devices: which room it has is unknown
        return ()
    room_gib = min(device.total_gib for device in devices) * footprint.device_share * footprint.devices
    arm_checks = [
        check for arm in arms if (check := _check_arm(config, arm, _arm_weights(config, engine, arm), room_gib, footprint.options))
    ]
    return tuple(arm_checks) or (ok("memory", f"the weights that are known go into {room_gib:.1f} GiB"),)


def _check_arm(config: Config, arm: Arm, weights: _Weights, room_gib: float, options: str) -> Check | None:
    """Return the check of an arm with too large weights.

    Returns None if they fit into ``room_gib``. It is only a warning if the size is partly guessed from a model's
    name, or if the server may hold the weights in fewer bits than they are stored in. ``options`` name the engine's
    settings in the remedy.
    """
    total_gib = weights.stored_gib + weights.guessed_gib
    if total_gib <= room_gib:
        return None
    line = f"{arm.name}: {total_gib:.1f} GiB of weights, drafter included, and {room_gib:.1f} GiB for a server"
    remedy = f"raise {options}, or serve a smaller or quantised model"
    if weights.stored_gib <= room_gib:
        return warn("memory", line, "found:    as far as the model's name says", remedy=remedy)
    if _may_shrink(config, arm):
        return warn("memory", line, "found:    as stored; the server may hold them in fewer bits, or elsewhere", remedy=remedy)
    return fail("memory", line, remedy=remedy)


def _arm_weights(config: Config, engine: Engine, arm: Arm) -> _Weights:
    """Return the GiB of an arm's weights, its draft model included.

    They are read off stored checkpoints, and guessed by name for other models.
    """
    gib_by_model = {model: checkpoint.weights_gib(checkpoint.folder(config, model)) for model in engine.models(arm.model, arm.args)}
    guessed_gib = sum(guess_weights_gib(model, arm.args) for model, gib in gib_by_model.items() if gib is None)
    return _Weights(stored_gib=sum(gib or 0.0 for gib in gib_by_model.values()), guessed_gib=guessed_gib)


def guess_weights_gib(model: str, args: Mapping[str, JSON]) -> float:
    """Return the GiB of a model's weights, guessed by its name.

    ``Llama-3.3-70B-FP8`` has 70 billion parameters of one byte, ``8x7B`` eight times seven. Words in the name, or in a
    quantization argument among ``args``, give the bytes per parameter. Returns 0 if the name has no number of
    parameters.
    """
    match = _PARAMETERS.search(model.rpartition("/")[2])
    if match is None:
        return 0.0
    words = f"{model} {' '.join(str(value) for name, value in args.items() if plain(name) == 'quantization')}"
    size = next((size for pattern, size in _BYTES if pattern.search(words)), 2.0)
    return int(match[1] or 1) * float(match[2]) * size * _BILLION_GIB


def _may_shrink(config: Config, arm: Arm) -> bool:
    """Return True if weights may take less memory than stored.

    An argument may quantise or offload them, or a float32 checkpoint may be served in half precision.
    """
    if any(word in plain(name) for name in arm.args for word in _SHRINKING):
        return True
    checkpoint_config = checkpoint.read_config(checkpoint.folder(config, arm.model))
    is_stored_in_float32 = "float32" in {str(checkpoint_config.get(name)) for name in ("torch_dtype", "dtype")}
    return is_stored_in_float32 and "float32" not in str(arm.args.get("dtype"))
