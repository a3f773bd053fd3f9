"""Greedy: every token emitted at temperature 0 is the baseline's choice, up to a tolerance and to near-ties that noise explains.

Presence and frequency penalties and logit biases add a known number of nats to a token's logit, so the gaps between listed tokens are exact
under them. Unlisted tokens can only understate a gap. A repetition penalty multiplies the logit itself and is not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.judge import greedy_diagnosis
from pytest_specdec.judge.ending import ended
from pytest_specdec.judge.greedy_diagnosis import divergence
from pytest_specdec.judge.greedy_gap import DifferenceKind, difference, forced
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import refusal, refused, speculating, unscorable
from pytest_specdec.judge.tolerance import STATED, tolerance
from pytest_specdec.judge.verdicts import LN_10, against, guess, quoted, say
from pytest_specdec.model.pair import SCORER
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions
from pytest_specdec.stats.near_ties import GreedyTokens, wealth
from pytest_specdec.stats.penalties import adjustment
from pytest_specdec.stats.request_params import NONE, penalties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import FirstDifference, ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.penalty_window import PenaltyWindow
    from pytest_specdec.model.transcript import Answer, Position, Score, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.penalties import Penalties
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["LEAST_TOKENS", "choices", "judge", "penalised"]

_TIE = 1e-5
"""Nats: scores are stored with seven significant digits."""


def choices(captured: Captured, answers: Sequence[ScoredAnswer]) -> GreedyTokens:
    """Return the choices at all tokens of ``answers``, each prefix once: the same one again brings the same noise again."""
    positions = [position for position in _once(captured, answers) if position.top_ids]
    widest = max((len(position.top_ids) for position in positions), default=1)
    gaps = np.full((len(positions), widest), np.inf)
    chosen = np.full(len(positions), -1, dtype=np.int64)
    for row, position in enumerate(positions):
        below = position.top_logprobs[0] - np.array(position.top_logprobs)
        gaps[row, : len(below)] = np.where(below > _TIE, below, 0.0)
        if position.token_id in position.top_ids:
            chosen[row] = position.top_ids.index(position.token_id)
    return GreedyTokens(gaps=gaps, chosen=chosen)


def _once(captured: Captured, answers: Sequence[ScoredAnswer]) -> Iterator[Position]:
    asks = {request.id: request.asks for request in captured.workload.requests}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for each in answers:
        prompt = asks.get(each.answer.request_id, each.answer.request_id)
        ids = each.answer.choice.token_ids
        for index, position in enumerate(each.positions):
            if (prompt, ids[:index]) not in seen:
                seen.add((prompt, ids[:index]))
                yield position


def penalised(
    positions: Sequence[Position], penalties: Penalties, window: PenaltyWindow, prompt: Sequence[int] = ()
) -> tuple[Position, ...]:
    """Return the ``positions`` of an answer to ``prompt`` with what ``penalties`` add, of which ``window`` says what they count.

    An unlisted token counts with the upper bound of its log-probability. The top tokens stay sorted by falling log-probability.
    The numbers are no longer normalised: differences are all they are good for.
    """
    if not penalties.adds or not positions:
        return tuple(positions)
    ids = np.full((len(positions), max(1, *(len(position.top_ids) for position in positions))), -1, dtype=np.int64)
    for row, position in enumerate(positions):
        ids[row, : len(position.top_ids)] = position.top_ids
    added = adjustment(replace(penalties, repetition=1.0), window, prompt, [position.token_id for position in positions], ids)
    return tuple(map(_raised, positions, added.top_tokens, added.chosen.tolist()))


def _raised(position: Position, top_tokens: Floats, chosen: float) -> Position:
    raised = [
        (logprob + more, token) for token, logprob, more in zip(position.top_ids, position.top_logprobs, top_tokens.tolist(), strict=False)
    ]
    raised.sort(key=lambda pair: -pair[0])
    return replace(
        position,
        logprob=_most(position) + chosen,
        top_ids=tuple(token for _, token in raised),
        top_logprobs=tuple(logprob for logprob, _ in raised),
    )


def _most(position: Position) -> float:
    unlisted = math.isnan(position.logprob) and bool(position.top_logprobs)
    return min(position.top_logprobs) if unlisted else position.logprob


NEAR_TIES = "near-ties fall on the other side more often than noise explains"
UNEXPLAINED = "answer lengths differ from the baseline's with no wrong token"
LEAST_TOKENS = 200
"""Scored tokens that a pass needs: 200 rule out wrong-token rates above 2.3 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyTally:
    """Gaps of one arm's tokens under the baseline."""

    answers: tuple[ScoredAnswer, ...]
    peers: tuple[ScoredAnswer, ...]
    """Those of the baseline's other boots."""
    allowed: Tolerance
    differences: tuple[FirstDifference, ...]
    """From the baseline's own answers; each has to be a tie within tolerance or a wrong token, or is unexplained."""

    @property
    def wrong(self) -> list[tuple[ScoredAnswer, int]]:
        """Tokens with a gap above tolerance: the answer and the index in it."""
        return [(answer, index) for answer in self.answers for index, gap in enumerate(answer.gaps) if gap > self.allowed.gap]


def judge(captured: Captured) -> Verdict:
    """Return whether the baseline, given the arm's own prefixes, would have chosen every token that the arm emitted.

    One gap max_v l(v) - l(x) above the tolerance fails. Smaller gaps fail only when a bet on them reaches
    evidence of 1 : 1/alpha of the captured share against logit noise (stats/near_ties.py). An answer that differs from the baseline's
    without a wrong token fails too, unless the first difference is a tie or an end within tolerance. Presence and frequency penalties
    and biases are the baseline's choice too. INCONCLUSIVE for few tokens, and where the engine gives no scores, whatever the strings are.
    """
    return server_failure(captured) or refusal(captured) or ended(captured) or unscorable(captured) or _scored(captured)


def _scored(captured: Captured) -> Verdict:
    try:
        answers = forced(captured.speculative, _scores(captured, captured.speculative))
        peers = tuple(answer for peer in _peers(captured) for answer in forced(peer, _scores(captured, peer)))
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    if not any(answer.positions for answer in answers):
        return say(captured, Outcome.INVALID, f"no token of {captured.arm} was scored under the baseline")
    allowed = tolerance(captured, peers)
    tally = GreedyTally(answers=answers, peers=peers, allowed=allowed, differences=tuple(_differences(captured, answers, allowed)))
    return (
        _untrustworthy(captured, tally)
        or _wrong(captured, tally)
        or _unexplained(captured, tally)
        or _flips(captured, tally)
        or speculating(captured)
        or _passed(captured, tally)
    )


def _scores(captured: Captured, transcript: Transcript) -> tuple[Score, ...]:
    """Return the scores of an arm's tokens with what each request asks to be added to the logits.

    Raises ValueError where the prompt counts and its ids are missing.
    """
    asked = {request.id: penalties(request.body) for request in captured.workload.requests}
    prompts = {answer.key: answer.prompt_token_ids for answer in transcript.answers}
    window = captured.penalty_window
    raised = []
    for score in captured.scores.get(transcript.arm, ()):
        params, prompt = asked.get(score.request_id, NONE), prompts.get(score.key) or score.prompt_token_ids
        if score.positions and not prompt and replace(params, repetition=1.0).count_prompt(window):
            msg = f"the prompt's token ids of {score.request_id} are missing: its penalties count them"
            raise ValueError(msg)
        raised.append(replace(score, positions=penalised(score.positions, params, window, prompt)))
    return tuple(raised)


def _peers(captured: Captured) -> tuple[Transcript, ...]:
    """Return the other boots of the baseline: their tokens show the gaps of a correct server."""
    control = () if captured.control is None or captured.is_control else (captured.control,)
    return (captured.baseline, *control)


def _differences(captured: Captured, answers: Sequence[ScoredAnswer], allowed: Tolerance) -> Iterator[FirstDifference]:
    baseline = {answer.key: answer for answer in captured.baseline.answers if answer.ok}
    distributions = {score.key: score.positions for score in _scores(captured, captured.baseline)}
    for scored in answers:
        key = scored.answer.key
        first = difference(scored, baseline[key], allowed.gap, distributions.get(key, ())) if key in baseline else None
        if first is not None:
            yield first


def _untrustworthy(captured: Captured, tally: GreedyTally) -> Verdict | None:
    if tally.allowed.trustworthy:
        return None
    largest = max((gap for each in tally.peers for gap in each.gaps), default=0.0)
    noise = tally.allowed.calibration.noise or 0.0
    headline = _contradicted(captured, tally) if tally.allowed.calibration.valid else ""
    if not headline:
        cause = "the baseline does not repeat itself" + _other_weights(captured)
        headline = f"{cause}: logit noise {noise:.3f} nats, largest gap between its boots {largest:.3g} nats"
    return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=_figures(tally))


def _contradicted(captured: Captured, tally: GreedyTally) -> str:
    """Return what the baseline's own tokens contradict; empty where its boots differ in the answer with the largest gap."""
    boots = [{answer.key: answer.choice.token_ids for answer in peer.answers} for peer in (captured.baseline, captured.control) if peer]
    worst = max(tally.peers, key=lambda each: max(each.gaps, default=0.0))
    if len({boot.get(worst.answer.key) for boot in boots}) != 1 or len(boots) == 1:
        return ""
    cause = "its greedy tokens are not its scores' best ones" + _other_weights(captured)
    if any(penalties(request.body).adds for request in captured.workload.requests):
        raw = [each for peer in _peers(captured) for each in forced(peer, captured.scores.get(peer.arm, ()))]
        cause = f"its penalties are not those that its engine is known for, over {captured.penalty_window}" + _other_weights(captured)
        cause = greedy_diagnosis.ignored_penalties(captured, tally.peers, raw, STATED) or cause
    off = f"{_near_ties(tally.peers):,} of {_tokens(tally.peers):,} of its own tokens are not the best, by up to {max(worst.gaps):.3g} nats"
    return f"the baseline repeats itself, but {cause}: {off}"


def _other_weights(captured: Captured) -> str:
    return ", or the scorer serves other weights" if SCORER in captured.capabilities else ""


def _wrong(captured: Captured, tally: GreedyTally) -> Verdict | None:
    wrong = tally.wrong
    if not wrong:
        return None
    first, index = min(wrong, key=lambda token: (token[1], *token[0].answer.key))
    baseline = {answer.key: answer for answer in captured.baseline.answers}.get(first.answer.key)
    name = _name(captured, tally)
    where = f"request {first.answer.request_id}, token {index + 1} of {len(first.gaps)}"
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(wrong):,} of {_tokens(tally.answers):,} tokens wrong; {_counted(tally)}; earliest: {where}",
        short=(*divergence(first, index, baseline, tally.allowed), *guess(captured)),
        evidence=(*_evidence(captured, tally), *_listed(wrong)),
        cell=f"{len(wrong):,} of {_tokens(tally.answers):,} tokens wrong",
        names="" if name == greedy_diagnosis.UNNAMED else name,
        figures=_figures(tally),
    )


def _unexplained(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Fail answers that end where the baseline's goes on, or the other way round, without a wrong token; INVALID where none was scored."""
    lengths = [first for first in tally.differences if first.kind is DifferenceKind.LENGTH]
    unscored = _unscored(captured, tally)
    if lengths:
        first = min(lengths, key=lambda each: (each.index, *each.key))
        return say(
            captured,
            Outcome.FAIL,
            f"{UNEXPLAINED}: {len(lengths)} of {len(tally.answers)} answers; earliest: request {first.key[0]}, after token {first.index}",
            evidence=_evidence(captured, tally),
            cell=f"{len(lengths)} wrong lengths",
            names=UNEXPLAINED,
            figures=_figures(tally),
        )
    if unscored:
        headline = f"{len(unscored)} answers differ from the baseline's and were not scored; first: request {unscored[0].request_id}"
        return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=_figures(tally))
    return None


def _unscored(captured: Captured, tally: GreedyTally) -> list[Answer]:
    scored = {each.answer.key for each in tally.answers}
    baseline = {answer.key: answer.choice.token_ids for answer in captured.baseline.answers if answer.ok}
    return [a for a in captured.speculative.answers if a.ok and a.key not in scored and baseline.get(a.key, ()) != a.choice.token_ids]


def _name(captured: Captured, tally: GreedyTally) -> str:
    if captured.is_control:
        return greedy_diagnosis.UNNAMED
    if any(penalties(request.body).adds for request in captured.workload.requests):
        raw = forced(captured.speculative, captured.scores.get(captured.arm, ()))
        if ignored := greedy_diagnosis.ignored_penalties(captured, tally.answers, raw, tally.allowed.gap):
            return ignored
    return greedy_diagnosis.fault_name(captured, tally.answers, tally.allowed.gap)


def _flips(captured: Captured, tally: GreedyTally) -> Verdict | None:
    """Fail near-ties that fall on the other side more often than the tolerated noise makes them; INVALID where the baseline's own do."""
    mine, peers = (wealth(choices(captured, answers), tally.allowed.sigma) for answers in (tally.answers, tally.peers))
    if not mine.alarms(captured.alpha):
        return None
    hits, tokens = _near_ties(tally.answers), _tokens(tally.answers)
    theirs, others = _near_ties(tally.peers), _tokens(tally.peers)
    figures = _figures(tally) | {"near_tie_log10_evidence": mine.peak / LN_10, "near_tie_sigma_nats": tally.allowed.sigma}
    if peers.alarms(captured.alpha):
        often = f"the baseline's own boots differ at near-ties more often than noise explains: {theirs:,} of {others:,} tokens"
        headline = _contradicted(captured, tally) or often
        return say(captured, Outcome.INVALID, headline, evidence=_evidence(captured, tally), figures=figures)
    return say(
        captured,
        Outcome.FAIL,
        f"{NEAR_TIES}: {hits:,} of {tokens:,} tokens; evidence {against(mine.peak, captured.alpha)}; {_counted(tally)}",
        short=(
            f"baseline     {theirs:,} of {others:,} tokens between its own boots",
            f"allowed      noise of {tally.allowed.sigma:.3g} nats between two candidates ({tally.allowed.sigma_reason})",
        ),
        evidence=_evidence(captured, tally),
        cell=f"{hits:,} near-ties",
        names=NEAR_TIES,
        figures=figures,
    )


def _passed(captured: Captured, tally: GreedyTally) -> Verdict:
    tokens, gap = _tokens(tally.answers), tally.allowed.gap
    figures, evidence = _figures(tally), _evidence(captured, tally)
    rate = proportions.ruled_out(tokens)
    if tokens < LEAST_TOKENS:
        return say(
            captured,
            Outcome.INCONCLUSIVE,
            f"not enough evidence: {tokens} tokens checked, none wrong; a wrong-token rate up to {rate:.1%} would be missed",
            evidence=evidence,
            settle=f"{LEAST_TOKENS - tokens} more tokens",
            figures=figures,
        )
    return say(
        captured,
        Outcome.PASS,
        f"0 of {tokens:,} tokens wrong; {_counted(tally)}{_unjudged(captured)}",
        evidence=evidence,
        rules_out=f"{tokens:,} tokens checked; a wrong-token rate above {rate:.2%} would have been caught (99%). "
        f"Wrong: more than {gap:.3g} nats below the baseline's best token",
        cell=f"0 of {tokens:,} tokens wrong",
        figures=figures | {"wrong_rate_ruled_out": rate},
    )


def _tokens(answers: Sequence[ScoredAnswer]) -> int:
    return sum(len(each.gaps) for each in answers)


def _near_ties(answers: Sequence[ScoredAnswer]) -> int:
    """Count tokens with a gap; called where none is above tolerance, or for peers, whose largest gap is tolerated."""
    return sum(gap > 0.0 for each in answers for gap in each.gaps)


def _counted(tally: GreedyTally) -> str:
    kinds = Counter(first.kind for first in tally.differences)
    classes = ", ".join(f"{kinds[kind]} {kind.value}" for kind in DifferenceKind if kinds[kind])
    return f"{len(tally.differences)} of {len(tally.answers)} answers differ as text" + (f" ({classes})" if classes else "")


def _unjudged(captured: Captured) -> str:
    refusals = [answer for answer in captured.speculative.answers if refused(answer)]
    silent = sum(not answer.ok for answer in captured.speculative.answers) - len(refusals)
    first = f", first {refusals[0].request_id}: {quoted(refusals[0].error or '', 160)}" if refusals else ""
    parts = ((silent, "not answered (see liveness)"), (len(refusals), f"refused with a 4xx{first}"))
    return "".join(f"; {count} request{'s' * (count != 1)} {what}" for count, what in parts if count)


def _listed(wrong: Sequence[tuple[ScoredAnswer, int]], most: int = 50) -> list[str]:
    lines = [f"{_place(scored, i)}: id {scored.positions[i].token_id}, gap {scored.gaps[i]:.3g}" for scored, i in wrong[:most]]
    return [*lines, *([f"and {len(wrong) - most:,} more wrong tokens"] if len(wrong) > most else [])]


def _place(scored: ScoredAnswer, index: int) -> str:
    return f"{scored.answer.request_id}, pass {scored.answer.pass_index}, token {index + 1}"


def _evidence(captured: Captured, tally: GreedyTally) -> tuple[str, ...]:
    known = tally.allowed.calibration
    noise = (
        "unknown, taken as 0: no log-probabilities were reported"
        if known.noise is None
        else f"{known.noise:.4f} nats over {known.tokens:,} tokens"
    )
    unscored = sum(answer.ok for answer in captured.speculative.answers) - len(tally.answers)
    return (
        f"tolerance: {tally.allowed.gap:.4g} nats below the best token, {tally.allowed.reason}",
        f"logit noise, reported against scored: {noise}",
        f"checked: {_tokens(tally.answers):,} tokens of {len(tally.answers)} answers, {unscored} answers not scored",
        f"between boots of the baseline: {_near_ties(tally.peers):,} of {_tokens(tally.peers):,} tokens with a gap",
        f"{_counted(tally)}{_unjudged(captured)}",
        *(f"differs: {d.key[0]}, pass {d.key[1]}, from token {d.index + 1}: {d.kind.value}" for d in tally.differences[:50]),
    )


def _figures(tally: GreedyTally) -> dict[str, float]:
    gaps = [gap for each in tally.answers for gap in each.gaps]
    theirs = [gap for each in tally.peers for gap in each.gaps]
    return {
        "tokens": float(len(gaps)),
        "answers": float(len(tally.answers)),
        "answers_differing": float(len(tally.differences)),
        "wrong_tokens": float(len(tally.wrong)),
        "near_ties": float(sum(0.0 < gap <= tally.allowed.gap for gap in gaps)),
        "largest_gap_nats": max(gaps),
        "tolerance_nats": tally.allowed.gap,
        "baseline_tokens": float(len(theirs)),
        "baseline_near_ties": float(sum(gap > 0.0 for gap in theirs)),
        "baseline_largest_gap_nats": max(theirs, default=0.0),
    }
