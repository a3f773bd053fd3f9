"""Log-probabilities: the reported values are the baseline's, on the scale of the baseline's own.

Each reported log-probability is held against the baseline's score of the same token. Noise is the spread of their differences per logit, in
nats, estimated from squares. A jump is one token off by more than a limit, such as half a nat; distances are ``|reported - scored|`` of
tokens of middling probability. ``granted`` is the baseline's own noise; a verify kernel may be ``factor`` times as noisy, since it is
another kernel than decode's, and any arm as noisy as the ``floor``.

The reported numbers are checked, not the sampled tokens: servers have reported the draft's probabilities of correctly drawn tokens, and a
verifier with wrong numerics shows here long before its tokens do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import exp, isfinite, isnan, sqrt
from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_logprobs import IMPOSSIBLE, MIDDLING, check_echo, compare_with_baseline
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.logprob_lists import check_lists
from pytest_specdec.judge.prerequisites import refusal, speculating, unscorable
from pytest_specdec.judge.reported_logprobs import Place, reported_logprobs
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.promise import CheckedTokens
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.logprob_noise import squares
from pytest_specdec.stats.noise_comparison import (
    EXACT,
    TOLERATED,
    LogprobSample,
    compare,
    detectable_noise,
    jump_limit,
    tolerated_floor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.reported_logprobs import ReportedLogprobs, ReportedToken
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.noise_comparison import NoiseComparison

__all__ = ["LEAST_TOKENS", "judge"]


LEAST_TOKENS = 100
"""Tokens with an estimate of noise that a verdict needs from the arm and from the baseline."""
LATE = 256
"""Tokens of an answer after which the rest is also compared separately: among all tokens, a fault that begins late is hidden."""
WRONG = "reported log-probabilities or verifier numerics"
_PLACES = (Place.BONUS, Place.RECOVERED)
"""Places in the verify step whose tokens are compared separately too: they are few, and accepted tokens would hide a fault at them."""
_LEAST_AT_PLACE = 20
"""Tokens of a place with an estimate of noise that a comparison of its own needs."""
_SHOWN = 50
_CHANCE = 0.01
"""Probability up to which chance does not explain that all wrong tokens stand at one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogprobAnalysis:
    """The reported log-probabilities of the arm compared with those of the baseline."""

    arm: ReportedLogprobs
    baseline: ReportedLogprobs
    comparison: NoiseComparison
    alpha: float
    """Significance level of each of the two tests, that of noise and that of jumps."""
    exact: bool
    """Whether the run has shown that its servers never jump: one token off by half a nat is then proof."""

    @property
    def far(self) -> tuple[ReportedToken, ...]:
        """The arm's tokens of middling probability that are off by more than the limit."""
        return tuple(token for token in self.arm.tokens if token.middling and abs(token.delta) > self.comparison.limit)

    @property
    def wrong(self) -> bool:
        """True if noise or jumps exceed what is tolerated by more than chance explains.

        A single token is enough if it is too far off for any jump: by ``jump_limit``, half a nat or more, if the servers are exact and so
        never jump, else by 20 nats.
        """
        limit = jump_limit(self.comparison.granted, self.comparison.floor) if self.exact else IMPOSSIBLE
        if any(abs(token.delta) > limit for token in self.far):
            return True
        return min(self.comparison.p_jumps, self.comparison.p_noise) <= self.alpha


def judge(captured: Captured) -> Verdict:
    """Return the verdict on reported log-probabilities beside their scores.

    Failures of the server and refusals come first. Then it can FAIL because an answer does not echo its prompt or ends wrongly, because
    lists of most probable tokens are incomplete or out of order, or because log-probabilities are missing or do not match the tokens.
    INCONCLUSIVE if tokens are few or the engine gives no scores. In a workload without scores the baseline's reports stand in for them:
    those of prompts, and at temperature 0 those of the tokens that both arms answered.

    Two tests then compare the arm with the baseline (stats/noise_comparison.py). Noise fails if it exceeds the floor (.01 nats in single
    precision, .05 in half, .15 if one boot of the baseline both answered and scored), and also four times the baseline's, less for a noisy
    one. Jumps fail if more of the tokens of probability .02 to .98 are off by half a nat than of the baseline's. On exact servers .08 nats
    count, and a single token off by half a nat is enough; elsewhere a single one has to be off by 20 nats.
    """
    broken = server_failure(captured) or refusal(captured) or check_echo(captured) or check_endings(captured) or check_lists(captured)
    if broken is not None:
        return broken
    if not captured.workload.scored:
        return compare_with_baseline(captured)
    return unscorable(captured, needs_rejections=False) or _compare_logprobs(captured)


def _compare_logprobs(captured: Captured) -> Verdict:
    """Return the verdict on reported values beside scored ones.

    In this order: INVALID if the baseline has none to compare with, FAIL for answers whose log-probabilities do not match their tokens,
    INCONCLUSIVE if either arm has too few informative ones, of tokens that are not all but certain (``squares``). Then all tokens of the
    arm and some parts of them are compared, each at an equal share of alpha; the first wrong one is described. Missing drafts come last.
    """
    arm, baseline = reported_logprobs(captured, captured.arm), _baseline_logprobs(captured)
    if not baseline.tokens:
        why = baseline.unmatched[0] if baseline.unmatched else "none of its answers was scored"
        return say(captured, Outcome.INVALID, f"the baseline reported no log-probabilities to compare with: {why}")
    if arm.unmatched:
        return _fail_unmatched(captured, arm)
    fewest = min(len(arm.squares), len(baseline.squares))
    if fewest < LEAST_TOKENS:
        headline = f"not enough evidence: {fewest} informative log-probabilities, {LEAST_TOKENS} needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle=f"{LEAST_TOKENS - fewest} more such tokens")
    parts = tuple(_parts_to_compare(arm))
    of_all_tokens, *of_parts = [_analyse(captured, part, baseline, captured.alpha / len(parts)) for part in parts]
    wrong = [analysis for analysis in (of_all_tokens, *of_parts) if analysis.wrong]
    if wrong:
        return _fail_logprobs(captured, wrong[0], arm, is_only_wrong_part=len(wrong) == 1)
    return speculating(captured, needs_rejections=False) or _pass_logprobs(captured, of_all_tokens)


def _parts_to_compare(arm: ReportedLogprobs) -> Iterator[ReportedLogprobs]:
    """Yield all tokens, the late ones, and those of each place in the verify step.

    Each is compared by itself, since a fault at few tokens is hidden among all. A part without enough tokens is left out. Recovered tokens,
    those in place of a rejected draft token, are no random sample of all tokens, but their noise has the scale of any other token's.
    """
    yield arm
    late = arm.after(LATE)
    if len(late.squares) >= LEAST_TOKENS:
        yield late
    yield from (part for part in map(arm.at, _PLACES) if len(part.squares) >= _LEAST_AT_PLACE)


def _baseline_logprobs(captured: Captured) -> ReportedLogprobs:
    """Return the reported log-probabilities of one boot of the baseline.

    The arm's are compared with them. A boot scored by another boot is preferred, since the variant was scored by another server too:
    reports and scores of one boot share its noise. If the preferred boot has no scored token, the other boot's are returned.
    """
    arms = [boot.arm for boot in captured.baseline_boots]
    # An arm in scored_by was scored by its own boot. It is sorted last, since False comes before True.
    preferred, *others = (reported_logprobs(captured, arm) for arm in sorted(arms, key=lambda arm: arm in captured.scored_by))
    return next((reported for reported in (preferred, *others) if reported.tokens), preferred)


def _analyse(captured: Captured, arm: ReportedLogprobs, baseline: ReportedLogprobs, alpha: float) -> _LogprobAnalysis:
    """Return the comparison of ``arm`` with ``baseline``, each test at ``alpha``.

    The servers are exact if the baseline computes in single precision and none of its own tokens is off by more than .05 nats. The least
    noise that is tolerated depends on the precision, and on whether ``one_boot`` of the baseline both answered and scored.
    """
    capabilities = captured.capabilities.get(BASELINE)
    single = capabilities is not None and capabilities.single_precision
    # Jumps are counted over the run's calibration too, a sample of the baseline's answers with reported and scored values.
    distances = (*baseline.distances, *_calibration_distances(captured))
    exact = single and max(distances, default=0.0) <= EXACT
    comparison = compare(
        LogprobSample(squares=arm.squares, distances=arm.distances),
        LogprobSample(squares=_squares_between_boots(captured, baseline), distances=distances),
        tolerated_floor(single_precision=single, one_boot=captured.one_boot),
        exact=exact,
    )
    return _LogprobAnalysis(arm=arm, baseline=baseline, comparison=comparison, alpha=alpha, exact=exact)


def _squares_between_boots(captured: Captured, baseline: ReportedLogprobs) -> Sequence[float]:
    """Return the squared logit noise of the baseline, token by token.

    It is that of ``baseline``, the boot that is compared with. The calibration's stands in for it if that lacks the noise between boots.
    """
    # A boot that scored its own answers lacks it. A judged control, the second boot, has it if the first one scored its answers as well.
    lacks_boot_noise = captured.is_control and captured.scored_by == (baseline.arm,)
    if not lacks_boot_noise or not _calibration_distances(captured):
        return baseline.squares
    return squares((value - position.logprob, position) for value, position in captured.calibration if not isnan(position.logprob))


def _calibration_distances(captured: Captured) -> tuple[float, ...]:
    """Return distances of reported from scored values in the baseline's calibration, in nats.

    They are those of tokens of middling probability. Returns none if the baseline reports processed values, since the scores are raw.
    """
    capabilities = captured.capabilities.get(BASELINE)
    if capabilities is not None and not capabilities.raw_logprobs:
        return ()
    scored = ((value - position.logprob, position.logprob) for value, position in captured.calibration)
    return tuple(abs(delta) for delta, logprob in scored if MIDDLING[0] < exp(logprob) < MIDDLING[1])


def _fail_unmatched(captured: Captured, arm: ReportedLogprobs) -> Verdict:
    headline = f"requested log-probabilities missing or not matching the tokens in {len(arm.unmatched)} answers; first: {arm.unmatched[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=arm.unmatched, cell="missing", names="log-probabilities not reported")


def _fail_logprobs(captured: Captured, analysis: _LogprobAnalysis, arm: ReportedLogprobs, *, is_only_wrong_part: bool) -> Verdict:
    """Return FAIL, named by a place in the verify step if only that is off.

    ``arm`` has all tokens of the judged arm, ``analysis.arm`` those of the wrong part, which may be all. A part selected by its place names
    the fault by that if no other part is wrong. Else the place counts that all tokens off share, beyond chance.
    """
    # Off are jumps. Without any, noise is at fault: off are then tokens further than three times the baseline's, and than the floor.
    least_distance = max(3.0 * analysis.comparison.granted, analysis.comparison.floor)
    off = analysis.far or tuple(token for token in analysis.arm.tokens if abs(token.delta) > least_distance)
    place = (analysis.arm.place if is_only_wrong_part else None) or _common_place(off, arm.tokens)
    name = WRONG if place is None else f"reported log-probabilities of {place}s"
    worst = max(analysis.arm.tokens, key=lambda token: abs(token.delta))
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: off by {_rms(analysis.arm.tokens):.3g} nats rms over {len(analysis.arm.tokens):,} tokens{analysis.arm.words}; "
        f"the baseline by {_rms(analysis.baseline.tokens):.3g}. The sampled tokens are judged apart",
        short=(
            f"worst        {worst}",
            f"noise        {_describe_noise(analysis.comparison)}",
            f"wrong        {_describe_jumps(analysis)}; {_describe_places(off)}",
        ),
        evidence=_evidence(analysis),
        cell=f"{_rms(analysis.arm.tokens):.2g} nats off",
        names=name,
        figures=_logprob_figures(analysis),
    )


def _pass_logprobs(captured: Captured, analysis: _LogprobAnalysis) -> Verdict:
    """Return PASS on all tokens, with the least noise that would have failed."""
    informative = len(analysis.arm.squares)  # tokens that are not all but certain: only these show noise
    least_noise = detectable_noise(informative, analysis.baseline.squares, analysis.comparison.floor, analysis.alpha)
    return say(
        captured,
        Outcome.PASS,
        f"{len(analysis.arm.tokens):,} reported log-probabilities off by {_rms(analysis.arm.tokens):.2g} nats rms; "
        f"the baseline by {_rms(analysis.baseline.tokens):.2g}{_describe_kernel(analysis.comparison)}",
        evidence=_evidence(analysis),
        rules_out=f"{informative:,} tokens checked; logit noise of {least_noise:.2g} nats would have been caught (99%)",
        cell=f"off by {_rms(analysis.arm.tokens):.2g} nats",
        promise=CheckedTokens(tokens=len(analysis.arm.tokens)),
        figures=_logprob_figures(analysis),
    )


def _common_place(tokens: Sequence[ReportedToken], everywhere: Sequence[ReportedToken]) -> Place | None:
    """Return the place in the verify step that all ``tokens`` share, beyond chance.

    It is chance if as many tokens, drawn from ``everywhere``, all tokens of the arm, would all stand at that place with a probability over
    1 %. Tokens of unknown windows are left out. None without such a place.
    """
    places = [token.place for token in tokens if token.place is not None]
    all_places = [token.place for token in everywhere if token.place is not None]
    if not places or len(set(places)) > 1:
        return None
    return places[0] if (all_places.count(places[0]) / len(all_places)) ** len(places) <= _CHANCE else None


def _describe_places(tokens: Sequence[ReportedToken]) -> str:
    """Return how many of ``tokens`` stand at each place in the verify step."""
    places = Counter(token.place for token in tokens if token.place is not None)
    if not places:
        return "windows unknown"
    return ", ".join(f"{count:,} of {places.total():,} are {place}s" for place, count in places.most_common())


def _rms(tokens: Sequence[ReportedToken]) -> float:
    """Return the root mean square of reported minus scored, in nats; infinite differences are left out."""
    deltas = [token.delta for token in tokens if isfinite(token.delta)]
    return sqrt(sum(delta * delta for delta in deltas) / len(deltas)) if deltas else 0.0


def _describe_kernel(comparison: NoiseComparison) -> str:
    """Return a clause on a verify kernel noisier than decode; else nothing.

    Up to 1.3 times decode's noise is not worth a word, since chance and other batch shapes bring that too.
    """
    times = comparison.kernel
    return f"; the verify kernel is {times:.1f} times as noisy as decode" if times is not None and times > TOLERATED else ""


def _describe_noise(comparison: NoiseComparison) -> str:
    """Return the noise of both arms, and what the arm may have, in words."""
    return (
        f"{comparison.noise:.3g} nats per logit, {comparison.granted:.3g} in the baseline{_describe_kernel(comparison)}; "
        f"lawful are {max(comparison.factor * comparison.granted, comparison.floor):.3g}, p = {comparison.p_noise:.2g}"
    )


def _describe_jumps(analysis: _LogprobAnalysis) -> str:
    """Return the jumps of both arms in words.

    The arm may be ``factor`` times as noisy as the baseline, so that the baseline's jumps are counted from a limit as many times lower.
    """
    comparison = analysis.comparison
    return (
        f"{comparison.jumps:,} of {len(analysis.arm.distances):,} tokens off by more than {comparison.limit:.2g} nats, "
        f"{comparison.other_jumps:,} of the baseline's by {comparison.limit / comparison.factor:.2g}, p = {comparison.p_jumps:.2g}"
    )


def _evidence(analysis: _LogprobAnalysis) -> tuple[str, ...]:
    """Return the evidence lines of a verdict, PASS or FAIL.

    Informative tokens are not all but certain, so that they show noise. Jumps are listed last; exact servers never make any.
    """
    return (
        f"logit noise, reported against scored: {_describe_noise(analysis.comparison)}",
        f"{len(analysis.arm.squares):,} informative tokens, {len(analysis.baseline.squares):,} of {analysis.baseline.arm}",
        f"single tokens at probabilities of 2% to 98%: {_describe_jumps(analysis)}"
        + ("; one off by half a nat is proof: no server here jumps" if analysis.exact else ""),
        *(str(token) for token in analysis.far[:_SHOWN]),
    )


def _logprob_figures(analysis: _LogprobAnalysis) -> dict[str, float]:
    """Return the figures of a verdict, PASS or FAIL."""
    return {
        "tokens": len(analysis.arm.tokens),
        "noise_nats": analysis.comparison.noise,
        "granted_nats": analysis.comparison.granted,
        **({} if analysis.comparison.kernel is None else {"verify_noise_times": analysis.comparison.kernel}),
        "rms_nats": _rms(analysis.arm.tokens),
        "baseline_rms_nats": _rms(analysis.baseline.tokens),
        "tokens_far_off": len(analysis.far),
    }
