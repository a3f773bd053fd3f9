"""Concurrency: requests in flight beside others get what they would get alone.

Requests are sent in waves, groups of one to 32 at once. Every token at temperature 0 is compared with the scores of the baseline, the same
model without speculation, wave by wave. A token is wrong if it lies below the best one by more than the tolerance, the gap that noise
explains. If tokens are wrong beside other requests and right alone, the fault is named by what the wrong waves have in common. Answers to
another request are recognised by their text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.concurrency_waves import SWAPPED, WRONG_ALONE, blame, concurrent_tokens, find_foreign_text, swapped_answers
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy import LEAST_TOKENS
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.structured.documents import documents
from pytest_specdec.judge.structured.output_formats import formats
from pytest_specdec.judge.tolerance import describe_remedy
from pytest_specdec.judge.verdicts import against, quote, say
from pytest_specdec.model.verdict import Example, Outcome, SharedCheck, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.concurrency_waves import ConcurrentTokens, WaveTokens
    from pytest_specdec.judge.structured.documents import OutputFormat
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

NO_GRAMMAR = "a grammar is not kept under concurrency"
DEAD_DRAFTS = "drafts are hardly ever accepted under concurrency"
FOREIGN = "special tokens or foreign scripts appear under concurrency"
_ENOUGH_STEPS = 30
"""Verify steps that are needed in the smaller waves and in the larger ones."""
_USUAL, _RATIO = 0.3, 0.1
"""The least accepted tokens per step in smaller waves, and the largest fraction of it in larger ones: prompts alone differ by less."""
_EARLY = slice(2, 7)
"""Verify steps in which all requests of a wave are in flight: during the first ones some are still being admitted."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers to requests sent in concurrent waves.

    Each should be as it would be alone, although concurrent requests may ask for other features and their clients may leave. Failures and
    refusals come first, then requests without an answer, swapped answers, wrong ends, invalid documents, foreign text, dead drafts, and
    the tokens. Invalid documents fail only if neither boot of the baseline has one, and foreign text by Fisher's exact test. Tokens at
    temperature 0 above the tolerance are counted against the baseline's own, as in the greedy judge.
    """
    return (
        server_failure(captured)
        or refusal(captured)
        or _check_all_answered(captured)
        or _check_swapped(captured)
        or check_endings(captured)
        or _check_documents(captured)
        or _check_foreign(captured)
        or _check_dead_drafts(captured)
        or unscorable(captured)
        or _judge_tokens(captured)
    )


def _check_all_answered(captured: Captured) -> Verdict | None:
    """Return INVALID if an arm left requests without any answer.

    Arms are the judged one and the baseline's boots. Requests that were refused, or aborted by their client, do not count. Else None.
    """
    for arm in (captured.speculative, *captured.baseline_boots):
        silent = [answer for answer in arm.answers if not (answer.ok or answer.aborted or is_refusal(answer))]
        if silent:
            headline = f"{len(silent)} of {len(arm.answers)} requests have no answer from {arm.arm}, with no server failure"
            lines = [f"request {answer.request_id}: {quote(answer.error or '', 200)}" for answer in silent]
            return say(captured, Outcome.INVALID, headline, evidence=lines)
    return None


def _check_swapped(captured: Captured) -> Verdict | None:
    """Return FAIL for answers with another request's text, else None."""
    pairs = swapped_answers(captured)
    if not pairs:
        return None
    first = pairs[0]
    return say(
        captured,
        Outcome.FAIL,
        f"{SWAPPED}: {len(pairs)} of {len(captured.speculative.answers)}; "
        f"first: request {first.request_id} is answered as {first.other_id}",
        short=(f"answer       {quote(first.text, 90)}", f"it fits      {quote(first.other_text, 90)}"),
        evidence=[f"{pair.request_id} is answered as {pair.other_id}: {quote(pair.text, 200)}" for pair in pairs],
        cell=f"{len(pairs)} swapped",
        names=SWAPPED,
        figures={"swapped_answers": float(len(pairs))},
    )


def _check_documents(captured: Captured) -> Verdict | None:
    """Return FAIL if documents of the judged arm break their grammar.

    A document is the answer to a request with a format such as a JSON schema. None if all are valid, or if a boot of the baseline has an
    invalid one too.
    """
    wanted = formats(captured.workload.requests)
    wrong = _list_document_faults(captured.speculative, wanted)
    if not wrong or any(_list_document_faults(boot, wanted) for boot in captured.baseline_boots):
        return None
    headline = f"{NO_GRAMMAR}: {len(wrong)} of {len(wanted)} documents are invalid, none of the baseline's; first: {wrong[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=wrong, cell=f"{len(wrong)} invalid", names=NO_GRAMMAR)


def _list_document_faults(arm: Transcript, wanted: Mapping[str, OutputFormat]) -> list[str]:
    """Return a line per document that breaks its format; ``wanted`` has the formats by request id."""
    answers = [answer for answer in arm.answers if answer.ok and answer.request_id in wanted]
    checked = [document for answer in answers for document in documents(answer, wanted[answer.request_id])]
    return [f"{document.request_id}: {document.fault}" for document in checked if document.fault]


def _check_foreign(captured: Captured) -> Verdict | None:
    """Return FAIL if foreign text is more frequent than in the baseline.

    Foreign text is special tokens, or letters of a script that the prompt does not use. Answers with it are counted, and compared by
    Fisher's exact test at ``captured.alpha``; None if chance explains the difference.
    """
    foreign = find_foreign_text(captured, captured.speculative)
    peers = [find_foreign_text(captured, arm) for arm in captured.baseline_boots]
    of_baseline = sum(len(peer.kinds) for peer in peers)
    p_value = proportions.greater_than_other(len(foreign.kinds), foreign.answers, of_baseline, sum(peer.answers for peer in peers))
    if p_value > captured.alpha:
        return None
    first, what = next(iter(foreign.kinds.items()))
    headline = (
        f"{FOREIGN}: in {len(foreign.kinds)} of {foreign.answers} answers, {of_baseline} of the baseline's; first: request {first}, {what}"
    )
    lines = [f"request {id_}: {text}" for id_, text in foreign.kinds.items()]
    return say(captured, Outcome.FAIL, headline, evidence=lines, names=FOREIGN, figures={"p_value": p_value})


def _check_dead_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts are hardly ever accepted in larger waves.

    Every size of a wave is tried as the border from which on drafts may die: waves of that size or more are the larger ones. FAIL if the
    larger waves accept at most a tenth of the draft tokens per step that the smaller ones do. The smaller ones must accept .3 per step or
    more, and both need 30 steps. Only early verify steps count, while every request of a wave is in flight, and only requests at
    temperature 0, since drafts of sampled tokens are accepted less. None otherwise, for the control, which does not draft, and if by the
    config drafting depends on the load.
    """
    draft = captured.pair.variant.draft
    if captured.is_control or draft.most_requests or draft.depends_on_load:
        return None
    steps, sizes = _early_steps(captured), sorted({len(turn) for turn in captured.workload.turns})
    for size in sizes[1:]:
        small = [step.accepted for step in steps if step.wave_size < size]
        large = [step.accepted for step in steps if step.wave_size >= size]
        is_enough = min(len(small), len(large)) >= _ENOUGH_STEPS and sum(small) >= _USUAL * len(small)
        # Accepted tokens per step are compared, with both sides multiplied by both numbers of steps.
        if is_enough and sum(large) * len(small) <= _RATIO * sum(small) * len(large):
            return _fail_dead_drafts(captured, size, small, large)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _EarlyStep:
    """One verify step during which all requests of its wave are in flight."""

    wave_size: int
    accepted: int
    """Accepted draft tokens."""


def _early_steps(captured: Captured) -> list[_EarlyStep]:
    """Return the early verify steps of the judged arm's answers.

    In the third to the seventh whole step of each answer (:data:`_EARLY`) all requests of its wave are in flight: before, some are still
    being admitted, and later some have ended. Sampled requests and those with a grammar are left out: their acceptance is not that of the
    others.
    """
    wave_sizes = {r.id: len(turn) for turn in captured.workload.turns for r in turn if r.greedy and not r.grammar}
    return [
        _EarlyStep(wave_size=wave_sizes[answer.request_id], accepted=emitted - 1)  # a step emits one token beside the accepted ones
        for answer in captured.speculative.answers
        if answer.request_id in wave_sizes
        for choice in answer.choices
        for emitted in choice.steps[_EARLY]
    ]


def _fail_dead_drafts(captured: Captured, size: int, small: Sequence[int], large: Sequence[int]) -> Verdict:
    """Return FAIL with the acceptance in smaller and in larger waves.

    ``small`` and ``large`` are the accepted draft tokens of each verify step, in waves below ``size`` and from it on.
    """
    return say(
        captured,
        Outcome.FAIL,
        f"{DEAD_DRAFTS}: {sum(large)} draft tokens in {len(large)} verify steps with {size} requests in flight or more; "
        f"{sum(small)} in {len(small)} steps with fewer",
        short=("likely       drafting is switched off for large batches, or the draft's state is lost there",),
        cell=f"dead drafts from {size} on",
        names=DEAD_DRAFTS,
        check=SharedCheck.DRAFTING,
        figures={"accepted_tokens_small": float(sum(small)), "accepted_tokens_large": float(sum(large))},
    )


def _judge_tokens(captured: Captured) -> Verdict:
    """Return the verdict on the scored tokens at temperature 0.

    INVALID if scores are of other tokens, if no token is scored, or if the baseline does not repeat itself well enough to judge by. Wrong
    tokens come next, then missing drafts, and then PASS, or INCONCLUSIVE for few tokens.
    """
    try:
        tokens = concurrent_tokens(captured)
    except ValueError as error:
        return say(captured, Outcome.INVALID, str(error))
    if not tokens.count:
        return say(captured, Outcome.INVALID, f"no greedy token of {captured.arm} was scored under the baseline")
    if not tokens.allowed.trustworthy:
        shown = f"largest gap between its boots {tokens.largest_peer_gap:.3g} nats"
        return say(captured, Outcome.INVALID, f"the baseline does not repeat itself: {shown}", evidence=_describe_waves(tokens))
    return _check_wrong_tokens(captured, tokens) or speculating(captured) or _pass_concurrency(captured, tokens)


def _check_wrong_tokens(captured: Captured, tokens: ConcurrentTokens) -> Verdict | None:
    """Return FAIL for more wrong tokens than the baseline's boots explain.

    Returns SUSPICIOUS if wrong tokens are too many for noise and too few for an alarm (``is_open``), and None if noise explains their
    number. ``events`` counts the wrong tokens, and ``repeats`` has their counts in rounds with the same requests sent again.
    """
    checked = len(tokens.gaps)
    if tokens.allowed.is_wrong(tokens.events, checked, captured.alpha, tokens.repeats):
        return _fail_wrong_tokens(captured, tokens)
    return _say_suspicious(captured, tokens) if tokens.allowed.is_open(tokens.events, checked, tokens.repeats) else None


def _fail_wrong_tokens(captured: Captured, tokens: ConcurrentTokens) -> Verdict:
    """Return FAIL, named by what the waves with wrong tokens have in common.

    That is a feature of their requests, such as a grammar, or just that they are in flight together. It is WRONG_ALONE if a request alone
    has wrong tokens. The example is the token with the widest gap below the baseline's best one.
    """
    wrong_waves = [wave for wave in tokens.waves if wave.wrong]
    name = blame(tokens.waves)
    widest = max((token for wave in wrong_waves for token in wave.wrong), key=lambda token: token.gap)
    alone = [wave for wave in tokens.waves if wave.size == 1]
    sizes = sorted({wave.size for wave in wrong_waves})
    where = "at every size, alone too" if name == WRONG_ALONE else f"with {_list_numbers(sizes)} in flight, 0 of {_count(alone)} alone"
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {sum(len(wave.wrong) for wave in wrong_waves)} of {tokens.count:,} tokens wrong {where}; "
        f"widest: request {widest.request_id}, token {widest.index + 1}",
        short=(f"gap          {widest.gap:.3g} nats below the best token; allowed {tokens.allowed.gap:.3g}", *_describe_waves(tokens)[:3]),
        evidence=_describe_waves(tokens),
        cell=f"wrong at {_list_numbers(sizes)}",
        names=name,
        example=Example(symptom=Symptom.TEXT, request_id=widest.request_id, token=widest.index, limit_nats=tokens.allowed.gap),
        figures=_concurrency_figures(tokens),
    )


def _say_suspicious(captured: Captured, tokens: ConcurrentTokens) -> Verdict:
    """Return SUSPICIOUS with the wrong tokens and their evidence.

    They are too many for noise and too few for an alarm; the same requests may be sent again to decide.
    """
    evidence = against(tokens.allowed.log_evidence(tokens.events, len(tokens.gaps), tokens.repeats), captured.alpha)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"{tokens.events:,} of {len(tokens.gaps):,} tokens lie further below the best than noise explains; evidence {evidence}",
        evidence=_describe_waves(tokens),
        settle=describe_remedy(captured),
        cell=f"{tokens.events:,} tokens doubtful",
        figures=_concurrency_figures(tokens),
    )


def _describe_waves(tokens: ConcurrentTokens) -> tuple[str, ...]:
    """Return a line per wave, the one with the most wrong tokens first."""
    waves = sorted(tokens.waves, key=lambda wave: (-len(wave.wrong), wave.number))
    return tuple(
        f"wave {wave.number}: {wave.size} in flight{_list_traits(wave)}: {len(wave.wrong)} of {wave.tokens} tokens wrong" for wave in waves
    )


def _list_traits(wave: WaveTokens) -> str:
    return f" ({', '.join(sorted(wave.traits))})" if wave.traits else ""


def _pass_concurrency(captured: Captured, tokens: ConcurrentTokens) -> Verdict:
    """Return PASS, or INCONCLUSIVE for too few tokens beside other requests."""
    waves_beside = [wave for wave in tokens.waves if wave.size > 1]
    beside = _count(waves_beside)
    if beside < LEAST_TOKENS:
        headline = f"not enough evidence: {beside} greedy tokens checked under concurrency, none wrong"
        return say(
            captured, Outcome.INCONCLUSIVE, headline, settle=f"{LEAST_TOKENS - beside} more tokens", figures=_concurrency_figures(tokens)
        )
    sizes = _list_numbers(sorted({wave.size for wave in waves_beside}))
    # The test was over all distinct tokens, those of requests alone included. What it rules out is stated for those beside others.
    tested = len(tokens.gaps)
    excess = tokens.allowed.describe_excess(tokens.events, tested, tokens.repeats)
    rate = tokens.allowed.ruled_out(beside, captured.alpha, tested)
    share = tokens.allowed.ruled_out_answers(tokens.lengths, tested, captured.alpha)
    # Some requests have no tokens to check: their client left, as planned, or the server refused a feature.
    clients_left = sum(answer.aborted for answer in captured.speculative.answers)
    refusals = sum(map(is_refusal, captured.speculative.answers))
    return say(
        captured,
        Outcome.PASS,
        f"0 of {tokens.count:,} tokens wrong, alone and with {sizes} in flight{excess}"
        + (f"; {clients_left} clients left in the middle of an answer" if clients_left else "")
        + (f"; {refusals} requests refused with a 4xx" if refusals else ""),
        evidence=_describe_waves(tokens),
        rules_out=f"{beside:,} tokens under concurrency checked; {tokens.allowed.describe_ruled_out(rate, share)}; "
        f"no answer went to another request. Wrong: more than {tokens.allowed.gap:.3g} nats below the baseline's best token",
        cell=f"0 of {tokens.count:,} tokens wrong",
        figures=_concurrency_figures(tokens) | {"clients_left": float(clients_left)},
    )


def _concurrency_figures(tokens: ConcurrentTokens) -> dict[str, float]:
    wrong = sum(len(wave.wrong) for wave in tokens.waves)
    return {"checked_tokens": float(tokens.count), "wrong_tokens": float(wrong), "tolerance_nats": tokens.allowed.gap}


def _count(waves: Sequence[WaveTokens]) -> int:
    return sum(wave.tokens for wave in waves)


def _list_numbers(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
