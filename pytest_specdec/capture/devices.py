"""The devices of a machine: which of them a session may use, how many a server takes, and jobs side by side on them.

A job is work that takes devices, such as the capture of one group of a matrix. A slot is its devices and time in a schedule; a lease is
devices locked for it. A device's lock file keeps other captures on this machine from it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks, placement
from pytest_specdec.config.variables import set_in_environment
from pytest_specdec.engines import stack
from pytest_specdec.engines.arguments import merge
from pytest_specdec.engines.protocol import Footprint
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import ConfigError, EngineError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.config.config import Config

__all__ = [
    "AvailableDevices",
    "Device",
    "Job",
    "Lease",
    "Slot",
    "available",
    "count_needed",
    "describe_holders",
    "hold",
    "most_at_once",
    "next_job",
    "require_fit",
    "restrict",
    "schedule",
    "take",
    "time_limit",
    "why_in_turn",
]

_CUDA, _HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_LEASED = "SPECDEC_LEASED_DEVICES"
"""The variable with the locks of devices that this process was started with: it may use these, and takes no lock of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, or one place for servers on the CPU."""

    name: str
    """As the variables of visible devices name it: a number, or a UUID."""
    lock: str
    """The name of its lock: the UUID where the driver says it, since a device has several names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableDevices:
    """The devices that a session may use."""

    devices: tuple[Device, ...]
    accelerators: bool
    """Whether they are accelerators; False for places on the CPU."""

    @property
    def names(self) -> str:
        """Their names in words."""
        return ", ".join(device.name for device in self.devices) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that takes devices, such as a group's capture."""

    name: str
    devices: int
    """Number of devices that it takes, for itself alone."""
    seconds: float
    """Seconds that it is expected to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Devices that are locked for one job."""

    job: str
    devices: tuple[Device, ...]
    descriptors: tuple[int, ...]
    """The locks: a device is held until every process that inherited its descriptor has closed it."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables by which a process sees these devices only.

        They also keep it from locking the devices, which are locked for it already.
        """
        return {**_variables(self.devices), _LEASED: ",".join(device.lock for device in self.devices)}

    def close(self) -> None:
        """Release the devices, as far as this process holds them."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of a job in a schedule."""

    job: str
    devices: tuple[Device, ...]
    begin_s: float
    """In seconds from one moment for all slots of a schedule; so is ``end_s``."""
    end_s: float


def next_job(waiting: Sequence[Job], free: int) -> Job | None:
    """Return the longest waiting job fitting on ``free`` devices, if any."""
    return max((job for job in waiting if job.devices <= free), key=lambda job: job.seconds, default=None)


def schedule(jobs: Sequence[Job], devices: Sequence[Device], running: Sequence[Slot] = ()) -> tuple[Slot, ...]:
    """Return a slot for each of ``jobs``, in order of beginning.

    Whenever devices are free, the longest waiting job that fits begins on them; ``devices`` have to be enough for each job alone.
    ``running`` are the slots of jobs at work, in seconds from now. Jobs that measure speed may overlap others:
    :func:`locks.exclusive` keeps each measurement alone on the machine.
    """
    waiting, at_work, slots = list(jobs), list(running), list[Slot]()
    now_s = 0.0
    while waiting:
        free = [device for device in devices if not any(device in slot.devices for slot in at_work)]
        job = next_job(waiting, len(free))
        if job is None:
            next_to_end = min(at_work, key=lambda slot: slot.end_s)
            at_work.remove(next_to_end)
            now_s = max(now_s, next_to_end.end_s)  # a running job may be overdue already
            continue
        waiting.remove(job)
        at_work.append(Slot(job=job.name, devices=tuple(free[: job.devices]), begin_s=now_s, end_s=now_s + job.seconds))
        slots.append(at_work[-1])
    return tuple(slots)


def time_limit(
    slot: Slot, *, running: Sequence[Slot], waiting: Sequence[Job], devices: Sequence[Device], left_s: float, least_s: float
) -> float:
    """Return the seconds allowed for the job of ``slot``, beginning now.

    They are ``left_s``, the seconds until a deadline, without those that the ``waiting`` jobs need on its devices afterwards, and at least
    ``least_s``. ``running`` are the other jobs at work on ``devices``.
    """
    return max(least_s, left_s - _seconds_after(slot, schedule(waiting, devices, (*running, slot))))


def _seconds_after(slot: Slot, later: Sequence[Slot]) -> float:
    """Return the seconds needed after ``slot`` by jobs waiting for it.

    A job waits for another if it takes some of the same devices later. Chains of such jobs begin with ``slot``: the longest one after it
    counts. ``later`` are the slots after it, in the order in which they begin.
    """
    needed_s: dict[str, float] = {}  # by job, of the longest chain after it
    slots = (slot, *later)
    # Backwards: the chains of the jobs after a slot are then worked out already.
    for index in reversed(range(len(slots))):
        devices = set(slots[index].devices)
        waiting = (other for other in slots[index + 1 :] if not devices.isdisjoint(other.devices))
        needed_s[slots[index].job] = max((other.end_s - other.begin_s + needed_s[other.job] for other in waiting), default=0.0)
    return needed_s[slot.job]


def most_at_once(slots: Sequence[Slot]) -> int:
    """Return the largest number of a schedule's jobs running together.

    It is reached when a job begins, so that only those moments are looked at.
    """
    return max((sum(other.begin_s <= slot.begin_s < other.end_s for other in slots) for slot in slots), default=0)


def take(waiting: Sequence[Job], devices: Sequence[Device]) -> Lease | None:
    """Return a lease of devices for the next ``waiting`` job.

    Next is the longest job that fits on the devices that no other capture has locked. All of these are locked at first, since only then is
    their number certain, and those that the job does not need are released. Returns None if they are too few for any job.
    """
    locked = {device: descriptor for device in devices if (descriptor := locks.try_device(device.lock)) is not None}
    job = next_job(waiting, len(locked))
    chosen = tuple(locked)[: job.devices if job else 0]
    for device, descriptor in locked.items():
        if device in chosen:
            locks.write_holder(descriptor)
        else:
            os.close(descriptor)
    return Lease(job=job.name, devices=chosen, descriptors=tuple(locked[device] for device in chosen)) if job else None


def describe_holders(devices: Sequence[Device]) -> tuple[str, ...]:
    """Return in words, for each of ``devices`` in use, the last capture known to hold it."""
    return tuple(
        f"{device.name} last held by {locks.device_lock(device.lock).holder or 'none'}"
        for device in devices
        if not locks.is_free(device.lock)
    )


def require_fit(jobs: Sequence[Job], usable: AvailableDevices) -> None:
    """Raise PlanError if a job takes more devices than there are."""
    too_wide = [job for job in jobs if job.devices > len(usable.devices)]
    if too_wide:
        needs = "\n".join(f"{job.name}: its largest server takes {job.devices} devices" for job in too_wide)
        what, expected = "groups of the matrix need more devices than there are", f"at most {len(usable.devices)}: {usable.names}"
        remedy = "run these cells on a larger machine and the others here, each with --specdec-only; or lower their parallel sizes"
        raise PlanError(what, where="matrix", found=needs, expected=expected, remedy=remedy)


def count_needed(config: Config, *, accelerators: bool) -> int:
    """Return the number of devices that the servers of ``config`` take.

    ``accelerators`` is True if the machine has some, such as GPUs. Servers side by side share the same devices by memory, so that the
    number is that of the largest server. It is 0 if no server uses a device.
    """
    footprints = _footprints(config, accelerators=accelerators)
    # A footprint has a device_share, the fraction that it takes of a device's memory, only if the server uses devices.
    return max((footprint.devices for footprint in footprints if footprint.device_share), default=0)


def _footprints(config: Config, *, accelerators: bool) -> Iterator[Footprint]:
    """Yield the footprints, the devices and memory taken, of a config's servers.

    Of each engine, an old one too, they are that of its largest arm and that of a draft model served alone.
    """
    for build_config in config.builds.values():
        engine, speed = build_config.engine, build_config.speed
        speed_args = [merge(engine.args, speed.args)] if speed else []
        for args in (engine.args, *speed_args):
            arms = replace(build_config, engine=replace(engine, args=args))
            # The draft model's server has the settings under `draft`, and no variants.
            draft = replace(arms, variants=(), baseline=build_config.draft, stack=())
            yield _footprint(arms, accelerators=accelerators)
            yield _footprint(draft, accelerators=accelerators)
    if config.scorer:
        yield _footprint(config.scorer_config(), accelerators=accelerators)


def _footprint(config: Config, *, accelerators: bool) -> Footprint:
    """Return the footprint, the devices and memory taken, of a config's largest arm.

    If a model is missing, it is one whole device, any of them.
    """
    try:
        return stack.footprint(config, engine_of(config.engine.kind), accelerated=accelerators)
    except EngineError:  # another check reports it
        return Footprint(device_share=1.0, takes_first=False)


def _count_to_hold(config: Config, visible: int) -> int:
    """Return how many of the ``visible`` devices to hold for servers.

    It is the number that the largest server takes, or all if it is unknown which ones the servers will use.
    """
    footprints = tuple(_footprints(config, accelerators=True))
    if why_in_turn(config):
        return visible  # the servers cannot be given devices, as if the config names theirs
    if not all(footprint.takes_first for footprint in footprints):
        return visible  # one may take others than the first devices that it sees
    if any(footprint.device_share is None for footprint in footprints):
        return visible  # the engine does not state what it takes
    return max(footprint.devices for footprint in footprints) or visible


def why_in_turn(config: Config) -> str:
    """Return why a config's servers cannot be given devices.

    They cannot run beside other servers for the same reason. Of several reasons the first is returned, an empty string if there is none.
    Processes of a ``stack`` make up one server together.
    """
    optional = (config.speed.env if config.speed else {}, config.scorer.env if config.scorer else {})
    environments = (config.engine.env, config.baseline.env, config.draft.env, *(variant.env for variant in config.variants), *optional)
    environments += tuple(process.env for process in config.stack)
    if placement.attached_arms(config):
        return "attached servers run already"
    if "port" in config.engine.args:
        return "the config pins the servers' port"
    names = (name for variables in environments for name in variables if name in {_CUDA, _HIP})
    pinned = next(names, "docker.gpus" if config.engine.docker.gpus else "")
    return f"the config sets {pinned}" if pinned else ""


def available(stated: int | tuple[str, ...] | None) -> AvailableDevices:
    """Return the devices that a session may use.

    ``stated`` is ``limits.devices`` of the config: a number of devices, or their names. None leaves all that CUDA_VISIBLE_DEVICES or
    HIP_VISIBLE_DEVICES leave. Raises ConfigError if a stated device is not there.
    """
    visible = _visible()
    if stated is None:
        return AvailableDevices(devices=visible, accelerators=True)  # maybe of no devices
    if isinstance(stated, int) and not visible:
        # A machine without accelerators: so many servers may run on its CPU at once, each in a place of its own.
        places = tuple(Device(name=str(number), lock=f"place-{number}") for number in range(stated))
        return AvailableDevices(devices=places, accelerators=False)
    if isinstance(stated, int):
        chosen, is_missing = visible[:stated], stated > len(visible)
    else:
        by_name = {name: _find(name, visible) for name in stated}
        chosen, is_missing = tuple(dict.fromkeys(filter(None, by_name.values()))), not all(by_name.values())
    if is_missing:
        text = str(stated) if isinstance(stated, int) else ", ".join(stated)
        expected = f"some of the {len(visible)} devices here: {', '.join(device.name for device in visible) or 'none'}"
        what, remedy = "a stated device is not here", "take numbers of nvidia-smi; of AMD those in HIP_VISIBLE_DEVICES are known"
        raise ConfigError(what, where="limits.devices", found=text, expected=expected, remedy=remedy)
    return AvailableDevices(devices=chosen, accelerators=True)


def _find(name: str, visible: Sequence[Device]) -> Device | None:
    """Return the visible device called ``name``; None if there is none.

    ``name`` is a number, a UUID or the beginning of one.
    """
    uuid = _uuid(name, environment.uuids())  # ``name`` itself if no device has such a UUID
    return next((device for device in visible if device.name == name or device.lock == uuid), None)  # a lock is named by the UUID


@contextmanager
def hold(config: Config, wait_s: float, heartbeat: Callable[[], None], say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the devices for a config's servers while the block runs.

    They are the first free ones of those visible, and this process sees no others meanwhile; or all visible ones, if the servers may need
    them. ``heartbeat`` is called during a wait, and ``say`` gets a line about who is waited for. Raises LeaseError after ``wait_s``
    seconds of one holder.
    """
    # Devices that were locked for this process when it was started: all that it sees are for its servers then.
    leased, visible = set(os.environ.get(_LEASED, "").split(",")), _visible()
    lock_names = tuple(dict.fromkeys(device.lock for device in visible))
    is_leased, visible_count = not leased.isdisjoint(lock_names), len(lock_names)
    count = visible_count if is_leased or visible_count <= 1 else _count_to_hold(config, visible_count)
    with ExitStack() as held_locks:
        if count < visible_count:
            held = held_locks.enter_context(locks.some_devices(lock_names, count, wait_s, heartbeat, say))
            by_lock = {device.lock: device for device in reversed(visible)}  # reversed: of two names of one device the first counts
            held_locks.enter_context(set_in_environment(_variables([by_lock[name] for name in held])))
        else:
            for name in sorted(set(lock_names) - leased):  # in one order, so that no two processes wait for each other
                held_locks.enter_context(locks.device(name, wait_s, heartbeat, say))
        yield


def _visible() -> tuple[Device, ...]:
    """Return the devices visible to this process, in their variable's order.

    CUDA_VISIBLE_DEVICES may give a number or the beginning of a UUID; without it all of NVIDIA's are visible. On a machine without a device
    of NVIDIA they are those of AMD that HIP_VISIBLE_DEVICES names. A lock is named by the UUID, since a device has several names.
    """
    present = environment.devices()
    if not present:
        return tuple(Device(name=name, lock=f"hip-{name}") for name in _split_names(os.environ.get(_HIP, "")))
    uuids = environment.uuids()
    names = _split_names(os.environ.get(_CUDA, ",".join(map(str, range(len(present))))))
    return tuple(Device(name=name, lock=_uuid(name, uuids)) for name in names)


def _split_names(text: str) -> tuple[str, ...]:
    """Return the names in a variable of visible devices, each once.

    A negative number, such as -1, hides itself and what follows.
    """
    names = takewhile(lambda name: not name.startswith("-"), (name.strip() for name in text.split(",")))
    return tuple(dict.fromkeys(filter(None, names)))


def _uuid(name: str, uuids: Sequence[str]) -> str:
    """Return the UUID of a device given by number or prefix.

    Returns ``name`` as it is if no device in ``uuids`` fits.
    """
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else name
    return next((uuid for uuid in uuids if uuid.startswith(name)), name)


def _variables(devices: Sequence[Device]) -> Mapping[str, str]:
    """Return the variables by which a process sees ``devices`` only."""
    names = ",".join(device.name for device in devices)
    is_amd = _HIP in os.environ or Path("/dev/kfd").exists()
    # An engine on ROCm reads either one, and refuses two that differ.
    return {_CUDA: names, _HIP: names} if is_amd else {_CUDA: names}


@contextmanager
def restrict(stated: int | tuple[str, ...] | None) -> Iterator[None]:
    """Leave this process only the ``stated`` devices within the block.

    ``stated`` is as for :func:`available`. Nothing changes if none are stated, if a number is stated on a machine without devices, or if
    this process was started with leased devices. Raises ConfigError if a stated device is not there.
    """
    usable = None if stated is None or _LEASED in os.environ else available(stated)
    if usable is None or not usable.accelerators:
        yield
        return
    with set_in_environment(_variables(usable.devices)):
        yield
