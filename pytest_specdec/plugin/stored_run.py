"""A stored run, resumed or continued under the very plan, config, machine and variables that it was begun with.

A resumed run gets what is missing of its plan. A continued run gets a round: further requests, or the same again, for open verdicts, those
that more answers would settle. A pair is the baseline and a variant, which speculates.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import environment, extension
from pytest_specdec.config import variables
from pytest_specdec.errors import RunError
from pytest_specdec.files import codec, run_documents, yaml
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.families import COUNTED
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Family
from pytest_specdec.plugin import handover
from pytest_specdec.plugin.verdicts import UNSETTLED
from pytest_specdec.report.run import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.workload import JSON, Workload
    from pytest_specdec.plugin.run_state import RunState

_MOST_DIFFERENCES = 4
"""Most differences listed in an error's message."""
_FREE = {"estimate_s", "again_s", "placement_reason", "old"}
"""Fields of a plan that are for people only."""
_OF_MACHINE = {"placement", "servers", "boots"}
"""Those that follow from the machine that captures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenJudgement:
    """A judgement of the stored run that more answers would settle."""

    pair: str
    workload: str


def plan(config: pytest.Config, run: RunState, workloads: Sequence[Workload]) -> Plan:
    """Return the plan for resuming or continuing a stored run.

    A resumed run keeps the stored plan, and that of a continued run gets a round. ``workloads`` are those of the selected tests, with the
    requests of every depth. ``run`` has the plan of this session, made anew: it must be the one that the stored run was begun with.

    Raises pytest.UsageError if config, variables, plan or machine have changed, or if there is nothing to continue.
    """
    directory, is_continued = RunDirectory.open(run.root), run.settings.continued is not None
    stored = run_documents.read_plan(directory)
    plan_at_start = extension.base(stored)  # without the rounds of earlier continuations, which the plan of this session lacks too
    _check_unchanged("--specdec-continue" if is_continued else "--specdec-resume", directory, run, plan_at_start)
    if not is_continued:
        return stored
    # Under xdist the controller numbers the round: another worker may have written it into the plan already.
    round_number = getattr(config, "workerinput", {}).get(handover.ROUND)
    return _add_round(directory, stored, workloads, round_number)


def _add_round(directory: RunDirectory, stored: Plan, workloads: Sequence[Workload], round_number: int | None) -> Plan:
    """Return the stored plan with a round for the open verdicts on ``workloads``.

    An inconclusive or suspicious sampling verdict gets further requests, and a suspicious count of wrong tokens the same requests again.
    Without a ``round_number`` it is the next round. Raises pytest.UsageError if no verdict is open.
    """
    open_sampling, open_counts = _find_open_sampling(directory), _find_open_counts(directory)
    open_judgements = [*open_sampling, *open_counts]
    open_names = {judgement.workload for judgement in open_judgements}
    workloads_to_extend = {workload.name: workload for workload in workloads if workload.name in open_names}
    if not workloads_to_extend:
        why = run_documents.unscorable_reason(directory)  # then no judgement counts as open
        reason = f"tokens that cannot be scored ({why})" if why else f"no inconclusive or suspicious verdict in {directory.root}/run.json"
        msg = f"--specdec-continue: found {reason}; expected a verdict that more tokens would settle"
        raise pytest.UsageError(msg)
    pairs = [judgement.pair for judgement in open_judgements if judgement.workload in workloads_to_extend]
    names_to_repeat = {judgement.workload for judgement in open_counts}
    return extension.extend(stored, workloads_to_extend, pairs, round_number or next_round(directory.root), again=names_to_repeat)


def can_continue(root: Path) -> bool:
    """Return True if a stored run has a verdict that ``--specdec-continue`` would settle.

    False too for a run that cannot be read.
    """
    directory = RunDirectory(root)
    try:
        return bool(_find_open_sampling(directory) or _find_open_counts(directory))
    except RunError:
        return False


def next_round(root: Path) -> int:
    """Return the number of the run's next round of extension."""
    return extension.rounds(run_documents.read_plan(RunDirectory.open(root))) + 1


def _find_open_sampling(directory: RunDirectory) -> list[_OpenJudgement]:
    """Return the inconclusive and suspicious judgements of sampling.

    More tokens, from further requests, settle them.
    """
    return _find_open_judgements(directory, lambda family, outcome: family == Family.SAMPLING and outcome in UNSETTLED)


def _find_open_counts(directory: RunDirectory) -> list[_OpenJudgement]:
    """Return the judgements with a suspicious count of wrong tokens.

    The same requests, sent again, settle them: a fault of the engine comes back, numerical noise does not.
    """
    return _find_open_judgements(directory, lambda family, outcome: family in COUNTED and outcome == Outcome.SUSPICIOUS)


def _find_open_judgements(directory: RunDirectory, is_open: Callable[[str, str], bool]) -> list[_OpenJudgement]:
    """Return the judgements in ``run.json`` for which ``is_open`` is true.

    ``is_open`` gets family and outcome. Returns [] without a readable ``run.json``, and if the server cannot score given tokens. Raises
    RunError if another release wrote that file.
    """
    if run_documents.unscorable_reason(directory):
        return []  # sampling and wrong tokens are both judged by the server's scores, so that no answers would settle them
    try:
        document = json.loads(directory.run.read_text(encoding="utf-8"))
        codec.check_schema(str(directory.run), document["schema"], SCHEMA)
        judgements = document["judgements"]
    except (OSError, ValueError, KeyError):
        return []
    outcomes = [(judgement, (judgement.get("verdict") or {}).get("outcome", "")) for judgement in judgements]
    return [
        _OpenJudgement(pair=judgement["pair"], workload=judgement["workload"])
        for judgement, outcome in outcomes
        if is_open(judgement.get("family", ""), outcome)
    ]


def _check_unchanged(option: str, directory: RunDirectory, run: RunState, stored_plan: Plan) -> None:
    """Raise pytest.UsageError if anything has changed since the run was begun.

    ``stored_plan`` is the plan that it was begun with, without later rounds. Compared are the config, the values of its variables, the
    plan, the machine and the version of pytest-specdec; the plan alone if the run was ended before its first boot. Where a cluster
    captures, the node compares variables and machine, and what follows from the machine is left out of the plan. The message lists the
    first differences.
    """
    plans = [_encode_plan(compared) for compared in (stored_plan, run.plan)]
    if run.settings.cluster:
        plans = [{name: value for name, value in encoded.items() if name not in _OF_MACHINE} for encoded in plans]
    differences = [*_describe_differences("plan", *plans)]
    if run_documents.has_begun(directory):
        differences = [*_describe_conditions(directory, run), *differences]
    if differences:
        omission = [f"and {len(differences) - _MOST_DIFFERENCES} more"] if len(differences) > _MOST_DIFFERENCES else []
        difference_lines = "\n  ".join([*differences[:_MOST_DIFFERENCES], *omission])
        msg = (
            f"{option}: found another plan than that of {directory.root}; expected the same config, selection, depth and machine"
            f"\n  {difference_lines}"
        )
        raise pytest.UsageError(msg)


def _describe_conditions(directory: RunDirectory, run: RunState) -> Iterator[str]:
    """Yield a line for each difference in config, values of variables, machine and version of pytest-specdec.

    Variables and machine are left out if a cluster captures: the node compares them.
    """
    config, captures_here = run.config, not run.settings.cluster
    stored_environment = run_documents.read_environment(directory)
    current_environment = environment.environment(config, engine_version="")  # no server runs yet; versions of engines are not compared
    machine = ("machine", stored_environment.machine, current_environment.machine)
    version = ("pytest-specdec", stored_environment.packages.get("pytest-specdec"), current_environment.packages.get("pytest-specdec"))
    changed_variables = variables.find_changed(run_documents.read_variables(directory), config.text, os.environ) if captures_here else ()
    yield from (f"environment variable {name}: another value than at the start of the run" for name in changed_variables)
    yield from _describe_differences("config", _parse_yaml(directory.config.read_text(encoding="utf-8")), _parse_yaml(config.text))
    compared = (machine, version) if captures_here else (version,)
    yield from (f"{name}: the run has {old!r}, found {new!r}" for name, old, new in compared if old != new)


def _parse_yaml(text: str) -> JSON:
    return yaml.load(text, "config.yaml").data


def _encode_plan(plan: Plan) -> dict[str, JSON]:
    """Return a plan as JSON, to be compared with another plan.

    Fields for people only, such as estimates, are left out, and workloads are given by their digests. A digest does not tell which requests
    get the server's own sampling parameters, so that their ids are given too.
    """
    encoded = codec.encode(plan)
    assert isinstance(encoded, dict)
    workloads = {workload.name: _encode_workload(workload) for workload in plan.workloads}
    return {name: value for name, value in encoded.items() if name not in _FREE} | {"workloads": workloads}


def _encode_workload(workload: Workload) -> JSON:
    return {"digest": workload.digest, "server_defaults": [request.id for request in workload.requests if request.server_defaults]}


def _describe_differences(where: str, stored: JSON, current: JSON) -> Iterator[str]:
    """Yield a line for each difference between two JSON values.

    ``where`` is the place of both, such as ``config.engine.args``.
    """
    if isinstance(stored, dict) and isinstance(current, dict):
        for name in dict.fromkeys([*stored, *current]):
            yield from _describe_differences(f"{where}.{name}", stored.get(name), current.get(name))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for index, (stored_value, current_value) in enumerate(zip(stored, current, strict=True)):
            yield from _describe_differences(f"{where}[{index}]", stored_value, current_value)
    elif stored != current:
        yield f"{where}: the run has {_shorten(stored)}, found {_shorten(current)}"


def _shorten(value: JSON, max_characters: int = 60) -> str:
    """Return a value as text, cut to ``max_characters``."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"
