"""The verdict of sampling: evidence of the betting test, compared with the control's.

A bettor bets on one fault, and its wealth is the likelihood ratio of that fault to a correct server; their weighted mean is the evidence.
The alarm is at evidence ``1/alpha``. The control is a second boot of the baseline, judged in the variant's place. Scores are the baseline's
log-probabilities of emitted tokens: noisy if they scatter, biased if they are off by one power.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal, speculating, unscorable
from pytest_specdec.judge.sampling.control import compare_at_bias, compare_with_control
from pytest_specdec.judge.sampling.data import SEED_AGAIN, gather
from pytest_specdec.judge.sampling.fault_naming import acceptance, name
from pytest_specdec.judge.sampling.sensitivity import estimate_sensitivity
from pytest_specdec.judge.verdicts import LN_10, against, guess, power_of_ten, say
from pytest_specdec.model.families import SHORT_BY
from pytest_specdec.model.promise import SampledTokens
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.betting import wealth_process
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.logprob_noise import NORMAL_UP_TO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.judge.sampling.data import SamplingData
    from pytest_specdec.judge.sampling.fault_naming import Acceptance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.betting import WealthProcess
    from pytest_specdec.stats.logprob_noise import Calibration
    from pytest_specdec.stats.verify_slots import Observed

__all__ = ["is_suspicious", "judge"]


def is_suspicious(log_peak: float, log_end: float, alpha: float) -> bool:
    """Return True if evidence short of the alarm is too strong to pass.

    ``log_peak`` and ``log_end`` are natural logs of the highest and the last evidence, and the alarm is at ``1/alpha``. Callers exclude an
    alarm first. Within a factor of SHORT_BY, 3, of it, evidence is suspicious: under a fault it grows by a constant factor per token, so a
    slightly longer run would have reached the alarm. It is not if it ends below 1: then later answers took it back, as on a correct server.
    Under a fault they add to it.
    """
    was_near_alarm = log_peak >= -log(alpha) - log(SHORT_BY)
    return was_near_alarm and log_end > 0.0


MOST_BETTORS = 8
"""Bettors in the evidence of a report."""
_CURVE_PARTS = 60
"""Points of the evidence curve in reports."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Analysis:
    """The evidence against one arm, with the figures for its verdict."""

    gathered: SamplingData
    observed: Observed
    wealth: WealthProcess
    alarm: int | None
    """Tokens, in the order of the requests, after which the evidence first reached the alarm; None if it never did."""
    acceptance: Acceptance | None

    @property
    def evidence(self) -> str:
        """The highest evidence after any token, as a power of ten."""
        return power_of_ten(self.wealth.peak)


def judge(captured: Captured) -> Verdict:
    """Return the verdict on the distribution of the judged arm's tokens.

    A failed server, refused requests and wrong endings come first, and then tokens that cannot be scored. FAIL if the evidence reaches
    ``1/captured.alpha``; INVALID if the control has the same evidence, since then the scores are wrong. SUSPICIOUS from a third of the
    alarm on, unless later answers take the evidence back. PASS with the faults that would have been caught. INCONCLUSIVE if none would have
    been, with the number of tokens needed, or if the engine gives no scores. INVALID also if token ids or scores are missing although the
    capability probe got them.

    With biased scores the tokens are judged by the scored distribution and by the one that the baseline reports: INVALID if the two
    disagree. With scores too noisy for single tokens, only the difference to the control is judged: FAIL if it is significant at
    ``captured.alpha`` over all faults, else INVALID.
    """
    unjudged = server_failure(captured) or refusal(captured) or check_endings(captured) or unscorable(captured)
    return unjudged or _judge_gathered(captured, gather(captured))


def _judge_gathered(captured: Captured, gathered: SamplingData) -> Verdict:
    """Return the verdict on the gathered tokens, by the quality of scores.

    INVALID if token ids or scores are missing, INCONCLUSIVE without a token to judge, and INVALID if the evidence is not finite. Then noisy
    scores, and after them biased ones, have judgements of their own.
    """
    if gathered.broken:
        return say(captured, Outcome.INVALID, gathered.broken, evidence=gathered.skipped)
    if gathered.observed is None:
        headline = f"no sampled token to judge: {'; '.join(gathered.skipped) or 'no request was answered'}"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="send requests that draw tokens: temperature above 0, no penalties")
    analysis = _analyse(captured, gathered, gathered.observed)
    if not np.isfinite(analysis.wealth.log_wealth).all():
        return _say_not_finite(captured, analysis.wealth)
    calibration = gathered.calibration
    # It compares log-probabilities that the baseline reported with scores: noise and bias are those of the scores.
    if calibration is not None and not calibration.valid:
        return _judge_noisy(captured, gathered, gathered.observed, analysis.wealth)
    if calibration is not None and calibration.is_biased:
        return _judge_biased(captured, analysis, calibration.scoring_bias)
    return _conclude(captured, analysis, 0.0)


def _analyse(captured: Captured, gathered: SamplingData, observed: Observed) -> _Analysis:
    """Return the evidence in the observed tokens, with its first alarm and the acceptance."""
    wealth = wealth_process(bettors(observed))
    alarm = wealth.tokens_to(-log(captured.alpha))
    return _Analysis(gathered=gathered, observed=observed, wealth=wealth, alarm=alarm, acceptance=acceptance(observed))


def _judge_biased(captured: Captured, biased: _Analysis, scoring_bias: float) -> Verdict:
    """Return the verdict for biased scores, by both possible distributions.

    ``biased`` is the analysis by the scores. The tokens are also judged by the distribution that the baseline reports, the scored one to
    the power ``1 + scoring_bias``. INVALID if only one of the two raises an alarm, since it is unknown which distribution is the right one;
    otherwise the verdict by the reported one.
    """
    gathered = gather(captured, scoring_bias=scoring_bias)
    assert gathered.observed is not None
    reported = _analyse(captured, gathered, gathered.observed)
    if (reported.alarm is None) == (biased.alarm is None):
        return _conclude(captured, reported, scoring_bias)
    scores = f"evidence {biased.evidence} by the scores, {reported.evidence} by the log-probabilities that the baseline reports"
    with_alarm = reported if biased.alarm is None else biased
    return _say_invalid(captured, with_alarm, f"biased scores give no verdict: {scores}")


def _conclude(captured: Captured, analysis: _Analysis, scoring_bias: float) -> Verdict:
    """Return the verdict by the alarm, once the scores are usable.

    With an alarm it is INVALID if the control shows the same at the same ``scoring_bias``, else FAIL, even if nothing was drafted. Without
    one, missing drafts come first, since a pass would claim nothing of speculation, then SUSPICIOUS, then PASS or INCONCLUSIVE.
    """
    if analysis.alarm is None:
        return speculating(captured) or _say_suspicious(captured, analysis) or _pass_sampling(captured, analysis)
    return _check_control(captured, analysis, scoring_bias) or _fail_sampling(captured, analysis)


def _say_not_finite(captured: Captured, wealth: WealthProcess) -> Verdict:
    """Return INVALID, since the evidence is NaN or infinite from some token on.

    No later token could raise an alarm. The headline has the first such token, and ``short`` a bettor with such a payoff there.
    """
    at = int(np.flatnonzero(~np.isfinite(wealth.log_wealth))[0])
    names = [bettor.name for bettor in wealth.bettors if not np.isfinite(bettor.log_payoffs[at])]
    return say(
        captured,
        Outcome.INVALID,
        f"evidence is NaN or infinite from judged token {at + 1:,} on",
        short=(
            f"found        a likelihood ratio that is no number, for {names[0] if names else 'all faults'!r}; expected finite ones",
            "remedy       look at the log-probabilities and the request of that token, in scores/ and transcripts/; report it with the run",
        ),
    )


def _judge_noisy(captured: Captured, gathered: SamplingData, observed: Observed, wealth: WealthProcess) -> Verdict:
    """Return the verdict for noisy scores, by the difference to the control.

    Wrong scores pay a bettor on either arm, and cancel in the difference. FAIL if the largest difference is significant at
    ``captured.alpha`` over all bettors, by the level ``limit`` for each of them (Bonferroni), else INVALID. Bettors on some answers only
    are left out: each bettor is one more test, which lowers the level of all.
    """
    panel = wealth.without_sparse_bettors.bettors
    best = compare_with_control(captured, observed, panel)
    limit = captured.alpha / len(panel)
    noisy = f"scores too noisy to judge single tokens ({_describe_noise(gathered)})"
    compared_with = "no control to compare with" if best is None else str(best)
    if best is not None and best.difference.p_value < limit:
        p_value = f"p = {best.difference.p_value:.1g} (alarm at {limit:.1g})"
        headline = f"sampled tokens do not follow the control's distribution: {compared_with}; {p_value}"
        cell = f"{best.difference.score:.1f} standard errors"
        return say(captured, Outcome.FAIL, headline, short=(noisy,), cell=cell, names=best.name)
    return say(captured, Outcome.INVALID, f"{noisy}; no significant difference to the control: {compared_with}")


def _check_control(captured: Captured, analysis: _Analysis, scoring_bias: float) -> Verdict | None:
    """Return INVALID if the control shows the same evidence, else None.

    Compared is the evidence of the richest bettor, with both arms' scores corrected by ``scoring_bias``. The control does not speculate: if
    it shows the same fault, the scores are wrong.
    """
    comparison = compare_at_bias(captured, analysis.observed, analysis.wealth.winner, scoring_bias=scoring_bias)
    # It holds if the evidence is clearly stronger than the control's, by ``needed`` standard errors, or the control has none.
    if comparison is None or comparison.holds:
        return None
    return _say_invalid(
        captured, analysis, f"evidence {analysis.evidence}, but the control shows the same: {comparison}, {comparison.needed:g} needed"
    )


def _say_invalid(captured: Captured, analysis: _Analysis, headline: str) -> Verdict:
    """Return INVALID for an alarm due to wrong scores, as ``headline`` says, with its evidence."""
    return say(
        captured,
        Outcome.INVALID,
        headline,
        short=("likely: decoding and scoring differ (cache precision, template, order of temperature and truncation)",),
        evidence=_evidence(analysis),
        cell=_cell(analysis.wealth),
        promise=_sampled_tokens(analysis),
        figures=_sampling_figures(analysis),
    )


def _describe_noise(gathered: SamplingData) -> str:
    """Return the noise between reported and scored log-probabilities, in words."""
    calibration = gathered.calibration
    if calibration is None or calibration.noise is None:
        return "logit noise unknown: the baseline reported no log-probabilities"
    warning = "" if calibration.noise <= NORMAL_UP_TO else f", above the {NORMAL_UP_TO:g} of a sound scorer"
    measured = f"logit noise {calibration.noise:.4f} nats, reported against scored over {calibration.tokens:,} tokens"
    return f"{measured}{warning}{_describe_bias(calibration)}"


def _describe_bias(calibration: Calibration) -> str:
    """Return the power that relates scored to reported distribution, in words; empty without a bias."""
    if not calibration.is_biased:
        return ""
    power = f"{1.0 + calibration.scoring_bias:.3f} +- {calibration.scoring_bias_error:.1g}"
    return f"; scores biased: the reported distribution is the scored one to the power {power}"


def _say_suspicious(captured: Captured, analysis: _Analysis) -> Verdict | None:
    """Return SUSPICIOUS if the evidence is close to an alarm, else None.

    The verdict names the likeliest fault and asks for as many answers again: under a fault they raise the alarm, and on a correct server
    they take the evidence back. Callers exclude an alarm first.
    """
    wealth, barrier = analysis.wealth, -log(captured.alpha)
    if not is_suspicious(wealth.peak, float(wealth.log_wealth[-1]), captured.alpha):
        return None
    named = name(wealth, analysis.observed, analysis.acceptance)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"possible {named}: evidence {against(wealth.peak, captured.alpha)}",
        short=(*(() if analysis.acceptance is None else (f"drafts       {analysis.acceptance}",)), *guess(captured)),
        evidence=_evidence(analysis),
        settle="as many answers again: --specdec-continue RUN",
        cell=_cell(wealth),
        promise=_sampled_tokens(analysis),
        figures={**_sampling_figures(analysis), "log10_alarm": barrier / LN_10},
    )


def _fail_sampling(captured: Captured, analysis: _Analysis) -> Verdict:
    """Return FAIL with the fault named; callers ensure an alarm, and that the control does not show the same."""
    wealth, alarm = analysis.wealth, analysis.alarm
    assert alarm is not None
    named = name(wealth, analysis.observed, analysis.acceptance)
    winner = wealth.winner
    lines = [
        f"evidence     {against(wealth.peak, captured.alpha)} over {analysis.observed.tokens:,} tokens",
        f"best match   {winner.name}: {power_of_ten(winner.log_wealth)}",
    ]
    if analysis.acceptance is not None:
        lines.append(f"drafts       {analysis.acceptance}")
    return say(
        captured,
        Outcome.FAIL,
        f"{named}: sampled tokens do not follow the baseline's distribution; evidence {analysis.evidence}, alarm after {alarm:,} tokens",
        short=(*lines, *guess(captured)),
        evidence=_evidence(analysis),
        cell=_cell(wealth),
        names=named,
        promise=_sampled_tokens(analysis),
        figures=_sampling_figures(analysis),
    )


def _pass_sampling(captured: Captured, analysis: _Analysis) -> Verdict:
    """Return PASS with the faults ruled out, or INCONCLUSIVE if none is.

    A fault is ruled out if this run would have caught it. A control passes without such claims: they take time to compute, and no test
    reports a control that passes.
    """
    if captured.is_control:
        headline = f"{analysis.observed.tokens:,} sampled tokens checked"
        return say(
            captured, Outcome.PASS, headline, evidence=_evidence(analysis), cell=_cell(analysis.wealth), figures=_sampling_figures(analysis)
        )
    sensitivity = estimate_sensitivity(analysis.observed, analysis.wealth, -log(captured.alpha), analysis.gathered.draft_distribution)
    figures = {**_sampling_figures(analysis), **sensitivity.figures}
    evidence = (*_evidence(analysis), *sensitivity.would_have_shown)
    if sensitivity.enough:
        return say(
            captured,
            Outcome.PASS,
            str(sensitivity),
            evidence=evidence,
            rules_out=str(sensitivity),
            cell=_cell(analysis.wealth) + ("" if sensitivity.leaks else ", lenient acceptance untested"),
            promise=_sampled_tokens(analysis),
            figures=figures,
        )
    needed = sensitivity.tokens_needed
    informative = f"{analysis.observed.distribution.information:,.0f} informative tokens of {analysis.observed.tokens:,}"
    return say(
        captured,
        Outcome.INCONCLUSIVE,
        f"not enough evidence: even gross faults would be missed ({informative})",
        short=(f"sensitivity  {sensitivity}",),
        evidence=evidence,
        settle=_describe_need(needed, analysis.gathered),
        cell=_cell(analysis.wealth),
        promise=_sampled_tokens(analysis),
        figures=figures,
    )


def _describe_need(needed: int | None, gathered: SamplingData) -> str:
    """Return the tokens or prompts needed to decide, in words.

    ``needed`` is the number of tokens, or None if no number of tokens like these is enough. New seeds are asked for if answers were left
    out because their seeds were repeated, since more of those would be left out as well.
    """
    if needed is None:
        return "prompts that leave a choice, such as open text"
    again = any(line.endswith(SEED_AGAIN) for line in gathered.skipped)
    return f"about {needed:,} sampled tokens like these" + (", each request with a seed of its own" if again else "")


def _evidence(analysis: _Analysis) -> tuple[str, ...]:
    """Return the lines of evidence for a report: on tokens, drafts and scores, on the evidence, and last on the richest bettors."""
    gathered, observed = analysis.gathered, analysis.observed
    unknown = f"draft distribution unknown: {gathered.draft_distribution}" if observed.q is None else "draft distribution known"
    windows, log_end = _describe_windows(observed), float(analysis.wealth.log_wealth[-1])
    ranked = sorted(analysis.wealth.bettors, key=lambda bettor: -bettor.log_wealth)[:MOST_BETTORS]
    return (
        f"{observed.tokens:,} tokens, {gathered.answers:,} answers, {observed.distribution.information:,.0f} informative (sum Var log p)",
        f"{unknown}; {windows}",
        _describe_noise(gathered),
        *((str(gathered.repeats),) if gathered.repeats is not None else ()),
        *gathered.skipped,
        *((str(analysis.acceptance),) if analysis.acceptance is not None else ()),
        f"evidence against a correct sampler: {analysis.evidence} at its highest, {power_of_ten(log_end)} at the end",
        *(f"{power_of_ten(bettor.log_wealth)} for {bettor.name!r} ({bettor.fault.value})" for bettor in ranked),
    )


def _describe_windows(observed: Observed) -> str:
    """Return the source of the verify windows, the tokens of each verify step, in words; ``implied`` ones follow from the drafts."""
    if observed.slots.known.any():
        return "windows follow from the drafts" if observed.slots.implied else "windows known"
    return "windows unknown" if observed.q is None else "windows unknown, their chances follow from both distributions"


def _sampled_tokens(analysis: _Analysis) -> SampledTokens:
    """Return the number of tokens, and the evidence, for reports.

    The curve shows the evidence over the tokens: the highest power of ten in each of up to 60 equal parts.
    """
    wealth = analysis.wealth
    parts = np.array_split(wealth.log_wealth / LN_10, min(_CURVE_PARTS, len(wealth.log_wealth)) or 1)
    return SampledTokens(
        tokens=analysis.observed.tokens,
        log10_wealth=float(wealth.peak / LN_10),
        curve=tuple(round(float(part.max()), 2) for part in parts if part.size),
        best_bettor=wealth.winner.fault.value,
    )


def _sampling_figures(analysis: _Analysis) -> Mapping[str, float]:
    """Return the figures of an analysis for machines, by name."""
    figures = {
        "tokens": analysis.observed.tokens,
        "informative_tokens": analysis.observed.distribution.information,
        "log10_wealth": analysis.wealth.peak / LN_10,
        "log10_wealth_at_end": float(analysis.wealth.log_wealth[-1]) / LN_10,
    }
    if analysis.alarm is not None:
        figures["tokens_to_alarm"] = analysis.alarm
    if analysis.acceptance is not None:
        figures |= {
            "verified_draft_tokens": analysis.acceptance.slots,
            "acceptance_observed": analysis.acceptance.observed,
            "acceptance_expected": analysis.acceptance.expected,
        }
    return figures


def _cell(wealth: WealthProcess) -> str:
    return f"evidence {power_of_ten(wealth.peak)}"
