"""Verdicts, put together in one way for every judge."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from pytest_specdec.judge import bursts
from pytest_specdec.model.pair import SCORER, DraftKind
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.promise import Promise
    from pytest_specdec.model.verdict import Finding, Outcome

__all__ = ["LN_10", "against", "guess", "likely", "power", "quoted", "say"]

LN_10 = log(10.0)


def quoted(text: str, most: int = 40) -> str:
    r"""Return ``text`` in double quotes, cut to ``most`` characters, control and unprintable characters as ``\x01``."""
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return '"' + "".join(map(_visible, shown)) + '"'


def _visible(character: str) -> str:
    if character == '"':
        return r"\""
    return character if character.isprintable() and character != "\\" else character.encode("unicode_escape").decode()


def say(
    captured: Captured,
    outcome: Outcome,
    headline: str,
    *,
    short: Sequence[str] = (),
    evidence: Sequence[str] = (),
    rules_out: str = "",
    settle: str = "",
    reason: str = "",
    cell: str = "",
    names: str = "",
    figures: Mapping[str, float] | None = None,
    promise: Promise | None = None,
    finding: Finding | None = None,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
) -> Verdict:
    """Return the verdict on ``captured``'s pair and workload in ``captured``'s family."""
    drafting = _drafting(captured)
    limits = (*([bursts.SEEN] if drafting else []), *(["within one boot"] if captured.within_one_boot else []))
    verdict = Verdict(
        outcome=outcome,
        family=captured.family,
        pair=captured.pair.name,
        workload=captured.workload.name,
        headline=headline,
        short=tuple(short),
        evidence=(*evidence, *drafting, *_route(captured), *_concurrency(captured), *_others(captured)),
        rules_out="; ".join((rules_out, *limits)) if rules_out else "",
        settle=settle,
        reason=reason,
        cell=cell,
        names=names,
        figures=figures or {},
        promise=promise,
        finding=finding,
        parameters=parameters or {},
    )
    if captured.on_verdict is not None:
        captured.on_verdict(verdict)
    return verdict


def guess(captured: Captured) -> tuple[str, ...]:
    """Return the caveat of a fault's name where nothing tells how the variant drafts; nothing where it is known."""
    if captured.is_control or captured.pair.variant.draft.kind is not DraftKind.UNKNOWN:
        return ()
    return ("name         a guess: the drafter is unknown here; add `args: {draft: model | ngram | head, draft-tokens: 3}` to the variant",)


def power(log_evidence: float) -> str:
    """Return evidence, a natural log, as a power of ten: ``10^4.2``."""
    return f"10^{log_evidence / LN_10:.1f}"


def against(log_evidence: float, alpha: float) -> str:
    """Return evidence beside its alarm, 1/alpha."""
    return f"{power(log_evidence)} (alarm at {1.0 / alpha:,.0f})"


def likely(chance: float) -> str:
    """Return a probability 0..1 as a percentage that never rounds to a certainty."""
    return "over 99%" if chance >= 0.995 else f"{chance:.0%}"  # noqa: PLR2004 - would round to a certainty


def _drafting(captured: Captured) -> tuple[str, ...]:
    """Return what shows that the server drafts, where nothing counts it."""
    streams = bursts.uncounted(captured)
    return (bursts.SEEN, bursts.described(streams)) if streams is not None and streams.drafting else ()


def _others(captured: Captured) -> tuple[str, ...]:
    """Return the caveats of servers that belong to somebody else."""
    arms = [arm for arm in (captured.baseline, captured.control, captured.speculative) if arm is not None]
    shared = (f"{arm.arm}: others used its server meanwhile: {arm.foreign} more than were asked for here" for arm in arms if arm.foreign)
    lacking = (f"{arm.arm}: {arm.uncounted}: another server answered, or they are late" for arm in arms if arm.uncounted)
    limited = (f"{arm.arm}: {arm.limited} times refused with 429, too many requests, and sent again" for arm in arms if arm.limited)
    within = ("within one boot: the control is the same attached server, asked again",) if captured.within_one_boot else ()
    return (*within, *shared, *lacking, *limited)


def _concurrency(captured: Captured) -> tuple[str, ...]:
    """Return the arms that had fewer requests in flight than the workload says, as after a failure of several requests together."""
    arms = (
        (captured.baseline, captured.speculative)
        if captured.control is None
        else (captured.baseline, captured.control, captured.speculative)
    )
    lower = {arm.arm: arm.concurrency for arm in arms if arm.concurrency is not None}
    wanted = captured.workload.concurrency
    return tuple(
        f"{name} was asked {most} at a time instead of {wanted}: its server fails with more in flight" for name, most in lower.items()
    )


def _route(captured: Captured) -> tuple[str, ...]:
    """Return which server scored, where it is not the baseline, and a caveat where the scores are upper bounds."""
    known = captured.scoring
    if known is None or not captured.scores:
        return ()
    scorer = captured.capabilities.get(SCORER)
    server = () if scorer is None else (f"scored by a further server of the same weights: {scorer.server}",)
    if known.route is not ScoringRoute.CONTINUATIONS:
        return server
    return (*server, f"scored by {known.route.value}: a token outside the listed ones has only an upper bound")
