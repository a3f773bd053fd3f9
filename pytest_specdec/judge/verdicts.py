"""Verdicts, put together in one way for every judge.

A judge compares the answers of one arm, a server of the run, with those of the baseline, which does not speculate. ``captured`` has both.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import TYPE_CHECKING

from pytest_specdec.judge.caveats import read_caveats
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.promise import Promise
    from pytest_specdec.model.verdict import Example, Finding, Outcome, SharedCheck

__all__ = ["LN_10", "against", "guess", "likely", "number_of", "power_of_ten", "quote", "restate", "say"]

LN_10 = log(10.0)


def quote(text: str, most: int = 40) -> str:
    r"""Return ``text`` in double quotes, cut to ``most`` characters.

    Quotes, backslashes and unprintable characters are escaped, as in ``\x01``.
    """
    excerpt = text if len(text) <= most else text[: most - 1] + "…"
    return '"' + "".join(map(_visible, excerpt)) + '"'


def _visible(character: str) -> str:
    """Return a character, escaped if it is a quote, a backslash or unprintable."""
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
    example: Example | None = None,
    check: SharedCheck | None = None,
    transient: bool = False,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
) -> Verdict:
    """Return the verdict on ``captured``, with its caveats.

    The arguments are fields of :class:`Verdict`. Caveats come from how answers were captured, such as bursts that are seen and not counted.
    They are added to the evidence; their limits only to a claim of what is ruled out. The verdict is also given to ``captured.on_verdict``,
    by which pytest notices a verdict that no test checks.
    """
    caveats = read_caveats(captured)
    verdict = Verdict(
        outcome=outcome,
        family=captured.family,
        pair=captured.pair.name,
        workload=captured.workload.name,
        headline=headline,
        short=tuple(short),
        evidence=(*evidence, *caveats.evidence),
        rules_out="; ".join((rules_out, *caveats.limits)) if rules_out else "",
        settle=settle,
        reason=reason,
        cell=cell,
        names=names,
        figures=figures or {},
        promise=promise,
        finding=finding,
        example=example,
        check=check,
        transient=transient,
        parameters=parameters or {},
    )
    if captured.on_verdict is not None:
        captured.on_verdict(verdict)
    return verdict


def restate(captured: Captured, verdict: Verdict, **fields: object) -> Verdict:
    """Return another judge's verdict with other fields, and report it.

    It is given to ``captured.on_verdict``, as by :func:`say`.
    """
    restated = replace(verdict, **fields)  # type: ignore[arg-type]
    if captured.on_verdict is not None:
        captured.on_verdict(restated)
    return restated


def guess(captured: Captured) -> tuple[str, ...]:
    """Return a line saying that a fault's name is a guess.

    A fault is named by the kind of drafter. Empty if that is known, and for the control, which does not draft.
    """
    if captured.is_control or captured.pair.variant.draft.kind is not DraftKind.UNKNOWN:
        return ()
    return ("name         a guess: the drafter is unknown here; add `args: {draft: model | ngram | head, draft-tokens: 3}` to the variant",)


def power_of_ten(log_evidence: float) -> str:
    """Return evidence, a natural log, as a power of ten: ``10^4.2``."""
    return f"10^{log_evidence / LN_10:.1f}"


def against(log_evidence: float, alpha: float) -> str:
    """Return evidence beside the level of its alarm, 1/alpha."""
    return f"{power_of_ten(log_evidence)} (alarm at {1.0 / alpha:,.0f})"


def number_of(count: int, what: str) -> str:
    """Return a number of things in words: ``1 wrong end``, ``2 wrong ends``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def likely(chance: float) -> str:
    """Return a probability 0..1 as a percentage, never rounded to 100%."""
    return "over 99%" if chance >= 0.995 else f"{chance:.0%}"  # noqa: PLR2004 - would round to a certainty
