"""The machine: pinned ports, disk, accelerators, and other captures at work."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.server.ports import pinned
from pytest_specdec.doctor.check import fail, failed, ok, warn
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pytest_specdec.doctor.arm_commands import ArmCommand
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import ProgramResult
    from pytest_specdec.model.workload import JSON

__all__ = ["QUERY", "Device", "accelerators", "devices", "disk", "download", "leases", "ports"]

QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader,nounits")
_GIB = 1024**3
_MIB_PER_GIB = 1024
_RUN_FAIL_GIB, _RUN_WARN_GIB = 0.2, 2.0
"""A run's transcripts, scores and logs take tens to hundreds of MiB."""
_HUB_WARN_GIB = 20.0
_BUSY = 0.08
"""Engines ask for 0.90 to 0.92 of a device's memory when nobody tells them."""
_UTILISATION = "gpu-memory-utilization"
_PARALLEL = ("tensor-parallel-size", "tp", "tp-size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator."""

    index: str
    name: str
    total_gib: float
    used_gib: float

    @property
    def free_gib(self) -> float:
        """Memory that nobody holds."""
        return self.total_gib - self.used_gib


def ports(arms: Sequence[ArmCommand]) -> tuple[Check, ...]:
    """Return whether the ports that the config pins can be bound, and who holds those that cannot."""
    pinned = dict.fromkeys(value for arm in arms if isinstance(value := arm.args.get("port"), int))
    return tuple(_port(number) for number in pinned) or (ok("port", "none pinned: every boot takes a free one"),)


def _port(number: int) -> Check:
    try:
        pinned(number)
    except EngineError as error:
        return failed("port", error)
    return ok("port", f"{number} is free")


def disk(folder: Path) -> Check:
    """Return whether a run can be written under ``folder``, which need not exist."""
    place = _nearest(folder)
    free = shutil.disk_usage(place).free / _GIB
    said = f"{free:.1f} GiB free for runs in {folder}"
    if not os.access(place, os.W_OK):
        return fail("disk", f"{place} cannot be written to", remedy="run from another folder, or give --specdec-run-dir")
    if free < _RUN_FAIL_GIB:
        return fail("disk", said, f"expected: {_RUN_FAIL_GIB:g} GiB", remedy="make room, or give --specdec-run-dir on another disk")
    if free < _RUN_WARN_GIB:
        return warn("disk", said, f"expected: {_RUN_WARN_GIB:g} GiB", remedy="make room, or give --specdec-run-dir on another disk")
    return ok("disk", said)


def download(cache: Path, models: Sequence[str]) -> Check:
    """Return what is free for ``models``, which are to be downloaded and whose sizes nobody asks the hub for."""
    free = shutil.disk_usage(_nearest(cache)).free / _GIB
    said = f"{free:.1f} GiB free in {cache}, to which {', '.join(models)} will be downloaded"
    if free < _HUB_WARN_GIB:
        return warn("disk", said, remedy="make room, or set HF_HOME to a larger disk")
    return ok("disk", said)


def _nearest(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def devices(ran: ProgramResult) -> tuple[Device, ...]:
    """Return what nvidia-smi listed; () where it is missing or failed."""
    rows = [line.split(", ") for line in ran.out.splitlines()] if ran.exit_code == 0 else []
    return tuple(
        Device(index=row[0], name=row[1], total_gib=float(row[2]) / _MIB_PER_GIB, used_gib=float(row[3]) / _MIB_PER_GIB)
        for row in rows
        if len(row) == len(Device.__slots__) and row[2].isdigit() and row[3].isdigit()
    )


def accelerators(found: Sequence[Device], arms: Sequence[ArmCommand], *, needed: bool) -> tuple[Check, ...]:
    """Return whether the devices have the number and the free memory that the arms ask for; ``needed`` is whether there must be one."""
    if not found:
        said = "no accelerator: nvidia-smi lists none"
        return (
            warn("device", said, remedy="run where the engine's device is, unless it serves without") if needed else ok("device", said),
        )
    widest = int(max(_numbers(arms, _PARALLEL), default=1))
    share = max(_numbers(arms, (_UTILISATION,)), default=0.0)
    told = [_memory(device, share) for device in found]
    if widest > len(found):
        said = f"the config asks for {widest} devices, and {len(found)} are here"
        told.append(fail("device", said, remedy=f"lower {_PARALLEL[0]}, or run on a larger machine"))
    return tuple(told)


def _memory(device: Device, share: float) -> Check:
    said = f"{device.index}: {device.name}, {device.free_gib:.1f} of {device.total_gib:.1f} GiB free"
    if device.free_gib < share * device.total_gib:
        return fail("device", said, f"expected: {share:.0%} free, {_UTILISATION}", remedy="end what holds its memory (nvidia-smi)")
    if device.used_gib > _BUSY * device.total_gib:
        return warn("device", said, remedy=f"end what holds its memory (nvidia-smi), or lower {_UTILISATION}")
    return ok("device", said)


def _numbers(arms: Iterable[ArmCommand], names: Sequence[str]) -> list[float]:
    stated = [_named(arm.args, name) for arm in arms for name in names]
    return [float(value) for value in stated if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _named(args: Mapping[str, JSON], name: str) -> JSON:
    return next((value for spelt, value in args.items() if spelt.lstrip("-").replace("_", "-") == name), None)


def leases(folder: Path) -> Check:
    """Return whether another capture holds a lock in ``folder``, that of :mod:`pytest_specdec.capture.locks`."""
    held = [f"{path.stem} ({_last_holder(path)})" for path in sorted(folder.glob("*.lock")) if _is_held(path)]
    if held:
        return warn("lease", f"another capture is at work: {', '.join(held)}", remedy="a run waits for it for up to an hour")
    return ok("lease", "no other capture is at work")


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _last_holder(path: Path) -> str:
    number = path.read_text(encoding="ascii", errors="replace").strip()
    return f"last held alone by process {number}" if number.isdigit() else "shared"
