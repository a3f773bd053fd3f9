"""Resident memory of processes, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIB_PER_MIB = 1024.0


def resident_mib(pids: Iterable[int]) -> float | None:
    """Return the resident memory of processes, summed, in MiB.

    Pages that they share count in each. Returns None if none of them can be read, as on a system without proc_pid_status(5).
    """
    sizes = [size for pid in pids if (size := _resident_kib(pid)) is not None]
    return round(sum(sizes) / _KIB_PER_MIB, 1) if sizes else None


def _resident_kib(pid: int) -> int | None:
    """Return one process's resident memory in KiB; None if unreadable."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:")), None)
