"""The options of a matrix: which cells, by an expression or as one of several shards, and the cluster that captures them.

A matrix is a config with several values for some settings. A cell has one value of each, and groups are the cells with the same baseline.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_specdec.plugin.options import Settings

_SHARD_VARIABLES = (("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 1), ("CI_NODE_INDEX", "CI_NODE_TOTAL", 0))
"""Of each CI system the variables with the number of a job and of all jobs, and what to add for a number from 1."""


def add(group: pytest.OptionGroup) -> None:
    """Register the options of a matrix."""
    option = group.addoption
    option(
        "--specdec-only",
        metavar="EXPR",
        help="Of a config with `matrix`, the cells to run: AXIS=VALUE, `and`, `or`, `not`, parentheses, or a pattern of cell names.",
    )
    option(
        "--specdec-shard",
        metavar="I/N",
        help="Of these cells, the I-th of N parts of about the same time; `auto` reads I and N from Buildkite's or GitLab's variables. "
        "`python -m pytest_specdec merge` joins the runs.",
    )
    option(
        "--specdec-cluster",
        metavar="ADDRESS",
        help="Capture on the nodes of a Ray cluster, each group of a matrix as a task: `auto` for the cluster that this machine is a node "
        "of, or HOST:PORT of its head.",
    )


def check_unused(settings: Settings, what: str, where: str, expected: str) -> None:
    """Raise ConfigError if an option selects cells where there is nothing to select.

    ``what``, ``where`` and ``expected`` are those of the error.
    """
    if settings.only or settings.shard:
        from pytest_specdec.errors import ConfigError  # noqa: PLC0415 - only this error pays for it

        part = "/".join(map(str, settings.shard or ()))
        option = f"--specdec-only={settings.only}" if settings.only else f"--specdec-shard={part}"
        raise ConfigError(what, where=where, found=option, expected=expected, remedy="leave it out; -k selects variants")


def check_continued(run: Path | None) -> None:
    """Raise pytest.UsageError if the run to continue is a matrix's or a group's."""
    for folder in () if run is None else (run, run.parent.parent):  # a group's run is in MATRIX/groups/NAME
        if (folder / "matrix.json").is_file():
            remedy = "--specdec-only=CELL captures a cell anew"
            msg = f"--specdec-continue: found {run}, part of a matrix's run; expected a run of one config; {remedy}"
            raise pytest.UsageError(msg)


def shard(text: str | None, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of a shard, from 1, and of all shards; None without the option.

    ``auto`` stands for the numbers in the variables of Buildkite or GitLab. Raises pytest.UsageError for anything but I/N, I from 1 to N.
    """
    if text is None:
        return None
    option, source = "--specdec-shard", text
    if text == "auto":
        parallel = next((row for row in _SHARD_VARIABLES if row[0] in environ and row[1] in environ), None)
        if parallel is None:
            names = " nor ".join(f"{index} and {total}" for index, total, _ in _SHARD_VARIABLES)
            msg = f"{option}=auto: found neither {names} in the environment; expected a parallel job of Buildkite or GitLab, or I/N"
            raise pytest.UsageError(msg)
        index_name, total_name, added = parallel  # added: 1 for a CI system that counts its jobs from 0
        index, total = environ[index_name], environ[total_name]
        source = f"{index_name}={index} and {total_name}={total}"
        number = int(index) + added if index.isdecimal() else index  # any other text fails below
        text = f"{number}/{total}"
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        msg = f"{option}: found {source}; expected I/N with I from 1 to N, such as 2/4"
        raise pytest.UsageError(msg)
    return int(match[1]), int(match[2])


def cluster(address: str | None, replay: Path | None, against: Path | None) -> str:
    """Return the address of the cluster that captures; empty if none is named.

    Raises pytest.UsageError in a replay, which captures nothing, and with an earlier run, whose answers no node has.
    """
    for option, run in (("--specdec-replay", replay), ("--specdec-against", against)):
        if address is not None and run is not None:
            msg = f"--specdec-cluster: found {option}; expected one of the two: `python -m pytest_specdec compare` compares two stored runs"
            raise pytest.UsageError(msg)
    return address or ""
