"""Black box: what is left of the sampling judge for an engine whose tokens nobody can score, a smoke test of whole answers.

Answers of the variant are held against the baseline's to the same requests by tests that know no law (stats/two_sample.py), which take
tens to thousands of times the tokens of the betting test. It refuses to guess: the set-up says whether tokens can be scored, never what
the answers look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.quotation import quoted
from pytest_specdec.judge.saying import say
from pytest_specdec.judge.speculating import speculating
from pytest_specdec.judge.units import cut
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import planted
from pytest_specdec.stats.planted import CONFIDENCE, Draft
from pytest_specdec.stats.two_sample import compared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.judge.units import Cut
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.planted import Shown
    from pytest_specdec.stats.two_sample import Found

__all__ = ["judge", "unscorable"]

SEED = 20241103
"""Of the permutations and of the planted faults: the same answers get the same verdict."""
TELLING = 5
"""Units named that differ most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hearing:
    """What the tests were given and what they say."""

    label: str
    cut: Cut
    found: tuple[Found, ...]

    @property
    def best(self) -> Found:
        """The test with the least p-value for its level."""
        return min(self.found, key=lambda one: one.p_value / one.level)

    @property
    def over(self) -> str:
        """How much was compared."""
        n, others = len(self.cut.blocks), self.cut.blocks.arms - 1
        kind = "tokens" if self.cut.tokens else "pieces of text"
        return f"{n:,} answers ({self.cut.said:,} {kind} behind the first) beside {n * others:,} of the baseline"


def unscorable(captured: Captured) -> str:
    """Return why no token of this workload can be scored: the survey of the baseline says so, and there is no score; empty otherwise."""
    known = captured.capabilities.get(BASELINE)
    if known is None or any(score.positions for scores in captured.scores.values() for score in scores):
        return ""
    return known.unscorable


def judge(captured: Captured) -> Verdict:
    """Return whether the judged arm's answers look drawn like the baseline's, position 2 and on.

    FAIL at ``p <= captured.alpha`` over both tests, unless the control shows as much against the baseline: INVALID then. PASS says which
    planted fault would have shown; INCONCLUSIVE where none would have, with the number of answers that would settle it.
    """
    hearing = _heard(captured)
    if not len(hearing.cut.blocks):
        headline = f"{hearing.label}: nothing to compare: {'; '.join(hearing.cut.skipped) or 'no request was answered'}"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="send requests that draw tokens: temperature above 0")
    if not captured.is_control and captured.control is not None:
        control = _heard(captured.as_control())
        if control.found and control.best.alarm:
            headline = f"{hearing.label}: the control's answers differ from the baseline's as well: {control.best}"
            return say(captured, Outcome.INVALID, headline, evidence=_evidence(control), figures=_figures(control))
    if hearing.best.alarm:
        return _failed(captured, hearing)
    return speculating(captured) or _cleared(captured, hearing)


def _heard(captured: Captured) -> _Hearing:
    taken = cut(captured)
    found = compared(taken.blocks, captured.alpha, np.random.default_rng(SEED)) if len(taken.blocks) else ()
    why = unscorable(captured)
    return _Hearing(label="smoke test: tokens cannot be scored" + (f" ({why})" if why else ""), cut=taken, found=found)


def _failed(captured: Captured, hearing: _Hearing) -> Verdict:
    return say(
        captured,
        Outcome.FAIL,
        f"{hearing.label}, but the answers are not drawn like the baseline's: {hearing.best}",
        short=(f"over         {hearing.over}", f"most apart   {_telling(hearing.cut)}"),
        evidence=_evidence(hearing),
        cell=f"p={hearing.best.p_value:.0e}",
        figures=_figures(hearing),
    )


def _cleared(captured: Captured, hearing: _Hearing) -> Verdict:
    """Say what would have shown; of the control, whose word is not printed, nothing is simulated."""
    blocks, level = hearing.cut.blocks, hearing.found[0].level
    if captured.is_control:
        return say(captured, Outcome.PASS, f"{hearing.label}: {hearing.best}", evidence=_evidence(hearing), figures=_figures(hearing))
    share, tried = planted.smallest(blocks, level, Draft.FOLLOWER, seed=SEED)
    other = {share or 1.0: planted.shown(blocks, level, Draft.ANY, share or 1.0, seed=SEED)}
    evidence = (*_evidence(hearing), *_would_have_shown(Draft.FOLLOWER, tried), *_would_have_shown(Draft.ANY, other))
    if share is None:
        return _undecided(captured, hearing, tried[1.0], evidence)
    rules_out = (
        f"{hearing.label}: over {hearing.over}, {share:.0%} of tokens from {Draft.FOLLOWER} "
        f"would have shown with probability {_said(tried[share].chance)}"
    )
    return say(
        captured,
        Outcome.PASS,
        rules_out,
        evidence=evidence,
        rules_out=rules_out,
        cell=f"smoke, sees {share:.0%}",
        figures={**_figures(hearing), "promised_probability": CONFIDENCE, "smallest_share_ruled_out": share},
    )


def _undecided(captured: Captured, hearing: _Hearing, all_planted: Shown, evidence: tuple[str, ...]) -> Verdict:
    blocks, longer = hearing.cut.blocks, all_planted.length
    settle = "these answers have no choice in them: ask for open text"
    if isfinite(longer):
        least = planted.blocks_needed(hearing.found[0].level, blocks.arms)
        settle = f"about {max(least, ceil(len(blocks) * longer)):,} answers like these of every arm"
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{hearing.label}: too little to tell: over {hearing.over} not even a fault in every token would have shown",
        evidence=evidence,
        settle=settle,
        cell="smoke",
        figures=_figures(hearing),
    )


def _evidence(hearing: _Hearing) -> tuple[str, ...]:
    return (hearing.over, *map(str, hearing.found), *hearing.cut.skipped, f"most apart: {_telling(hearing.cut)}")


def _would_have_shown(draft: Draft, tried: Mapping[float, Shown]) -> tuple[str, ...]:
    return tuple(
        f"would have shown with probability {one.chance:.3f}: {share:.0%} of tokens from {draft}" for share, one in sorted(tried.items())
    )


def _telling(taken: Cut) -> str:
    """Return the units whose counts lie furthest apart, in standard errors."""
    units, size = taken.blocks.units, len(taken.names)
    mine = np.bincount(units[:, 0][units[:, 0] >= 0], minlength=size)
    theirs = np.bincount(units[:, 1:][units[:, 1:] >= 0], minlength=size) / (taken.blocks.arms - 1)
    apart = np.abs(mine - theirs) / np.sqrt(mine + theirs + 1.0)
    order = np.argsort(-apart, kind="stable")[:TELLING]
    kind = "id " if taken.tokens else ""
    return ", ".join(f"{kind + _named(taken, one)} {mine[one]:,} times here and {theirs[one]:,.0f} there" for one in order)


def _named(taken: Cut, unit: int) -> str:
    name = taken.names[unit]
    return "the end" if not name else name if taken.tokens else quoted(name)


def _figures(hearing: _Hearing) -> Mapping[str, float]:
    return {
        "answers": len(hearing.cut.blocks),
        "units": hearing.cut.said,
        "p_classifier": hearing.found[0].p_value,
        **({"p_discrepancy": hearing.found[1].p_value} if len(hearing.found) > 1 else {}),
    }


def _said(chance: float) -> str:
    return "more than 0.99" if chance >= 0.995 else f"{chance:.2f}"  # noqa: PLR2004 - would round to a certainty
