"""Endurance: after minutes of the same traffic a server answers, drafts and takes memory as at the beginning.

The requests are sent in a first pass and in a later one. The soak in between sends the same traffic for minutes; its rounds are stretches
of it. The judged arm is the speculative server, and the baseline serves the same model without speculation. Seconds are reported and decide
nothing: a machine may slow down for reasons of its own while one arm is asked and not while the other is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from pytest_specdec.judge import greedy
from pytest_specdec.judge.drafted_shares import LEAST_DRAFTED, LEAST_ROUNDS, rank_drafts, server_shares
from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.memory_growth import memory_growth
from pytest_specdec.judge.prerequisites import describe_refusals, own_refusals, refusal
from pytest_specdec.judge.repeats import Repeat, acceptance_drop, fail_drop
from pytest_specdec.judge.state import select_requests
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import restate, say
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.judge.drafted_shares import DraftedShares
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.soak import SoakRound
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

WRONG_LATER = "answers go wrong after minutes of the same traffic"
DRAFTS_DIE = "drafts are no longer accepted after minutes of the same traffic"
DRAFTS_DECAY = "drafts decay with time under the same traffic"
RANK_DECAYS = "the drafts of a rank decay with time"
MEMORY_GROWS = "memory grows with every request and does not level off"
REFUSES_LATER = "refuses after minutes what it answered before"
FAILS = "within minutes of the same traffic"
_LEFT = 0.75
"""Fraction of the earlier share of drafted tokens above which a fall is too small to fail, however sure: load that drifts takes as much."""
_LEFT_BY_LOAD = 0.5
"""The same where drafting depends on load by the variant's settings."""
_DEAD = 0.1
"""The same up to which drafts count as dead."""
_END = 3
"""Rounds at either end of which the median shows a fall that no test is sure of."""
_ALIKE = 0.5
"""Most of a server's growth of memory by request that the baseline's own may be, as a fraction."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers, drafts, memory and failures of a soak.

    Server failures come first, then refusals: of all requests, or of some that were answered before. :func:`_judge_tokens` then judges the
    tokens of both passes by scores, as at temperature 0 everywhere (judge/greedy.py). It also judges drafts and memory, by their order in
    time (stats/decline.py), each at the captured share of alpha; they fail only if they change by enough to matter. It is INCONCLUSIVE if
    the soak had too few rounds, or if drafts fell too late or in too few rounds to tell the fall from chance.
    """
    return _check_server(captured) or refusal(captured) or _check_refusals(captured) or _judge_tokens(captured)


def _judge_tokens(captured: Captured) -> Verdict:
    """Return greedy's verdict on both passes, or one on drafts or memory.

    Drafts, memory and the number of rounds are judged in this order, only if greedy's verdict is PASS or INCONCLUSIVE, and not for the
    control. If they show nothing, greedy's verdict gets what the soak showed in headline and evidence.
    """
    part = select_requests(captured, [request.id for request in captured.workload.requests if request.greedy])
    verdict = greedy.judge(part)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_name_by_pass(part, verdict))
    if verdict.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE} or captured.is_control:
        return restate(captured, verdict)
    headline = f"{verdict.headline}; {_describe_soak(captured)}"
    return (
        _check_drafts(captured)
        or _check_memory(captured)
        or _check_rounds(captured)
        or restate(captured, verdict, headline=headline, evidence=_list_evidence(captured, verdict))
    )


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on server failures; None without one.

    A failure in the soak has recurred if the fresh server failed as well in the same traffic. It is then a FAIL if the baseline's soak has
    no failure, else INVALID. Any other failure is judged as in every family (:func:`server_failure`).
    """
    verdict = server_failure(replace(captured, on_verdict=None))  # only the verdict returned here is reported
    if verdict is None:
        return None
    served, failed = sum(one.requests for one in captured.speculative.soak), sum(one.failed for one in captured.speculative.soak)
    recurring = [failure for failure in captured.speculative.server_failures if failure.recurred]
    # Without a failure in the soak, or with one that recurred outside it, the soak is not to blame.
    if not failed or any(not failure.in_soak for failure in recurring):
        return restate(captured, verdict)
    line = f"soak         {served:,} requests answered, {failed} failed"
    evidence = (*verdict.evidence, line, *_list_rounds(captured.speculative))
    if verdict.outcome is not Outcome.FAIL or not recurring:
        return restate(captured, verdict, evidence=evidence)
    # A failure of the soak recurred.
    if any(one.failed for one in captured.baseline.soak):
        return say(
            captured, Outcome.INVALID, "the baseline fails too in minutes of the same traffic, so it cannot judge", evidence=evidence
        )
    headline = f"{FAILS} ({served:,} requests answered) {verdict.headline}"
    # A client that asks once would not see it.
    return restate(captured, verdict, headline=headline, names=f"{verdict.names} {FAILS}", evidence=evidence, example=None)


def _check_refusals(captured: Captured) -> Verdict | None:
    """Return FAIL if requests answered at first are refused later, else None.

    A request counts if it is answered in the first pass and refused in the next while the baseline answers both. Refusals in the soak count
    if every request was answered before it and the baseline's soak has none. None for the control.
    """
    answered = {answer.request_id for answer in captured.speculative.answers if answer.ok and not answer.pass_index}
    later = [answer for answer in own_refusals(captured) if answer.pass_index and answer.request_id in answered]
    refused = sum(one.refused for one in captured.speculative.soak)
    are_all_answered_before = all(request.id in answered for request in captured.workload.requests)
    does_baseline_answer = bool(captured.baseline.soak) and not _refuses(captured.baseline)
    if captured.is_control or not (later or (refused and are_all_answered_before and does_baseline_answer)):
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
    """Return this family's replacements for fields of the greedy judge's FAIL.

    They get a line with the numbers of answers before and after the soak with a wrong token, below the baseline's best one by more than the
    tolerance. A failure by wrong tokens, some after a soak and none before it, is named WRONG_LATER. It loses its example, since a client
    that asks once would not see it.
    """
    peers = [answer for arm in captured.baseline_boots for answer in scored_answers(arm, captured.scores.get(arm.arm, ()))]
    allowed, scored = tolerance(captured, peers), scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    wrong = [one.answer for one in scored if any(gap > allowed.gap for gap in one.gaps)]
    after = sum(answer.pass_index > 0 for answer in wrong)
    before = len(wrong) - after
    line = f"passes       answers with a wrong token: {before} before the soak, {after} after it"
    short = (*verdict.short[:3], line)  # a failed test's message has room for four lines
    fields = {"short": short, "evidence": (*verdict.evidence, line, *_list_rounds(captured.speculative))}
    is_wrong_only_later = after > 0 and not before and bool(captured.speculative.soak)
    if not is_wrong_only_later or not greedy.is_by_wrong_tokens(verdict):
        return fields
    headline = f"{WRONG_LATER}: {after} answers with a wrong token after {_describe_length(captured.speculative)}, none before"
    return {**fields, "headline": f"{headline}; {verdict.headline}", "names": WRONG_LATER, "example": None}


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts decay with time, else None.

    The server's rounds are tested first, then equal answers before and after the soak, then the rounds of each rank, a part of the server
    with counters of its own. None too if the rounds cannot be compared.
    """
    if not _are_drafts_comparable(captured):
        return None
    # Equal answers have a share of the budget of their own, ``captured.alpha``. Another one is for the rounds: half for the server's, half
    # for those of its ranks.
    return (
        _fail_fall(captured, server_shares(captured.speculative), DRAFTS_DECAY, captured.alpha / 2.0)
        or _check_same_answers(captured)
        or _check_ranks(captured)
    )


def _are_drafts_comparable(captured: Captured) -> bool:
    """Return True if all rounds have the same requests, and counters of these alone."""
    arm = captured.speculative
    # Texts, empty unless it shows that others asked the server, that another one gave some answers, that counters lack some, or that others
    # restarted the server.
    if arm.foreign or arm.elsewhere or arm.uncounted or arm.replaced:
        return False
    # More accepted drafts than tokens show too that the counters are of other requests.
    are_of_others = any((one.drafted_share or 0.0) > 1.0 for one in arm.soak)
    return not are_of_others and not _refuses(arm)


def _check_same_answers(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts for the same answers are accepted less after the soak.

    Of requests at temperature 0, :func:`acceptance_drop` compares those with equal answers before and after it. FAIL at half the earlier
    acceptance or less, beyond chance: DRAFTS_DIE at a tenth or less, else DRAFTS_DECAY. None otherwise.
    """
    greedy_ids = {request.id for request in captured.workload.requests if request.greedy}
    answers = [answer for answer in captured.speculative.answers if answer.ok and answer.request_id in greedy_ids]
    first = {answer.request_id: answer for answer in answers if not answer.pass_index}
    pairs = [Repeat(first=first[a.request_id], later=a) for a in answers if a.pass_index and a.request_id in first]
    drop = acceptance_drop(captured, pairs, captured.alpha)
    if drop is None:
        return None
    name = DRAFTS_DIE if drop.after.rate <= _DEAD * drop.before.rate else DRAFTS_DECAY
    # The same test again, put into a verdict. Without ``on_verdict`` it is not reported before ``restate`` has added the evidence.
    verdict = fail_drop(replace(captured, on_verdict=None), name, pairs, captured.alpha)
    return None if verdict is None else restate(captured, verdict, evidence=_list_evidence(captured, verdict))


def _check_ranks(captured: Captured) -> Verdict | None:
    """Return FAIL for the first rank with decaying drafts that are lost to the server, else None."""
    lost = next((rank.failure for rank in _falling_ranks(captured) if rank.is_lost_to_server), None)
    return None if lost is None else restate(captured, lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FallingRank:
    """A rank with decaying drafts."""

    name: str
    failure: Verdict
    is_lost_to_server: bool
    """Whether the server's share falls too: a router that sends other prompts to a rank than before changes the rank's share alone."""


def _falling_ranks(captured: Captured) -> Iterator[_FallingRank]:
    """Yield each rank with decaying drafts, and whether the server's drafts fall with them.

    A rank is a part of the server with its own counters. Half of ``captured.alpha``, the share of the false-alarm budget, is split evenly
    over the ranks; the other half is for the server as a whole.
    """
    ranks, unreported = rank_drafts(captured.speculative), replace(captured, on_verdict=None)  # say() calls on_verdict
    for rank in ranks:
        failure = _fail_fall(unreported, rank.shares, f"{RANK_DECAYS}: {rank.name}", captured.alpha / 2.0 / len(ranks))
        if failure is not None:
            yield _FallingRank(name=rank.name, failure=failure, is_lost_to_server=rank.is_lost_to_server)


def _fraction_left(captured: Captured) -> float:
    """Return the fraction of the earlier share above which a fall is too small to fail."""
    return _LEFT_BY_LOAD if captured.pair.variant.draft.depends_on(captured.workload.concurrency) else _LEFT


def _fail_fall(captured: Captured, drafted: DraftedShares, name: str, alpha: float) -> Verdict | None:
    """Return FAIL if the share of accepted drafts falls far and beyond chance, else None.

    ``drafted`` has the rounds' shares, whose fall is tested at ``alpha``. It is far if the fraction of the earlier share that is left is at
    most :func:`_fraction_left`. ``name`` is the fault's; DRAFTS_DECAY is replaced by DRAFTS_DIE if a tenth or less is left.
    """
    fall = drafted.fall
    if fall is None or fall.p_value > alpha or fall.fraction_left > _fraction_left(captured):
        return None
    if name == DRAFTS_DECAY and fall.fraction_left <= _DEAD:
        name = DRAFTS_DIE
    # ``end`` is the number of last rounds that lie below all earlier ones. It is 0 for a steady fall, told from the first and last third.
    when = f"in the last {fall.end} of {len(drafted.shares)} rounds" if fall.end else "in the last third of the rounds"
    headline = f"{name}: {fall.last:.1%} of the tokens are accepted drafts {when}, {fall.first:.1%} before"
    return say(
        captured,
        Outcome.FAIL,
        f"{headline}, after {_describe_length(captured.speculative)}",
        short=(
            f"slope        {100.0 * drafted.slope:+.2f} percentage points per 1,000 requests",
            f"by chance    p = {fall.p_value:.2g}, limit {alpha:.2g}",
        ),
        evidence=_list_rounds(captured.speculative),
        cell=f"drafted {fall.first:.0%} to {fall.last:.0%}",
        names=name,
        figures={"drafted_share_at_first": fall.first, "drafted_share_later": fall.last, "p_value": fall.p_value},
    )


def _check_memory(captured: Captured) -> Verdict | None:
    """Return FAIL if memory grows by requests until the soak's end, else None.

    The growth must be beyond chance, at ``captured.alpha``, and at least twice as steep as the baseline's. None too if the growth of either
    is unknown. The first third of the soak, in which caches fill, is left out: the halves of the rest are its second and last third.
    """
    growth, baseline = memory_growth(captured.speculative.soak), memory_growth(captured.baseline.soak)
    if growth is None or baseline is None:
        return None
    # ``goes_on`` is False for growth that is too small to count, or that levels off.
    if growth.p_value > captured.alpha or not growth.goes_on or baseline.slope > _ALIKE * growth.slope:
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
    """Return INCONCLUSIVE if rounds are too few or a decay is doubtful, else None."""
    rounds, doubt = len(captured.speculative.soak), _describe_doubtful_decay(captured)
    if rounds < LEAST_ROUNDS:
        headline = f"only {rounds} rounds of the same traffic were sent; {LEAST_ROUNDS} show a decay"
    elif doubt:
        headline = f"{doubt}, too late or in too few of {rounds} rounds to tell a decay from chance"
    else:
        return None
    evidence = () if rounds < LEAST_ROUNDS else _list_rounds(captured.speculative)
    settle = "more minutes under `endurance:` in the config"
    return say(captured, Outcome.INCONCLUSIVE, headline, settle=settle, evidence=evidence, cell=f"{rounds} rounds")


def _describe_doubtful_decay(captured: Captured) -> str:
    """Return a clause on a fall in accepted drafts that may be a decay.

    Falls beyond chance have failed before (:func:`_check_drafts`). A doubtful one is as large, but may be chance, or shows only in the last
    three rounds. Or drafts have all but ended since the first three rounds, which the test leaves out. Empty without a doubtful fall, and
    if shares are too few or cannot be compared.
    """
    drafted, least = server_shares(captured.speculative), _fraction_left(captured)
    if len(drafted.shares) < LEAST_ROUNDS or not _are_drafts_comparable(captured):
        return ""
    first, last, fall = median(drafted.shares[:_END]), median(drafted.shares[-_END:]), drafted.fall
    is_low = fall is not None and fall.fraction_left <= least
    is_low_at_end = fall is not None and last <= least * fall.first
    is_dead_early = first >= LEAST_DRAFTED and last <= _DEAD * first
    if not is_low and not is_low_at_end and not is_dead_early:
        return ""
    earlier = first if fall is None else fall.first
    return f"accepted drafts fell from {earlier:.1%} of the tokens to {last:.1%}"


def _describe_length(transcript: Transcript) -> str:
    """Return the length of a soak in minutes and requests."""
    requests = sum(one.requests for one in transcript.soak)
    return f"{transcript.soak[-1].at_s / 60.0:.2g} minutes and {requests:,} requests" if transcript.soak else "no soak"


def _describe_soak(captured: Captured) -> str:
    """Return a clause on the soak, for the headline of a pass.

    That is its length; the change of accepted drafts and of memory, or why it is unknown; and that of the speed of arms with enough rounds.
    """
    arm, baseline_growth = captured.speculative, memory_growth(captured.baseline.soak)
    # ``fall`` has the medians of the first and the last rounds, also if they hardly differ.
    fall, growth, is_comparable = server_shares(arm).fall, memory_growth(arm.soak), _are_drafts_comparable(captured)
    # "As at first" is claimed only if both drafts and memory could be judged: a fault of either fails instead.
    are_both_judged = fall is not None and is_comparable and growth is not None
    parts = [f"as at first after {_describe_length(arm)}" if are_both_judged else f"after {_describe_length(arm)}"]
    if not is_comparable:
        parts.append("drafts not compared, as others asked the server or requests were refused")
    elif fall is None:
        parts.append("drafts not counted" if not server_shares(arm).shares else "hardly a draft from the beginning")
    else:
        parts.append(f"accepted drafts {fall.first:.0%} of the tokens at first and {fall.last:.0%} at the end")
    uncompared = "" if baseline_growth else ", that of the baseline not known"
    parts.append("memory not known" if growth is None else f"memory {growth.slope:+,.0f} MiB with 1,000 requests{uncompared}")
    parts += [f"{one.arm} {_describe_speed(one.soak)}" for one in (arm, captured.baseline) if len(one.soak) >= LEAST_ROUNDS]
    return ", ".join(parts)


def _describe_speed(rounds: Sequence[SoakRound]) -> str:
    """Return the change of speed from the first third of rounds to the last, in words.

    Each third counts by the middle one of its speeds, since a single round may be slow by chance. ``rounds`` are three or more.
    """
    third = len(rounds) // 3
    first, last = (sorted(one.tokens_per_s for one in part)[third // 2] for part in (rounds[:third], rounds[-third:]))
    return f"{last / first - 1.0:+.0%} in tokens per second" if first else "without tokens"


def _list_evidence(captured: Captured, verdict: Verdict) -> tuple[str, ...]:
    """Return the verdict's evidence, with the rounds of both arms.

    A line before them names each rank whose share of accepted drafts falls while the server's does not. That is no fault: a router may have
    sent the rank other prompts than before.
    """
    rank_lines = [
        f"ranks        {rank.name}: {rank.failure.cell}, the server's share does not fall with it, as where prompts move between ranks"
        for rank in _falling_ranks(captured)
        if not rank.is_lost_to_server
    ]
    return (*verdict.evidence, *rank_lines, *_list_rounds(captured.speculative), *_list_rounds(captured.baseline))


_LISTED = 12


def _list_rounds(transcript: Transcript) -> Sequence[str]:
    """Return lines on a dozen rounds at most, evenly spread."""
    rounds = transcript.soak
    lines = min(_LISTED, len(rounds))
    places = sorted({round(line * (len(rounds) - 1) / max(1, lines - 1)) for line in range(lines)})
    return [f"soak         {transcript.arm} at {_describe_round(rounds[place])}" for place in places]


def _describe_round(one: SoakRound) -> str:
    """Return the figures of one round of a soak, in words."""
    drafted = "drafts not counted" if one.drafted_share is None else f"{one.drafted_share:.1%} drafted"
    memory = "" if one.resident_mib is None else f", {one.resident_mib:,.0f} MiB"
    refused = f", {one.refused} refused" if one.refused else ""
    changed = f", {len(one.changed)} greedy answers unlike the first" if one.changed else ""
    speed = f"{one.tokens_per_s:,.0f} tokens/s"
    return f"{one.at_s:,.0f} s: {one.requests} requests, {one.failed} failed{refused}, {drafted}, {speed}{memory}{changed}"
