"""Caveats of every verdict on the same captured answers, whatever it finds.

An arm is a server whose answers are captured: the baseline, the control (the baseline again) and the speculative one under judgement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge import bursts
from pytest_specdec.model.pair import SCORER
from pytest_specdec.model.transcript import ScoringRoute

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveats:
    """The conditions under which answers were captured and scored."""

    limits: tuple[str, ...]
    """Limits of a pass, in a few words each."""
    evidence: tuple[str, ...]
    """Lines of evidence, one per caveat."""


def read_caveats(captured: Captured) -> Caveats:
    """Return the caveats for every verdict on ``captured``.

    They come from its way of capture alone, not from a judge: drafting that is seen by bursts of tokens in a stream and not counted, a
    separate scoring server, fewer requests in flight, servers shared with others. The first, and a control that is the baseline's own
    boot asked again, limit a claim of what a pass rules out as well.
    """
    streams = bursts.uncounted_bursts(captured)
    is_drafting_seen = streams is not None and streams.drafting
    drafting = (bursts.SEEN, bursts.describe_bursts(streams)) if is_drafting_seen else ()
    return Caveats(
        limits=(*([bursts.SEEN] if is_drafting_seen else []), *(["within one boot"] if captured.within_one_boot else [])),
        evidence=(*drafting, *_describe_scorer(captured), *_describe_concurrency(captured), *_describe_sharing(captured)),
    )


def _describe_scorer(captured: Captured) -> tuple[str, ...]:
    """Return lines on a separate scoring server and on bounded scores.

    Scores by one-token continuations give only an upper bound for a token outside the listed ones. Empty without scores.
    """
    scoring = captured.scoring
    if scoring is None or not captured.scores:
        return ()
    scorer = captured.capabilities.get(SCORER)
    server = () if scorer is None else (f"scored by a further server of the same weights: {scorer.server}",)
    if scoring.route is not ScoringRoute.CONTINUATIONS:
        return server
    return (*server, f"scored by {scoring.route.value}: a token outside the listed ones has only an upper bound")


def _describe_concurrency(captured: Captured) -> tuple[str, ...]:
    """Return a line per arm with fewer requests in flight than planned.

    An arm's ``concurrency`` is set only where its server failed with the planned number.
    """
    reduced = {arm.arm: arm.concurrency for arm in (*captured.baseline_boots, captured.speculative) if arm.concurrency is not None}
    return tuple(
        f"{arm} was asked {count} at a time instead of {captured.workload.concurrency}: its server fails with more in flight"
        for arm, count in reduced.items()
    )


def _describe_sharing(captured: Captured) -> tuple[str, ...]:
    """Return lines on disturbances of attached servers, cause by cause.

    The causes are a control from the same boot as the baseline, requests of other clients (``foreign``) and answers missing from the
    server's counters (``uncounted``), both in words, and a number of requests refused with 429 and sent again.
    """
    arms = [arm for arm in (captured.baseline, captured.control, captured.speculative) if arm is not None]
    shared = (f"{arm.arm}: others used its server meanwhile: {arm.foreign} more than were asked for here" for arm in arms if arm.foreign)
    lacking = (f"{arm.arm}: {arm.uncounted}: another server answered, or they are late" for arm in arms if arm.uncounted)
    limited = (f"{arm.arm}: {arm.limited} times refused with 429, too many requests, and sent again" for arm in arms if arm.limited)
    within = ("within one boot: the control is the same attached server, asked again",) if captured.within_one_boot else ()
    return (*within, *shared, *lacking, *limited)
