"""Unscorable: an engine that gives no log-probabilities of given tokens, under which no token can be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.prerequisites import speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["equal", "unscorable"]

ROUTES = "serve prompt log-probabilities, or log-probabilities of one-token continuations of token ids"
"""The remedy where the engine's adapter knows no option."""


def unscorable(captured: Captured, *, rejecting: bool = True) -> Verdict | None:
    """Return INCONCLUSIVE where the baseline's capability probe found no route to scores and there are none; None otherwise.

    Scores that are missing although the engine gives them, or that no probe tried, are another matter. Answers at temperature 0 are
    counted that equal the baseline's as strings. That decides nothing: ties part healthy servers, and equal strings tell no distribution.
    """
    known = captured.capabilities.get(BASELINE)
    if known is None or not known.unscorable or any(score.positions for scores in captured.scores.values() for score in scores):
        return None
    mine = equal(captured, captured.speculative)
    counted = f"{sum(mine)} of {len(mine)} answers equal the baseline's; " if mine else ""
    return speculating(captured, rejecting=rejecting) or say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{counted}no token can be scored: the baseline serves no log-probabilities of given tokens ({known.unscorable})",
        evidence=_of_control(captured),
        settle=known.scored_with or ROUTES,
        cell="not scored",
        figures={"answers": float(len(mine)), "answers_equal": float(sum(mine))} if mine else {},
    )


def equal(captured: Captured, arm: Transcript) -> tuple[bool, ...]:
    """Return of every request at temperature 0 that both answered whether ``arm`` said what the baseline said, as token ids and as text."""
    greedy = {request.id for request in captured.workload.requests if request.body.get("temperature") == 0}
    own = {answer.key: answer.choice for answer in captured.baseline.answers if answer.ok and answer.request_id in greedy}
    both = ((answer.choice, own[answer.key]) for answer in arm.answers if answer.ok and answer.key in own)
    return tuple((mine.token_ids, mine.text) == (theirs.token_ids, theirs.text) for mine, theirs in both)


def _of_control(captured: Captured) -> tuple[str, ...]:
    control = () if captured.control is None or captured.is_control else equal(captured, captured.control)
    return (f"{sum(control)} of {len(control)} of the control's answers equal the baseline's",) if control else ()
