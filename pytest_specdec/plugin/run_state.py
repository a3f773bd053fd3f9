"""The state of a run in one process: config, plan, run directory, gates, and where the run is kept.

A run captures the answers of a baseline and of its variants, which speculate, and judges each variant with the baseline as a pair. A replay
judges a stored run again. A matrix of settings has a run for each group of them. A gate is a limit on a figure, such as a least speedup; a
run's predecessor is the earlier run that it is compared with.
"""

from __future__ import annotations

import os
import shlex
import uuid
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.config import golden, lint, load, matrix, prompt_file, variables
from pytest_specdec.config.engines import EngineName
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import ConfigError, RunError, SpecdecError
from pytest_specdec.files import captured, matrix_run, run_documents
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.gates import baseline_file
from pytest_specdec.judge import registry
from pytest_specdec.model.families import with_outside
from pytest_specdec.model.workload import Depth
from pytest_specdec.plugin import handover, matrix_options, old_engine
from pytest_specdec.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Calibrations
    from pytest_specdec.model.families import FamilyRow
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Judgement, Plan
    from pytest_specdec.model.verdict import Outcome
    from pytest_specdec.model.workload import Family, Workload
    from pytest_specdec.plugin.options import Settings
    from pytest_specdec.prompts.own import OwnPrompt


class RunState:
    """The state of a run at each stage of the session.

    The config is there from the first test of ours on, the plan after collection, the run in ``root`` after capture. ``settings`` are the
    session's options; in them, ``taken_up`` is the stored run to resume or continue.
    """

    def __init__(self, settings: Settings, config: Config, *, root: Path, plan: Plan | None, warnings: tuple[str, ...]) -> None:
        self.settings = settings
        self.config = config
        self.root = root
        """Where the run is, or will be."""
        self.warnings = warnings
        """Lines to print on a variant that differs from the baseline in more than speculation, or on an option without effect."""
        self.session = uuid.uuid4().hex
        """The id of the session, which all its workers share."""
        self.loaded = config
        """The config with every ``${VAR}`` as written, for another machine, which has values of its own for them."""
        self.planned_by: Callable[[Config], Plan] | None = None
        """Makes the plan on the machine that captures; None where the plan is a stored one."""
        self.capture_s = settings.deadline_s
        """Most seconds of the capture, None without a limit: a group's part of the deadline, or more if other groups need less."""
        self.arguments: tuple[str, ...] = ()
        """Of the session: those of the ini file, the environment and the command line."""
        self.invoked_in = Path()
        """The folder that the session was started in."""
        self.refusal = ""
        """Why this session may not or cannot capture into the run directory; then it judges nothing of it either."""
        self.is_ended = False
        """Whether the process was told to end while it captured this run."""
        self.reported: dict[str, str] = {}
        """Errors shown in full, with the test that shows them."""
        self.controls: dict[tuple[str, Family], tuple[Outcome, str]] = {}
        """Outcome and evidence of the control, by workload and family."""
        self.prompts: tuple[OwnPrompt, ...] = ()
        """Those of the config, read for a capture; a replay has them in its plan."""
        self.live_pairs: tuple[Pair, ...] = ()
        """The pairs of tests that ask running servers themselves; the plan, which has what is captured, may lack them."""
        self.cells = 0
        """Of the whole matrix that the config is a group of, whatever part of it this session runs; 0 without one."""
        self.matrix_name = ""
        """The name of that matrix's config."""
        self.matrix_root: Path | None = None
        """The directory of its run."""
        self._plan = plan
        self.find_families: Callable[[], tuple[FamilyRow, ...]] = cache(registry.installed_families)
        """Reads the families of other installed packages, once for all runs of a session."""
        self._gates: tuple[Gate, ...] | None = None
        self._calibrations: dict[str, Calibrations] = {}

    @property
    def pair_names(self) -> tuple[str, ...]:
        """Names of the pairs that tests run for.

        They are the stored run's in a replay, and otherwise those of the config's variants.
        """
        if self._plan is not None and self.settings.replay:
            return tuple(pair.name for pair in self._plan.pairs)
        return tuple(variant.name for variant in self.config.variants)

    @property
    def plan(self) -> Plan:
        """The plan of this session, which is the stored run's in a replay."""
        assert self._plan is not None, "planned at the end of collection"
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan

    def configure(self, workload: Workload) -> Workload:
        """Return ``workload`` with the config's prompts and other additions to its requests."""
        from pytest_specdec.capture import workloads  # noqa: PLC0415 - a replay never needs it

        return workloads.apply_config(workload, self.config, self.prompts)

    @property
    def depth(self) -> Depth:
        """The depth of this session, which decides how many requests are sent.

        It is given by the command line, else by the run to resume or continue, else by the ini key; without any it is standard.
        """
        if self.begun and not self.settings.depth_given:
            return self.begun.depth
        return Depth(self.settings.depth)

    @property
    def deadline_s(self) -> float | None:
        """Seconds that the capture of one engine is planned with: half of those given where the config names two."""
        return old_engine.deadline_s(self.settings.deadline_s) if self.config.old else self.settings.deadline_s

    @property
    def runs_folder(self) -> Path:
        """The folder of earlier runs, for estimates from their times."""
        # Before a matrix is written, the folder of a group's run does not show that it is one.
        return matrix_run.runs_folder(self.root) if self.matrix_root is None else self.matrix_root.parent

    @property
    def speed_boots(self) -> int:
        """Number of boots of each variant to measure speed over.

        It is given by the command line, else by the run to resume or continue, else it is 1.
        """
        return self.settings.boots or (self.begun.speed_boots if self.begun else 1)

    @property
    def begun(self) -> Plan | None:
        """The stored plan of the run to resume or continue.

        None in other sessions. Its estimates are used again, since new ones could lead to another plan.
        """
        return run_documents.read_plan(RunDirectory.open(self.settings.taken_up)) if self.settings.taken_up else None

    @property
    def outside(self) -> tuple[FamilyRow, ...]:
        """The families of other installed packages; ConfigError if one is invalid."""
        return self.find_families()

    @property
    def families(self) -> Mapping[str, FamilyRow]:
        """All families that a mark may name, in the report's order.

        Raises ConfigError if a family of another package is invalid.
        """
        return with_outside(self.outside)

    @property
    def directory(self) -> RunDirectory:
        """The run directory.

        Raises RunError if there is none yet, or if this session may not judge it.
        """
        if self.refusal:
            raise RunError(self.refusal)
        return RunDirectory.open(self.root)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates of the config, its golden file and this machine's baseline file.

        A golden file has published figures, a baseline file those of earlier runs. They are read once. Unless this is a replay, the
        baseline file is first copied into the run, so that a later replay is judged by the same gates.
        """
        if self._gates is None:
            environment = run_documents.read_environment(self.directory)
            if self.settings.replay is None:
                baseline_file.keep(self.settings.baselines, self.plan.config, environment, self.directory.baselines)
            folder = baselines_folder(self.settings)
            self._gates = (*self.config.gates, *self.plan.golden_gates, *baseline_file.gates(folder, self.plan.config, environment))
        return self._gates

    def calibrations(self, pair: str) -> Calibrations:
        """Return the run's calibration for the judges of ``pair``, read once."""
        if pair not in self._calibrations:
            self._calibrations[pair] = captured.read_calibrations(self.directory, self.plan, pair)
        return self._calibrations[pair]

    def pair(self, name: str) -> Pair:
        """Return the pair called ``name``, of the live servers or the plan."""
        live = {pair.name: pair for pair in self.live_pairs}
        return live[name] if name in live else self.plan.pair(name)

    def judgement(self, pair: str, workload: str, family: Family) -> Judgement | None:
        """Return the planned judgement of a pair, workload and family.

        None if the plan has none: a stored run was captured for the tests selected then.
        """
        return next(
            (planned for planned in self.plan.judgements if (planned.pair, planned.workload, planned.family) == (pair, workload, family)),
            None,
        )


class Runs:
    """The states of a session's runs: of one, or of one for each group of a matrix."""

    def __init__(self, states: Sequence[RunState]) -> None:
        self.states = tuple(states)
        """At least one, in the order of the config."""
        self._by_pair = {name: state for state in self.states for name in state.pair_names}
        for state in self.states:
            state.find_families = self.states[0].find_families

    @property
    def root(self) -> Path:
        """The directory of the session's run, maybe not made yet: the matrix's, or the only run's."""
        return self.states[0].matrix_root or self.states[0].root

    @property
    def pair_names(self) -> tuple[str, ...]:
        """Names of the pairs that tests run for."""
        return tuple(self._by_pair)

    def of(self, pair: str) -> RunState:
        """Return the state of the run with the pair called ``pair``.

        If no run has it, as for a test without a pair, returns the first run's.
        """
        return self._by_pair.get(pair, self.states[0])


RUNS_OF_SESSION = pytest.StashKey["Runs | str"]()


def runs_or_error(config: pytest.Config) -> Runs | str:
    """Return the states of the session's runs, or an error text.

    They are made on the first call and kept. If that raises an error, such as one about an invalid config, its text is kept in their
    place, to be raised as a usage error after collection.
    """
    if RUNS_OF_SESSION not in config.stash:
        try:
            config.stash[RUNS_OF_SESSION] = Runs(_make_states(config))
        except SpecdecError as error:
            config.stash[RUNS_OF_SESSION] = str(error)
    return config.stash[RUNS_OF_SESSION]


def get(config: pytest.Config, pair: str = "") -> RunState:
    """Return the state of the session's run that has ``pair``.

    Without a pair it is the first run's. The states must have been made without an error.
    """
    runs = config.stash[RUNS_OF_SESSION]
    assert isinstance(runs, Runs), runs
    return runs.of(pair)


def _make_states(config: pytest.Config) -> Sequence[RunState]:
    """Return the states of new, resumed, continued or replayed runs.

    Config, baseline files and the run of ``--specdec-against`` are read here, so that an invalid one is reported before anything
    boots. Only a replay has plans by now. Raises ConfigError or RunError.
    """
    settings = config.stash[SETTINGS]
    if settings.against and not matrix_run.is_matrix_run(settings.against):
        check_earlier(settings.against)
    if settings.replay:
        matrix_options.check_unused(settings, "a replay judges the cells that the run has", str(settings.replay), "a stored run alone")
        if matrix_run.is_matrix_run(settings.replay):
            from pytest_specdec.plugin import matrix_session  # noqa: PLC0415 - only a matrix pays for it

            return matrix_session.replayed_states(config, settings.replay)
        return [replayed_state(config, settings)]
    path = _config_path(config)
    if matrix.is_matrix(path):
        from pytest_specdec.plugin import matrix_session  # noqa: PLC0415 - only a matrix pays for it

        return matrix_session.states(config, path)
    matrix_options.check_unused(settings, "the config has no matrix to select cells of", str(path), "a config with `matrix`")
    return [new_state(config, settings, load.load(path, EngineName(settings.engine) if settings.engine else None), handover.root(config))]


def check_earlier(earlier: Path) -> None:
    """Raise RunError if the report or plan of an earlier run cannot be read."""
    from pytest_specdec.plugin import report_files  # noqa: PLC0415 - only a comparison pays for it

    report_files.read_run(earlier)
    run_documents.read_plan(RunDirectory.open(earlier))


def replayed_state(config: pytest.Config, settings: Settings) -> RunState:
    """Return the state for judging a stored run again.

    ``settings`` name the run. A config on the command line replaces the stored one, and with it the plan's golden floors. Raises RunError
    or ConfigError if run, config or baseline file are invalid, and RunError if the run of a matrix is named to compare it with.
    """
    assert settings.replay is not None
    _refuse_matrix_as_predecessor(settings)
    stored_plan = run_documents.read_plan(RunDirectory.open(settings.replay))
    baseline_file.check(baselines_folder(settings), stored_plan.config)
    judging_config = _replayed_config(config, settings.replay, stored_plan)
    plan = _replace_golden_floors(settings, judging_config, stored_plan)
    return RunState(settings, judging_config, root=settings.replay, plan=plan, warnings=_depth_warnings(settings, plan))


def new_state(config: pytest.Config, settings: Settings, loaded_config: Config, root: Path) -> RunState:
    """Return the state of a run in ``root``, to be captured or taken further.

    ``loaded_config`` has every ``${VAR}`` as written. Arguments, folder and id of the session are those that another session handed over to
    it, if any. Raises ConfigError if the config, or its baseline file, is invalid, or if the run has two predecessors; RunError if its
    predecessor is the run of a matrix.
    """
    _check_predecessor(settings, loaded_config)
    baseline_file.check(settings.baselines, loaded_config.name)
    filled_config = variables.fill(loaded_config, os.environ)
    state = RunState(settings, filled_config, root=root, plan=None, warnings=_lint_warnings(filled_config))
    state.loaded = loaded_config
    handed = handover.handed_over(config)
    state.arguments = tuple(handed.get(handover.ARGUMENTS, session_arguments(config)))
    state.invoked_in = Path(handed.get(handover.INVOKED_IN, config.invocation_params.dir))
    state.prompts = prompt_file.read(state.config)
    state.session = handed.get(handover.SESSION, state.session)
    return state


def session_arguments(config: pytest.Config) -> list[str]:
    """Return the arguments of a session, in the order in which pytest reads them.

    They are those of the ini key ``addopts``, of PYTEST_ADDOPTS and of the command line.
    """
    return [*config.getini("addopts"), *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]


def _check_predecessor(settings: Settings, config: Config) -> None:
    """Raise ConfigError if the run has two predecessors.

    A config with ``engines`` is compared with its old engine, so that ``--specdec-against`` would name a second predecessor. Raises
    RunError if the predecessor is the run of a matrix, which has several runs.
    """
    _refuse_matrix_as_predecessor(settings)
    if config.old is not None and settings.against:
        where = f"{config.path}  engines"
        what, expected = "the run has two predecessors", "either `engines` or --specdec-against"
        remedy = "--specdec-engine=new judges the new engine alone"
        raise ConfigError(
            what, where=where, found=f"engines.old, and --specdec-against={settings.against}", expected=expected, remedy=remedy
        )


def _refuse_matrix_as_predecessor(settings: Settings) -> None:
    """Raise RunError if one run is to be compared with the run of a matrix."""
    if settings.against is None or not matrix_run.is_matrix_run(settings.against):
        return
    groups = ", ".join(str(folder) for folder in matrix_run.list_directories(settings.against)[:3])
    what, expected = "the earlier run is of a matrix, and this one is not", "the run of one of its groups"
    raise RunError(what, where=str(settings.against), found="several runs", expected=expected, remedy=f"name one, such as {groups}")


def baselines_folder(settings: Settings) -> Path:
    """Return the folder of baseline files.

    A replay uses the copy in its run, unless the command line names a folder.
    """
    if settings.replay is None or settings.baselines_given:
        return settings.baselines
    return RunDirectory(settings.replay).baselines


def _depth_warnings(settings: Settings, plan: Plan) -> tuple[str, ...]:
    """Return a warning about a depth option without effect.

    A replay judges answers captured at the stored run's depth. () if the command line names no depth, or the same one.
    """
    if not settings.depth_given or settings.depth == plan.depth:
        return ()
    return (f"--specdec-depth={settings.depth} has no effect: the run was captured at {plan.depth} depth",)


def _replayed_config(config: pytest.Config, replay: Path, plan: Plan) -> Config:
    """Return the config for judging a stored run again.

    It is the one on the command line, or else the stored one, under the name that the config had at the capture. Of a matrix's config it is
    that of the group with the cells of ``plan``.
    """
    path = _config_path(config) if config.stash[SETTINGS].config_given else RunDirectory.open(replay).config
    if matrix.is_matrix(path):
        from pytest_specdec.plugin import matrix_session  # noqa: PLC0415 - only a matrix pays for it

        return replace(matrix_session.replayed_config(config, path, plan), name=plan.config)
    return replace(load.load(path), name=plan.config)


def _replace_golden_floors(settings: Settings, config: Config, plan: Plan) -> Plan:
    """Return the stored plan, with golden floors of the replay's config.

    A golden floor is the least acceptance length by a published file. The stored floors stay unless the command line names a config. Pairs
    that this config does not have then get no floor.
    """
    if not settings.config_given:
        return plan
    names = {variant.name for variant in config.variants}
    return replace(plan, golden=golden.floors(config, [pair for pair in plan.pairs if pair.name in names]))


def _config_path(config: pytest.Config) -> Path:
    """Return the path of the session's config; raise ConfigError if none is named."""
    name = config.stash[SETTINGS].config
    if name is None:
        what, expected = "no config is named", "a config with engine, model and variants"
        remedy = "--specdec-config=NAME, a file or a shipped config; `python -m pytest_specdec init` writes one"
        raise ConfigError(what, expected=expected, remedy=remedy)
    return load.find(name, config.invocation_params.dir, config.rootpath)


def _lint_warnings(config: Config) -> tuple[str, ...]:
    """Return the warnings of the pair lint, with secrets masked.

    The lint checks that baseline and variants differ in speculation only; of a config with ``engines`` it checks each engine (``builds``).
    Raises ConfigError if it refuses the config. Secrets are masked in the error too, since a value may come from a variable.
    """
    mask = variables.secrets_of(config.text).mask
    try:
        problems = [str(problem) for build in config.builds.values() for problem in lint.check(build, engine_of(build.engine.kind).rules)]
        return tuple(map(mask, dict.fromkeys(problems)))
    except ConfigError as error:
        raise ConfigError(mask(error.what), remedy=error.remedy) from None
