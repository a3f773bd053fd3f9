"""The bench: the config, plan, run directory and gates that one process of a session judges with."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_specdec import baselines, place
from pytest_specdec.config import expand, lint, load
from pytest_specdec.errors import ConfigError, RunError, SpecdecError
from pytest_specdec.files import calibration, records
from pytest_specdec.files.directory import RunDirectory
from pytest_specdec.model.workload import Depth
from pytest_specdec.options import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.gate import Gate
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.plan import Cell, Plan
    from pytest_specdec.model.score import Position
    from pytest_specdec.model.verdict import Outcome
    from pytest_specdec.model.workload import Family
    from pytest_specdec.options import Settings

__all__ = ["BENCH", "Bench", "get", "of"]


class Bench:
    """What is known at each stage: the config from the first test of ours on, the plan after collection, the run after capture."""

    def __init__(self, settings: Settings, config: Config, *, root: Path, plan: Plan | None, warnings: tuple[str, ...]) -> None:
        self.settings = settings
        self.config = config
        self.root = root
        """Where the run is, or will be."""
        self.warnings = warnings
        """Of the pair lint."""
        self.session = uuid.uuid4().hex
        """The id of the session, which all its workers share."""
        self.refusal = ""
        """Why this session may not or cannot capture into the run directory; then it judges nothing of it either."""
        self.told: dict[str, str] = {}
        """Errors told in full, with the test that told them."""
        self.controls: dict[tuple[str, Family], tuple[Outcome, str]] = {}
        """What the judges said of the control, by workload and family."""
        self._plan = plan
        self._gates: tuple[Gate, ...] | None = None
        self._calibration: tuple[tuple[float, Position], ...] | None = None

    @property
    def pair_names(self) -> tuple[str, ...]:
        """The pairs that tests are spread over: those of the stored run in a replay, else the config's."""
        if self._plan is not None and self.settings.replay:
            return tuple(pair.name for pair in self._plan.pairs)
        return tuple(variant.name for variant in self.config.variants)

    @property
    def plan(self) -> Plan:
        """The plan of this session, or of the stored run in a replay."""
        assert self._plan is not None, "planned at the end of collection"
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan

    @property
    def depth(self) -> Depth:
        """How much is asked: as the command line says, as the run that is taken up, or as the ini key says."""
        if self.settings.taken_up and not self.settings.depth_given:
            return records.read_plan(RunDirectory.open(self.settings.taken_up)).depth
        return Depth(self.settings.depth)

    @property
    def directory(self) -> RunDirectory:
        """The run directory; RunError before there is one, and where it is not this session's."""
        if self.refusal:
            raise RunError(self.refusal)
        return RunDirectory.open(self.root)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The config's gates and those that the baseline file holds for the machine of this run."""
        if self._gates is None:
            environment = records.read_environment(self.directory)
            if self.settings.replay is None:
                baselines.keep(self.settings.baselines, self.plan.config, environment, self.directory.baselines)
            folder = _baselines(self.settings)
            self._gates = (*self.config.gates, *baselines.gates(folder, self.plan.config, environment))
        return self._gates

    @property
    def calibration(self) -> tuple[tuple[float, Position], ...]:
        """What the baseline's boots reported all over the run, beside the scores."""
        if self._calibration is None:
            self._calibration = calibration.read(self.directory, self.plan)
        return self._calibration

    def pair(self, name: str) -> Pair:
        """Return the pair called ``name``."""
        return self.plan.pair(name)

    def cell(self, pair: str, workload: str, family: Family) -> Cell | None:
        """Return the planned judgement, None when the run holds none, as a stored one may."""
        return next((c for c in self.plan.cells if (c.pair, c.workload, c.family) == (pair, workload, family)), None)


BENCH = pytest.StashKey["Bench | str"]()


def of(config: pytest.Config) -> Bench | str:
    """Return the session's bench, made on the first call; or the whole text of the error that stands in its way."""
    if BENCH not in config.stash:
        try:
            config.stash[BENCH] = _made(config)
        except SpecdecError as error:
            config.stash[BENCH] = str(error)
    return config.stash[BENCH]


def get(config: pytest.Config) -> Bench:
    """Return the bench of a session that has one."""
    bench = config.stash[BENCH]
    assert isinstance(bench, Bench), bench
    return bench


def _made(config: pytest.Config) -> Bench:
    settings = config.stash[SETTINGS]
    if settings.replay:
        plan = records.read_plan(RunDirectory.open(settings.replay))
        baselines.check(_baselines(settings), plan.config)
        return Bench(settings, _replayed(config, plan), root=settings.replay, plan=plan, warnings=_held(settings, plan))
    loaded = load.load(_found(config))
    baselines.check(settings.baselines, loaded.name)
    warnings = _linted(loaded)  # of what is written: a value that is filled in may be a secret
    made = Bench(settings, expand.filled(loaded, os.environ), root=place.root(config), plan=None, warnings=warnings)
    made.session = getattr(config, "workerinput", {}).get(place.SESSION, made.session)
    return made


def _baselines(settings: Settings) -> Path:
    """Return the folder of baseline files: a replay judges by the one that its run was judged by, unless the command line names another."""
    if settings.replay is None or settings.baselines_given:
        return settings.baselines
    return RunDirectory(settings.replay).baselines


def _held(settings: Settings, plan: Plan) -> tuple[str, ...]:
    """Say so where a depth was asked for that a stored run cannot have."""
    if not settings.depth_given or settings.depth == plan.depth:
        return ()
    return (f"--specdec-depth={settings.depth} changes nothing: the run was captured at {plan.depth} depth",)


def _replayed(config: pytest.Config, plan: Plan) -> Config:
    settings = config.stash[SETTINGS]
    assert settings.replay is not None
    path = _found(config) if settings.config_given else RunDirectory.open(settings.replay).config
    return replace(load.load(path), name=plan.config)


def _found(config: pytest.Config) -> Path:
    named = config.stash[SETTINGS].config
    here = config.invocation_params.dir
    folders = tuple(dict.fromkeys(folder / "suites" / "configs" for folder in (config.rootpath, here)))
    if named is None:
        what, expected = "no config is named", "which engine, model and variants to judge"
        raise ConfigError(what, expected=expected, remedy=f"--specdec-config=FILE.yaml, or a name from {folders[0]}")
    beside = (here / f"{named}{suffix}" for suffix in ("", ".yaml", ".yml"))
    return next((path for path in beside if path.is_file()), None) or load.find(named, folders)


def _linted(config: Config) -> tuple[str, ...]:
    return tuple(str(problem) for problem in lint.check(config))
