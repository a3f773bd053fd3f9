"""A shift: log-probabilities that are right in some requests and off in those with something before or beside them.

A cache entry that is lost moves every log-probability behind it by a little and hardly a token: where servers may jump, few wrong tokens
are no proof, and the shift is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.reported_logprobs import analyse, peer, reported, rms
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_specdec.judge.reported_logprobs import LogprobAnalysis
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["LogprobShift", "shift", "shifted"]

_LEAST_MOVED, _LEAST_USUAL = 50, 20
"""Tokens with a choice in them, of those that may be moved and of those that are not."""
_ALREADY_OFF = 0.01
"""Level at which usual requests count as off themselves: what is off everywhere is the finding of another family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobShift:
    """Reported log-probabilities of the judged arm, off in some requests alone."""

    moved: LogprobAnalysis
    usual: LogprobAnalysis
    requests: tuple[str, ...]
    """Those whose own log-probabilities are off by more than noise at a level of .01, worst first; all of the moved if none is."""
    reporting: frozenset[str]
    """All whose log-probabilities are known."""

    @property
    def told(self) -> str:
        """What was found, in a sentence."""
        off, tokens = rms(self.moved.arm.tokens), len(self.moved.arm.tokens)
        return (
            f"reported log-probabilities are off by {off:.3g} nats rms over {tokens:,} tokens, "
            f"by {rms(self.usual.arm.tokens):.3g} elsewhere, the baseline's by {rms(self.moved.baseline.tokens):.3g}"
        )

    @property
    def evidence(self) -> tuple[str, ...]:
        """The figures, and each request that is off."""
        comparison = self.moved.comparison
        jumps = f"{comparison.jumps:,} tokens off by more than {comparison.limit:.2g} nats, p = {comparison.p_jumps:.2g}"
        noise = f"{comparison.noise:.3g} nats per logit, {comparison.granted:.3g} in the baseline, p = {comparison.p_noise:.2g}"
        return (
            f"reported against scored: {noise}; {jumps}",
            f"requests whose log-probabilities are off: {', '.join(self.requests)}",
        )


def shift(captured: Captured, usual: Collection[str]) -> LogprobShift | None:
    """Return how log-probabilities of requests outside ``usual`` are off at the captured share, while those of ``usual`` are not.

    The tests are those of the family of log-probabilities (judge/logprobs.py). None where nothing is off, where either part has too few
    tokens to tell, and where the usual ones are off too.
    """
    asked = {request.id for request in captured.workload.requests if request.reports or request.body.get("logprobs")}
    baseline, arm = peer(captured, asked), captured.arm
    here, there = reported(captured, arm, only=asked - set(usual)), reported(captured, arm, only=asked & set(usual))
    if len(here.squares) < _LEAST_MOVED or len(there.squares) < _LEAST_USUAL or not baseline.tokens:
        return None
    moved, unmoved = analyse(captured, here, baseline, captured.alpha), analyse(captured, there, baseline, _ALREADY_OFF)
    if not moved.wrong or unmoved.wrong:
        return None
    parts = {id_: reported(captured, arm, only={id_}) for id_ in asked - set(usual)}
    single = {id_: analyse(captured, part, baseline, _ALREADY_OFF) for id_, part in parts.items() if part.tokens}
    off = sorted((id_ for id_, each in single.items() if each.wrong), key=lambda id_: single[id_].p_value)
    return LogprobShift(moved=moved, usual=unmoved, requests=tuple(off) or tuple(sorted(single)), reporting=frozenset(asked))


def shifted(captured: Captured, found: LogprobShift, name: str) -> Verdict:
    """Return the verdict on a shift that the judging family calls ``name``."""
    comparison = found.moved.comparison
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {found.told}",
        short=[f"first        request {found.requests[0]}", f"noise        {found.evidence[0].removeprefix('reported against scored: ')}"],
        evidence=found.evidence,
        cell=f"{rms(found.moved.arm.tokens):.2g} nats off",
        names=name,
        figures={"noise_nats": comparison.noise, "granted_nats": comparison.granted, "tokens": float(len(found.moved.arm.tokens))},
    )
