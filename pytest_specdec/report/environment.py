"""The environment of a run, name by name, and what differs from it where a baseline file was measured.

An environment is the machine, engine and client of a capture. An arm is the baseline, a server without speculation, or a variant with it.
A baseline file has gates, limits on a variant's figures from earlier runs. A gate's key states its variant's conditions in those runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.model.pair import BASELINE
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.baseline import Environment, StoredBaseline
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.report.run import Run

NOT_STORED = "not stored"
"""Stands for what the release that wrote the run, or the file, did not write."""
_NONE = "-"
_ENGINE, _FLAGS = "engine", "flags"
_RELEASE = re.compile(r"[vb]?(\d+(?:\.\d+)*)(?!\w)")
"""A release at the beginning of an engine's version: ``0.32`` of ``v0.32.0rc1`` and ``6210`` of ``b6210``, nothing of a hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs."""

    what: str
    old: str
    new: str

    def __str__(self) -> str:
        """Return the line that people read."""
        return printable(f"{self.what}: {self.old} -> {self.new}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineDifference:
    """A baseline file, and what differs between its measurements and a run."""

    headline: str
    """A sentence: which file, whether it gates, and whether anything differs."""
    changes: tuple[Change, ...]
    """From the file's environment to the run's."""


def conditions(environment: Environment | None) -> dict[str, str]:
    """Return an environment as texts by name, in report order.

    They are the engine, the model, the machine, the parts of each variant (``draft-k3 dtype``) and the client's packages. Empty for None.
    """
    if environment is None:
        return {}
    return {
        _ENGINE: f"{environment.engine} {environment.engine_version}".strip(),
        "model": environment.model,
        **dict(_served_names(environment)),
        "accelerators": _count_devices(environment.devices) or "none",
        **({"driver": environment.driver or NOT_STORED} if environment.devices else {}),
        "processor": environment.processor,
        "cores": str(environment.cores),
        "memory": f"{environment.memory_gib:.0f} GiB",
        "system": environment.system or NOT_STORED,
        "Python": environment.python or NOT_STORED,
        **{_part_name(variant, name): value for variant, values in environment.variants.items() for name, value in values.items()},
        **environment.packages,
    }


def describe_served(run: Run) -> str:
    """Return engine, model and accelerators: ``vllm 0.32.0, Qwen/Qwen3-32B, NVIDIA H100``.

    A run without an environment gives the engine and model of its plan.
    """
    environment = run.environment
    if environment is None:
        return f"{run.plan.engine}, {run.plan.model}"
    engine = f"{environment.engine} {environment.engine_version}".strip()
    return ", ".join(filter(None, [engine, run.plan.model, _count_devices(environment.devices)]))


def describe_order(old: Run, new: Run) -> str:
    """Return why the old run looks like the later one; empty if it does not.

    The releases of one engine decide, since an old build may be judged after the new one. Where they are the same or unknown, the dates of
    the two runs decide, unless one of them was replayed, that is, judged again from stored answers: it has the date of its replay.
    """
    old_environment, new_environment = old.environment, new.environment
    old_label, new_label = old.made_at, new.made_at
    is_dated = not old.replayed and not new.replayed and bool(new.made_at)
    is_later = is_dated and old.made_at > new.made_at  # both in UTC, in one form
    if old_environment is not None and new_environment is not None and old_environment.engine == new_environment.engine:
        old_release, new_release = _read_release(old_environment.engine_version), _read_release(new_environment.engine_version)
        if old_release and new_release and old_release != new_release:
            old_label, new_label, is_later = old_environment.engine_version, new_environment.engine_version, old_release > new_release
    if not is_later:
        return ""
    subject = f"the old run is of {old_label} and the new one of {new_label}"
    return printable(f"{subject}: if they are the wrong way round, name the older run first")


def _read_release(version: str) -> list[int]:
    """Return a version's release as numbers, without zeros at the end; [] if it begins with none."""
    match = _RELEASE.match(version)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _part_name(variant: str, name: str) -> str:
    """Return the name of a part of a variant: ``draft-k3 dtype``."""
    return f"{variant} {name}{' (digest)' if name == _FLAGS else ''}"


def _served_names(environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield each model name on attached servers, under a label of its arms.

    An attached server is one that ran already. Arms with the same model share a label: ``served by baseline, draft-k3``.
    """
    for name in dict.fromkeys(environment.served.values()):
        arms = ", ".join(arm for arm, other in environment.served.items() if other == name)
        yield f"served by {arms}", name


def _count_devices(devices: tuple[str, ...]) -> str:
    """Return the accelerators by name, equal ones counted."""
    counts = {name: devices.count(name) for name in devices}
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def list_flags(config: Config) -> dict[str, str]:
    """Return the server flags of a config, by label and name.

    The label is ``flag`` for flags of all servers, ``baseline flag`` and ``draft-k3 flag`` for those of one arm. A flag that is a mapping
    has a row for each part: ``draft-k3 flag speculative-config.method``. ``${VAR}`` stays as written.
    """
    sections = {"flag": config.engine.args, f"{BASELINE} flag": config.baseline.args}
    sections |= {f"{variant.name} flag": variant.args for variant in config.variants}
    return {f"{label} {name}": value for label, args in sections.items() for name, value in _flatten(args)}


def _flatten(values: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings under dotted names.

    A value is text, or JSON if it is no string; an empty mapping counts as a value.
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{name}.{key}", part) for key, part in _flatten(value))
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def list_environment_changes(old: Run, new: Run, old_flags: Mapping[str, str], new_flags: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences between two runs' environments and server flags.

    The flags are those of :func:`list_flags`. If any differ, the variants' digests of their flags are left out: they only repeat that.
    """
    flag_changes = tuple(list_changes(old_flags, new_flags))
    old_conditions, new_conditions = (
        conditions(_without_digests(environment) if flag_changes and environment else environment)
        for environment in (old.environment, new.environment)
    )
    yield from (*list_changes(old_conditions, new_conditions), *flag_changes)


def _without_digests(environment: Environment) -> Environment:
    """Return the environment without the digests of the variants' flags."""
    variants = {
        variant: {name: value for name, value in parts.items() if name != _FLAGS} for variant, parts in environment.variants.items()
    }
    return replace(environment, variants=variants)


def list_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    """Yield the names with different values, the old run's names first; ``-`` for a missing value."""
    for what in dict.fromkeys((*old, *new)):
        if old.get(what) != new.get(what):
            yield Change(what=what, old=old.get(what, _NONE), new=new.get(what, _NONE))


def baseline_differences(run: Run) -> tuple[BaselineDifference, ...]:
    """Return a difference per baseline file; () without a file or an environment."""
    environment = run.environment
    if environment is None:
        return ()
    return tuple(_compare_stored(stored, environment) for stored in run.baselines or ())


def missing_baseline_note(run: Run) -> str:
    """Return a sentence for a run without baseline files; empty with any."""
    if run.baselines is None:
        return f"Baseline file: {NOT_STORED} in this run."
    return "" if run.baselines else "Baseline file: none for this config; the gates are those of the config."


def _compare_stored(stored: StoredBaseline, now: Environment) -> BaselineDifference:
    """Return the differences between a baseline file's environment and a run's.

    ``now`` is the run's. Conditions of single gates come before those of the machine. The headline says that a file of another machine
    gates nothing: figures of two machines are never compared.
    """
    differences = (*_changes_of_gates(stored, now), *_changes_of_machine(stored, now))
    is_other_machine = stored.environment is not None and stored.environment.machine != now.machine
    gates = f"{len(stored.gates)} gate{'s' * (len(stored.gates) != 1)}"
    subject = f"Baseline file {stored.source}, {gates}{', of another machine, so that it gates nothing here' if is_other_machine else ''}"
    if stored.environment is None:
        return BaselineDifference(headline=f"{subject}: the environment of its measurements is {NOT_STORED}", changes=differences)
    count = f"{len(differences)} difference{'s' * (len(differences) != 1)}" if differences else "nothing differs"
    return BaselineDifference(headline=f"{subject}: {count} from the environment of its measurements", changes=differences)


def _changes_of_gates(stored: StoredBaseline, now: Environment) -> Iterator[Change]:
    """Yield the measurement conditions of gates that differ in this run.

    The conditions are in the gate's key: the engine, and the model, draft, dtype and flags of its variant. ``now`` has those of this run.
    If gates were measured under several values of one condition, each change names the workloads of its gates. Left out are gates of
    variants that this run does not have and, as in :meth:`~pytest_specdec.model.baseline.Gate.changed`, values that one side does not have.
    """
    conditions_now = conditions(now)
    workloads_of_gates: dict[str, dict[str, list[str]]] = {}  # by condition and its value
    for gate in stored.gates:
        if gate.pair not in now.variants:
            continue
        for part, value in gate.key.items():
            what = part if part == _ENGINE else _part_name(gate.pair, part)
            workloads_of_gates.setdefault(what, {}).setdefault(value, []).append(gate.workload)
    for what, by_value in workloads_of_gates.items():
        for value, workloads in by_value.items():
            if value and conditions_now.get(what) and value != conditions_now[what]:
                of_gates = f" ({', '.join(dict.fromkeys(workloads))})" if len(by_value) > 1 else ""
                yield Change(what=what + of_gates, old=value, new=conditions_now[what])


def _changes_of_machine(stored: StoredBaseline, now: Environment) -> Iterator[Change]:
    """Yield the differences of model, machine, system and client packages.

    Variants are left out, and the engine too if any gate of the file states its own: :func:`_changes_of_gates` compares these. Nothing if
    the file states no environment.
    """
    if stored.environment is None:
        return
    old, new = (conditions(replace(environment, variants={})) for environment in (stored.environment, now))
    gates_state_engine = any(gate.key.get(_ENGINE) for gate in stored.gates)
    yield from (change for change in list_changes(old, new) if not (gates_state_engine and change.what == _ENGINE))
