"""Black box: what is left of the sampling judge for an engine whose tokens nobody can score, a smoke test of whole answers.

Answers of the variant are held against the baseline's to the same requests by tests that know no law (stats/two_sample.py), which take
some hundred times the tokens of the betting test. It refuses to guess: the set-up says whether tokens can be scored, never what
the answers look like.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.quotation import quoted
from pytest_specdec.judge.saying import likely, say
from pytest_specdec.judge.speculating import speculating
from pytest_specdec.judge.units import cut
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import planted
from pytest_specdec.stats.planted import CONFIDENCE, Draft
from pytest_specdec.stats.two_sample import compared, level_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """What is compared, and what it could show."""

    label: str
    cut: Cut
    level: float
    """Of each test."""

    @property
    def over(self) -> str:
        """How much was compared."""
        n, others = len(self.cut.blocks), self.cut.blocks.arms - 1
        kind = "tokens" if self.cut.tokens else "pieces of text"
        return f"{n:,} answers ({self.cut.said:,} {kind} behind the first) beside {n * others:,} of the baseline"

    def tested(self, alpha: float) -> tuple[Found, ...]:
        """Return what the tests say, the one with the least p-value first."""
        return tuple(sorted(compared(self.cut.blocks, alpha, np.random.default_rng(SEED)), key=lambda one: one.p_value))


def unscorable(captured: Captured) -> str:
    """Return why no token of this workload can be scored: the survey of the baseline says so, and there is no score; empty otherwise."""
    known = captured.capabilities.get(BASELINE)
    if known is None or any(score.positions for scores in captured.scores.values() for score in scores):
        return ""
    return known.unscorable


def judge(captured: Captured) -> Verdict:
    """Return whether the judged arm's answers look drawn like the baseline's, position 2 and on.

    INCONCLUSIVE where not even a fault planted in every token would show, with the number of answers that would settle it. Nothing is
    tested then: a run that is continued is looked at once, and the level holds. Else FAIL at ``p <= captured.alpha`` over both tests,
    unless the control shows as much against the baseline: INVALID then. PASS says which planted fault would have shown.
    """
    hearing = _heard(captured)
    if not len(hearing.cut.blocks):
        headline = f"{hearing.label}: nothing to compare: {'; '.join(hearing.cut.skipped) or 'no request was answered'}"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="send requests that draw tokens: temperature above 0")
    if captured.is_control:
        return _of_control(captured, hearing)
    share, tried = planted.smallest(hearing.cut.blocks, hearing.level, Draft.FOLLOWER, seed=SEED)
    if share is None:
        return speculating(captured) or _undecided(captured, hearing, tried[1.0])
    found = hearing.tested(captured.alpha)
    if found[0].alarm:
        return _differing_control(captured) or _failed(captured, hearing, found)
    return _differing_control(captured) or speculating(captured) or _cleared(captured, hearing, found, (share, tried))


def _heard(captured: Captured) -> _Hearing:
    taken, why = cut(captured), unscorable(captured)
    label = "smoke test: tokens cannot be scored" + (f" ({why})" if why else "")
    return _Hearing(label=label, cut=taken, level=level_of(taken.blocks, captured.alpha))


def _of_control(captured: Captured, hearing: _Hearing) -> Verdict:
    """Judge the control like a variant; what it would have shown is not printed, so nothing is planted."""
    found = hearing.tested(captured.alpha)
    if found[0].alarm:
        return _failed(captured, hearing, found)
    return say(captured, Outcome.PASS, f"{hearing.label}: {found[0]}", evidence=_evidence(hearing, found), figures=_figures(hearing, found))


def _differing_control(captured: Captured) -> Verdict | None:
    if captured.control is None:
        return None
    hearing = _heard(captured.as_control())
    found = hearing.tested(captured.alpha) if len(hearing.cut.blocks) else ()
    if not found or not found[0].alarm:
        return None
    headline = f"{hearing.label}: the control's answers differ from the baseline's as well: {found[0]}"
    return say(captured, Outcome.INVALID, headline, evidence=_evidence(hearing, found), figures=_figures(hearing, found))


def _failed(captured: Captured, hearing: _Hearing, found: Sequence[Found]) -> Verdict:
    return say(
        captured,
        Outcome.FAIL,
        f"{hearing.label}, but the answers are not drawn like the baseline's: {found[0]}",
        short=(f"over         {hearing.over}", f"most apart   {_telling(hearing.cut)}"),
        evidence=_evidence(hearing, found),
        cell=f"p={found[0].p_value:.0e}",
        figures=_figures(hearing, found),
    )


def _cleared(captured: Captured, hearing: _Hearing, found: Sequence[Found], seen: tuple[float, Mapping[float, Shown]]) -> Verdict:
    share, tried = seen
    other = planted.shown(hearing.cut.blocks, hearing.level, Draft.ANY, share, seed=SEED)
    rules_out = (
        f"{hearing.label}: over {hearing.over}, {share:.0%} of tokens from {Draft.FOLLOWER} "
        f"would have shown with probability {likely(tried[share].chance)}"
    )
    return say(
        captured,
        Outcome.PASS,
        rules_out,
        evidence=(
            *_evidence(hearing, found),
            *_would_have_shown(Draft.FOLLOWER, tried),
            *_would_have_shown(Draft.ANY, {share: other}),
        ),
        rules_out=rules_out,
        cell=f"smoke, sees {share:.0%}",
        figures={**_figures(hearing, found), "promised_probability": CONFIDENCE, "smallest_share_ruled_out": share},
    )


def _undecided(captured: Captured, hearing: _Hearing, all_planted: Shown) -> Verdict:
    blocks, longer = hearing.cut.blocks, all_planted.length
    settle = "these answers have no choice in them: ask for open text"
    if isfinite(longer):
        least = planted.blocks_needed(hearing.level, blocks.arms)
        settle = f"about {max(least, ceil(len(blocks) * longer)):,} answers like these of every arm"
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{hearing.label}: too little to tell: over {hearing.over} not even a fault in every token would have shown",
        evidence=(*hearing.cut.skipped, *_would_have_shown(Draft.FOLLOWER, {1.0: all_planted})),
        settle=settle,
        cell="smoke",
        figures=_figures(hearing, ()),
    )


def _evidence(hearing: _Hearing, found: Sequence[Found]) -> tuple[str, ...]:
    return (hearing.over, *map(str, found), *hearing.cut.skipped, f"most apart: {_telling(hearing.cut)}")


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


def _figures(hearing: _Hearing, found: Sequence[Found]) -> Mapping[str, float]:
    p_values = {f"p_{one.test.split()[0].lower()}": one.p_value for one in found}
    return {"answers": len(hearing.cut.blocks), "units": hearing.cut.said, **p_values}
