"""Context: sequences up to the server's longest get as many tokens as their requests allow, and the baseline's choice of them.

A sequence is prompt and answer together, and the context limit the longest one that the server takes. The judged arm is the speculative
server. The baseline serves the same model without speculation, in one boot or in two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import limits_of
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy_gap import distinct_gaps, scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.prompts.context import LIMITED, fitted, is_open

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

__all__ = ["fail_context", "find_miscounts", "find_unlike_refusals", "judge", "prompt_length"]

_NEAR = 64
"""Tokens up to the longest sequence of the run, within which a wrong token is put down to the context limit."""
_ENOUGH = 20
"""Scored tokens that a pass needs."""


class ContextFlaw(StrEnum):
    """Kinds of faults at the context limit."""

    REFUSED = "sequences that fit the context are refused"
    ADMITTED = "sequences beyond the context are answered"
    SHORT = "answers end before the context does"
    OVERRUN = "answers go on beyond their limit"
    NEAR = "tokens near the context limit are wrong"
    WRONG = "tokens of long sequences are wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBreach:
    """An answer, a refusal or a token that is not as the baseline's."""

    flaw: ContextFlaw
    request_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.request_id}: {self.what}"


def judge(captured: Captured) -> Verdict:
    """Return the verdict on sequences up to the server's context limit.

    They have to be answered, refused and ended as by the baseline. If the workload is scored, their tokens must also be the baseline's
    choice, and be enough to say so. REFUSED if the server's longest sequence is unknown; REFUSED too if it is too long to fill, so that
    fewer than two requests are left. Of several faults, refusals and lengths come first, then tokens, and then other wrong ends.
    """
    captured = _fill_prompts(captured)  # as the capture did, once the longest sequence was known
    return (
        server_failure(captured)
        or _check_limit_known(captured)
        or refusal(captured)
        or fail_context(captured, [*find_unlike_refusals(captured), *find_miscounts(captured)])
        or _check_scored(captured)
        or fail_context(captured, list(_wrong_tokens(captured)))
        or check_endings(captured)
        or speculating(captured, needs_rejections=False)
        or _pass_context(captured)
    )


def _fill_prompts(captured: Captured) -> Captured:
    """Return ``captured`` with its prompts filled up to the baseline's limit.

    A workload states such prompts as lengths, which may depend on the limit; filled prompts are token ids. Requests are left out if their
    length depends on a limit that is unknown or too long to fill.
    """
    # A capture that knows the limit stores the prompts filled, except for those of early releases.
    if not is_open(captured.workload):
        return captured
    limit = captured.capabilities.get(BASELINE, Capabilities()).context_tokens or None  # 0 if the server does not tell it
    return replace(captured, workload=fitted(captured.workload, limit))


def _check_limit_known(captured: Captured) -> Verdict | None:
    """Return REFUSED if fewer than two requests are left, else None.

    Requests are left out if the server's longest sequence is unknown or too long to fill (:func:`_fill_prompts`). A single one left is far
    from the context limit.
    """
    if len(captured.workload.requests) > 1:
        return None
    headline = "the server's longest sequence is unknown, or too long to be filled"
    return say(captured, Outcome.REFUSED, headline, settle="state it among the engine's args, as max-model-len", cell="limit unknown")


def find_unlike_refusals(captured: Captured) -> Iterator[ContextBreach]:
    """Yield requests refused by the arm alone or by the baseline alone.

    Only those count which all boots of the baseline answer, or all refuse.
    """
    peers = [{answer.key: answer for answer in boot.answers} for boot in captured.baseline_boots]
    for answer in captured.speculative.answers:
        by_baseline = [peer[answer.key] for peer in peers if answer.key in peer]
        if is_refusal(answer) and by_baseline and all(other.ok for other in by_baseline):
            what = f"{answer.status} {quote(answer.error or '', 100)}"
            yield ContextBreach(flaw=ContextFlaw.REFUSED, request_id=answer.request_id, what=what)
        if answer.ok and by_baseline and all(map(is_refusal, by_baseline)):
            what = f"answered with {answer.tokens} tokens; the baseline says {quote(by_baseline[0].error or '', 100)}"
            yield ContextBreach(flaw=ContextFlaw.ADMITTED, request_id=answer.request_id, what=what)


def find_miscounts(captured: Captured) -> Iterator[ContextBreach]:
    """Yield answers with fewer or more tokens than max_tokens.

    An answer counts only if every boot of the baseline answers the same request with exactly max_tokens.
    """
    limits = {request.id: limits_of(request) for request in captured.workload.requests}
    exact_keys = [
        {answer.key for answer in boot.answers if answer.ok and answer.tokens == limits[answer.request_id].most}
        for boot in captured.baseline_boots
    ]
    for answer in captured.speculative.answers:
        tokens, most = answer.tokens, limits[answer.request_id].most
        if answer.ok and tokens is not None and most is not None and tokens != most and all(answer.key in keys for keys in exact_keys):
            flaw = ContextFlaw.SHORT if tokens < most else ContextFlaw.OVERRUN
            what = (
                f"{tokens} tokens of {most}, finish_reason {answer.choice.finish_reason!r}, "
                f"after a prompt of {prompt_length(captured, answer)}"
            )
            yield ContextBreach(flaw=flaw, request_id=answer.request_id, what=what)


def prompt_length(captured: Captured, answer: Answer) -> int:
    """Return the number of tokens of the prompt that was sent; by the answer's ids for a text or a chat, 0 without these."""
    prompt = captured.workload.by_id[answer.request_id].body.get("prompt")
    return len(prompt) if isinstance(prompt, list | tuple) else len(answer.prompt_token_ids)


def _longest_sequence(captured: Captured) -> int:
    """Return the longest sequence that the baseline answered, prompt and answer, in tokens."""
    return max((prompt_length(captured, answer) + (answer.tokens or 0) for answer in captured.baseline.answers if answer.ok), default=0)


def _check_scored(captured: Captured) -> Verdict | None:
    """Return the verdict of :func:`unscorable`; None for a workload without scores."""
    return unscorable(captured, needs_rejections=False) if captured.workload.scored else None


def _wrong_tokens(captured: Captured) -> Iterator[ContextBreach]:
    """Yield each answer's first wrong token, unless noise explains their number.

    A token is wrong if its gap, how far it lies below the best one by the baseline's scores, exceeds the tolerance. Their number over all
    answers is compared with that of the baseline's own boots at ``captured.alpha``. The flaw is NEAR among the last 64 tokens up to the
    run's longest sequence, else WRONG. Nothing is yielded if the workload is not scored.
    """
    if not captured.workload.scored:
        return
    answers = scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    allowed, longest = _allow_gaps(captured), _longest_sequence(captured)
    gaps, limit = distinct_gaps(captured.workload, answers), allowed.gap
    if not allowed.is_wrong(sum(gap > limit for gap in gaps), len(gaps), captured.alpha):
        return
    for scored in answers:
        index = next((index for index, gap in enumerate(scored.gaps) if gap > limit), None)
        if index is not None:
            position = prompt_length(captured, scored.answer) + index + 1
            flaw = ContextFlaw.NEAR if position > longest - _NEAR else ContextFlaw.WRONG
            what = f"token {position} of the sequence lies {scored.gaps[index]:.2f} nats below the baseline's best; {limit:.2f} are allowed"
            yield ContextBreach(flaw=flaw, request_id=scored.answer.request_id, what=what)


def _allow_gaps(captured: Captured) -> Tolerance:
    """Return the tolerance by the gaps of the baseline's own boots."""
    return tolerance(
        captured, [answer for boot in captured.baseline_boots for answer in scored_answers(boot, captured.scores.get(boot.arm, ()))]
    )


def fail_context(captured: Captured, breaches: Sequence[ContextBreach]) -> Verdict | None:
    """Return FAIL, named by the most frequent flaw; None without breaches.

    ``breaches`` are the faults that callers have already held against the baseline. Wrong tokens are NEAR within the last 64 tokens of the
    run's longest sequence, which is at the context limit, and else WRONG.
    """
    if not breaches:
        return None
    counts = Counter(breach.flaw for breach in breaches)
    # The limit does not explain wrong tokens far from it: a single one shows a fault of another kind, which gives the name.
    flaw = ContextFlaw.WRONG if counts[ContextFlaw.WRONG] else counts.most_common(1)[0][0]
    first = next(breach for breach in breaches if breach.flaw is flaw)
    others = ", ".join(f"{other.value} in {count}" for other, count in counts.items() if other is not flaw)
    # The baseline has wrong tokens too, by noise, but none of the other flaws at the same requests.
    is_by_tokens = flaw in {ContextFlaw.WRONG, ContextFlaw.NEAR}
    baseline = "more than noise explains" if is_by_tokens else "none of the baseline's to the same requests"
    return say(
        captured,
        Outcome.FAIL,
        f"{flaw.value}: {counts[flaw]} of {len(captured.speculative.answers)} answers, {baseline}" + (f"; also {others}" if others else ""),
        short=(f"first        {first}", f"longest      {_longest_sequence(captured)} tokens, prompt and answer"),
        evidence=(*map(str, breaches), *describe_refusals(captured.speculative.answers)),
        cell=f"{len(breaches)} wrong",
        names=flaw.value,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"answers": float(len(captured.speculative.answers)), "wrong_answers": float(len(breaches))},
    )


def _describe_unfilled(captured: Captured) -> tuple[str, ...]:
    """Return a line for a run without requests up to the context limit.

    The limit is then unknown, or too long to be filled. Empty if some request goes up to it.
    """
    limit = captured.capabilities.get(BASELINE, Capabilities()).context_tokens
    if any(request.id.startswith(LIMITED) for request in captured.workload.requests):
        return ()
    return (f"the server's longest sequence is {f'{limit} tokens, too long to be filled' if limit else 'unknown'}: none goes up to it",)


def _pass_context(captured: Captured) -> Verdict:
    """Return PASS, or INCONCLUSIVE for fewer than 20 scored tokens.

    A workload that is not scored needs none: its lengths, ends and refusals were judged.
    """
    answers = [answer for answer in captured.speculative.answers if answer.ok]
    scored = scored_answers(captured.speculative, captured.scores.get(captured.arm, ())) if captured.workload.scored else ()
    tokens = sum(len(answer.positions) for answer in scored)
    if captured.workload.scored and tokens < _ENOUGH:
        headline = f"only {tokens} tokens could be scored; {_ENOUGH} are needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle="serve prompt log-probabilities", cell="few tokens")
    refusals, longest = sum(map(is_refusal, captured.speculative.answers)), _longest_sequence(captured)
    choices = f", {tokens} tokens are the baseline's choice{_describe_excess(captured, scored)}" if tokens else ""
    return say(
        captured,
        Outcome.PASS,
        f"{len(answers)} answers of sequences up to {longest} tokens have their length{choices}; {refusals} refused alike",
        rules_out=f"ends, refusals and lengths at sequences of up to {longest} tokens",
        evidence=(*_describe_unfilled(captured), *describe_refusals(captured.speculative.answers)),
        cell=f"up to {longest}",
        figures={"answers": float(len(answers)), "longest_tokens": float(longest), "refused_requests": float(refusals)},
    )


def _describe_excess(captured: Captured, answers: Sequence[ScoredAnswer]) -> str:
    """Return a clause on tokens beyond the tolerance, too few for an alarm; empty without."""
    allowed, gaps = _allow_gaps(captured), distinct_gaps(captured.workload, answers)
    return allowed.describe_excess(sum(gap > allowed.gap for gap in gaps), len(gaps))
