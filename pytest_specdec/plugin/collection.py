"""From collected tests to a plan: spread over pairs, validated, sorted so that a pair is judged in one go.

A pair is the baseline and one variant, which speculates. A run captures and judges some pairs under one plan; a matrix of settings has
several runs. A test's mark names a workload, the requests to send, and a family, the kind of judgement on the answers. The probability of a
false alarm, the false-alarm budget, is split over the judgements.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.config import validate
from pytest_specdec.errors import ConfigError, PlanError, SpecdecError
from pytest_specdec.files import old_answers
from pytest_specdec.judge import registry
from pytest_specdec.model.pair import OLD_BASELINE
from pytest_specdec.plugin import marker, run_state, verdicts

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from pytest_specdec.capture.planner import PlanOptions, SelectedWorkload
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.plugin.marker import SpecdecMark
    from pytest_specdec.plugin.run_state import Runs, RunState


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test so that it runs once for each pair.

    If the session has no usable config, it runs for one placeholder, and the error is raised after collection. The scope is the session,
    so that the fixtures of a pair are set up once for all its tests.
    """
    runs = run_state.runs_or_error(metafunc.config)
    names = ("no-pair",) if isinstance(runs, str) else runs.pair_names
    metafunc.parametrize("specdec_pair", names, ids=names, scope="session", indirect=True)


def plan(session: pytest.Session, items: list[pytest.Item], collected: Sequence[pytest.Item]) -> None:
    """Sort the selected tests by pair and plan their capture.

    The plugins that capture are registered. ``collected`` are the tests before some were deselected. The false-alarm budget
    is split over all of them, so that selecting fewer tests raises no share of it.

    Raises pytest.UsageError; a worker hands the error to its controller instead and runs no test.
    """
    try:
        _plan_session(session, items, collected)
    except (pytest.UsageError, SpecdecError) as error:
        from pytest_specdec.plugin import xdist  # noqa: PLC0415 - only a wrong session pays for it

        if not xdist.hand_over(session.config, str(error)):
            raise pytest.UsageError(str(error)) from None
        items.clear()


def _plan_session(session: pytest.Session, items: list[pytest.Item], collected: Sequence[pytest.Item]) -> None:
    """Sort the tests and register their live servers and capture.

    ``items`` are the tests to run. ``collected`` are those before some were deselected, which count for the false-alarm budget alone.
    Raises pytest.UsageError if the session has no usable config.
    """
    runs = run_state.runs_or_error(session.config)
    if isinstance(runs, str):
        raise pytest.UsageError(runs)
    live_items = [item for item in items if marker.live_fixtures(item)]
    if live_items:
        _register_live(session.config, runs, live_items)
    _sort_by_pair(runs, items)
    if any(marker.is_ours(item) for item in items):
        _plan_captures(session, runs, items, collected)


def _register_live(config: pytest.Config, runs: Runs, items: Sequence[pytest.Item]) -> None:
    """Register the live servers of tests.

    Raises PlanError for a matrix with several groups: each has a baseline, and a test cannot say which one it means.
    """
    from pytest_specdec.plugin import live  # noqa: PLC0415 - only tests against live servers pay for it

    if len(runs.states) > 1:
        what, expected = "a test asks for a live server, and the matrix has several baselines", "cells with one baseline"
        remedy = "select cells of one group with --specdec-only, or deselect the test"
        raise PlanError(what, where=items[0].nodeid, found=f"{len(runs.states)} groups", expected=expected, remedy=remedy)
    live.register(config, runs.states[0], items)


def _plan_captures(session: pytest.Session, runs: Runs, items: Sequence[pytest.Item], collected: Sequence[pytest.Item]) -> None:
    """Plan the capture of each run for its tests with a mark, and register the captures.

    Deselected tests keep their share of the false-alarm budget. A replay keeps the stored plan. A run to resume or continue gets the plan
    that it was begun with; raises pytest.UsageError if anything has changed since. Due judgements, those that the tests have to come to,
    are stashed, so that the summary can name any that was never made.
    """
    marks = _read_marks(item for item in items if marker.is_ours(item))
    deselected = list(_deselected_marks(marks, collected))
    _check_families(runs.states[0], marks.values(), session.config)
    by_run: dict[RunState, dict[pytest.Item, SpecdecMark]] = {run: {} for run in runs.states}
    for item, mark in marks.items():
        by_run[runs.of(marker.pair_name(item))][item] = mark
    due_judgements = session.config.stash[verdicts.DUE_JUDGEMENTS] = {}
    for run, own_marks in by_run.items():
        if own_marks:
            _plan_capture(session.config, run, own_marks, deselected)
            # The plan may leave a judgement out, as at a depth that sends nothing for it: its test is skipped, and none is due.
            planned = {item: mark for item, mark in own_marks.items() if _is_planned(run, item, mark)}
            due_judgements |= {item.nodeid: verdicts.due_judgement(item, run, mark) for item, mark in planned.items()}
    from pytest_specdec.plugin import capture  # noqa: PLC0415 - it imports this module's neighbours

    selected = [run for run, own_marks in by_run.items() if own_marks]
    # Tests with one mark share its workload as one object: by identity each digest, of all requests, is worked out once.
    workloads = {id(mark.workload): mark.workload for mark in marks.values()}.values()
    capture.register(session.config, runs, selected, {workload.name: workload.digest for workload in workloads})


def _is_planned(run: RunState, item: pytest.Item, mark: SpecdecMark) -> bool:
    """Return True if the plan has the judgement of a test."""
    return run.judgement(marker.pair_name(item), mark.workload.name, mark.family) is not None


def _read_marks(items: Iterable[pytest.Item]) -> dict[pytest.Item, SpecdecMark]:
    """Return the marks of tests; a mark is read once for all pairs of its test."""
    read: dict[tuple[object, int], SpecdecMark] = {}
    marks = {}
    for item in items:
        key = _mark_key(item)
        if key not in read:
            read[key] = marker.read(item)
        marks[item] = read[key]
    return marks


def _mark_key(item: pytest.Item) -> tuple[object, int]:
    """Return the key of a test's function and mark, shared by its tests for all pairs."""
    return (getattr(item, "function", item), id(item.get_closest_marker("specdec")))


def _plan_capture(config: pytest.Config, run: RunState, marks: dict[pytest.Item, SpecdecMark], deselected: Sequence[SpecdecMark]) -> None:
    """Set the run's plan for the tests with ``marks``.

    It is a new one, or that of the run to resume or continue; raises pytest.UsageError if the latter was begun with another plan than the
    new one. ``deselected`` are the marks of deselected tests, which keep their share of the false-alarm budget. A replay keeps its plan.
    """
    if run.settings.replay is None:
        # configure adds the config's prompts. It gets each object once, since later steps tell workloads apart by identity.
        workloads = {id(mark.workload): mark.workload for mark in marks.values()}
        configured = {identity: run.configure(workload) for identity, workload in workloads.items()}
        marks = {item: replace(mark, workload=configured[id(mark.workload)]) for item, mark in marks.items()}
        run.plan = _make_plan(run, marks, deselected)
    if run.settings.taken_up is not None:
        from pytest_specdec.plugin import stored_run  # noqa: PLC0415 - only a run that is taken up pays for it

        run.plan = stored_run.plan(config, run, [mark.workload for mark in marks.values()])


def _check_families(run: RunState, marks: Iterable[SpecdecMark], config: pytest.Config) -> None:
    """Check the families in ``allow_inconclusive``, and load the judges of other packages.

    The config lists there the families whose undecided verdicts fail no test. ``run.outside`` are the families of other packages. Raises
    ConfigError for an unknown family in ``allow_inconclusive``, except in a replay. Raises it too for a judge of ``marks`` that cannot be
    loaded, except with ``--collect-only``: without this check it would show only after the capture.
    """
    unknown = [name for name in run.config.allow_inconclusive if name not in run.families]
    if unknown and run.settings.replay is None:
        suggestion = validate.nearest(unknown[0], run.families)
        what = f"no package declares the family '{unknown[0]}'" + (f"; {suggestion}" if suggestion else "")
        raise ConfigError(what, where=f"{run.config.path}  allow_inconclusive", expected=f"one of {', '.join(run.families)}")
    if not config.option.collectonly:
        for row in run.outside:
            if row.judge and row.name in {mark.family for mark in marks}:
                registry.judge_of(row)


def _sort_by_pair(runs: Runs, items: list[pytest.Item]) -> None:
    """Sort the tests by pair, in place.

    A pair's session-scoped fixtures are then set up once. Within a pair the order of other plugins stays, since the
    sort is stable. Tests of no pair come first (-1). Tests that send their own requests to live servers come last, those of the baseline
    alone before those of the variants, so that each server boots once.
    """
    order = {name: index for index, name in enumerate(runs.pair_names)}

    def sort_key(item: pytest.Item) -> tuple[bool, int]:
        is_live = bool(marker.live_fixtures(item))
        is_per_pair = marker.SPECULATIVE_SERVER in marker.live_fixtures(item) if is_live else marker.is_ours(item)
        return is_live, order.get(marker.pair_name(item), -1) if is_per_pair else -1

    items.sort(key=sort_key)


def _make_plan(run: RunState, marks: dict[pytest.Item, SpecdecMark], deselected: Sequence[SpecdecMark]) -> Plan:
    """Return the plan for the pairs of the selected tests.

    ``deselected`` are the marks of deselected tests, which keep their share of the false-alarm budget. Rates, such as tokens per second,
    are what the plan's estimated times rest on. A run that is resumed or continued keeps those of its earlier plan, since newer estimates
    would give another plan. For a new run, ``run.planned_by`` is set to make the plan on another machine. If the config has an old engine,
    its run is planned too, for the estimate that the plan shows.
    """
    from pytest_specdec.capture import planner, rates  # noqa: PLC0415 - a replay never needs them

    selected_names, earlier_plan = {marker.pair_name(item) for item in marks}, run.begun
    pair_names = tuple(name for name in run.pair_names if name in selected_names)

    # A plan sends more than the usual requests where boots take long anyway; an earlier plan has settled how many, by workload.
    enlarged = {name: len(earlier_plan.workload(name).requests) for name in earlier_plan.enlarged} if earlier_plan else None
    options = planner.PlanOptions(
        outside=run.outside,  # the families of other packages
        enlarged=enlarged,
        deadline_s=run.deadline_s,
        speed_boots=run.speed_boots,  # of each variant, to measure its speed over
        old_answers=_old_answered_workloads(run, earlier_plan),
        cells=run.cells,  # of the whole matrix: they share its false-alarm budget
    )
    make = partial(
        planner.make, wanted=_select_workloads(marks.values()), depth=run.depth, only=pair_names, deselected=_select_workloads(deselected)
    )

    def add_rates(config: Config) -> PlanOptions:
        """Return the options with the rates for ``config``."""
        return replace(options, rates=earlier_plan.rates if earlier_plan else rates.expected_rates(config, run.runs_folder))

    make_for_machine = partial(make, options=add_rates(run.config))  # takes the config as filled in on the machine that captures
    run.planned_by = None if earlier_plan else make_for_machine
    plan = make_for_machine(run.config)
    if run.config.old is None:
        return plan
    old_config = run.config.old_engine_config()
    return planner.add_old_engine(plan, run.config, make(old_config, options=add_rates(old_config)))


def _old_answered_workloads(run: RunState, begun: Plan | None) -> frozenset[str]:
    """Return the names of workloads with an earlier engine's answers.

    They are the workloads that the baseline of the run of ``--specdec-against`` answered. Those answers are scored in this run too, to
    show changes by an upgrade. A run that is resumed or continued keeps the workloads of its plan, ``begun``. Empty without an earlier run.
    """
    if begun is not None:  # the boots of its plan score them, as answers of the arm ``OLD_BASELINE``
        return frozenset(task.workload for boot in begun.boots for task in boot.scores if task.arm == OLD_BASELINE)
    return old_answers.list_answered(run.settings.against) if run.settings.against else frozenset()


def _deselected_marks(marks: Container[pytest.Item], collected: Iterable[pytest.Item]) -> Iterator[SpecdecMark]:
    """Yield the marks of deselected tests, each once for all of its pairs.

    An invalid mark is skipped, since its test will not run.
    """
    deselected = {_mark_key(item): item for item in collected if item not in marks and marker.is_ours(item)}
    for item in deselected.values():
        with suppress(pytest.UsageError):
            yield marker.read(item)


def _select_workloads(marks: Iterable[SpecdecMark]) -> tuple[SelectedWorkload, ...]:
    """Return workload and family of each mark, those of a test for several pairs once.

    The pairs of a test have one workload, as one object.
    """
    from pytest_specdec.capture.planner import SelectedWorkload  # noqa: PLC0415 - a replay never needs it

    by_identity = {(id(mark.workload), mark.family): mark for mark in marks}
    return tuple(SelectedWorkload(workload=mark.workload, family=mark.family) for mark in by_identity.values())
