"""Baseline files, ``baselines/<config>/<machine>.yaml``: gates with their machine and the samples that they rest on.

A gate is a floor on a figure, the speedup or the accepted length (tokens per verify step), of one variant (``pair``) and workload; or the
stored accepted lengths, request by request. Its key has the conditions of its measurement: engine, model, draft, dtype and flags.
"""

from __future__ import annotations

import math
import statistics
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, yaml
from pytest_specdec.files.run_directory import atomic_write, read_text
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, FIGURES, LEAST_SHARED, SPEEDUP, Environment, Gate, MeasuredGate, StoredBaseline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_specdec.model.workload import JSON

SCHEMA = "urn:pytest-specdec:baseline:2"
_OLDER = ("urn:pytest-specdec:baseline:1",)
"""Read as well: they have fewer fields."""
_HEADER = """\
# Measured by pytest-specdec. It changes only under --specdec-update-baselines, and its floors follow the typical run up and down, as each
# reason says: they are computed from log_ratios, the natural logs of the measured ratios of the last ten runs. A run also fails where it
# is surely 5 % slower than the median of these. A floor of your own belongs under gates: in the config.
# boot_log_ratios are those of the baseline's two boots in a run: how much boots vary on this machine.
# lengths are tokens per verify step, request by request, pooled from so many runs: a later run may not differ by more than 3 %.
"""
FIELDS = (
    *("figure", "pair", "workload", "at_least", "reason", "accepted_regression", "key"),
    *("log_ratios", "log_tokens_per_step", "boot_log_ratios", "digest", "runs", "lengths"),
)
_AGAIN = "correct the file, or move it away and measure again with --specdec-update-baselines"
_OTHER = "move the file away and measure again with --specdec-update-baselines, or use the release that wrote it"
_ELSEWHERE = "use the file of this machine: a baseline holds on the machine that it was measured on and is named after"


def path(folder: Path, config: str, environment: Environment) -> Path:
    """Return the baseline file of this config and machine."""
    return folder / config / f"{environment.machine}.yaml"


def gates(folder: Path, config: str, environment: Environment) -> tuple[Gate, ...]:
    """Return the gates of this machine's baseline file; () without a file.

    Every gate lists the parts of its key that are others in this run's ``environment``. Floors measured with another model, draft or dtype
    (not ``comparable``) are left out, and :func:`notes` reports those on the speedup. Accepted lengths stay, since their judge itself
    reports such changes.
    """
    return tuple(gate for gate in _compared_gates(folder, config, environment) if gate.comparable or gate.lengths)


def notes(folder: Path, config: str, environment: Environment | None) -> tuple[str, ...]:
    """Return sentences on stored gates of no use to this run.

    There is one sentence for each speedup floor measured with another model, draft or dtype. Accepted lengths need
    none, since :func:`gates` leaves them in and their judge reports the change. If the config has no file of this
    machine but some of others, a single sentence names those machines. Returns () otherwise, and without an
    environment.
    """
    if environment is None:
        return ()
    if path(folder, config, environment).is_file():
        unusable = (gate for gate in _compared_gates(folder, config, environment) if gate.figure == SPEEDUP and not gate.comparable)
        return tuple(f"floor not used: {gate} was measured with another {'; '.join(gate.changes)}" for gate in unusable)
    machines = sorted({str(gate.machine) for gate in other_machines(folder / config, environment.machine)})
    if not machines:
        return ()
    return (f"no baseline of this machine ({environment.machine}): those of {config} are of {', '.join(machines)} and not comparable",)


def _compared_gates(folder: Path, config: str, environment: Environment) -> Iterator[Gate]:
    """Yield the gates of this machine's file, compared with this run.

    This run's key for a gate's variant is compared with the gate's. The parts that differ are filled in as its ``changes``, in words:
    ``dtype half -> float``.
    """
    for gate in read(path(folder, config, environment)):
        yield replace(gate, changes=gate.changed(environment.key(gate.pair)))


def check(folder: Path, config: str) -> None:
    """Check every baseline file of ``config``, whatever its machine.

    Raises ConfigError or RunError, with file and line, if a file cannot be used or has a gate that could never fail.
    """
    for gate in other_machines(folder / config, ""):  # no machine has an empty name, so that no file is left out
        for key, limit, expected in _find_vacuous_limits(gate):
            remedy = "correct the file, or measure again with --specdec-update-baselines"
            what = "the baseline file has a gate that cannot fail"
            raise RunError(what, where=f"{gate.source}  {key}", found=limit, expected=expected, remedy=remedy)


def _find_vacuous_limits(gate: Gate) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and expected value of each ineffective limit.

    Ineffective are: too few accepted lengths, which are never compared; a floor of 1 or less on the accepted length, which every step
    reaches; and a floor below half of the typical speedup, the median of its runs.
    """
    if gate.lengths and len(gate.lengths) < LEAST_SHARED:
        yield "lengths", f"{len(gate.lengths)} requests", f"{LEAST_SHARED} or more: fewer are never compared"
    if gate.figure == ACCEPTANCE_LENGTH and gate.at_least is not None and gate.at_least <= 1.0:
        yield "at_least", f"{gate.at_least:g}", "more than 1: a step brings one token whether or not a draft is accepted"
    if gate.figure == SPEEDUP and gate.at_least is not None and gate.log_ratios:
        typical = math.exp(statistics.median(gate.log_ratios))
        if gate.at_least < typical / 2.0:
            yield "at_least", f"{gate.at_least:g} under a median of {typical:.2f}x", f"{typical / 2.0:.3g} or more"


def keep(folder: Path, config: str, environment: Environment, run_folder: Path) -> None:
    """Copy this machine's baseline file into ``run_folder``, a run's folder of baselines.

    A replay is then judged by the file as it was at the run, even if it has changed since. Without a file, an earlier
    copy is removed.
    """
    source, copy = path(folder, config, environment), path(run_folder, config, environment)
    if source.is_file():
        atomic_write(copy, source.read_text(encoding="utf-8"))
    else:
        copy.unlink(missing_ok=True)


def read_conditions(folder: Path, config: str, environment: Environment) -> tuple[StoredBaseline, ...]:
    """Return the conditions of measurement in the stored baseline files.

    They are those of this machine's file alone, if it has one, otherwise those of all other machines' files: the
    environment, and for each gate its model, draft and the like. Raises ConfigError or RunError as :func:`read` does.
    """
    machine_file = path(folder, config, environment)
    files = [machine_file] if machine_file.is_file() else sorted((folder / config).glob("*.yaml"))
    return tuple(map(_read_stored, files))


def _read_stored(path: Path) -> StoredBaseline:
    """Return a file's environment, and its gates without their numbers.

    A file that is gone by now has neither. Raises ConfigError or RunError as :func:`read` does.
    """
    document = _read_document(path)
    gates = () if document is None else _read_gates(path, document)
    return StoredBaseline(
        source=f"{path.parent.name}/{path.name}",
        environment=None if document is None else _read_environment(document),
        gates=tuple(MeasuredGate(figure=gate.figure, pair=gate.pair, workload=gate.workload, key=gate.key) for gate in gates),
    )


def read(path: Path) -> tuple[Gate, ...]:
    """Return the gates of a baseline file; () without a file.

    Raises ConfigError or RunError, with file and line, if the file is invalid, or if its machine is another than in
    its name.
    """
    document = _read_document(path)
    return () if document is None else _read_gates(path, document)


def _read_document(path: Path) -> yaml.YamlDocument | None:
    """Return a baseline file's YAML with its schema and machine checked.

    An older schema that can still be read passes as the present one. Returns None without a file. Raises ConfigError or
    RunError as :func:`read` does; the gates are not checked here.
    """
    text = _read_baseline_text(path)
    if text is None:
        return None
    document = yaml.load(text, str(path))
    data = _root(document)
    schema = SCHEMA if data.get("schema") in _OLDER else data.get("schema")
    for key, value, expected, remedy in (("schema", schema, SCHEMA, _OTHER), ("machine", data.get("machine"), path.stem, _ELSEWHERE)):
        _check_value(f"{path}:{document.line((key,))}", key, found=value, expected=expected, remedy=remedy)
    return document


def _root(document: yaml.YamlDocument) -> dict[str, Any]:
    return document.data if isinstance(document.data, dict) else {}


def _read_environment(document: yaml.YamlDocument) -> Environment | None:
    """Return the environment of the run last to change the file.

    Returns None if this release cannot read it: the environment is only shown, so that this is no error.
    """
    data = _root(document).get("environment")
    with suppress(RunError):
        return None if data is None else codec.decode(Environment, data)
    return None


def _read_gates(path: Path, document: yaml.YamlDocument) -> tuple[Gate, ...]:
    """Return the gates of a baseline file from its document.

    The document's schema and machine are checked already. Raises RunError, with the line, if ``gates`` is no list or
    has an invalid entry.
    """
    gates = _root(document).get("gates") or ()
    if not isinstance(gates, (list, tuple)):
        where = f"{path}:{document.line(('gates',))}"
        raise _invalid_gate_error(where, str(gates), "a list of gates")
    return tuple(_decode_gate(path, document.line(("gates", index)), entry, path.stem) for index, entry in enumerate(gates))


def _read_baseline_text(path: Path) -> str | None:
    """Return the text of a baseline file; None without a file.

    Raises RunError if the file cannot be read.
    """
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        what = "the baseline file cannot be read"
        raise RunError(what, where=str(path), found=str(error), expected="a YAML file in UTF-8", remedy=_AGAIN) from None


def other_machines(folder: Path, machine: str) -> tuple[Gate, ...]:
    """Return the gates of other machines' files in ``folder``.

    The file of ``machine`` is left out. These gates are only displayed or checked: speeds of another machine decide nothing.
    """
    return tuple(gate for path in sorted(folder.glob("*.yaml")) if path.stem != machine for gate in read(path))


def write(path: Path, environment: Environment, gates: Iterable[Gate]) -> None:
    """Write ``gates`` to ``path``, as measured in ``environment``.

    The file's gates on other figures, variants and workloads stay in it. Raises RunError if ``path`` is not named
    after the environment's machine, and the errors of :func:`read` for an existing file.
    """
    _check_value(str(path), "machine", found=path.stem, expected=environment.machine, remedy=_ELSEWHERE)
    gates_by_key = {**{_gate_key(gate): gate for gate in read(path)}, **{_gate_key(gate): gate for gate in gates}}
    document: JSON = {
        "schema": SCHEMA,
        "machine": environment.machine,
        "environment": codec.encode(environment),
        "gates": [_encode_gate(gate) for gate in gates_by_key.values()],
    }
    atomic_write(path, _HEADER + yaml.dump(document))


def _encode_gate(gate: Gate) -> JSON:
    """Return ``gate`` as an entry of the file, without its empty fields."""
    values = {name: codec.encode(getattr(gate, name)) for name in FIELDS}
    return {name: value for name, value in values.items() if value not in (None, "", [], {}, 0)}


def _decode_gate(path: Path, line: int, entry: JSON, machine: str) -> Gate:
    """Return the gate in an entry of a baseline file.

    ``machine`` is that of the whole file. Raises RunError, with the entry's line, if the entry has an unknown key or an
    unusable value.
    """
    # An entry that is no mapping is reported as an unknown key.
    where, fields = f"{path}:{line}", dict(entry) if isinstance(entry, dict) else {str(entry): entry}
    unknown = sorted(fields.keys() - set(FIELDS))
    if unknown:
        problem = f"an unknown key {unknown[0]!r}"
        raise _invalid_gate_error(where, problem, f"only {', '.join(FIELDS)}")
    try:
        gate = codec.decode(Gate, {**fields, "source": f"{path.parent.name}/{path.name}:{line}", "machine": machine})
    except RunError as error:
        where = f"{where}  {error.where}"
        raise _invalid_gate_error(where, error.found, error.expected) from None
    for name, problem, expected in _unusable_values(gate):  # the first is reported
        where = f"{where}  {name}"
        raise _invalid_gate_error(where, problem, expected)
    return gate


def _unusable_values(gate: Gate) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and expected value of each unusable field.

    These are an unknown figure, and numbers that are not finite or out of their range.
    """
    if gate.figure not in FIGURES:
        yield "figure", repr(gate.figure), " or ".join(FIGURES)
    if gate.at_least is not None and not 0.0 < gate.at_least < math.inf:
        yield "at_least", f"{gate.at_least:g}", "a number above 0"
    for request_id, length in gate.lengths.items():
        if length.steps < 1 or not 1.0 <= length.tokens_per_step < math.inf:
            yield (
                "lengths",
                f"{request_id}: {length.tokens_per_step:g} over {length.steps} steps",
                "1 token per step or more, 1 step or more",
            )
    for name in ("log_ratios", "log_tokens_per_step", "boot_log_ratios"):
        odd_values = [value for value in getattr(gate, name) if not math.isfinite(value)]
        if odd_values:
            yield name, f"{odd_values[0]:g}", "numbers"


def _invalid_gate_error(where: str, found: str, expected: str) -> RunError:
    what = "the baseline file has an invalid gate"
    return RunError(what, where=where, found=found, expected=expected, remedy=_AGAIN)


def _check_value(where: str, what: str, *, found: object, expected: str, remedy: str) -> None:
    """Raise RunError unless ``found`` is the expected value."""
    if found != expected:
        msg = f"the baseline file has another {what}"
        raise RunError(msg, where=where, found=str(found), expected=expected, remedy=remedy)


def _gate_key(gate: Gate) -> tuple[str, str, str, bool]:
    """Return the key by which a new gate replaces a stored one.

    A floor on the accepted length and stored accepted lengths are different gates, although they gate the same figure.
    """
    return (gate.figure, gate.pair, gate.workload, bool(gate.lengths))
