"""Log-probabilities: the reported values are the baseline's, on the scale of the baseline's own.

The reported numbers are checked, not the sampled tokens: servers have reported the draft's probabilities of correctly drawn tokens, and a
verifier with wrong numerics shows here long before its tokens do. A verify kernel that is noisier than decode by a bounded factor is
lawful, and said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_logprobs import beside_the_baselines, echo
from pytest_specdec.judge.ending import ended
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.logprob_lists import wrong_lists
from pytest_specdec.judge.prerequisites import refusal, speculating, unscorable
from pytest_specdec.judge.reported_logprobs import analyse, peer, reported, rms
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.noise_comparison import (
    TOLERATED,
    detectable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.reported_logprobs import LogprobAnalysis, ReportedLogprobs, ReportedToken
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.noise_comparison import NoiseComparison

__all__ = ["LEAST_TOKENS", "judge"]

LEAST_TOKENS = 100
"""Informative tokens that a verdict needs of either side."""
LATE = 256
"""Tokens of an answer whose later tokens also get a comparison of their own: among all tokens a fault that begins late is hidden."""
WRONG = "reported log-probabilities or verifier numerics"
OF_ACCEPTED = "reported log-probabilities of accepted draft tokens"


_CHANCE = 0.01


def judge(captured: Captured) -> Verdict:
    """Return whether the reported log-probabilities lie as near to teacher forcing as those of the baseline's other boots.

    FAIL where their noise exceeds four times the baseline's and what is lawful anywhere (.01 nats in single, .05 in half precision, .15
    where one boot of the baseline answered and scored), and where more tokens of probability .02 to .98 are off by half a nat and more
    than the baseline's: two tests, each at ``captured.alpha``; half of it goes to tokens after the first 256 of an answer by themselves.
    One such token fails only where the run has shown that its servers do not jump, or is off by 20 nats.

    FAIL where asked-for log-probabilities are missing or do not match the tokens. INCONCLUSIVE for few tokens, and where the engine gives
    no scores. Lists of most probable tokens must hold what was asked for, in order. Where a workload is not scored, the values that the
    baseline reported stand in for scores: those of its prompts, and at temperature 0 those of the tokens that both answered.
    """
    broken = server_failure(captured) or refusal(captured) or echo(captured) or ended(captured) or wrong_lists(captured)
    if broken is not None:
        return broken
    if not captured.workload.scored:
        return beside_the_baselines(captured)
    return unscorable(captured, rejecting=False) or _compared(captured)


def _compared(captured: Captured) -> Verdict:
    arm, baseline = reported(captured, captured.arm), peer(captured)
    if not baseline.tokens:
        why = baseline.unmatched[0] if baseline.unmatched else "none of its answers was scored"
        return say(captured, Outcome.INVALID, f"the baseline reported no log-probabilities to compare with: {why}")
    if arm.unmatched:
        return _unmatched(captured, arm)
    few = min(len(arm.squares), len(baseline.squares))
    if few < LEAST_TOKENS:
        headline = f"not enough evidence: {few} informative log-probabilities, {LEAST_TOKENS} needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle=f"{LEAST_TOKENS - few} more such tokens")
    late = reported(captured, captured.arm, after=LATE)
    parts = [arm, late] if len(late.squares) >= LEAST_TOKENS else [arm]
    analyses = [analyse(captured, part, baseline, captured.alpha / len(parts)) for part in parts]
    wrong = next((analysis for analysis in analyses if analysis.wrong), None)
    if wrong is not None:
        return _failed(captured, wrong, place="" if wrong.arm is arm else f" after token {LATE:,}")
    return speculating(captured, rejecting=False) or _passed(captured, analyses[0])


def _unmatched(captured: Captured, arm: ReportedLogprobs) -> Verdict:
    headline = f"requested log-probabilities missing or not matching the tokens in {len(arm.unmatched)} answers; first: {arm.unmatched[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=arm.unmatched, cell="missing", names="log-probabilities not reported")


def _failed(captured: Captured, analysis: LogprobAnalysis, *, place: str) -> Verdict:
    off = analysis.far or tuple(token for token in analysis.arm.tokens if abs(token.delta) > 3.0 * analysis.comparison.granted)
    name = OF_ACCEPTED if _all_accepted(off, analysis.arm.tokens) else WRONG
    worst = max(analysis.arm.tokens, key=lambda token: abs(token.delta))
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: off by {rms(analysis.arm.tokens):.3g} nats rms over {len(analysis.arm.tokens):,} tokens{place}; "
        f"the baseline by {rms(analysis.baseline.tokens):.3g}. The sampled tokens are judged apart",
        short=(
            f"worst        {worst}",
            f"noise        {_noise(analysis.comparison)}",
            f"wrong        {_jumps(analysis)}; {_slots(off)}",
        ),
        evidence=_evidence(analysis),
        cell=f"{rms(analysis.arm.tokens):.2g} nats off",
        names=name,
        figures=_figures(analysis),
    )


def _passed(captured: Captured, analysis: LogprobAnalysis) -> Verdict:
    tokens = len(analysis.arm.squares)
    shown = detectable(tokens, analysis.baseline.squares, analysis.comparison.floor, analysis.alpha)
    return say(
        captured,
        Outcome.PASS,
        f"{len(analysis.arm.tokens):,} reported log-probabilities off by {rms(analysis.arm.tokens):.2g} nats rms; "
        f"the baseline by {rms(analysis.baseline.tokens):.2g}{_kernel(analysis.comparison)}",
        evidence=_evidence(analysis),
        rules_out=f"{tokens:,} tokens checked; logit noise of {shown:.2g} nats would have been caught (99%)",
        cell=f"off by {rms(analysis.arm.tokens):.2g} nats",
        figures=_figures(analysis),
    )


def _all_accepted(tokens: Sequence[ReportedToken], everywhere: Sequence[ReportedToken]) -> bool:
    """Whether all of ``tokens`` of which it is known are accepted draft tokens, where evenly spread ones would hardly all be."""
    known = [token.accepted for token in tokens if token.accepted is not None]
    slots = [token.accepted for token in everywhere if token.accepted is not None]
    return bool(known) and all(known) and (sum(slots) / len(slots)) ** len(known) <= _CHANCE


def _slots(tokens: Sequence[ReportedToken]) -> str:
    known = [token for token in tokens if token.accepted is not None]
    if not known:
        return "windows unknown"
    accepted = sum(token.accepted is True for token in known)
    return f"{accepted:,} of {len(known):,} are accepted draft tokens"


def _kernel(comparison: NoiseComparison) -> str:
    """Return how noisy the verify kernel is, where that is more than decode by more than chance and shapes of batches make it."""
    times = comparison.kernel
    return f"; the verify kernel is {times:.1f} times as noisy as decode" if times is not None and times > TOLERATED else ""


def _noise(comparison: NoiseComparison) -> str:
    return (
        f"{comparison.noise:.3g} nats per logit, {comparison.granted:.3g} in the baseline{_kernel(comparison)}; "
        f"lawful are {max(comparison.factor * comparison.granted, comparison.floor):.3g}, p = {comparison.p_noise:.2g}"
    )


def _jumps(analysis: LogprobAnalysis) -> str:
    comparison = analysis.comparison
    return (
        f"{comparison.jumps:,} of {len(analysis.arm.distances):,} tokens off by more than {comparison.limit:.2g} nats, "
        f"{comparison.other_jumps:,} of the baseline's by {comparison.limit / comparison.factor:.2g}, p = {comparison.p_jumps:.2g}"
    )


def _evidence(analysis: LogprobAnalysis) -> tuple[str, ...]:
    return (
        f"logit noise, reported against scored: {_noise(analysis.comparison)}",
        f"{len(analysis.arm.squares):,} informative tokens, {len(analysis.baseline.squares):,} of {analysis.baseline.arm}",
        f"single tokens at probabilities of 2% to 98%: {_jumps(analysis)}"
        + ("; one is proof: no server here jumps" if analysis.exact else ""),
        *(str(token) for token in analysis.far[:50]),
    )


def _figures(analysis: LogprobAnalysis) -> dict[str, float]:
    return {
        "tokens": len(analysis.arm.tokens),
        "noise_nats": analysis.comparison.noise,
        "granted_nats": analysis.comparison.granted,
        **({} if analysis.comparison.kernel is None else {"verify_noise_times": analysis.comparison.kernel}),
        "rms_nats": rms(analysis.arm.tokens),
        "baseline_rms_nats": rms(analysis.baseline.tokens),
        "tokens_far_off": len(analysis.far),
    }
