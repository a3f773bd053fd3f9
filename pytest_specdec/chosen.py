"""What prompts were chosen and what that bought, a sentence for each pool of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.files import records, scores
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.selection import per_token

if TYPE_CHECKING:
    from pytest_specdec.files.directory import RunDirectory
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.model.selection import Selection
    from pytest_specdec.model.workload import Workload

__all__ = ["notes"]


def notes(directory: RunDirectory, plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each pool of ``plan``, as it was sent, that something was chosen of."""
    found = records.read_selections(directory)
    return tuple(_said(directory, plan.workload(name), found[name]) for name in plan.pools if name in found)


def _said(directory: RunDirectory, sent: Workload, selection: Selection) -> str:
    return f"{selection}{_bought(directory, sent)}" if selection.informative else str(selection)


def _bought(directory: RunDirectory, sent: Workload) -> str:
    """Say what the survey itself cannot: prompts that it ranks first had luck in it, so theirs are answers under other seeds."""
    from pytest_specdec.capture import candidates, information  # noqa: PLC0415 - only a run with a survey pays for numpy

    law = [replace(one, positions=one.positions[: candidates.TOKENS]) for one in scores.read(directory, BASELINE, BASELINE, sent.name)]
    vocabulary = max((known.vocabulary for known in records.read_capabilities(directory).values()), default=0)
    bought = per_token(information.found(sent, law, vocabulary))
    return f"; {bought:.2f} in the first {candidates.TOKENS} of the baseline's answers to the chosen" if law else ""
