"""From collected tests to a plan: spread over pairs, validated, sorted so that a pair is judged in one go."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.config import validate
from pytest_specdec.errors import ConfigError, SpecdecError
from pytest_specdec.judge import registry
from pytest_specdec.plugin import marker, run_state

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from pytest_specdec.capture.planner import SelectedWorkload
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.plugin.marker import SpecdecMark
    from pytest_specdec.plugin.run_state import SessionState

__all__ = ["parametrise", "plan"]


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Spread a test over the pairs: the one session-scoped parameter there is, since two would multiply the work."""
    found = run_state.of(metafunc.config)
    names = ("no-pair",) if isinstance(found, str) else found.pair_names
    metafunc.parametrize("specdec_pair", names, ids=names, scope="session", indirect=True)


def plan(session: pytest.Session, items: list[pytest.Item], collected: Sequence[pytest.Item]) -> None:
    """Sort the selected tests by pair, plan what they want, and register what captures and reports it.

    ``collected`` were there before some were deselected: the false-alarm budget is shared over those.
    Raises pytest.UsageError; a worker hands it to its controller instead and runs nothing.
    """
    try:
        _plan(session, items, collected)
    except (pytest.UsageError, SpecdecError) as error:
        from pytest_specdec.plugin import xdist  # noqa: PLC0415 - only a wrong session pays for it

        if not xdist.hand_over(session.config, str(error)):
            raise pytest.UsageError(str(error)) from None
        items.clear()


def _plan(session: pytest.Session, items: list[pytest.Item], collected: Sequence[pytest.Item]) -> None:
    found = run_state.of(session.config)
    if isinstance(found, str):
        raise pytest.UsageError(found)
    marks = {item: marker.read(item) for item in items if marker.is_ours(item)}
    _check_families(found, marks.values(), session.config)
    _sort(found, items)
    if found.settings.replay is None:
        found.plan = _made(found, marks, list(_left_out(marks, collected)))
    if found.settings.taken_up is not None:
        from pytest_specdec.plugin import stored_run  # noqa: PLC0415 - only a run that is taken up pays for it

        found.plan = stored_run.plan(session.config, found, [one.workload for one in marks.values()])
    from pytest_specdec.plugin import capture  # noqa: PLC0415 - it imports this module's neighbours

    capture.register(session.config, found)


def _check_families(found: SessionState, marks: Iterable[SpecdecMark], config: pytest.Config) -> None:
    """Refuse a config that excuses a family that is not there, and a judge of another package that would fail after the capture."""
    unknown = [name for name in found.config.allow_inconclusive if name not in found.families]
    if unknown and found.settings.replay is None:
        near = validate.nearest(unknown[0], found.families)
        what = f"no package declares the family '{unknown[0]}'" + (f"; {near}" if near else "")
        raise ConfigError(what, where=f"{found.config.path}  allow_inconclusive", expected=f"one of {', '.join(found.families)}")
    if not config.option.collectonly:
        for row in found.outside:
            if row.judge and row.name in {mark.family for mark in marks}:
                registry.judge_of(row)


def _sort(found: SessionState, items: list[pytest.Item]) -> None:
    """Stable, and after every other plugin's order: then everything session-scoped of a pair is set up once."""
    order = {name: index for index, name in enumerate(found.pair_names)}
    items.sort(key=lambda item: order.get(marker.pair_name(item), -1) if marker.is_ours(item) else -1)


def _made(found: SessionState, marks: dict[pytest.Item, SpecdecMark], left_out: Sequence[SpecdecMark]) -> Plan:
    from pytest_specdec.capture import planner  # noqa: PLC0415 - a replay never needs it

    selected = {marker.pair_name(item) for item in marks}
    only = tuple(name for name in found.pair_names if name in selected)
    return planner.make(found.config, _wanted(marks.values()), found.depth, only, _wanted(left_out), outside=found.outside)


def _left_out(marks: Container[pytest.Item], collected: Iterable[pytest.Item]) -> Iterator[SpecdecMark]:
    """Yield the marks of deselected tests; one that is wrong is said when it is selected."""
    for item in collected:
        if item not in marks and marker.is_ours(item):
            with suppress(pytest.UsageError):
                yield marker.read(item)


def _wanted(marks: Iterable[SpecdecMark]) -> tuple[SelectedWorkload, ...]:
    from pytest_specdec.capture.planner import SelectedWorkload  # noqa: PLC0415 - a replay never needs it

    return tuple(SelectedWorkload(workload=found.workload, family=found.family) for found in marks)
