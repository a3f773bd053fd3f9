"""A session of a matrix: which cells it runs, and the state of an ordinary run for each group of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import shards
from pytest_specdec.config import matrix, matrix_expression, variables
from pytest_specdec.errors import ConfigError, RunError
from pytest_specdec.files import matrix_run
from pytest_specdec.files.run_directory import RunDirectory, atomic_write, writable
from pytest_specdec.plugin import commands, run_state
from pytest_specdec.plugin.options import SETTINGS
from pytest_specdec.report import matrix as matrix_report
from pytest_specdec.report import matrix_documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.config.matrix import MatrixConfig
    from pytest_specdec.files.secrets import Secrets
    from pytest_specdec.model.matrix import Group
    from pytest_specdec.model.matrix_run import MatrixRun
    from pytest_specdec.plugin.options import Settings
    from pytest_specdec.plugin.run_state import RunState
    from pytest_specdec.report.matrix import MatrixReport
    from pytest_specdec.report.run import Run

_CONFIG = pytest.StashKey["MatrixConfig"]()


def states(config: pytest.Config, path: Path) -> Sequence[RunState]:
    """Return the state of a run for each group of the cells that the session runs.

    ``path`` is the matrix's config. The runs are in folders of the session's run directory, and have one session id. Raises ConfigError
    for options that a matrix does not take.
    """
    settings, root = config.stash[SETTINGS], run_state.root(config)
    _check_options(settings, path)
    matrix_config = config.stash[_CONFIG] = matrix.load_matrix(path)
    own = run_state.handed_over(config).get(run_state.GROUP)
    groups = [group for group in _select_groups(settings, matrix_config) if own in {None, group.name}]
    made = [_state(config, settings, matrix_config, root, group) for group in groups]
    for state in made:
        state.session = made[0].session
    return made


def replayed_states(config: pytest.Config, root: Path) -> Sequence[RunState]:
    """Return the states for judging the stored runs of a matrix again."""
    settings, stored = config.stash[SETTINGS], matrix_run.read(root)
    folders = [matrix_run.group_directory(root, name) for name in stored.groups]
    made = [run_state.replayed_state(config, replace(settings, replay=folder)) for folder in folders if RunDirectory(folder).plan.is_file()]
    if not made:
        what, expected = "the run of the matrix has no group that was captured", "a plan.json in one of its folders"
        raise RunError(what, where=str(root), found="none", expected=expected)
    for state in made:
        state.cells, state.matrix_name, state.matrix_root = len(stored.matrix.cells), stored.config, root
    return made


def write(states: Sequence[RunState], config: pytest.Config, workloads: Mapping[str, str]) -> None:
    """Write the matrix, and which of its cells the session runs, into the run directory.

    Reports need it, and ``merge`` joins shards by it. ``workloads`` are the digests of the selected tests' workloads, by name.
    """
    first, root = states[0], states[0].matrix_root
    assert root is not None
    matrix_config = config.stash[_CONFIG]
    run = matrix_run.begin(
        config=matrix_config.name,
        text=matrix_config.text,
        matrix=matrix_config.matrix,
        cells=[name for state in states for name in state.pair_names],
        depth=first.depth,
        workloads=workloads,
    )
    with writable(root):
        root.mkdir(parents=True, exist_ok=True)
    matrix_run.write(root, run, variables.secrets_of(matrix_config.text))


def report(root: Path, run: MatrixRun, runs: Mapping[Path, Run], config: pytest.Config) -> MatrixReport:
    """Return the report of a matrix's run from those of its groups, by directory."""
    by_name = {name: runs.get(matrix_run.group_directory(root, name)) for name in run.groups}
    return matrix_report.make(run, by_name, directory=commands.as_typed(root, config))


def write_report(config: pytest.Config, folder: Path | None, made: MatrixReport, secrets: Secrets) -> tuple[str, ...]:
    """Write the report of a matrix; return the lines to print on it. Nothing is written without a ``folder``."""
    if folder is None:
        return ()
    texts = matrix_documents.documents(made, config.stash[SETTINGS].reports)
    for name, text in texts.items():
        atomic_write(folder / name, secrets.mask(text))
    return tuple(f"{Path(name).stem}: {commands.as_typed(folder / name, config)}" for name in texts)


def _check_options(settings: Settings, path: Path) -> None:
    """Raise ConfigError for an option that names one run, where a matrix has several."""
    named = {"--specdec-against": settings.against, "--specdec-continue": settings.continued, "--specdec-engine": settings.engine}
    option = next((option for option, value in named.items() if value), None)
    if option:
        what, expected = "a matrix has a run for each group of its cells", "no such option, or a config without `matrix`"
        remedy = "`python -m pytest_specdec matrix CONFIG` lists the cells; the config.yaml of a group's run has none but that group"
        raise ConfigError(what, where=str(path), found=f"{option}={named[option]}", expected=expected, remedy=remedy)


def _select_groups(settings: Settings, config: MatrixConfig) -> Sequence[Group]:
    """Return the groups of the selected cells in this session's shard."""
    selected = matrix_expression.select(config.matrix, settings.only) if settings.only else config.matrix
    return selected.groups if settings.shard is None else shards.part(config, selected, *settings.shard)


def _state(config: pytest.Config, settings: Settings, matrix_config: MatrixConfig, root: Path, group: Group) -> RunState:
    """Return the state of a group's run.

    If the session resumes the matrix's run, so is the group's; one that was not begun is captured from the start.
    """
    folder = matrix_run.group_directory(root, group.name)
    is_resumed = settings.resume is not None and RunDirectory(folder).plan.is_file()
    own_settings = replace(settings, resume=folder if is_resumed else None, run_dir=None if is_resumed else folder)
    state = run_state.new_state(config, own_settings, matrix_config.config(group), folder)
    state.cells, state.matrix_name, state.matrix_root = len(matrix_config.matrix.cells), matrix_config.name, root
    return state
