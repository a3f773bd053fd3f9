"""The commands that a session tells its user to type next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_specdec import place

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["again", "replay", "replay_of"]

PLACES = ("--specdec-run-dir", "--specdec-replay", "--specdec-resume", "--specdec-continue")
"""Options that name a run: a session has one of them at most."""


def again(config: pytest.Config, option: str, run: Path) -> str:
    """Return the command line of this session with ``option`` in place of what named its run, as typed where it was typed."""
    args = [*_without_places([str(arg) for arg in config.invocation_params.args]), option, place.shown(run, config)]
    return f"pytest {shlex.join(args)}"


def _without_places(args: list[str]) -> list[str]:
    rest, skipped = [], False
    for arg in args:
        if skipped or arg.partition("=")[0] in PLACES:
            skipped = arg in PLACES
        else:
            rest.append(arg)
    return rest


def replay(config: pytest.Config, run: Path) -> str:
    """Return the command that judges all that this session judged again, without a server."""
    tests = [place.shown(config.invocation_params.dir / arg, config) for arg in config.args]
    return f"pytest {shlex.join(tests)} --specdec-replay {shlex.quote(place.shown(run, config))}"


def replay_of(item: pytest.Item, run: Path) -> str:
    """Return the command that judges what ``item`` judged again, without a server."""
    path, colons, rest = item.nodeid.partition("::")
    node = place.shown(item.config.rootpath / path, item.config) + colons + rest
    return f"pytest {shlex.quote(node)} --specdec-replay {shlex.quote(place.shown(run, item.config))}"
