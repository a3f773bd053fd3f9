"""The machine: pinned ports, disk, accelerators, and other captures at work.

A capture is the part of a run that starts servers and sends them requests; it holds lock files meanwhile. An arm is one of its servers. A
footprint is what one server takes: its number of devices, and the share of their memory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from pytest_specdec.capture import locks
from pytest_specdec.capture.server.ports import require_port
from pytest_specdec.doctor.check import error_check, fail, ok, warn
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import ProgramResult
    from pytest_specdec.engines.protocol import Footprint

QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader,nounits")
_GIB, _MIB_PER_GIB = 1024**3, 1024
_RUN_FAIL_GIB, _RUN_WARN_GIB = 0.2, 2.0
"""A run's transcripts, scores and logs take tens to hundreds of MiB."""
_HUB_WARN_GIB = 20.0
_BUSY = 0.08
"""The share of a device in use above which an engine's own default, 0.90 to 0.92, may not fit."""


class Device(NamedTuple):
    """One accelerator."""

    number: str
    name: str
    total_gib: float
    used_gib: float


def ports(arms: Sequence[Arm]) -> tuple[Check, ...]:
    """Check that the ports set by the config are free.

    The check of a port in use names the process that holds it.
    """
    numbers = dict.fromkeys(int(value) for arm in arms if (value := str(arm.args.get("port", ""))).isdecimal())
    return tuple(map(_check_port, numbers)) or (ok("port", "none pinned: every boot takes a free one"),)


def _check_port(number: int) -> Check:
    """Check that a port can be bound."""
    try:
        require_port(number)
    except EngineError as error:
        return error_check("port", error)
    return ok("port", f"{number} is free")


def disk(folder: Path) -> Check:
    """Check that ``folder`` can be written to and has enough space.

    The folder, where runs will be written, need not exist: its nearest existing parent is checked. Less than ``_RUN_FAIL_GIB`` of
    free space fails, less than ``_RUN_WARN_GIB`` gives a warning.
    """
    place, free = _nearest_existing(folder), _free_gib(folder)
    line, remedy = f"{free:.1f} GiB free for runs in {folder}", "make room, or give --specdec-run-dir on another disk"
    if not os.access(place, os.W_OK):
        return fail("disk", f"{place} cannot be written to", remedy="run from another folder, or give --specdec-run-dir")
    if free < _RUN_FAIL_GIB:
        return fail("disk", line, f"expected: {_RUN_FAIL_GIB:g} GiB", remedy=remedy)
    return warn("disk", line, f"expected: {_RUN_WARN_GIB:g} GiB", remedy=remedy) if free < _RUN_WARN_GIB else ok("disk", line)


def download(cache: Path, models: Sequence[str]) -> Check:
    """Check the free space for models to be downloaded at boot.

    ``models`` are those missing in the hub's ``cache``. Their sizes are unknown here, so that a warning is given
    below a fixed number of GiB.
    """
    free = _free_gib(cache)
    line = f"{free:.1f} GiB free in {cache}, to which {', '.join(models)} will be downloaded"
    return warn("disk", line, remedy="make room, or set HF_HOME to a larger disk") if free < _HUB_WARN_GIB else ok("disk", line)


def _nearest_existing(folder: Path) -> Path:
    """Return ``folder`` if it exists, else its nearest existing parent."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _free_gib(folder: Path) -> float:
    """Return the GiB free on the disk of a folder, which need not exist."""
    return shutil.disk_usage(_nearest_existing(folder)).free / _GIB


def devices(result: ProgramResult) -> tuple[Device, ...]:
    """Return the accelerators in the output of nvidia-smi.

    ``QUERY`` asks it for number, name, total and used MiB. () if it is missing or failed.
    """
    rows = [line.split(", ") for line in result.out.splitlines()] if result.exit_code == 0 else []
    return tuple(
        Device(number=row[0], name=row[1], total_gib=float(row[2]) / _MIB_PER_GIB, used_gib=float(row[3]) / _MIB_PER_GIB)
        for row in rows
        if len(row) == len(Device._fields) and row[2].isdigit() and row[3].isdigit()
    )


def select_visible(present: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """Return the devices left by ``CUDA_VISIBLE_DEVICES``, which nvidia-smi ignores.

    ``visible`` is its value, numbers with commas between; the list ends at the first invalid number. None leaves all devices. All are
    returned as well if a device is named by its UUID, since nvidia-smi is not asked for these.
    """
    names = [name.strip() for name in visible.split(",")] if visible is not None else None
    if names is None or any(not name.lstrip("-").isdecimal() for name in names if name):
        return tuple(present)
    by_number = {device.number: device for device in present}
    return tuple(by_number[name] for name in takewhile(by_number.__contains__, names))


def free_memory(present: Sequence[Device], footprint: Footprint) -> tuple[Check, ...]:
    """Check the free memory of each device.

    It must be enough for one server, whose needs ``footprint`` states. Without a device there is one check, a warning if
    the engine needs a device.
    """
    if not present:
        line = "no accelerator: nvidia-smi lists none"
        needed = footprint.device_share is not None
        return (warn("device", line, remedy="run on a machine with the engine's device") if needed else ok("device", line),)
    return tuple(_check_memory(device, footprint) for device in present)


def device_count(present: Sequence[Device], footprint: Footprint) -> tuple[Check, ...]:
    """Return a failed check if there are too few devices for one server.

    Returns () if they are enough, and without any device, which :func:`free_memory` reports.
    """
    if not present or footprint.devices <= len(present):
        return ()
    line = f"the config asks for {footprint.devices} devices, and {len(present)} are here"
    return (fail("devices", line, remedy=f"lower {footprint.options}, or run on a larger machine"),)


def _check_memory(device: Device, footprint: Footprint) -> Check:
    """Check the free memory of one device.

    It passes for a server that takes no device. It fails if the config states a share of the memory that is not free.
    Any other device in use gives a warning, since an engine's default share may not fit.
    """
    free_gib, device_share = device.total_gib - device.used_gib, footprint.device_share
    line = f"{device.number}: {device.name}, {free_gib:.1f} of {device.total_gib:.1f} GiB free"
    remedy = "end what holds its memory (nvidia-smi)" + (f", or lower {footprint.options}" if footprint.options else "")
    if device_share is None:
        return ok("device", line)
    if footprint.share_stated and free_gib < device_share * device.total_gib:
        return fail("device", line, f"expected: {device_share:.0%} free, as the config asks", remedy=remedy)
    return warn("device", line, remedy=remedy) if device.used_gib > _BUSY * device.total_gib else ok("device", line)


def leases(folder: Path) -> Check:
    """Check for other captures at work, by their lock files.

    ``folder`` holds the lock files (:mod:`pytest_specdec.capture.locks`).
    """
    held_locks = [f"{path.stem} ({_last_holder(path)})" for path in sorted(folder.glob("*.lock")) if _is_held(path)]
    if held_locks:
        return warn("lease", f"another capture is at work: {', '.join(held_locks)}", remedy="a run waits for it for up to an hour")
    return ok("lease", "no other capture is at work")


def _is_held(path: Path) -> bool:
    """Return True if another process has locked the file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _last_holder(path: Path) -> str:
    """Return in words who holds a lock, as far as its file tells.

    A process that takes the lock alone writes itself into the file. Several that share the lock leave the file as it is.
    """
    holder = locks.describe_holder(path)
    return f"last held alone by {holder}" if holder else "shared"
