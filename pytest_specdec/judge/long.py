"""Long contexts: after an eighth, a quarter, a half and the whole of them, tokens are the baseline's choice and drafts are accepted.

A depth is one of these parts of the context limit; a request's id begins with its depth, as in ``half/copy`` (``limit_part``). Short
prompts fill no part. A wave is a group of requests sent together.

Tokens drawn at a temperature are held to their number and their end only. How much a drafter may lose with the depth is its own matter:
figures show it, and only a fall to next to nothing fails, or to half where the config states that drafts reach that far.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import context
from pytest_specdec.judge.depths import check_drafts_by_depth, depth_figures, depth_lengths, describe_copies, list_acceptance, prompt_tokens
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy_gap import distinct_gaps, scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.repeats import fail_drop, repeats
from pytest_specdec.judge.tolerance import describe_remedy, tolerance
from pytest_specdec.judge.verdicts import against, restate, say
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.prompts.context import is_open
from pytest_specdec.prompts.long import LIMIT_PARTS, limit_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

DRAFTS_DIE_LATER = "drafts are no longer accepted after long requests"
WRONG_EVERYWHERE = "tokens of long prompts are wrong at every depth"
WRONG_SHALLOW = "tokens of long prompts are wrong, the shortest among them too"
WRONG_SHORT = "tokens of a short prompt are wrong"
WRONG_ANY = "tokens of short and long prompts are wrong"
WRONG_TOGETHER = "tokens of several long prompts together are wrong"
_ENOUGH = 20
"""Scored tokens that a pass needs."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers after long contexts.

    Every check returns a verdict, or None to go on; the first verdict counts. Faults come before the question if anything was drafted at
    all, since they are faults without it too. REFUSED if the longest sequence is unknown, or too short for parts of it to be long.
    """
    return (
        _check_server(captured)
        or _check_limit(captured)
        or refusal(captured)
        # First what shows without scores: requests refused by one arm alone, and answers of another length than max_tokens.
        or context.fail_context(captured, [*context.find_unlike_refusals(captured), *context.find_miscounts(captured)])
        or check_endings(captured)
        # Then tokens that are not the baseline's choice, by its scores. A server may pass without a rejected draft token here.
        or unscorable(captured, needs_rejections=False)
        or _check_tokens(captured)
        # Then drafts that are accepted no more: in a prompt sent again after longer ones, and at greater depth.
        or _check_later_drafts(captured)
        or check_drafts_by_depth(captured)
        or speculating(captured, needs_rejections=False)
        or _pass_long(captured)
    )


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on server failures; None without one.

    A FAIL gets the context's length at which the server failed, if it answered after a shorter one. The verdict is first made without
    ``on_verdict``, which would report it: ``restate`` does so once it is complete.
    """
    verdict = server_failure(replace(captured, on_verdict=None))
    if verdict is None:
        return None
    if verdict.outcome is not Outcome.FAIL or verdict.example is None:
        return restate(captured, verdict)
    lengths = prompt_tokens(captured)
    failed = lengths.get(verdict.example.request_id, 0)
    answered = [lengths.get(answer.request_id, 0) for answer in captured.speculative.answers if answer.ok]
    survived = max((tokens for tokens in answered if tokens < failed), default=0)
    if not survived:
        return restate(captured, verdict)
    headline = f"{verdict.headline}; it fails after {failed:,} tokens of context, and answers after {survived:,}"
    return restate(captured, verdict, headline=headline, names=f"{verdict.names} after {failed:,} tokens of context")


def _check_limit(captured: Captured) -> Verdict | None:
    """Return REFUSED if no prompt is a known part of the context limit, else None.

    A short limit leaves no room for these parts: the requests with them are not in the workload then.
    """
    are_prompts_written = not is_open(captured.workload)  # as tokens; until the limit is known they are given as lengths
    if are_prompts_written and any(limit_part(request.id) in LIMIT_PARTS for request in captured.workload.requests):
        return None
    headline = "the server's longest sequence is unknown, or so short that the family context fills it"
    return say(captured, Outcome.REFUSED, headline, settle="state it among the engine's args, as max-model-len", cell="limit unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredDepth:
    """The scored answers at temperature 0 after prompts of one length."""

    name: str
    """A depth, or the id of a short prompt, which fills no part of the context limit."""
    is_part: bool
    """Whether it is a depth."""
    prompt_tokens: int
    """0 if unknown."""
    answers: int
    wrong_answers: int
    """Those with a wrong token."""

    def __str__(self) -> str:
        return f"{self.prompt_tokens:,} tokens: {self.wrong_answers} of {self.answers} answers have a wrong token"


def _check_tokens(captured: Captured) -> Verdict | None:
    """Return FAIL if more tokens are wrong than noise explains.

    Only answers at temperature 0 count. A token is wrong if it lies below the baseline's best one by more than the tolerance, in nats,
    which the gaps of the baseline's own boots (``peers``) set. INVALID if the baseline does not repeat itself, SUSPICIOUS if wrong tokens
    are too many for noise and too few for an alarm, else None. The fault is named by the depths with wrong tokens.
    """
    scored = _greedy_scored(captured, captured.arm, captured.speculative)
    peers = [answer for boot in captured.baseline_boots for answer in _greedy_scored(captured, boot.arm, boot)]
    allowed = tolerance(captured, peers)
    gaps = distinct_gaps(captured.workload, scored)
    events = sum(gap > allowed.gap for gap in gaps)
    if not allowed.trustworthy:
        headline = "the baseline does not repeat itself after long prompts, so it cannot judge"
        return say(captured, Outcome.INVALID, headline, cell="baseline unsteady")
    if not allowed.is_wrong(events, len(gaps), captured.alpha):
        return _say_open(captured, allowed, events, len(gaps)) if allowed.is_open(events, len(gaps)) else None
    wrong = [answer for answer in scored if any(gap > allowed.gap for gap in answer.gaps)]
    depths = _group_by_depth(captured, scored, wrong)
    name = _name_wrong(captured, depths)
    lines = [str(depth) for depth in depths]
    first = wrong[0].answer
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {events:,} of {len(gaps):,} tokens by more than {allowed.gap:.2f} nats, more than noise explains; "
        f"{_describe_right(depths)}",
        short=(*lines[:3], f"first        {first.request_id}"),
        evidence=lines,
        cell=f"{events:,} of {len(gaps):,} tokens wrong",
        names=name,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"wrong_tokens": float(events), "tokens": float(len(gaps))},
    )


def _group_by_depth(captured: Captured, scored: Sequence[ScoredAnswer], wrong: Sequence[ScoredAnswer]) -> list[_ScoredDepth]:
    """Return the numbers of ``scored`` answers and of ``wrong`` ones by depth.

    They come in the order of the answers. A short prompt, which has no depth, has an item of its own: ``is_part`` is False there.
    """
    depths = depth_lengths(captured).keys()
    # Prompts of one depth have about equally many tokens, so that the last one's number stands for all.
    lengths = {limit_part(request_id): tokens for request_id, tokens in prompt_tokens(captured).items()}
    answers = Counter(limit_part(answer.answer.request_id) for answer in scored)
    wrong_answers = Counter(limit_part(answer.answer.request_id) for answer in wrong)
    return [
        _ScoredDepth(
            name=name, is_part=name in depths, prompt_tokens=lengths.get(name, 0), answers=count, wrong_answers=wrong_answers[name]
        )
        for name, count in answers.items()
    ]


def _sort_parts(depths: Iterable[_ScoredDepth]) -> list[_ScoredDepth]:
    """Return the depths without short prompts, the shallowest first."""
    return sorted((depth for depth in depths if depth.is_part), key=lambda depth: depth.prompt_tokens)


def _say_open(captured: Captured, allowed: Tolerance, events: int, tokens: int) -> Verdict:
    """Return SUSPICIOUS for more wrong tokens than noise explains, and too few for an alarm."""
    headline = f"{events:,} of {tokens:,} tokens lie further below the best than noise explains"
    evidence = against(allowed.log_evidence(events, tokens), captured.alpha)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"{headline}; evidence {evidence}",
        settle=describe_remedy(captured),
        cell=f"{events:,} of {tokens:,} tokens doubtful",
    )


def _greedy_scored(captured: Captured, arm: str, transcript: Transcript) -> tuple[ScoredAnswer, ...]:
    """Return an arm's scored answers at temperature 0."""
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    scored = scored_answers(transcript, captured.scores.get(arm, ()))
    return tuple(answer for answer in scored if answer.answer.request_id in greedy)


def _name_wrong(captured: Captured, depths: Sequence[_ScoredDepth]) -> str:
    """Return the fault's name by the depths with wrong tokens, of which there is one at least."""
    parts = _sort_parts(depths)  # without short prompts, the shallowest first
    bad = [depth for depth in parts if depth.wrong_answers]
    if any(depth.wrong_answers for depth in depths if not depth.is_part):
        return WRONG_ANY if bad else WRONG_SHORT
    if bad == parts:
        return WRONG_EVERYWHERE
    if bad[0] == parts[0]:
        return WRONG_SHALLOW
    # Reversed, so that the first wave of a depth counts: later ones ask some of its prompts again.
    wave_sizes = {limit_part(wave[0].id): len(wave) for wave in reversed(captured.workload.in_waves)}
    # If all wrong depths were sent several prompts at once, and all deeper ones were sent alone and are right, length is not to blame.
    deeper = parts[parts.index(bad[-1]) + 1 :]
    are_bad_together = all(wave_sizes.get(depth.name, 1) > 1 for depth in bad)
    are_deeper_alone = all(wave_sizes.get(depth.name, 1) == 1 for depth in deeper)
    if deeper and are_bad_together and are_deeper_alone:
        return WRONG_TOGETHER
    return f"tokens are wrong after {bad[0].prompt_tokens:,} tokens of context"


def _describe_right(depths: Iterable[_ScoredDepth]) -> str:
    """Return a clause on the depths without a wrong token."""
    right = [f"{depth.prompt_tokens:,}" for depth in _sort_parts(depths) if not depth.wrong_answers]
    return f"none after {', '.join(right)}" if right else "at every depth asked"


def _check_later_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if equal answers to a prompt asked again accept half or less of the drafts.

    None otherwise, and for the control, which does not draft.
    """
    if captured.is_control:
        return None
    return fail_drop(captured, DRAFTS_DIE_LATER, list(repeats(captured, captured.speculative)), captured.alpha)


def _pass_long(captured: Captured) -> Verdict:
    """Return PASS with the figures by depth, or INCONCLUSIVE for too few scored tokens."""
    scored = _greedy_scored(captured, captured.arm, captured.speculative)
    tokens = sum(len(answer.positions) for answer in scored)
    table, figures = list_acceptance(captured), depth_figures(captured)
    if tokens < _ENOUGH:
        headline = f"only {tokens} tokens could be scored; {_ENOUGH} are needed"
        return say(
            captured,
            Outcome.INCONCLUSIVE,
            headline,
            evidence=table,
            settle="serve prompt log-probabilities",
            cell="few tokens",
            figures=figures,
        )
    deepest, lengths = max(depth_lengths(captured).values()), prompt_tokens(captured)
    scored_to = max(lengths[answer.answer.request_id] for answer in scored)
    unscored = f"; tokens after more than {scored_to:,} are not scored" if deepest > scored_to else ""
    # Refusals unlike the baseline's have failed before.
    judged = captured.speculative.answers
    answers, refusals = sum(answer.ok for answer in judged), sum(map(is_refusal, judged))
    return say(
        captured,
        Outcome.PASS,
        f"{answers} answers after up to {deepest:,} tokens of context; {tokens} scored tokens are right but for noise{unscored}"
        + describe_copies(captured)
        + (f"; {refusals} refused alike" if refusals else ""),
        rules_out=f"ends, refusals and dead drafts after up to {deepest:,} tokens, wrong tokens after up to {scored_to:,}",
        evidence=(*table, *describe_refusals(captured.speculative.answers)),
        cell=f"up to {deepest:,}",
        figures=figures | {"tokens": float(tokens), "deepest_prompt_tokens": float(deepest), "deepest_scored_tokens": float(scored_to)},
    )
