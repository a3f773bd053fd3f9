"""Greedy: every token emitted at temperature 0 is the baseline's choice, up to a tolerance and to near-ties that noise explains.

A token's gap is how far, in nats, it lies below the best one by the baseline's scores: 0 if it is that one, a near-tie up to the tolerance,
and beyond it wrong. ``tally`` has the gaps of the judged arm, the speculative server, and of ``peers``, the baseline's own boots.

Presence and frequency penalties and logit biases add a known number of nats to a token's logit, so the gaps between listed tokens are exact
under them. Unlisted tokens can only understate a gap. A repetition penalty multiplies the logit itself and is not modelled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy_diagnosis
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy_diagnosis import describe_divergence
from pytest_specdec.judge.greedy_gap import DifferenceKind, answer_lengths, scored_answers
from pytest_specdec.judge.greedy_tally import greedy_tokens, tally_tokens
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.tolerance import STATED, describe_jumps, describe_noise, describe_remedy
from pytest_specdec.judge.verdicts import LN_10, against, guess, number_of, quote, say
from pytest_specdec.judge.verify_noise import gated_noise
from pytest_specdec.model.pair import SCORER
from pytest_specdec.model.promise import CheckedTokens
from pytest_specdec.model.verdict import Example, Finding, Outcome, Symptom
from pytest_specdec.stats.near_ties import wealth
from pytest_specdec.stats.request_params import penalties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.greedy_tally import GreedyTally, ScoredToken
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["LEAST_TOKENS", "is_by_wrong_lengths", "is_by_wrong_tokens", "judge", "judge_scores"]

_FAR = 1.0
"""Nats below the best token that hardly anybody takes for numerics."""

NEAR_TIES = "near-ties fall on the other side more often than noise explains"
UNEXPLAINED = "answer lengths differ from the baseline's with no wrong token"
LEAST_TOKENS = 200
"""Scored tokens that a pass needs: 200 rule out wrong-token rates above 2.3 %."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on the tokens emitted at temperature 0.

    A server failure, a refusal, wrong endings and an engine that cannot score come first, then the scores (:func:`judge_scores`).

    Each token has to be the baseline's choice after the arm's own prefix, up to noise. Its gap is max_v l(v) - l(x), for log-probabilities
    l of the baseline with the request's penalties and biases added. Tokens with a gap above the tolerance are counted, and answer lengths
    that no near-tie explains; the counts are compared with those of the baseline's own boots (stats/excess.py). One is proof if the run has
    shown that rounding never moves a token of its servers so far. A count too high for noise and too low for an alarm is SUSPICIOUS.
    Smaller gaps fail only if a bet against logit noise alarms (stats/near_ties.py). INCONCLUSIVE if tokens are few or the engine gives no
    scores, even if all strings are equal.
    """
    return server_failure(captured) or refusal(captured) or check_endings(captured) or unscorable(captured) or judge_scores(captured)


def is_by_wrong_tokens(verdict: Verdict) -> bool:
    """Return True if a failure of :func:`judge` is by wrong tokens.

    Callers then name it by where these tokens are. Answers that fail by near-ties or wrong ends may hold a few such tokens too, as many as
    noise explains, and these name nothing. A failure by wrong tokens is the only one with an example of another text.
    """
    return verdict.example is not None and verdict.example.symptom is Symptom.TEXT


def is_by_wrong_lengths(verdict: Verdict) -> bool:
    """Return whether a failure of :func:`judge` is by answer lengths alone."""
    return verdict.names == UNEXPLAINED


def judge_scores(captured: Captured) -> Verdict:
    """Return the first applicable verdict on the scored tokens.

    INVALID if scores are of other tokens than were answered, or if the arm has none. Then come a baseline too noisy to judge by, wrong
    tokens, answers without scores, near-ties, missing drafts, and a gate on the verify kernel's noise. Without any of these it is PASS, or
    INCONCLUSIVE for few tokens.
    """
    try:
        tally = tally_tokens(captured)
        rounds = [tally_tokens(repeat) for repeat in captured.repeats]  # the requests sent again, to settle an open count
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    if not any(answer.positions for answer in tally.answers):
        return say(captured, Outcome.INVALID, f"no token of {captured.arm} was scored under the baseline")
    # Each round's wrong tokens, beside those of the baseline's boots, join the evidence of the first count.
    tally = replace(tally, repeats=tuple(again.allowed.count_round(again.events, len(again.gaps)) for again in rounds))
    gate = gated_noise(captured, captured.alpha / 2.0)
    # The budget pays two tests at alpha, of wrong tokens and of near-ties. With the gate's there are three, which at half of it cost less.
    if gate is not None:
        captured = replace(captured, alpha=captured.alpha / 2.0)
        tally = replace(tally, gate=gate)
    return (
        _check_baseline_noise(captured, tally)
        or _judge_wrong_tokens(captured, tally)
        or _check_all_scored(captured, tally)
        or _check_near_ties(captured, tally)
        or speculating(captured)
        or _check_verify_noise(captured, tally)
        or _pass_greedy(captured, tally)
    )


def _check_baseline_noise(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Return INVALID for a baseline too noisy to judge by; None otherwise.

    Its calibration is invalid. Or too many of its own tokens lie beyond the tolerance: these may then be at odds with its own scores.
    """
    if tally.allowed.trustworthy:
        return None
    largest = max((gap for answer in tally.peers for gap in answer.gaps), default=0.0)
    noise = tally.allowed.calibration.noise or 0.0
    headline = _describe_contradiction(captured, tally) if tally.allowed.calibration.valid else ""
    if not headline:
        cause = "the baseline does not repeat itself" + _describe_other_scorer(captured)
        headline = f"{cause}: logit noise {noise:.3f} nats, largest gap between its boots {largest:.3g} nats"
    return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=_greedy_figures(tally))


def _describe_contradiction(captured: Captured, tally: GreedyTally) -> str:
    """Return a headline for a baseline at odds with its own scores.

    Callers ensure that some token of ``peers`` has a gap. If both boots give one answer where the largest gap is, the baseline repeats a
    token that is not the best by its scores. Empty if they differ there, or for one boot: it may then just not repeat itself.
    """
    boots = [{answer.key: answer.choice.token_ids for answer in boot.answers} for boot in (captured.baseline, captured.control) if boot]
    worst = max(tally.peers, key=lambda answer: max(answer.gaps, default=0.0))
    if len({boot.get(worst.answer.key) for boot in boots}) != 1 or len(boots) == 1:
        return ""
    near_ties, tokens = _near_ties(tally.peers), _scored_tokens(tally.peers)
    off = f"{near_ties:,} of {tokens:,} of its own tokens are not the best, by up to {max(worst.gaps):.3g} nats"
    return f"the baseline repeats itself, but {_explain_contradiction(captured, tally)}: {off}"


def _explain_contradiction(captured: Captured, tally: GreedyTally) -> str:
    """Return a clause on why the baseline's tokens are not the best by its scores.

    If some requests have penalties or biases, the baseline ignores them, as it does if its tokens are the best without them. Or else it
    counts them over other tokens than its engine is known for (``penalty_window``). A separate scorer may be another cause.
    """
    or_scorer = _describe_other_scorer(captured)
    if not any(penalties(request.body).adds for request in captured.workload.requests):
        return f"its greedy tokens are not its scores' best ones{or_scorer}"
    unpenalised = [answer for boot in captured.baseline_boots for answer in scored_answers(boot, captured.scores.get(boot.arm, ()))]
    ignored = greedy_diagnosis.ignored_penalties(captured, tally.peers, raw=unpenalised, gap=STATED)  # STATED is the least tolerance
    return ignored or f"its penalties are not those that its engine is known for, over {captured.penalty_window}{or_scorer}"


def _describe_other_scorer(captured: Captured) -> str:
    """Return a clause that blames a separate scoring server; empty without one."""
    return ", or the scorer serves other weights" if SCORER in captured.capabilities else ""


def _judge_wrong_tokens(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Return FAIL for more wrong tokens than the baseline's boots explain.

    ``events`` counts wrong tokens and unexplained lengths of answers; ``repeats`` has the counts of rounds with the requests sent again.
    SUSPICIOUS if they are too many for noise and too few for an alarm (``is_open``), and None if noise explains them.
    """
    events, tokens = tally.events, len(tally.gaps)
    if tally.allowed.is_wrong(events, tokens, captured.alpha, tally.repeats):
        return _fail_greedy(captured, tally) if tally.wrong else _fail_unexplained(captured, tally)
    if not tally.allowed.is_open(events, tokens, tally.repeats):
        return None
    evidence = tally.allowed.log_evidence(events, tokens, tally.repeats)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"{events:,} of {tokens:,} tokens lie further below the best than noise explains, {tally.allowed.peer_excess}; "
        f"evidence {against(evidence, captured.alpha)}; {_describe_tally(tally)}",
        short=_describe_widest(captured, tally) if tally.wrong else (),
        evidence=(*_evidence(captured, tally), *_list_wrong_tokens(tally.wrong)),
        settle=describe_remedy(captured),
        cell=f"{events:,} of {tokens:,} tokens doubtful",
        figures=_greedy_figures(tally),
    )


def _fail_greedy(captured: Captured, tally: GreedyTally) -> Verdict:
    """Return FAIL, named by the wrong tokens' places in verify steps."""
    wrong, name = tally.wrong, _name_fault(captured, tally)
    earliest, widest = min(wrong, key=lambda token: token.order), _widest_token(wrong)
    far = sum(token.gap > _FAR for token in wrong)
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(wrong):,} of {_scored_tokens(tally.answers):,} tokens wrong, {far:,} by more than {_FAR:g} nat; "
        f"{_describe_tally(tally)}; "
        f"widest: request {widest.scored.answer.request_id}, token {widest.index + 1} of {len(widest.scored.gaps)}; "
        f"earliest: request {earliest.scored.answer.request_id}, token {earliest.index + 1}",
        short=(*_describe_widest(captured, tally), *guess(captured)),
        evidence=(*_evidence(captured, tally), *_list_wrong_tokens(wrong)),
        cell=f"{len(wrong):,} of {_scored_tokens(tally.answers):,} tokens wrong",
        names="" if name == greedy_diagnosis.UNNAMED else name,
        example=_choose_example(captured, tally),
        figures=_greedy_figures(tally),
    )


def _choose_example(captured: Captured, tally: GreedyTally) -> Example:
    """Return the wrong token for a client to reproduce.

    It has the widest gap among those before which the answer equals the baseline's, or among all if there are none. A client can only
    compare texts, and after a near-tie these differ without a fault.
    """
    baseline = {answer.key: answer.choice.token_ids for answer in captured.baseline.answers}
    after_baseline = [
        token
        for token in tally.wrong
        if baseline.get(token.scored.answer.key, ())[: token.index] == token.scored.answer.choice.token_ids[: token.index]
    ]
    token = _widest_token(after_baseline or tally.wrong)
    return Example(
        symptom=Symptom.TEXT,
        request_id=token.scored.answer.request_id,
        pass_index=token.scored.answer.pass_index,
        token=token.index,
        limit_nats=tally.allowed.gap,
    )


def _widest_token(wrong: Sequence[ScoredToken]) -> ScoredToken:
    """Return the wrong token with the widest gap, the earliest of equal ones.

    Reports show this one since the earliest of all is often the most doubtful.
    """
    return min(wrong, key=lambda token: (-token.gap, *token.order))


def _describe_widest(captured: Captured, tally: GreedyTally) -> tuple[str, ...]:
    """Return lines on the wrong token with the widest gap."""
    widest = _widest_token(tally.wrong)
    baseline = {answer.key: answer for answer in captured.baseline.answers}.get(widest.scored.answer.key)
    return describe_divergence(widest.scored, widest.index, baseline, tally.allowed)


def _fail_unexplained(captured: Captured, tally: GreedyTally) -> Verdict:
    """Return FAIL for unexplained answer lengths without any wrong token.

    Unexplained is a length unlike the baseline's after the same tokens, where an end is no near-tie.
    """
    differences = tally.unexplained_lengths
    earliest = min(differences, key=lambda difference: (difference.index, *difference.key))
    where = f"earliest: request {earliest.key[0]}, after token {earliest.index}"
    return say(
        captured,
        Outcome.FAIL,
        f"{UNEXPLAINED}: {len(differences)} of {len(tally.answers)} answers; {where}",
        evidence=_evidence(captured, tally),
        cell=number_of(len(differences), "wrong length"),
        names=UNEXPLAINED,
        figures=_greedy_figures(tally),
    )


def _check_all_scored(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Return INVALID if an unscored answer differs from the baseline's, else None; an equal one needs no score of its own."""
    scored = {scored.answer.key for scored in tally.answers}
    baseline = {answer.key: answer.choice.token_ids for answer in captured.baseline.answers if answer.ok}
    differing = [a for a in captured.speculative.answers if a.ok and a.key not in scored and baseline.get(a.key, ()) != a.choice.token_ids]
    if not differing:
        return None
    headline = f"{len(differing)} answers differ from the baseline's and were not scored; first: request {differing[0].request_id}"
    return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=_greedy_figures(tally))


def _name_fault(captured: Captured, tally: GreedyTally) -> str:
    """Return the fault's name by the places of wrong tokens.

    Ignored penalties are tried first. UNNAMED if no name fits, and for the control, which does not speculate.
    """
    if captured.is_control:
        return greedy_diagnosis.UNNAMED
    if any(penalties(request.body).adds for request in captured.workload.requests):
        unpenalised = scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
        if ignored := greedy_diagnosis.ignored_penalties(captured, tally.answers, unpenalised, tally.allowed.gap):
            return ignored
    return greedy_diagnosis.fault_name(captured, tally.answers, tally.allowed.gap)


def _check_near_ties(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Return FAIL if near-ties flip more often than the tolerated noise explains.

    A near-tie flips if a token just below the best one is emitted. A bet gains if there are more flips than noise of ``allowed.flips``
    makes; tokens beyond the tolerance were judged before and are left out. INVALID if it also alarms for the baseline's own boots, which
    may just be at odds with their scores. None without an alarm.
    """
    allowed, alpha = tally.allowed, captured.alpha
    bet = wealth(greedy_tokens(captured, tally.answers, allowed.gap), allowed.flips)
    baseline_bet = wealth(greedy_tokens(captured, tally.peers, allowed.gap), allowed.flips)
    if not bet.alarms(alpha):
        return None
    near_ties, tokens = _near_ties(tally.answers), _scored_tokens(tally.answers)
    peer_near_ties, peer_tokens = _near_ties(tally.peers), _scored_tokens(tally.peers)
    figures = _greedy_figures(tally) | {"near_tie_log10_evidence": bet.peak / LN_10, "near_tie_sigma_nats": allowed.flips.sigma}
    if baseline_bet.alarms(alpha):
        often = f"the baseline's own boots differ at near-ties more often than noise explains: {peer_near_ties:,} of {peer_tokens:,} tokens"
        headline = _describe_contradiction(captured, tally) or often
        return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=figures)
    return say(
        captured,
        Outcome.FAIL,
        f"{NEAR_TIES}: {near_ties:,} of {tokens:,} tokens; evidence {against(bet.peak, alpha)}; {_describe_tally(tally)}",
        short=(
            f"baseline     {peer_near_ties:,} of {peer_tokens:,} tokens between its own boots",
            f"allowed      noise of {tally.allowed.flips.sigma:.3g} nats between two candidates ({tally.allowed.sigma_reason})",
        ),
        evidence=_evidence(captured, tally),
        cell=f"{near_ties:,} near-ties",
        names=NEAR_TIES,
        figures=figures,
    )


def _check_verify_noise(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Return FAIL for a verify kernel surely noisier than its gate.

    The gate is set in the config; None without one, or if it is not surely missed.
    """
    if tally.gate is None or not tally.gate.missed:
        return None
    return say(
        captured,
        Outcome.FAIL,
        tally.gate.headline,
        short=("lawful      noise alone makes no token wrong; the config gates it", f"to change   {tally.gate.gate.source}"),
        evidence=_evidence(captured, tally),
        cell="verify kernel too noisy",
        names=Finding.TOO_NOISY,
        finding=Finding.TOO_NOISY,
        figures=_greedy_figures(tally),
    )


def _pass_greedy(captured: Captured, tally: GreedyTally) -> Verdict:
    """Return PASS, or INCONCLUSIVE if fewer than ``LEAST_TOKENS`` tokens were checked."""
    tokens, gap = _scored_tokens(tally.answers), tally.allowed.gap
    figures, evidence = _greedy_figures(tally), _evidence(captured, tally)
    distinct = len(tally.gaps)  # the alarm counts a repeated token once
    caught_rate = tally.allowed.ruled_out(distinct, captured.alpha)  # of wrong tokens spread evenly; below, of answers wrong throughout
    caught_share = tally.allowed.ruled_out_answers(answer_lengths(captured.workload, tally.answers), distinct, captured.alpha)
    undecided_gate = tally.gate.undecided if tally.gate else ""
    excess = tally.allowed.describe_excess(tally.events, distinct, tally.repeats)  # on tokens beyond the tolerance that noise explains
    if tokens < LEAST_TOKENS:
        return say(
            captured,
            Outcome.INCONCLUSIVE,
            f"not enough evidence: {tokens} tokens checked, none wrong; a wrong-token rate up to {caught_rate:.1%} would be missed",
            evidence=evidence,
            settle=f"{LEAST_TOKENS - tokens} more tokens",
            figures=figures,
        )
    return say(
        captured,
        Outcome.PASS,
        f"0 of {tokens:,} tokens wrong{excess}; {_describe_tally(tally)}{_describe_unjudged(captured)}{undecided_gate}",
        evidence=evidence,
        rules_out=f"{tokens:,} tokens checked; {tally.allowed.describe_ruled_out(caught_rate, caught_share)}. "
        f"Wrong: more than {gap:.3g} nats below the baseline's best token; {describe_noise(tally.allowed)}",
        cell=f"0 of {tokens:,} tokens wrong",
        promise=CheckedTokens(tokens=tokens),
        figures=figures | {"wrong_rate_ruled_out": caught_rate},
    )


def _scored_tokens(answers: Sequence[ScoredAnswer]) -> int:
    return sum(len(answer.gaps) for answer in answers)


def _near_ties(answers: Sequence[ScoredAnswer]) -> int:
    """Count the tokens that lie below the best one, by whatever gap."""
    return sum(gap > 0.0 for answer in answers for gap in answer.gaps)


def _describe_tally(tally: GreedyTally) -> str:
    """Return a clause on the answers unlike the baseline's, by kind of difference."""
    kinds = Counter(first.kind for first in tally.differences)
    classes = ", ".join(f"{kinds[kind]} {kind.value}" for kind in DifferenceKind if kinds[kind])
    return f"{len(tally.differences)} of {len(tally.answers)} answers differ as text" + (f" ({classes})" if classes else "")


def _describe_unjudged(captured: Captured) -> str:
    """Return a clause on requests without an answer; empty if all have one."""
    refusals = [answer for answer in captured.speculative.answers if is_refusal(answer)]
    silent = sum(not answer.ok for answer in captured.speculative.answers) - len(refusals)
    first = f", first {refusals[0].request_id}: {quote(refusals[0].error or '', 160)}" if refusals else ""
    parts = ((silent, "not answered (see liveness)"), (len(refusals), f"refused with a 4xx{first}"))
    return "".join(f"; {count} request{'s' * (count != 1)} {what}" for count, what in parts if count)


def _list_wrong_tokens(wrong: Sequence[ScoredToken], most: int = 50) -> list[str]:
    lines = [f"{token}: id {token.scored.positions[token.index].token_id}, gap {token.gap:.3g}" for token in wrong[:most]]
    return [*lines, *([f"and {len(wrong) - most:,} more wrong tokens"] if len(wrong) > most else [])]


def _evidence(captured: Captured, tally: GreedyTally) -> tuple[str, ...]:
    """Return the evidence lines common to all verdicts on scored tokens."""
    calibration = tally.allowed.calibration
    noise = (
        "unknown: no log-probabilities were reported"
        if calibration.noise is None
        else f"{calibration.noise:.4f} nats over {calibration.tokens:,} tokens"
    )
    unscored = sum(answer.ok for answer in captured.speculative.answers) - len(tally.answers)
    return (
        f"tolerance: {tally.allowed.gap:.4g} nats below the best token, {tally.allowed.reason}",
        f"noise: {noise}; {describe_jumps(tally.allowed)}",
        *([tally.gate.evidence] if tally.gate else []),
        f"checked: {_scored_tokens(tally.answers):,} tokens of {len(tally.answers)} answers, {unscored} answers not scored",
        f"between boots of the baseline: {_near_ties(tally.peers):,} of {_scored_tokens(tally.peers):,} tokens with a gap",
        f"{_describe_tally(tally)}{_describe_unjudged(captured)}",
        *(
            f"asked again: {count.events:,} of {count.tokens:,} tokens beyond the tolerance, "
            f"{count.peer_events:,} of {count.peer_tokens:,} of the baseline's"
            for count in tally.repeats
        ),
        *(f"differs: {d.key[0]}, pass {d.key[1]}, from token {d.index + 1}: {d.kind.value}" for d in tally.differences[:50]),
    )


def _greedy_figures(tally: GreedyTally) -> dict[str, float]:
    """Return the figures common to all verdicts on scored tokens, of which there is one at least."""
    gaps = [gap for answer in tally.answers for gap in answer.gaps]
    peer_gaps = [gap for answer in tally.peers for gap in answer.gaps]
    return {
        "tokens": float(len(gaps)),
        "answers": float(len(tally.answers)),
        "answers_differing": float(len(tally.differences)),
        "wrong_tokens": float(len(tally.wrong)),  # all with a gap above the tolerance
        "near_ties": float(sum(0.0 < gap <= tally.allowed.gap for gap in gaps)),
        "largest_gap_nats": max(gaps),
        "tolerance_nats": tally.allowed.gap,
        "tokens_beyond_noise": float(tally.events),  # those, repeated ones once, and unexplained lengths
        "baseline_tokens_beyond_noise": float(tally.allowed.peer_events),  # of its boots and of the calibration
        "noise_nats": tally.allowed.noise,
        "verify_noise_factor": tally.allowed.verify_factor,  # the verify kernel's noise over that of decoding
        "baseline_tokens": float(len(peer_gaps)),
        "baseline_near_ties": float(sum(gap > 0.0 for gap in peer_gaps)),
        "baseline_largest_gap_nats": max(peer_gaps, default=0.0),
        **(tally.gate.figures if tally.gate else {}),
    }
