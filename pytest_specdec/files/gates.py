"""Baseline files, ``baselines/<config>/<machine>.yaml``: gates with the machine they were measured on and the samples behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, yaml
from pytest_specdec.files.directory import atomic_write
from pytest_specdec.model.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_specdec.model.environment import Environment
    from pytest_specdec.model.workload import JSON

__all__ = ["SCHEMA", "other_machines", "read", "write"]

SCHEMA = "urn:pytest-specdec:baseline:1"
_HEADER = """\
# Measured by pytest-specdec. It changes only under --specdec-update-baselines, which never lowers a floor by itself.
# at_least gates; log_ratios are the natural logs of the measured ratios, one per pair of boots.
"""
_FIELDS = ("figure", "pair", "workload", "at_least", "between_boot_sd", "log_ratios")
_NEWER = "read it with the version of pytest-specdec that wrote it"
_ELSEWHERE = "a baseline holds on the machine that it was measured on, and its file is named after it"


def read(path: Path) -> tuple[Gate, ...]:
    """Return the gates of a baseline file; () when it is absent.

    Raises ConfigError or RunError with file and line, also for a file that was measured on another machine than its name says.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return ()
    data: Any = document.data if isinstance(document.data, dict) else {}
    for key, expected, remedy in (("schema", SCHEMA, _NEWER), ("machine", path.stem, _ELSEWHERE)):
        _expect(f"{path}:{document.line((key,))}", key, found=data.get(key), expected=expected, remedy=remedy)
    return tuple(_gate(path, document.line(("gates", index)), entry, path.stem) for index, entry in enumerate(data.get("gates") or ()))


def other_machines(folder: Path, machine: str) -> tuple[Gate, ...]:
    """Return the gates that other machines than ``machine`` have in ``folder``: to be shown, never to be held against."""
    return tuple(gate for path in sorted(folder.glob("*.yaml")) if path.stem != machine for gate in read(path))


def write(path: Path, environment: Environment, gates: Iterable[Gate], *, loosen: bool = False) -> None:
    """Write ``gates`` as measured in ``environment``; what the file has on other figures, pairs and workloads stays.

    ``path`` is named after ``environment.machine``. Raises RunError, and leaves the file as it is, when a floor would come down and
    ``loosen`` is not set.
    """
    _expect(str(path), "machine", found=path.stem, expected=environment.machine, remedy=_ELSEWHERE)
    before = {_key(gate): gate for gate in read(path)}
    after = {**before, **{_key(gate): gate for gate in gates}}
    lowered = [_lowered(gate, after[key]) for key, gate in before.items() if _is_lower(after[key], gate)]
    if lowered and not loosen:
        what = "a baseline is not loosened by itself"
        raise RunError(what, where=str(path), found=", ".join(lowered), expected="floors that stay or rise", remedy="edit the file by hand")
    document: JSON = {
        "schema": SCHEMA,
        "machine": environment.machine,
        "environment": codec.encode(environment),
        "gates": [_entry(gate) for gate in after.values()],
    }
    atomic_write(path, _HEADER + yaml.dump(document))


def _entry(gate: Gate) -> JSON:
    values = {name: codec.encode(getattr(gate, name)) for name in _FIELDS}
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _gate(path: Path, line: int, entry: JSON, machine: str) -> Gate:
    where, fields = f"{path}:{line}", dict(entry) if isinstance(entry, dict) else {str(entry): entry}
    unknown = sorted(fields.keys() - set(_FIELDS))
    if unknown:
        found = f"an unknown key {unknown[0]!r}"
        raise _no_gate(where, found, f"only {', '.join(_FIELDS)}")
    try:
        return codec.decode(Gate, {**fields, "source": f"{path.parent.name}/{path.name}:{line}", "machine": machine})
    except RunError as error:
        where = f"{where}  {error.where}"
        raise _no_gate(where, error.found, error.expected) from None


def _no_gate(where: str, found: str, expected: str) -> RunError:
    what = "this is no gate"
    return RunError(what, where=where, found=found, expected=expected, remedy="edit the file, or measure again")


def _expect(where: str, what: str, *, found: object, expected: str, remedy: str) -> None:
    if found != expected:
        msg = f"the baseline file has another {what}"
        raise RunError(msg, where=where, found=str(found), expected=expected, remedy=remedy)


def _key(gate: Gate) -> tuple[str, str, str]:
    return (gate.figure, gate.pair, gate.workload)


def _is_lower(now: Gate, before: Gate) -> bool:
    return before.at_least is not None and (now.at_least is None or now.at_least < before.at_least)


def _lowered(before: Gate, now: Gate) -> str:
    figure = " ".join(part for part in _key(before) if part)
    return f"{figure} from {before.at_least:g} to {'nothing' if now.at_least is None else f'{now.at_least:g}'}"
