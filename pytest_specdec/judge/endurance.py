"""Endurance: after minutes of the same traffic a server answers, drafts and takes memory as at the beginning.

Seconds are reported and decide nothing: a machine may slow down for reasons of its own while one arm is asked and not while the other is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy
from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.memory_growth import memory_growth
from pytest_specdec.judge.prerequisites import describe_refusals, own_refusals, refusal
from pytest_specdec.judge.repeats import Repeat, acceptance_drop, fail_drop
from pytest_specdec.judge.state import select_requests
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import restate, say
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.decline import decline, theil_sen_slope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.soak import SoakRound
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.stats.decline import Decline

__all__ = ["judge"]

WRONG_LATER = "answers go wrong after minutes of the same traffic"
DRAFTS_DIE = "drafts are no longer accepted after minutes of the same traffic"
DRAFTS_DECAY = "drafts decay with time under the same traffic"
RANK_DECAYS = "the drafts of a rank decay with time"
MEMORY_GROWS = "memory grows with every request and does not level off"
REFUSES_LATER = "refuses after minutes what it answered before"
FAILS = "within minutes of the same traffic"
_LEAST_ROUNDS = 14
"""Rounds needed: of fewer not even a fall from each to the next is sure enough, the first sixth left out."""
_SETTLING = 6
"""One round in so many, the first ones, is left out: caches, graphs and clocks settle in them."""
_LEFT = 0.75
"""Fraction of the earlier share of drafted tokens above which a fall is too small to fail, however sure: load that drifts takes as much."""
_LEFT_BY_LOAD = 0.5
"""The same where drafting depends on load by the variant's settings."""
_DEAD = 0.1
"""The same up to which drafts count as dead."""
_END = 3
"""Rounds at either end of which the median shows a fall that no test is sure of."""
_SEEN = 0.5
"""Fraction of a rank's lost accepted drafts that the server has to have lost too: without a fault other ranks have gained them."""
_LEAST_DRAFTED = 0.02
"""Least share of accepted drafts among the tokens at first: a fall from less cannot be seen."""
_ALIKE = 0.5
"""Most of a server's growth of memory by request that the baseline's own may be, as a fraction."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers, drafts, memory and failures of a soak.

    Tokens of both passes are judged by scores, as at temperature 0 everywhere (judge/greedy.py). Drafts and memory are tested by their
    order in time (stats/decline.py), each at the captured share of alpha, and fail only if they change by enough to matter. INCONCLUSIVE if
    the soak had too few rounds, or if drafts fell too late or in too few rounds to tell the fall from chance.
    """
    return _check_server(captured) or refusal(captured) or _check_refusals(captured) or _judge_tokens(captured)


def _judge_tokens(captured: Captured) -> Verdict:
    """Return greedy's verdict on both passes, or one on drafts or memory.

    Drafts, memory and the number of rounds are judged only if greedy's verdict is PASS or INCONCLUSIVE, and not for the control.
    """
    part = select_requests(captured, [request.id for request in captured.workload.requests if request.greedy])
    verdict = greedy.judge(part)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_name_by_pass(part, verdict))
    if verdict.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE} or captured.is_control:
        return restate(captured, verdict)
    return (
        (
            _check_drafts(captured) or _check_acceptance_of_same_answers(captured) or _check_ranks(captured)
            if _are_drafts_comparable(captured)
            else None
        )
        or _check_memory(captured)
        or _check_rounds(captured)
        or restate(
            captured, verdict, headline=f"{verdict.headline}; {_describe_soak(captured)}", evidence=_list_evidence(captured, verdict)
        )
    )


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on server failures; None without one.

    A failure in the soak has recurred if the fresh server failed as well in the same traffic. It is then a FAIL if the baseline's soak has
    no failure, else INVALID. Any other failure is judged as in every family (:func:`server_failure`).
    """
    verdict = server_failure(replace(captured, on_verdict=None))
    if verdict is None:
        return None
    served, failed = (
        sum(counts) for counts in ([r.requests for r in captured.speculative.soak], [r.failed for r in captured.speculative.soak])
    )
    recurring = [failure for failure in captured.speculative.server_failures if failure.recurred]
    if not failed or not all(failure.in_soak for failure in recurring):
        return restate(captured, verdict)
    line = f"soak         {served:,} requests answered, {failed} failed"
    evidence = (*verdict.evidence, line, *_list_rounds(captured.speculative))
    if verdict.outcome is not Outcome.FAIL or not recurring:
        return restate(captured, verdict, evidence=evidence)
    if any(one.failed for one in captured.baseline.soak):
        return say(
            captured, Outcome.INVALID, "the baseline fails too in minutes of the same traffic, so it cannot judge", evidence=evidence
        )
    headline = f"{FAILS} ({served:,} requests answered) {verdict.headline}"
    # A client that asks once would not see it.
    return restate(captured, verdict, headline=headline, names=f"{verdict.names} {FAILS}", evidence=evidence, example=None)


def _check_refusals(captured: Captured) -> Verdict | None:
    """Return FAIL if requests answered at first are refused later, else None.

    A request counts if it is answered in the first pass and refused in the next while the baseline answers both, and so do refusals of the
    soak if nothing was refused before it and the baseline's soak has none. None for the control.
    """
    answered = {answer.request_id for answer in captured.speculative.answers if answer.ok and not answer.pass_index}
    later = [answer for answer in own_refusals(captured) if answer.pass_index and answer.request_id in answered]
    refused = sum(one.refused for one in captured.speculative.soak)
    is_new = all(request.id in answered for request in captured.workload.requests)
    if captured.is_control or not (later or (refused and is_new and captured.baseline.soak and not _refuses(captured.baseline))):
        return None
    what = f"{len(later)} of {len(answered)} requests after the soak, {refused:,} in it"
    return say(
        captured,
        Outcome.FAIL,
        f"the server {REFUSES_LATER}: {what}; the baseline answers them",
        short=describe_refusals(later),
        evidence=(*describe_refusals(later), *_list_rounds(captured.speculative)),
        cell=f"{len(later) or refused} refused",
        names=REFUSES_LATER,
        figures={"refused_requests": float(len(later)), "refused_in_soak": float(refused)},
    )


def _refuses(transcript: Transcript) -> bool:
    return any(one.refused for one in transcript.soak)


def _name_by_pass(captured: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return the fields to change in greedy's failure.

    They are a line with the numbers of wrong answers before and after the soak, and the name and headline of WRONG_LATER if the failure is
    by wrong tokens and none is before it.
    """
    peers = [answer for arm in captured.baseline_boots for answer in scored_answers(arm, captured.scores.get(arm.arm, ()))]
    allowed, scored = tolerance(captured, peers), scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    wrong = [0, 0]
    for one in scored:
        wrong[min(one.answer.pass_index, 1)] += any(gap > allowed.gap for gap in one.gaps)
    line = f"passes       answers with a wrong token: {wrong[0]} before the soak, {wrong[1]} after it"
    fields = {"short": (*verdict.short[:3], line), "evidence": (*verdict.evidence, line, *_list_rounds(captured.speculative))}
    if wrong[0] or not wrong[1] or not captured.speculative.soak or not greedy.is_by_wrong_tokens(verdict):
        return fields
    headline = f"{WRONG_LATER}: {wrong[1]} answers with a wrong token after {_describe_length(captured.speculative)}, none before"
    return {**fields, "headline": f"{headline}; {verdict.headline}", "names": WRONG_LATER, "example": None}


def _check_acceptance_of_same_answers(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts for the same answers are accepted less after the soak.

    Compared are requests answered alike before and after it. FAIL at half the earlier acceptance or less, beyond chance
    (:func:`acceptance_drop`): DRAFTS_DIE at a tenth or less, else DRAFTS_DECAY. None otherwise.
    """
    greedy_ids = {request.id for request in captured.workload.requests if request.greedy}
    answers = [answer for answer in captured.speculative.answers if answer.ok and answer.request_id in greedy_ids]
    first = {answer.request_id: answer for answer in answers if not answer.pass_index}
    pairs = [Repeat(first=first[a.request_id], later=a) for a in answers if a.pass_index and a.request_id in first]
    drop = acceptance_drop(captured, pairs, captured.alpha)
    name = DRAFTS_DIE if drop is not None and drop.after.rate <= _DEAD * drop.before.rate else DRAFTS_DECAY
    verdict = fail_drop(replace(captured, on_verdict=None), name, pairs, captured.alpha)
    if verdict is None:
        return None
    return restate(captured, verdict, evidence=_list_evidence(captured, verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """The share of accepted drafts among the tokens of a server or of a rank, round by round."""

    name: str
    shares: tuple[float, ...]
    requests: tuple[float, ...]
    """Requests answered until the end of each of these rounds."""

    @property
    def fall(self) -> Decline | None:
        """The fall over the rounds; None if they are too few, or if hardly anything was drafted from the beginning."""
        fall = decline(self.shares[len(self.shares) // _SETTLING :]) if len(self.shares) >= _LEAST_ROUNDS else None
        return fall if fall is not None and fall.first >= _LEAST_DRAFTED else None

    @property
    def slope(self) -> float:
        """Change of the share by 1,000 requests, by Theil and Sen."""
        return 1000.0 * theil_sen_slope(self.requests, self.shares)


def _sum_requests(rounds: Iterable[SoakRound]) -> list[float]:
    total, sums = 0, []
    for one in rounds:
        total += one.requests
        sums.append(float(total))
    return sums


def _server_series(transcript: Transcript) -> _Series:
    rounds = list(zip(transcript.soak, _sum_requests(transcript.soak), strict=True))
    points = [(share, requests) for one, requests in rounds if (share := one.drafted_share) is not None]
    return _Series(name=transcript.arm, shares=tuple(share for share, _ in points), requests=tuple(requests for _, requests in points))


def _rounds_by_rank(transcript: Transcript) -> Mapping[str, list[tuple[SoakRound, float, float, int]]]:
    """Return the rounds of each rank, by its name, with its drafts.

    A round is a tuple: the round itself, the requests sent until its end, the share of tokens that are accepted drafts, and the number of
    tokens it is a share of. They are those generated, or those drafted if the rank does not count the former.
    """
    points: dict[str, list[tuple[SoakRound, float, float, int]]] = {}
    for one, total in zip(transcript.soak, _sum_requests(transcript.soak), strict=True):
        for rank in one.ranks:
            tokens = rank.counters.draft_tokens if rank.generated_tokens is None else rank.generated_tokens
            if tokens:
                points.setdefault(rank.name, []).append((one, total, rank.counters.accepted_tokens / tokens, tokens))
    return points


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if fewer and fewer tokens of the server are accepted drafts, else None."""
    return _fail_fall(captured, _server_series(captured.speculative), DRAFTS_DECAY, captured.alpha / 2.0)


def _are_drafts_comparable(captured: Captured) -> bool:
    """Return True if all rounds have the same requests, and counters of these alone."""
    arm = captured.speculative
    is_shared = arm.foreign or arm.elsewhere or arm.uncounted or arm.replaced
    return not is_shared and not _refuses(arm) and not any((one.drafted_share or 0.0) > 1.0 for one in arm.soak)


def _check_ranks(captured: Captured) -> Verdict | None:
    """Return FAIL for the first rank of which the drafts decay and are lost to the server, else None."""
    lost = next((verdict for _, verdict, is_lost in _falling_ranks(captured) if is_lost), None)
    return None if lost is None else restate(captured, lost)


def _falling_ranks(captured: Captured) -> Iterator[tuple[str, Verdict, bool]]:
    """Yield each rank with decaying drafts: its name, and the failure.

    The third value is True if the server's share falls with it: a router that sends other prompts to a rank than before changes the rank's
    share alone. Half of the share of alpha is split over ranks.
    """
    captured, ranks = replace(captured, on_verdict=None), _rounds_by_rank(captured.speculative)
    for name, points in ranks.items():
        series = _Series(name=name, shares=tuple(share for _, _, share, _ in points), requests=tuple(total for _, total, _, _ in points))
        verdict = _fail_fall(captured, series, f"{RANK_DECAYS}: {name}", captured.alpha / 2.0 / len(ranks))
        if verdict is not None:
            yield name, verdict, _falls_with_rank([(one, share, tokens) for one, _, share, tokens in points])


def _falls_with_rank(points: Sequence[tuple[SoakRound, float, int]]) -> bool:
    """Return True if the server's share of accepted drafts falls with a rank's.

    ``points`` are rounds, each with the rank's share and the number of tokens it is a share of. The first and the last third of the settled
    rounds are compared: the server must have lost at least half of what the rank lost, as shares of the server's tokens. False if that is
    not known, or if the rank lost nothing.
    """
    counted = [(one, share, tokens) for one, share, tokens in points if one.drafted_share is not None]
    settled = counted[len(counted) // _SETTLING :]
    third = len(settled) // 3
    if not third:
        return False
    first, last = settled[:third], settled[-third:]
    earlier, later = (_pool([(share, tokens) for _, share, tokens in part]) for part in (first, last))
    rank_loss = (earlier - later) * sum(tokens for _, _, tokens in last) / max(1, sum(one.tokens for one, _, _ in last))
    before, after = (_pool([(one.drafted_share or 0.0, one.tokens) for one, _, _ in part]) for part in (first, last))
    return rank_loss > 0.0 and before - after >= _SEEN * rank_loss


def _pool(shares: Sequence[tuple[float, int]]) -> float:
    """Return the mean of shares, weighted by their tokens."""
    return sum(share * tokens for share, tokens in shares) / max(1, sum(tokens for _, tokens in shares))


def _fraction_left(captured: Captured) -> float:
    """Return the fraction of the earlier share above which a fall is too small to fail."""
    return _LEFT_BY_LOAD if captured.pair.variant.draft.depends_on(captured.workload.concurrency) else _LEFT


def _fail_fall(captured: Captured, series: _Series, name: str, alpha: float) -> Verdict | None:
    """Return FAIL if the share of accepted drafts falls far and beyond chance, else None.

    Far is to :func:`_fraction_left` of the earlier share or less. DRAFTS_DECAY as ``name`` becomes DRAFTS_DIE at a tenth or less.
    """
    fall = series.fall
    if fall is None or fall.p_value > alpha or fall.fraction_left > _fraction_left(captured):
        return None
    is_dead = fall.fraction_left <= _DEAD and name == DRAFTS_DECAY
    name = DRAFTS_DIE if is_dead else name
    how = f"in the last {fall.end} of {len(series.shares)} rounds" if fall.end else "in the last third of the rounds"
    headline = f"{name}: {fall.last:.1%} of the tokens are accepted drafts {how}, {fall.first:.1%} before"
    return say(
        captured,
        Outcome.FAIL,
        f"{headline}, after {_describe_length(captured.speculative)}",
        short=(
            f"slope        {100.0 * series.slope:+.2f} percentage points by 1,000 requests",
            f"by chance    p = {fall.p_value:.2g}, limit {alpha:.2g}",
        ),
        evidence=_list_rounds(captured.speculative),
        cell=f"drafted {fall.first:.0%} to {fall.last:.0%}",
        names=name,
        figures={"drafted_share_at_first": fall.first, "drafted_share_later": fall.last, "p_value": fall.p_value},
    )


def _check_memory(captured: Captured) -> Verdict | None:
    """Return FAIL if memory grows to the end unlike the baseline's.

    Its slope is tested at ``captured.alpha``, and has to be at least twice the baseline's. None otherwise, and if the growth of either
    is unknown.
    """
    growth, baseline = memory_growth(captured.speculative.soak), memory_growth(captured.baseline.soak)
    if growth is None or baseline is None or growth.p_value > captured.alpha or not growth.goes_on:
        return None
    if baseline.slope > _ALIKE * growth.slope:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{MEMORY_GROWS}: by {growth.slope:,.0f} MiB with 1,000 requests, the baseline's by {baseline.slope:,.0f} MiB, "
        f"after {_describe_length(captured.speculative)}",
        short=(
            f"second third {growth.first_half_slope:+,.0f} MiB with 1,000 requests",
            f"last third   {growth.second_half_slope:+,.0f} MiB with 1,000 requests",
            f"by chance    p = {growth.p_value:.2g}, limit {captured.alpha:.2g}",
        ),
        evidence=(*_list_rounds(captured.speculative), *_list_rounds(captured.baseline)),
        cell=f"+{growth.slope:,.0f} MiB/1,000",
        names=MEMORY_GROWS,
        figures={"mib_by_1000_requests": growth.slope, "baseline_mib_by_1000_requests": baseline.slope},
    )


def _check_rounds(captured: Captured) -> Verdict | None:
    """Return INCONCLUSIVE if a decay could not have shown, or may be chance; else None."""
    rounds, doubt = len(captured.speculative.soak), _describe_doubtful_decay(captured)
    if rounds < _LEAST_ROUNDS:
        headline = f"only {rounds} rounds of the same traffic were sent; {_LEAST_ROUNDS} show a decay"
    elif doubt:
        headline = f"{doubt}, too late or in too few of {rounds} rounds to tell a decay from chance"
    else:
        return None
    evidence = () if rounds < _LEAST_ROUNDS else _list_rounds(captured.speculative)
    settle = "more minutes under `endurance:` in the config"
    return say(captured, Outcome.INCONCLUSIVE, headline, settle=settle, evidence=evidence, cell=f"{rounds} rounds")


def _describe_doubtful_decay(captured: Captured) -> str:
    """Return a clause on a fall in accepted drafts that may be a decay.

    The fall is large enough but may be chance, or the last rounds are low, or drafts all but ended while the server settled. Empty without
    one, and if shares cannot be compared.
    """
    series, least = _server_series(captured.speculative), _fraction_left(captured)
    if len(series.shares) < _LEAST_ROUNDS or not _are_drafts_comparable(captured):
        return ""
    first, last, fall = median(series.shares[:_END]), median(series.shares[-_END:]), series.fall
    is_lower = fall is not None and (fall.fraction_left <= least or last <= least * fall.first)
    if not is_lower and not (first >= _LEAST_DRAFTED and last <= _DEAD * first):
        return ""
    earlier = first if fall is None else fall.first
    return f"accepted drafts fell from {earlier:.1%} of the tokens to {last:.1%}"


def _describe_length(transcript: Transcript) -> str:
    """Return the length of a soak in minutes and requests."""
    requests = sum(one.requests for one in transcript.soak)
    return f"{transcript.soak[-1].at_s / 60.0:.2g} minutes and {requests:,} requests" if transcript.soak else "no soak"


def _describe_soak(captured: Captured) -> str:
    """Return what a soak showed, in the words of a pass."""
    arm, baseline = captured.speculative, memory_growth(captured.baseline.soak)
    fall, growth, is_comparable = _server_series(arm).fall, memory_growth(arm.soak), _are_drafts_comparable(captured)
    is_whole = fall is not None and is_comparable and growth is not None
    parts = [f"as at first after {_describe_length(arm)}" if is_whole else f"after {_describe_length(arm)}"]
    if not is_comparable:
        parts.append("drafts not compared, as others asked the server or requests were refused")
    elif fall is None:
        parts.append("drafts not counted" if not _server_series(arm).shares else "hardly a draft from the beginning")
    else:
        parts.append(f"accepted drafts {fall.first:.0%} of the tokens at first and {fall.last:.0%} at the end")
    unlike = "" if baseline else ", that of the baseline not known"
    parts.append("memory not known" if growth is None else f"memory {growth.slope:+,.0f} MiB with 1,000 requests{unlike}")
    parts += [f"{one.arm} {_describe_speed(one.soak)}" for one in (arm, captured.baseline) if len(one.soak) >= _LEAST_ROUNDS]
    return ", ".join(parts)


def _describe_speed(rounds: Sequence[SoakRound]) -> str:
    """Return by how much the last third of rounds was slower or faster than the first."""
    third = len(rounds) // 3
    first, last = (sorted(one.tokens_per_s for one in part)[third // 2] for part in (rounds[:third], rounds[-third:]))
    return f"{last / first - 1.0:+.0%} in tokens per second" if first else "without tokens"


def _list_evidence(captured: Captured, verdict: Verdict) -> tuple[str, ...]:
    """Return the verdict's evidence, with the rounds of both arms.

    A line before them names each rank whose share of accepted drafts falls while the server's does not.
    """
    rank_lines = [
        f"ranks        {name}: {fall.cell}, the server's share does not fall with it, as where prompts move between ranks"
        for name, fall, is_lost in _falling_ranks(captured)
        if not is_lost
    ]
    return (*verdict.evidence, *rank_lines, *_list_rounds(captured.speculative), *_list_rounds(captured.baseline))


_LISTED = 12


def _list_rounds(transcript: Transcript) -> Sequence[str]:
    """Return lines of a dozen rounds, evenly spread, with drafts, speed, memory and failures."""
    rounds = transcript.soak
    places = sorted({round(at * (len(rounds) - 1) / max(1, min(_LISTED, len(rounds)) - 1)) for at in range(min(_LISTED, len(rounds)))})
    return [f"soak         {transcript.arm} at {_describe_round(rounds[at])}" for at in places]


def _describe_round(one: SoakRound) -> str:
    """Return the figures of one round of a soak, in words."""
    drafted = "drafts not counted" if one.drafted_share is None else f"{one.drafted_share:.1%} drafted"
    memory = "" if one.resident_mib is None else f", {one.resident_mib:,.0f} MiB"
    refused = f", {one.refused} refused" if one.refused else ""
    changed = f", {len(one.changed)} greedy answers unlike the first" if one.changed else ""
    speed = f"{one.tokens_per_s:,.0f} tokens/s"
    return f"{one.at_s:,.0f} s: {one.requests} requests, {one.failed} failed{refused}, {drafted}, {speed}{memory}{changed}"
